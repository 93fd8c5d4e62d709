"""Storages: where rollouts wait to be learned from."""

from modrl.agent.storages.base import Storage
from modrl.agent.storages.fresh import Fresh
from modrl.agent.storages.replay import Replay

__all__ = ["Fresh", "Replay", "Storage"]
