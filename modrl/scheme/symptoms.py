"""Faults that raise nothing and only keep an agent from learning, as far as a batch and its loss show them.

They are looked for in batches 1, 2, 4, 8, …: a look costs as much as a batch or two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.batch import Batch
from modrl.tree import leaves, tree_map

SATURATED = 0.9
"""Share of a batch's actions at the bounds of their space from which on they count as saturated."""
AT_BOUND = 0.01
"""Share of the space's width within which an action is at a bound."""
DOMINATES = 100.0
"""How many times longer the value loss's gradient is than that of all other terms, on the weights that both move."""


def due(batches: int) -> bool:
    """Whether this batch, counted from 1, is looked at."""
    return batches & (batches - 1) == 0


def in_batch(algorithm: Algorithm, batch: Batch) -> Counter[str]:
    """What is wrong with a batch's data, by column of the metrics."""
    found = Counter[str]()
    if batch.first.numel() > 1 and all(_constant(leaf) for leaf in leaves(batch.obs)):
        found["symptoms/constant_observations"] += 1
    shares = list(_at_bounds(algorithm, batch))
    if shares and np.mean(np.concatenate(shares)) > SATURATED:
        found["symptoms/saturated_actions"] += 1
    return found


def in_loss(loss: Loss, parameters: list[torch.nn.Parameter]) -> Counter[str]:
    """What is wrong with a loss, by column of the metrics; its graph is kept."""
    if "value" not in loss.terms or len(loss.terms) < 2:
        return Counter()
    names, sums = loss._replace(metrics={}).summed()
    at = names.index("loss/value")
    value = torch.autograd.grad(sums[at], parameters, retain_graph=True, allow_unused=True)
    others = torch.autograd.grad(sums.sum() - sums[at], parameters, retain_graph=True, allow_unused=True)
    shared = [(v, o) for v, o in zip(value, others, strict=True) if v is not None and o is not None]
    if not shared:
        return Counter()
    long, short = (torch.stack([part[i].float().square().sum() for part in shared]).sum().sqrt().item() for i in (0, 1))
    return Counter({"symptoms/value_dominates": 1}) if long > DOMINATES * short > 0 else Counter()


def _constant(leaf: torch.Tensor) -> bool:
    return bool((leaf == leaf[:1, :1]).all())


def _at_bounds(algorithm: Algorithm, batch: Batch) -> Iterator[np.ndarray]:
    """Whether each entry of the actions is at a bound, for each Box of floats with bounds among them."""
    boxes = list(_boxes(algorithm.actor.action_space))
    if not boxes:
        return
    actions = algorithm.actor.to_env(tree_map(lambda x: x.flatten(0, 1), batch.action))
    valid = batch.valid.flatten().numpy(force=True)
    for path, box in boxes:
        action = np.asarray(reduce(lambda part, key: part[key], path, actions))[valid]
        margin = AT_BOUND * (box.high - box.low)
        yield ((action <= box.low + margin) | (action >= box.high - margin)).ravel()


def _boxes(space: spaces.Space, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], spaces.Box]]:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded():
        yield at, space
    inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces) if isinstance(space, spaces.Tuple) else ()
    for key, part in inner:
        yield from _boxes(part, (*at, key))
