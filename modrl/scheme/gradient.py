"""The gradient worker: pulls rollouts into a storage, asks the algorithm for losses, and turns each into a gradient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from modrl.agent.algorithms.base import Algorithm, Loss
from modrl.agent.batch import Batch, to_device
from modrl.agent.optimizers import global_norm
from modrl.agent.statistics import statistics_of
from modrl.agent.storages.base import Storage
from modrl.config import Component
from modrl.messages import Episode, Gradient, Lap, Rollout, Weights
from modrl.scheme import symptoms
from modrl.scheme.collectors import Collectors
from modrl.scheme.compute import Compute, Networks
from modrl.scheme.dump import Begun, NotFinite, where
from modrl.scheme.stages import Stages, add, take_logged
from modrl.seeding import restore

MANY_STALE = 1000
"""Rollouts in a row that are too old: then none will ever be new enough."""


@dataclass
class Pace:
    """How many updates are made per env step: between two bounds, or without any (free-running)."""

    at_least: float | None
    at_most: float | None
    limit: float = math.inf  # env steps at which the run ends, and nothing is waited for any more
    updates: float = 0.0  # optimiser steps begun
    env_steps: int = 0

    @property
    def behind(self) -> bool:
        """Whether there are too few updates: collectors rest until they are made."""
        return self.at_least is not None and self.updates < self.at_least * self.env_steps

    def ahead(self, more: int) -> bool:
        """Whether `more` updates would be too many: the learner waits for steps."""
        if self.at_most is None or self.behind or self.env_steps >= self.limit:
            return False
        return self.updates + more > self.at_most * self.env_steps


class GradientWorker:
    """Learns from its own share of every batch; who applies its gradients is not its business.

    `steps_per_round`: optimiser steps between two pulls of rollouts, over all gradient workers: the unit of policy lag.
    `max_staleness`: rollouts that lag by more rounds are dropped. `pace`: of a storage that hands steps out again and again.
    `looks`: whether losses are looked at for symptoms, which differentiates some of them more than once.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        storage: Storage,
        collection: Collectors,
        steps_per_round: int,
        compute: Compute,
        max_staleness: int | None = None,
        pace: Pace | None = None,
        stages: Stages | None = None,
        looks: bool = True,
    ) -> None:
        self.looks = looks
        self.algorithm = algorithm
        self.storage = storage
        self.collection = collection
        self.steps_per_round = steps_per_round
        self.compute = compute
        self.max_staleness = max_staleness
        self.pace = pace or Pace(None, None)
        self._stale_in_a_row = 0
        self._short = True  # the storage had no batch when last asked
        algorithm.actor.to(compute.device)
        for module in algorithm.modules().values():
            module.to(compute.device)
        self._networks = Networks(algorithm.actor, algorithm.modules())
        self._parameters = algorithm.trained()
        self._batches = 0
        parts = [part for root in (algorithm.actor, *algorithm.modules().values()) for part in root.modules() if isinstance(part, Component)]
        self._speakers: list[Component] = [algorithm, storage, *parts]
        self._measures = bool(statistics_of(algorithm.actor, algorithm.modules()))
        self._measured: dict[str, torch.Tensor] = {}  # of the batch, not yet in a gradient
        self._losses: Iterator[Loss] = iter(())
        self._yielded = 0  # losses of the current batch so far
        self._news = _News()
        self.stages = stages or Stages()
        self._begun: Begun | None = None
        self._used: tuple[int, ...] = ()  # rollouts that the batch is of, in a profile: each of its losses is from them
        self._change: tuple[Algorithm.Config, Storage.Config, int] | None = None

    def change(self, algorithm: Algorithm.Config, storage: Storage.Config, steps_per_round: int) -> None:
        """Other settings, from the next batch on."""
        self._change = algorithm, storage, steps_per_round

    def gradient(self, weights: Weights) -> Gradient:
        """The next gradient, on these weights."""
        self.stages.begin()
        self._load(weights)
        while (loss := self._next_loss()) is None:
            self._begin(weights)
        return self._differentiate(loss, weights)

    def finish(self, weights: Weights) -> Gradient | None:
        """As `gradient`, but no batch begins: None once the current one is used up."""
        self.stages.begin()
        self._load(weights)
        loss = self._next_loss()
        return None if loss is None else self._differentiate(loss, weights)

    def _load(self, weights: Weights) -> None:
        self._networks.load(weights.acting, weights.learning)
        self.algorithm.prepare(weights.progress)
        self.stages.lap("transfer")

    def _next_loss(self) -> Loss | None:
        with self.compute.precision_scope():
            loss = next(self._losses, None)
        self.stages.lap("loss", self._used if loss is not None else ())
        if loss is not None:
            self._yielded += 1
        elif self._yielded not in (0, self.algorithm.num_losses):
            raise RuntimeError(
                f"{type(self.algorithm).__name__}.losses yielded {self._yielded} losses, but its num_losses is {self.algorithm.num_losses}: "
                "the number must depend on the settings alone"
            )
        return loss

    def _begin(self, weights: Weights) -> None:
        """Starts on the next batch, pulling rollouts while the storage is short."""
        if self._change is not None:
            (algorithm, storage, self.steps_per_round), self._change = self._change, None
            self.algorithm.change(algorithm, weights.progress)
            self.storage.change(storage)
        batch = self._next_batch(weights) if self.storage.fresh else self._paced_batch(weights)
        self.stages.lap("batch")
        self.learn(batch, weights)

    def _next_batch(self, weights: Weights) -> Batch:
        while (batch := self.storage.batch()) is None:
            self._pull(weights)
        return batch

    def _paced_batch(self, weights: Weights) -> Batch:
        """The next batch of a storage that needs no new steps for it: with those that are ready, or as many as the pace asks for."""
        while True:
            if self._short or not self.pace.behind:
                self._pull(weights, wait=self._short or self.pace.ahead(self.algorithm.num_losses))
            if not self.pace.ahead(self.algorithm.num_losses):
                batch = self.storage.batch()
                self._short = batch is None
                if batch is not None:
                    self.pace.updates += self.algorithm.num_losses
                    return batch

    def _pull(self, weights: Weights, wait: bool = True) -> None:
        """Rollouts into the storage, but for those that are too old."""
        self.stages.lap("batch")
        rollouts = self.collection.pull(weights.for_acting(), wait)
        self.stages.begin()  # the collection counts its own
        for rollout in rollouts:
            self._news.hear(rollout)
            lag = (weights.version - rollout.version) // self.steps_per_round
            if self.max_staleness is not None and lag > self.max_staleness:
                self._news.counts["faults/stale_rollouts"] += 1
                self._stale_in_a_row += 1
                if self._stale_in_a_row == MANY_STALE:
                    raise RuntimeError(
                        f"the last {MANY_STALE} rollouts all lagged by more than max_staleness: {self.max_staleness} rounds, the newest by {lag}: "
                        "raise it, or let the learner wait for collectors (gather, pacing)"
                    )
                continue
            self._stale_in_a_row = 0
            self.storage.insert(rollout)
            if not self.storage.fresh:  # nothing tells later when a step is learned from for the first time
                steps = rollout.reward.size if rollout.valid is None else int(rollout.valid.sum())
                self._news.env_steps += steps
                self.pace.env_steps += steps
                self._news.policy_lags += [lag] * rollout.reward.shape[1]

    def learn(self, batch: Batch, weights: Weights) -> None:
        """The batch is the one that losses come from now."""
        self._news.count(batch, weights.version, self.steps_per_round)
        self._used = tuple(batch.behaviour["rollout"].unique().tolist()) if "rollout" in batch.behaviour else ()
        generator = self.algorithm.generator
        self._begun = Begun(batch, weights, None if generator is None else generator.get_state())
        self.stages.lap("batch")
        batch = to_device(batch, self.compute.device)
        self._batches += 1
        if symptoms.due(self._batches):
            self._news.counts.update(symptoms.in_batch(self.algorithm, batch))
        if self._measures:  # a replay that is learned from again and again is measured as it is drawn
            fresh = batch.fresh if self.storage.fresh else torch.ones_like(batch.fresh)
            self._measured = self.algorithm.measure(batch, batch.valid & fresh)
        self._losses, self._yielded = iter(self.algorithm.losses(batch)), 0
        self.stages.lap("transfer")

    def _differentiate(self, loss: Loss, weights: Weights) -> Gradient:
        parameters = self._parameters[loss.optimizer]
        names, sums = loss.summed()
        if "loss/total" in names:
            raise ValueError("a loss term cannot be called 'total', which is the terms' sum: rename it")
        total = sums[: len(loss.terms)].sum()
        metrics = {**dict(zip(names, sums.tolist(), strict=True)), "loss/total": total.item()}
        if not math.isfinite(metrics["loss/total"]):
            terms = ", ".join(f"{name} {metrics[f'loss/{name}']:g}" for name in loss.terms)
            raise self._not_finite(f"the loss is not finite ({terms})", weights)
        if self.looks and symptoms.due(self._batches) and self._yielded == 1:
            self._news.counts.update(symptoms.in_loss(loss, parameters))
        self.stages.lap("loss")
        total.backward()
        self.stages.lap("backward")
        tensors = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        if not math.isfinite(global_norm(tensors)):
            raise self._not_finite("the gradient is not finite", weights)
        weight = int(loss.valid.sum())
        statistics = loss.statistics
        if self._measured and self._yielded == self.algorithm.num_losses:  # all losses of a batch see the same statistics
            statistics, self._measured = add(self._measured, statistics), {}
        news, self._news = self._news, _News()
        news.counts.update(self.collection.counts())
        self.stages.lap("loss")
        logged = take_logged(self._speakers)
        if news.logged:
            logged = add(news.logged, logged)
        seconds = add(news.seconds, self.stages.take(), self.collection.seconds())
        return Gradient(
            {loss.optimizer: tensors}, weight, weights.version, news.env_steps, self._yielded == self.algorithm.num_losses,
            tuple(news.episodes), tuple(news.policy_lags), metrics, seconds, dict(news.counts), self.collection.events(),
            laps=(*news.laps, *self.collection.laps(), *self.stages.take_laps()), statistics=statistics, logged=logged,
        )  # fmt: skip

    def _not_finite(self, what: str, weights: Weights) -> NotFinite:
        assert self._begun is not None
        dump = self._begun.dump(weights, self._yielded - 1)
        try:
            found = where(self.algorithm, dump, self.compute) or "computed again, all is finite"
        except Exception as error:  # of the algorithm's: computed again it does something else
            found = f"computed again, it fails: {error}"
        return NotFinite(f"{what}: {found}; nothing was applied", dump)

    def nothing(self, weights: Weights) -> Gradient:
        """A gradient of no samples."""
        return Gradient({}, 0, weights.version, 0, True, (), (), {}, {})

    def state(self, contents: bool) -> dict[str, Any]:
        """Plain data to continue from, between two batches. `contents`: the whole of a replay too."""
        generator = self.algorithm.generator
        return {
            "storage": self.storage.state(contents),
            "collection": self.collection.state(),
            "generator": None if generator is None else generator.get_state(),
            "pace": [self.pace.updates, self.pace.env_steps, self._short],
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`, of a gradient worker or of a replica; whether all episodes go on where they were."""
        state = state.get("worker", state)
        self.storage.restore(state["storage"])
        self.pace.updates, self.pace.env_steps, self._short = state["pace"]
        if self.algorithm.generator is not None and state["generator"] is not None:
            restore(self.algorithm.generator, state["generator"])
        return self.collection.restore(state["collection"])

    def close(self) -> None:
        """Ends the collectors."""
        self.collection.close()


class _News:
    """What happened since this worker's last gradient."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.episodes: list[Episode] = []
        self.policy_lags: list[int] = []
        self.seconds: dict[str, float] = {}
        self.laps: list[Lap] = []
        self.logged: dict[str, np.ndarray] = {}
        self.counts = Counter[str]()

    def hear(self, rollout: Rollout) -> None:
        """A rollout has come."""
        self.episodes += rollout.episodes
        self.counts.update(rollout.counts)
        self.seconds = add(self.seconds, rollout.seconds)
        self.laps += rollout.laps
        if rollout.logged:
            self.logged = add(self.logged, rollout.logged)

    def count(self, batch: Batch, version: int, steps_per_round: int) -> None:
        """A batch is about to be learned from on weights of this version."""
        self.env_steps += int(batch.valid[:, batch.fresh].sum())
        acted = batch.version[batch.fresh]
        if "version" in batch.behaviour:  # that may change from step to step
            acted = batch.behaviour["version"][:, batch.fresh][batch.valid[:, batch.fresh]]
        self.policy_lags += ((version - acted) // steps_per_round).tolist()
