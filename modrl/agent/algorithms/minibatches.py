"""Minibatches: a batch dealt out at random, by whole columns or by single steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import optree
import torch

from modrl.agent.actors.base import Memory
from modrl.agent.batch import Batch
from modrl.messages import Tree
from modrl.tree import tree_map


def available(steps: int, columns: int, count: int, *, by_column: bool) -> int:
    """How many columns or steps there are to deal out in `count` pieces.

    Raises:
        ValueError: fewer than pieces.
    """
    there = columns if by_column else steps * columns
    if there < count:
        kind = "columns (the actor is recurrent)" if by_column else "steps"
        raise ValueError(f"algorithm.minibatches: must be at most {there}, the {kind} of each gradient worker's share of a batch, got {count}")
    return there


def pieces(batch: Batch, count: int, *, by_column: bool, generator: torch.Generator | None) -> Sequence[torch.Tensor]:
    """Numbers of the columns, or of the steps counted row by row, in `count` random pieces of (nearly) equal size.

    Of the steps only valid ones are dealt out, unless there are fewer of them than pieces.

    Raises:
        ValueError: there are more pieces than columns or steps.
    """
    steps, columns = batch.reward.shape
    index = torch.arange(available(steps, columns, count, by_column=by_column), device=batch.reward.device)
    valid = batch.valid.flatten()
    if not by_column and int(valid.sum()) >= count:
        index = index[valid]
    device = generator.device if generator is not None else torch.device("cpu")
    order = torch.randperm(len(index), generator=generator, device=device)
    return index[order.to(index.device)].tensor_split(count)


def minibatches(batch: Batch, count: int, *, by_column: bool, generator: torch.Generator | None) -> Iterator[Batch]:
    """The batch in `count` random pieces, without what only bootstraps: columns [T, N] or single steps [1, N]. All are gathered at once.

    Raises:
        ValueError: there are more pieces than columns or steps.
    """
    index = pieces(batch, count, by_column=by_column, generator=generator)
    return split(take(batch, torch.cat(list(index)), by_column=by_column), [len(piece) for piece in index])


def split(batch: Batch, sizes: Sequence[int]) -> Iterator[Batch]:
    """The batch's columns in pieces of these sizes, in its own memory; they bootstrap from nothing."""

    def apart(tree: Tree, dim: int) -> Iterator[Tree]:
        arrays, form = optree.tree_flatten(tree)
        return map(form.unflatten, zip(*(array.split(sizes, dim) for array in arrays), strict=True))

    across = apart((batch.obs, batch.first, batch.action, batch.reward, batch.terminated, batch.truncated, batch.valid, batch.behaviour), 1)
    along = apart((batch.memory, batch.version, batch.fresh), 0)
    for steps, (memory, version, fresh) in zip(across, along, strict=True):
        obs, first, action, reward, terminated, truncated, valid, behaviour = steps
        yield Batch(obs, first, action, reward, terminated, truncated, valid, None, memory, behaviour, version, fresh)


def take(batch: Batch, index: torch.Tensor, *, by_column: bool) -> Batch:
    """The columns or steps with these numbers, without what only bootstraps: S is T."""
    return without_bootstrap(batch).columns(index) if by_column else single_steps(batch, index)


def without_bootstrap(batch: Batch) -> Batch:
    """The batch's T steps alone."""
    steps = len(batch.reward)
    return batch._replace(obs=tree_map(lambda x: x[:steps], batch.obs), first=batch.first[:steps], final_obs=None)


def single_steps(batch: Batch, index: torch.Tensor) -> Batch:
    """N steps side by side as [1, N], each with its own last action and last reward."""
    steps, columns = batch.reward.shape
    column = index % columns

    def chosen(tree: Tree) -> Tree:
        return tree_map(lambda x: x[:steps].flatten(0, 1).index_select(0, index).unsqueeze(0), tree)

    def before(initial: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
        return torch.cat([initial.to(later.dtype).unsqueeze(0), later[:-1]]).flatten(0, 1).index_select(0, index)

    memory = Memory(
        tree_map(lambda x: x.index_select(0, column), batch.memory.state),
        tree_map(before, batch.memory.last_action, batch.action),
        before(batch.memory.last_reward, batch.reward),
    )
    return Batch(
        chosen(batch.obs), chosen(batch.first), chosen(batch.action), chosen(batch.reward), chosen(batch.terminated), chosen(batch.truncated),
        chosen(batch.valid), None, memory, chosen(batch.behaviour), batch.version[column], batch.fresh[column],
    )  # fmt: skip
