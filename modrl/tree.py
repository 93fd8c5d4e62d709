"""Nested arrays: dicts, tuples and named tuples of numpy arrays or torch tensors (a thin, typed door to optree)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
import torch

from modrl.messages import Tree


def tree_map(function: Callable[..., Any], *trees: Tree) -> Tree:
    """The tree of `function` of the leaves that stand at the same place; None stays None."""
    if isinstance(trees[0], (np.ndarray, torch.Tensor)):  # most trees are one array
        return function(*trees)
    return optree.tree_map(function, *trees)


def leaves(tree: Tree) -> list[Any]:
    """The leaves, in the order of sorted keys."""
    return optree.tree_leaves(tree)


def join(trees: Sequence[Tree]) -> Tree:
    """Trees of numpy arrays as one, rows after rows; a single one as it is."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *xs: np.concatenate(xs), *trees)


def to_numpy(tree: Tree) -> Tree:
    """Tensors as numpy arrays, without a copy where they lie on the CPU; other leaves stay."""
    return tree_map(lambda x: x.numpy(force=True) if isinstance(x, torch.Tensor) else x, tree)


def to_torch(tree: Tree) -> Tree:
    """Numpy arrays as tensors of their own (copied: they may be read-only); other leaves stay."""
    return tree_map(lambda x: torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x, tree)


def as_torch(tree: Tree) -> Tree:
    """Numpy arrays as tensors that share their memory; read-only ones are copied. Other leaves stay."""
    return tree_map(lambda x: torch.from_numpy(x if x.flags.writeable else np.array(x)) if isinstance(x, np.ndarray) else x, tree)


def on_device(tree: Tree, device: torch.device) -> Tree:
    """The tensors on `device`, those that are there already as they are."""
    return tree_map(lambda x: x if x.device == device else x.to(device), tree)
