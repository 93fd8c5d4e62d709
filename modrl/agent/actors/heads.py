"""Action spaces as actors see them: from a linear layer's outputs to a distribution, and from actions to environments and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, TypeAlias, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pydantic import model_validator
from torch import nn

from modrl.agent.actors.distributions import Bernoulli, Categorical, Gaussian, Joint, MultiCategorical, Policy, SquashedGaussian
from modrl.agent.actors.spaces import OneHot, children, counts_and_starts, describe
from modrl.config import BadInput, Settings
from modrl.messages import Tree
from modrl.tree import to_numpy

Continuous: TypeAlias = Literal["gaussian", "squashed"]


class LogStd(Settings):
    """The logarithm of a Gaussian's standard deviation."""

    state_dependent: bool = False
    """Whether the network gives it, or it is one parameter per dimension."""
    initial: float = 0.0
    min: float = -20.0
    max: float = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> LogStd:
        if not self.min <= self.initial <= self.max:
            raise ValueError(f"initial must lie between min and max, got {self.initial:g}, {self.min:g} and {self.max:g}")
        return self


class Head(nn.Module, ABC):
    """What an actor knows of one action space."""

    size: int
    """Parameters of the distribution that the network gives."""
    features: int
    """Features of an encoded action."""

    @property
    def complete_size(self) -> int:
        """Parameters of the distribution with those that are the head's own."""
        return self.size

    def forward(self, parameters: torch.Tensor) -> Policy:
        """The distribution with these parameters [..., B, size]."""
        return self.distribution(self.complete(parameters))

    def complete(self, parameters: torch.Tensor) -> torch.Tensor:
        """The parameters [..., B, complete_size] with those that are the head's own: no weight is needed beside them."""
        return parameters

    @abstractmethod
    def distribution(self, parameters: torch.Tensor) -> Policy:
        """The distribution with these complete parameters."""

    @abstractmethod
    def encode(self, action: Tree) -> torch.Tensor:
        """The stored action as features [..., B, features] for a network."""

    @abstractmethod
    def zero(self, size: int, device: torch.device) -> Tree:
        """A stored action [size, ...] that stands for none."""

    @abstractmethod
    def to_env(self, action: Tree) -> Tree:
        """The stored action [B, ...] as numpy arrays that the space admits."""


class DiscreteHead(Head):
    """Discrete: stored from 0, whatever the space's start."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.space = space
        self.size = self.features = int(space.n)
        self.one_hot = OneHot(np.array([self.size]), np.zeros(1, int))

    def distribution(self, parameters: torch.Tensor) -> Policy:
        return Categorical(parameters)

    def encode(self, action: Tree) -> torch.Tensor:
        return self.one_hot(action.unsqueeze(-1))

    def zero(self, size: int, device: torch.device) -> Tree:
        return torch.zeros(size, dtype=torch.int64, device=device)

    def to_env(self, action: Tree) -> Tree:
        return (to_numpy(action) + self.space.start).astype(self.space.dtype, copy=False)


class MultiDiscreteHead(Head):
    """MultiDiscrete: each part stored from 0."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.space = space
        self.counts, _ = counts_and_starts(space)
        self.size = self.features = int(self.counts.sum())
        self.one_hot = OneHot(self.counts, np.zeros_like(self.counts))

    def distribution(self, parameters: torch.Tensor) -> Policy:
        return MultiCategorical(parameters, self.counts.tolist(), self.space.shape)

    def encode(self, action: Tree) -> torch.Tensor:
        return self.one_hot(action.flatten(-len(self.space.shape)))

    def zero(self, size: int, device: torch.device) -> Tree:
        return torch.zeros(size, *self.space.shape, dtype=torch.int64, device=device)

    def to_env(self, action: Tree) -> Tree:
        return (to_numpy(action) + self.space.start).astype(self.space.dtype, copy=False)


class MultiBinaryHead(Head):
    """MultiBinary: bits."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.space = space
        self.size = self.features = int(np.prod(space.shape))

    def distribution(self, parameters: torch.Tensor) -> Policy:
        return Bernoulli(parameters, self.space.shape)

    def encode(self, action: Tree) -> torch.Tensor:
        return cast(torch.Tensor, action.flatten(-len(self.space.shape)).float())

    def zero(self, size: int, device: torch.device) -> Tree:
        return torch.zeros(size, *self.space.shape, dtype=torch.int8, device=device)

    def to_env(self, action: Tree) -> Tree:
        return to_numpy(action).astype(self.space.dtype, copy=False)


class GaussianHead(Head):
    """Box: stored as sampled, clipped to the bounds on the way to the environment."""

    def __init__(self, space: spaces.Box, log_std: LogStd) -> None:
        super().__init__()
        if not np.issubdtype(space.dtype, np.floating):
            raise BadInput(f"actions of {describe(space)}: only a Box of floats has a Gaussian; use Discrete or MultiDiscrete for whole numbers")
        self.space = space
        self.settings = log_std
        self.features = int(np.prod(space.shape))
        self.size = self.features * (2 if log_std.state_dependent else 1)
        self.log_std = None if log_std.state_dependent else nn.Parameter(torch.full((self.features,), log_std.initial))

    @property
    def complete_size(self) -> int:
        return 2 * self.features

    def complete(self, parameters: torch.Tensor) -> torch.Tensor:
        """Mean and log standard deviation [..., B, 2n], the latter within its limits."""
        mean = parameters.float()
        if self.log_std is None:
            mean, offset = mean.chunk(2, -1)
            log_std = offset + self.settings.initial
        else:
            log_std = self.log_std
        return torch.cat([mean, log_std.clamp(self.settings.min, self.settings.max).expand_as(mean)], -1)

    def distribution(self, parameters: torch.Tensor) -> Policy:
        mean, log_std = parameters.chunk(2, -1)
        return Gaussian(mean, log_std, self.space.shape)

    def encode(self, action: Tree) -> torch.Tensor:
        return cast(torch.Tensor, action.flatten(-len(self.space.shape)) if self.space.shape else action.unsqueeze(-1))

    def zero(self, size: int, device: torch.device) -> Tree:
        return torch.zeros(size, *self.space.shape, device=device)

    def to_env(self, action: Tree) -> Tree:
        return self._clipped(to_numpy(action).astype(self.space.dtype, copy=False))

    def _clipped(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, self.space.low, self.space.high)  # after the cast: rounding may step over a bound


class SquashedHead(GaussianHead):
    """Box within bounds: stored before tanh, mapped to the bounds on the way to the environment."""

    half_range: torch.Tensor

    def __init__(self, space: spaces.Box, log_std: LogStd) -> None:
        super().__init__(space, log_std)
        if not (space.is_bounded() and (space.low < space.high).all()):
            raise BadInput(
                f"distribution: squashed needs finite bounds on both sides of each action, the lower one below the upper, got {space}; use gaussian"
            )
        half_range = (space.high.astype(np.float64) - space.low).reshape(-1) / 2
        self.register_buffer("half_range", torch.from_numpy(half_range.astype(np.float32)), persistent=False)

    def distribution(self, parameters: torch.Tensor) -> Policy:
        mean, log_std = parameters.chunk(2, -1)
        return SquashedGaussian(mean, log_std, self.space.shape, self.half_range)

    def encode(self, action: Tree) -> torch.Tensor:
        return super().encode(action).tanh()

    def to_env(self, action: Tree) -> Tree:
        low, high = self.space.low, self.space.high
        share = (np.tanh(to_numpy(action).astype(self.space.dtype, copy=False)) + 1) / 2
        return self._clipped((low + share * (high - low)).astype(self.space.dtype, copy=False))


class JointHead(Head):
    """Dict and Tuple: one head for each part."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, distribution: Continuous, log_std: LogStd) -> None:
        super().__init__()
        self.keys = [key for key, _ in children(space)]
        self.named = isinstance(space, spaces.Dict)
        self.parts = nn.ModuleList(_head(part, distribution, log_std) for _, part in children(space))
        self.size = sum(part.size for part in self._heads())
        self.features = sum(part.features for part in self._heads())

    def _heads(self) -> list[Head]:
        return cast(list[Head], list(self.parts))

    def _tree(self, values: list[Tree]) -> Tree:
        return dict(zip(self.keys, values, strict=True)) if self.named else tuple(values)

    @property
    def complete_size(self) -> int:
        return sum(part.complete_size for part in self._heads())

    def complete(self, parameters: torch.Tensor) -> torch.Tensor:
        shares = parameters.float().split([part.size for part in self._heads()], -1)
        return torch.cat([part.complete(share) for part, share in zip(self._heads(), shares, strict=True)], -1)

    def distribution(self, parameters: torch.Tensor) -> Policy:
        shares = parameters.split([part.complete_size for part in self._heads()], -1)
        return Joint(self._tree([part.distribution(share) for part, share in zip(self._heads(), shares, strict=True)]))

    def encode(self, action: Tree) -> torch.Tensor:
        return torch.cat([part.encode(action[key]) for key, part in zip(self.keys, self._heads(), strict=True)], -1)

    def zero(self, size: int, device: torch.device) -> Tree:
        return self._tree([part.zero(size, device) for part in self._heads()])

    def to_env(self, action: Tree) -> Tree:
        return self._tree([part.to_env(action[key]) for key, part in zip(self.keys, self._heads(), strict=True)])


def build_head(space: gymnasium.Space, distribution: Continuous = "gaussian", log_std: LogStd | None = None) -> Head:
    """The head for an action space; `distribution` and `log_std` are for the Boxes in it.

    Raises:
        BadInput: there is none, or the settings cannot take effect.
    """
    head = _head(space, distribution, log_std or LogStd())
    if not any(isinstance(part, GaussianHead) for part in head.modules()):
        if distribution != "gaussian":
            raise BadInput(f"distribution: {distribution} is for Box actions, but the action space is {describe(space)}: leave it out")
        if log_std is not None:
            raise BadInput(f"log_std is for Box actions, but the action space is {describe(space)}: leave it out")
    return head


def _head(space: gymnasium.Space, distribution: Continuous, log_std: LogStd) -> Head:
    match space:
        case spaces.Discrete():
            return DiscreteHead(space)
        case spaces.MultiDiscrete():
            return MultiDiscreteHead(space)
        case spaces.MultiBinary():
            return MultiBinaryHead(space)
        case spaces.Box():
            return SquashedHead(space, log_std) if distribution == "squashed" else GaussianHead(space, log_std)
        case spaces.Dict() | spaces.Tuple() if children(space):
            return JointHead(space, distribution, log_std)
    raise BadInput(
        f"no actor takes actions of {describe(space)}; supported are Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of them: "
        "convert it in a wrapper of the environment"
    )
