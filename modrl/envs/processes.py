"""Environments in processes of their own, which outlive Ctrl-C until they are closed, and never outlive their parent."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from modrl.envs.member import EnvError

PATIENCE = 5.0
"""Seconds that the environments may take to close before their processes are killed."""


class Processes(AsyncVectorEnv):
    """Gymnasium's, with children that may have children themselves, that leave signals to the parent, and that always end.

    `numbers` are the environments' global numbers, `factories` make them, each in its own process.
    """

    def __init__(self, factories: Sequence[Callable[[], gymnasium.Env]], numbers: Sequence[int], start_method: str | None) -> None:
        self.numbers = tuple(numbers)
        children = [_Child(factory, os.getpid()) for factory in factories]
        try:
            with _nothing_collected():
                super().__init__(children, copy=False, context=start_method, daemon=False, autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException as error:
            lost = self._loss("while it was made") if isinstance(error, (EOFError, ConnectionError)) else None
            self.closed = True
            self.close_extras(terminate=True)
            if lost:
                raise lost from None
            raise
        # Not daemonic, so the interpreter would wait for them at its exit: end them before that.
        multiprocessing.util.Finalize(self, _kill, args=(self.processes,), exitpriority=10)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            return super().reset(seed=seed, options=options)
        except (EOFError, ConnectionError):
            raise self._loss("in reset") from None

    def step_async(self, actions: Any) -> None:
        try:
            super().step_async(actions)
        except (EOFError, ConnectionError):
            raise self._loss("in step") from None

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        try:
            return super().step_wait(timeout)
        except (EOFError, ConnectionError):
            raise self._loss("in step") from None

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        deadline = time.monotonic() + (0 if terminate else PATIENCE if timeout is None else timeout)
        pipes = [pipe for pipe in getattr(self, "parent_pipes", []) if not pipe.closed]
        for pipe in pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        for pipe in pipes:
            with suppress(EOFError, OSError):
                while pipe.poll(max(0.0, deadline - time.monotonic())):
                    pipe.recv()  # one that writes into a full pipe would never come to its end
            pipe.close()
        processes = getattr(self, "processes", [])
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        _kill(processes)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raises what went wrong in the children; gymnasium's own prints every traceback twice and raises the last one."""
        failures = [self.error_queue.get() for success in successes if not success]
        for index, _, _, _ in failures:
            self.parent_pipes[index].close()
        if failures:
            self._state = AsyncState.DEFAULT
            raise EnvError("\n".join(str(error) for _, _, error, _ in sorted(failures, key=lambda failure: failure[0])))

    def _loss(self, when: str) -> EnvError:
        """What to say when a pipe broke."""
        processes = getattr(self, "processes", [])
        ended = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=1)  # the pipe may break first
        for process in processes:
            process.join(1 if process.sentinel in ended else 0)
        dead = [(number, process.exitcode) for number, process in zip(self.numbers, processes, strict=False) if process.exitcode is not None]
        names = ", ".join(f"env {number} (exit status {status})" for number, status in dead) or "an env"
        return EnvError(f"{names}: its process ended {when}; what it printed stands above")


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What exists now is never collected in a forked child: an object whose threads stayed in the parent would abort it there."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


class _Child:
    """Makes an environment; in the child process it first sets the process up."""

    def __init__(self, factory: Callable[[], gymnasium.Env], parent: int) -> None:
        self.factory = factory
        self.parent = parent

    def __call__(self) -> gymnasium.Env:
        if os.getpid() != self.parent:  # gymnasium also makes one in the parent, to look at its spaces
            gc.enable()
            _leave_signals_to_the_parent()
            threading.Thread(target=_end_with_parent, daemon=True).start()
        return self.factory()


def _leave_signals_to_the_parent() -> None:
    """Whatever ends a run is sent to all its processes; the parent takes a checkpoint, then closes us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: None)  # not SIG_IGN: an env's own child programs could not be ended
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _end_with_parent() -> None:
    """Ends this process soon after its parent's, even if the environment hangs, or a child of its own keeps our pipes open."""
    parent, home = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while parent.is_alive() and os.getppid() == home:
        parent.join(1)
    threading.Event().wait(PATIENCE)  # the worker has seen its pipe break, and closes the environment
    os._exit(1)


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
