"""Whether examples learn what their files say: several seeds, several schemes, one table.

    python benchmarks/learning.py cartpole        # 5 seeds × local, overlapped, impala
    python benchmarks/learning.py memory pendulum cartpole_ppo

Results go to benchmarks/results/learning_NAME.json; `python benchmarks/tables.py` makes the docs' tables from them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from common import EXAMPLES, save

from modrl import Experiment

STUDIES = {
    "cartpole": ("cartpole_impala", [["scheme=local"], ["scheme=overlapped"], ["scheme=impala"]], 475, range(1, 6)),
    "cartpole_ppo": ("cartpole_ppo", [[]], 475, range(1, 4)),
    "pendulum": ("pendulum_ppo", [[]], -250, range(1, 4)),
    "memory": ("memory_lstm", [[], ["actor.memory=null"]], 0.9, range(1, 4)),
}


def train(file: str, overrides: list[str], seed: int, target: float) -> dict:
    """One run: its best and last return over 100 episodes, and when it first reached the target."""
    experiment = Experiment.load(EXAMPLES / f"{file}.yaml", [f"seed={seed}", "logging.tensorboard=false", *overrides])
    best, reached, lag, began = float("-inf"), None, 0.0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for row in experiment.stream(Path(folder) / "run"):
            lag = max(lag, row["policy_lag_max"] or 0)
            if row["episode_return"] is None or row["episodes"] < 100:
                continue
            best = max(best, row["episode_return"])
            if reached is None and row["episode_return"] >= target:
                reached = row["env_steps"]
    seconds = time.perf_counter() - began
    return {
        "overrides": overrides, "seed": seed, "best": best, "last": row["episode_return"], "reached": reached, "env_steps": row["env_steps"],
        "seconds": round(seconds, 1), "steps_per_second": round(row["env_steps"] / seconds), "policy_lag_max": lag,
    }  # fmt: skip


def main(names: list[str]) -> None:
    for name in names:
        file, variants, target, seeds = STUDIES[name]
        runs = []
        for seed in seeds:
            for overrides in variants:
                runs.append(train(file, overrides, seed, target))
                print(f"{name} {' '.join(overrides)} seed {seed}: {runs[-1]}", flush=True)
        save(f"learning_{name}", {"file": f"examples/{file}.yaml", "target": target, "runs": runs})


if __name__ == "__main__":
    main(sys.argv[1:] or list(STUDIES))
