"""The collector: steps environments with an actor and cuts the experience into rollouts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from modrl.agent.actors.base import Actor, Memory
from modrl.envs.base import Envs, Timestep
from modrl.messages import Episode, Rollout, Tree, Weights
from modrl.scheme.compute import Compute, load
from modrl.seeding import restore
from modrl.tree import to_numpy, to_torch, tree_map


class Collector:
    """Acts on a snapshot of the weights, which changes only between rollouts."""

    def __init__(self, *, envs: Envs, actor: Actor, horizon: int, generator: torch.Generator, compute: Compute) -> None:
        self.envs = envs
        self.actor = actor.to(compute.device).eval()
        self.horizon = horizon
        self.generator = generator
        self.compute = compute
        self.version = -1
        self.now: Timestep | None = None  # what the next action answers
        self.memory: Memory | None = None

    def collect(self, weights: Weights) -> Rollout:
        """The next `horizon` steps [T, B] of this collector's environments, acted on these weights."""
        if weights.version != self.version:
            load(self.actor, weights.acting)
            self.version = weights.version
        if self.now is None or self.memory is None:
            self.now = self.envs.reset()
            self.memory = self.actor.initial_memory(len(self.now.first))
        recorder = _Recorder(self.horizon, self.now, self.memory)
        acting = stepping = 0.0
        for slot in range(self.horizon):
            start = time.perf_counter()
            with self.compute.precision_scope():
                step = self.actor.act(self._tensors(self.now.obs), self._tensors(self.now.first), self.memory, self.generator)
                action = self.actor.to_env(step.action)
            acted = time.perf_counter()
            self.now = self.envs.step(action)
            stepped = time.perf_counter()
            self.memory = step.memory._replace(last_reward=self._tensors(self.now.reward))
            recorder.add(slot, to_numpy(step.action), to_numpy(step.behaviour), self.now)
            acting += acted - start
            stepping += stepped - acted
        return recorder.rollout(self.version, {"act": acting, "env": stepping})

    def _tensors(self, arrays: Tree) -> Tree:
        return tree_map(lambda x: torch.from_numpy(x).to(self.compute.device), arrays)

    def state(self) -> dict[str, Any]:
        """Plain data to continue from: exactly where the envs can be saved, else with new episodes."""
        state: dict[str, Any] = {"generator": self.generator.get_state()}
        if self.envs.exact and self.now is not None:
            now = self.now._replace(final_obs=None, episodes=())
            state |= {"envs": self.envs.state(), "now": to_numpy(now)._asdict(), "memory": to_numpy(self.memory)._asdict()}
        return state

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether episodes go on where they were."""
        restore(self.generator, state["generator"])
        if "envs" not in state or len(state["now"]["first"]) != len(self.envs.numbers):
            return False
        self.envs.restore(state["envs"])
        self.now = Timestep(**state["now"])._replace(episodes=())
        self.memory = tree_map(lambda x: x.to(self.compute.device), to_torch(Memory(**state["memory"])))
        return True

    def close(self) -> None:
        """Ends the environments."""
        self.envs.close()


class _Recorder:
    """Fills the arrays of one rollout, slot by slot; everything is copied."""

    def __init__(self, horizon: int, now: Timestep, memory: Memory) -> None:
        width = len(now.first)
        self.obs = tree_map(lambda x: np.empty((horizon + 1, *x.shape), x.dtype), now.obs)
        self.first = np.empty((horizon + 1, width), bool)
        self.reward = np.empty((horizon, width), np.float32)
        self.terminated, self.truncated, self.valid = (np.empty((horizon, width), bool) for _ in range(3))
        self.memory = to_numpy(memory)
        self.actions: list[Tree] = []
        self.behaviours: list[dict[str, np.ndarray]] = []
        self.final_obs: list[Tree] = []
        self.episodes: list[Episode] = []
        self._observe(0, now)

    def _observe(self, slot: int, now: Timestep) -> None:
        tree_map(lambda store, x: np.copyto(store[slot], x), self.obs, now.obs)
        self.first[slot] = now.first

    def add(self, slot: int, action: Tree, behaviour: dict[str, np.ndarray], then: Timestep) -> None:
        """One step: the action of slot `slot`, and what it led to."""
        self.actions.append(action)
        self.behaviours.append(behaviour)
        self.reward[slot], self.terminated[slot], self.truncated[slot], self.valid[slot] = then.reward, then.terminated, then.truncated, then.valid
        if then.final_obs is not None:
            self.final_obs.append(then.final_obs)
        self.episodes.extend(then.episodes)
        self._observe(slot + 1, then)

    def rollout(self, version: int, seconds: dict[str, float]) -> Rollout:
        """All of it."""
        return Rollout(
            obs=self.obs, first=self.first, action=tree_map(lambda *xs: np.stack(xs), *self.actions), reward=self.reward,
            terminated=self.terminated, truncated=self.truncated, valid=None if self.valid.all() else self.valid,
            final_obs=tree_map(lambda *xs: np.concatenate(xs), *self.final_obs) if self.final_obs else None,
            memory=self.memory, behaviour=tree_map(lambda *xs: np.stack(xs), *self.behaviours),
            version=version, episodes=tuple(self.episodes), seconds=seconds,
        )  # fmt: skip
