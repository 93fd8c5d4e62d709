"""What a collector steps: a vector of environments in which one boundary convention holds.

A Timestep is what one step led to. Whatever the library underneath does at an episode's end, here:

* `obs` is what the next action answers; after an end it is the next episode's first observation, and `first` says so.
* The ended episode's last observation is in `final_obs` where the episode was truncated: its value bootstraps the return.
* Where an env only knows next-step resets, the slot after an end is filler: `obs` repeats the final one, the action is
  ignored, and the step that leads out of it has `valid` False. `first` is set on the slot after it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from pydantic import Field

from modrl.config import BadInput, Component, public_name
from modrl.messages import Episode, Tree

if TYPE_CHECKING:
    from modrl.envs.restarts import Budget


class Timestep(NamedTuple):
    """What one action of each of B environments led to."""

    obs: Tree  # [B, ...] what the next action answers
    first: np.ndarray  # [B] bool: obs opens an episode
    reward: np.ndarray  # [B] float32: paid for the action; raw
    terminated: np.ndarray  # [B] bool: the episode ended and nothing follows
    truncated: np.ndarray  # [B] bool: the episode was cut short, and did not terminate
    valid: np.ndarray  # [B] bool: False: no transition, the action was ignored
    final_obs: Tree | None  # [K, ...] last observations of the K truncated episodes, in env order; None: K = 0
    episodes: tuple[Episode, ...]  # those that ended in this step


class Envs(Component, ABC, kind="envs"):
    """A vector of environments.

    `numbers` are the global numbers of the environments that this worker steps (a part of `config.count`), `seeds` their
    seeds, one each. `training` is False for evaluation: whole episodes, raw reward. `restarts` is how often, over all of them,
    an environment that failed after its first reset may be made anew; a class whose __init__ does not take it cannot. The other
    half of a collector's environments is given the first one's `restarts`, to share them.

    Observation spaces are gymnasium's Box (float32 or uint8), Discrete, MultiBinary, MultiDiscrete, Dict and Tuple,
    nested; observations are numpy arrays of them, batched by key. Actions come as the action space's members, batched.
    """

    class Config(Component.Config):
        count: int = Field(1, ge=1)
        """All environments, dealt out over the collectors."""

        @property
        def overlaps(self) -> bool:
            """Whether `send` does not wait, so that a collector may have its environments in two halves: one steps, it acts for the other."""
            return False

        def showing(self) -> Self:
            """These settings, of environments that `frame` can be asked of."""
            return self

        def build(self, **runtime: Any) -> Any:
            """The environments.

            Raises:
                BadInput: they shall be made anew where they fail, and cannot be.
            """
            if runtime.get("restarts") and not _takes_restarts(self.owner):
                raise BadInput(f"envs: {public_name(self.owner)} cannot make environments anew; set scheme.faults.env_restarts to 0")
            return super().build(**runtime)

    observation_space: gymnasium.Space  # of one environment
    action_space: gymnasium.Space  # of one environment
    action_repeat: int = 1  # frames per agent step
    stack: int = 1
    """Every observation is a stack of so many frames along its first axis, oldest first, which each step moves on by one; `first` begins another."""
    exact: bool = False
    """Whether `state` and `restore` are offered, so that a resumed run continues its episodes exactly."""

    def __init__(self, config: Config, *, numbers: Sequence[int], seeds: Sequence[int], training: bool = True, restarts: int | Budget = 0) -> None:
        self.config = config
        self.numbers = tuple(numbers)
        self.seeds = tuple(seeds)
        self.training = training
        self.restarts = restarts

    @abstractmethod
    def reset(self) -> Timestep:
        """The first observations, every episode new; reward 0, `valid` True."""

    @abstractmethod
    def step(self, action: Tree) -> Timestep:
        """What the actions [B, ...] lead to. The arrays are the caller's: they are not written to again."""

    def send(self, action: Tree) -> None:
        """Starts on a step, which `receive` ends: where the Config `overlaps`, without waiting."""
        self._sent = action

    def receive(self) -> Timestep:
        """What the actions that were sent lead to, as `step` gives it."""
        return self.step(self._sent)

    @abstractmethod
    def close(self) -> None:
        """Ends every environment; may be called twice."""

    def counts(self) -> dict[str, float]:
        """What was counted since this was last asked, by column of the metrics."""
        return {}

    def frame(self) -> np.ndarray:
        """What the first environment shows now [H, W, 3] uint8; the settings have to be `showing`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be shown")

    def state(self) -> Any:
        """Plain data (numbers, text, arrays, dicts, lists) from which `restore` continues exactly."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved")

    def restore(self, state: Any) -> None:
        """Continues from what `state` gave."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")


def _takes_restarts(owner: type[Component]) -> bool:
    """Whether the class's own __init__ takes `restarts`, or hands on whatever it is given."""
    init = owner.__init__
    return init is not Envs.__init__ and any(p.name == "restarts" or p.kind is p.VAR_KEYWORD for p in inspect.signature(init).parameters.values())


class Probe(NamedTuple):
    """What an agent has to know of its environments before any worker exists."""

    observation_space: gymnasium.Space  # of one environment
    action_space: gymnasium.Space  # of one environment
    action_repeat: int  # frames per agent step
    first: Timestep  # of one environment: what its reset gives


def probe(config: Envs.Config) -> Probe:
    """Makes one environment, takes one step in it, and closes it."""
    envs: Envs = config.build(numbers=(0,), seeds=(0,), training=False)
    try:
        first = envs.reset()
        actions = batch_space(envs.action_space, 1)
        actions.seed(0)
        envs.step(actions.sample())
        return Probe(envs.observation_space, envs.action_space, envs.action_repeat, first)
    finally:
        envs.close()
