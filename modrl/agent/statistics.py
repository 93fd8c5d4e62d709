"""Running statistics that belong to an agent: of observations, of discounted returns, of the values' targets.

Workers measure their own valid steps as sums, which add up to those of all steps; whoever applies the gradients merges them, so
that every scheme that agrees at each step has the same statistics; replicas that average their weights now and then average these too.
They are part of the networks' state: collectors receive them with the weights, a checkpoint holds them, and an evaluation, which merges
nothing, leaves them as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import nn


class Statistic(nn.Module, ABC):
    """Statistics of numbers of one shape."""

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def zero(self) -> torch.Tensor:
        """The sums of no steps."""
        return torch.zeros(1 + 2 * int(torch.Size(self.shape).numel()), dtype=torch.float64)

    @abstractmethod
    def merge(self, sums: torch.Tensor) -> None:
        """Takes in what was measured, as `sums_over` gives it, or the total of several."""


@torch.no_grad()
def sums_over(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """How many steps are valid, and the sums of x and of its squares over them [1 + 2n]: x [T, B, ...] with n numbers a step, valid [T, B].

    In double precision, so that neither the order of the steps nor how they are dealt out matters.
    """
    kept = torch.where(valid.unsqueeze(-1), x.reshape(*valid.shape, -1).double(), 0.0)
    return torch.cat([valid.sum().double().view(1), kept.sum((0, 1)), kept.square().sum((0, 1))])


class Running(Statistic):
    """Mean and standard deviation of all that was measured so far; 0 and 1 before anything was.

    `forward` centres and scales, and bounds the result to `clip` standard deviations.
    """

    seen: torch.Tensor  # sums of all steps so far
    mean: torch.Tensor  # [...] float32
    std: torch.Tensor  # [...] float32

    def __init__(self, shape: Sequence[int] = (), clip: float = 10.0) -> None:
        super().__init__(shape)
        self.clip = clip
        self.register_buffer("seen", self.zero())
        self.register_buffer("mean", torch.zeros(self.shape))
        self.register_buffer("std", torch.ones(self.shape))

    @torch.no_grad()
    def merge(self, sums: torch.Tensor) -> None:
        self.seen += sums.to(self.seen.device)
        count, total, squares = self.seen.split([1, (len(self.seen) - 1) // 2, (len(self.seen) - 1) // 2])
        if count.item():
            mean = total / count
            variance = (squares / count - mean.square()).clamp(min=1e-8)
            self.mean.copy_(mean.view(self.shape))
            self.std.copy_(variance.sqrt().view(self.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.mean) / self.std).clamp(-self.clip, self.clip)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """`x` in standard deviations, not centred: the sign of a reward stays."""
        return (x / self.std).clamp(-self.clip, self.clip)


class PopArt(Statistic):
    """A linear layer that learns normalised values, and preserves its outputs when their statistics change.

    V = std * (w x + b) + mean, with moving averages of the targets' mean and square of step size `step`; when these change,
    w and b are adapted so that V stays the same (van Hasselt et al., 2016; IMPALA: Hessel et al., 2018). The averages are corrected for
    their beginning at zero (Kingma and Ba, 2015, section 3).
    """

    moments: torch.Tensor  # moving averages of 1, of the targets, and of their squares, float64
    mean: torch.Tensor  # float32
    std: torch.Tensor  # float32

    def __init__(self, inputs: int, step: float, lowest: float = 1e-4, highest: float = 1e6) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 1)
        self.step, self.lowest, self.highest = step, lowest, highest
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.linear.bias

    @torch.no_grad()
    def merge(self, sums: torch.Tensor) -> None:
        count = sums[0].item()
        if not count:
            return
        self.moments.lerp_((sums / count).to(self.moments.device), self.step)
        _, mean, square = (self.moments / self.moments[0]).unbind()
        std = (square - mean.square()).clamp(min=0).sqrt().clamp(self.lowest, self.highest)
        self.linear.weight.mul_(self.std / std)
        self.linear.bias.copy_((self.std * self.linear.bias + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.linear(features).float() * self.std + self.mean


def statistics_of(actor: nn.Module, learning: Mapping[str, nn.Module]) -> dict[str, Statistic]:
    """All statistics of an actor and of what only learns, by the name that their sums travel under: `actor.normalizer.parts.0`."""
    roots = {"actor": actor, **learning}
    return {
        f"{root}.{path}".rstrip("."): part for root, module in roots.items() for path, part in module.named_modules() if isinstance(part, Statistic)
    }
