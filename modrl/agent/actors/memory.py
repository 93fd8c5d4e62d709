"""Recurrent cores: what an actor remembers from step to step.

The state is reset before a step whose `first` is set. Between such steps a core runs over the whole stretch at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import nn

from modrl.config import Component
from modrl.messages import Tree
from modrl.tree import tree_map


class Slots(NamedTuple):
    """Steps whose state is asked for: the K truncated ones, in (t, b) order."""

    times: torch.Tensor  # [K]
    envs: torch.Tensor  # [K]


class Unrolled(NamedTuple):
    """What a core makes of a sequence."""

    outputs: torch.Tensor  # [S, B, size]
    state: Tree  # [B, ...] after the last step
    at_slots: Tree | None  # [K, ...] after the steps asked for


class Recurrent(Component, nn.Module, ABC, kind="memory"):
    """A recurrent core. A core of one's own gives `initial` and `advance`; `forward` resets and collects."""

    class Config(Component.Config):
        size: Annotated[int, Field(ge=1)] = 256
        """Features it gives."""

    def __init__(self, config: Config, *, inputs: int) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.inputs = inputs
        self.size = config.size

    @abstractmethod
    def initial(self, size: int) -> Tree:
        """The state [size, ...] before an episode's first step, float32."""

    @abstractmethod
    def advance(self, features: torch.Tensor, state: Tree) -> tuple[torch.Tensor, Tree]:
        """Outputs [s, B, size] and the state after s steps without a reset: features [s, B, inputs], state [B, ...]."""

    def init_orthogonal(self) -> None:
        """Gives every matrix orthogonal weights of gain 1, and no bias."""
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, features: torch.Tensor, first: torch.Tensor, state: Tree, slots: Slots | None = None) -> Unrolled:
        """Outputs for features [S, B, inputs], the state reset where `first` [S, B]."""
        if slots is None and len(first) == 1 and (torch.compiler.is_exporting() or torch.jit.is_tracing()):  # what resets is not known
            return Unrolled(*self.advance(features, _where(first[0], self.initial(first.shape[1]), state)), None)
        resets = first.any(1).tolist()
        asked = set(slots.times.tolist()) if slots is not None else set()
        starts = [t for t, reset in enumerate(resets) if t == 0 or reset or t - 1 in asked]
        outputs, found = [], []
        for start, end in zip(starts, [*starts[1:], len(resets)], strict=True):
            if resets[start]:
                state = _where(first[start], self.initial(first.shape[1]), state)
            output, state = self.advance(features[start:end], state)
            outputs.append(output)
            if slots is not None and end - 1 in asked:
                envs = slots.envs[slots.times == end - 1]
                found.append(tree_map(lambda x, envs=envs: x[envs], state))
        at_slots = tree_map(lambda *parts: torch.cat(parts), *found) if found else None
        return Unrolled(torch.cat(outputs) if len(outputs) > 1 else outputs[0], state, at_slots)


def _where(mask: torch.Tensor, yes: Tree, no: Tree) -> Tree:
    return tree_map(lambda a, b: torch.where(mask.view(-1, *[1] * (b.dim() - 1)), a, b), yes, no)


class _Layered(Recurrent):
    """Layers of torch's own cells; in float32 under autocast too, so that what is stored of them is exact."""

    core: nn.RNNBase

    class Config(Recurrent.Config):
        layers: Annotated[int, Field(ge=1)] = 1

    def __init__(self, config: Config, *, inputs: int) -> None:
        super().__init__(config, inputs=inputs)
        self.layers = config.layers

    def advance(self, features: torch.Tensor, state: Tree) -> tuple[torch.Tensor, Tree]:
        with torch.autocast(features.device.type, enabled=False):
            outputs, state = self.core(features.float(), tree_map(lambda x: x.transpose(0, 1).contiguous(), state))
        return outputs, tree_map(lambda x: x.transpose(0, 1), state)

    def _zeros(self, size: int) -> torch.Tensor:
        return torch.zeros(size, self.layers, self.size, device=next(self.parameters()).device)


class LSTM(_Layered, name="lstm"):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997); its state is (hidden, cell), each [B, layers, size]."""

    def __init__(self, config: _Layered.Config, *, inputs: int) -> None:
        super().__init__(config, inputs=inputs)
        self.core = nn.LSTM(inputs, config.size, config.layers)

    def initial(self, size: int) -> Tree:
        return self._zeros(size), self._zeros(size)


class GRU(_Layered, name="gru"):
    """Gated recurrent units (Cho et al., 2014); its state is the hidden one [B, layers, size]."""

    def __init__(self, config: _Layered.Config, *, inputs: int) -> None:
        super().__init__(config, inputs=inputs)
        self.core = nn.GRU(inputs, config.size, config.layers)

    def initial(self, size: int) -> Tree:
        return self._zeros(size)
