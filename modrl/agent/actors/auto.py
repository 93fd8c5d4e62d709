"""The torso that is chosen by the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch

from modrl.agent.actors.images import Nature, image_shape, is_image
from modrl.agent.actors.resnet import Deep
from modrl.agent.actors.torsos import MLP, Torso


class Auto(Torso, name="auto"):
    """`image` for images, a Box of three sizes or a stack of such; `vector` for all else."""

    class Config(Torso.Config):
        image: Torso.Config | None = None
        """null: nature, and deep for images that nature is too large for (less than 36 pixels on a side)."""
        vector: Torso.Config = MLP.Config()

        def build(self, **runtime: Any) -> Torso:
            space: gymnasium.Space = runtime["space"]
            chosen = (self.image or _that_fits(space)) if is_image(space) else self.vector
            torso: Torso = chosen.build(space=space)
            return torso

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("auto builds another torso in its place")


def _that_fits(space: gymnasium.Space) -> Torso.Config:
    _, height, width = image_shape(space.shape or ())
    return Nature.Config() if min(height, width) >= Nature.smallest() else Deep.Config()
