"""Settings of a run that are no component: how often to log, evaluate and save."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from modrl.config import Settings

_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|sec|min|h|d)")


def _interval(value: object) -> int | str:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)) and float(match[1]) > 0:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < math.inf and value == int(value):
        return int(value)
    raise ValueError(f"expected env steps (1e6) or a duration (30s, 10min, 2h), got {value!r} ({type(value).__name__})")


Interval: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_interval),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 1}, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}]}),
]
"""A number of env steps, or a duration such as 10min."""


class Evaluation(Settings):
    """Periodic evaluation, in environments of its own."""

    every: Interval = Field(1_000_000)
    episodes: int = Field(10, ge=1, le=1_000_000)
    greedy: bool = True
    """Whether the most likely action is taken rather than a sampled one."""
    seed: int = Field(0, ge=0)
    """Of the episodes, whatever the run's own seed: runs that are compared play the same ones."""
    background: bool = False
    """Whether training goes on meanwhile, in another thread; until the next evaluation or checkpoint."""
    video: bool = False
    """Whether the first episode of each evaluation is recorded, as videos/N.mp4."""


class InitFrom(Settings):
    """The weights that a run begins with: those of what acts, from another run."""

    run: Annotated[str, AfterValidator(lambda path: str(Path(path).absolute()))]
    """Its directory."""
    checkpoint: str | int = "latest"
    """Env steps, latest or best."""
    skip: list[str] = Field([])
    """Parts of the networks that keep their own initial weights, by the beginning of their names: policy, trunk.encoder."""


class Checkpointing(Settings):
    """Periodic checkpoints; one more is written at the end."""

    every: Interval = Field("10min")
    keep: int = Field(3, ge=1)
    """The newest so many stay."""
    storage: bool = False
    """Whether what a replay holds is saved too."""


class Wandb(Settings):
    """Weights & Biases."""

    project: str = "modrl"
    entity: str | None = None
    group: str | None = None
    mode: Literal["online", "offline"] = "online"
    """offline: written into the run's directory, for `wandb sync`."""


class Mlflow(Settings):
    """MLflow."""

    experiment: str = "modrl"
    tracking_uri: str | None = None
    """None: a database of the run's own, mlflow.db in its directory."""


class Logging(Settings):
    """Rows of metrics."""

    every: Interval | None = None
    """None: a row for every batch."""
    tensorboard: bool = True
    wandb: Wandb | None = None
    mlflow: Mlflow | None = None


class Ticker:
    """Says when an interval has passed, by env steps or by the clock."""

    def __init__(self, interval: int | str | None, env_steps: int) -> None:
        self.steps = interval if isinstance(interval, int) else None
        match = _DURATION.fullmatch(interval) if isinstance(interval, str) else None
        self.seconds = float(match[1]) * _SECONDS[match[2]] if match else None
        self._last_steps = env_steps
        self._last_time = time.monotonic()

    def due(self, env_steps: int) -> bool:
        """Whether the interval has passed since it last had; always where there is none."""
        if self.steps is not None:
            if env_steps // self.steps == self._last_steps // self.steps:
                return False
            self._last_steps = env_steps
        elif self.seconds is not None:
            if time.monotonic() - self._last_time < self.seconds:
                return False
            self._last_time = time.monotonic()
        return True
