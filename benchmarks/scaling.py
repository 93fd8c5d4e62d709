"""Whether more Ray collectors are more steps: a toy environment that sleeps 10 ms in each step, under 1 to 32 collectors.

    python benchmarks/scaling.py [--counts 1,2,4,8,16,32]

Each collector has one environment. Ideal are n times the steps of one. Three runs of each number, in turns; medians. Results go to
benchmarks/results/scaling_collectors.json.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

from common import save

from modrl import Experiment

COMPONENTS = '''
import time

import gymnasium
import numpy as np


class Sleeper(gymnasium.Env):
    """A random walk that is seen, and whose every step takes 10 ms."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=8).astype(np.float32), {}

    def step(self, action):
        time.sleep(0.01)
        self.t += 1
        return self.np_random.normal(size=8).astype(np.float32), float(action == 1), self.t == 50, False, {}
'''
HORIZON, SECONDS, RUNS = 50, 15.0, 3


def rate(count: int) -> float:
    """Steps per second under `count` collectors, after they have started."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sleeper.py").write_text(COMPONENTS)
        sys.path.insert(0, name)
        experiment = Experiment.from_dict({
            "name": "scaling", "steps": 10**9, "envs": {"name": "gym", "id": "sleeper:Sleeper", "count": count},
            "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [64, 64]}}, "algorithm": {"name": "impala", "reward": "none"},
            "optimizer": {"name": "adam", "lr": 1e-3}, "storage": {"name": "fresh", "horizon": HORIZON, "batch": count},
            "scheme": {"collection": {"place": "ray", "workers": count, "ahead": 1}},
            "logging": {"every": "0.5s", "tensorboard": False}, "machine": {"ray": {"object_store": 200_000_000}},
        })  # fmt: skip
        with contextlib.closing(experiment.stream(Path(name) / "run")) as rows:
            first = next(row for row in rows if row["env_steps"] >= 5 * count * HORIZON)
            last = next(row for row in rows if row["wall_seconds"] >= first["wall_seconds"] + SECONDS)
        sys.path.remove(name)
    return (last["env_steps"] - first["env_steps"]) / (last["wall_seconds"] - first["wall_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", default="1,2,4,8,16,32")
    counts = [int(word) for word in parser.parse_args().counts.split(",")]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(RUNS):
        for count in counts:
            rates[count].append(rate(count))
            print(count, f"{rates[count][-1]:.0f} steps/s", flush=True)
    one = statistics.median(rates[counts[0]]) / counts[0]
    results = [
        {"collectors": n, "steps_per_second": statistics.median(r), "runs": r, "of_linear": statistics.median(r) / n / one} for n, r in rates.items()
    ]
    save("scaling_collectors", {"milliseconds": 10, "results": results})


if __name__ == "__main__":
    main()
