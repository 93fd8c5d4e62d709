"""An algorithm of one's own: IMPALA with one more loss term, which keeps the values near zero.

modrl train examples/custom_algorithm.yaml scheme=impala
"""

from pydantic import Field

from modrl.agent.actors import Output
from modrl.agent.algorithms import IMPALA
from modrl.agent.batch import Batch


class CalmIMPALA(IMPALA):
    """IMPALA whose critic pays for large values. The cost may be a schedule, as any number of an algorithm's settings."""

    class Config(IMPALA.Config):
        calm_cost: float = Field(1e-3, ge=0)

    def terms(self, batch: Batch, out: Output):
        return super().terms(batch, out) | {"calm": self.config.calm_cost * out.value**2}  # by step, [T+1, B]
