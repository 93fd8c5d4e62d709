"""What an inference server does for collectors whose environments are slow: the mean batch, and what it costs a step.

    python benchmarks/inference.py

Eight collectors in threads, each with one environment whose step takes 5 ms, with inference of their own and with a server.
The runs are synchronous and of one seed, so that both have to draw the same actions. Five pairs, one run after the other; the
figures are medians over the pairs. Results go to benchmarks/results/inference_threads.json.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from common import save

from modrl import Experiment

COMPONENTS = '''
import time
from pathlib import Path

import gymnasium
import numpy as np

LOG = Path(__file__).parent


class Slow(gymnasium.Env):
    """A random walk that is seen, and whose every step takes 5 ms; its actions are written down at its end."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.name, self.actions = f"actions-{seed}", bytearray()
        self.t = 0
        return self.np_random.normal(size=8).astype(np.float32), {}

    def step(self, action):
        time.sleep(0.005)
        self.actions.append(int(action))
        self.t += 1
        return self.np_random.normal(size=8).astype(np.float32), float(action == 1), self.t == 50, False, {}

    def close(self):
        (LOG / self.name).write_bytes(self.actions)
'''
COLLECTORS, HORIZON, ROUNDS, PAIRS = 8, 20, 60, 5


def measure(inference: str, hidden: int) -> dict:
    """The median time of a step, the mean batch, and the actions by environment."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "slow_env.py").write_text(COMPONENTS)
        sys.modules.pop("slow_env", None)
        sys.path.insert(0, name)
        actor = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [hidden, hidden]}}
        experiment = Experiment.from_dict({
            "name": "inference", "seed": 1, "steps": COLLECTORS * HORIZON * ROUNDS, "actor": actor,
            "envs": {"name": "gym", "id": "slow_env:Slow", "count": COLLECTORS}, "algorithm": {"name": "impala", "reward": "none"},
            "optimizer": {"name": "adam", "lr": 1e-3}, "storage": {"name": "fresh", "horizon": HORIZON, "batch": COLLECTORS},
            "scheme": {"collection": {"place": "thread", "workers": COLLECTORS, "inference": inference}},
            "logging": {"every": 1, "tensorboard": False}, "machine": {"threads": 1},
        })  # fmt: skip
        rows = list(experiment.stream(folder / "run"))
        sys.path.remove(name)
        # collectors act and step at the same time, so a round's longest is near its mean
        seconds = [(row["time/act"] + row["time/env"]) / COLLECTORS / HORIZON for row in rows[5:]]
        actions = {path.name: path.read_bytes() for path in sorted(folder.glob("actions-*"))}
        batches = [row["inference/batch"] for row in rows[5:] if row.get("inference/batch")]
    return {"ms_per_step": 1000 * float(np.median(seconds)), "batch": float(np.mean(batches)) if batches else None, "actions": actions}


def main() -> None:
    results = []
    for hidden in (64, 512):
        pairs = [[measure(inference, hidden) for inference in ("collector", "server")] for _ in range(PAIRS)]
        ratios = sorted(served["ms_per_step"] / own["ms_per_step"] for own, served in pairs)
        own, served = (float(np.median([each["ms_per_step"] for each in side])) for side in zip(*pairs, strict=True))
        results.append({
            "hidden": hidden, "collector": {"ms_per_step": own}, "server": {"ms_per_step": served, "batch": min(pair[1]["batch"] for pair in pairs)},
            "ratio": ratios[PAIRS // 2], "ratios": [ratios[0], ratios[-1]], "same_actions": all(a["actions"] == b["actions"] for a, b in pairs),
        })  # fmt: skip
        print(results[-1], flush=True)
    save("inference_threads", {"collectors": COLLECTORS, "results": results})


if __name__ == "__main__":
    main()
