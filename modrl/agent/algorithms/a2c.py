"""A2C: the synchronous advantage actor-critic; applied share by share it is A3C."""

from __future__ import annotations

from pydantic import Field

from modrl.agent.actors.base import Output
from modrl.agent.algorithms.policy_gradient import PolicyGradient, Targets
from modrl.agent.batch import Batch
from modrl.agent.returns import gae


class A2C(PolicyGradient, name="a2c"):
    """Advantage actor-critic (Mnih et al., 2016): it takes the batch to be of the policy that learns."""

    class Config(PolicyGradient.Config):
        lambda_: float = Field(1.0, ge=0, le=1)
        """Of the advantages: 1 sums all rewards of the rollout, as in the paper; less trusts the values more."""

    config: Config

    def targets(self, batch: Batch, out: Output) -> Targets:
        steps = self.transitions(batch, out)
        advantages = gae(*steps, lambda_=self.config.lambda_)
        return Targets(advantages, steps.values + advantages)
