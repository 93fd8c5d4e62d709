r"""Steps per second of an experiment under several schemes, and against another program, in turn.

    python benchmarks/throughput.py examples/pong_monobeast.yaml --schemes overlapped --steps 60000 --repeats 3 \\
        --against 'python their_program.py'

`--against` runs a command that prints, last of all, its own steps per second. Runs alternate (A B A B …); compare by the
ratio of medians. The first `--skip` of each run's steps are not counted: they are start-up.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from common import save

from modrl import Experiment


def measure(file: str, scheme: str, steps: int, skip: float, overrides: list[str]) -> dict:
    """One run's steps per second after its start, and the lag it had."""
    experiment = Experiment.load(file, [f"steps={steps}", f"scheme={scheme}", "evaluation=null", "logging.tensorboard=false", *overrides])
    start, lag = None, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for row in experiment.stream(Path(folder) / "run"):
            lag = max(lag, row["policy_lag_max"] or 0)
            if start is None and row["env_steps"] >= skip * steps:
                start = row
    speed = (row["env_steps"] - start["env_steps"]) / (row["wall_seconds"] - start["wall_seconds"])
    return {"steps_per_second": round(speed, 1), "policy_lag_max": lag, "episode_return": row["episode_return"]}


def theirs(command: str) -> float:
    """What the other program says of itself."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--schemes", default="overlapped")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip", type=float, default=0.2)
    parser.add_argument("--against")
    parser.add_argument("--their-name", default="other")
    parser.add_argument("--name", help="of the result's file")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    runs: dict[str, list] = {scheme: [] for scheme in options.schemes.split(",")}
    others: list[float] = []
    for _ in range(options.repeats):
        for scheme, results in runs.items():
            results.append(measure(options.file, scheme, options.steps, options.skip, options.overrides))
            print(scheme, results[-1], flush=True)
        if options.against:
            others.append(theirs(options.against))
            print(options.their_name, others[-1], flush=True)
    medians = {scheme: statistics.median(r["steps_per_second"] for r in results) for scheme, results in runs.items()}
    result = {"file": options.file, "overrides": options.overrides, "steps": options.steps, "runs": runs, "medians": medians}
    if others:
        their_median = statistics.median(others)
        ratios = {scheme: round(median / their_median, 2) for scheme, median in medians.items()}
        result |= {"their_name": options.their_name, "their_runs": others, "their_median": their_median, "ratios": ratios}
    save(options.name or f"throughput_{Path(options.file).stem}", result)
    print({key: result[key] for key in ("medians", "their_median", "ratios") if key in result})


if __name__ == "__main__":
    main()
