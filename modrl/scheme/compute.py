"""How a worker computes: on which device, in which precision, and how weights get into its networks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from modrl.tree import to_torch


class Compute(NamedTuple):
    """A worker's device and precision."""

    device: torch.device = torch.device("cpu")
    precision: str = "fp32"

    def precision_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to bf16 where asked for. Its cache of cast weights lives until the outermost scope is left: leave it before they change."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def foreign_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Within a `precision_scope`, for code that is not the networks'."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, enabled=False)


def use_torch_threads() -> None:
    """Lets the calling thread compute with as many torch threads as the process is set to.

    OpenMP keeps that number per thread, and a new thread has that of all cores until torch sets it, which it does in some
    operations only. Without this a layer's few rows are split over the cores, and the helpers spin between two steps.
    """
    torch.set_num_threads(torch.get_num_threads())


class State:
    """The state of a network that is copied in and out again and again: where its tensors are is looked up once, at the first time."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @cached_property
    def _places(self) -> list[tuple[str, dict[str, Any], str]]:
        """Each tensor's name, and where it is found: a network may well put another one there."""
        places = []
        for name in self.module.state_dict():
            path, _, last = name.rpartition(".")
            owner = self.module.get_submodule(path)
            places.append((name, owner._parameters if last in owner._parameters else owner._buffers, last))
        return places

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The network's own memory, by name."""
        return {name: place[last] for name, place, last in self._places}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Copies a state into the network, in one call per device.

        Raises:
            ValueError: it is of another network; names the first parameter that differs.
        """
        own, network = self.tensors, type(self.module).__name__
        if own.keys() != state.keys():
            raise ValueError(f"weights do not fit {network}: {', '.join(sorted(own.keys() ^ state.keys())[:4])}: on one side only")
        for name, value in own.items():
            if value.shape != state[name].shape:
                raise ValueError(f"weights do not fit {network}: {name} is {list(value.shape)} here, {list(state[name].shape)} there")
        if own:
            torch._foreach_copy_(list(own.values()), [x if isinstance(x := state[name], torch.Tensor) else to_torch(x) for name in own])

    @torch.no_grad()
    def copy(self) -> dict[str, torch.Tensor]:
        """The state, copied: later steps do not change it."""
        return {name: value.clone() for name, value in self.tensors.items()}


class Networks:
    """The networks of an algorithm, to be copied in and out together: the actor, and what only learns."""

    def __init__(self, actor: nn.Module, learning: Mapping[str, nn.Module]) -> None:
        self._acting = State(actor)
        self._learning = {name: State(module) for name, module in learning.items()}

    def load(self, acting: Mapping[str, Any], learning: Mapping[str, Mapping[str, Any]]) -> None:
        """Copies states into the networks.

        Raises:
            ValueError: one is of another network; names the first parameter that differs.
        """
        if missing := self._learning.keys() - learning.keys():
            raise ValueError(f"there is no state of {', '.join(sorted(missing))}")
        self._acting.load(acting)
        for name, state in self._learning.items():
            state.load(learning[name])

    def copy(self) -> dict[str, Any]:
        """The states, copied: `acting`, and `learning` by name."""
        return {"acting": self._acting.copy(), "learning": {name: state.copy() for name, state in self._learning.items()}}
