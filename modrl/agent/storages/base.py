"""Where rollouts wait to be learned from. A storage knows neither the actor nor the algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from pydantic import Field

from modrl.agent.batch import Batch
from modrl.config import Component
from modrl.messages import Rollout


class Storage(Component, ABC, kind="storage"):
    """Takes rollouts in and hands batches out.

    `batch` is this worker's share of `config.batch`, in columns. Everything is copied on the way in: arrays may be
    read-only, and their owner may write to them again.
    """

    changeable: ClassVar[frozenset[str]] = frozenset()
    """Settings that can change in mid-run: those that `change` heeds."""

    class Config(Component.Config):
        horizon: int = Field(20, ge=1)
        """Steps per rollout."""
        batch: int = Field(32, ge=1)
        """Environment columns per update, over all gradient workers."""

    def __init__(self, config: Config, *, batch: int, generator: torch.Generator) -> None:
        self.config = config
        self.size = batch
        self.generator = generator

    def change(self, config: Config) -> None:
        """Goes on with other settings, of which only changeable ones differ."""
        self.config = config

    @property
    def fresh(self) -> int:
        """Columns of each batch that were never learned from before."""
        return self.size

    @abstractmethod
    def insert(self, rollout: Rollout) -> None:
        """Takes a rollout in."""

    @abstractmethod
    def batch(self) -> Batch | None:
        """The next batch; None: more rollouts are needed first."""

    @abstractmethod
    def state(self, contents: bool) -> Any:
        """Batches and plain data to continue from. What was not learned from yet is always in it, all else only with `contents`."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Continues from what `state` gave."""
