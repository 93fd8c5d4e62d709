"""A run: the loop of training, with what surrounds it: rows, evaluations, checkpoints, interruption, a clean end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from modrl import checkpoint, spaces
from modrl.agent.optimizers import Optimizer
from modrl.config import public_name
from modrl.evaluator import Evaluator
from modrl.interrupt import Interrupt, Interrupted, listening
from modrl.loggers import boards
from modrl.messages import Event, Gradient, Weights
from modrl.metrics import Metrics, MetricsFile, Row
from modrl.profile import Profile
from modrl.rundir import RunDir, RunDirError, differences, now
from modrl.scheme.group import Group
from modrl.scheme.parts import Parts, is_small
from modrl.scheme.places.base import is_loss
from modrl.scheme.replica import ReplicaGroup
from modrl.scheme.scheme import Scheme
from modrl.scheme.stages import Stages
from modrl.scheme.update import Updater
from modrl.settings import Checkpointing, Evaluation, Logging, Ticker
from modrl.symptoms import Symptoms
from modrl.tree import to_torch

logger = logging.getLogger(__name__)

COLUMN_OF = {"restart": "faults/worker_restarts", "timeout": "faults/timeouts", "stranded": "faults/stranded_collectors"}
"""The column that counts each kind of event."""


@dataclass(frozen=True)
class Plan:
    """All that a run needs, resolved from an experiment."""

    steps: int
    parts: Parts
    optimizer: Optimizer.Config
    scheme: Scheme.Config
    evaluation: Evaluation | None
    checkpointing: Checkpointing
    logging: Logging
    action_repeat: int  # frames per agent step
    losses_per_batch: int
    initial: dict[str, torch.Tensor] | None = None  # weights of what acts that the run begins with; None: those of its seed


class Run:
    """One run in its directory. `resume` continues from the newest checkpoint in it."""

    def __init__(self, plan: Plan, directory: RunDir, info: dict[str, Any], resume: bool) -> None:
        self.plan = plan
        self.directory = directory
        self.info = info
        self.metrics = Metrics(plan.action_repeat, plan.parts.task_of())
        self.metrics.count(dict.fromkeys(plan.scheme.faults.columns, 0))
        self.updater = Updater(
            algorithm=plan.parts.make_algorithm(),
            optimizer=plan.optimizer,
            steps=plan.steps,
            record=self.metrics.record,
            replicas=plan.scheme.update != "central",
        )
        self.file = MetricsFile(directory.metrics)
        self.group: Group = Group([], "gradient")
        self.last_row: Row = {}
        self.evaluator: Evaluator | None = None
        if plan.evaluation is not None:
            self.evaluator = Evaluator(plan.evaluation, plan.parts, directory, self._policy)
        storage = plan.parts.storage
        self._storage = [public_name(storage.owner), storage.horizon]  # what workers' states are of
        self._resumed = resume
        self._best: dict[str, Any] | None = None  # of the run so far, where it is not evaluated any more
        self.other_settings: list[str] = []  # that differ from those of the run so far
        if plan.initial is not None:
            self.updater.optimizers.begin_with(plan.initial)
        self._workers = self._find_checkpoint() if resume else None
        self._profile: Profile | None = None
        self._symptoms = Symptoms(plan.parts.action_space, {entry["symptom"] for entry in info.get("symptoms", [])})

    def _find_checkpoint(self) -> list[Any] | None:
        """Continues from the newest whole checkpoint, and gives its workers' states; damaged ones are put aside, rows past it dropped."""
        found = checkpoint.newest(self.directory.checkpoints)
        if found is None:
            self.file.cut(0)
            if self.evaluator is not None:
                self.evaluator.cut(0)
            logger.warning("%s holds no checkpoint: the run begins anew", self.directory.path)
            return None
        logger.info("resuming from %s", found.path)
        try:
            self.updater.restore(found.tree["updater"])
        except ValueError as error:
            raise RunDirError(f"{found.path} is of another agent: {error}; resume with the settings that the run was started with") from error
        for path in found.damaged:
            logger.warning("skipping a damaged checkpoint, now %s", checkpoint.put_aside(path))
        self.metrics.restore(found.tree["metrics"])
        if self.evaluator is not None:
            self.evaluator.restore(found.tree)
            self.evaluator.cut(self.updater.env_steps)
        self._best = found.tree.get("best")
        self.file.cut(self.updater.updates)
        workers: list[Any] | None = found.tree["workers"]
        storage = found.tree.get("storage", self._storage)
        if workers is not None and storage != self._storage:
            logger.warning("the storage was %s of horizon %d: this one begins empty, with new episodes", *storage)
            return None
        return workers

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.updater.env_steps >= self.plan.steps

    @property
    def finished(self) -> bool:
        """Whether all steps are done, and all evaluations."""
        return self.done and (self.evaluator is None or not self.evaluator.owed)

    def stream(self) -> Generator[Row, None, None]:
        """Trains, row by row.

        Raises:
            RunDirError: another process trains in the same directory.
            WorkerError: a worker failed: an environment raised, a loss was not finite, …; nothing is left running.
            FloatingPointError: a gradient is not finite; it was not applied.
            OSError: the run's directory could not be written to.
            Interrupted: a signal asked for an end; a checkpoint was written if there was anything to keep.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.directory.locked())
            interrupt = stack.enter_context(listening())
            stack.enter_context(_torch_threads(self.plan, is_small(self.updater.algorithm.actor)))
            if self.evaluator is not None:
                stack.callback(self.evaluator.close)
            scheme = Scheme(self.plan.scheme, self.plan.parts, self.plan.optimizer)
            stack.callback(scheme.close)
            try:
                self.group = scheme.start()
                stack.callback(self.group.close)
                self._restore_workers()
                yield from self._train(interrupt)
            except GeneratorExit:  # the caller has seen enough: as if interrupted
                self._save(self._finish(self.updater.weights()))
                self._end("stopped")
                raise
            except Interrupted:
                raise
            except BaseException as error:
                lost = interrupt.signal is not None and is_loss(error)  # the signal was for workers too
                path = self._fail(error, lost or isinstance(error, KeyboardInterrupt))
                if lost and interrupt.signal is not None:
                    raise Interrupted(interrupt.signal, path) from error
                raise

    def abandon(self) -> None:
        """Ends a run that was made and never begun."""
        if self.info["status"] == "running":
            self._end("stopped")

    def _restore_workers(self) -> None:
        if self.updater.replicas and (self.updater.version or self.plan.initial is not None):
            state = {"steps": self.updater.version, **self.updater.optimizers.state()}
            self.group.call("adopt", [state] * len(self.group.workers))
        if not self._resumed:
            return
        states = self._workers
        exact = states is not None and len(states) == len(self.group.workers) and all(self.group.call("restore", states))
        self.info["restarts"].append(
            {
                "time": now(),
                "env_steps": self.updater.env_steps,
                "episodes": "continued" if exact else "new",
                "differs": differences(self.info),
                "settings": self.other_settings,
            }
        )
        self.info |= {"status": "running", "ended": None}
        self.directory.write_info(self.info)
        self._workers = None

    def change(self, parts: Parts, key: str, value: Any) -> None:
        """Goes on with the parts' settings of algorithm and storage, where one was changed, from each gradient worker's next batch on.

        Raises:
            WorkerError: a worker was lost. OSError: run.json could not be written.
        """
        self.plan = replace(self.plan, parts=parts)
        self.updater.algorithm.change(parts.algorithm, self.updater.progress)
        self.group.tell("change", parts.algorithm, parts.storage, parts.steps_per_round)
        self.info.setdefault("changes", []).append({"time": now(), "env_steps": self.updater.env_steps, "key": key, "value": value})
        self.directory.write_info(self.info)

    def _train(self, interrupt: Interrupt) -> Iterator[Row]:
        logged = boards(self.plan.logging, self.directory, self.updater.env_steps)
        with logged as board, _profile(self.directory, self.plan.parts.profile) as self._profile:
            clock, stages = _Clock(self.plan, self.updater.env_steps), self.plan.parts.stages("updater")
            weights = self.updater.weights()
            self.metrics.start(self.updater.env_steps)
            if self.evaluator is not None and self.evaluator.owed:  # the one that the run was stopped in
                self.evaluator.begin(self._learned(weights), self.updater.env_steps, lambda: bool(interrupt))
            while not self.done and not interrupt:
                gradients = self.group.pull(weights)
                self.metrics.count(self.group.counts())
                self._heed(self.group.events())
                stages.begin()
                weights = self.updater.apply(gradients)
                stages.lap("optimise")
                self.metrics.spend(stages.take())
                self._trace(gradients, stages)
                for gradient in gradients:
                    self._heed(gradient.events)
                if self.metrics.open or self.done or interrupt:  # in mid-batch; or the end follows
                    continue
                evaluates, due = clock.evaluates(self.updater.env_steps), clock.row.due(self.updater.env_steps)
                if evaluates or due:
                    yield self._row(weights, evaluates, board, interrupt)
                if not interrupt and clock.checkpoint.due(self.updater.env_steps):
                    weights = self._finish(weights)
                    self._save(weights)
            weights = self._finish(weights)
            if self.updater.version and (self.metrics.gradient_lags or not (self.last_row or self._resumed)):
                yield self._row(weights, True, board, interrupt, last=True)
            path = self._save(weights)
            if interrupt.signal is not None and not self.finished:
                self._end("interrupted")
                raise Interrupted(interrupt.signal, path)
            self._end("finished")

    def _trace(self, gradients: Sequence[Gradient], stages: Stages | None = None) -> None:
        """What workers did, and the updater, goes into the profile."""
        if self._profile is not None:
            laps = [lap for gradient in gradients for lap in gradient.laps]
            self._profile.write([*laps, *(stages.take_laps() if stages is not None else ())])

    def _heed(self, events: Sequence[Event]) -> None:
        """What befell workers goes into run.json and into the metrics."""
        for event in events:
            self.metrics.count({COLUMN_OF[event.kind]: 1, "faults/dropped_rollouts": event.dropped})
            entry = {"time": now(), "env_steps": self.updater.env_steps, **event._asdict()}
            self.info.setdefault("faults", []).append(entry)
        if events:
            self.directory.write_info(self.info)

    def _learned(self, weights: Weights) -> Weights:
        """The weights as they are now: those of the first gradient worker where each has its own."""
        if not self.updater.replicas:
            return weights
        self.updater.optimizers.restore(to_torch(self.group.ask(0, "learned")))
        return self.updater.learned()

    def _row(self, weights: Weights, evaluates: bool, board: Callable[[Row], None], interrupt: Interrupt, last: bool = False) -> Row:
        row = self.metrics.row(self.updater.env_steps, self.updater.updates)
        if self.evaluator is not None:
            if evaluates and not interrupt:
                self.evaluator.begin(self._learned(weights), self.updater.env_steps, lambda: bool(interrupt))
            if last:
                self.evaluator.wait()
            row |= self.evaluator.news()
        self.file.append(row)
        board(row)
        if told := self._symptoms.look(row, [reward for reward, _ in self.metrics.recent], self.updater.progress):
            self.info.setdefault("symptoms", []).extend({"time": now(), **entry} for entry in told)
            self.directory.write_info(self.info)
        self.last_row = row
        return row

    def _finish(self, weights: Weights) -> Weights:
        """No batch begins: what is in flight is applied, and every batch is learned from to its end."""
        alone = self.plan.scheme.gradient.alone

        def apply(gradients: Sequence[Gradient]) -> Weights:
            self._trace(gradients)
            for gradient in gradients if alone else ():
                self.updater.apply([gradient])
            return self.updater.weights() if alone else self.updater.apply(gradients)

        if gradients := self.group.drain():
            weights = apply(gradients)
        while gradients := [g for g in self.group.finish(weights) if g is not None]:
            weights = apply(gradients)
        return weights

    def _save(self, weights: Weights | None) -> Path | None:
        """A checkpoint of everything; after a failure (None), of what the updater holds."""
        if not self.updater.version:
            return None
        if weights is not None:
            self._learned(weights)
        elif isinstance(self.group, ReplicaGroup):
            if (learned := self.group.rescue()) is None:
                logger.warning("no replica is left: what was learned since the last checkpoint is lost")
                return None
            self.updater.optimizers.restore(to_torch(learned))
        if not self.updater.optimizers.finite():
            logger.warning("the weights are not finite: no checkpoint of them is written")
            return None
        workers = None if weights is None else self.group.call("state", [self.plan.checkpointing.storage] * len(self.group.workers))
        path = checkpoint.path_of(self.directory.checkpoints, self.updater.env_steps)
        if self.evaluator is not None and weights is not None:  # after a failure nothing is waited for
            self.evaluator.wait()
        tree = {
            "updater": self.updater.state(), "metrics": self.metrics.state(), "workers": workers, "storage": self._storage,
            "spaces": self._spaces(), **({"best": self._best, "owed": False} if self.evaluator is None else self.evaluator.state()),
        }  # fmt: skip
        checkpoint.save(path, tree)
        checkpoint.keep_newest(self.directory.checkpoints, self.plan.checkpointing.keep)
        return path

    def _policy(self, weights: Weights, env_steps: int) -> dict[str, Any]:
        """What a checkpoint that is only for acting holds."""
        return {"updater": {"acting": weights.acting, "env_steps": env_steps}, "spaces": self._spaces()}

    def _spaces(self) -> dict[str, Any]:
        parts = self.plan.parts
        return {"observation": spaces.to_data(parts.observation_space), "action": spaces.to_data(parts.action_space)}

    def _fail(self, error: BaseException, interrupted: bool) -> Path | None:
        """Keeps what can be kept: the disk itself may be what failed. Gives the checkpoint."""
        path = None
        with contextlib.suppress(OSError):
            self._heed(self.group.events())
        try:
            self._save_dump(error)
            path = self._save(None)
        except OSError as another:
            logger.warning("no checkpoint of the end could be written: %s", another)
        with contextlib.suppress(OSError):
            self._end("interrupted" if interrupted else "failed", error)
        return path

    def _save_dump(self, error: BaseException) -> None:
        """What a number that is not finite was computed from."""
        if (dump := getattr(error, "dump", None)) is None:
            return
        path = checkpoint.path_of(self.directory.dumps, self.updater.env_steps)
        checkpoint.save(path, {**dump, "worker": getattr(error, "worker", ""), "error": str(error)})
        logger.error("%s holds what it was computed from: `modrl replay %s` computes it again", path, path)

    def _end(self, status: str, error: BaseException | None = None) -> None:
        self.info |= {
            "status": status,
            "ended": now(),
            "env_steps": self.updater.env_steps,
            "error": None if error is None else f"{type(error).__name__}: {error}",
        }
        self.directory.write_info(self.info)


class _Clock:
    """When the next row, evaluation and checkpoint are due."""

    def __init__(self, plan: Plan, env_steps: int) -> None:
        self.row = Ticker(plan.logging.every, env_steps)
        self.checkpoint = Ticker(plan.checkpointing.every, env_steps)
        self.evaluation = Ticker(plan.evaluation.every, env_steps) if plan.evaluation else None

    def evaluates(self, env_steps: int) -> bool:
        """Whether an evaluation is due."""
        return self.evaluation is not None and self.evaluation.due(env_steps)


@contextlib.contextmanager
def _torch_threads(plan: Plan, small: bool) -> Iterator[None]:
    """This process's torch threads for the run; the caller's afterwards."""
    collection, gradient = plan.scheme.collection, plan.scheme.gradient
    beside = (collection.workers if collection.place != "here" and gradient.place != "ray" else 0) + (
        gradient.workers if gradient.place != "here" else 0
    )
    before = torch.get_num_threads()
    torch.set_num_threads(plan.parts.machine.own_threads(beside, small))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _profile(directory: RunDir, wanted: bool) -> Iterator[Profile | None]:
    """Where workers' laps are written down; each process of a run has a file of its own."""
    if not wanted:
        yield None
        return
    with contextlib.closing(Profile(directory.new_trace(), time.time())) as profile:
        yield profile
