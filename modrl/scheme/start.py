"""Starting a scheme's workers: gradient workers, each with its collectors, and the inference servers and boards beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from modrl.agent.optimizers import Optimizer
from modrl.scheme.collect import Collector
from modrl.scheme.collectors import Collectors, ServedGroup
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.group import STARTING_SECONDS, Group, Handle, Recovery
from modrl.scheme.inference import Client
from modrl.scheme.parts import Parts
from modrl.scheme.places.base import Factory
from modrl.scheme.places.here import HereWorker
from modrl.scheme.places.thread import ThreadWorker
from modrl.scheme.race import LocalBoard, Race
from modrl.scheme.replica import Replica
from modrl.scheme.settings import Workers
from modrl.seeding import Attempts

if TYPE_CHECKING:
    from modrl.scheme.scheme import Scheme


def asked_of(group: Workers, local: bool) -> dict[str, float]:
    cpus = group.resources.cpus if group.resources.cpus is not None else 0.0 if local else 1.0
    return {"CPU": cpus, "GPU": group.resources.gpus, **group.resources.custom}


def name_of(role: str, index: int, count: int, within: str = "") -> str:
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
    stages = parts.stages(f"gradient worker {gradient_worker}")
    if collection.inference == "collector":
        return Collectors(start(), collection.broadcast_interval, stages)
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
        return Collectors(start(kind=ServedGroup, options=options), collection.broadcast_interval, stages)
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
    asked = {k: v for k, v in asked_of(settings, site.local).items() if v}
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
