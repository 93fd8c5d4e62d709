"""The deep residual network of IMPALA, with or without Fixup initialisation."""

from __future__ import annotations

import math
from typing import Annotated

import gymnasium
import torch
from pydantic import Field
from torch import nn

from modrl.agent.actors.images import ImageTorso
from modrl.agent.actors.torsos import Width
from modrl.config import BadInput


class Residual(nn.Module):
    """x plus two convolutions of it, each after a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.second(self.first(x.relu()).relu())
        return branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


class FixupResidual(Residual):
    """A residual block that trains without normalisation (Zhang et al., 2019).

    Of L such blocks in a network the first convolution is scaled by L^(-1/2), the second is zero, and scalars take the
    place of the biases and of a normalisation's gain. At the start the block is the identity.
    """

    def __init__(self, channels: int, blocks: int) -> None:
        nn.Module.__init__(self)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.first.weight)
        with torch.no_grad():
            self.first.weight.mul_(blocks**-0.5)
        nn.init.zeros_(self.second.weight)
        self.before_first, self.after_first, self.before_second, self.after_second = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x.relu() + self.before_first) + self.after_first
        branch: torch.Tensor = self.second(hidden.relu() + self.before_second) * self.scale + self.after_second
        return branch


class Deep(ImageTorso, name="deep"):
    """Sections of a convolution, max pooling and two residual blocks (Espeholt et al., 2018, figure 3, right)."""

    class Config(ImageTorso.Config):
        channels: Annotated[list[Width], Field(min_length=1)] = [16, 32, 32]
        """Of each section; each halves the image."""
        blocks: Width = 2
        """Residual blocks in each section."""
        hidden: Width = 256
        fixup: bool = False
        """Fixup initialisation, for deep networks without normalisation."""

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        channels, height, width = self.shape
        self.fixup = config.fixup
        self.sections = nn.Sequential()
        total = len(config.channels) * config.blocks
        for out in config.channels:
            blocks = [FixupResidual(out, total) if config.fixup else Residual(out) for _ in range(config.blocks)]
            self.sections.append(nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, 1), *blocks))
            channels, height, width = out, math.ceil(height / 2), math.ceil(width / 2)
        self.linear = nn.Linear(channels * height * width, config.hidden)
        self.size = config.hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.linear(self.sections(x).relu().flatten(1))
        return features.relu()

    def init_orthogonal(self, gain: float) -> None:
        if self.fixup:
            raise BadInput("init: orthogonal would undo the torso's fixup: true; choose one of them")
        super().init_orthogonal(gain)
