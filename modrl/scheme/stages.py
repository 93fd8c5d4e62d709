"""What workers keep account of beside their messages: seconds by stage, when each stage began where a profile is wanted, what components log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
import torch

from modrl.config import Component
from modrl.messages import Lap


class Stages:
    """A worker's stages follow one another: each lap goes to the stage that has just ended. Laps are kept where the `worker` is named."""

    def __init__(self, worker: str | None = None) -> None:
        self.worker = worker
        self._seconds: dict[str, float] = {}
        self._laps: list[Lap] = []
        self._epoch = time.time() - time.perf_counter()  # clocks of several processes have nothing else in common
        self.begin()

    def begin(self) -> None:
        """What went before belongs to no stage."""
        self._last = time.perf_counter()

    def lap(self, stage: str, rollouts: tuple[int, ...] = ()) -> None:
        """The stage that ends now began where the one before it ended. `rollouts`: the serial numbers of those that it made or used."""
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        if self.worker is not None:
            self._laps.append(Lap(self.worker, stage, self._epoch + self._last, now - self._last, rollouts))
        self._last = now

    def take(self) -> dict[str, float]:
        """The seconds since they were last taken."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def take_laps(self) -> tuple[Lap, ...]:
        """The laps since they were last taken."""
        laps, self._laps = tuple(self._laps), []
        return laps


Summed = TypeVar("Summed", float, np.ndarray, torch.Tensor)


def add(*parts: Mapping[str, Summed]) -> dict[str, Summed]:
    """What several workers, or several times, have under each name, added up in the order given: seconds of stages, sums of statistics, …"""
    total: dict[str, Summed] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def take_logged(components: Iterable[Component]) -> dict[str, np.ndarray]:
    """What these components logged since this was last asked: [sum, number] by name."""
    taken: dict[str, np.ndarray] = {}
    for component in [component for component in components if "logged" in component.__dict__]:
        taken = add(taken, component.logged)
        component.logged.clear()
    return taken
