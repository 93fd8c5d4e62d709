"""Torsos: networks that turn one observation, a leaf of the observation space, into features.

A torso of one's own says how many features it gives and computes them from what `prepare` makes of an observation, which may be
the batch's own memory and is not to be written to:

    class Mine(Torso, name="mine"):
        class Config(Torso.Config):
            width: int = 32

        def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
            super().__init__(config, space=space)
            self.size = config.width
            self.linear = nn.Linear(math.prod(self.shape), config.width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.flatten(1)).relu()
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal, TypeAlias

import gymnasium
import torch
from gymnasium import spaces
from pydantic import Field
from torch import nn

from modrl.agent.actors.spaces import OneHot, counts_and_starts, describe
from modrl.config import BadInput, Component

Width: TypeAlias = Annotated[int, Field(ge=1)]
Activation: TypeAlias = Literal["tanh", "relu", "elu", "silu", "gelu"]


class Tanh(nn.Module):
    """tanh(x). Compiled for a CPU in single precision as 2 / (1 + e^-2x) - 1, which is vectorised better there; it differs by at most 2e-7."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and x.device.type == "cpu" and x.dtype == torch.float32:
            return 2 * torch.sigmoid(2 * x) - 1
        return x.tanh()


ACTIVATIONS: dict[Activation, type[nn.Module]] = {"tanh": Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}


class Torso(Component, nn.Module, ABC, kind="torso"):
    """Features of one observation. `space` is a Box, Discrete, MultiDiscrete or MultiBinary."""

    class Config(Component.Config):
        pass

    shape: tuple[int, ...]
    """Of one prepared observation."""
    size: int
    """Number of features; each torso sets its own."""

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.space = space
        self.one_hot: OneHot | None = None
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.one_hot = OneHot(*counts_and_starts(space))
            self.shape = (self.one_hot.size,)
        elif isinstance(space, (spaces.Box, spaces.MultiBinary)):
            self.shape = tuple(space.shape) or (1,)
        else:
            raise BadInput(
                f"no torso takes observations of {type(space).__name__}; "
                "supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them: convert it in a wrapper of the environment"
            )

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """The observations [N, ...] as numbers for the network: uint8 divided by 255, discrete ones one-hot, other ones as float32."""
        if self.one_hot is not None:
            return self.one_hot(x.reshape(len(x), -1))
        x = x.reshape(len(x), *self.shape)
        return x.float().div_(255) if x.dtype == torch.uint8 else x.float()

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The features [N, size] of prepared observations [N, *shape]."""

    def init_orthogonal(self, gain: float) -> None:
        """Gives linear and convolutional layers orthogonal weights of this gain, and no bias."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class MLP(Torso, name="mlp"):
    """Fully connected layers; an image is flattened."""

    class Config(Torso.Config):
        hidden: list[Width] = [64, 64]
        activation: Activation = "tanh"
        layer_norm: bool = False
        """Whether each layer is normalised before its activation (Ba et al., 2016)."""

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        self.size = math.prod(self.shape)
        self.layers = nn.Sequential()
        for width in config.hidden:
            self.layers.append(nn.Linear(self.size, width))
            if config.layer_norm:
                self.layers.append(nn.LayerNorm(width))
            self.layers.append(ACTIVATIONS[config.activation]())
            self.size = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(x.flatten(1))
        return features


class Identity(Torso, name="identity"):
    """The observation itself, flattened."""

    def __init__(self, config: Torso.Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        self.size = math.prod(self.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


class Embedding(Torso, name="embedding"):
    """A learned vector for each value of a Discrete or MultiDiscrete observation, side by side."""

    class Config(Torso.Config):
        width: Width = 32

    offset: torch.Tensor

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            raise BadInput(f"torso embedding takes Discrete and MultiDiscrete observations, got {describe(space)}: use mlp")
        counts, starts = counts_and_starts(space)
        self.shape = (len(counts),)
        self.size = len(counts) * config.width
        self.table = nn.Embedding(int(counts.sum()), config.width)
        self.register_buffer("offset", torch.from_numpy(counts.cumsum() - counts - starts), persistent=False)

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of the table [N, parts]."""
        return x.reshape(len(x), -1).long() + self.offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.table(x).flatten(1)
        return features
