"""What the actor-critic algorithms share: a policy loss, a value loss and an entropy bonus, each by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from pydantic import Field

from modrl.agent.actors.base import Output
from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.algorithms.transitions import critic, log_prob
from modrl.agent.batch import Batch
from modrl.agent.losses import kl_estimate, normalize, policy_gradient, value_error


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
        value_cost: float = Field(0.5, ge=0)
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
        return Loss(self.terms(batch, out), batch.valid, metrics=metrics)

    @abstractmethod
    def targets(self, batch: Batch, out: Output) -> Targets:
        """Advantages and targets of the values, without gradient."""

    def terms(self, batch: Batch, out: Output) -> dict[str, torch.Tensor]:
        """The loss's terms by name; their sum is minimised."""
        targets = self.targets(batch, out)
        advantages = normalize(targets.advantages, batch.valid) if self.config.normalize_advantages else targets.advantages
        return {
            "policy": self.policy_loss(batch, out, advantages),
            "value": self.config.value_cost * self.value_loss(batch, out, targets.values),
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
        return {"entropy": out.policy.entropy(), "value": critic(out).detach(), "rho": log_rhos.exp(), "kl": kl_estimate(log_rhos)}
