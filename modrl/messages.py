"""The messages: everything that ever crosses from one worker to another.

    envs --Timestep--> Collector --Rollout--> GradientWorker --Gradient--> Updater
                          ^                        ^                          |
                          +-------- Weights -------+-------- Weights ---------+

Arrays are time first, batch second: T steps, B environments (columns).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

Tree: TypeAlias = Any
"""An array, or nested dicts and tuples of arrays."""


class Episode(NamedTuple):
    """One finished episode, counted by the environment's own end, in raw reward."""

    reward: float  # sum of the raw rewards
    length: int  # agent steps
    env: int  # global number of the environment
    info: dict[str, float]  # named entries of the environment's info at the end


class Event(NamedTuple):
    """Something that befell a worker."""

    kind: str  # restart: it was replaced; timeout: it gave no result in time; stranded: its inference server was lost
    worker: str
    cause: str
    dropped: int = 0  # unfinished tasks of its that were dropped


class Lap(NamedTuple):
    """One stage of a worker's work, for a profile."""

    worker: str
    stage: str
    start: float  # seconds since the epoch
    seconds: float
    rollouts: tuple[int, ...] = ()  # serial numbers of those that it made or used


class Frames(NamedTuple):
    """Observations [S, B, ...] that are stacks of n frames, each frame once: the stack of slot t is frames t to t+n-1.

    Where an episode begins, that is so for its newest frame alone; the others are in `earlier`.
    """

    frames: Any  # [S+n-1, B, ...]
    earlier: Any  # [K, n-1, ...] of the K slots from the second on whose `first` is set, in (t, b) order


class Rollout(NamedTuple):
    """What one collector saw in T steps of B environments: numpy arrays."""

    obs: Tree  # [T+1, B, ...], or Frames for each array: action[t] answers obs[t]; obs[T] is where the rollout stopped
    first: np.ndarray  # [T+1, B] bool: obs[t] opens an episode
    action: Tree  # [T, B, ...] as sampled, before any clipping to the space's bounds
    reward: np.ndarray  # [T, B] float32: paid for action[t]; raw
    terminated: np.ndarray  # [T, B] bool: nothing follows: bootstrap with zero
    truncated: np.ndarray  # [T, B] bool: cut short: bootstrap with the value of final_obs
    valid: np.ndarray | None  # [T, B] bool: False: filler, neither trained on nor counted. None: all valid
    final_obs: Tree | None  # [K, ...] last observations of the K truncated episodes, in (t, b) order
    memory: Tree  # [B, ...] before obs[0]: recurrent state, last action, last reward
    behaviour: dict[str, np.ndarray]  # [T, B, ...] what the acting policy said: log_prob, value
    version: int  # of the weights that acted on the first step
    episodes: tuple[Episode, ...] = ()  # those that ended in these T steps
    seconds: dict[str, float] = {}  # time spent, by stage: load, act, env, record
    counts: dict[str, float] = {}  # what else is worth counting, by column
    laps: tuple[Lap, ...] = ()  # for a profile
    logged: dict[str, np.ndarray] = {}  # [sum, number] of what components logged, by column


class Gradient(NamedTuple):
    """The gradient of one loss on one worker's share: sums over valid samples, so that shares add up to the whole."""

    tensors: dict[str, list[torch.Tensor]]  # by optimiser, in the order of its parameters
    weight: int  # number of valid samples summed over
    version: int  # of the weights it was computed on
    env_steps: int  # valid steps learned from for the first time
    last: bool  # the batch's last loss
    episodes: tuple[Episode, ...]  # that arrived since this worker's previous gradient
    policy_lags: tuple[int, ...]  # rounds, one per rollout learned from for the first time
    metrics: dict[str, float]  # sums over the valid samples, by name
    seconds: dict[str, float]  # time spent, by stage: those of its rollouts, and wait, transfer, batch, loss, backward
    counts: dict[str, float] = {}  # what else is worth counting, by column
    events: tuple[Event, ...] = ()  # what befell this worker's collectors
    said: dict[str, float] = {}  # of the optimiser, where the worker has its own
    laps: tuple[Lap, ...] = ()  # for a profile, those of its rollouts too
    statistics: dict[str, torch.Tensor] = {}  # sums over valid steps, by the statistic that takes them in
    logged: dict[str, np.ndarray] = {}  # [sum, number] of what components logged, by column, its rollouts' too


class Weights(NamedTuple):
    """One version of the weights. Its tensors are never written to again."""

    version: int  # losses answered so far: optimiser steps, and losses that were given up
    progress: float  # in [0, 1]: schedules read it
    acting: dict[str, Any]  # state of what acts: all that collectors need
    learning: dict[str, Any]  # state of what only learns: critics, targets

    def for_acting(self) -> Weights:
        """These weights without what collectors do not need."""
        return self._replace(learning={})
