"""Ctrl-C and SIGTERM: the first asks a run to stop with a checkpoint, the second ends it at once."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and did: with a checkpoint."""

    def __init__(self, number: int, checkpoint: Path | None) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}" + (f"; checkpoint {checkpoint}" if checkpoint else ""))
        self.signal = number


class Interrupt:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._over = False

    def install(self) -> None:
        """Listens, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.signal(number, self._heard)
            self._before.setdefault(number, before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._over:  # which another thread found
            self.restore()
            signal.raise_signal(number)
            return
        if self.signal is not None:
            self.restore()
            raise KeyboardInterrupt
        self.signal = number
        logger.warning("%s: stopping with a checkpoint after this round; once more to stop at once", signal.Signals(number).name)

    def restore(self) -> None:
        """Puts back who listened before, or leaves that to the next signal where this is not the main thread."""
        self._over = True
        while self._before and threading.current_thread() is threading.main_thread():
            signal.signal(*self._before.popitem())

    def __bool__(self) -> bool:
        return self.signal is not None


@contextlib.contextmanager
def listening() -> Iterator[Interrupt]:
    """An Interrupt that listens inside the block."""
    interrupt = Interrupt()
    interrupt.install()
    try:
        yield interrupt
    finally:
        interrupt.restore()
