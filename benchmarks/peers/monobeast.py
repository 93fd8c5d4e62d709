"""MonoBeast, from a checkout of TorchBeast: Pong with two actors, unroll of 20, batch of 32; its network is nature's.

It is written for gym as it was in 2019; its environment is replaced by Gymnasium's, with the same preprocessing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from pace import Pace, parser

UNROLL, BATCH = 20, 32


class OldGym:
    """Gymnasium's Pong with the interface that gym had: no truncation, no info on reset, seeds beforehand."""

    def __init__(self) -> None:
        gymnasium.register_envs(ale_py)
        self.env = FrameStackObservation(AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4")), 4)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.next_seed: int | None = None

    def seed(self, seed: int) -> None:
        self.next_seed = seed

    def reset(self) -> np.ndarray:
        frames, _ = self.env.reset(seed=self.next_seed)
        self.next_seed = None
        return frames

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        frames, reward, terminated, truncated, info = self.env.step(action)
        return frames, float(reward), terminated or truncated, info

    def close(self) -> None:
        self.env.close()


def train(checkout: str, pace: Pace, folder: str) -> None:
    sys.path.insert(0, checkout)
    from torchbeast import monobeast

    learn, lock = monobeast.learn, threading.Lock()
    updates = 0

    def counted(flags: argparse.Namespace, *arguments: Any) -> dict[str, Any]:
        nonlocal updates
        stats = learn(flags, *arguments)
        with lock:  # two threads learn in turn
            updates += 1
            if pace.report(updates * UNROLL * BATCH):
                flags.total_steps = 1
        return stats

    monobeast.learn = counted
    monobeast.create_env = lambda flags: OldGym()
    settings = {
        "num_actors": 2, "unroll_length": UNROLL, "batch_size": BATCH, "num_buffers": 2 * BATCH, "total_steps": 10**12, "savedir": folder,
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in settings.items()]
    monobeast.main(monobeast.parser.parse_args([*flags, "--disable_checkpoint", "--disable_cuda"]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("checkout")
    options = arguments.parse_args()
    pace = Pace(options)
    with tempfile.TemporaryDirectory() as folder:
        train(options.checkout, pace, folder)
    pace.say()


if __name__ == "__main__":
    main()
