"""`modrl export`: a policy as one file that needs neither modrl nor Python: TorchScript (.pt) or ONNX (.onnx).

The file's model takes one step: tensors in and out are named in its metadata, under "modrl", as JSON:

* inputs: the leaves of the observation (`obs`, or `obs.KEY`), `first` (whether an episode begins), and what the model gave before (`memory.N`);
* outputs: the leaves of the action that the environment takes (`action`, or `action.KEY`), then the next `memory.N`, which begins at zero.

`reward`, of the last action, is among the inputs where the policy looks at it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector.utils import batch_space
from torch import nn

from modrl.agent.actors import ActorCritic
from modrl.agent.actors.base import Memory
from modrl.agent.actors.heads import DiscreteHead, GaussianHead, Head, JointHead, MultiDiscreteHead, SquashedHead
from modrl.agent.actors.spaces import children, dotted, leaf_at, leaf_spaces
from modrl.config import BadInput
from modrl.envs.spaces import adopted
from modrl.extras import require_extra
from modrl.messages import Tree
from modrl.policy import load
from modrl.tree import leaves, tree_map

STEPS = 20
"""Random steps in which a written file has to act as the policy does."""
TOLERANCE = 1e-4
"""Of actions that are no whole numbers, and of the memory."""


def export(run_dir: str | Path, out: str | Path, checkpoint: str | int = "latest", batch: int = 1) -> dict[str, Any]:
    """Writes a run's greedy policy, for `batch` environments at once, and checks the file against it. Gives the file's metadata.

    Raises:
        BadInput: the policy cannot be exported so, or the file acts otherwise.
    """
    path = Path(out)
    if path.suffix not in _WRITERS:
        raise BadInput(f"--out: expected a file that ends in .pt (TorchScript) or .onnx (ONNX), got {path.name!r}")
    actor = load(run_dir, checkpoint).actor
    if not isinstance(actor, ActorCritic):
        raise BadInput(f"{type(actor).__name__} cannot be exported: only ActorCritic and what is derived from it")
    model = _Step(actor, batch).eval().requires_grad_(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    try:
        read = _WRITERS[path.suffix](model, aside)
        _check(model, read)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return model.metadata()


class _Step(nn.Module):
    """One greedy step, of flat tensors to flat tensors."""

    def __init__(self, actor: ActorCritic, batch: int) -> None:
        super().__init__()
        self.actor = actor
        self.batch = batch
        self.looks_at_reward = actor.last_reward
        self.paths = [path for path, _ in leaf_spaces(actor.observation_space)]
        memory = actor.initial_memory(batch)
        self.initial: Tree = {"state": memory.state, "last_action": memory.last_action if actor.last_action else ()}
        names = [".".join(filter(None, ("obs", dotted(path)))) for path in self.paths]
        self.memory_names = [f"memory.{i}" for i in range(len(leaves(self.initial)))]
        self.inputs = [*names, "first", *(["reward"] if self.looks_at_reward else []), *self.memory_names]
        actions = [".".join(filter(None, ("action", dotted(path)))) for path, _ in leaf_spaces(actor.action_space)]
        self.outputs = [*actions, *self.memory_names]

    def metadata(self) -> dict[str, Any]:
        example = dict(zip(self.inputs, self.example(np.random.default_rng(0)), strict=True))
        described = {name: {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")} for name, x in example.items()}
        return {"inputs": described, "outputs": self.outputs}

    def example(self, rng: np.random.Generator) -> list[torch.Tensor]:
        """Random inputs; the memory is the initial one."""
        space = batch_space(self.actor.observation_space, self.batch)
        space.seed(int(rng.integers(2**31)))
        obs = adopted(self.actor.observation_space, space.sample())
        flat = [_bounded(torch.from_numpy(np.array(leaf_at(obs, path))), rng) for path in self.paths]
        rewards = [torch.tensor(rng.normal(size=self.batch), dtype=torch.float32)] if self.looks_at_reward else []
        return [*flat, torch.tensor(rng.random(self.batch) < 0.2), *rewards, *leaves(self.initial)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self.inputs, tensors, strict=True))
        obs = _tree(self.actor.observation_space, [given[name] for name in self.inputs[: len(self.paths)]])
        kept = iter(given[name] for name in self.memory_names)
        memory = tree_map(lambda _: next(kept), self.initial)
        reward = given.get("reward", torch.zeros(self.batch))
        last_action = memory["last_action"] if self.actor.last_action else self.actor.initial_memory(self.batch).last_action
        inference = self.actor.infer(obs, given["first"], Memory(memory["state"], last_action, reward))
        action = self.actor.head.distribution(inference.policy).mode()
        after = {"state": inference.state, "last_action": action if self.actor.last_action else ()}
        return (*leaves(_to_env(self.actor.head, action)), *leaves(after))


def _bounded(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Random numbers in place of the enormous ones that an unbounded space draws."""
    return torch.tensor(rng.normal(size=x.shape), dtype=x.dtype) if x.is_floating_point() and x.abs().max() > 1e3 else x


def _tree(space: Space, flat: Sequence[torch.Tensor]) -> Tree:
    """Leaves in the order of sorted keys as the space's observation."""
    rest = iter(flat)

    def built(part: Space) -> Tree:
        inner = children(part)
        if not inner:
            return next(rest)
        values = [(key, built(child)) for key, child in inner]
        return tuple(value for _, value in values) if isinstance(values[0][0], int) else dict(values)

    return built(space)


def _to_env(head: Head, action: Tree) -> Tree:
    """As the head's `to_env`, in tensors."""
    match head:
        case DiscreteHead():
            return action + int(head.space.start)
        case MultiDiscreteHead():
            return action + torch.from_numpy(np.asarray(head.space.start))
        case SquashedHead():
            low, high = _bounds(head)
            return (low + (action.tanh() + 1) / 2 * (high - low)).clamp(low, high)
        case GaussianHead():
            return action.clamp(*_bounds(head))
        case JointHead():
            parts = zip(head.keys, head.parts, strict=True)
            return {key: _to_env(part, action[key]) for key, part in parts}  # type: ignore[arg-type]
    return action


def _bounds(head: GaussianHead) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(head.space.low).float(), torch.from_numpy(head.space.high).float()


Read = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@torch.no_grad()
def _script(model: _Step, path: Path) -> Read:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes are constants: a batch is of the size that it was exported for
        traced = torch.jit.trace(model, tuple(model.example(np.random.default_rng(1))), check_trace=False)
        torch.jit.save(traced, str(path), _extra_files={"modrl": json.dumps(model.metadata())})
        read = torch.jit.load(str(path))
    return lambda tensors: read(*tensors)


@torch.no_grad()
def _onnx(model: _Step, path: Path) -> Read:
    require_extra("onnx", "--out: ONNX", "onnx, onnxscript and onnxruntime", "onnx", "onnxscript", "onnxruntime")
    import onnx
    import onnxruntime

    example = tuple(model.example(np.random.default_rng(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, example, input_names=model.inputs, output_names=[f"{name}'" for name in model.outputs], dynamo=True)
    assert program is not None
    proto = program.model_proto
    proto.metadata_props.append(onnx.StringStringEntryProto(key="modrl", value=json.dumps(model.metadata())))
    onnx.save(proto, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = [entry.name for entry in session.get_inputs()]  # inputs that change nothing are left out

    def read(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = dict(zip(model.inputs, tensors, strict=True))
        return [torch.from_numpy(np.array(x)) for x in session.run(None, {name: given[name].numpy() for name in wanted})]

    return read


_WRITERS: dict[str, Callable[[_Step, Path], Read]] = {".pt": _script, ".onnx": _onnx}


@torch.no_grad()
def _check(model: _Step, read: Read) -> None:
    """Both act for a while on the same random observations, each with its own memory.

    Raises:
        BadInput: they differ.
    """
    rng = np.random.default_rng(2)
    count = len(model.memory_names)
    theirs = model.example(rng)[len(model.inputs) - count :]
    memory = model.actor.initial_memory(model.batch)
    for step in range(STEPS):
        given = model.example(rng)[: len(model.inputs) - count]
        named = dict(zip(model.inputs, given, strict=False))
        obs = _tree(model.actor.observation_space, given[: len(model.paths)])
        acted = model.actor.act(obs, named["first"], memory._replace(last_reward=named.get("reward", memory.last_reward)), None, True)
        memory = acted.memory
        after = {"state": memory.state, "last_action": memory.last_action if model.actor.last_action else ()}
        action = tree_map(lambda x: torch.from_numpy(np.array(x)), model.actor.to_env(acted.action))
        one, other = [*leaves(action), *leaves(after)], list(read([*given, *theirs]))
        for name, x, y in zip(model.outputs, one, other, strict=True):
            if x.shape != y.shape or not torch.allclose(x.double(), y.double(), rtol=TOLERANCE, atol=TOLERANCE):
                raise BadInput(f"the exported file acts otherwise than the policy: {name} in step {step}; it was not kept")
        theirs = other[len(other) - count :]
