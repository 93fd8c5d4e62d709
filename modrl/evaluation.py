"""Evaluation: whole episodes in environments of their own, raw reward, with the collector's stepping code."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from modrl.agent.actors.base import Actor
from modrl.envs.base import Envs
from modrl.tree import on_device, tree_map


class Result(NamedTuple):
    """Finished episodes: raw returns and lengths in agent steps."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean_return(self) -> float:
        """The mean of the returns."""
        return float(np.mean(self.returns))


def evaluate(
    actor: Actor,
    envs: Envs,
    episodes: int,
    *,
    greedy: bool,
    generator: torch.Generator,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[], None] = lambda: None,
) -> Result:
    """`episodes` episodes, the same number (give or take one) from each env: short episodes are not preferred.

    `stop` is asked, and `watch` called, after every step.
    """
    device = next(iter(actor.parameters())).device
    now = envs.reset()
    width = len(now.first)
    memory = actor.initial_memory(width)
    quota = {number: episodes // width + (index < episodes % width) for index, number in enumerate(envs.numbers)}
    done: list[tuple[int, float, int]] = []
    while any(quota.values()) and not stop():
        watch()
        obs, first, reward = on_device(tree_map(torch.from_numpy, (now.obs, now.first, now.reward)), device)
        step = actor.act(obs, first, memory._replace(last_reward=reward), generator, greedy)
        now = envs.step(actor.to_env(step.action))
        memory = step.memory
        for episode in now.episodes:
            if quota[episode.env]:
                quota[episode.env] -= 1
                done.append((episode.env, episode.reward, episode.length))
    done.sort(key=lambda item: item[0])
    return Result([reward for _, reward, _ in done], [length for _, _, length in done])
