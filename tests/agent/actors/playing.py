"""Rollouts of a world that answers at random: any spaces, episodes that end in every way, in the form of a learner's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from modrl.agent.actors import Actor, Memory
from modrl.agent.batch import Batch
from modrl.tree import to_torch, tree_map


class Played(NamedTuple):
    """One rollout, and what acting said of each truncated slot's last observation."""

    batch: Batch
    final_value: torch.Tensor  # [K]
    after: Memory  # before the next rollout


def observe(space: gymnasium.Space, width: int):
    """Random observations [width, ...] as tensors."""
    return to_torch(tree_map(np.asarray, batch_space(space, width).sample()))


def stack(trees: Sequence):
    return tree_map(lambda *xs: torch.stack(xs), *trees)


def play(actor: Actor, rollouts: int = 3, steps: int = 6, width: int = 3, seed: int = 0, ends: float = 0.3) -> list[Played]:
    """Consecutive rollouts; an episode ends at a slot with probability `ends`, half of them truncated."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    space, memory = actor.observation_space, actor.initial_memory(width)
    batch_of = batch_space(space, width)
    batch_of.seed(seed)
    draw = lambda: to_torch(tree_map(np.asarray, batch_of.sample()))  # noqa: E731
    obs, first, played = draw(), torch.ones(width, dtype=torch.bool), []
    for _ in range(rollouts):
        start, rows, finals, final_values = memory, [], [], []
        for _ in range(steps):
            step = actor.act(obs, first, memory, generator)
            reward = torch.from_numpy(rng.normal(size=width).astype(np.float32) * 2)
            done, cut = rng.random(width) < ends, rng.random(width) < 0.5
            terminated, truncated = torch.from_numpy(done & ~cut), torch.from_numpy(done & cut)
            rows.append((obs, first, step.action, reward, terminated, truncated, step.behaviour))
            memory = step.memory._replace(last_reward=reward)
            if truncated.any():
                final = draw()
                goes_on = torch.zeros(width, dtype=torch.bool)
                final_values.append(actor.act(final, goes_on, memory, generator).behaviour["value"][truncated])
                finals.append(tree_map(lambda x, rows=truncated: x[rows], final))
            obs, first = draw(), torch.from_numpy(done)
        columns = [stack(column) for column in zip(*rows, strict=True)]
        batch = Batch(
            tree_map(lambda x, last: torch.cat([x, last[None]]), columns[0], obs), torch.cat([columns[1], first[None]]),
            columns[2], columns[3], columns[4], columns[5], torch.ones(steps, width, dtype=torch.bool),
            tree_map(lambda *xs: torch.cat(xs), *finals) if finals else None, start, columns[6],
            torch.zeros(width, dtype=torch.int64), torch.ones(width, dtype=torch.bool),
        )  # fmt: skip
        played.append(Played(batch, torch.cat(final_values) if finals else torch.zeros(0), memory))
    return played


def without_bootstrap(batch: Batch) -> Batch:
    """The same batch with S = T."""
    return batch._replace(obs=tree_map(lambda x: x[:-1], batch.obs), first=batch.first[:-1])


def vector(size: int = 4) -> spaces.Box:
    return spaces.Box(-1, 1, (size,), np.float32)


def pixels(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)
