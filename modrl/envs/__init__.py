"""Environments: whatever steps, as Timesteps of one convention."""

from modrl.envs import toy as toy  # registers modrl/Count-v0 and its like with gymnasium
from modrl.envs.atari import Atari
from modrl.envs.base import Envs, Probe, Timestep, probe
from modrl.envs.gym import Gym
from modrl.envs.vector import Vector

__all__ = ["Atari", "Envs", "Gym", "Probe", "Timestep", "Vector", "probe"]
