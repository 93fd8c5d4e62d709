"""A torso of one's own: observations through a layer of random Fourier features.

modrl train examples/custom_torso.yaml scheme=impala
"""

import torch
from pydantic import Field
from torch import nn

from modrl.agent.actors import Torso


class Fourier(Torso):
    """Sines and cosines of random projections (Rahimi & Recht, 2007), then one hidden layer."""

    class Config(Torso.Config):
        features: int = Field(64, ge=1)
        scale: float = Field(0.5, gt=0)

    def __init__(self, config: Config, *, space):
        super().__init__(config, space=space)
        inputs = self.shape[0]  # what `prepare` makes of an observation: here a vector
        self.register_buffer("directions", torch.randn(inputs, config.features) * config.scale)
        self.hidden = nn.Linear(2 * config.features, 64)
        self.size = 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [N, inputs] -> [N, size]
        angles = x @ self.directions
        return torch.tanh(self.hidden(torch.cat([angles.sin(), angles.cos()], -1)))
