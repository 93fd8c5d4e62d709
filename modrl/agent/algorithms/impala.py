"""IMPALA: an actor-critic corrected by V-trace for acting on older weights than it learns on."""

from __future__ import annotations

from pydantic import Field

from modrl.agent.actors.base import Output
from modrl.agent.algorithms.base import Reduction
from modrl.agent.algorithms.policy_gradient import PolicyGradient, Targets
from modrl.agent.algorithms.transitions import log_prob
from modrl.agent.batch import Batch
from modrl.agent.losses import RewardForm
from modrl.agent.returns import vtrace


class IMPALA(PolicyGradient, name="impala"):
    """Importance weighted actor-learner (Espeholt et al., 2018); the defaults are those of its Atari experiments."""

    class Config(PolicyGradient.Config):
        lambda_: float = Field(1.0, ge=0, le=1)
        """Mixes one-step and longer targets."""
        rho_clip: float | None = Field(1.0, gt=0)
        """Bounds the ratio pi/mu in the temporal differences; null: no clipping. So for the other two."""
        c_clip: float | None = Field(1.0, gt=0)
        """Bounds it in the trace."""
        pg_rho_clip: float | None = Field(1.0, gt=0)
        """Bounds it in the policy gradient."""
        reduction: Reduction = "sum"
        reward: RewardForm = "clip"

    config: Config

    def targets(self, batch: Batch, out: Output) -> Targets:
        config = self.config
        log_rhos = log_prob(batch, out).detach() - batch.behaviour["log_prob"]
        steps = self.transitions(batch, out)
        corrected = vtrace(log_rhos, *steps, config.lambda_, config.rho_clip, config.c_clip, config.pg_rho_clip)
        return Targets(corrected.pg_advantages, corrected.vs)
