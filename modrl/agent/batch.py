"""Batches: rollouts side by side, as torch tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from modrl.messages import Rollout, Tree
from modrl.tree import as_torch, leaves, tree_map


class Batch(NamedTuple):
    """T steps of B columns for the algorithm. S is T+1 with the bootstrap observation, or T without it."""

    obs: Tree  # [S, B, ...] action[t] answers obs[t]
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
        slots, envs = self.truncated.nonzero(as_tuple=True)
        new_slots, new_envs = self.truncated[:, index].nonzero(as_tuple=True)
        row = {key: i for i, key in enumerate(zip(slots.tolist(), envs.tolist(), strict=True))}
        wanted = [row[t, b] for t, b in zip(new_slots.tolist(), index[new_envs].tolist(), strict=True)]
        final_obs = None if self.final_obs is None or not wanted else tree_map(lambda x: x[wanted], self.final_obs)

        def across(tree: Tree) -> Tree:
            return tree_map(lambda x: x[:, index], tree)

        def along(tree: Tree) -> Tree:
            return tree_map(lambda x: x[index], tree)

        return Batch(
            across(self.obs), across(self.first), across(self.action), across(self.reward), across(self.terminated),
            across(self.truncated), across(self.valid), final_obs, along(self.memory), across(self.behaviour),
            along(self.version), along(self.fresh),
        )  # fmt: skip


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
    assert agrees([rollout.obs, rollout.first], steps + 1, width), f"obs, first: expected [T+1, B] = [{steps + 1}, {width}]"
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

    def join(field: str, dim: int) -> Tree:
        return tree_map(lambda *xs: torch.cat(xs, dim), *[getattr(batch, field) for batch in batches])

    across = {name: join(name, 1) for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "behaviour")}
    along = {name: join(name, 0) for name in ("memory", "version", "fresh")}
    return Batch(**across, **along, final_obs=_join_final(batches))


def _join_final(batches: Sequence[Batch]) -> Tree | None:
    """The final observations of all batches, brought into (t, b) order."""
    owners = [batch for batch in batches if batch.final_obs is not None]
    if not owners:
        return None
    offset, keys = 0, []
    for batch in batches:
        slots, envs = batch.truncated.nonzero(as_tuple=True)
        keys += [(t, b + offset) for t, b in zip(slots.tolist(), envs.tolist(), strict=True)]
        offset += batch.reward.shape[1]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return tree_map(lambda *xs: torch.cat(xs)[order], *[batch.final_obs for batch in owners])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    moved: Batch = batch if device.type == "cpu" else tree_map(lambda x: x.to(device, non_blocking=True), batch)
    return moved
