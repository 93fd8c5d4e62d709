"""Convolutional torsos: how an image becomes channels first, and the two small networks that Atari agents use."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import gymnasium
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from modrl.agent.actors.spaces import describe
from modrl.agent.actors.torsos import Torso, Width
from modrl.config import BadInput

FEW = 4
"""Channels that are put next to one another plane by plane."""
Layout: TypeAlias = Literal["auto", "channels_first", "channels_last"]


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """The rule for `layout: auto`, by an image's three sizes.

    An end of 1 to 4 is the channels, the first one where both ends are. Where neither is, two equal neighbours are the
    pixels' rows and columns, and failing that the channels come first.
    """
    first, middle, last = shape
    return last <= 4 < first if min(first, last) <= 4 else first == middle != last


def image_shape(shape: tuple[int, ...], layout: Layout = "auto") -> tuple[int, int, int]:
    """Channels, height and width of an image or of a stack of images, whose channels are put side by side."""
    *stack, first, middle, last = shape
    if is_channels_last((first, middle, last)) if layout == "auto" else layout == "channels_last":
        first, middle, last = last, first, middle
    return math.prod(stack) * first, middle, last


def is_image(space: gymnasium.Space) -> bool:
    """Whether it is a Box of three sizes, or a stack of such."""
    return isinstance(space, spaces.Box) and len(space.shape) in (3, 4)


class ImageTorso(Torso):
    """What image torsos share: images [C, H, W] in [0, 1]. A stack of images becomes one, channels side by side."""

    memory_format: torch.memory_format = torch.channels_last
    """How images lie in memory. On CPUs `channels_last` is twice as fast for `deep`; for small networks it may be the slower one."""

    class Config(Torso.Config):
        layout: Layout = "auto"
        """Where the channels are. `auto`: the end that is 1 to 4, the first where both are; else by which two sizes are equal."""
        standardize: bool = False
        """Give each image mean 0 and standard deviation 1 over its pixels and channels: small things before a plain background stand out."""

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        if not is_image(space):
            raise BadInput(
                f"torso {self.name} takes images, a Box of three sizes or a stack of such, got {describe(space)}: use mlp, "
                "or a torso for each key of the observation"
            )
        self.standardize = config.standardize
        self.channels_last = is_channels_last(self.shape[-3:]) if config.layout == "auto" else config.layout == "channels_last"
        self.shape = image_shape(self.shape, config.layout)

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """The images [N, C, H, W] in [0, 1], or standardised."""
        if self.channels_last:
            x = x.movedim(-1, -3)
        x = x.flatten(1, -3) if x.dim() > 4 else x
        if self.memory_format == torch.channels_last and 1 < x.shape[1] <= FEW:  # twice as fast as `contiguous`
            x = torch.stack(x.unbind(1), -1).movedim(-1, 1)
        x = x.contiguous(memory_format=self.memory_format)
        if x.dtype == torch.uint8 and torch.is_autocast_enabled(x.device.type):  # straight to what the first layer would make of it
            x = x.to(torch.get_autocast_dtype(x.device.type))
            return standardized(x) if self.standardize else x.div_(255)
        return standardized(x.float()) if self.standardize else super().prepare(x)


def standardized(x: torch.Tensor) -> torch.Tensor:
    """The images [N, C, H, W], each with mean 0 and standard deviation 1; one of a single colour is 0."""
    dense = x if x.is_contiguous() else x.movedim(1, -1)
    dense = F.layer_norm(dense, dense.shape[1:], eps=1e-8)
    return dense if x.is_contiguous() else dense.movedim(-1, 1)


def conv_size(size: int, kernel: int, stride: int) -> int:
    """Pixels along one side after a convolution without padding."""
    return (size - kernel) // stride + 1


class ConvTorso(ImageTorso):
    """Convolutions without padding, each followed by a ReLU, and one fully connected layer."""

    layers: tuple[tuple[int, int, int], ...]
    """(channels, kernel, stride) of each convolution."""

    class Config(ImageTorso.Config):
        hidden: Width = 256

    def __init__(self, config: Config, *, space: gymnasium.Space) -> None:
        super().__init__(config, space=space)
        channels, height, width = self.shape
        if min(height, width) < self.smallest():
            raise BadInput(
                f"torso {self.name} needs images of {self.smallest()} pixels a side, got {height}x{width} with {channels} channels: "
                "use deep or mlp, make the images larger, or set layout if channels were taken for pixels"
            )
        self.convs = nn.Sequential()
        for out, kernel, stride in self.layers:
            self.convs.extend([nn.Conv2d(channels, out, kernel, stride), nn.ReLU()])
            channels, height, width = out, conv_size(height, kernel, stride), conv_size(width, kernel, stride)
        self.linear = nn.Linear(channels * height * width, config.hidden)
        self.size = config.hidden

    @classmethod
    def smallest(cls) -> int:
        """Pixels on a side that leave one after the last convolution."""
        size = 1
        for _, kernel, stride in reversed(cls.layers):
            size = (size - 1) * stride + kernel
        return size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.linear(self.convs(x).flatten(1))
        return features.relu()


class Nature(ConvTorso, name="nature"):
    """The network of DQN (Mnih et al., 2015)."""

    layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))

    class Config(ConvTorso.Config):
        hidden: Width = 512


class Shallow(ConvTorso, name="shallow"):
    """The shallow network of IMPALA (Espeholt et al., 2018, figure 3, left) and of A3C before it."""

    layers = ((16, 8, 4), (32, 4, 2))
