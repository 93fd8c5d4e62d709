"""How far examples/pong_fast.yaml takes Pong in half an hour of this machine: three seeds, one after the other.

    python benchmarks/pong_fast.py [--seeds 1,2,3] [--minutes 30] [key.path=value ...]

Nothing else may run beside it. Afterwards the last checkpoint plays 100 episodes, by the most probable and by drawn actions. Results
go to benchmarks/results/pong_fast.json; results of seeds that are not named are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import EXAMPLES, RESULTS, save

from modrl import Experiment

FILE = EXAMPLES / "pong_fast.yaml"
EVERY = 10.0
"""Seconds between two points of a curve."""


def train(seed: int, seconds: float, overrides: list[str], folder: Path) -> dict[str, Any]:
    """One run: [wall seconds, env steps, mean return of the last 100 episodes] every so often, and what its last weights play."""
    experiment = Experiment.load(FILE, [f"seed={seed}", "logging.tensorboard=false", *overrides])
    curve: list[list[float]] = []
    with experiment.stream(folder / "run") as rows:
        for row in rows:
            if row["episode_return"] is not None and row["wall_seconds"] >= (curve[-1][0] if curve else 0) + EVERY:
                curve.append([round(row["wall_seconds"], 1), row["env_steps"], round(row["episode_return"], 3)])
                print(seed, *curve[-1], f"entropy {row['entropy']:.3f}", flush=True)
            if row["wall_seconds"] >= seconds:
                break
    last = [round(row["wall_seconds"], 1), row["env_steps"], round(row["episode_return"], 3)]
    return {"seed": seed, "curve": [*curve, last], "greedy": play(folder / "run"), "sampled": play(folder / "run", "--sample")}


def play(run: Path, *how: str) -> float:
    """The mean return of 100 episodes by the last checkpoint."""
    command = [sys.executable, "-m", "modrl", "eval", str(run), "--episodes", "100", "--json", *how]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["mean_return"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    kept = RESULTS / "pong_fast.json"
    runs = {run["seed"]: run for run in json.loads(kept.read_text())["runs"]} if kept.exists() else {}
    for seed in map(int, options.seeds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            runs[seed] = train(seed, 60 * options.minutes, options.overrides, Path(folder))
        print({name: runs[seed][name] for name in ("seed", "greedy", "sampled")}, flush=True)
        save("pong_fast", {"minutes": options.minutes, "overrides": options.overrides, "runs": [runs[seed] for seed in sorted(runs)]})


if __name__ == "__main__":
    main()
