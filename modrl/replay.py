"""`modrl replay`: a loss that was not finite, computed again from what the run kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from modrl import checkpoint
from modrl.config import BadInput
from modrl.experiment import Experiment
from modrl.rundir import RunDir
from modrl.scheme.dump import where


class Replayed(NamedTuple):
    """What was computed again."""

    dump: Path
    worker: str  # whose loss it was
    where: str  # the first number that is not finite; empty: all are


def replay(path: str | Path, overrides: Sequence[str] = ()) -> Replayed:
    """Computes a loss again from a dump, or from the newest one in a run's directory.

    Raises:
        BadInput: there is no dump, it is not whole, or it does not fit the experiment.
    """
    dump = Path(path)
    if dump.is_dir():
        found = checkpoint.found(RunDir(dump).dumps)
        if not found:
            raise BadInput(f"{dump}: expected a dump, or a run's directory with one; a run that ends with a number that is not finite writes it")
        dump = found[-1]
    tree = checkpoint.load(dump)
    if not isinstance(tree, dict) or not tree.keys() & {"loss", "rollout"}:
        raise BadInput(f"{dump}: expected a dump of a run, this is a checkpoint or something else")
    directory = RunDir(dump.parent.parent)
    if not directory.experiment.exists():
        raise BadInput(f"{dump}: expected {directory.experiment} beside it: leave a dump in its run's directory, or copy both")
    parts = Experiment.load(directory.experiment, list(overrides)).plan().parts
    try:
        found_at = where(parts.make_algorithm(), tree, parts.compute())
    except ValueError as error:
        raise BadInput(f"{dump}: does not fit the experiment: {error}") from error
    return Replayed(dump, tree["worker"], found_at)
