"""A group: workers that do the same task, and the one mechanism by which every scheme pulls their results.

Who is behind whom is a number. A task starts in one pull and is taken in a later one; the difference is its lag in pulls.
With `ahead` 0 the workers rest while the caller learns; with `ahead` n each has up to n untaken tasks. `gather` says how
many results a pull takes: every worker's, in worker order; k in order of completion, within `max_lag`; or 0: what is ready.

A worker that is lost (its process died, or a task took longer than `timeout`) is replaced while the budget lasts: its
unfinished tasks are dropped and counted, and as many start anew on the weights of this pull. What a worker raises is never
answered by a replacement, which would only raise it again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple, Protocol

from modrl.messages import Event, Weights
from modrl.scheme.places.base import WorkerLost
from modrl.scheme.stages import Stages

logger = logging.getLogger(__name__)

STARTING_SECONDS = 120.0
"""How long a worker may take to start: imports, environments, networks."""


class Handle(Protocol):
    """A worker, wherever it is. Its tasks run one after the other, in the order of submission."""

    name: str
    counts: Counter[str]  # what its place has to count, by column

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Starts a task: a method of the worker."""

    def close(self) -> None:
        """Ends the worker."""

    def discard(self) -> None:
        """Ends a worker that does not answer, without waiting for it."""


class Recovery(NamedTuple):
    """How lost workers are replaced: `recruit(index, attempt)` makes the attempt-th replacement of a worker."""

    recruit: Callable[[int, int], Handle]
    restarts: int  # replacements that the group may make
    timeout: float | None  # seconds that a task may take; None: for ever


class _Task:
    def __init__(self, worker: int, attempt: int, start: int, future: Future[Any], ended: Callable[[_Task], None]) -> None:
        self.worker = worker
        self.attempt = attempt  # which of the worker's replacements is at it
        self.start = start  # the pull that started it
        self.future = future
        self.submitted = time.monotonic()
        self.done_at: int | None = None  # in order of completion
        future.add_done_callback(lambda _: ended(self))

    @property
    def succeeded(self) -> bool:
        return self.done_at is not None and self.future.exception() is None


class Group:
    """Workers at one task (`method`). `gather` None: all; 0: what is ready, in order of completion.

    `share` makes of a weights object what the workers' place passes on; it is called once per pull.
    """

    def __init__(
        self,
        workers: Sequence[Handle],
        method: str,
        gather: int | None = None,
        ahead: int = 0,
        max_lag: int | None = None,
        share: Callable[[Weights], Any] = lambda weights: weights,
        recovery: Recovery | None = None,
    ) -> None:
        self.workers = list(workers)
        self.method = method
        self.gather = gather
        self.ahead = ahead
        self.max_lag = max_lag
        self.share = share
        self.recovery = recovery
        self.pulls = 0
        self.restarts = 0  # replacements made so far
        self._tasks: list[_Task] = []  # started and not taken, oldest first
        self._clock = itertools.count()
        self._job: tuple[str, Any] | None = None  # what tasks are started at now: a method, and the weights as shared
        self._attempts = Counter[int]()  # replacements by worker
        self._ended: dict[tuple[int, int], float] = {}  # when each worker, of each attempt, last ended a task
        self._events: list[Event] = []
        self.stages = Stages()
        self._told: dict[str, tuple[Any, ...]] = {}  # what a replacement has to be told too, by method

    def pull(self, weights: Weights, wait: bool = True) -> list[Any]:
        """Starts idle workers on these weights, takes results, and tops workers up on the same weights.

        `wait`: with `gather` 0, for a first result where none is ready.

        Raises:
            WorkerError: a worker failed, whether or not its result was due, or one was lost and no replacement is left.
        """
        with self._starting(self.method, weights):
            taken = self._take(wait)
            for _ in range(self.ahead):  # one task each at a time, so that all get their first before any its second
                for worker in range(len(self.workers)):
                    if sum(task.worker == worker for task in self._tasks) < self.ahead:
                        self._start(worker)
        self.pulls += 1
        return [task.future.result() for task in taken]

    @contextlib.contextmanager
    def _starting(self, method: str, weights: Weights) -> Iterator[None]:
        """Idle workers start at the method; until this is left, replacements of lost workers do too."""
        self.stages.begin()
        self._job = method, self.share(weights)
        self.stages.lap("transfer")
        try:
            self._start_idle()
            yield
        finally:
            self._job = None

    def _start_idle(self) -> None:
        busy = {task.worker for task in self._tasks}
        for worker in range(len(self.workers)):
            if worker not in busy:
                self._start(worker)

    def _start(self, worker: int) -> None:
        assert self._job is not None
        future = self.workers[worker].submit(*self._job)
        self._tasks.append(_Task(worker, self._attempts[worker], self.pulls, future, self._end))

    def _end(self, task: _Task) -> None:
        self._ended[task.worker, task.attempt] = time.monotonic()
        task.done_at = next(self._clock)

    def _take(self, wait: bool) -> list[_Task]:
        if self.gather is None:
            return self._take_all()
        if self.gather == 0:
            return self._take_ready(wait)
        return [self._take_one(self.gather - i - 1) for i in range(self.gather)]

    def _take_ready(self, wait: bool) -> list[_Task]:
        self._attend()
        while not (ready := [task for task in self._tasks if task.succeeded]) and wait:
            self._wait()
        self._tasks = [task for task in self._tasks if task not in ready]
        return sorted(ready, key=lambda task: task.done_at or 0)

    def _take_all(self) -> list[_Task]:
        while True:
            self._attend()
            oldest = [next(task for task in self._tasks if task.worker == worker) for worker in range(len(self.workers))]
            if all(task.succeeded for task in oldest):
                break
            self._wait()
        for task in oldest:
            self._tasks.remove(task)
        return oldest

    def _take_one(self, more: int) -> _Task:
        """The first completed task, or else the oldest where leaving it longer would break `max_lag`; `more` takes follow in this pull."""
        while True:
            self._attend()
            if done := [task for task in self._tasks if task.succeeded]:
                task = min(done, key=lambda task: task.done_at or 0)
                if not self._in_time([other for other in self._tasks if other is not task], more):
                    task = self._tasks[0]
                if task.succeeded:
                    self._tasks.remove(task)
                    return task
            self._wait()

    def _in_time(self, left: Sequence[_Task], more: int) -> bool:
        """Whether the tasks left, taken oldest first, would all be taken within `max_lag`."""
        if self.max_lag is None or self.gather is None:
            return True
        pulls = [self.pulls if i < more else self.pulls + 1 + (i - more) // self.gather for i in range(len(left))]
        return all(pull - task.start <= self.max_lag for pull, task in zip(pulls, left, strict=True))

    # --- workers that fail, and workers that are lost ---

    def _wait(self) -> None:
        """Until something has happened: a task is done, or a worker was found lost and replaced."""
        running = [task.future for task in self._tasks if not task.future.done()]
        self.stages.begin()
        wait(running, self._patience(), FIRST_COMPLETED)
        self.stages.lap("wait")
        self._attend()

    def _attend(self) -> None:
        """Replaces workers that were lost.

        Raises:
            WorkerError: a worker failed, or one was lost and no replacement is left.
        """
        for task in list(self._tasks):
            if task in self._tasks and task.future.done() and (error := task.future.exception()) is not None:
                self._failed(task, error)
        for worker, deadline in self._deadlines().items():
            if time.monotonic() > deadline:
                assert self.recovery is not None
                self._note("timeout", self.workers[worker].name, f"no result within {self.recovery.timeout:g} s")
                self._replace(worker, WorkerLost(self.workers[worker].name, f"gave no result within {self.recovery.timeout:g} s (faults.timeout)"))

    def _failed(self, task: _Task, error: BaseException) -> None:
        """A task ended in an error, which is raised unless its worker can be replaced."""
        if not isinstance(error, WorkerLost):
            raise error
        self._replace(task.worker, error)

    def _deadlines(self) -> dict[int, float]:
        """When each busy worker's running task is overdue, by worker."""
        if self.recovery is None or self.recovery.timeout is None:
            return {}
        deadlines: dict[int, float] = {}
        for task in self._tasks:
            if not task.future.done() and task.worker not in deadlines:
                ended = self._ended.get((task.worker, task.attempt))
                starting = STARTING_SECONDS if task.attempt and ended is None else 0.0  # a replacement's first task waits for it to start
                deadlines[task.worker] = max(task.submitted, ended or 0.0) + self.recovery.timeout + starting
        return deadlines

    def _patience(self) -> float | None:
        deadlines = self._deadlines().values()
        return max(0.0, min(deadlines) - time.monotonic()) + 0.01 if deadlines else None

    def _replace(self, worker: int, error: WorkerLost) -> None:
        """Puts a new worker in a lost one's place, and drops the lost one's unfinished tasks."""
        recovery = self._spend(error)
        self._attempts[worker] += 1
        lost = [t for t in self._tasks if t.worker == worker and (not t.future.done() or t.future.exception() is not None)]
        self._tasks = [task for task in self._tasks if task not in lost]
        self._note("restart", self.workers[worker].name, error.trace.rstrip(), dropped=len(lost))
        self.workers[worker].discard()
        self.workers[worker] = recovery.recruit(worker, self._attempts[worker])
        self._recruited(worker)
        for method, arguments in self._told.items():
            self.workers[worker].submit(method, *arguments)
        for _ in lost if self._job is not None else ():
            self._start(worker)

    def _recruited(self, worker: int) -> None:
        """A replacement has come, and no task is given to it yet."""

    def _spend(self, error: WorkerLost) -> Recovery:
        """Takes one replacement from the budget.

        Raises:
            WorkerError: there is none left.
        """
        if self.recovery is None or self.restarts >= self.recovery.restarts:
            raise error.final(self.restarts) from error
        self.restarts += 1
        return self.recovery

    def _note(self, kind: str, worker: str, cause: str, dropped: int = 0) -> None:
        self._events.append(Event(kind, worker, cause, dropped))
        budget = f" {self.restarts} of {self.recovery.restarts}" if kind == "restart" and self.recovery is not None else ""
        logger.warning("%s: %s%s: %s", worker, kind, budget, cause.partition("\n")[0])

    def events(self) -> tuple[Event, ...]:
        """What befell the group's workers since this was last asked."""
        events, self._events = tuple(self._events), []
        return events

    def counts(self) -> Counter[str]:
        """What the places of the group's workers counted since this was last asked, by column."""
        counts = Counter[str]()
        for worker in self.workers:
            counts.update(worker.counts)
            worker.counts.clear()
        return counts

    # --- between pulls ---

    def finish(self, weights: Weights) -> list[Any]:
        """Every worker's answer to `finish`, in worker order; no task may be in flight."""
        assert not self._tasks
        with self._starting("finish", weights):
            return [task.future.result() for task in self._take_all()]

    def drain(self) -> list[Any]:
        """The results of all tasks in flight, oldest first; the workers are idle then."""
        self._settle()
        tasks, self._tasks = self._tasks, []
        return [task.future.result() for task in tasks]

    def _settle(self) -> None:
        """Until no task is running."""
        self._attend()
        while any(not task.future.done() for task in self._tasks):
            self._wait()

    def call(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        """Every worker's result of another method, in worker order; each argument is a sequence with one item per worker."""
        futures = [worker.submit(method, *(a[i] for a in arguments)) for i, worker in enumerate(self.workers)]
        return [self._answer(future, i, method, *(a[i] for a in arguments)) for i, future in enumerate(futures)]

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method with the same arguments on every worker that there is or will be: on replacements before their first task."""
        self._told[method] = arguments
        self.call(method, *([argument] * len(self.workers) for argument in arguments))

    def ask(self, worker: int, method: str, *arguments: Any) -> Any:
        """One worker's result of another method."""
        return self._answer(self.workers[worker].submit(method, *arguments), worker, method, *arguments)

    def _make_up(self, worker: int, error: WorkerLost) -> None:
        """A worker that was lost between pulls is replaced, ready to be asked."""
        self._replace(worker, error)

    def _answer(self, future: Future[Any], worker: int, method: str, *arguments: Any) -> Any:
        while True:
            try:
                return future.result()
            except WorkerLost as error:
                self._make_up(worker, error)
                future = self.workers[worker].submit(method, *arguments)

    def state(self) -> dict[str, Any]:
        """Plain data to continue from: awaits the tasks in flight and keeps their results."""
        self._settle()
        tasks = [{"worker": t.worker, "start": t.start, "result": t.future.result()} for t in self._tasks]
        return {"pulls": self.pulls, "tasks": tasks, "workers": self.call("state")}

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether all workers could continue exactly: never where it was of another number of workers."""
        if len(state["workers"]) != len(self.workers):
            return False
        self.pulls = state["pulls"]
        self._tasks = [_Task(t["worker"], 0, t["start"], _finished(t["result"]), self._end) for t in state["tasks"]]
        return all(self.call("restore", state["workers"]))

    def close(self) -> None:
        """Ends the workers."""
        for worker in self.workers:
            worker.close()


def _finished(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
