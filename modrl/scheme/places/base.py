"""What every place has in common: how a worker's failure is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

Factory: TypeAlias = Callable[[], Any]
"""Makes a worker, where it will live."""


class WorkerError(RuntimeError):
    """A worker failed: its name, and the traceback of what went wrong inside it."""

    def __init__(self, worker: str, trace: str) -> None:
        super().__init__(worker, trace)
        self.worker = worker
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.worker} failed:\n{self.trace.rstrip()}"


def run(future: Future[Any], worker: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Runs a call into a future; what it raises becomes a WorkerError, unless it is one from a worker further in."""
    try:
        future.set_result(function(*arguments))
    except WorkerError as error:
        future.set_exception(error)
    except Exception as error:
        failure = WorkerError(worker, traceback.format_exc())
        failure.__cause__ = error
        future.set_exception(failure)
