"""Stable-Baselines3: A2C on Pong with the threads that torch takes by default, or its PPO on CartPole with one, which is as fast there.

Environments step one after another (DummyVecEnv): on two cores that was faster for Pong too than processes of their own (727 and 720
steps/s against 601 and 638). `--vectorization` and `--threads` say otherwise.
"""

from __future__ import annotations

import ale_py
import gymnasium
import torch
from pace import Pace, parser
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

gymnasium.register_envs(ale_py)
VECTORIZATIONS: dict[str, type[VecEnv]] = {"processes": SubprocVecEnv, "dummy": DummyVecEnv}


class Watch(BaseCallback):
    """Reports the steps so far whenever a rollout begins, for then all of them are learned from."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace
        self.over = False

    def _on_rollout_start(self) -> None:
        self.over = self.pace.report(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.over


def pong(count: int, steps: int, vectorization: str) -> BaseAlgorithm:
    envs = make_atari_env("PongNoFrameskip-v4", count, vec_env_cls=VECTORIZATIONS[vectorization])
    return A2C("CnnPolicy", VecFrameStack(envs, 4), n_steps=steps, device="cpu")


def cartpole(count: int, steps: int, vectorization: str) -> BaseAlgorithm:
    envs = make_vec_env("CartPole-v1", count, vec_env_cls=VECTORIZATIONS[vectorization])
    return PPO("MlpPolicy", envs, n_steps=steps, batch_size=256, n_epochs=4, device="cpu")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("game", choices=["pong", "cartpole"])
    arguments.add_argument("count", type=int, help="of environments")
    arguments.add_argument("steps", type=int, help="of each, per update")
    arguments.add_argument("--vectorization", choices=VECTORIZATIONS)
    arguments.add_argument("--threads", type=int)
    options = arguments.parse_args()
    make, vectorization, threads = {"pong": (pong, "dummy", torch.get_num_threads()), "cartpole": (cartpole, "dummy", 1)}[options.game]
    torch.set_num_threads(options.threads or threads)
    pace = Pace(options)
    make(options.count, options.steps, options.vectorization or vectorization).learn(10**12, callback=Watch(pace))
    pace.say()


if __name__ == "__main__":
    main()
