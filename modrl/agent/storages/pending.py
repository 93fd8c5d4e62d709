"""Columns not learned from yet: rollouts of any width in, batches out."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from modrl.agent.batch import Batch, concatenate, from_rollout
from modrl.messages import Rollout
from modrl.tree import to_torch


class Pending:
    """Columns on their way to batches, oldest first. A rollout is copied where it is read-only, to cut it and to join it, and not else.

    Columns that are there for several batches are dealt out over them like cards: for k batches, every k-th to the first. So a
    batch is of the same environments however many gradient workers have a share of them.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._waiting: list[Batch] = []  # of any width
        self._dealt: deque[Batch] = deque()  # whole batches

    def __len__(self) -> int:
        return sum(len(batch.version) for batch in (*self._dealt, *self._waiting))

    def insert(self, rollout: Rollout) -> None:
        """Takes a rollout in, whose arrays are the storage's from now on."""
        batch = from_rollout(rollout)
        assert len(batch.reward) == self.horizon, f"expected rollouts of {self.horizon} steps, got one of {len(batch.reward)}"
        self._waiting.append(batch)

    def take(self, count: int) -> Batch | None:
        """A batch of `count` columns; None: there are not as many."""
        if self._dealt and len(self._dealt[0].version) != count:  # the size has changed
            self._waiting, self._dealt = [*self._dealt, *self._waiting], deque()
        if not self._dealt:
            self._deal(count)
        return self._dealt.popleft() if self._dealt else None

    def _deal(self, count: int) -> None:
        batches, rest = divmod(len(self), count)
        if not batches:
            return
        whole = concatenate(self._waiting)
        dealt = batches * count
        self._waiting = [whole.columns(torch.arange(dealt, dealt + rest))] if rest else []
        self._dealt.extend([whole] if batches == 1 and not rest else [whole.columns(torch.arange(i, dealt, batches)) for i in range(batches)])

    def state(self) -> list[list[Batch]]:
        """What to continue from."""
        return [self._waiting, list(self._dealt)]

    def restore(self, state: list[list[Any]]) -> None:
        """Continues from what `state` gave."""
        waiting, dealt = ([to_torch(batch) for batch in batches] for batches in state)
        self._waiting, self._dealt = waiting, deque(dealt)
