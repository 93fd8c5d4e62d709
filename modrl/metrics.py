"""Metrics: what every update reports, gathered into rows; rows into metrics.csv and TensorBoard.

Losses and diagnostics are means per valid step, whatever the loss's reduction, so that they compare across schemes.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modrl.config import BadInput
from modrl.messages import Gradient
from modrl.scheme.stages import add

COLUMNS = (
    "env_steps", "frames", "updates", "wall_seconds", "episodes", "episode_return", "episode_length", "steps_per_second",
    "policy_lag_mean", "policy_lag_max", "gradient_lag_mean", "gradient_lag_max", "learning_rate", "eval_return",
)  # fmt: skip
_TAKEN = frozenset(COLUMNS)
RESERVED = ("episode/", "eval/", "faults/", "inference/", "loss/", "symptoms/", "time/")
"""Beginnings of columns that are the run's own."""
WINDOW = 100
"""Finished episodes that `episode_return` is the mean of."""

Row = dict[str, float | int | None]


class Metrics:
    """Gathers what updates report until a row is taken. `task_of`: each environment's task, by its global number; (): there is but one."""

    def __init__(self, action_repeat: int, task_of: Sequence[int] = ()) -> None:
        self.action_repeat = action_repeat
        self.task_of = task_of
        self.episodes = 0
        self.seconds = 0.0  # of earlier processes of this run
        self.recent: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.named: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.of_task: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.counted: dict[str, float] = defaultdict(float)
        self.start(0)
        self._clear()

    def _clear(self) -> None:
        self.policy_lags: list[int] = []
        self.gradient_lags: list[int] = []
        self.sums: dict[str, float] = defaultdict(float)
        self.weights: dict[str, int] = defaultdict(int)
        self.stages: dict[str, float] = {}
        self.logged: dict[str, np.ndarray] = {}
        self.said: dict[str, list[float]] = defaultdict(list)
        self.counted = defaultdict(float, {name: value for name, value in self.counted.items() if name.startswith("faults/")})
        self.open = True  # no complete batch yet

    def start(self, env_steps: int) -> None:
        """Training begins, or goes on: the clock runs from here."""
        self._began = self._row_began = time.perf_counter()
        self._row_steps = env_steps

    def record(self, gradients: Sequence[Gradient], lags: Sequence[int], said: dict[str, float]) -> None:
        """One update: its gradients, their lags, and what the optimiser says."""
        for gradient in gradients:
            for episode in gradient.episodes:
                self.episodes += 1
                self.recent.append((episode.reward, episode.length))
                if self.task_of:
                    self.of_task[str(self.task_of[episode.env])].append(episode.reward)
                for name, value in episode.info.items():
                    self.named[name].append(value)
            self.policy_lags += gradient.policy_lags
            if taken := (_TAKEN | said.keys()) & gradient.metrics.keys():
                raise ValueError(f"the algorithm's metric or loss term {', '.join(sorted(taken))} has the name of a column of the run's: rename it")
            for name, value in gradient.metrics.items():
                self.sums[name] += value
                self.weights[name] += gradient.weight
            if gradient.logged:
                own = _TAKEN | said.keys() | gradient.metrics.keys()
                if twice := sorted(name for name in gradient.logged if name in own or name.startswith(RESERVED)):
                    raise BadInput(f"{', '.join(twice)} was logged, which is the name of a column of the run's: choose another")
                self.logged = add(self.logged, gradient.logged)
            self.spend(gradient.seconds)
            self.count(gradient.counts)
        self.gradient_lags += lags
        for name, value in said.items():
            self.said[name].append(value)
        self.open = not all(gradient.last for gradient in gradients)

    def spend(self, seconds: Mapping[str, float]) -> None:
        """What this process itself spent on a stage."""
        self.stages = add(self.stages, seconds)

    def count(self, counts: Mapping[str, float]) -> None:
        """What happened, by column: faults are counted over the whole run, the others from row to row."""
        for name, number in counts.items():
            self.counted[name] += number

    @property
    def wall_seconds(self) -> float:
        """Seconds of training so far, earlier processes of this run included."""
        return self.seconds + time.perf_counter() - self._began

    def row(self, env_steps: int, updates: int) -> Row:
        """What came since the last row, and the run so far."""
        now = time.perf_counter()
        values: Row = {
            "env_steps": env_steps,
            "frames": env_steps * self.action_repeat,
            "updates": updates,
            "wall_seconds": round(self.wall_seconds, 3),
            "episodes": self.episodes,
            "episode_return": _mean([reward for reward, _ in self.recent]),
            "episode_length": _mean([length for _, length in self.recent]),
            "steps_per_second": (env_steps - self._row_steps) / max(now - self._row_began, 1e-9),
            "policy_lag_mean": _mean(self.policy_lags),
            "policy_lag_max": max(self.policy_lags, default=None),
            "gradient_lag_mean": _mean(self.gradient_lags),
            "gradient_lag_max": max(self.gradient_lags, default=None),
            "learning_rate": self.said["learning_rate"][-1] if self.said["learning_rate"] else None,
            "eval_return": None,
        }
        values |= {name: self.sums[name] / self.weights[name] if self.weights[name] else None for name in self.sums}
        values |= {name: _mean(value) for name, value in self.said.items() if name != "learning_rate"}
        values |= {name: float(total / count) for name, (total, count) in self.logged.items()}
        values |= {f"episode/{name}": _mean(recent) for name, recent in self.named.items()}
        values |= {f"episode_return/task_{task}": _mean(recent) for task, recent in sorted(self.of_task.items())}
        values |= {f"time/{stage}": seconds for stage, seconds in self.stages.items()}
        counted = {name: int(value) for name, value in self.counted.items() if value or name.startswith("faults/")}
        if batches := counted.pop("inference/batches", 0):
            values["inference/batch"] = counted.pop("inference/columns") / batches
        values |= counted
        collecting, learning = (sum(self.stages.get(stage, 0.0) for stage in stages) for stages in (("act", "env"), ("loss", "backward")))
        if learning:
            values["time/collect_to_learn"] = collecting / learning
        self._clear()
        self._row_began, self._row_steps = now, env_steps
        return values

    def state(self) -> dict[str, Any]:
        """Plain data to continue from."""
        recent = {name: list(values) for name, values in self.named.items()}
        return {
            "episodes": self.episodes,
            "seconds": self.wall_seconds,
            "recent": [list(item) for item in self.recent],
            "named": recent,
            "of_task": {task: list(values) for task, values in self.of_task.items()},
            "counted": dict(self.counted),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""
        self.episodes, self.seconds = state["episodes"], state["seconds"]
        self.recent.extend((reward, length) for reward, length in state["recent"])
        self.counted.update(state["counted"])
        for name, values in state["named"].items():
            self.named[name].extend(values)
        for task, values in state.get("of_task", {}).items():
            self.of_task[task].extend(values)


def _mean(values: Any) -> float | None:
    return float(np.mean(list(values))) if len(values) else None


class MetricsFile:
    """metrics.csv: appended to row by row; a column that appears later is empty in earlier rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = list(COLUMNS)
        if path.exists():
            self.columns = read_rows(path)[0]

    def cut(self, updates: int) -> None:
        """Drops the rows past this number of updates: a resumed run writes them anew."""
        if self.path.exists():
            columns, rows = read_rows(self.path)
            at = columns.index("updates")
            self._write([row for row in rows if number(self.path, row[at]) <= updates])

    def append(self, row: Row) -> None:
        """One more row, on disk when this returns."""
        new = [name for name in row if name not in self.columns]
        if new or not self.path.exists():
            rows = read_rows(self.path)[1] if self.path.exists() else []
            self.columns += new
            self._write([values + [""] * len(new) for values in rows])
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([_cell(row.get(name)) for name in self.columns])

    def _write(self, rows: list[list[str]]) -> None:
        aside = self.path.with_name(f".{self.path.name}")
        with open(aside, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self.columns, *rows])
        os.replace(aside, self.path)


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Columns and complete rows; a last row that was cut off in mid-write is left out.

    Raises:
        BadInput: its header is not one of ours.
    """
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.reader(file))
    columns = rows[0] if rows else list(COLUMNS)
    if columns[: len(COLUMNS)] != list(COLUMNS):
        raise BadInput(f"{path}: its header is damaged, and so its rows cannot be read; mend it, or move the file away to go on without them")
    return columns, [row for row in rows[1:] if len(row) == len(columns)]


def number(path: Path, cell: str) -> float:
    """A cell of the file.

    Raises:
        BadInput: it is no number.
    """
    try:
        return float(cell)
    except ValueError:
        raise BadInput(f"{path}: expected a number, got {cell!r}; mend the row or delete it") from None


def _cell(value: float | int | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.7g}"
