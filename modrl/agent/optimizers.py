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
_Tensors: TypeAlias = list[torch.Tensor] | tuple[torch.Tensor, ...]


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
        self.rule = self.make(self.parameters)

    @abstractmethod
    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The rule of torch's kind that applies the clipped gradients."""

    def step(self, gradients: Sequence[torch.Tensor], progress: float) -> dict[str, float]:
        """Applies one gradient, in the order of the parameters; gives its norm before clipping and the learning rate.

        Raises:
            FloatingPointError: the gradient is not finite; nothing was applied.
        """
        assert len(gradients) == len(self.parameters), f"{len(gradients)} gradients for {len(self.parameters)} parameters"
        gradients = [gradient.to(parameter.device) for gradient, parameter in zip(gradients, self.parameters, strict=True)]
        norm = self._finite_norm(gradients)
        limit = self.config.max_grad_norm
        if limit is not None and norm > limit:
            gradients = torch._foreach_mul(gradients, limit / norm)
        rate = max(value_at(self.config.lr, progress), 0.0)
        for group in self.rule.param_groups:
            group["lr"] = rate
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.rule.step()
        self.rule.zero_grad(set_to_none=True)
        return {"learning_rate": rate, "grad_norm": norm}

    def _finite_norm(self, gradients: list[torch.Tensor]) -> float:
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            bad = [list(gradient.shape) for gradient in gradients if not gradient.isfinite().all()]
            where = f"in {len(bad)} of {len(gradients)} tensors, the first of shape {bad[0]}" if bad else "its norm is too large"
            raise FloatingPointError(f"the gradient is not finite: {where}; nothing was applied. Look for a loss or a learning rate that explodes")
        return norm

    def state(self) -> list[dict[str, Any]]:
        """What the rule remembers of each parameter: plain data, copied. Settings are not in it: those given at a restart hold."""
        remembered = self.rule.state_dict()["state"]
        return [_copied(remembered.get(index, {})) for index in range(len(self.parameters))]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continues from what `state` gave.

        Raises:
            ValueError: it is of another number of parameters.
        """
        if len(state) != len(self.parameters):
            raise ValueError(f"the saved optimizer steps {len(state)} parameters, this one {len(self.parameters)}: the networks differ")
        remembered = {index: _copied(entry) for index, entry in enumerate(state) if entry}
        self.rule.load_state_dict({"state": remembered, "param_groups": self.rule.state_dict()["param_groups"]})


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in entry.items()}


class RMSProp(Optimizer, name="rmsprop"):
    """Divides by a running root mean square (Tieleman & Hinton, 2012); the defaults are those of IMPALA on Atari."""

    class Config(Optimizer.Config):
        lr: LearningRate = 6e-4
        alpha: Share = 0.99
        """Decay of the running averages."""
        eps: float = Field(0.01, ge=0)
        eps_inside: bool = False
        """Add eps under the root, sqrt(s + eps), as TensorFlow does; else beside it, sqrt(s) + eps, as PyTorch does."""
        momentum: Share = 0.0
        centered: bool = False
        """Divide by the standard deviation in place of the root mean square."""

    config: Config

    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return _RMSProp(parameters, self.config)


class _RMSProp(torch.optim.Optimizer):
    """s <- alpha s + (1 - alpha) g^2; with momentum m, b <- m b + g / root(s); w <- w - lr b. All averages start at zero."""

    def __init__(self, parameters: list[torch.nn.Parameter], settings: RMSProp.Config) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.settings = settings

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = self.param_groups[0]["params"]
        gradients = [parameter.grad for parameter in parameters]
        settings = self.settings
        squares = self._remembered("square_avg", parameters)
        torch._foreach_mul_(squares, settings.alpha)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - settings.alpha)
        spread: _Tensors = squares
        if settings.centered:
            means = self._remembered("grad_avg", parameters)
            torch._foreach_lerp_(means, gradients, 1 - settings.alpha)
            spread = torch._foreach_addcmul(squares, means, means, -1)
            torch._foreach_clamp_min_(spread, 0)  # a variance may fall below zero by rounding
        if settings.eps_inside:
            roots = torch._foreach_add(spread, settings.eps)
            torch._foreach_sqrt_(roots)
        else:
            roots = torch._foreach_sqrt(spread)
            torch._foreach_add_(roots, settings.eps)
        rate = self.param_groups[0]["lr"]
        if settings.momentum:
            speeds = self._remembered("momentum_buffer", parameters)
            torch._foreach_mul_(speeds, settings.momentum)
            torch._foreach_addcdiv_(speeds, gradients, roots)
            torch._foreach_add_(parameters, speeds, alpha=-rate)
        else:
            torch._foreach_addcdiv_(parameters, gradients, roots, -rate)

    def _remembered(self, name: str, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


class Adam(Optimizer, name="adam"):
    """Adam (Kingma & Ba, 2015); with weight decay apart from the gradient, AdamW (Loshchilov & Hutter, 2019)."""

    class Config(Optimizer.Config):
        lr: LearningRate = 3e-4
        betas: tuple[Share, Share] = (0.9, 0.999)
        eps: float = Field(1e-8, ge=0)
        weight_decay: float = Field(0.0, ge=0)
        """Share of the learning rate by which weights shrink at each step."""
        amsgrad: bool = False

    config: Config

    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        settings = self.config
        options = {"betas": settings.betas, "eps": settings.eps, "weight_decay": settings.weight_decay, "amsgrad": settings.amsgrad}
        return torch.optim.AdamW(parameters, lr=0.0, fused=True, **options)  # type: ignore[arg-type]


class _Torch(Optimizer):
    """A rule of torch's kind, with its own settings."""

    class Config(Optimizer.Config):
        @model_validator(mode="after")
        def _suits_the_rule(self) -> Self:
            try:
                self.make([torch.nn.Parameter(torch.zeros(1))])
            except TypeError as error:
                raise ValueError(str(error)) from None
            return self

        def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            """The rule with these settings."""
            own = {name: getattr(self, name) for name in type(self).model_fields if name not in Optimizer.Config.model_fields}
            made: torch.optim.Optimizer = self.owner.rule_class(parameters, lr=0.0, **own)  # type: ignore[attr-defined]
            return made

        def __reduce__(self) -> tuple[Any, ...]:  # its class is made at run time
            path = f"{self.owner.__module__}:{self.owner.__qualname__}"
            return adapt, (path, self.owner.rule_class, dict(self))  # type: ignore[attr-defined]

    config: Config
    rule_class: type[torch.optim.Optimizer]

    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return self.config.make(parameters)


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
