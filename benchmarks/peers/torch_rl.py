"""TorchRL: V-trace on Pong, a collector in a process of its own with 32 environments of 20 steps each, nature network.

A script of our own of TorchRL's parts. Environments are ale-py's own vector env, which TorchRL's GymWrapper takes. The torso is
computed once for each update; TorchRL's own script computes it anew for the policy, for the values and for the targets.
"""

from __future__ import annotations

import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from pace import Pace, parser
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import AsyncCollector
from torchrl.envs import EnvBase, GymWrapper
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import VTrace

COUNT, STEPS = 32, 20


class Nature(nn.Module):
    """The torso of Mnih et al. (2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.layers(frames.flatten(0, -4).float() / 255).unflatten(0, frames.shape[:-3])


def make() -> EnvBase:
    return GymWrapper(AtariVectorEnv("pong", COUNT, autoreset_mode=AutoresetMode.SAME_STEP), categorical_action_encoding=True)


def main() -> None:
    pace = Pace(parser(__doc__).parse_args())
    nature = Nature()
    torso = TensorDictModule(nature, ["observation"], ["features"])
    logits = TensorDictModule(nn.Linear(512, 6), ["features"], ["logits"])
    policy = ProbabilisticActor(logits, in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, return_log_prob=True)
    value = ValueOperator(nn.Linear(512, 1), in_keys=["features"])
    targets = VTrace(gamma=0.99, value_network=value, actor_network=policy)
    loss = A2CLoss(policy, value, entropy_coeff=0.01, critic_coeff=0.5, loss_critic_type="l2")
    parameters = [*nature.parameters(), *loss.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=6e-4, eps=0.01)
    collector = AsyncCollector(make, TensorDictSequential(torso, policy), frames_per_batch=COUNT * STEPS, total_frames=-1)
    for update, rollout in enumerate(collector, 1):  # [B, T]
        features = nature(torch.cat([rollout["observation"], rollout["next", "observation"][:, -1:]], 1))
        rollout["features"], rollout["next", "features"] = features[:, :-1], features[:, 1:]
        with torch.no_grad():
            targets(rollout)
        terms = loss(rollout)
        optimizer.zero_grad()
        (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(parameters, 40)
        optimizer.step()
        collector.update_policy_weights_()
        if pace.report(update * COUNT * STEPS):
            break
    collector.shutdown()
    pace.say()


if __name__ == "__main__":
    main()
