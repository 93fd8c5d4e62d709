"""RLlib: IMPALA on Pong, new API stack, two env runners of 16 environments, 20 steps each, 640 to an update, nature network.

As it comes, with its own wrappers for Atari; or with `--tuned`. Then environments are ale-py's own vector env, which RLlib takes as an
env's `vector_entry_point`, and the driver waits 20 ms for samples where by default it asks without a pause, which takes a core. In both
cases the learner is in the driver's process: one in a process of its own makes a fourth busy process on two cores.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import ray
import torch
from ale_py.vector_env import AtariVectorEnv
from pace import Pace, parser
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env
from torch import nn

RUNNERS, COUNT, STEPS = 2, 32, 20


class Nature(TorchRLModule, ValueFunctionAPI):
    """The network of Mnih et al. (2015) with a policy and a value."""

    def setup(self) -> None:
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.policy = nn.Linear(512, self.action_space.n)
        self.value = nn.Linear(512, 1)

    def features(self, batch: dict[str, Any]) -> torch.Tensor:
        obs = batch[Columns.OBS]
        return self.torso(obs / 255 if obs.dtype == torch.uint8 else obs.permute(0, 3, 1, 2))  # or they are [N, 84, 84, 4], from -1 to 1

    def _forward(self, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self.features(batch))}

    def _forward_train(self, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
        features = self.features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        return self.value(self.features(batch) if embeddings is None else embeddings).squeeze(-1)


def make(config: dict[str, Any]) -> gymnasium.Env:
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tuned", action="store_true")
    options = arguments.parse_args()
    pace = Pace(options)
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False)
    register_env("pong", (lambda config: AtariVectorEnv("pong", config["num_envs"], num_threads=1)) if options.tuned else make)
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=COUNT // RUNNERS, rollout_fragment_length=STEPS)
        .training(train_batch_size_per_learner=COUNT * STEPS)
        .learners(num_learners=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Nature))
        .reporting(min_time_s_per_iteration=0)
    )
    if options.tuned:
        config = config.env_runners(gym_env_vectorize_mode="vector_entry_point").training(timeout_s_sampler_manager=0.02)
    algorithm = config.build_algo()
    # With its learner here, all that is sampled is learned from; what it counts as trained has an additional step per fragment.
    while not pace.report(int(algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0))):
        pass
    ray.shutdown()  # or its workers may have the last word
    pace.say()


if __name__ == "__main__":
    main()
