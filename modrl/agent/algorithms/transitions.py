"""From a batch and what the actor says of it to the arguments of `returns`: who follows whom, and where a trace ends."""

from __future__ import annotations

from typing import NamedTuple

import torch

from modrl.agent.actors.base import Output
from modrl.agent.batch import Batch
from modrl.agent.losses import RewardForm, transform_reward
from modrl.agent.statistics import Running
from modrl.tree import tree_map


class Transitions(NamedTuple):
    """T steps of B columns, without gradient, in the order of `returns`' parameters: `gae(*transitions)`."""

    rewards: torch.Tensor  # [T, B] as the learner sees them
    discounts: torch.Tensor  # [T, B] gamma * (1 - terminated)
    values: torch.Tensor  # [T, B] V(obs[t])
    next_values: torch.Tensor  # [T, B] V of the true successor: of final_obs where truncated
    cuts: torch.Tensor  # [T, B] bool: an episode ends here, or this step or the next is filler


@torch.no_grad()
def transitions(batch: Batch, out: Output, discount: float, reward: RewardForm = "none", returns: Running | None = None) -> Transitions:
    """The batch's transitions, valued by the actor's critic; `batch` has its bootstrap observation.

    `returns`: statistics of discounted returns that rewards are scaled by, where they are `normalized`.
    """
    value = critic(out).detach()
    assert len(value) == len(batch.reward) + 1, "the batch has no bootstrap observation"
    next_values = value[1:]
    if batch.final_obs is not None:
        assert out.final_value is not None, "the actor gave no value of the truncated episodes' last observations"
        next_values = next_values.masked_scatter(batch.truncated, out.final_value.detach().to(value.dtype))
    filler_follows = torch.zeros_like(batch.valid)
    filler_follows[:-1] = ~batch.valid[1:]
    return Transitions(
        transform_reward(batch.reward, reward) if returns is None else returns.scaled(batch.reward),
        discount * (~batch.terminated).to(value.dtype),
        value[:-1],
        next_values,
        batch.terminated | batch.truncated | ~batch.valid | filler_follows,
    )


def critic(out: Output) -> torch.Tensor:
    """The critic's values [S, B], at least in single precision.

    Raises:
        ValueError: the actor has no critic.
    """
    if out.value is None:
        raise ValueError("this algorithm needs an actor with a critic: the actor's Output.value is None")
    return out.value.to(torch.promote_types(out.value.dtype, torch.float32))


def log_prob(batch: Batch, out: Output) -> torch.Tensor:
    """The learner's log-probability of each action taken, log pi(a|x) [T, B]."""
    steps = len(batch.reward)
    extra = len(batch.first) - steps  # a bootstrap observation has no action: lend it one, and drop the answer
    action = tree_map(lambda x: torch.cat([x, x[-1:]]), batch.action) if extra else batch.action
    return out.policy.log_prob(action)[:steps]
