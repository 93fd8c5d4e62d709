"""Where a worker's time goes: seconds by stage, and where a profile is wanted, when each stage began."""

from __future__ import annotations

import time
from collections.abc import Mapping

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


def add(*parts: Mapping[str, float]) -> dict[str, float]:
    """The seconds of several workers, or of several times, by stage."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
