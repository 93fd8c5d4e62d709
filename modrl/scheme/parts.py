"""The parts of an agent, as settings that any worker anywhere can build its own copies from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import torch
from pydantic import Field
from torch import nn

from modrl.agent.actors.base import Actor
from modrl.agent.algorithms.base import Algorithm
from modrl.agent.optimizers import Optimizer
from modrl.agent.storages.base import Storage
from modrl.config import BadInput, Settings
from modrl.cores import usable_cores
from modrl.envs.base import Envs
from modrl.scheme.collect import Collector
from modrl.scheme.collectors import Collectors
from modrl.scheme.compute import Compute
from modrl.scheme.gradient import GradientWorker, Pace
from modrl.scheme.inference import Server
from modrl.scheme.race import Race
from modrl.scheme.replica import Replica
from modrl.scheme.settings import Servers
from modrl.scheme.stages import Stages
from modrl.scheme.update import Optimizers
from modrl.seeding import Attempts, Role, generator, seed_of

SMALL = 100_000
"""Weights below which a network gains nothing from a second thread, and loses much where the cores are busy."""


def is_small(network: nn.Module) -> bool:
    """Whether calls of torch cost more than what they compute."""
    return sum(parameter.numel() for parameter in network.parameters()) < SMALL


def torch_device(name: str, key: str) -> torch.device:
    """The device that the setting at `key` names.

    Raises:
        BadInput: it does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"{key}: expected auto, cpu or cuda[:index], got {name!r}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"{key}: {name!r} asked for, but this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto")
    if device.type not in {"cpu", "cuda"}:
        raise BadInput(f"{key}: expected auto, cpu or cuda[:index], got {name!r}")
    return device


class Ray(Settings):
    """How Ray is reached."""

    address: str = "local"
    """`local`: a cluster of this run's own, on loopback; `auto` or an address: one that is running."""
    object_store: int | None = Field(None, ge=80_000_000)
    """Bytes of shared memory for a local cluster; None: Ray's own choice."""


class Machine(Settings):
    """Facts about the machine, apart from the experiment."""

    device: str = "auto"
    """Where networks run: cpu, cuda, cuda:1, …; auto: cuda where there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int | None = Field(None, ge=1, le=1024)
    """Torch threads of this process. None: one for a small network; else as many cores as are left by other gradient workers, or as learning
    is worth beside collectors, which is measured when a run begins and written into its experiment.yaml."""
    memory_format: Literal["channels_last", "contiguous"] | None = None
    """How images lie in memory. None: channels_last, unless a measurement when a run begins says otherwise; it is written into experiment.yaml."""
    compile: bool = False
    """Compiles networks and losses with torch.compile, which takes a while when a run begins."""
    worker_threads: int = Field(1, ge=1, le=1024)
    """Torch threads of each Ray worker."""
    ray: Ray = Ray()

    def torch_device(self) -> torch.device:
        """The device.

        Raises:
            BadInput: it does not exist here.
        """
        return torch_device(self.device, "machine.device")

    def own_threads(self, busy: int, small: bool) -> int:
        """Torch threads of this process where `busy` other workers compute beside it; `small`: networks are."""
        if self.threads is not None:
            return self.threads
        return 1 if small else max(1, usable_cores() - busy)


MEMORY_FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
LANES = 4
"""The fewest environments that a collector deals out over two halves."""


@dataclass(frozen=True)
class Parts:
    """An agent's settings, and how many of each worker share it."""

    seed: int
    envs: Envs.Config
    actor: Actor.Config
    algorithm: Algorithm.Config
    storage: Storage.Config
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    machine: Machine
    collectors: int  # over all gradient workers
    gradient_workers: int
    steps_per_round: int  # optimiser steps between two pulls of rollouts
    paths: tuple[str, ...] = ()  # where this process imports from
    own: tuple[str, ...] = ()  # folders that the user's own components are imported from
    max_staleness: int | None = None  # rounds; older rollouts are dropped
    pacing: tuple[float | None, float | None] = (None, None)  # updates per env step of one gradient worker
    env_restarts: int = 0  # of each collector's environments
    steps: float = math.inf  # of the run, over all gradient workers
    profile: bool = False  # whether workers write down when each of their stages began
    per_worker: tuple[tuple[Envs.Config, Actor.Config], ...] = ()  # settings of collector i modulo their number; (): all alike

    def compute(self) -> Compute:
        """Device and precision of this worker."""
        return Compute(self.machine.torch_device(), self.machine.precision)

    def make_actor(self, config: Actor.Config | None = None) -> Any:
        """The actor, with the run's initial weights; `config`: with other settings that leave its networks as they are."""
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(self.seed, Role.WEIGHTS))
            actor = (config or self.actor).build(observation_space=self.observation_space, action_space=self.action_space)
        if self.machine.memory_format is not None:
            actor.use_memory_format(MEMORY_FORMATS[self.machine.memory_format])
        return actor

    def make_algorithm(self, number: int = 0, attempts: Attempts = ()) -> Any:
        """The algorithm of gradient worker `number`, with an actor of its own."""
        shuffle = generator(self.seed, Role.LEARNING, number, attempts=attempts)
        actor = self.make_actor()
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(self.seed, Role.WEIGHTS, 1))
            algorithm = self.algorithm.build(actor=actor, generator=shuffle)
        if self.machine.compile:
            algorithm.compile()
        return algorithm

    def collector(self, number: int, attempts: Attempts = (), race: Race | None = None) -> Collector:
        """Collector `number`, counted over all gradient workers; `attempts` says which replacement it is, and has chances of its own."""
        actor = self.make_actor(self.of_collector(number)[1])
        if self.machine.compile:
            actor.compile_acting()
        compute = self.compute()
        chance = generator(self.seed, Role.ACTION, number, compute.device, attempts)
        return Collector(
            envs=self.make_envs(number, attempts), actor=actor, horizon=self.storage.horizon, generator=chance,
            compute=compute, race=race, stages=self.stages(f"collector {number}"), serial=(number * 1000 + sum(attempts)) * 10_000_000,
            discount=(lambda progress: float(self.algorithm.at(progress).discount)) if self.algorithm.reward == "normalized" else None,
        )  # fmt: skip

    def make_envs(self, number: int, attempts: Attempts = ()) -> list[Envs]:
        """The environments of collector `number`; in two halves where one can step while the other is acted for."""
        width = self.envs.count // self.collectors
        config, _ = self.of_collector(number)
        middle = (width + 1) // 2 if config.overlaps and width >= LANES else width
        made: list[Envs] = []
        restarts: Any = self.env_restarts
        try:
            for part in (range(middle), range(middle, width)):
                numbers = [number * width + i for i in part]
                if numbers:
                    seeds = [seed_of(self.seed, Role.ENV, n, attempts) for n in numbers]
                    options = {"restarts": restarts} if restarts else {}
                    made.append(config.build(numbers=numbers, seeds=seeds, training=True, **options))
                    restarts = made[0].restarts
        except BaseException:
            for envs in made:
                envs.close()
            raise
        return made

    def stages(self, worker: str) -> Stages:
        """What this worker counts its time with."""
        return Stages(worker if self.profile else None)

    def of_collector(self, number: int) -> tuple[Envs.Config, Actor.Config]:
        """The settings of collector `number`'s environments and actor."""
        return self.per_worker[number % len(self.per_worker)] if self.per_worker else (self.envs, self.actor)

    def tasks(self) -> list[Envs.Config]:
        """The different environments that collectors have; one kind, unless `per_worker` says otherwise."""
        found: list[Envs.Config] = []
        for number in range(max(1, len(self.per_worker))):
            if (config := self.of_collector(number)[0]) not in found:
                found.append(config)
        return found

    def task_of(self) -> list[int]:
        """The task of each environment, by its global number; empty where there is but one."""
        tasks, width = self.tasks(), self.envs.count // self.collectors
        return [tasks.index(self.of_collector(number // width)[0]) for number in range(self.envs.count)] if len(tasks) > 1 else []

    def server(self, columns: int, settings: Servers) -> Server:
        """An inference server that at most `columns` environments wait for."""
        key = "scheme.collection.inference.device"
        device = self.machine.torch_device() if settings.device is None else torch_device(settings.device, key)
        compute = Compute(device, self.machine.precision)
        batch = columns if settings.batch is None else min(settings.batch, columns)
        return Server(actor=self.make_actor(), compute=compute, batch=batch, timeout=settings.timeout_ms / 1000)

    def gradient_worker(self, number: int, start_collection: Callable[[Attempts], Collectors], attempts: Attempts = ()) -> GradientWorker:
        """Gradient worker `number`."""
        chance = generator(self.seed, Role.REPLAY, number, attempts=attempts)
        storage = self.storage.build(batch=self.storage.batch // self.gradient_workers, generator=chance)
        pace = Pace(*self.pacing, limit=self.steps / self.gradient_workers)
        return GradientWorker(
            algorithm=self.make_algorithm(number, attempts), storage=storage, collection=start_collection(attempts),
            steps_per_round=self.steps_per_round, compute=self.compute(), max_staleness=self.max_staleness, pace=pace,
            stages=self.stages(f"gradient worker {number}"), looks=not self.machine.compile,
        )  # fmt: skip

    def replica(self, worker: GradientWorker, optimizer: Optimizer.Config, every: int | None, timeout: float | None) -> Replica:
        """A gradient worker with optimisers of its own."""
        return Replica(worker, Optimizers(worker.algorithm, optimizer), every, timeout)
