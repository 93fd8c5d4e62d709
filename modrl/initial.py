"""The weights that a run begins with where they come from another run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from modrl import checkpoint
from modrl.agent.actors.base import Actor
from modrl.config import BadInput
from modrl.rundir import RunDir
from modrl.scheme.compute import State
from modrl.settings import InitFrom


def initial_weights(settings: InitFrom, actor: Actor) -> dict[str, torch.Tensor]:
    """The actor's state with the other run's weights in it, but for the parts that are skipped.

    Raises:
        BadInput: there is no such run or checkpoint, or its networks do not fit; names what does not.
    """
    directory = RunDir(Path(settings.run))
    try:
        directory.read_info()
        theirs = checkpoint.chosen(directory.checkpoints, settings.checkpoint)["updater"]["acting"]
    except BadInput as error:
        raise BadInput(f"init_from: {error}") from error
    own = State(actor).copy()
    for part in settings.skip:
        if not any(_within(name, part) for name in own):
            raise BadInput(f"init_from.skip: no part of the networks is called {part!r}; known are {', '.join(_parts(own))}")
    taken = {name: value for name, value in theirs.items() if not any(_within(name, part) for part in settings.skip)}
    needed = {name: value for name, value in own.items() if not any(_within(name, part) for part in settings.skip)}
    wrong = [
        *(f"{name} is there and not here" for name in taken if name not in needed),
        *(f"{name} is here and not there" for name in needed if name not in taken),
        *(f"{n} is {list(taken[n].shape)} there and {list(v.shape)} here" for n, v in needed.items() if n in taken and taken[n].shape != v.shape),
    ]
    if wrong:
        more = f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise BadInput(
            f"init_from: the weights of {directory.path} do not fit: {'; '.join(wrong[:6])}{more}. "
            "Make the networks alike, or leave parts as they are: init_from: {run: ..., skip: [policy, ...]}"
        )
    return own | taken


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _parts(names: Iterable[str]) -> list[str]:
    return sorted({name.partition(".")[0] for name in names})
