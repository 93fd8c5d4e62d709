"""An actor of one's own: it explores at random, each collector as much as the scheme says.

modrl train examples/custom_exploration.yaml
"""

import torch
from pydantic import Field

from modrl.agent.actors import ActorCritic, Inference, Step


class Exploring(ActorCritic):
    """Takes a uniformly random action with probability `explore`, for discrete actions.

    What it says of an action is the probability that it took it with, so that V-trace corrects for the exploration.
    """

    class Config(ActorCritic.Config):
        explore: float = Field(0.0, ge=0, le=1)

    def choose(self, inference: Inference, generator: torch.Generator | None = None, greedy: bool = False) -> Step:
        step = super().choose(inference, generator, greedy)
        if greedy:
            return step
        explore, actions = self.config.explore, self.action_space.n
        chance = torch.rand(step.action.shape, generator=generator, device=step.action.device)
        uniform = torch.randint(actions, step.action.shape, generator=generator, device=step.action.device)
        action = torch.where(chance < explore, uniform, step.action)
        likelihood = (1 - explore) * self.head.distribution(inference.policy).log_prob(action).exp() + explore / actions
        return step._replace(
            action=action, memory=step.memory._replace(last_action=action), behaviour={**step.behaviour, "log_prob": likelihood.log()}
        )
