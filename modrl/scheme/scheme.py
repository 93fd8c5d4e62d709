"""The scheme: who collects, who computes gradients, who waits for whom.

A scheme is a few numbers for each of two groups. It deals out the experiment's environments and batch, which are global,
so that two schemes differ in what their settings say and in nothing else.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Self

from pydantic import GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from modrl.agent.optimizers import Optimizer
from modrl.config import Document, Settings, problem
from modrl.scheme.group import Group
from modrl.scheme.parts import Parts
from modrl.scheme.presets import expand, presets
from modrl.scheme.replica import ReplicaGroup
from modrl.scheme.settings import Average, Collection, Faults, Gradients, Pacing, Workers
from modrl.scheme.start import Site, asked_of, make_board, make_gradient_worker, name_of, start_group


class Scheme:
    """Starts the workers of an experiment and ends them."""

    class Config(Settings):
        """Settings of a scheme; `preset` names the one that they are laid over."""

        preset: str | None = None
        collection: Collection = Collection()
        gradient: Gradients = Gradients()
        update: Literal["central", "all_reduce"] | Average = "central"
        """Where gradients are applied: by the updater; or by each gradient worker, which add them up or average weights every k steps."""
        pacing: Pacing | None = None
        """Of a replay that batches are drawn from without new steps; null: one pull of rollouts for each batch."""
        compression: Literal["lz4"] | None = None
        """Of the rollouts and gradients that Ray workers send."""
        faults: Faults = Faults()

        @classmethod
        def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
            return {"anyOf": [{"enum": list(presets())}, handler(schema)]}

        @field_validator("update", mode="before")
        @classmethod
        def _over_name(cls, value: Any) -> Any:
            """`{average: k}` laid over a preset's bare word, which merging takes for a block's name."""
            return {key: v for key, v in value.items() if key != "name"} if isinstance(value, dict) and len(value) > 1 else value

        @model_validator(mode="before")
        @classmethod
        def _over_preset(cls, value: Any) -> Any:
            return expand(Document(value if isinstance(value, dict) else {"preset": value}, {})).data if isinstance(value, (str, dict)) else value

        @model_validator(mode="after")
        def _fits(self) -> Self:
            collection, gradient = self.collection, self.gradient
            if collection.place == "ray" and gradient.place == "thread":
                raise problem("gradient workers in threads collect here or in threads of their own, not on ray", "collection.place")
            if self.update != "central" and (gradient.place == "here" or gradient.gather != "all"):
                needed = "gradient workers that run at the same time and are all awaited: gradient: {place: ray or thread, gather: all}"
                raise problem(f"all_reduce and average need {needed}", "update")
            if self.compression is not None and not self.on_ray:
                raise problem("has no effect where no worker is on ray", "compression")
            if collection.preemption is not None and (gradient.alone or self.collectors_at_once == 1):
                raise problem("needs collectors that run at the same time and are all at the same round", "collection.preemption")
            if self.faults.worker_restarts and self.all_here:
                raise problem("has no effect where every worker is here: none can be lost alone", "faults.worker_restarts")
            if self.faults.timeout is not None and self.all_here:
                raise problem(
                    "has no effect where every worker is here: nobody waits for another; place collectors in threads or on ray", "faults.timeout"
                )
            return self

        @property
        def all_here(self) -> bool:
            """Whether there is no worker but the caller."""
            return self.collection.place == self.gradient.place == "here"

        @property
        def on_ray(self) -> bool:
            """Whether any worker is on Ray."""
            return "ray" in (self.collection.place, self.gradient.place)

        @property
        def collectors_at_once(self) -> int:
            """Collectors that work at the same time."""
            return (1 if self.collection.place == "here" else self.collection.workers) * (
                1 if self.gradient.place == "here" else self.gradient.workers
            )

        @property
        def average_every(self) -> int | None:
            """Steps from one average of weights to the next; None: they are not averaged."""
            return self.update.average if isinstance(self.update, Average) else None

        def lag_bound(self) -> int | None:
            """Rounds that a rollout may lag when it is learned from, or enters a replay; None: there is no bound."""
            collection, gradient = self.collection, self.gradient
            bound = collection.lag_bound if collection.max_staleness is None else collection.max_staleness
            if bound is not None and gradient.alone and gradient.max_lag is not None:
                bound = -(-bound * (gradient.max_lag + 1) // gradient.workers)
            return bound

        def gradient_lag_bound(self) -> int:
            """Applied gradients that a gradient may lag."""
            gradient = self.gradient
            return gradient.max_lag * gradient.taken if gradient.alone and gradient.max_lag is not None else 0

    def __init__(self, config: Config, parts: Parts, optimizer: Optimizer.Config) -> None:
        self.config = config
        self.parts = parts
        self.optimizer = optimizer
        self.cluster: Any = None
        self.board: Any = None

    def start(self) -> Group:
        """The gradient workers, ready to be pulled from, each with its collectors."""
        config, gradient, parts = self.config, self.config.gradient, self.parts
        if config.on_ray:
            from modrl.scheme.places.ray import Cluster

            self.cluster = Cluster(parts.machine.ray.address, parts.machine.ray.object_store)
            self.cluster.require(self._wanted())
        self.board = make_board(config)
        code = None if self.cluster is None else self.cluster.share_code(parts.own)
        site = Site(config, parts, self.optimizer, self._local(), self.board, code)
        makers = {
            name_of("gradient worker", index, gradient.workers): partial(make_gradient_worker, site, index) for index in range(gradient.workers)
        }
        kind: type[Group] = Group
        options: dict[str, Any] = {}
        if config.update != "central":
            kind, options = ReplicaGroup, {"address": self._address}
        return start_group(site, gradient, "gradient", makers, kind=kind, options=options)

    def _address(self, worker: Any) -> Future[str]:
        """Where other workers reach this one's machine."""
        if not self._local():
            return worker.address()
        here: Future[str] = Future()
        here.set_result("127.0.0.1")
        return here

    def _local(self) -> bool:
        return self.cluster is None or self.cluster.local

    def _wanted(self) -> dict[str, float]:
        wanted: dict[str, float] = {}
        collection, learners = self.config.collection, self.config.gradient.workers
        servers = 0 if collection.inference == "collector" else collection.inference.replicas
        counts = {"gradient": learners, "collection": learners * (collection.workers + servers)}
        for name, count in counts.items():
            group: Workers = getattr(self.config, name)
            for resource, amount in asked_of(group, self._local()).items() if group.place == "ray" else ():
                wanted[resource] = wanted.get(resource, 0) + amount * count
        return wanted

    def close(self) -> None:
        """Ends what was started beside the workers."""
        if self.board is not None and self.cluster is not None:
            self.board.close()
        if self.cluster is not None:
            self.cluster.close()
