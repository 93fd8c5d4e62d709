"""Algorithms: what learns."""

from modrl.agent.algorithms.a2c import A2C
from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.algorithms.impala import IMPALA
from modrl.agent.algorithms.ppo import PPO

__all__ = ["A2C", "IMPALA", "PPO", "Algorithm", "Loss"]
