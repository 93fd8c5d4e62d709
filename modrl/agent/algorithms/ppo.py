"""PPO: several epochs of minibatches over each batch, with the policy's change clipped."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field

from modrl.agent.actors.base import Output
from modrl.agent.algorithms.base import Loss
from modrl.agent.algorithms.minibatches import available, minibatches, split
from modrl.agent.algorithms.policy_gradient import PolicyGradient, Targets
from modrl.agent.algorithms.transitions import critic, log_prob
from modrl.agent.batch import Batch
from modrl.agent.losses import clipped_surrogate, clipped_value_error, value_error
from modrl.agent.returns import gae


class PPO(PolicyGradient, name="ppo"):
    """Proximal policy optimisation (Schulman et al., 2017).

    Minibatches are whole columns where the actor is recurrent, single steps where it is not. Advantages are computed once per
    batch, on the weights that it begins with.
    """

    class Config(PolicyGradient.Config):
        clip: float = Field(0.2, gt=0)
        """How far the ratio of new to old policy may move from 1 and still be rewarded for it."""
        dual_clip: float | None = Field(None, gt=1)
        """Bounds the loss of actions that turned out badly; null: not at all."""
        value_clip: float | None = Field(None, gt=0)
        """How far the values may move per batch and still be rewarded for it; null: freely."""
        epochs: int = Field(4, ge=1)
        """Passes over each batch."""
        minibatches: int = Field(4, ge=1)
        """Per epoch."""
        lambda_: float = Field(0.95, ge=0, le=1)
        """Of the advantages."""
        normalize_advantages: bool = True
        target_kl: float | None = Field(None, gt=0)
        """Gives the rest of a batch up once a minibatch's policy is this far (KL divergence, nats) from the one that acted."""

    config: Config

    @property
    def num_losses(self) -> int:
        return self.config.epochs * self.config.minibatches

    def check_share(self, steps: int, columns: int) -> None:
        available(steps, columns, self.config.minibatches, by_column=self.actor.recurrent)

    def losses(self, batch: Batch) -> Iterator[Loss]:
        batch = self.with_targets(batch)
        given_up = False
        for _ in range(self.config.epochs):
            for minibatch in minibatches(batch, self.config.minibatches, by_column=self.actor.recurrent, generator=self.generator):
                # The number of losses may not depend on the data: what is given up is yielded with nothing valid.
                loss = self.loss(_one_column(minibatch) if given_up else minibatch)
                given_up = given_up or self._too_far(loss)
                yield loss._replace(valid=torch.zeros_like(loss.valid), statistics={}) if given_up else loss

    def with_targets(self, batch: Batch) -> Batch:
        """The batch with advantages, returns and values of these weights beside what the acting policy said."""
        with torch.no_grad():
            out = self.actor(batch)
        steps = self.transitions(batch, out)
        advantages = gae(*steps, lambda_=self.config.lambda_)
        said = {"advantage": advantages, "return": advantages + steps.values, "value": steps.values}
        return batch._replace(behaviour=batch.behaviour | said)

    def targets(self, batch: Batch, out: Output) -> Targets:
        return Targets(batch.behaviour["advantage"], batch.behaviour["return"])

    def policy_loss(self, batch: Batch, out: Output, advantages: torch.Tensor) -> torch.Tensor:
        return clipped_surrogate(log_prob(batch, out), batch.behaviour["log_prob"], advantages, self.config.clip, self.config.dual_clip)

    def value_loss(self, batch: Batch, out: Output, targets: torch.Tensor) -> torch.Tensor:
        if self.config.value_clip is None:
            return value_error(critic(out), targets)
        clip = self.config.value_clip if out.value_scale is None else self.config.value_clip * out.value_scale
        return clipped_value_error(critic(out), batch.behaviour["value"], targets, clip)

    def metrics(self, batch: Batch, out: Output) -> dict[str, torch.Tensor]:
        metrics = super().metrics(batch, out)
        return metrics | {"clipped": ((metrics["rho"] - 1).abs() > self.config.clip).to(metrics["rho"].dtype)}

    def _too_far(self, loss: Loss) -> bool:
        if self.config.target_kl is None:
            return False
        kl = torch.where(loss.valid, loss.metrics["kl"], 0).sum() / loss.valid.sum().clamp(min=1)
        return bool(kl > self.config.target_kl)


def _one_column(batch: Batch) -> Batch:
    return next(split(batch, [1, len(batch.fresh) - 1]))
