"""The recorder: fills the arrays of one rollout, step by step."""

from __future__ import annotations

import numpy as np

from modrl.envs.base import Envs, Timestep
from modrl.messages import Episode, Frames, Rollout, Tree
from modrl.tree import join, leaves, tree_map


class Recorder:
    """The arrays of one rollout of `width` columns; everything is copied.

    Each step may be told in parts, of some columns each, from left to right.
    """

    def __init__(self, horizon: int, width: int, envs: Envs, now: Timestep) -> None:
        self.obs = _Stacks(horizon, width, now.obs, envs) if envs.stack > 1 else _Observations(horizon, width, now.obs)
        self.first = np.empty((horizon + 1, width), bool)
        self.reward = np.empty((horizon, width), np.float32)
        self.terminated, self.truncated, self.valid = (np.empty((horizon, width), bool) for _ in range(3))
        self.memories: list[Tree] = []
        self.actions: list[Tree] = []
        self.behaviours: list[dict[str, np.ndarray]] = []
        self.final_obs: list[Tree] = []
        self.episodes: list[Episode] = []

    def begin(self, columns: slice, now: Timestep, memory: Tree) -> None:
        """What the first actions of these columns answer."""
        self.first[0, columns] = now.first
        self.obs.begin(columns, now)
        self.memories.append(memory)

    def act(self, action: Tree, behaviour: dict[str, np.ndarray]) -> None:
        """The next actions."""
        self.actions.append(action)
        self.behaviours.append(behaviour)

    def add(self, slot: int, columns: slice, then: Timestep) -> None:
        """What the actions of slot `slot` led to in these columns."""
        self.reward[slot, columns], self.valid[slot, columns] = then.reward, then.valid
        self.terminated[slot, columns], self.truncated[slot, columns] = then.terminated, then.truncated
        self.first[slot + 1, columns] = then.first
        self.obs.add(slot + 1, columns, then)
        if then.final_obs is not None:
            self.final_obs.append(then.final_obs)
        self.episodes.extend(then.episodes)

    def stop(self, slots: int) -> None:
        """What follows these slots of all columns is filler: nothing counts."""
        parts = len(self.actions) // slots
        self.obs.stop(slots)
        for array in (self.first[slots + 1 :], self.reward[slots:], self.terminated[slots:], self.truncated[slots:], self.valid[slots:]):
            array[:] = 0
        self.actions += self.actions[-parts:] * (len(self.reward) - slots)
        self.behaviours += self.behaviours[-parts:] * (len(self.reward) - slots)

    def rollout(self, version: int, counts: dict[str, float]) -> Rollout:
        """All of it."""
        by_slot = [tree_map(lambda x: x.reshape(*self.reward.shape, *x.shape[1:]), join(parts)) for parts in (self.actions, self.behaviours)]
        action, behaviour = by_slot
        return Rollout(
            obs=self.obs.all(), first=self.first, action=action, reward=self.reward, terminated=self.terminated,
            truncated=self.truncated, valid=None if self.valid.all() else self.valid,
            final_obs=join(self.final_obs) if self.final_obs else None, memory=join(self.memories), behaviour=behaviour,
            version=int(behaviour["version"][0].min()) if "version" in behaviour else version, episodes=tuple(self.episodes), counts=counts,
        )  # fmt: skip


class _Observations:
    """Observations [T+1, B, ...] as they are."""

    def __init__(self, horizon: int, width: int, like: Tree) -> None:
        self.stored = tree_map(lambda x: np.empty((horizon + 1, width, *x.shape[1:]), x.dtype), like)

    def begin(self, columns: slice, now: Timestep) -> None:
        self.add(0, columns, now)

    def add(self, slot: int, columns: slice, then: Timestep) -> None:
        tree_map(lambda store, x: np.copyto(store[slot, columns], x), self.stored, then.obs)

    def stop(self, slots: int) -> None:
        """The observation stays."""
        tree_map(lambda store: np.copyto(store[slots + 1 :], store[slots]), self.stored)

    def all(self) -> Tree:
        return self.stored


class _Stacks:
    """Observations that are stacks of frames: each frame once, and where an episode begins the older ones of its stack."""

    def __init__(self, horizon: int, width: int, like: Tree, envs: Envs) -> None:
        self.envs = envs
        self.stack = envs.stack
        for x in leaves(like):
            if x.ndim < 2 or x.shape[1] % self.stack:
                raise self._unlike(f"one is {list(x.shape[1:])}")
        self.stored = tree_map(lambda x: np.empty((horizon + self.stack, width, x.shape[1] // self.stack, *x.shape[2:]), x.dtype), like)
        self.earlier: list[Tree] = []
        self.since = np.zeros(width, int)  # the slot that each column's stacks go back to

    def _frames(self, x: np.ndarray) -> np.ndarray:
        """Stacks [b, ...] as frames [b, stack, ...]."""
        return x.reshape(len(x), self.stack, x.shape[1] // self.stack, *x.shape[2:])

    def begin(self, columns: slice, now: Timestep) -> None:
        tree_map(lambda store, x: np.copyto(store[: self.stack, columns], self._frames(x).swapaxes(0, 1)), self.stored, now.obs)
        if not self.earlier:
            self.earlier.append(tree_map(lambda x: self._frames(x[:0])[:, :-1], now.obs))

    def add(self, slot: int, columns: slice, then: Timestep) -> None:
        tree_map(lambda store, x: np.copyto(store[slot + self.stack - 1, columns], self._frames(x)[:, -1]), self.stored, then.obs)
        self.since[columns][then.first] = slot
        if then.first.any():
            self.earlier.append(tree_map(lambda x: self._frames(x[then.first])[:, :-1], then.obs))
        self._look(slot, columns, then)

    def _look(self, slot: int, columns: slice, then: Timestep) -> None:
        """Looks at one column, another in each step: whether its stack is the last one moved on by one."""
        column = slot % len(then.first)
        if slot < self.since[columns][column] + self.stack - 1 and self.since[columns][column]:
            return
        for store, x in zip(leaves(self.stored), leaves(then.obs), strict=True):
            if not np.array_equal(
                store[slot : slot + self.stack - 1, columns][:, column], self._frames(x[column : column + 1])[0, :-1], equal_nan=x.dtype.kind == "f"
            ):
                raise self._unlike("one was not the stack before it, moved on by one frame")

    def _unlike(self, found: str) -> RuntimeError:
        return RuntimeError(
            f"{type(self.envs).__name__}.stack is {self.stack}, but of its observations {found}: "
            "its `stack` has to be 1, or else the environments have to give a new array in each step"
        )

    def stop(self, slots: int) -> None:
        """The last frame stays."""
        tree_map(lambda store: np.copyto(store[slots + self.stack :], store[slots + self.stack - 1]), self.stored)

    def all(self) -> Tree:
        return tree_map(Frames, self.stored, join(self.earlier))
