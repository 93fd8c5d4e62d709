"""Columns not learned from yet: rollouts of any width in, any number of columns out, oldest first."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from modrl.agent.batch import Batch, concatenate, from_rollout
from modrl.messages import Rollout
from modrl.tree import to_torch


class Pending:
    """A queue of columns. It copies a rollout once on the way in, and again only to cut or to join."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._batches: deque[Batch] = deque()

    def __len__(self) -> int:
        return sum(len(batch.version) for batch in self._batches)

    def insert(self, rollout: Rollout) -> None:
        """Takes a rollout in, copied."""
        batch = from_rollout(rollout)
        assert len(batch.reward) == self.horizon, f"expected rollouts of {self.horizon} steps, got one of {len(batch.reward)}"
        self._batches.append(batch)

    def take(self, count: int) -> Batch | None:
        """The `count` oldest columns; None: there are not as many."""
        if len(self) < count:
            return None
        taken = []
        while count:
            batch = self._batches.popleft()
            width = len(batch.version)
            if width > count:
                self._batches.appendleft(batch.columns(torch.arange(count, width)))
                batch, width = batch.columns(torch.arange(count)), count
            taken.append(batch)
            count -= width
        return concatenate(taken)

    def state(self) -> list[Batch]:
        """What to continue from."""
        return list(self._batches)

    def restore(self, state: list[Any]) -> None:
        """Continues from what `state` gave."""
        self._batches = deque(to_torch(batch) for batch in state)
