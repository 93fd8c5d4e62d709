"""A profile of a run: every worker's stages as a trace that Perfetto and Chrome's about:tracing show.

Each worker has a line of its own. Arrows lead from the end of each rollout to the updates that learned from it, one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from modrl.messages import Lap


class Profile:
    """trace.json: the format's array of events, one on each line, complete after every write."""

    def __init__(self, path: Path, began: float) -> None:
        self.path = path
        self._began = began  # seconds since the epoch: where the trace's time is 0
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._file.write("[")
        self._lines: dict[str, int] = {}  # of workers
        self._made: set[int] = set()  # rollouts that an arrow may lead from
        self._end = self._file.tell()

    def write(self, laps: Iterable[Lap]) -> None:
        """Adds laps, in any order of workers; a rollout's own before those that use it."""
        events: list[dict[str, Any]] = []
        for lap in laps:
            if lap.worker not in self._lines:
                self._lines[lap.worker] = len(self._lines)
                events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": self._lines[lap.worker], "args": {"name": lap.worker}})
            where = {"pid": 0, "tid": self._lines[lap.worker]}
            start, duration = 1e6 * (lap.start - self._began), 1e6 * lap.seconds
            shown = {"args": {"rollouts": list(lap.rollouts)}} if lap.rollouts else {}
            events.append({"name": lap.stage, "ph": "X", "ts": start, "dur": duration, **where, **shown})
            for serial in lap.rollouts:
                arrow = {"name": "rollout", "cat": "rollout", "id": serial, **where}
                events.append({**arrow, "ph": "t" if serial in self._made else "s", "ts": start + duration / 2})
                self._made.add(serial)
        self._add(events)

    def _add(self, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        text = ",\n".join(json.dumps(event) for event in events)
        self._file.seek(self._end)
        self._file.write((",\n" if self._end > 1 else "\n") + text)
        self._file.flush()
        self._end = self._file.tell()
        self._file.write("\n]\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing is added any more."""
        if self._end == 1:
            self._file.write("]\n")
        self._file.close()
