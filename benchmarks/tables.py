"""Makes docs/results.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from common import HERE, RESULTS

OUT = HERE.parent / "docs" / "results.md"
INTRODUCTION = """\
# Results

Made by `python benchmarks/tables.py` from `benchmarks/results/`; each section names the script that measured it. Times are of
the machine named; only figures of one section compare.
"""


def about(result: dict) -> str:
    machine, versions = result["machine"], result["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"*{result['date']}, {machine['cpus']} cores, {machine['processor']}, Python {machine['python']}, {packages}*\n"


def learning(name: str, result: dict) -> str:
    """Seeds of each variant in one row."""
    groups = defaultdict(list)
    for run in result["runs"]:
        groups[" ".join(run["overrides"]) or "as it is"].append(run)
    lines = [
        f"## `{result['file']}`\n",
        f"`python benchmarks/learning.py {name}`; target: a mean return of {result['target']:g} over 100 episodes.\n",
        about(result),
        "| variant | seeds that reached the target | at env steps | best mean return | last mean return | steps/s | policy lag, max |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for variant, runs in groups.items():
        reached = [run["reached"] for run in runs if run["reached"] is not None]
        when = f"{min(reached):,} to {max(reached):,}" if reached else "never"
        best, last = (f"{min(r[key] for r in runs):.4g} to {max(r[key] for r in runs):.4g}" for key in ("best", "last"))
        speed = sorted(run["steps_per_second"] for run in runs)[len(runs) // 2]
        lag = max(run["policy_lag_max"] for run in runs)
        lines.append(f"| {variant} | {len(reached)} of {len(runs)} | {when} | {best} | {last} | {speed:,} | {lag:g} |")
    return "\n".join(lines) + "\n"


def throughput(name: str, result: dict) -> str:
    """Medians, and the ratio to another program's."""
    lines = [
        f"## Throughput of `{result['file']}`\n",
        f"`benchmarks/throughput.py`, {result['steps']:,} steps a run, {' '.join(result['overrides']) or 'no overrides'}.\n",
        about(result),
        "| program | steps/s, median | runs | policy lag, max | ratio |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for scheme, runs in result["runs"].items():
        speeds = ", ".join(f"{run['steps_per_second']:,.0f}" for run in runs)
        ratio = result.get("ratios", {}).get(scheme, "")
        lines.append(f"| modrl, {scheme} | {result['medians'][scheme]:,.0f} | {speeds} | {max(run['policy_lag_max'] for run in runs):g} | {ratio} |")
    if "their_runs" in result:
        lines.append(f"| {result['their_name']} | {result['their_median']:,.0f} | {', '.join(f'{v:,.0f}' for v in result['their_runs'])} | | 1 |")
    return "\n".join(lines) + "\n"


def main() -> Path:
    sections = [INTRODUCTION]
    for path in sorted(RESULTS.glob("*.json")):
        kind, _, name = path.stem.partition("_")
        sections.append({"learning": learning, "throughput": throughput}[kind](name, json.loads(path.read_text())))
    OUT.write_text("\n".join(sections))
    return OUT


if __name__ == "__main__":
    print(main())
