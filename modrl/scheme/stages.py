"""Where a worker's time goes: seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Stages:
    """A worker's stages follow one another: each lap goes to the stage that has just ended."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """What went before belongs to no stage."""
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """The stage that ends now began where the one before it ended."""
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """The seconds since they were last taken."""
        seconds, self._seconds = self._seconds, {}
        return seconds


def add(*parts: Mapping[str, float]) -> dict[str, float]:
    """The seconds of several workers, or of several times, by stage."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
