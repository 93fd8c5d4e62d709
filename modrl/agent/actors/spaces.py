"""Spaces as actors see them: the leaves of nested ones, and discrete values as one-hot features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from modrl.messages import Tree

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys that lead to a leaf: `("camera", "left")`; () where the space is a leaf itself."""


def children(space: gymnasium.Space) -> list[tuple[str | int, gymnasium.Space]]:
    """The parts of a Dict in the order of sorted keys, of a Tuple by index."""
    if isinstance(space, spaces.Dict):
        return [(key, space.spaces[key]) for key in sorted(space.spaces)]
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return []


def leaf_spaces(space: gymnasium.Space, at: KeyPath = ()) -> Iterator[tuple[KeyPath, gymnasium.Space]]:
    """Every leaf with the keys that lead to it, in the order of sorted keys."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield at, space
    for key, part in children(space):
        yield from leaf_spaces(part, (*at, key))


def leaf_at(tree: Tree, path: KeyPath) -> torch.Tensor:
    """The leaf that a key path leads to.

    Raises:
        ValueError: the tree has no such key.
    """
    for depth, key in enumerate(path):
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            known = sorted(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__
            raise ValueError(f"observations lack {dotted(path[: depth + 1])!r}; there is {known}") from None
    leaf: torch.Tensor = tree
    return leaf


def dotted(path: KeyPath) -> str:
    """The path as settings write it: `camera.left`."""
    return ".".join(map(str, path))


def describe(space: gymnasium.Space) -> str:
    """The space in few words, without its bounds."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape} of {space.dtype}"
    return str(space) if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)) else type(space).__name__


def counts_and_starts(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """Of each part, the number of values and the lowest, both [parts]."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.array([space.start])
    return np.asarray(space.nvec).reshape(-1), np.asarray(space.start).reshape(-1)


class OneHot(nn.Module):
    """Integers [..., parts] as one-hot features, one part's after another's [..., size]."""

    part: torch.Tensor
    value: torch.Tensor

    def __init__(self, counts: np.ndarray, starts: np.ndarray) -> None:
        super().__init__()
        values = [np.arange(count) + start for count, start in zip(counts, starts, strict=True)]
        self.size = int(counts.sum())
        self.register_buffer("part", torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), persistent=False)
        self.register_buffer("value", torch.from_numpy(np.concatenate(values).astype(np.int64)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[..., self.part] == self.value).float()
