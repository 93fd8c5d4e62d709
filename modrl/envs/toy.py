"""Environments whose answers are known on paper: to test with, and to learn in seconds.

Each is registered with gymnasium as `modrl/NAME-v0`, offers `state` and `restore`, and gives reward and end as its docstring says.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

End = Literal["terminated", "truncated"]


class Toy(gymnasium.Env):
    """A step counter `t`, and the attributes in `saved` as state. A subclass gives `observe` and `outcome`."""

    saved: ClassVar[tuple[str, ...]] = ()
    action_space: gymnasium.Space = Discrete(2)
    t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward, terminated, truncated = self.outcome(action)
        return self.observe(), reward, terminated, truncated, self.info()

    def begin(self) -> None:
        """What else an episode's beginning needs."""

    def observe(self) -> Any:
        return np.array([self.t], np.float32)

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        """Reward, terminated and truncated of the step that `t` counts."""
        raise NotImplementedError

    def info(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("t", *self.saved)}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def _ended(over: bool, end: End) -> tuple[bool, bool]:
    return over and end == "terminated", over and end == "truncated"


class Count(Toy):
    """Step k gives observation [k] and reward k; ends at k = n. Return n(n+1)/2, length n."""

    def __init__(self, n: int = 3, end: End = "terminated") -> None:
        self.n, self.end = n, end
        self.observation_space = Box(0, np.inf, (1,), np.float32)  # one space for every n

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        return float(self.t), *_ended(self.t >= self.n, self.end)


class Const(Count):
    """As Count, but every reward is 1. Return n, length n."""

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        return 1.0, *_ended(self.t >= self.n, self.end)


class Lives(Const):
    """k lives of m steps, reward 1 per step, `lives` in the info; ends after k*m steps."""

    def __init__(self, k: int = 3, m: int = 4) -> None:
        super().__init__(k * m)
        self.k, self.m = k, m

    def info(self) -> dict[str, Any]:
        return {"lives": self.k - self.t // self.m}


class Alias(Count):
    """As Count, but every observation is the same array, written to again; `nested`: a dict of two such arrays, a and b."""

    def __init__(self, n: int = 3, end: End = "terminated", nested: bool = False) -> None:
        super().__init__(n, end)
        self.array, self.nested = np.zeros(1, np.float32), nested
        if nested:
            self.observation_space = Dict(a=self.observation_space, b=self.observation_space)
            self.nest = {"a": self.array, "b": np.zeros(1, np.float32)}

    def observe(self) -> Any:
        self.array[0] = self.t
        if self.nested:
            self.nest["b"][0] = self.t
            return self.nest
        return self.array


class Faulty(Const):
    """As Const, but something happens at the j-th step call of the env's life; episodes of n steps."""

    saved = ("calls",)

    def __init__(self, j: int = 10, n: int = 5) -> None:
        super().__init__(n)
        self.j, self.calls = j, 0

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        self.calls += 1
        reward, terminated, truncated = super().outcome(action)
        return self.fault() if self.calls == self.j else reward, terminated, truncated

    def fault(self) -> float:
        raise NotImplementedError


class RaiseAt(Faulty):
    """Raises RuntimeError("boom") at the j-th step call."""

    def fault(self) -> float:
        raise RuntimeError("boom")


class RaiseAlways(RaiseAt):
    """Raises RuntimeError("boom") at the first step call."""

    def __init__(self, n: int = 5) -> None:
        super().__init__(1, n)


class HangAt(Faulty):
    """Never returns from the j-th step call."""

    def fault(self) -> float:
        threading.Event().wait()
        return 1.0


class NaNAt(Faulty):
    """Gives reward NaN at the j-th step call."""

    def fault(self) -> float:
        return float("nan")


class SeedEcho(Toy):
    """Each reset draws a number below 2^31, which is the observation; length 2."""

    saved = ("drawn",)
    observation_space = Discrete(2**31)
    drawn = 0

    def begin(self) -> None:
        self.drawn = int(self.np_random.integers(2**31))

    def observe(self) -> Any:
        return np.int64(self.drawn)

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        return 0.0, self.t >= 2, False


class Bandit(Toy):
    """Two arms: action 1 pays 1, action 0 nothing; length 1."""

    observation_space = Box(0, 1, (1,), np.float32)

    def observe(self) -> Any:
        return np.zeros(1, np.float32)

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        return float(action), True, False


class Corridor(Toy):
    """`length` cells: action 1 goes right, 0 left; reward 1 in the last, which ends it. Best return 1 in length-1 steps; truncated after `limit`."""

    saved = ("cell",)
    cell = 0

    def __init__(self, length: int = 5, limit: int = 50) -> None:
        self.length, self.limit = length, limit
        self.observation_space = Box(0, 1, (length,), np.float32)

    def begin(self) -> None:
        self.cell = 0

    def observe(self) -> Any:
        return np.eye(self.length, dtype=np.float32)[self.cell]

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        self.cell = min(max(self.cell + (1 if action == 1 else -1), 0), self.length - 1)
        there = self.cell == self.length - 1
        return float(there), there, self.t >= self.limit and not there


class Memory(Toy):
    """A bit, shown at the reset as -1 or 1, is asked for at step `length`: reward 1 for the right action, which ends it."""

    saved = ("bit",)
    observation_space = Box(-1, 1, (2,), np.float32)  # the bit, whether it is asked for
    bit = 0

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def begin(self) -> None:
        self.bit = int(self.np_random.integers(2))

    def observe(self) -> Any:
        return np.array([2 * self.bit - 1 if self.t == 0 else 0, self.t == self.length - 1], np.float32)

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        asked = self.t >= self.length
        return float(asked and action == self.bit), asked, False


class Catch(Toy):
    """An image [1, size, size] of bytes: a ball falls, a paddle below goes left, stays or goes right. 1 for a catch, -1 for a miss; length size-1."""

    saved = ("ball", "paddle")
    action_space = Discrete(3)
    ball = 0
    paddle = 0

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self.observation_space = Box(0, 255, (1, size, size), np.uint8)

    def begin(self) -> None:
        self.ball = int(self.np_random.integers(self.size))
        self.paddle = self.size // 2

    def observe(self) -> Any:
        image = np.zeros((1, self.size, self.size), np.uint8)
        image[0, self.t, self.ball] = 255
        image[0, -1, self.paddle] = 255
        return image

    def outcome(self, action: Any) -> tuple[float, bool, bool]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.size - 1)
        landed = self.t >= self.size - 1
        return (1.0 if self.paddle == self.ball else -1.0) if landed else 0.0, landed, False


TOYS = (Count, Const, Lives, Alias, RaiseAt, RaiseAlways, HangAt, NaNAt, SeedEcho, Bandit, Corridor, Memory, Catch)

for _toy in TOYS:
    gymnasium.register(f"modrl/{_toy.__name__}-v0", f"{__name__}:{_toy.__name__}")
