"""The updater: keeps the ledger (version, env steps) and the optimisers, applies gradients, hands out weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from modrl.agent.algorithms.base import Algorithm
from modrl.agent.optimizers import Optimizer
from modrl.agent.statistics import statistics_of
from modrl.config import dump
from modrl.messages import Gradient, Weights
from modrl.scheme.compute import Networks, State
from modrl.scheme.stages import add
from modrl.tree import to_torch

Record = Callable[[Sequence[Gradient], Sequence[int], dict[str, float]], None]
"""Told of every update: the gradients, their lags in versions, and what the optimiser says (learning_rate, grad_norm)."""


class Optimizers:
    """An algorithm's optimisers, one for each of its groups of parameters."""

    def __init__(self, algorithm: Algorithm, rule: Optimizer.Config) -> None:
        self.algorithm = algorithm
        self.rule = rule
        self._networks = Networks(algorithm.actor, algorithm.modules())
        self.statistics = statistics_of(algorithm.actor, algorithm.modules())
        self.by_name: dict[str, Optimizer] = {name: rule.build(parameters=p) for name, p in algorithm.trained().items()}

    def step(self, tensors: Mapping[str, list[torch.Tensor]], weight: float, progress: float) -> dict[str, float]:
        """One step on gradients summed over `weight` valid samples: divided by their number where the loss is a mean. Gives what the rule says.

        Raises:
            FloatingPointError: a gradient is not finite; nothing was applied.
        """
        said: dict[str, float] = {}
        for name, gradients in tensors.items():
            said |= self.by_name[name].step(gradients, progress, weight if self.algorithm.config.reduction == "mean" else 1)
        return said

    def merge(self, measured: Mapping[str, torch.Tensor]) -> None:
        """Has the agent's statistics take in what was measured.

        Raises:
            ValueError: the agent has no statistic of a name.
        """
        for name, sums in measured.items():
            if name not in self.statistics:
                raise ValueError(f"what was measured as {name!r} has no statistic; there are: {', '.join(self.statistics) or 'none'}")
            self.statistics[name].merge(sums)

    def finite(self) -> bool:
        """Whether all parameters are."""
        return all(bool(p.isfinite().all()) for optimizer in self.by_name.values() for p in optimizer.parameters)

    def networks(self) -> dict[str, Any]:
        """The networks' states, copied: what acts, and what learns."""
        return self._networks.copy()

    def begin_with(self, acting: Mapping[str, Any]) -> None:
        """Takes over the weights of what acts."""
        State(self.algorithm.actor).load(acting)

    def state(self) -> dict[str, Any]:
        """Networks and optimisers, as plain data to continue from."""
        return {
            **self.networks(),
            "optimizer": dump(self.rule)["name"], "optimizers": {name: optimizer.state() for name, optimizer in self.by_name.items()},
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: it is of other networks or of another optimiser.
        """
        if state["optimizer"] != (name := dump(self.rule)["name"]):
            raise ValueError(f"its optimizer is {state['optimizer']}, not {name}")
        self._networks.load(state["acting"], state["learning"])
        for name, optimizer in self.by_name.items():
            optimizer.restore(state["optimizers"][name])


class Updater:
    """Holds the one authoritative copy of the weights; where gradient workers hold `replicas`, only the ledger."""

    def __init__(self, *, algorithm: Algorithm, optimizer: Optimizer.Config, steps: int, record: Record, replicas: bool = False) -> None:
        self.algorithm = algorithm
        self.steps = steps
        self.record = record
        self.replicas = replicas
        self.optimizers = Optimizers(algorithm, optimizer)
        self.version = 0  # losses answered, those that were given up included: lags are counted in it
        self.updates = 0  # optimiser steps
        self.env_steps = 0

    @property
    def progress(self) -> float:
        """The share of the run's env steps that is done, in [0, 1]."""
        return min(1.0, self.env_steps / self.steps)

    def weights(self) -> Weights:
        """A snapshot of the weights as they are now; replicas have their own."""
        return Weights(self.version, self.progress, {}, {}) if self.replicas else self.learned()

    def learned(self) -> Weights:
        """A snapshot of the weights that this process holds."""
        return Weights(self.version, self.progress, **self.optimizers.networks())

    def apply(self, gradients: Sequence[Gradient]) -> Weights:
        """The weights after one optimiser step on the sum of these gradients.

        Raises:
            FloatingPointError: a gradient is not finite; nothing was applied.
        """
        total = sum(gradient.weight for gradient in gradients)
        lags = [self.version - gradient.version for gradient in gradients]
        said: dict[str, float] = {}
        if total:  # else every loss was empty: a batch that was given up early
            said = _mean([g.said for g in gradients]) if self.replicas else self.optimizers.step(_sum(gradients), total, self.progress)
            self.updates += 1
        if not self.replicas and (measured := [gradient.statistics for gradient in gradients if gradient.statistics]):
            self.optimizers.merge(add(*map(to_torch, measured)))
        self.version += 1
        self.env_steps += sum(gradient.env_steps for gradient in gradients)
        self.record(gradients, lags, said)
        return self.weights()

    def state(self) -> dict[str, Any]:
        """Plain data to continue from."""
        return {"version": self.version, "updates": self.updates, "env_steps": self.env_steps, **self.optimizers.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: it is of other networks or of another optimiser.
        """
        self.optimizers.restore(state)
        self.version, self.updates, self.env_steps = state["version"], state["updates"], state["env_steps"]


def _mean(said: Sequence[dict[str, float]]) -> dict[str, float]:
    """What the replicas' optimisers said, averaged."""
    names = [name for name in said[0] if all(name in other for other in said)]
    return {name: sum(one[name] for one in said) / len(said) for name in names}


def _sum(gradients: Sequence[Gradient]) -> dict[str, list[torch.Tensor]]:
    """Tensors by optimiser, added up in the order given."""
    total: dict[str, list[torch.Tensor]] = {}
    for gradient in gradients:
        for name, tensors in to_torch(gradient.tensors).items():
            if name in total:
                torch._foreach_add_(total[name], tensors)
            else:
                total[name] = list(tensors)
    return total
