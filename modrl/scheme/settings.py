"""What a scheme's block in a file may say, and what it refuses: numbers that cannot be kept, options that cannot take effect."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from modrl.config import Settings, problem


class Servers(Settings):
    """An inference server, or several, that collectors ask."""

    in_words: ClassVar[str] = "server"

    name: Literal["server"] = "server"
    batch: int | None = Field(None, ge=1)
    """Environments that a batch does not wait beyond; null: all that can be waiting."""
    timeout_ms: float = Field(10.0, gt=0)
    """Milliseconds that the first request of a batch waits for others."""
    device: str | None = None
    """Where the servers' networks run; null: as machine.device."""
    replicas: int = Field(1, ge=1)
    """Servers, for each gradient worker; collectors are dealt out over them."""


class Resources(Settings):
    """What one Ray worker of a group asks of the cluster."""

    cpus: float | None = Field(None, ge=0)
    """None: 1 on a cluster; 0 on a machine of one's own, whose cores are shared out by the operating system."""
    gpus: float = Field(0.0, ge=0)
    custom: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Of the names that the cluster's nodes were started with."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for ray_name, name in {"CPU": "cpus", "GPU": "gpus"}.items():
            if ray_name in self.custom:
                raise problem(f"{ray_name} is no custom resource; say {name}: {self.custom[ray_name]:g}", "custom")
        return self


class Preemption(Settings):
    """When stragglers hand in what they have of their rollouts."""

    fraction_workers: float = Field(0.75, gt=0, le=1)
    """Once this share of all collectors are done with the round …"""
    fraction_samples: float = Field(0.25, ge=0, lt=1)
    """… those that have at least this share of their rollout stop."""


class PerWorker(Settings):
    """What differs from one collector to the next; laid over the experiment's blocks."""

    envs: dict[str, Any] = {}
    actor: dict[str, Any] = {}


class Average(Settings):
    """Local SGD: each gradient worker steps on its own share, and weights are averaged."""

    in_words: ClassVar[str] = "{average: k}"

    average: int = Field(ge=1)
    """Steps from one average to the next."""


class Pacing(Settings):
    """Bounds on the optimiser steps per env step, where the storage does not set their number; null: none on that side."""

    at_least: float | None = Field(None, gt=0)
    """Below it collectors rest until the learner has caught up."""
    at_most: float | None = Field(None, gt=0)
    """Above it the learner waits for new steps."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise problem(f"must not be above at_most ({self.at_most:g}), got {self.at_least:g}", "at_least")
        return self


class Faults(Settings):
    """What is survived. Past the budget a run stops, with the cause and a checkpoint."""

    worker_restarts: int = Field(0, ge=0)
    """Lost workers that each group may replace."""
    env_restarts: int = Field(0, ge=0)
    """Environments that each collector may make anew after they raised or their process ended; the episode is dropped."""
    timeout: float | None = Field(None, gt=0)
    """Seconds that a worker may take for one task (a rollout; a gradient with its rollouts) before it counts as lost; null: for ever."""

    @property
    def columns(self) -> list[str]:
        """The columns of metrics.csv that can be told from the start to be counted in."""
        counted = {
            "worker_restarts": self.worker_restarts,
            "dropped_rollouts": self.worker_restarts,
            "timeouts": self.timeout,
            "env_restarts": self.env_restarts,
        }
        return [f"faults/{name}" for name, allowed in counted.items() if allowed]


class Workers(Settings):
    """A group of workers that do the same task."""

    place: Literal["here", "thread", "ray"] = "here"
    workers: int = Field(1, ge=1)
    fewest: ClassVar[int] = 1
    gather: int | Literal["all"] = "all"
    """Results per pull: every worker's, or so many in order of completion; 0, for collectors: those that are ready."""
    max_lag: int | None = Field(None, ge=0)
    """Pulls that a task may be behind; needed where not every worker is awaited."""
    resources: Resources = Resources()
    placement: Literal["pack", "spread"] = "pack"
    """Of Ray workers over a cluster's nodes: as Ray does, which fills nodes one after the other, or evenly."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.gather, int) and not self.fewest <= self.gather <= self.workers:
            raise problem(f"must lie between {self.fewest} and {self.workers} (the number of workers), got {self.gather}", "gather")
        if self.gather == "all" and self.max_lag is not None:
            raise problem("has no effect with gather: all, where the lag is the number of tasks ahead; set it to null or gather fewer", "max_lag")
        if self.gather == 0 and self.max_lag is not None:
            raise problem(
                "has no effect with gather: 0, which takes what is ready; set it to null, and max_staleness to drop old rollouts",
                "max_lag",
            )
        if isinstance(self.gather, int) and self.gather and self.max_lag is None:
            raise problem(f"missing; with gather: {self.gather} state how many pulls a result may be behind", "max_lag")
        if self.place != "ray" and self.resources != Resources():
            raise problem(f"have no effect with place: {self.place}; they are what a Ray worker asks for", "resources")
        if self.place != "ray" and self.placement != "pack":
            raise problem(f"has no effect with place: {self.place}; it is about the nodes of a Ray cluster", "placement")
        return self

    @property
    def taken(self) -> int:
        """Results per pull."""
        return self.workers if self.gather == "all" else self.gather

    def check_lag(self, ahead: int) -> None:
        """Refuses what cannot keep `max_lag`: more tasks than pulls can take in time."""
        if isinstance(self.gather, int) and self.max_lag is not None:
            k, tasks = self.gather, self.workers * max(ahead, 1)
            room = k * (self.max_lag + (0 if ahead else 1))
            if tasks > room:
                what = f"{self.workers} workers × ahead {ahead} > gather {k} × max_lag {self.max_lag}"
                if not ahead:
                    what = f"{self.workers} workers > gather {k} × (max_lag {self.max_lag} + 1)"
                raise problem(f"cannot be kept: {what}; raise max_lag or gather, or use fewer workers", "max_lag")


class Collection(Workers):
    """The collectors of each gradient worker."""

    fewest: ClassVar[int] = 0
    ahead: int = Field(0, ge=0)
    """Untaken tasks each worker may have while the caller learns."""
    broadcast_interval: int = Field(1, ge=1)
    """Pulls from one hand-out of new weights to the next."""
    max_staleness: int | None = Field(None, ge=0)
    """Rounds that a rollout may lag when it arrives; older ones are dropped and counted. null: none is."""
    preemption: Preemption | None = None
    inference: Servers | Literal["collector"] = "collector"
    """Who runs the actor: each collector, or `server`: it is asked by collectors and answers in batches."""
    per_worker: list[PerWorker] = []
    """What differs between collectors: collector i takes entry i modulo their number."""

    @field_validator("inference", mode="before")
    @classmethod
    def _server(cls, value: Any) -> Any:
        return {"name": value} if value == "server" else value

    @model_validator(mode="after")
    def _keeps_lag(self) -> Self:
        if self.ahead and self.place == "here":
            raise problem("has no effect with place: here, where nothing runs while the caller learns; use thread or ray", "ahead")
        self.check_lag(self.ahead)
        if self.gather == 0 and not self.ahead:
            raise problem("needs ahead: 1 or more: collectors that rest while the learner learns have nothing ready", "gather")
        if self.inference != "collector" and self.place == "here":
            raise problem("a server has nothing to batch with place: here, where collectors work one after the other; use thread or ray", "inference")
        if isinstance(self.inference, Servers) and self.inference.replicas > self.workers:
            raise problem(f"{self.inference.replicas} servers for {self.workers} collectors: some would serve nobody", "inference.replicas")
        if self.preemption is not None and (self.gather != "all" or self.ahead):
            raise problem("needs collectors that are all at the same round: gather: all and ahead: 0", "preemption")
        least = (self.ahead if self.gather == "all" else 0) + self.broadcast_interval - 1
        if self.max_staleness is not None and self.max_staleness < least:
            what = f"ahead: {self.ahead} and broadcast_interval: {self.broadcast_interval}"
            raise problem(f"would drop what is no older than it has to be: with {what} rollouts lag by {least}; raise it", "max_staleness")
        if self.max_staleness is not None and self.lag_bound is not None and self.max_staleness >= self.lag_bound:
            raise problem(f"has no effect: no rollout lags by more than {self.lag_bound}", "max_staleness")
        return self

    @property
    def lag_bound(self) -> int | None:
        """Pulls that a rollout may be behind, before any is dropped; None: there is no bound."""
        if self.gather == 0:
            return None
        return (self.ahead if self.max_lag is None else self.max_lag) + self.broadcast_interval - 1


class Gradients(Workers):
    """The gradient workers. A gradient is applied before its worker's next one is started."""

    @model_validator(mode="after")
    def _keeps_lag(self) -> Self:
        self.check_lag(0)
        return self

    @property
    def alone(self) -> bool:
        """Whether shares are applied on arrival, each alone, rather than combined to the whole batch."""
        return self.taken < self.workers
