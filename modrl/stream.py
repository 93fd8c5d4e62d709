"""A run row by row, with settings of its algorithm and storage that can be changed between two rows."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import inspect
import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

from modrl.agent.algorithms.base import Algorithm
from modrl.agent.storages.base import Storage
from modrl.config import BadInput, ConfigError, Document, Problem, merge, to_yaml, validate
from modrl.metrics import Row
from modrl.run import Run
from modrl.scheme.places.base import WorkerError

if TYPE_CHECKING:
    from modrl.experiment import Experiment

logger = logging.getLogger(__name__)


class Stream(Iterator[Row]):
    """The rows of a run that trains as they are taken.

    The run ends with a checkpoint when the stream is closed: by `close`, at the end of a `with` block, when nothing refers to
    the stream any more, or else when the process ends.
    """

    def __init__(self, experiment: Experiment, run: Run | None) -> None:
        self._experiment = experiment
        self._run = run  # None: it was finished already
        self._rows = _nothing() if run is None else run.stream()
        self._at_exit: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __next__(self) -> Row:
        row = next(self._rows)
        if self._at_exit is None:  # after Ray has said what it does at exit, which comes last then
            self._at_exit = _closing(weakref.ref(self))
        return row

    def close(self) -> None:
        """Ends the run with a checkpoint, if it has not ended."""
        begun = inspect.getgeneratorstate(self._rows) != inspect.GEN_CREATED
        self._rows.close()
        if self._run is not None and not begun:
            self._run.abandon()
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)

    def change(self, path: str, value: Any) -> None:
        """Changes a setting of the algorithm or the storage on all gradient workers, from the next batch on; the value may be a schedule.

        Raises:
            BadInput: the run has ended or is busy, there is no such setting, or it cannot be changed so; the run goes on unchanged.
            WorkerError, OSError: the run has ended.
        """
        run, state = self._run, inspect.getgeneratorstate(self._rows)
        if run is None or state == inspect.GEN_CLOSED:
            raise BadInput(f"{path}: cannot be changed any more: the run has ended")
        if state == inspect.GEN_RUNNING:
            raise BadInput(f"{path}: can be changed only between two rows, by the thread that takes them")
        after = changed(self._experiment, run.updater.algorithm, run.updater.progress, path, value)
        steps_per_round = after.steps_per_round(run.plan.losses_per_batch)
        parts = dataclasses.replace(run.plan.parts, algorithm=after.algorithm, storage=after.storage, steps_per_round=steps_per_round)
        self._experiment = after
        try:
            run.change(parts, path, _at(after.to_dict(), path))
            run.directory.write_experiment(to_yaml(after.to_dict()))
        except (WorkerError, OSError) as error:
            self._rows.throw(error)


def _closing(stream: weakref.ref[Stream]) -> Callable[[], None]:
    """Closes the stream when the process ends, as long as it is there."""

    def close() -> None:
        if (left := stream()) is not None:
            left.close()

    return atexit.register(close)


def _nothing() -> Generator[Row, None, None]:
    yield from ()


def changed(experiment: Experiment, algorithm: Algorithm, progress: float, path: str, value: Any) -> Experiment:
    """The experiment with a setting changed, of those that can be in mid-run; `algorithm`: the one that learns.

    Raises:
        ConfigError: there is no such setting, the value is not valid, or the setting cannot change.
    """
    path = str(path)
    keys = path.split(".")
    settings = {"algorithm": experiment.algorithm, "storage": experiment.storage}.get(keys[0])
    if settings is None or len(keys) == 1:
        raise _refused(path, "cannot change in mid-run; what can are settings of the algorithm and the storage, algorithm.KEY and storage.KEY")
    owner, known = settings.owner, type(settings).model_fields.keys()
    assert issubclass(owner, (Algorithm, Storage))
    changeable = known - owner.fixed if issubclass(owner, Algorithm) else known & owner.changeable
    if keys[1] == "name" or keys[1] in known - changeable:
        raise _refused(path, f"cannot change in mid-run; of this {keys[0]}'s settings can: {', '.join(sorted(changeable)) or 'none'}")
    nested = reduce(lambda inner, key: {key: inner}, reversed(keys), value)
    after = validate(type(experiment), merge(Document(experiment.to_dict(), {}), Document(nested, {})), "the change")
    tried = copy.copy(algorithm)
    try:
        tried.change(after.algorithm, progress)
    except ValueError as error:
        raise ConfigError([Problem((), str(error))], "the change") from None
    if tried.num_losses != algorithm.num_losses:
        raise _refused(path, f"cannot change in mid-run: each batch would make {tried.num_losses} losses instead of {algorithm.num_losses}")
    try:
        tried.check_share(after.storage.horizon, after.storage.batch // after.scheme.gradient.workers)
    except ValueError as error:
        raise ConfigError([Problem((), str(error))], "the change") from None
    return after


def _refused(path: str, why: str) -> ConfigError:
    return ConfigError([Problem(tuple(path.split(".")), why)], "the change")


def warn_of_lost_changes(experiment: Experiment, changes: Sequence[Mapping[str, Any]]) -> None:
    """Says which changes of a run's earlier processes do not hold in the experiment that it is resumed with."""
    for key, entry in {change["key"]: change for change in changes}.items():
        if (now := _at(experiment.to_dict(), key)) != entry["value"]:
            logger.warning("resuming with %s = %s; the run had changed it to %s, at %d env steps", key, now, entry["value"], entry["env_steps"])


def _at(data: Any, path: str) -> Any:
    """The value at a key path; None where there is no such key."""
    return reduce(lambda part, key: part.get(key) if isinstance(part, dict) else None, path.split("."), data)
