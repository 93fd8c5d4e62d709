"""A group: workers that do the same task, and the one mechanism by which every scheme pulls their results.

Who is behind whom is a number. A task starts in one pull and is taken in a later one; the difference is its lag in pulls.
With `ahead` 0 the workers rest while the caller learns; with `ahead` n each has up to n untaken tasks. `gather` says how
many results a pull takes: every worker's, in worker order, or k in order of completion within `max_lag`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from modrl.messages import Weights


class Handle(Protocol):
    """A worker, wherever it is. Its tasks run one after the other, in the order of submission."""

    name: str

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Starts a task: a method of the worker."""

    def close(self) -> None:
        """Ends the worker."""


class _Task:
    def __init__(self, worker: int, start: int, future: Future[Any], clock: Iterator[int]) -> None:
        self.worker = worker
        self.start = start  # the pull that started it
        self.future = future
        self.done_at: int | None = None
        future.add_done_callback(lambda _: setattr(self, "done_at", next(clock)))


class Group:
    """Workers at one task (`method`). `gather` None: all.

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
    ) -> None:
        self.workers = list(workers)
        self.method = method
        self.gather = gather
        self.ahead = ahead
        self.max_lag = max_lag
        self.share = share
        self.pulls = 0
        self._tasks: list[_Task] = []  # started and not taken, oldest first
        self._clock = itertools.count()

    def pull(self, weights: Weights) -> list[Any]:
        """Starts idle workers on these weights, takes results, and tops workers up on the same weights.

        Raises:
            WorkerError: a worker failed, whether or not its result was due.
        """
        shared = self.share(weights)
        busy = {task.worker for task in self._tasks}
        for worker in range(len(self.workers)):
            if worker not in busy:
                self._start(worker, shared)
        taken = self._take_all() if self.gather is None else [self._take_one(self.gather - i - 1) for i in range(self.gather)]
        for _ in range(self.ahead):  # one task each at a time, so that all get their first before any its second
            for worker in range(len(self.workers)):
                if sum(task.worker == worker for task in self._tasks) < self.ahead:
                    self._start(worker, shared)
        self.pulls += 1
        return [task.future.result() for task in taken]

    def _start(self, worker: int, shared: Any) -> None:
        self._tasks.append(_Task(worker, self.pulls, self.workers[worker].submit(self.method, shared), self._clock))

    def _take_all(self) -> list[_Task]:
        oldest = [next(task for task in self._tasks if task.worker == worker) for worker in range(len(self.workers))]
        for task in oldest:
            self._await(task)
            self._tasks.remove(task)
        return oldest

    def _take_one(self, more: int) -> _Task:
        """The first completed task, or else the oldest where leaving it longer would break `max_lag`; `more` takes follow in this pull."""
        while not (done := [task for task in self._tasks if task.done_at is not None]):
            self._await(None)
        self._raise_failures()
        task = min(done, key=lambda task: task.done_at if task.done_at is not None else 0)
        if not self._in_time([other for other in self._tasks if other is not task], more):
            task = self._tasks[0]
            self._await(task)
        self._tasks.remove(task)
        return task

    def _in_time(self, left: Sequence[_Task], more: int) -> bool:
        """Whether the tasks left, taken oldest first, would all be taken within `max_lag`."""
        if self.max_lag is None or self.gather is None:
            return True
        pulls = [self.pulls if i < more else self.pulls + 1 + (i - more) // self.gather for i in range(len(left))]
        return all(pull - task.start <= self.max_lag for pull, task in zip(pulls, left, strict=True))

    def _await(self, task: _Task | None) -> None:
        """Until this task is done (None: any). A failure anywhere in the group ends the wait."""
        while True:
            self._raise_failures()
            if any(t.done_at is not None for t in self._tasks) if task is None else task.future.done():
                return
            wait([t.future for t in self._tasks if not t.future.done()], return_when=FIRST_COMPLETED)

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.future.done() and (error := task.future.exception()) is not None:
                raise error

    def drain(self) -> list[Any]:
        """The results of all tasks in flight, oldest first; the workers are idle then."""
        tasks = list(self._tasks)
        for task in tasks:
            self._await(task)
        self._tasks.clear()
        return [task.future.result() for task in tasks]

    def call(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        """Every worker's result of another method, in worker order; each argument is a sequence with one item per worker."""
        futures = [worker.submit(method, *(a[i] for a in arguments)) for i, worker in enumerate(self.workers)]
        return [future.result() for future in futures]

    def state(self) -> dict[str, Any]:
        """Plain data to continue from: awaits the tasks in flight and keeps their results."""
        for task in self._tasks:
            self._await(task)
        tasks = [{"worker": t.worker, "start": t.start, "result": t.future.result()} for t in self._tasks]
        return {"pulls": self.pulls, "tasks": tasks, "workers": self.call("state")}

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether all workers could continue exactly: never where it was of another number of workers."""
        if len(state["workers"]) != len(self.workers):
            return False
        self.pulls = state["pulls"]
        self._tasks = [_Task(t["worker"], t["start"], _finished(t["result"]), self._clock) for t in state["tasks"]]
        return all(self.call("restore", state["workers"]))

    def close(self) -> None:
        """Ends the workers."""
        for worker in self.workers:
            worker.close()


def _finished(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
