"""What acts: a network that turns observations into distributions over actions, one step or a sequence at a time.

`act` and `forward` run the same code, so that the learner's probabilities of an action equal the collector's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import gymnasium
import torch
from torch import nn

from modrl.agent.batch import Batch
from modrl.config import Component
from modrl.messages import Tree


class Memory(NamedTuple):
    """What an actor carries from step to step; it is forgotten where an episode begins."""

    state: Tree  # [B, ...] recurrent state; () without one
    last_action: Tree  # [B, ...] as sampled
    last_reward: torch.Tensor  # [B] raw; the collector fills it in after each step


class Distribution(ABC):
    """A distribution over actions [..., B]. An action of several parts has one log-probability: the parts' sum."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """A random action [..., B, ...]."""

    @abstractmethod
    def mode(self) -> Tree:
        """The most likely action: what a greedy policy does."""

    @abstractmethod
    def log_prob(self, action: Tree) -> torch.Tensor:
        """The action's log-probability, log pi(a) [..., B]."""

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats [..., B]; an estimate where no closed form exists."""


@dataclass
class Output:
    """What an actor says of a sequence of S steps. Subclass it to hand more to an algorithm of your own."""

    policy: Distribution  # over [S, B] actions
    value: torch.Tensor | None  # [S, B] V(obs[t]); None: the actor has no critic
    final_value: torch.Tensor | None  # [K] V of the batch's final_obs, memory carried on
    memory: Memory  # [B, ...] after the last step
    value_scale: torch.Tensor | None = field(default=None, kw_only=True)  # [] of the values' targets, where the critic learns in units of it


class Step(NamedTuple):
    """What an actor does in one step."""

    action: Tree  # [B, ...] as sampled: what is stored
    memory: Memory  # [B, ...] for the next step
    behaviour: dict[str, torch.Tensor]  # [B, ...] what the learner needs of it: log_prob, value


class Inference(NamedTuple):
    """What an actor's networks say of one step, before anything is chosen: it can be computed elsewhere."""

    policy: torch.Tensor  # [B, n] parameters of the distribution: with the action space, all that there is to it
    behaviour: dict[str, torch.Tensor]  # [B, ...] what else the learner needs: value
    state: Tree  # [B, ...] recurrent state for the next step


class Actor(Component, nn.Module, ABC, kind="actor"):
    """A policy, and what its learner asks of it."""

    class Config(Component.Config):
        pass

    recurrent: bool = False
    """Whether a step depends on earlier ones by more than the last action and reward."""

    def __init__(self, config: Config, *, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    def use_memory_format(self, memory_format: torch.memory_format) -> bool:
        """Has all torsos of images use it, which are the parts with a `memory_format`; whether there are any."""
        torsos = [part for part in self.modules() if hasattr(part, "memory_format")]
        for torso in torsos:
            torso.memory_format = memory_format  # type: ignore[assignment]
        return bool(torsos)

    def compile_acting(self) -> None:
        """Has what the networks say of a step compiled by torch.compile, from the first call on."""
        self.infer = torch.compile(self.infer)  # type: ignore[method-assign]

    @abstractmethod
    def initial_memory(self, size: int) -> Memory:
        """The memory of `size` environments before their first step."""

    @abstractmethod
    def forward(self, batch: Batch) -> Output:
        """What the actor says at each of the batch's S observations, starting from its memory."""

    @abstractmethod
    def act(self, obs: Tree, first: torch.Tensor, memory: Memory, generator: torch.Generator | None = None, greedy: bool = False) -> Step:
        """One step of B environments, without gradient: obs [B, ...], first [B]."""

    def infer(self, obs: Tree, first: torch.Tensor, memory: Memory) -> Inference:
        """The first half of `act`, which an inference server does for many collectors: obs [B, ...], first [B]; called without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no infer(): it cannot be asked by an inference server")

    def choose(self, inference: Inference, generator: torch.Generator | None = None, greedy: bool = False) -> Step:
        """The second half of `act`, which needs no weights; called without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no choose(): it cannot use an inference server")

    def measure(self, batch: Batch, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the actor's statistics take in of a batch's `valid` [T, B] steps, each of which is measured once: by their names in the actor."""
        return {}

    @abstractmethod
    def to_env(self, action: Tree) -> Tree:
        """The stored action [B, ...] as numpy arrays that the environments' action space admits."""
