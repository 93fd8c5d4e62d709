"""Makes docs/results.md and its figures from benchmarks/results/*.json."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from common import HERE, RESULTS

OUT = HERE.parent / "docs" / "results.md"
GAMES = {"pong": "Pong", "cartpole": "CartPole"}
INTRODUCTION = """\
# Results

Made by `python benchmarks/tables.py` from `benchmarks/results/`; each section names the script that measured it. Times are of
the machine named; only figures of one section compare.
"""


def about(result: dict) -> str:
    machine, versions = result["machine"], result["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"*{result['date']}, {machine['cpus']} cores, {machine['processor']}, Python {machine['python']}, {packages}*\n"


@contextlib.contextmanager
def figure(name: str, title: str, across: str, up: str) -> Iterator[Any]:
    """Axes to draw on; the figure is written beside the page."""
    drawn, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    yield axes
    folder = OUT.parent / "figures"
    folder.mkdir(exist_ok=True)
    drawn.savefig(folder / f"{name}.png", dpi=110)
    plt.close(drawn)


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


def schemes(name: str, result: dict) -> str:
    """Every preset in one row."""
    lines = [
        "## CartPole under every preset\n",
        f"`python benchmarks/schemes.py`; each run ends when the mean return over 100 episodes is {result['target']}. Seconds include the start.\n",
        about(result),
        "| preset | agent | mean return | env steps | seconds | steps/s | policy lag, mean | max | gradient lag, mean |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for run in result["runs"]:
        lines.append(
            f"| `{run['preset']}` | {run['algorithm']} | {run['return']:.0f}{'' if run['reached'] else ', not reached'} | {run['env_steps']:,} | "
            f"{run['seconds']:.0f} | {run['steps_per_second']:,} | {run['policy_lag_mean']:.2f} | {run['policy_lag_max']:g} | "
            f"{run['gradient_lag_mean']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def faults(name: str, result: dict) -> str:
    """What was killed, and what became of the run."""
    return {"matrix": _matrix, "soak": _soak, "slow": _slow}[name](result)


def _matrix(result: dict) -> str:
    lines = [
        "## One kill in the middle of a run\n",
        "`python benchmarks/faults.py matrix`: SIGKILL at a third of 8,000 env steps; of a node, its raylet and all its workers. Every step",
        "has a number of its own, and the learner writes down which it learns from. After the driver's loss the run goes on with",
        "`--resume`, and steps since its last checkpoint are learned from again.\n",
        about(result),
        "| killed | scheme | status | env steps counted | learned from | of these twice | replaced | rollouts dropped | s to the next row |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for cell in result["cells"]:
        lines.append(
            f"| {cell['killed']} | `{cell['scheme']}` | {cell['run']} | {cell['env_steps']:,} | {cell['learned']:,} | {cell['twice']} | "
            f"{cell['restarts']} | {cell['dropped']} | {cell['seconds_to_next_row']:g} |"
        )
    return "\n".join(lines) + "\n"


def _soak(result: dict) -> str:
    soak = result["soak"]
    lines = [
        "## A soak with many kills\n",
        "`python benchmarks/faults.py soak`: four collectors on Ray under `impala`, one of them killed every so often.\n", about(result),
        "| minutes | kills | replaced | env steps counted | learned from | twice | resident memory after warm-up | at the end | growth |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {soak['minutes']:g} | {soak['kills']} | {soak['restarts']} | {soak['env_steps']:,} | {soak['learned']:,} | {soak['twice']} | "
        f"{soak['rss_after_warm_up'] / 1e6:.0f} MB | {soak['rss_at_end'] / 1e6:.0f} MB | {soak['growth']:.1%} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _slow(result: dict) -> str:
    lines = [
        "## A straggler, preempted\n",
        "`python benchmarks/faults.py slow`: a round of four collectors of one environment each, 100 steps; one of them ten times slower;",
        "and with `preemption: {fraction_workers: 0.75, fraction_samples: 0.1}`.\n", about(result),
        "| round | seconds, median | env steps counted | learned from |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, found in result["rounds"].items():
        lines.append(f"| {name} | {found['seconds']:.3f} | {found['env_steps']:,} | {found['learned']:,} |")
    return "\n".join([*lines, "", f"A preempted round takes {result['ratio']:.2f} times an undisturbed one."]) + "\n"


NOTES = {
    "pong": "The network is that of DQN (`nature`) on both sides. The other programs compute in fp32, as they come; algorithms are\n"
    "each program's own, so that steps are compared and not learning.\n",
    "cartpole": "`local` does what Stable-Baselines3 does, one thing after another, in the same environments. `fast` is compiled\n"
    "(`machine.compile`) and steps the environment's own vector version; `ahead` moreover collects the next batch in a process of\n"
    "its own while the last one is learned from, so that a batch is one round old.\n",
}
"""What a table's names mean."""


def peers(name: str, result: dict) -> str:
    """Medians, and how many times as fast modrl is."""
    packages = ("stable-baselines3", "ray[rllib]", "sample-factory", "torchrl")
    versions = [f"{package} {found[package]}" for found in result["peers"].values() for package in packages if package in found]
    lines = [
        f"## Throughput beside other libraries: {GAMES[name]}\n",
        f"`python benchmarks/peers.py {name}`: agent steps, {result['seconds']:g} s of each run; each library in an environment of its own, set up",
        f"as `benchmarks/peers/` says: {', '.join(versions)}. A column of modrl's says how many times",
        "as fast as a row's program it is, by the medians and in single rounds.\n",
        about(result), NOTES.get(name, ""),
    ]  # fmt: skip
    for title, contest in result["contests"].items():
        medians = contest["medians"]
        ours = [program for program in medians if program.startswith("modrl, ")]
        lines += [f"| {title} | steps/s, median | runs | {' | '.join(ours)} |", f"|---|---|---|{'---|' * len(ours)}"]
        for program, runs in contest["runs"].items():
            median = f"{medians[program]:,.0f}" if program in medians else ""
            told = [f"{speed:,.0f}" for speed in runs]
            if program in contest["failures"]:
                told.append(contest["failures"][program].replace("|", "/"))
            found = contest["ratios"].get(program, {})
            ratios = [f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in found.values()] or [""] * len(ours)
            lines.append(f"| {program} | {median} | {', '.join(told)} | {' | '.join(ratios)} |")
        lines.append("")
    return "\n".join(lines)


def inference(name: str, result: dict) -> str:
    """What a server does to a step."""
    lines = [
        "## An inference server in threads\n",
        f"`python benchmarks/inference.py`: {result['collectors']} collectors in threads with one environment each, whose step takes 5 ms;",
        "networks of two layers; medians of five pairs of runs, the least mean batch.\n", about(result),
        "| width of a layer | step with collectors' own inference | with a server | ratio | mean batch | same actions |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for run in result["results"]:
        own, served = run["collector"]["ms_per_step"], run["server"]["ms_per_step"]
        same, (low, high) = "yes" if run["same_actions"] else "no", run["ratios"]
        ratio, batch = f"{run['ratio']:.2f} ({low:.2f} to {high:.2f})", run["server"]["batch"]
        lines.append(f"| {run['hidden']} | {own:.2f} ms | {served:.2f} ms | {ratio} | {batch:.2f} | {same} |")
    return "\n".join(lines) + "\n"


def efficiency(name: str, result: dict) -> str:
    """The whole against its parts."""
    lines = [
        "## Throughput against the machine's own limit\n",
        "`python benchmarks/efficiency.py`: `modrl bench examples/pong_impala.yaml`, five rounds each; µs of a core per env step. Each round's",
        "roofline is held against the whole of the same round, and the efficiency is the median of these ratios: where the machine",
        "drifted between rounds it is not the ratio of the medians beside it.\n",
        about(result),
        "| network | precision | scheme | env | acting | learning | roofline, steps/s | the whole, steps/s | efficiency, median (range) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for cell in result["cells"]:
        costs = " | ".join(f"{1e6 * cell['parts'][part]['core']:,.0f}" for part in ("env", "act", "learn"))
        rates = [figures["efficiency"] for figures in cell["rounds"]]
        lines.append(
            f"| {' | '.join(cell['cell'])} | {costs} | {cell['roofline']:,.0f} | {cell['steps_per_second']:,.0f} "
            f"| {cell['efficiency']:.2f} ({min(rates):.2f} to {max(rates):.2f}) |"
        )
    return "\n".join(lines) + "\n"


def memory(name: str, result: dict) -> str:
    """What a Ray collector takes."""
    lines = [
        "## Memory of Ray collectors\n",
        f"`python benchmarks/memory.py --collectors {result['collectors']}`: a toy environment; means over the collectors.\n", about(result),
        "| collectors | resident | its share of what is shared | its own | file handles | of the driver |", "|---|---|---|---|---|---|",
        f"| {result['collectors']} | {result['rss_mb']:.0f} MB | {result['pss_mb']:.0f} MB | {result['uss_mb']:.0f} MB | "
        f"{result['handles_of_a_collector']} | {result['handles_of_the_driver']} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def footprint(name: str, result: dict) -> str:
    """Peaks of what is resident."""
    lines = [
        "## Memory of Pong\n",
        f"`python benchmarks/footprint.py`: the most that was resident in {result['seconds']:g} s of training. A2C with 16 environments and five",
        "steps an update on both sides, with the network `nature`; the Ray collector has 16 environments, and 20 steps in a rollout.\n",
        about(result),
        "| program | resident at most |", "|---|---|", *(f"| {program} | {size:,.0f} MB |" for program, size in result["peak_mb"].items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def scaling(name: str, result: dict) -> str:
    """More collectors, more steps."""
    with figure("scaling", "Ray collectors, 10 ms per step", "collectors", "steps/s") as axes:
        counts = [found["collectors"] for found in result["results"]]
        one = result["results"][0]["steps_per_second"] / counts[0]
        axes.plot(counts, [one * count for count in counts], "--", color="grey", label="linear")
        axes.plot(counts, [found["steps_per_second"] for found in result["results"]], "o-", label="measured")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(counts, counts)
        axes.legend()
    lines = [
        "## More Ray collectors\n",
        f"`python benchmarks/scaling.py`: a toy environment that sleeps {result['milliseconds']} ms in each step, one in each",
        "collector; medians of three runs.\n",
        about(result), "![steps per second over collectors](figures/scaling.png)\n",
        "| collectors | steps/s, median | runs | share of linear |", "|---|---|---|---|",
    ]  # fmt: skip
    for found in result["results"]:
        runs = ", ".join(f"{rate:,.0f}" for rate in found["runs"])
        lines.append(f"| {found['collectors']} | {found['steps_per_second']:,.0f} | {runs} | {found['of_linear']:.2f} |")
    return "\n".join(lines) + "\n"


def precision(name: str, result: dict) -> str:
    """Both precisions at equal steps."""
    points = result["points"]
    with figure(f"precision_{name}", f"{name}: mean and 95 % interval of five seeds", "env steps", "mean return of 100 episodes") as axes:
        for kind in ("fp32", "bf16"):
            steps = [point["env_steps"] for point in points]
            mean, low, high = zip(*[point[kind] for point in points], strict=True)
            axes.plot(steps, mean, "o-", label=kind)
            axes.fill_between(steps, low, high, alpha=0.2)
        axes.legend()
    lines = [
        f"## bf16 beside fp32: {name}\n",
        f"`python benchmarks/precision.py {name}`: seeds {', '.join(map(str, result['seeds']))} in both, scheme `local`;",
        "the mean over them, and its 95 % interval.\n",
        about(result), f"![returns in both precisions](figures/precision_{name}.png)\n",
        "| env steps | fp32 | bf16 | intervals overlap |", "|---|---|---|---|",
    ]  # fmt: skip
    for point in points:
        told = [f"{mean:.3g} ({low:.3g} to {high:.3g})" for mean, low, high in (point["fp32"], point["bf16"])]
        lines.append(f"| {point['env_steps']:,} | {' | '.join(told)} | {'yes' if point['overlap'] else 'no'} |")
    return "\n".join(lines) + "\n"


def pong(name: str, result: dict) -> str:
    """Half an hour of Pong."""
    with figure("pong_fast", "Pong on this machine", "minutes", "mean return of 100 episodes") as axes:
        for run in result["runs"]:
            seconds, _, returns = zip(*run["curve"], strict=True)
            axes.plot([second / 60 for second in seconds], returns, label=f"seed {run['seed']}")
        axes.axhline(18, color="grey", linestyle="--")
        axes.legend()
    lines = [
        "## `examples/pong_fast.yaml`\n",
        f"`python benchmarks/pong_fast.py`: at most {result['minutes']:g} minutes of wall clock for each seed. Afterwards the last weights play",
        f"100 whole games. {result.get('note', '')}\n", about(result), "![return over minutes](figures/pong_fast.png)\n",
        "| seed | env steps | last 100 training episodes | 100 games, drawn actions | 100 games, most probable actions |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for run in result["runs"]:
        _, steps, last = run["curve"][-1]
        lines.append(f"| {run['seed']} | {steps:,.0f} | {last:.1f} | {run['sampled']:.1f} | {run['greedy']:.1f} |")
    return "\n".join(lines) + "\n"


def search(name: str, result: dict) -> str:
    """What was tried before a file's settings were settled."""
    with figure(f"search_{name}", "What was tried for pong_fast.yaml", "million env steps", "mean return of 100 episodes") as axes:
        for run in result["runs"]:
            _, steps, returns = zip(*run["curve"], strict=True)
            axes.plot([step / 1e6 for step in steps], returns, label=run["name"])
        axes.legend()
    lines = [
        "### What was tried\n",
        f"In this order, one seed each. {result['note']}\n", f"![return over env steps](figures/search_{name}.png)\n",
        "| | what differs from the file | steps/s | stopped at | return then |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for run in result["runs"]:
        seconds, steps, last = run["curve"][-1]
        lines.append(f"| {run['name']} | {run['differs']} | {steps / seconds:,.0f} | {steps / 1e6:.2f} M | {last:.1f} |")
    return "\n".join(lines) + "\n"


KINDS = {
    "schemes": schemes, "learning": learning, "efficiency": efficiency, "throughput": throughput, "peers": peers,
    "scaling": scaling, "pong": pong, "search": search, "precision": precision, "inference": inference, "faults": faults,
    "memory": memory, "footprint": footprint,
}  # fmt: skip
"""By the beginning of a result's name, in the order of the page."""


def main() -> Path:
    sections = [INTRODUCTION]
    for kind, section in KINDS.items():
        for path in sorted(RESULTS.glob(f"{kind}_*.json")):
            sections.append(section(path.stem.removeprefix(f"{kind}_"), json.loads(path.read_text())))
    OUT.write_text("\n".join(sections))
    return OUT


if __name__ == "__main__":
    print(main())
