"""Observations of floats, centred and scaled by the statistics of those learned from."""

from __future__ import annotations

import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from modrl.agent.actors.spaces import KeyPath, leaf_at, leaf_spaces
from modrl.agent.statistics import Running, sums_over
from modrl.config import BadInput
from modrl.messages import Tree


class Normalizer(nn.Module):
    """Statistics for each leaf of the observation that is a Box of floats; images of bytes and discrete values stay."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        leaves = [(path, leaf) for path, leaf in leaf_spaces(space) if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f"]
        if not leaves:
            raise BadInput("actor.normalize_observations: has no effect: no part of the observation is a Box of floats; leave it out")
        self.paths = [path for path, _ in leaves]
        self.parts = nn.ModuleList(Running(leaf.shape) for _, leaf in leaves)

    def forward(self, obs: Tree) -> Tree:
        """The observations [..., B, ...] as networks see them."""
        for path, part in zip(self.paths, self.parts, strict=True):
            obs = _replaced(obs, path, part(leaf_at(obs, path)))
        return obs

    def measure(self, obs: Tree, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        """The sums over the `valid` [T, B] of observations [T+1, B, ...], by the statistic's name here."""
        return {f"parts.{i}": sums_over(leaf_at(obs, path)[: len(valid)], valid) for i, path in enumerate(self.paths)}


def _replaced(tree: Tree, path: KeyPath, leaf: torch.Tensor) -> Tree:
    """The tree with another leaf at the path."""
    if not path:
        return leaf
    key, *rest = path
    inner = _replaced(tree[key], tuple(rest), leaf)
    if isinstance(tree, dict):
        return {**tree, key: inner}
    return tuple(inner if index == key else part for index, part in enumerate(tree))
