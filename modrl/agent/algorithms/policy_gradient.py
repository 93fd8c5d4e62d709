"""What the actor-critic algorithms share: a policy loss, a value loss and an entropy bonus, each by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from pydantic import Field

from modrl.agent.actors.base import Output
from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.algorithms.transitions import Transitions, critic, log_prob, transitions
from modrl.agent.batch import Batch
from modrl.agent.losses import kl_estimate, normalize, policy_gradient, value_error
from modrl.agent.statistics import sums_over


class Targets(NamedTuple):
    """What the policy and the values are drawn towards; no gradient flows into them."""

    advantages: torch.Tensor  # [T, B]
    values: torch.Tensor  # [T, B]


class PolicyGradient(Algorithm):
    """An actor-critic algorithm with one loss per batch; a subclass says what the targets are.

    To add a loss term of your own, extend `terms`: one number per step, [T, B] or [T+1, B], costs included.
    """

    class Config(Algorithm.Config):
        entropy_cost: float = Field(0.01, ge=0)
        """Weight of the policy's entropy, which is rewarded."""
        value_cost: float = Field(0.5, ge=0)
        """Weight of half the squared error of the values."""
        normalize_advantages: bool = False
        """Give the advantages mean 0 and standard deviation 1 over the steps of a loss: over each worker's share alone."""

    config: Config

    def compile(self) -> None:
        self.loss = torch.compile(self.loss)  # type: ignore[method-assign]

    def losses(self, batch: Batch) -> Iterator[Loss]:
        yield self.loss(batch)

    def loss(self, batch: Batch) -> Loss:
        """The loss of these steps."""
        out = self.actor(batch)
        with torch.no_grad():
            metrics = self.metrics(batch, out)
            statistics = {} if out.value_scale is None else {"actor.value": sums_over(self.targets(batch, out).values, batch.valid)}
        return Loss(self.terms(batch, out), batch.valid, metrics=metrics, statistics=statistics)

    def transitions(self, batch: Batch, out: Output) -> Transitions:
        """The batch's transitions, in rewards as these settings have them."""
        return transitions(batch, out, self.config.discount, self.config.reward, self.returns)

    @abstractmethod
    def targets(self, batch: Batch, out: Output) -> Targets:
        """Advantages and targets of the values, without gradient."""

    def terms(self, batch: Batch, out: Output) -> dict[str, torch.Tensor]:
        """The loss's terms by name; their sum is minimised. Where the critic has a scale, advantages and errors are in units of it."""
        advantages, values = self.targets(batch, out)
        value_cost: Any = self.config.value_cost
        if out.value_scale is not None:
            advantages, value_cost = advantages / out.value_scale, value_cost / out.value_scale.square()
        if self.config.normalize_advantages:
            advantages = normalize(advantages, batch.valid)
        return {
            "policy": self.policy_loss(batch, out, advantages),
            "value": value_cost * self.value_loss(batch, out, values),
            "entropy": -self.config.entropy_cost * out.policy.entropy(),
        }

    def policy_loss(self, batch: Batch, out: Output, advantages: torch.Tensor) -> torch.Tensor:
        """The policy's loss [T, B]."""
        return policy_gradient(log_prob(batch, out), advantages)

    def value_loss(self, batch: Batch, out: Output, targets: torch.Tensor) -> torch.Tensor:
        """The values' loss [T, B]."""
        return value_error(critic(out)[: len(targets)], targets)

    def metrics(self, batch: Batch, out: Output) -> dict[str, torch.Tensor]:
        """What the log shows beside the terms, by step: averaged over the valid ones."""
        log_rhos = log_prob(batch, out) - batch.behaviour["log_prob"]
        metrics = {"entropy": out.policy.entropy(), "value": critic(out).detach(), "rho": log_rhos.exp(), "kl": kl_estimate(log_rhos)}
        return metrics if out.value_scale is None else metrics | {"value_scale": out.value_scale.expand(log_rhos.shape)}
