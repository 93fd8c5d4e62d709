"""Workers in threads of this process: they overlap wherever numpy, torch and the emulators release the interpreter."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from modrl.scheme.compute import use_torch_threads
from modrl.scheme.places.base import Factory, run

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 10.0
"""How long a worker may take to end its current task when it is closed."""


class ThreadWorker:
    """A worker with a thread of its own."""

    def __init__(self, name: str, factory: Factory) -> None:
        self.name = name
        self.counts = Counter[str]()
        self.worker = factory()
        self._tasks: SimpleQueue[tuple[Future[Any], str, tuple[Any, ...]] | None] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        use_torch_threads()
        while (task := self._tasks.get()) is not None:
            future, method, arguments = task
            if self._closing or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            run(future, self.name, getattr(self.worker, method), *arguments, caught=BaseException)  # nobody else hears of it
            del task, future, arguments  # results are the caller's now

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Queues a task."""
        future: Future[Any] = Future()
        self._tasks.put((future, method, arguments))
        return future

    def close(self) -> None:
        """Ends the current task, drops those queued, then ends the worker."""
        if self._closing:
            return
        self._closing = True
        self._tasks.put(None)
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            logger.warning("%s did not end its task within %g s; its thread is abandoned", self.name, CLOSING_SECONDS)
        self.worker.close()

    def discard(self) -> None:
        """Leaves a thread that hangs to itself. Its worker is closed meanwhile, which ends environments in processes, and so the thread."""
        self._closing = True
        self._tasks.put(None)
        threading.Thread(target=self._close_quietly, name=f"closing {self.name}", daemon=True).start()

    def _close_quietly(self) -> None:
        with contextlib.suppress(Exception):  # it is lost already
            self.worker.close()
