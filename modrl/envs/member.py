"""One environment of a vector: it says who it is when it fails, and gives observations that it will not change later."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import gymnasium
import numpy as np

from modrl.envs.spaces import misfit, presented, require_supported

_NUMBER = (float, int, np.floating, np.integer, np.bool_)


class EnvError(RuntimeError):
    """An environment failed: its global number, what it raised, and its own traceback."""


class Member(gymnasium.Wrapper):
    """The outermost wrapper of each environment.

    Vector envs reset in the same step: what the env returned last must outlive the next reset, even where it writes every
    observation into one array. What each reset and the first step give is held against the observation space; every reward
    has to be a number. `remote` is set where this process is not the caller's, so that a traceback has to travel as text.
    """

    def __init__(self, env: gymnasium.Env, number: int, remote: bool = False) -> None:
        presented(env.observation_space)
        require_supported(env.action_space)
        super().__init__(env)
        self.number = number
        self.remote = remote
        self._unchecked = True  # no step was held against the observation space yet

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            obs, info = self.env.reset(seed=seed, options=options)
        except Exception as error:  # anything: it goes on to the caller
            raise self.failure("in reset", error) from error
        if not isinstance(info, dict):
            raise EnvError(f"env {self.number}: reset() has to return an observation and an info dict")
        self._check("reset", obs)
        return _own(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:  # anything: it goes on to the caller
            raise self.failure("in step", error) from error
        if self._unchecked:
            self._check("step", obs)
            self._unchecked = False
        if not isinstance(reward, _NUMBER):
            raise EnvError(f"env {self.number}: step() gave the reward {reward!r} ({type(reward).__name__}), expected a number")
        return _own(obs), reward, terminated, truncated, info

    def failure(self, when: str, error: Exception) -> EnvError:
        """The error as the caller sees it."""
        text = f"env {self.number} failed {when}: {type(error).__name__}: {error}"
        return EnvError(f"{text}\n\n{''.join(traceback.format_exception(error))}" if self.remote else text)

    def _check(self, method: str, obs: Any) -> None:
        if (text := misfit(self.env.observation_space, obs)) is not None:
            raise EnvError(f"env {self.number}: {method}() gave an observation that is not in its observation_space: {text}")


def _own(obs: Any) -> Any:
    return obs.copy() if isinstance(obs, np.ndarray) else copy.deepcopy(obs)
