"""Evaluation: whole episodes in environments of their own, raw reward, with the collector's stepping code.

Episode k of an evaluation begins from a seed of its own, whatever plays it and however many are played side by side: policies
that are evaluated with one `seed` meet the same episodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from modrl.agent.actors.base import Actor
from modrl.envs.base import Envs
from modrl.seeding import Role, generator, seed_of
from modrl.tree import on_device, tree_map


class Result(NamedTuple):
    """Finished episodes, in order: raw returns, lengths in agent steps, and the seeds that their environments were reset with."""

    returns: list[float]
    lengths: list[int]
    seeds: list[int]

    @property
    def mean_return(self) -> float:
        """The mean of the returns."""
        return float(np.mean(self.returns))


def episode_seeds(seed: int, episodes: int) -> list[int]:
    """The seeds that an evaluation's environments are reset with."""
    return [seed_of(seed, Role.EVAL_ENV, number) for number in range(episodes)]


def evaluate(
    actor: Actor,
    config: Envs.Config,
    episodes: int,
    *,
    seed: int,
    greedy: bool,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[int, Envs], None] = lambda episode, envs: None,
) -> Result:
    """Plays `episodes` episodes, at most `config.count` side by side: those that were begun, however long each takes.

    `stop` is asked after every step; `watch` is called with the number of the first episode of those side by side before each
    step that belongs to it, and with their environments.
    """
    chance = generator(seed, Role.EVAL_ACTION, 0, next(iter(actor.parameters())).device)
    result = Result([], [], [])
    width = min(config.count, episodes)
    seeds = episode_seeds(seed, episodes)
    for start in range(0, episodes, width):
        wave = seeds[start : start + width]
        envs: Envs = config.build(numbers=range(len(wave)), seeds=wave, training=False)
        with contextlib.closing(envs):
            for number, reward, length in sorted(_play(actor, envs, greedy, chance, stop, lambda: watch(start, envs))):  # noqa: B023
                result.returns.append(reward)
                result.lengths.append(length)
                result.seeds.append(wave[number])
        if stop():
            break
    return result


def _play(
    actor: Actor, envs: Envs, greedy: bool, chance: torch.Generator, stop: Callable[[], bool], watch: Callable[[], None]
) -> Iterator[tuple[int, float, int]]:
    """Each environment's first episode: its number, return and length, as they end."""
    now = envs.reset()
    memory = actor.initial_memory(len(now.first))
    playing = set(envs.numbers)
    while playing and not stop():
        if envs.numbers[0] in playing:
            watch()
        obs, first, reward = on_device(tree_map(torch.from_numpy, (now.obs, now.first, now.reward)), chance.device)
        step = actor.act(obs, first, memory._replace(last_reward=reward), chance, greedy)
        now = envs.step(actor.to_env(step.action))
        memory = step.memory
        for episode in now.episodes:
            if episode.env in playing:
                playing.remove(episode.env)
                yield episode.env, episode.reward, episode.length
