"""What applies gradients: the learning rate's schedule, clipping by the global norm, and the rule itself.

Beside the two rules here, any of torch's may be named by its path, with its own settings:
`optimizer: {name: torch.optim:AdamW, lr: 1e-3, weight_decay: 0.1}`.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias

import torch
from pydantic import Field, create_model, model_validator

from modrl.agent.schedules import Constant, Cosine, Linear, Piecewise, Schedule, Scheduled, admit_schedules, value_at
from modrl.config import ADAPTERS, Component

__all__ = ["Adam", "Constant", "Cosine", "Linear", "Optimizer", "Piecewise", "RMSProp", "Schedule", "Scheduled"]

LearningRate: TypeAlias = Annotated[float, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Component, ABC, kind="optimizer"):
    """Applies gradients to parameters."""

    class Config(Component.Config):
        lr: LearningRate
        """The learning rate; it may be a schedule."""
        max_grad_norm: float | None = Field(None, gt=0)
        """Gradients are scaled down to this global norm; null: never."""

        @classmethod
        def __pydantic_init_subclass__(cls, **options: Any) -> None:
            if cls.model_fields["lr"].annotation is float:
                admit_schedules(cls.model_fields["lr"])
                cls.model_rebuild(force=True)

    def __init__(self, config: Config, *, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.config = config
        self.parameters = list(parameters)

    def step(self, gradients: Sequence[torch.Tensor], progress: float, samples: float = 1) -> dict[str, float]:
        """One step on gradients summed over so many samples, in the order of the parameters: divided by their number, then clipped.

        Gives the norm before clipping, and the learning rate.

        Raises:
            FloatingPointError: the gradient is not finite; nothing was applied.
        """
        assert len(gradients) == len(self.parameters), f"{len(gradients)} gradients for {len(self.parameters)} parameters"
        arranged = self.arrange(gradients)
        norm = float(global_norm(arranged)) / samples
        if not math.isfinite(norm):
            raise _not_finite(gradients)
        limit = self.config.max_grad_norm
        scale = (limit / norm if limit is not None and norm > limit else 1.0) / samples
        rate = max(value_at(self.config.lr, progress), 0.0)
        self.apply(arranged, scale, rate)
        return {"learning_rate": rate, "grad_norm": norm}

    @abstractmethod
    def arrange(self, gradients: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Gradients, one for each parameter, as `apply` takes them, on the parameters' devices."""

    @abstractmethod
    def apply(self, gradients: Sequence[torch.Tensor], scale: float, rate: float) -> None:
        """Changes the parameters by the rule, at this learning rate, for arranged gradients times `scale`."""

    def state(self) -> list[dict[str, Any]]:
        """What the rule remembers of each parameter: plain data, copied. Settings are not in it: those given at a restart hold."""
        return [_copied(entry) for entry in self.memory()]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continues from what `state` gave.

        Raises:
            ValueError: it is of another number of parameters.
        """
        if len(state) != len(self.parameters):
            raise ValueError(f"the saved optimizer steps {len(state)} parameters, this one {len(self.parameters)}: the networks differ")
        self.remember([_copied(entry) for entry in state])

    @abstractmethod
    def memory(self) -> Sequence[Mapping[str, Any]]:
        """What the rule remembers of each parameter."""

    @abstractmethod
    def remember(self, memory: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `memory` gave."""


def global_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all numbers together; of nothing 0."""
    norms = torch._foreach_norm(list(tensors)) if tensors else [torch.zeros(())]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _not_finite(gradients: Sequence[torch.Tensor]) -> FloatingPointError:
    bad = [list(gradient.shape) for gradient in gradients if not gradient.isfinite().all()]
    where = f"in {len(bad)} of {len(gradients)} tensors, the first of shape {bad[0]}" if bad else "its norm is too large"
    return FloatingPointError(f"the gradient is not finite: {where}; nothing was applied. Look for a loss or a learning rate that explodes")


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in entry.items()}


class Block:
    """Parameters of one device and type, and averages of their gradients that lie side by side [N]."""

    def __init__(self, parameters: Mapping[int, torch.nn.Parameter]) -> None:
        self.indices = list(parameters)  # among the optimiser's
        self.parameters: list[torch.Tensor] = list(parameters.values())
        self.steps = 0
        self.averages: dict[str, torch.Tensor] = {}
        self._parts: dict[str, list[torch.Tensor]] = {}

    def average(self, name: str) -> torch.Tensor:
        """The running average of this name; it starts at zero."""
        if name not in self.averages:
            self.keep(name, self.join([torch.zeros_like(parameter) for parameter in self.parameters]))
        return self.averages[name]

    def parts(self, name: str) -> list[torch.Tensor]:
        """The running average as one tensor for each parameter, in the same memory."""
        self.average(name)
        return self._parts[name]

    def keep(self, name: str, average: torch.Tensor) -> None:
        """The running average of this name is this one from now on."""
        self.averages[name], self._parts[name] = average, self.split(average)

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor for each parameter, side by side."""
        return torch.cat([tensor.to(parameter.device).reshape(-1) for tensor, parameter in zip(tensors, self.parameters, strict=True)])

    def split(self, joined: torch.Tensor) -> list[torch.Tensor]:
        """A tensor [N] as one for each parameter, in the same memory."""
        parts = joined.split([parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]


class Elementwise(Optimizer):
    """A rule that treats every number by itself: most of a step is a few operations on all gradients at once."""

    @functools.cached_property
    def blocks(self) -> list[Block]:
        """Made when first asked for, when the networks are where they compute."""
        kinds: dict[Any, dict[int, torch.nn.Parameter]] = {}
        for index, parameter in enumerate(self.parameters):
            kinds.setdefault((parameter.device, parameter.dtype), {})[index] = parameter
        return [Block(parameters) for parameters in kinds.values()]

    def arrange(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [block.join([gradients[index] for index in block.indices]) for block in self.blocks]

    @torch.no_grad()
    def apply(self, gradients: Sequence[torch.Tensor], scale: float, rate: float) -> None:
        for block, gradient in zip(self.blocks, gradients, strict=True):
            block.steps += 1
            self.update(block, gradient if scale == 1 else gradient.mul_(scale), rate)

    @abstractmethod
    def update(self, block: Block, gradient: torch.Tensor, rate: float) -> None:
        """Changes the block's parameters for a gradient [N]; `block.steps` counts from 1."""

    def memory(self) -> list[dict[str, Any]]:
        memory: dict[int, dict[str, Any]] = {}
        for block in self.blocks:
            for place, index in enumerate(block.indices):
                averages = {name: block.parts(name)[place] for name in block.averages}
                memory[index] = {"step": block.steps, **averages} if block.steps else {}
        return [memory[index] for index in range(len(self.parameters))]

    def remember(self, memory: Sequence[Mapping[str, Any]]) -> None:
        for block in self.blocks:
            entries = [memory[index] for index in block.indices]
            block.steps = int(entries[0].get("step", 0))
            for name in entries[0].keys() - {"step"}:
                block.keep(name, block.join([entry[name] for entry in entries]))


class RMSProp(Elementwise, name="rmsprop"):
    """Divides by a running root mean square (Tieleman & Hinton, 2012); the defaults are those of IMPALA on Atari."""

    class Config(Elementwise.Config):
        lr: LearningRate = 6e-4
        alpha: Share = 0.99
        """Decay of the running averages."""
        eps: float = Field(0.01, gt=0)
        eps_inside: bool = False
        """Add eps under the root, sqrt(s + eps), as TensorFlow does; else beside it, sqrt(s) + eps, as PyTorch does."""
        momentum: Share = 0.0
        centered: bool = False
        """Divide by the standard deviation in place of the root mean square."""

    config: Config

    def update(self, block: Block, gradient: torch.Tensor, rate: float) -> None:
        """With s a running mean of squares: s <- alpha s + (1 - alpha) g^2; with momentum m, b <- m b + g / root(s); w <- w - lr b."""
        settings = self.config
        spread = squares = block.average("square_avg")
        squares.mul_(settings.alpha).addcmul_(gradient, gradient, value=1 - settings.alpha)
        if settings.centered:
            mean = block.average("grad_avg").lerp_(gradient, 1 - settings.alpha)
            spread = squares.addcmul(mean, mean, value=-1).clamp_min_(0)  # a variance may fall below zero by rounding
        root = (spread + settings.eps).sqrt_() if settings.eps_inside else spread.sqrt().add_(settings.eps)
        step = gradient.div_(root) if not settings.momentum else block.average("momentum_buffer").mul_(settings.momentum).addcdiv_(gradient, root)
        torch._foreach_add_(block.parameters, block.split(step), alpha=-rate)


class Adam(Elementwise, name="adam"):
    """Adam (Kingma & Ba, 2015); with weight decay apart from the gradient, AdamW (Loshchilov & Hutter, 2019)."""

    class Config(Elementwise.Config):
        lr: LearningRate = 3e-4
        betas: tuple[Share, Share] = (0.9, 0.999)
        eps: float = Field(1e-8, gt=0)
        weight_decay: float = Field(0.0, ge=0)
        """Share of the learning rate by which weights shrink at each step."""
        amsgrad: bool = False

    config: Config

    def update(self, block: Block, gradient: torch.Tensor, rate: float) -> None:
        settings = self.config
        largest = block.parts("max_exp_avg_sq") if settings.amsgrad else []
        dense = [parameter.contiguous() for parameter in block.parameters]  # itself, but for one that lies otherwise
        torch._fused_adamw_(
            dense, block.split(gradient), block.parts("exp_avg"), block.parts("exp_avg_sq"), largest,
            [torch.tensor(float(block.steps), device=gradient.device)] * len(dense),
            lr=rate, beta1=settings.betas[0], beta2=settings.betas[1], weight_decay=settings.weight_decay, eps=settings.eps,
            amsgrad=settings.amsgrad, maximize=False,
        )  # fmt: skip
        for parameter, changed in zip(block.parameters, dense, strict=True):
            if changed is not parameter:
                parameter.copy_(changed)


class _Torch(Optimizer):
    """A rule of torch's kind, with its own settings."""

    class Config(Optimizer.Config):
        @model_validator(mode="after")
        def _suits_the_rule(self) -> Self:
            probe = torch.nn.Parameter(torch.zeros(1))
            probe.grad = torch.zeros(1)
            try:
                self.make([probe]).step()
            except (TypeError, RuntimeError, AssertionError) as error:
                raise ValueError(str(error)) from None
            return self

        def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            """The rule with these settings."""
            own = {name: getattr(self, name) for name in type(self).model_fields if name not in Optimizer.Config.model_fields}
            made: torch.optim.Optimizer = self.owner.rule_class(parameters, lr=value_at(self.lr, 0.0), **own)  # type: ignore[attr-defined]
            return made

        def __reduce__(self) -> tuple[Any, ...]:  # its class is made at run time
            path = f"{self.owner.__module__}:{self.owner.__qualname__}"
            return adapt, (path, self.owner.rule_class, dict(self))  # type: ignore[attr-defined]

    config: Config
    rule_class: type[torch.optim.Optimizer]

    def __init__(self, config: Config, *, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(config, parameters=parameters)
        self.rule = config.make(self.parameters)

    def arrange(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [gradient.to(parameter.device) for gradient, parameter in zip(gradients, self.parameters, strict=True)]

    def apply(self, gradients: Sequence[torch.Tensor], scale: float, rate: float) -> None:
        for group in self.rule.param_groups:
            group["lr"] = rate
        if scale != 1:
            gradients = torch._foreach_mul(list(gradients), scale)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.rule.step()
        self.rule.zero_grad(set_to_none=True)

    def memory(self) -> list[Mapping[str, Any]]:
        remembered = self.rule.state_dict()["state"]
        return [remembered.get(index, {}) for index in range(len(self.parameters))]

    def remember(self, memory: Sequence[Mapping[str, Any]]) -> None:
        remembered = {index: entry for index, entry in enumerate(memory) if entry}
        self.rule.load_state_dict({"state": remembered, "param_groups": self.rule.state_dict()["param_groups"]})


def adapt(path: str, found: Any, settings: dict[str, Any]) -> Optimizer.Config:
    """The Config that a class of torch's kind means, named by its path.

    Raises:
        ValueError: it is no optimiser, needs a closure, or does not take the settings.
    """
    if not (inspect.isclass(found) and issubclass(found, torch.optim.Optimizer)):
        raise ValueError(f"{path!r} is no optimizer: expected a subclass of torch.optim.Optimizer or of modrl's Optimizer")
    if inspect.signature(found.step).parameters["closure"].default is inspect.Parameter.empty:
        raise ValueError(f"{path!r} cannot be used: it evaluates the loss several times per step")
    made: Optimizer.Config = _component(path, found).Config.model_validate(settings)  # type: ignore[arg-type]
    return made


ADAPTERS["optimizer"] = adapt


@functools.cache
def _component(path: str, rule_class: type[torch.optim.Optimizer]) -> type[_Torch]:
    """The component whose settings are the keyword arguments of the rule. Cached, so that equal settings compare equal."""
    module, _, name = path.partition(":")
    arguments = dict(list(inspect.signature(rule_class).parameters.items())[1:])  # the first takes the parameters
    if "lr" not in arguments:
        raise ValueError(f"{path!r} cannot be used: it takes no lr")
    fields: dict[str, Any] = {name: (_type_of(argument.default), _default(argument)) for name, argument in arguments.items()}
    lr = fields.pop("lr")[1]
    fields["lr"] = (LearningRate, lr if isinstance(lr, float) else ...)
    config = create_model("Config", __base__=_Torch.Config, __module__=__name__, **fields)
    return type(name, (_Torch,), {"Config": config, "rule_class": rule_class, "__module__": module, "__qualname__": name})


def _default(argument: inspect.Parameter) -> Any:
    if argument.default is inspect.Parameter.empty:
        return ...
    return float(argument.default) if type(argument.default) is int else argument.default  # as `_type_of`: a file read back is the same


def _type_of(default: Any) -> Any:
    if isinstance(default, tuple):
        return tuple[tuple(_type_of(item) for item in default)]  # type: ignore[misc]
    return type(default) if isinstance(default, (bool, float, str)) else float if isinstance(default, int) else Any
