"""The scheme: who collects, who computes gradients, who waits for whom.

A scheme is a few numbers for each of two groups. It deals out the experiment's environments and batch, which are global,
so that two schemes differ in what their settings say and in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from modrl.agent.optimizers import Optimizer
from modrl.config import Document, Settings, merge, nearest, problem, read, read_file
from modrl.scheme.collect import Collector
from modrl.scheme.collectors import Collectors, ServedGroup
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.group import STARTING_SECONDS, Group, Handle, Recovery
from modrl.scheme.inference import Client
from modrl.scheme.parts import Parts, Servers
from modrl.scheme.places.base import Factory
from modrl.scheme.places.here import HereWorker
from modrl.scheme.places.thread import ThreadWorker
from modrl.scheme.race import LocalBoard, Race
from modrl.scheme.replica import Replica, ReplicaGroup
from modrl.seeding import Attempts


class Resources(Settings):
    """What one Ray worker of a group asks of the cluster."""

    cpus: float | None = Field(None, ge=0)
    """None: 1 on a cluster; 0 on a machine of one's own, whose cores are shared out by the operating system."""
    gpus: float = Field(0.0, ge=0)
    custom: dict[str, float] = {}


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
            raise problem("has no effect with gather: 0, which takes what is ready and awaits nobody; set collection.max_staleness", "max_lag")
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
        if self.preemption is not None and (self.gather != "all" or self.ahead):
            raise problem("needs collectors that are all at the same round: gather: all and ahead: 0", "preemption")
        least = self.ahead if self.gather == "all" else 0
        if self.max_staleness is not None and self.max_staleness < least:
            raise problem(f"would drop every rollout: with ahead: {self.ahead} each lags {self.ahead}; raise it", "max_staleness")
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
            return {key: v for key, v in value.items() if key != "name"} if isinstance(value, dict) and "average" in value else value

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
            if self.compression is not None and "ray" not in (collection.place, gradient.place):
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
        if "ray" in (gradient.place, config.collection.place):
            from modrl.scheme.places.ray import Cluster

            self.cluster = Cluster(parts.machine.ray.address, parts.machine.ray.object_store)
            self.cluster.require(self._wanted())
        self.board = make_board(config)
        code = None if self.cluster is None else self.cluster.share_code(parts.own)
        site = Site(config, parts, self.optimizer, self._local(), self.board, code)
        makers = {_name("gradient worker", index, gradient.workers): partial(make_gradient_worker, site, index) for index in range(gradient.workers)}
        kind: type[Group] = Group
        options: dict[str, Any] = {}
        if config.update != "central":
            kind, options = ReplicaGroup, {"address": self._address}
        return start_group(site, gradient, "gradient", makers, kind=kind, options=options)

    def _address(self, worker: Any) -> str:
        """Where other workers reach this one's machine."""
        if self._local():
            return "127.0.0.1"
        from modrl.scheme.places.ray import address_of

        return address_of(worker)

    def _local(self) -> bool:
        return self.cluster is None or self.cluster.local

    def _wanted(self) -> dict[str, float]:
        wanted: dict[str, float] = {}
        collection, learners = self.config.collection, self.config.gradient.workers
        servers = 0 if collection.inference == "collector" else collection.inference.replicas
        counts = {"gradient": learners, "collection": learners * (collection.workers + servers)}
        for name, count in counts.items():
            group: Workers = getattr(self.config, name)
            for resource, amount in _asked(group, self._local()).items() if group.place == "ray" else ():
                wanted[resource] = wanted.get(resource, 0) + amount * count
        return wanted

    def close(self) -> None:
        """Ends what was started beside the workers."""
        if self.board is not None and self.cluster is not None:
            self.board.close()
        if self.cluster is not None:
            self.cluster.close()


def _asked(group: Workers, local: bool) -> dict[str, float]:
    cpus = group.resources.cpus if group.resources.cpus is not None else 0.0 if local else 1.0
    return {"CPU": cpus, "GPU": group.resources.gpus, **group.resources.custom}


def _name(role: str, index: int, count: int, within: str = "") -> str:
    return f"{role} {index}{within}" if count > 1 or within else role


class Site(NamedTuple):
    """What starts the workers of a scheme, the nested ones too, has to know."""

    config: Scheme.Config
    parts: Parts
    optimizer: Optimizer.Config | None = None  # of replicas
    local: bool = True  # whether Ray workers are on this machine
    board: Any = None  # where collectors see each other's progress
    code: Any = None  # the user's own, in the object store


def make_gradient_worker(site: Site, number: int, attempt: int = 0) -> GradientWorker | Replica:
    """Gradient worker `number` with its collectors; the `attempt`-th replacement of it."""
    config = site.config
    worker = site.parts.gradient_worker(number, partial(start_collection, site, number), (attempt,) if attempt else ())
    if config.update == "central":
        return worker
    assert site.optimizer is not None
    return site.parts.replica(worker, site.optimizer, config.average_every, config.faults.timeout)


def make_board(config: Scheme.Config) -> Any:
    """Where collectors see each other's progress; None: they need not."""
    if config.collection.preemption is None:
        return None
    if config.gradient.place != "ray" and config.collection.place != "ray":
        return LocalBoard()
    from modrl.scheme.places.ray import RayBoard

    return RayBoard()


def start_collection(site: Site, gradient_worker: int, attempts: Attempts = ()) -> Collectors:
    """The collectors of one gradient worker, with what stands between."""
    config, parts = site.config, site.parts
    collection, preemption = config.collection, config.collection.preemption
    within = f" of gradient worker {gradient_worker}" if config.gradient.workers > 1 else ""
    race = None
    if preemption is not None:
        total = collection.workers * config.gradient.workers
        race = Race(site.board, math.ceil(preemption.fraction_workers * total), preemption.fraction_samples)
    makers = {
        f"collector {index}{within}": partial(make_collector, parts, gradient_worker * collection.workers + index, race, attempts)
        for index in range(collection.workers)
    }
    start = partial(start_group, site, collection, "collect", makers, collection.ahead)
    if collection.inference == "collector":
        return Collectors(start(), collection.broadcast_interval)
    settings = collection.inference
    clients = -(-collection.workers // settings.replicas)
    columns = clients * (parts.envs.count // parts.collectors)
    hire = _hirer(site, collection, concurrency=clients + 2)
    make = partial(parts.server, columns, settings)
    names = [f"inference server {index}{within}" for index in range(settings.replicas)]
    servers: list[Handle] = []
    try:
        for name in names:
            servers.append(hire(name, make))
        await_start(servers)
        options = {"servers": servers, "client": _client_maker(collection.place), "recruit_server": lambda index: hire(names[index], make)}
        return Collectors(start(kind=ServedGroup, options=options), collection.broadcast_interval)
    except BaseException:
        for server in servers:
            server.close()
        raise


def make_collector(parts: Parts, number: int, race: Race | None, attempts: Attempts, attempt: int = 0) -> Collector:
    """Collector `number`; the `attempt`-th replacement of it, within the gradient worker's own `attempts`."""
    return parts.collector(number, (*(attempts or (0,)), attempt) if attempts or attempt else (), race)


def _client_maker(place: str) -> Callable[[Any], Client]:
    if place == "ray":
        from modrl.scheme.places.ray import RayClient

        return RayClient
    return lambda server: server.worker


Hire: TypeAlias = Callable[[str, Factory], Any]
"""Starts a worker of a name in its place."""


def _hirer(site: Site, settings: Workers, concurrency: int = 1) -> Hire:
    if settings.place != "ray":
        return HereWorker if settings.place == "here" else ThreadWorker
    from modrl.scheme.places.ray import Options, RayWorker

    parts, placement = site.parts, None if settings.placement == "pack" else settings.placement
    asked = {k: v for k, v in _asked(settings, site.local).items() if v}
    options = Options(asked, parts.paths, parts.machine.worker_threads, concurrency, placement, site.config.compression, site.code)
    return partial(RayWorker, options=options)


def await_start(workers: Sequence[Handle]) -> None:
    """Until workers that start elsewhere exist.

    Raises:
        WorkerError: one could not be made.
    """
    for worker in workers:
        if hasattr(worker, "wait_started"):
            worker.wait_started()


def start_group(
    site: Site, settings: Workers, method: str, makers: Mapping[str, Callable[[int], Any]], ahead: int = 0,
    kind: type[Group] = Group, options: Mapping[str, Any] = {},
) -> Group:  # fmt: skip
    """Workers in their place; if one cannot start, none is left behind. `makers`: of each worker, by name, for the attempt-th time."""
    hire, faults = _hirer(site, settings), site.config.faults
    names = list(makers)
    workers: list[Handle] = []
    share: dict[str, Any] = {}
    try:
        for name in names:
            workers.append(hire(name, partial(makers[name], 0)))
        if settings.place == "ray":
            from modrl.scheme.places.ray import Share

            share = {"share": Share()}
        await_start(workers)
        recovery = Recovery(
            lambda index, attempt: hire(names[index], partial(makers[names[index]], attempt)),
            faults.worker_restarts,
            _timeout(site.config, settings),
        )
        gather = None if settings.gather == "all" else settings.gather
        return kind(workers, method, gather, ahead, settings.max_lag, **share, recovery=recovery, **options)
    except BaseException:
        for worker in workers:
            worker.close()
        raise


def _timeout(config: Scheme.Config, settings: Workers) -> float | None:
    """A gradient worker whose collectors are elsewhere leaves them the time to be found out and replaced first."""
    seconds = config.faults.timeout
    if seconds is None or settings.place == "here":
        return None
    nested = settings is config.gradient and config.collection.place != "here"
    return 3 * seconds + STARTING_SECONDS if nested else seconds


# --- presets --------------------------------------------------------------------------------------------------------


@lru_cache
def presets() -> dict[str, Document]:
    """The named schemes that come with modrl."""
    folder = files("modrl.scheme").joinpath("presets")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): read(folder.joinpath(name).read_text("utf-8"), f"preset {name.removesuffix('.yaml')}") for name in names}


def preset_text(name: str) -> str:
    """The file of a preset, comments and all."""
    return files("modrl.scheme").joinpath("presets", f"{name}.yaml").read_text("utf-8")


def expand(document: Document, folder: Path = Path()) -> Document:
    """The scheme's block laid over what its `preset` names: one of modrl's, or a file of the user's, looked for in `folder`.

    Raises:
        ValueError: there is no such preset; names the nearest. ConfigError: the file cannot be read.
    """
    name = document.data.get("preset")
    if isinstance(name, str) and name.endswith((".yaml", ".yml")):
        rest = {key: value for key, value in document.data.items() if key != "preset"}
        document = merge(read_file(folder / name), Document(rest, document.origins))
        name = document.data.get("preset")
    if name is None:
        return document
    if name not in presets():
        meant = nearest(str(name), presets())
        known = f"did you mean {meant!r}?" if meant else f"known are {', '.join(presets())}, or a file of your own, NAME.yaml"
        raise ValueError(f"no scheme is called {name!r}; {known}")
    preset = presets()[str(name)]
    return merge(Document({"preset": name, **preset.data}, preset.origins), document)
