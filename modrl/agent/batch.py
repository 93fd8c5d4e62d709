"""Batches: rollouts side by side, as torch tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree
import torch

from modrl.messages import Frames, Rollout, Tree
from modrl.tree import as_torch, leaves, tree_map


class Batch(NamedTuple):
    """T steps of B columns for the algorithm. S is T+1 with the bootstrap observation, or T without it."""

    obs: Tree  # [S, B, ...], in a storage also Frames: action[t] answers obs[t]
    first: torch.Tensor  # [S, B] bool: obs[t] opens an episode
    action: Tree  # [T, B, ...] as sampled
    reward: torch.Tensor  # [T, B] float32, raw
    terminated: torch.Tensor  # [T, B] bool
    truncated: torch.Tensor  # [T, B] bool
    valid: torch.Tensor  # [T, B] bool: False: filler
    final_obs: Tree | None  # [K, ...] of the K truncated slots, in (t, b) order
    memory: Tree  # [B, ...] before obs[0]
    behaviour: dict[str, torch.Tensor]  # [T, B, ...] log_prob, value
    version: torch.Tensor  # [B] int64: of the weights that acted
    fresh: torch.Tensor  # [B] bool: learned from for the first time

    def columns(self, index: torch.Tensor) -> Batch:
        """The columns with these numbers [N], in this order."""

        def across(tree: Tree) -> Tree:
            return tree_map(lambda x: x.index_select(1, index), tree)

        def along(tree: Tree) -> Tree:
            return tree_map(lambda x: x.index_select(0, index), tree)

        def rows(tree: Tree, where: torch.Tensor) -> Tree:
            """Of a row for each place of [T, B], those of the columns."""
            wanted = _numbers(where)[:, index][where[:, index]]
            return tree_map(lambda x: x.index_select(0, wanted), tree)

        def observed(obs: Tree) -> Tree:
            return Frames(across(obs.frames), rows(obs.earlier, self.first[1:])) if isinstance(obs, Frames) else across(obs)

        truncated = across(self.truncated)
        return Batch(
            map_observations(observed, self.obs), across(self.first), across(self.action), across(self.reward), across(self.terminated),
            truncated, across(self.valid), rows(self.final_obs, self.truncated) if self.final_obs is not None and truncated.any() else None,
            along(self.memory), across(self.behaviour), along(self.version), along(self.fresh),
        )  # fmt: skip


def _is_frames(tree: Tree) -> bool:
    return isinstance(tree, Frames)


def map_observations(function: Callable[..., Any], *trees: Tree) -> Tree:
    """The tree of `function` of the arrays, or Frames, that stand at the same place."""
    return optree.tree_map(function, *trees, is_leaf=_is_frames)


def _numbers(where: torch.Tensor, start: int = 0) -> torch.Tensor:
    """The places of [T, B] that are True, counted row by row."""
    return (where.flatten().cumsum(0) - 1 + start).view_as(where)


def from_rollout(rollout: Rollout) -> Batch:
    """The rollout as tensors, which are the rollout's own memory; arrays from an object store are read-only, and are copied."""
    steps, width = rollout.reward.shape
    _assert_shapes(rollout, steps, width)
    valid = np.ones_like(rollout.terminated) if rollout.valid is None else rollout.valid
    parts = (
        rollout.obs, rollout.first, rollout.action, rollout.reward, rollout.terminated, rollout.truncated, valid, rollout.final_obs,
        rollout.memory, rollout.behaviour, torch.full((width,), rollout.version, dtype=torch.int64), torch.ones(width, dtype=torch.bool),
    )  # fmt: skip
    return Batch(*as_torch(parts))


def _assert_shapes(rollout: Rollout, steps: int, width: int) -> None:
    def agrees(tree: Tree, *shape: int) -> bool:
        return all(leaf.shape[: len(shape)] == shape for leaf in leaves(tree))

    per_step = [rollout.action, rollout.terminated, rollout.truncated, rollout.valid, rollout.behaviour]
    assert agrees(rollout.first, steps + 1, width), f"first: expected [T+1, B] = [{steps + 1}, {width}]"
    for obs in optree.tree_leaves(rollout.obs, is_leaf=_is_frames):
        more = obs.earlier.shape[1] if isinstance(obs, Frames) else 0
        assert agrees(obs.frames if more else obs, steps + 1 + more, width), f"obs: expected [T+1, B] = [{steps + 1}, {width}]"
        assert not more or len(obs.earlier) == rollout.first[1:].sum(), "obs: expected earlier frames for each episode that begins"
    assert agrees(per_step, steps, width), f"action, terminated, truncated, valid, behaviour: expected [T, B] = [{steps}, {width}]"
    assert agrees(rollout.memory, width), f"memory: expected [B] = [{width}]"
    truncated = int(rollout.truncated.sum())
    assert agrees(rollout.final_obs, truncated), f"final_obs: expected one of each of {truncated} truncated episodes"
    assert not truncated or rollout.final_obs is not None, f"final_obs: missing for {truncated} truncated episodes"


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The batches side by side: one more column after another."""
    if len(batches) == 1:
        return batches[0]
    if not all("rollout" in batch.behaviour for batch in batches):  # a profile's serial numbers; a run may go on with or without it
        batches = [batch._replace(behaviour={k: v for k, v in batch.behaviour.items() if k != "rollout"}) for batch in batches]

    def across(*trees: Tree) -> Tree:
        return tree_map(lambda *xs: torch.cat(xs, 1), *trees)

    def along(*trees: Tree) -> Tree:
        return tree_map(lambda *xs: torch.cat(xs, 0), *trees)

    def rows(trees: Sequence[Tree], masks: Sequence[torch.Tensor]) -> Tree:
        """Rows for the places of masks that will stand side by side."""
        starts = np.cumsum([0, *(int(mask.sum()) for mask in masks)])
        numbers = torch.cat([_numbers(mask, int(start)) for mask, start in zip(masks, starts, strict=False)], 1)
        return tree_map(lambda x: x.index_select(0, numbers[torch.cat(tuple(masks), 1)]), along(*trees))

    def observed(*parts: Tree) -> Tree:
        if not isinstance(parts[0], Frames):
            return across(*parts)
        return Frames(across(*[part.frames for part in parts]), rows([part.earlier for part in parts], [batch.first[1:] for batch in batches]))

    final = [(batch.final_obs, batch.truncated) for batch in batches]
    some = [obs for obs, _ in final if obs is not None]
    joined = {
        name: across(*[getattr(batch, name) for batch in batches])
        for name in ("first", "action", "reward", "terminated", "truncated", "valid", "behaviour")
    }
    joined |= {name: along(*[getattr(batch, name) for batch in batches]) for name in ("memory", "version", "fresh")}
    return Batch(
        obs=map_observations(observed, *[batch.obs for batch in batches]),
        final_obs=rows(some, [mask for _, mask in final]) if some else None, **joined,
    )  # fmt: skip


def stacks(obs: Frames, first: torch.Tensor) -> torch.Tensor:
    """The stacks [S, B, ...] of frames, in the frames' own memory where no episode begins within: not to be written to.

    `first` [S, B] says where episodes begin.
    """
    count = obs.earlier.shape[1] + 1
    laid_out = obs.frames.unfold(0, count, 1).movedim(-1, 2)  # [S, B, n, rows, ...]
    if len(obs.earlier):
        laid_out = laid_out.contiguous()
        slots, columns = first[1:].nonzero(as_tuple=True)
        for later in range(count - 2, -1, -1):  # an episode that begins later overwrites what is left of the one before
            inside = slots + 1 + later < len(first)
            laid_out[slots[inside] + 1 + later, columns[inside], : count - 1 - later] = obs.earlier[inside, later:]
    return laid_out.flatten(2, 3)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch as an algorithm reads it: on its device, stacks of frames laid out.

    From pinned memory a GPU fetches it while this thread goes on.
    """
    moved: Batch = batch if device.type == "cpu" else tree_map(lambda x: x.pin_memory().to(device, non_blocking=True), batch)
    return moved._replace(obs=map_observations(lambda x: stacks(x, moved.first) if isinstance(x, Frames) else x, moved.obs))
