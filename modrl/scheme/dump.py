"""What is kept when a number is not finite: enough to compute the loss again, and to say where the first such number came from."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import optree
import torch
from torch import nn
from torch.autograd.graph import Node

from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.batch import Batch, to_device
from modrl.messages import Weights
from modrl.scheme.compute import Compute, Networks
from modrl.seeding import restore
from modrl.tree import as_torch, to_numpy, to_torch


class NotFinite(FloatingPointError):
    """A reward, a loss or a gradient is not finite; nothing was applied. `dump` is plain data to find it again in."""

    def __init__(self, message: str, dump: dict[str, Any]) -> None:
        super().__init__(message, dump)
        self.dump = dump

    def __str__(self) -> str:
        return str(self.args[0])


class Begun(NamedTuple):
    """What a batch's losses are computed from."""

    batch: Batch
    weights: Weights
    generator: torch.Tensor | None  # state of the algorithm's

    def dump(self, weights: Weights, index: int) -> dict[str, Any]:
        """Plain data to compute the loss with this index again, which is on these weights."""
        return {
            "batch": to_numpy(self.batch), "generator": self.generator, "loss": index, "version": weights.version,
            "begun": _plain(self.weights), "weights": _plain(weights),
        }  # fmt: skip


def _plain(weights: Weights) -> dict[str, Any]:
    return {"progress": weights.progress, "acting": to_numpy(weights.acting), "learning": to_numpy(weights.learning)}


def where(algorithm: Algorithm, dump: Mapping[str, Any], compute: Compute = Compute()) -> str:  # noqa: B008 (an immutable)
    """Computes the loss again and says where its first number that is not finite comes from; empty: all are finite now.

    Looked at in this order: the weights, the batch, what each layer gives, the loss's terms, the gradient of each parameter.
    The algorithm's networks are changed.
    """
    if "rollout" in dump:  # which no loss was computed from
        return _in("the rollout", as_torch(dump["rollout"])) or ""
    batch, networks = Batch(*to_torch(dump["batch"])), {"actor": algorithm.actor, **algorithm.modules()}
    weights = {"actor": to_torch(dump["weights"]["acting"]), **to_torch(dump["weights"]["learning"])}
    if found := _in("the weights", weights) or _in("the batch", batch):
        return found
    with torch.compiler.set_stance("force_eager"), _listening(networks) as heard:
        loss = _again(algorithm, dump, batch, compute, heard)
        if heard:
            return f"a layer: {heard[0]}"
        for name, term in loss.terms.items():
            if (place := _first(torch.where(loss.valid, term[: len(loss.valid)], 0))) is not None:
                return f"the loss: term {name} is {place}, from layers that give finite numbers"
        return _in_gradient(networks, loss)


def _in(what: str, tree: Any) -> str | None:
    """The first number of a tree that is not finite; None: all are."""
    for name, value in _named(tree):
        if (place := _first(value)) is not None:
            return f"{what}: {name} is {place}"
    return None


def _again(algorithm: Algorithm, dump: Mapping[str, Any], batch: Batch, compute: Compute, heard: list[str]) -> Loss:
    """The loss that was not finite. `heard` is emptied before it is computed."""
    if algorithm.generator is not None and dump["generator"] is not None:
        restore(algorithm.generator, torch.as_tensor(dump["generator"]))
    _load(algorithm, dump["begun"])
    losses = algorithm.losses(to_device(batch, compute.device))
    with compute.precision_scope():
        for index in range(dump["loss"] + 1):
            if index == 1:  # the weights in between are not known
                _load(algorithm, dump["weights"])
            heard.clear()
            loss = next(losses)
    return loss


def _load(algorithm: Algorithm, weights: Mapping[str, Any]) -> None:
    Networks(algorithm.actor, algorithm.modules()).load(weights["acting"], weights["learning"])
    algorithm.prepare(weights["progress"])


def _in_gradient(networks: Mapping[str, nn.Module], loss: Loss) -> str:
    """Where the gradient of a finite loss stops to be so; empty: nowhere."""
    total, heard = loss.total(), list[str]()
    for node in _operations(total):
        node.register_hook(functools.partial(_hear, heard, node.name()))
    total.backward()
    named = [(f"{name}.{parameter}", value.grad) for name, network in networks.items() for parameter, value in network.named_parameters()]
    bad = [name for name, gradient in named if not _finite(gradient)]
    if not bad:
        return ""
    first = f": it begins in {heard[0]}" if heard else ""
    return f"the gradient of a finite loss: those of {bad[0]} and of {len(bad) - 1} other parameters are not finite{first}"


def _operations(total: torch.Tensor) -> Iterator[Node]:
    """The operations that a number was computed by."""
    seen, left = set[Node](), [total.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            yield node


def _hear(heard: list[str], name: str, given_on: Sequence[torch.Tensor | None], came: Sequence[torch.Tensor | None]) -> None:
    """Notes an operation to which a finite gradient came, and which gave on another."""
    if all(map(_finite, came)) and not all(map(_finite, given_on)):
        heard.append(name)


def _finite(value: torch.Tensor | None) -> bool:
    return value is None or bool(value.isfinite().all())


@contextlib.contextmanager
def _listening(networks: Mapping[str, nn.Module]) -> Iterator[list[str]]:
    """What the layers of these networks give that is not finite, in the order of computing."""
    heard: list[str] = []

    def listener(name: str, kind: str) -> Any:
        def hear(module: nn.Module, given: Any, out: Any) -> None:
            for _, value in _named(out):
                if (place := _first(value)) is not None:
                    heard.append(f"{name} ({kind}) gives {place}")
                    return

        return hear

    with contextlib.ExitStack() as stack:
        for name, network in networks.items():
            for path, module in network.named_modules():
                hook = module.register_forward_hook(listener(f"{name}.{path}" if path else name, type(module).__name__))
                stack.callback(hook.remove)
        yield heard


def _named(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of floating numbers in a tree, and where each is."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # in their order, and by name
        for field in tree._fields:
            yield from _named({field: getattr(tree, field)})
        return
    for path, leaf in zip(*optree.tree_flatten_with_path(tree)[:2], strict=True):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            yield ".".join(map(str, path)), leaf


def _first(value: torch.Tensor) -> str | None:
    """The first number that is not finite, and its place; None: all are."""
    places = (~value.isfinite()).nonzero()
    if not len(places):
        return None
    number = value[tuple(places[0])].item()
    return f"{number} at {places[0].tolist()} of {list(value.shape)}"
