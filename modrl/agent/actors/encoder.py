"""One torso for each leaf of the observation, and their features side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, cast

import gymnasium
import torch
from pydantic import PlainValidator, ValidationError
from pydantic_core import InitErrorDetails
from torch import nn

from modrl.agent.actors.spaces import KeyPath, dotted, leaf_at, leaf_spaces
from modrl.agent.actors.torsos import Torso
from modrl.config import BadInput, nearest, problem, public_name, resolve
from modrl.messages import Tree


def _choose(value: Any) -> Torso.Config | dict[str, Torso.Config]:
    """A torso, or torsos by key: what has no `name` but only blocks and names of torsos."""
    if not isinstance(value, Mapping) or "name" in value or not value:
        return cast(Torso.Config, resolve("torso", value))
    chosen: dict[str, Torso.Config] = {}
    problems: list[InitErrorDetails] = []
    for key, item in value.items():
        try:
            chosen[str(key)] = resolve("torso", item)
        except ValidationError as error:
            problems += [InitErrorDetails(type=problem(e["msg"]), loc=(str(key), *e["loc"]), input=e["input"]) for e in error.errors()]
        except ValueError as error:
            problems.append(InitErrorDetails(type=problem(str(error)), loc=(str(key),), input=item))
    if problems:
        raise ValidationError.from_exception_data("torso", problems)
    return chosen


TorsoChoice: TypeAlias = Annotated[
    Torso.Config | dict[str, Torso.Config], PlainValidator(_choose, json_schema_input_type=Torso.Config | dict[str, Torso.Config])
]
"""One torso for every leaf of the observation, or one for each, by the leaf's dotted path: `{camera.left: nature, speed: mlp}`."""


class Encoder(nn.Module):
    """Features of observations [N, ...], a leaf's after another's in the order of sorted keys."""

    def __init__(self, choice: Torso.Config | dict[str, Torso.Config], space: gymnasium.Space) -> None:
        super().__init__()
        leaves = dict(leaf_spaces(space))
        if not leaves:
            raise BadInput("the observation space is empty: an actor needs at least one observation")
        self.paths = list(leaves)
        chosen = dict.fromkeys(self.paths, choice) if isinstance(choice, Torso.Config) else _by_path(choice, self.paths)
        self.torsos = nn.ModuleList(_build(config, path, leaves[path]) for path, config in chosen.items())
        self.size = sum(torso.size for torso in self._torsos())

    def _torsos(self) -> list[Torso]:
        return cast(list[Torso], list(self.torsos))

    def forward(self, obs: Tree) -> torch.Tensor:
        parts = [_features(torso, leaf_at(obs, path)) for path, torso in zip(self.paths, self._torsos(), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def init_orthogonal(self, gain: float) -> None:
        """Gives every torso orthogonal weights."""
        for torso in self._torsos():
            torso.init_orthogonal(gain)


def _features(torso: Torso, leaf: torch.Tensor) -> torch.Tensor:
    """The features [N, size] of one leaf [N, ...] of the observations.

    Raises:
        BadInput: the torso gave something else, or wrote to the observations.
    """
    watched = not (torch.compiler.is_compiling() or leaf.is_inference())
    before = leaf._version if watched else 0
    features = torso(torso.prepare(leaf))
    if watched and leaf._version != before:
        raise BadInput(f"torso {public_name(type(torso))} writes to the observations that it is given: let it work on a copy, not in place")
    if not isinstance(features, torch.Tensor) or features.shape != (len(leaf), torso.size):
        given = list(features.shape) if isinstance(features, torch.Tensor) else f"a {type(features).__name__}"
        raise BadInput(f"torso {public_name(type(torso))} gave {given}, expected {[len(leaf), torso.size]}: observations × its `size`")
    return features


def _build(config: Torso.Config, path: KeyPath, space: gymnasium.Space) -> Torso:
    try:
        torso: Torso = config.build(space=space)
    except BadInput as error:
        raise BadInput(f"observation {dotted(path)!r}: {error}" if path else str(error)) from error
    if not isinstance(getattr(torso, "size", None), int):
        raise BadInput(f"torso {public_name(config.owner)} does not say how many features it gives: set self.size in its __init__")
    return torso


def _by_path(choice: dict[str, Torso.Config], paths: list[KeyPath]) -> dict[KeyPath, Torso.Config]:
    """The torso for each leaf.

    Raises:
        BadInput: a key names no leaf, or a leaf has no torso.
    """
    names = {dotted(path): path for path in paths}
    if names.keys() == {""}:
        raise BadInput(f"actor.torso: a torso for each of {', '.join(choice)} was given, but the observation has no keys: give one torso")
    for key in choice:
        if key not in names:
            meant = nearest(key, names)
            hint = f"did you mean {meant!r}?" if meant else f"known are {', '.join(names)}"
            raise BadInput(f"actor.torso.{key}: the observation has no such key; {hint}")
    missing = [name for name in names if name not in choice]
    if missing:
        raise BadInput(f"actor.torso: no torso for {', '.join(missing)}; give one for each key (auto chooses by the observation)")
    return {path: choice[name] for name, path in names.items()}
