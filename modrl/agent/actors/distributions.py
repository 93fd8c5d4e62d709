"""Distributions over actions, lean enough to act a hundred thousand times a second.

Parameters are [..., B, n] and float32 from here on, whatever precision the network runs in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional as F

from modrl.agent.actors.base import Distribution
from modrl.messages import Tree
from modrl.tree import leaves

LOWEST = torch.finfo(torch.float32).min
LOG_TWO = math.log(2)
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Policy(Distribution, ABC):
    """A distribution that also tells how far it is from another of its kind."""

    @abstractmethod
    def kl(self, other: Self) -> torch.Tensor:
        """KL(self || other) in nats [..., B]."""


def _noise(like: torch.Tensor, generator: torch.Generator | None, kind: str) -> torch.Tensor:
    """Random float32 numbers, drawn where the generator lives, so that a device does not change them."""
    device = like.device if generator is None else generator.device
    noise = torch.empty(like.shape, device=device)
    return (noise.exponential_(generator=generator) if kind == "exponential" else noise.normal_(generator=generator)).to(like.device)


def _check(action: torch.Tensor, parameters: torch.Tensor, width: int) -> None:
    """Refuses what would broadcast: the flat action is [..., B, width], one for each of the parameters' [..., B, n]."""
    if action.shape != (*parameters.shape[:-1], width):
        raise ValueError(f"actions of shape {list(action.shape)}: expected {[*parameters.shape[:-1], width]}, one for each step")


class Categorical(Policy):
    """One of n values, from 0: action [..., B]."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.log_probs = F.log_softmax(logits.float(), -1)  # [..., B, n]

    def sample(self, generator: torch.Generator | None = None) -> torch.Tensor:
        noise = _noise(self.log_probs, generator, "exponential").clamp_min_(1e-38)
        return (self.log_probs - noise.log_()).argmax(-1)  # Gumbel's trick: -log of exponential noise

    def mode(self) -> torch.Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tree) -> torch.Tensor:
        index = action.unsqueeze(-1)
        _check(index, self.log_probs, 1)
        return self.log_probs.gather(-1, index).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        return -(self.log_probs.exp() * self.log_probs.clamp_min(LOWEST)).sum(-1)

    def kl(self, other: Self) -> torch.Tensor:
        return (self.log_probs.exp() * (self.log_probs.clamp_min(LOWEST) - other.log_probs.clamp_min(LOWEST))).sum(-1)


class MultiCategorical(Policy):
    """One of n_i values for each part i: action [..., B, *shape]."""

    def __init__(self, logits: torch.Tensor, counts: Sequence[int], shape: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in logits.split(list(counts), -1)]
        self.shape = shape

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts, -1).unflatten(-1, self.shape)

    def sample(self, generator: torch.Generator | None = None) -> torch.Tensor:
        return self._joined([part.sample(generator) for part in self.parts])

    def mode(self) -> torch.Tensor:
        return self._joined([part.mode() for part in self.parts])

    def log_prob(self, action: Tree) -> torch.Tensor:
        values = action.flatten(-len(self.shape)).unbind(-1)
        return _total([part.log_prob(value) for part, value in zip(self.parts, values, strict=True)])

    def entropy(self) -> torch.Tensor:
        return _total([part.entropy() for part in self.parts])

    def kl(self, other: Self) -> torch.Tensor:
        return _total([part.kl(of_other) for part, of_other in zip(self.parts, other.parts, strict=True)])


class Bernoulli(Policy):
    """Independent bits: action [..., B, *shape] of 0 and 1, int8."""

    def __init__(self, logits: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.logits = logits.float()  # [..., B, n]
        self.shape = shape

    def sample(self, generator: torch.Generator | None = None) -> torch.Tensor:
        odds = _noise(self.logits, generator, "exponential").clamp_min_(1e-38).log_()
        odds -= _noise(self.logits, generator, "exponential").clamp_min_(1e-38).log_()  # a logistic variable
        return (odds < self.logits).to(torch.int8).unflatten(-1, self.shape)

    def mode(self) -> torch.Tensor:
        return (self.logits > 0).to(torch.int8).unflatten(-1, self.shape)

    def log_prob(self, action: Tree) -> torch.Tensor:
        bits = action.flatten(-len(self.shape)).float()
        _check(bits, self.logits, self.logits.shape[-1])
        return -F.binary_cross_entropy_with_logits(self.logits, bits, reduction="none").sum(-1)

    def entropy(self) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.logits.sigmoid(), reduction="none").sum(-1)

    def kl(self, other: Self) -> torch.Tensor:
        cross = F.binary_cross_entropy_with_logits(other.logits, self.logits.sigmoid(), reduction="none").sum(-1)
        return cross - self.entropy()


class Gaussian(Policy):
    """Independent normal variables: action [..., B, *shape]."""

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.mean = mean.float()  # [..., B, n]
        self.log_std = log_std.float().expand_as(self.mean)
        self.shape = shape

    def _shaped(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:-1], *self.shape)

    def sample(self, generator: torch.Generator | None = None) -> torch.Tensor:
        return self._shaped(self.mean + self.log_std.exp() * _noise(self.mean, generator, "normal"))

    def mode(self) -> torch.Tensor:
        return self._shaped(self.mean)

    def _flat(self, action: torch.Tensor) -> torch.Tensor:
        return action.flatten(-len(self.shape)) if self.shape else action.unsqueeze(-1)

    def log_prob(self, action: Tree) -> torch.Tensor:
        x = self._flat(action)
        _check(x, self.mean, self.mean.shape[-1])
        return -(0.5 * ((x - self.mean) * (-self.log_std).exp()).square() + self.log_std + HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> torch.Tensor:
        return (self.log_std + (0.5 + HALF_LOG_TWO_PI)).sum(-1)

    def kl(self, other: Self) -> torch.Tensor:
        log_ratio = self.log_std - other.log_std
        distance = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        return (0.5 * ((2 * log_ratio).exp() + distance - 1) - log_ratio).sum(-1)


class SquashedGaussian(Gaussian):
    """Normal variables u that reach the environment as tanh(u), scaled to bounds `half_range` to either side of their middle.

    The action stored is u, so that its probability under other weights is exact; its log-probability is that of the
    bounded action. The mode is the bounded mean. KL divergence is that of u: squashing does not change it.
    """

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, shape: tuple[int, ...], half_range: torch.Tensor) -> None:
        super().__init__(mean, log_std, shape)
        self.log_half_range = half_range.log()  # [n]

    def log_prob(self, action: Tree) -> torch.Tensor:
        return super().log_prob(action) - self._log_slope(self._flat(action)).sum(-1)

    def _log_slope(self, u: torch.Tensor) -> torch.Tensor:
        """Log of the bounded action's derivative by u: log(1 - tanh(u)^2), in a form that holds for large u, and the scale."""
        return 2 * (LOG_TWO - u - F.softplus(-2 * u)) + self.log_half_range

    def entropy(self) -> torch.Tensor:
        """Entropy of the bounded action, by Gauss-Hermite quadrature: it needs no random numbers."""
        nodes, weights = (torch.as_tensor(x, dtype=torch.float32, device=self.mean.device) for x in _QUADRATURE)
        u = self.mean.unsqueeze(-2) + self.log_std.exp().unsqueeze(-2) * nodes.unsqueeze(-1)  # [..., B, nodes, n]
        return super().entropy() + (self._log_slope(u) * weights.unsqueeze(-1)).sum((-2, -1))


def _hermite(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


_QUADRATURE = _hermite(16)


class Joint(Policy):
    """Independent distributions for the parts of a Dict or Tuple: actions of the same form."""

    def __init__(self, parts: dict[str, Policy] | tuple[Policy, ...]) -> None:
        self.parts = parts

    def _each(self, function: Any) -> Tree:
        if isinstance(self.parts, dict):
            return {key: function(part) for key, part in self.parts.items()}
        return tuple(function(part) for part in self.parts)

    def _pairs(self, tree: Any) -> list[tuple[Policy, Any]]:
        if isinstance(self.parts, dict):
            return [(part, tree[key]) for key, part in self.parts.items()]
        return list(zip(self.parts, tree, strict=True))

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return self._each(lambda part: part.sample(generator))

    def mode(self) -> Tree:
        return self._each(lambda part: part.mode())

    def log_prob(self, action: Tree) -> torch.Tensor:
        return _total([part.log_prob(value) for part, value in self._pairs(action)])

    def entropy(self) -> torch.Tensor:
        return _total(leaves(self._each(lambda part: part.entropy())))

    def kl(self, other: Self) -> torch.Tensor:
        return _total([part.kl(of_other) for part, of_other in self._pairs(other.parts)])


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
