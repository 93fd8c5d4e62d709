"""Experience replayed: each batch is part fresh, part drawn at random from what was learned from before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from pydantic import Field, model_validator

from modrl.agent.batch import Batch, concatenate, from_rollout
from modrl.agent.storages.base import Storage
from modrl.agent.storages.columns import Columns
from modrl.agent.storages.pending import Pending
from modrl.config import problem
from modrl.messages import Rollout
from modrl.seeding import restore
from modrl.tree import to_torch


class Replay(Storage, name="replay"):
    """Uniform replay of whole columns, first in, first out (Espeholt et al., 2018, section 5.2.2).

    A column enters the replay when it was handed out fresh, and until `capacity` newer ones did. Replayed columns are drawn
    with replacement, never from the same batch's fresh part; only the very first batch, before which nothing was stored,
    repeats its own.

    With `fraction: 1` a column enters the replay when it arrives, and every batch is drawn from the replay: the learner does
    not wait for new ones. How often it learns is the scheme's business.
    """

    changeable = frozenset({"capacity", "fraction"})

    class Config(Storage.Config):
        capacity: int = Field(10_000, ge=1)
        """Columns kept, on each gradient worker."""
        fraction: float = Field(0.5, gt=0, le=1)
        """The share of each batch that is replayed."""
        start: int | None = Field(None, ge=1)
        """Columns stored on each gradient worker before its first batch, with `fraction: 1`; null: as many as a batch has."""

        @model_validator(mode="after")
        def _takes_effect(self) -> Self:
            if self.start is not None and self.fraction < 1:
                raise problem("takes effect with fraction: 1 alone, where batches need no new columns", "start")
            if self.start is not None and self.start > self.capacity:
                raise problem(f"is never reached: capacity is {self.capacity}", "start")
            return self

    config: Config

    def __init__(self, config: Config, *, batch: int, generator: torch.Generator) -> None:
        super().__init__(config, batch=batch, generator=generator)
        self._replayed = _replayed(config.fraction, batch)
        self._pending = Pending(config.horizon)
        self._stored = Columns(config.capacity)

    def change(self, config: Storage.Config) -> None:
        super().change(config)
        self._replayed = _replayed(self.config.fraction, self.size)
        self._stored = Columns(self.config.capacity, self._stored)

    @property
    def fresh(self) -> int:
        return self.size - self._replayed

    @property
    def stored(self) -> int:
        """Columns that can be replayed."""
        return len(self._stored)

    def insert(self, rollout: Rollout) -> None:
        if self.fresh:
            self._pending.insert(rollout)
            return
        batch = from_rollout(rollout)
        self._stored.extend(batch.columns(torch.tensor([i])) for i in range(len(batch.version)))

    def batch(self) -> Batch | None:
        if not self.fresh:
            return None if len(self._stored) < (self.config.start or self.size) else concatenate(self._drawn(self._stored))
        fresh = self._pending.take(self.fresh)
        if fresh is None:
            return None
        columns = [fresh.columns(torch.tensor([i])) for i in range(self.fresh)]
        old = self._drawn(self._stored or columns)
        self._stored.extend(columns)
        return concatenate([fresh, *old])

    def _drawn(self, source: Sequence[Batch] | Columns) -> list[Batch]:
        """The replayed columns of a batch."""
        drawn = torch.randint(len(source), (self._replayed,), generator=self.generator, device=self.generator.device).tolist()
        return [source[i]._replace(fresh=torch.zeros(1, dtype=torch.bool)) for i in drawn]

    def state(self, contents: bool) -> Any:
        return {
            "pending": self._pending.state(),
            "generator": self.generator.get_state(),
            "stored": list(self._stored) if contents else [],
        }

    def restore(self, state: Any) -> None:
        """Continues from what `state` gave: exactly with contents; without them the replay fills anew."""
        self._pending.restore(state["pending"])
        restore(self.generator, state["generator"])
        self._stored = Columns(self.config.capacity, map(to_torch, state["stored"]))


def _replayed(fraction: float, batch: int) -> int:
    """The replayed columns of a batch.

    Raises:
        ValueError: they are no whole number that leaves at least one of each kind.
    """
    replayed = round(fraction * batch)
    if abs(replayed - fraction * batch) > 1e-6 or not 0 < replayed < batch + (fraction == 1):
        raise ValueError(
            f"storage.fraction: {fraction:g} of a worker's batch of {batch} columns is {fraction * batch:g}; "
            "it must be a whole number of columns that leaves at least one fresh and one replayed"
        )
    return replayed
