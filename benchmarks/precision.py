"""Whether bf16 learns as fp32 does: the same five seeds in both, on a toy of images and on an Atari game.

    python benchmarks/precision.py [catch] [breakout] [--jobs 2]

Each run computes on one core, `--jobs` of them at a time: only returns at equal steps are compared, no times. Results go to
benchmarks/results/precision_NAME.json; `python benchmarks/tables.py` makes the docs' tables and figures from them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import save

from modrl import Experiment

SEEDS = range(1, 6)
POINTS = 10
T_95 = 2.776  # Student's t for five seeds
SEEING = {"name": "actor_critic", "torso": {"name": "shallow", "standardize": True}, "init": "orthogonal"}
TASKS: dict[str, dict[str, Any]] = {
    "catch": {
        "steps": 150_000, "envs": {"name": "gym", "id": "modrl/Catch-v0", "count": 16, "kwargs": {"size": 20}}, "actor": SEEING,
        "algorithm": {"name": "ppo", "epochs": 3, "minibatches": 4, "entropy_cost": 0.01, "reward": "clip"},
        "optimizer": {"name": "adam", "lr": 5e-4, "max_grad_norm": 0.5}, "storage": {"name": "fresh", "horizon": 40, "batch": 16},
    },
    "breakout": {
        "steps": 250_000, "envs": {"name": "atari", "game": "breakout", "count": 8, "threads": 1}, "actor": SEEING,
        "algorithm": {"name": "ppo", "epochs": 3, "minibatches": 4, "clip": 0.1, "entropy_cost": 0.01, "reward": "clip"},
        "optimizer": {"name": "adam", "lr": 5e-4, "eps": 1e-5, "max_grad_norm": 0.5}, "storage": {"name": "fresh", "horizon": 128, "batch": 8},
    },
}  # fmt: skip


def train(task: str, precision: str, seed: int) -> list[float | None]:
    """Mean returns of the last 100 episodes, at POINTS equal distances."""
    experiment = Experiment.from_dict({
        "name": task, "seed": seed, "scheme": "local", "logging": {"tensorboard": False}, "checkpoint": {"every": "365d"},
        "machine": {"precision": precision, "threads": 1, "memory_format": "channels_last"}, **TASKS[task],
    })  # fmt: skip
    found: list[float | None] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in experiment.stream(Path(folder) / "run"):
            if row["env_steps"] >= (len(found) + 1) * experiment.steps / POINTS:
                found.append(row["episode_return"])
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval."""
    mean = statistics.mean(values)
    half = T_95 * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def compare(runs: dict[str, list[list[float | None]]], steps: int) -> list[dict[str, Any]]:
    """Both precisions at each point where every run has finished an episode."""
    points = []
    for i in range(POINTS):
        values = {precision: [curve[i] for curve in curves] for precision, curves in runs.items()}
        if all(value is not None for each in values.values() for value in each):
            both = {precision: interval(each) for precision, each in values.items()}  # type: ignore[arg-type]
            (_, low, high), (_, other_low, other_high) = both.values()
            points.append({"env_steps": (i + 1) * steps // POINTS, **both, "overlap": low <= other_high and other_low <= high})
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], default=list(TASKS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for task in options.tasks:
            asked = {(precision, seed): pool.submit(train, task, precision, seed) for seed in SEEDS for precision in ("fp32", "bf16")}
            runs = {precision: [asked[precision, seed].result() for seed in SEEDS] for precision in ("fp32", "bf16")}
            points = compare(runs, TASKS[task]["steps"])
            save(f"precision_{task}", {"settings": TASKS[task], "seeds": list(SEEDS), "runs": runs, "points": points})
            for point in points:
                print(task, point, flush=True)


if __name__ == "__main__":
    main()
