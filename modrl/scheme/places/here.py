"""Workers in the caller's own thread: a task runs when it is submitted."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

from modrl.scheme.places.base import Factory, run


class HereWorker:
    """A worker that works while its caller waits."""

    def __init__(self, name: str, factory: Factory) -> None:
        self.name = name
        self.counts = Counter[str]()
        self.worker = factory()

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """The finished task."""
        future: Future[Any] = Future()
        run(future, self.name, getattr(self.worker, method), *arguments)
        return future

    def close(self) -> None:
        """Ends the worker."""
        self.worker.close()

    discard = close
