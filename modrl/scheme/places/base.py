"""What every place has in common: how a worker's failure is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

Factory: TypeAlias = Callable[[], Any]
"""Makes a worker, where it will live."""


class WorkerError(RuntimeError):
    """A worker failed: its name, and the traceback of what went wrong inside it; with the dump where a number was not finite."""

    def __init__(self, worker: str, trace: str, dump: dict[str, Any] | None = None) -> None:
        super().__init__(worker, trace, dump)
        self.worker = worker
        self.trace = trace
        self.dump = dump

    def __str__(self) -> str:
        return f"{self.worker} failed:\n{self.trace.rstrip()}"


class WorkerLost(WorkerError):
    """A worker is gone, or does not answer: its process died, its node was lost, or its task took too long."""

    def final(self, restarts: int) -> WorkerError:
        """What ends the run: there is no replacement, or none any more."""
        used = f"\nno replacement is left: {restarts} were made (scheme.faults.worker_restarts)" if restarts else ""
        return WorkerError(self.worker, self.trace.rstrip() + used)


class PeerLost(WorkerError):
    """A worker could not agree with its peers, for one of them was lost; it can go on with others."""


def is_loss(error: BaseException) -> bool:
    """Whether it ended a run for want of a worker, or of a replacement for it."""
    return isinstance(error, (WorkerLost, PeerLost)) or isinstance(error.__cause__, WorkerLost)


def run(future: Future[Any], worker: str, function: Callable[..., Any], *arguments: Any, caught: type[BaseException] = Exception) -> None:
    """Runs a call into a future; what it raises becomes a WorkerError, unless it is one from a worker further in."""
    try:
        future.set_result(function(*arguments))
    except WorkerError as error:
        future.set_exception(error)
    except caught as error:
        failure = WorkerError(worker, traceback.format_exc(), getattr(error, "dump", None))
        failure.__cause__ = error
        future.set_exception(failure)
