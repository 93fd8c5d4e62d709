"""Environments that are made anew after they failed: one budget for all of a collector's, whichever processes they live in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from modrl.envs.member import EnvError, Member

ANEW = "modrl/anew"
"""Where the info of a reset holds an `Anew`."""


class Anew(NamedTuple):
    """What a reset that made its environment anew has to tell."""

    causes: tuple[str, ...]  # one line for each restart that it took
    dropped: bool  # a step failed: it was no transition, and its episode is dropped


class Budget:
    """Restarts that may be made in all; travels to the processes of `start_method`, which spend from the same."""

    def __init__(self, total: int, start_method: str | None = None) -> None:
        self.total = total
        self._left = multiprocessing.get_context(start_method).Semaphore(total)

    def spend(self) -> bool:
        """Takes one, if there is one."""
        return self._left.acquire(block=False)


def new_seed(seed: int | None, restart: int) -> int:
    """A 31-bit seed for this restart of what began with `seed`."""
    return int(np.random.SeedSequence(seed, spawn_key=(restart,)).generate_state(1)[0] >> 1)


class Renewed(gymnasium.Wrapper):
    """A Member that is closed, made anew and reset with a new seed where it failed after its first reset, while the budget lasts.

    For vector envs that reset in the same step: a step that fails gives a truncation without an observation, and the reset
    that it leads to makes the environment anew. A reset that fails leaves the step before it as it is.
    """

    env: Member

    def __init__(self, factory: Callable[[], Member], budget: Budget) -> None:
        super().__init__(factory())
        self.factory = factory
        self.budget = budget
        self.seed: int | None = None  # of the first reset
        self.restarts = 0
        self.failure: EnvError | None = None  # of the last step
        self.begun = self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        failure, self.failure = self.failure, None
        if failure is not None:
            return self._anew(failure, dropped=True)
        try:
            obs, info = self.env.reset(seed=seed, options=options)
        except EnvError as error:
            if not self.begun:
                raise
            return self._anew(error, dropped=False)
        if not self.begun:
            self.begun, self.seed = True, seed
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            return self.env.step(action)
        except EnvError as error:
            self.failure = error
            return None, 0.0, False, True, {}

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.env.close()

    def _anew(self, failure: EnvError, dropped: bool) -> tuple[Any, dict[str, Any]]:
        """The first observation of a new environment; each attempt is a restart.

        Raises:
            EnvError: no restart is left; what failed last.
        """
        causes: list[str] = []
        while self.budget.spend():
            causes.append(first_line(failure))
            self.restarts += 1
            with suppress(Exception):  # it failed before: what it raises now says no more
                self.close()
            try:
                self.env = self.factory()
                self.closed = False
                obs, info = self.env.reset(seed=new_seed(self.seed, self.restarts))
            except EnvError as error:
                failure = error
            except Exception as error:  # anything: it is told with the env's number
                failure = self.env.failure("while it was made anew", error)
            else:
                return obs, {**info, ANEW: Anew(tuple(causes), dropped)}
        raise failure


def first_line(error: Exception) -> str:
    """What happened, on one line."""
    line = str(error).partition("\n")[0]
    return line if isinstance(error, EnvError) else f"{type(error).__name__}: {line}"
