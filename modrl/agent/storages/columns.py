"""Columns kept for replay: what the stacks of one have in common with the column before it is stored once."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import optree
import torch

from modrl.agent.batch import Batch, map_observations
from modrl.messages import Frames, Tree


class Columns:
    """The last `capacity` columns, oldest first, each a batch of one.

    Of a column of Frames, the first stack is the last one of the column that the same environment gave before. Whose that is
    shows by the frames themselves, so that dropped rollouts, replaced collectors and any order of arrival are no matter.
    """

    def __init__(self, capacity: int, columns: Iterable[Batch] = ()) -> None:
        self.capacity = capacity
        self._kept: deque[Batch] = deque()
        self._ends: dict[bytes, torch.Tensor] = {}  # the last stack of each column, by what it looks like
        self.extend(columns)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Batch:
        column = self._kept[index]
        return column._replace(obs=optree.tree_map(_whole, column.obs, is_leaf=_is_split))

    def extend(self, columns: Iterable[Batch]) -> None:
        """More columns, in whose memory nothing else may lie; the oldest ones make room."""
        for column in columns:
            self._kept.append(column._replace(obs=map_observations(self._split, column.obs)))
            if len(self._kept) > self.capacity:
                optree.tree_map(self._forget, self._kept.popleft().obs, is_leaf=_is_split)

    def _split(self, obs: Tree) -> Tree:
        if not isinstance(obs, Frames):
            return obs
        stack = obs.earlier.shape[1] + 1
        begin = obs.frames[:stack]
        shared = self._ends.pop(_digest(begin), None)
        rest = obs.frames[stack:]
        if shared is not None:
            rest = rest.clone()  # lets go of the memory that its beginning is in
        if len(rest) >= stack:
            self._ends[_digest(rest[-stack:])] = rest[-stack:]
        return _Split(begin if shared is None else shared, rest, obs.earlier)

    def _forget(self, obs: Tree) -> None:
        if isinstance(obs, _Split):
            self._ends.pop(_digest(obs.rest[-len(obs.begin) :]), None)


class _Split(NamedTuple):
    """Frames, whose beginning may be the end of others."""

    begin: torch.Tensor  # [n, 1, ...]
    rest: torch.Tensor  # [T, 1, ...]
    earlier: torch.Tensor


def _is_split(tree: Tree) -> bool:
    return isinstance(tree, _Split)


def _whole(obs: Tree) -> Tree:
    return Frames(torch.cat([obs.begin, obs.rest]), obs.earlier) if isinstance(obs, _Split) else obs


def _digest(frames: torch.Tensor) -> bytes:
    return hashlib.blake2b(frames.contiguous().numpy().tobytes(), digest_size=16).digest()
