"""The adapter from gymnasium's vector envs: whatever they do at an episode's end, Timesteps of one convention come out."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from pydantic import Field

from modrl.envs.base import Envs, Timestep
from modrl.envs.restarts import ANEW, Anew, Budget, first_line, new_seed
from modrl.envs.spaces import adopted, presented, require_supported, stacked
from modrl.messages import Episode, Tree
from modrl.tree import tree_map

logger = logging.getLogger(__name__)


class Vector(Envs):
    """Any vector env of gymnasium's: a subclass makes it in `make`, the rest follows from its metadata.

    With `restarts`, an env that `Renewed` wraps is made anew alone. Whatever else the vector raises after its first reset
    (a process that ended, an env of its own vector version) makes all its envs anew, with new seeds. Both spend the one budget,
    and the step that failed is filler: `valid` False, `first` True, no episode counted.
    """

    class Config(Envs.Config):
        episode_info: list[str] = Field([])
        """Entries of the envs' info at an episode's end to log as `episode/NAME`; each must be a number and there at every end."""

    config: Config
    returns: np.ndarray  # [B] float64: raw reward of the running episodes
    lengths: np.ndarray  # [B] int64: steps of the running episodes
    resetting: np.ndarray  # [B] bool: the next step only resets

    def __init__(self, config: Config, *, numbers: Sequence[int], seeds: Sequence[int], training: bool = True, restarts: int | Budget = 0) -> None:
        super().__init__(config, numbers=numbers, seeds=seeds, training=training, restarts=restarts)
        self.closed = False
        self.budget = restarts if isinstance(restarts, Budget) else self.make_budget(restarts) if restarts else None
        self.restarts = self.budget or 0
        self.error: Exception | None = None  # of the step that was begun
        self.uncounted = 0  # restarts since `counts` was last asked
        self.vector = self.make()
        try:
            self.mode = _autoreset_mode(self.vector)
            self.observation_space = presented(self.vector.single_observation_space)
            self.action_space = self.vector.single_action_space
            require_supported(self.action_space)
        except ValueError:
            self.close()
            raise
        self.started = False  # whether the seeds are used up
        self._clear()

    @abstractmethod
    def make(self) -> VectorEnv:
        """The vector env, `len(self.numbers)` wide."""

    def make_budget(self, restarts: int) -> Budget:
        """The restarts, for all processes that the environments live in."""
        return Budget(restarts)

    def seed(self) -> Any:
        """What the vector env's first reset takes as its seed: a list, one for each env."""
        return [int(seed) for seed in self.seeds]

    def adopt(self, obs: Any) -> Tree:
        """The vector env's observations [B, ...] as ours: in the presented space, in arrays of their own."""
        return adopted(self.observation_space, obs)

    def over(self, terminated: np.ndarray, truncated: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        """Whose environment's own episode ended [B]: statistics run until then, even where the learner's episode ends before."""
        return terminated | truncated

    def reset(self) -> Timestep:
        seed = None if self.started else self.seed()
        try:
            obs, info = self.vector.reset(seed=seed)
        except Exception as error:  # anything: it goes on to the caller where no restart is left
            if not self.started:
                raise
            return self._all_anew(error)
        self.started = True
        self._clear()
        self._dropped(info)
        no = np.zeros(len(self.numbers), bool)
        return Timestep(self.adopt(obs), ~no, np.zeros(len(no), np.float32), no.copy(), no.copy(), ~no, None, ())

    def begin(self, action: Tree) -> None:
        """Starts the vector env's step."""
        self._begun = action

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What the step leads to that was begun, as the vector env gives it."""
        return self.vector.step(self._begun)

    def step(self, action: Tree) -> Timestep:
        self._begin(action)
        return self._end()

    def send(self, action: Tree) -> None:
        if self._own_step:
            super().send(action)
        else:
            self._begin(action)

    def receive(self) -> Timestep:
        return super().receive() if self._own_step else self._end()

    @property
    def _own_step(self) -> bool:
        """Whether a subclass has a `step` of its own, which then is the only way."""
        return type(self).step is not Vector.step

    def _begin(self, action: Tree) -> None:
        self.error = None
        try:
            self.begin(action)
        except Exception as error:  # anything: it is what the step led to
            self.error = error

    def _end(self) -> Timestep:
        try:
            if self.error is not None:
                raise self.error
            raw_obs, raw_reward, terminated, truncated, info = self.finish()
        except Exception as error:  # anything: it goes on to the caller where no restart is left
            return self._filler(error)
        dropped = self._dropped(info)
        reward = np.array(raw_reward, np.float64)
        terminated = np.array(terminated, bool)
        truncated = np.array(truncated, bool) & ~terminated & ~dropped
        done = terminated | truncated | dropped
        valid = ~self.resetting & ~dropped
        obs = self.adopt(raw_obs)
        final_obs = self._final_obs(obs, truncated, info) if truncated.any() else None
        self.returns += np.where(valid, reward, 0)
        self.lengths += valid
        episodes = self._finish(self.over(terminated, truncated, info), info)
        self.returns[dropped] = 0
        self.lengths[dropped] = 0
        if self.mode is AutoresetMode.NEXT_STEP:
            first, self.resetting = self.resetting, done
        else:
            first = done.copy()
        if self.mode is AutoresetMode.DISABLED and done.any():
            try:
                obs = self._reset_where(done, obs)
            except Exception as error:  # anything: as above
                return self._filler(error)
        return Timestep(obs, first, reward.astype(np.float32), terminated, truncated, valid, final_obs, episodes)

    def counts(self) -> dict[str, float]:
        count, self.uncounted = self.uncounted, 0
        return {"faults/env_restarts": count} if count else {}

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.vector.close()

    def _clear(self) -> None:
        """All episodes new."""
        width = len(self.numbers)
        self.returns, self.lengths, self.resetting = np.zeros(width), np.zeros(width, np.int64), np.zeros(width, bool)

    def _dropped(self, info: dict[str, Any]) -> np.ndarray:
        """Whose environment failed in this step [B]; whatever was made anew is noted."""
        dropped = np.zeros(len(self.numbers), bool)
        for i, anew in enumerate(info.get(ANEW, ())):
            if isinstance(anew, Anew):
                dropped[i] = anew.dropped
                for cause in anew.causes:
                    self._note(f"made anew: {cause}")
        return dropped

    def _filler(self, error: Exception) -> Timestep:
        """What a step that failed leads to where all environments are made anew."""
        return self._all_anew(error)._replace(valid=np.zeros(len(self.numbers), bool))

    def _all_anew(self, error: Exception) -> Timestep:
        """What the reset of a new vector env gives; each attempt is a restart.

        Raises:
            Exception: no restart is left; what was raised last.
        """
        if self.budget is None:
            raise error
        while self.budget.spend():
            self._note(f"envs {', '.join(map(str, self.numbers))} made anew: {first_line(error)}")
            self.seeds = tuple(new_seed(seed, 0) for seed in self.seeds)  # 0: the envs themselves count their restarts from 1
            self.started = False
            with suppress(Exception):  # it failed before: what it raises now says no more
                self.vector.close()
            try:
                self.vector = self.make()
                return self.reset()
            except Exception as again:  # anything: the next attempt tells it, or the caller gets it
                error = again
        error.add_note(f"no restart is left: {self.budget.total} were made (scheme.faults.env_restarts)")
        raise error

    def _note(self, text: str) -> None:
        self.uncounted += 1
        logger.warning(text)

    def _final_obs(self, obs: Tree, truncated: np.ndarray, info: dict[str, Any]) -> Tree:
        """The last observations [K, ...] of the truncated episodes."""
        if self.mode is not AutoresetMode.SAME_STEP:
            return tree_map(lambda x: x[truncated], obs)
        final = info["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:  # one tree for each env that ended
            return stacked(self.observation_space, [final[i] for i in np.flatnonzero(truncated)])
        return tree_map(lambda x: x[truncated], self.adopt(final))

    def _finish(self, over: np.ndarray, info: dict[str, Any]) -> tuple[Episode, ...]:
        """The episodes that ended in this step, their statistics cleared."""
        if not over.any():
            return ()
        if self.mode is AutoresetMode.SAME_STEP:
            info = info.get("final_info", info)
        episodes = tuple(self._episode(int(i), info) for i in np.flatnonzero(over))
        self.returns[over] = 0
        self.lengths[over] = 0
        return episodes

    def _episode(self, index: int, info: dict[str, Any]) -> Episode:
        named = {name: self._entry(info, name, index) for name in self.config.episode_info}
        return Episode(float(self.returns[index]), int(self.lengths[index]), self.numbers[index], named)

    def _entry(self, info: dict[str, Any], name: str, index: int) -> float:
        """An entry of the info of one env.

        Raises:
            ValueError: it is not there, or no number.
        """
        present = info[f"_{name}"][index] if f"_{name}" in info else name in info
        if not present:
            there = sorted(key for key in info if not key.startswith("_"))
            raise ValueError(
                f"envs.episode_info: env {self.numbers[index]} gave no {name!r} at its episode's end, only {', '.join(there) or 'nothing'}"
            )
        try:
            return float(info[name][index])
        except (TypeError, ValueError):
            raise ValueError(f"envs.episode_info: expected a number as {name!r}, got {info[name][index]!r}") from None

    def _reset_where(self, done: np.ndarray, obs: Tree) -> Tree:
        """The observations, of the next episodes where the last one is done."""
        new, _ = self.vector.reset(options={"reset_mask": done.copy()})

        def chosen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.where(done.reshape(-1, *[1] * (x.ndim - 1)), y, x)

        return tree_map(chosen, obs, self.adopt(new))


def _autoreset_mode(vector: VectorEnv) -> AutoresetMode:
    """How the vector env resets.

    Raises:
        ValueError: it does not say, or says what gymnasium does not know.
    """
    said = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(said)
    except ValueError:
        known = ", ".join(mode.value for mode in AutoresetMode)
        raise ValueError(
            f"{type(vector).__name__} has metadata['autoreset_mode'] = {said!r}, expected one of {known}; set it to what the env does"
        ) from None
