"""Experience learned from once, in the order of its arrival."""

from __future__ import annotations

from typing import Any

import torch

from modrl.agent.batch import Batch
from modrl.agent.storages.base import Storage
from modrl.agent.storages.pending import Pending
from modrl.messages import Rollout


class Fresh(Storage, name="fresh"):
    """Hands every column out once: wide rollouts are dealt out over several batches, several narrow ones make one."""

    def __init__(self, config: Storage.Config, *, batch: int, generator: torch.Generator) -> None:
        super().__init__(config, batch=batch, generator=generator)
        self._pending = Pending(config.horizon)

    def insert(self, rollout: Rollout) -> None:
        self._pending.insert(rollout)

    def batch(self) -> Batch | None:
        return self._pending.take(self.size)

    def state(self, contents: bool) -> Any:
        return {"pending": self._pending.state()}

    def restore(self, state: Any) -> None:
        self._pending.restore(state["pending"])
