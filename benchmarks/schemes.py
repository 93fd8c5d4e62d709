"""Whether every preset learns: CartPole to a mean return of 475 over 100 episodes, with the agent that the architecture is known by.

    python benchmarks/schemes.py                 # all presets, one after the other
    python benchmarks/schemes.py a3c dd_ppo

Results go to benchmarks/results/schemes_cartpole.json, whose rows of other presets are kept; `python benchmarks/tables.py`
makes the docs' tables from it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from common import EXAMPLES, RESULTS, save

from modrl import Experiment
from modrl.scheme.presets import presets

TARGET = 475
LIMIT = 600.0
"""Seconds that a preset may take."""
IMPALA, PPO = "cartpole_impala", "cartpole_ppo"
A2C = ["algorithm={name: a2c, discount: 0.995, entropy_cost: 0.1, value_cost: 0.5, reduction: mean}", "optimizer.lr={linear: [1e-3, 0]}"]
AGENTS: dict[str, tuple[str, list[str]]] = {
    "local": (IMPALA, []),
    "overlapped": (IMPALA, []),
    "sebulba": (IMPALA, []),
    "impala": (IMPALA, []),
    "seed": (IMPALA, []),
    "fully_async": (IMPALA, []),
    "a3c": (IMPALA, A2C),
    "parallel": (PPO, []),
    "preemptive": (PPO, []),
    "dppo": (PPO, []),
    "dd_ppo": (PPO, []),
    "local_sgd": (PPO, []),
    "rapid": (PPO, []),
}
"""By preset: the file, and what is changed in it."""


def train(preset: str, file: str, overrides: list[str]) -> dict:
    """Trains until the target is reached, and says what it took."""
    settings = [f"scheme={preset}", "logging={every: 2000, tensorboard: false}", *(["steps=200e3"] if file == PPO else []), *overrides]
    experiment = Experiment.load(EXAMPLES / f"{file}.yaml", settings)
    policy, gradient, worst = [], [], 0.0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = experiment.stream(Path(folder) / "run")
        for row in rows:
            policy.append(row["policy_lag_mean"] or 0)
            gradient.append(row["gradient_lag_mean"] or 0)
            worst = max(worst, row["policy_lag_max"] or 0)
            reached = row["episodes"] >= 100 and row["episode_return"] >= TARGET
            if reached or time.perf_counter() - began > LIMIT:
                break
        seconds = time.perf_counter() - began
        rows.close()
    return {
        "preset": preset, "algorithm": type(experiment.algorithm).__qualname__.split(".")[0], "reached": reached, "return": row["episode_return"],
        "env_steps": row["env_steps"], "seconds": round(seconds, 1), "steps_per_second": round(row["env_steps"] / row["wall_seconds"]),
        "policy_lag_mean": sum(policy) / len(policy), "policy_lag_max": worst, "gradient_lag_mean": sum(gradient) / len(gradient),
    }  # fmt: skip


def main(names: list[str]) -> None:
    assert AGENTS.keys() == presets().keys(), f"no agent for {presets().keys() ^ AGENTS.keys()}"
    kept = RESULTS / "schemes_cartpole.json"
    runs = {run["preset"]: run for run in json.loads(kept.read_text())["runs"]} if kept.exists() else {}
    for name in names or AGENTS:
        runs[name] = train(name, *AGENTS[name])
        print(runs[name], flush=True)
        save("schemes_cartpole", {"target": TARGET, "runs": [runs[preset] for preset in AGENTS if preset in runs]})


if __name__ == "__main__":
    main(sys.argv[1:])
