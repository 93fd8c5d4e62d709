"""Sample Factory: asynchronous APPO on Pong, with the settings of its Atari example but for one epoch over one batch of 32 x 20 steps.

Two workers step 16 environments each, in two halves: one half steps while actions for the other are computed.
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium
from ale_py.registration import register_v0_v4_envs
from pace import Pace, parser
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_utils import make_atari_env
from sf_examples.atari.train_atari import parse_atari_args

GAME, WORKERS, COUNT, STEPS = "atari_pong", 2, 32, 20


def make(*arguments: Any, **options: Any) -> gymnasium.Env:
    register_v0_v4_envs()  # ale-py does not with a gymnasium as old as this library's
    return make_atari_env(*arguments, **options)


class Watch(AlgoObserver):
    """Reports every update, and ends the training in time."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if self.pace.report(training_iteration_since_resume * COUNT * STEPS):
            runner.cfg.train_for_env_steps = 0


def main() -> None:
    pace = Pace(parser(__doc__).parse_args())
    register_env(GAME, make)
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "env": GAME, "train_dir": folder, "train_for_env_steps": 10**12, "device": "cpu", "async_rl": True,
            "num_workers": WORKERS, "num_envs_per_worker": COUNT // WORKERS, "worker_num_splits": 2, "rollout": STEPS,
            "batch_size": COUNT * STEPS, "num_batches_per_epoch": 1, "num_epochs": 1,
        }  # fmt: skip
        _, runner = make_runner(parse_atari_args([f"--{name}={value}" for name, value in settings.items()]))
        runner.register_observer(Watch(pace))
        runner.init()
        runner.run()
    pace.say()


if __name__ == "__main__":
    main()
