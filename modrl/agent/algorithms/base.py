"""What learns: an algorithm turns a batch into losses, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import nn

from modrl.agent.actors.base import Actor
from modrl.agent.batch import Batch
from modrl.agent.losses import RewardForm
from modrl.agent.schedules import Schedule, admit_schedules, value_at
from modrl.agent.statistics import Running, sums_over
from modrl.config import Component

Reduction: TypeAlias = Literal["sum", "mean"]


class Loss(NamedTuple):
    """One loss: per-step terms that are summed over the valid steps, so that shards of a batch add up to the whole."""

    terms: dict[str, torch.Tensor]  # [T, B] each, costs included; their sum is minimised
    valid: torch.Tensor  # [T, B] bool: the steps that count
    optimizer: str = "main"  # the one that steps
    metrics: dict[str, torch.Tensor] = {}  # [T, B] each: averaged over the valid steps for the log
    statistics: dict[str, torch.Tensor] = {}  # sums that the statistic of this name takes in when the loss is applied

    def total(self) -> torch.Tensor:
        """The loss summed over valid steps.

        Raises:
            ValueError: a term is not one number per step.
        """
        return self.summed()[1][: len(self.terms)].sum()

    def summed(self) -> tuple[list[str], torch.Tensor]:
        """Names, and what they name [n] summed over the valid steps: terms, as loss/NAME, then metrics, without gradient.

        A last row that answers the bootstrap observation is dropped.

        Raises:
            ValueError: there are no terms, or something is not one number per step.
        """
        terms = self._checked(self.terms, "loss term")
        metrics = {name: part.detach() for name, part in self._checked(self.metrics, "metric").items()}
        if not terms:
            raise ValueError("a loss needs at least one loss term")
        if taken := [name for name in metrics if name.startswith("loss/")]:
            raise ValueError(f"metric {taken[0]!r} has the name of a loss term's column: rename it")
        steps = torch.stack([*terms.values(), *metrics.values()])
        return [*(f"loss/{name}" for name in terms), *metrics], torch.where(self.valid, steps, 0).sum((1, 2))

    def _checked(self, parts: dict[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
        shape, steps = self.valid.shape, {}
        if not isinstance(parts, Mapping):
            raise ValueError(f"{what}s have to be a dict of tensors by name, got {type(parts).__name__}")
        for name, part in parts.items():
            given = part.shape if isinstance(part, torch.Tensor) else f"the {type(part).__name__} {part!r}"
            if given == (shape[0] + 1, *shape[1:]):
                part = part[:-1]
            elif given != shape:
                raise ValueError(
                    f"{what} {name!r} is {given if isinstance(given, str) else list(given)}, expected one number per step, {list(shape)}: "
                    "filler is masked and shards are added by step, so do not average inside it"
                )
            steps[name] = part
        return steps


class Algorithm(Component, ABC, kind="algorithm"):
    """A generator of losses over batches, and the owner of what only learns (critics, targets, temperatures).

    Any float setting of a subclass's Config may be a schedule on progress in a file; `self.config` holds the numbers of
    this moment.
    """

    fixed: ClassVar[frozenset[str]] = frozenset({"reduction"})
    """Settings that cannot change in mid-run. A subclass adds those that it reads only when it is made."""

    class Config(Component.Config):
        discount: float = Field(0.99, ge=0, le=1)
        """What a reward is worth one step earlier; gamma."""
        reward: RewardForm = "none"
        """What the learner makes of the raw reward."""
        reduction: Reduction = "mean"
        """Whether a batch's loss is the sum or the mean over its valid steps."""

        @classmethod
        def __pydantic_init_subclass__(cls, **options: Any) -> None:
            for field in cls.model_fields.values():
                if field.annotation in (float, float | None):
                    admit_schedules(field)
            cls.model_rebuild(force=True)

        def at(self, progress: float) -> Any:
            """These settings with each schedule's value at this progress."""
            now = {name: value_at(value, progress) for name, value in self if isinstance(value, Schedule)}
            return self.model_copy(update=now) if now else self

    def __init__(self, config: Config, *, actor: Actor, generator: torch.Generator | None = None) -> None:
        self.scheduled = config
        self.config = config.at(0.0)
        self._changes = self.config is not config  # with the progress
        self.actor = actor
        self.generator = generator  # for shuffling minibatches
        self.returns = Running() if config.reward == "normalized" else None

    def prepare(self, progress: float) -> None:
        """Brings the settings to this progress."""
        if self._changes:
            self.config = self.scheduled.at(progress)

    def change(self, config: Config, progress: float) -> None:
        """Goes on with other settings, of which none that is fixed differs.

        Raises:
            ValueError: rewards begin or cease to be normalised, or are by another discount.
        """
        if (config.reward == "normalized") != (self.returns is not None):
            raise ValueError("algorithm.reward: cannot become or cease to be normalized in mid-run, which begins with no statistics")
        if self.returns is not None and config.discount != self.scheduled.discount:
            raise ValueError("algorithm.discount: cannot change in mid-run while rewards are normalized by the returns that it discounts")
        self.scheduled = config
        self.config = config.at(progress)
        self._changes = self.config is not config

    def compile(self) -> None:
        """Has the actor's forward pass compiled by torch.compile, from the first call on; a subclass may have more."""
        self.actor.compile()

    @property
    def num_losses(self) -> int:
        """How many losses `losses` yields for one batch: a matter of the settings alone."""
        return 1

    def check_share(self, steps: int, columns: int) -> None:
        """Refuses a gradient worker's share of a batch, `columns` of `steps` each, that it could not learn from.

        Raises:
            ValueError: says which setting to change.
        """

    def modules(self) -> dict[str, nn.Module]:
        """The networks that only learn, by name; the actor is not among them. A subclass adds its own to these."""
        return {} if self.returns is None else {"returns": self.returns}

    def parameters(self) -> dict[str, list[nn.Parameter]]:
        """What each optimiser steps, by the optimiser's name."""
        own = [parameter for module in self.modules().values() for parameter in module.parameters()]
        return {"main": [*self.actor.parameters(), *own]}

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """Those of the `parameters` that are not frozen."""
        return {name: [parameter for parameter in group if parameter.requires_grad] for name, group in self.parameters().items()}

    def measure(self, batch: Batch, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the agent's statistics take in of a batch's `valid` [T, B] steps, each of which is measured once."""
        measured = {f"actor.{name}": sums for name, sums in self.actor.measure(batch, valid).items()}
        if self.returns is not None:
            measured["returns"] = sums_over(batch.behaviour["discounted_return"], valid)
        return measured

    @abstractmethod
    def losses(self, batch: Batch) -> Iterator[Loss]:
        """The batch's losses in order. What follows a `yield` runs after the optimiser has stepped."""
