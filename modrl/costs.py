"""The parts of an experiment alone, and what they cost: environments, acting and learning, without a scheme."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import psutil
import torch
from gymnasium.vector.utils import batch_space

from modrl.agent.batch import to_device
from modrl.messages import Rollout, Weights
from modrl.run import Plan
from modrl.scheme.compute import State, use_torch_threads
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.update import Optimizers
from modrl.seeding import Attempts, Role, seed_of
from modrl.tree import on_device, tree_map


class Cost(NamedTuple):
    """What one env step takes of a part, alone."""

    core: float  # seconds of one core
    gpu: float = 0.0  # seconds of the GPU


class Part(Protocol):
    """Does one part's work again and again."""

    def work(self) -> int:
        """Does some; gives how much: env steps, or optimiser steps."""

    def close(self) -> None:
        """Ends what it started."""


class Stepping:
    """Steps one collector's environments with random actions."""

    def __init__(self, plan: Plan, number: int) -> None:
        parts = plan.parts
        width = parts.envs.count // parts.collectors
        numbers = range(number * width, (number + 1) * width)
        config = parts.of_collector(number)[0]
        self.envs = config.build(numbers=numbers, seeds=[seed_of(parts.seed, Role.EVAL_ENV, n) for n in numbers])
        actions = batch_space(self.envs.action_space, width)
        actions.seed(number)
        self.actions = itertools.cycle([actions.sample() for _ in range(64)])
        self.now = self.envs.reset()

    def work(self) -> int:
        self.now = self.envs.step(next(self.actions))
        return len(self.now.first)

    def close(self) -> None:
        self.envs.close()


class Acting:
    """Acts on one collector's observations."""

    def __init__(self, plan: Plan, stepping: Stepping) -> None:
        self.compute = plan.parts.compute()
        self.actor = plan.parts.make_actor().to(self.compute.device).eval()
        now = stepping.now
        self.obs, self.first = on_device(tree_map(torch.from_numpy, (now.obs, now.first)), self.compute.device)
        self.memory = self.actor.initial_memory(len(now.first))
        self.generator = torch.Generator(self.compute.device)
        self.horizon = plan.parts.storage.horizon

    def work(self) -> int:
        with self.compute.precision_scope():
            for _ in range(self.horizon):
                step = self.actor.act(self.obs, self.first, self.memory, self.generator)
                self.actor.to_env(step.action)
        return self.horizon * len(self.first)

    def close(self) -> None:
        pass


class Learning:
    """Learns from one gradient worker's share of a batch, over and over from the same weights."""

    def __init__(self, plan: Plan, rollouts: list[Rollout]) -> None:
        parts = plan.parts
        self.worker: GradientWorker = parts.gradient_worker(0, lambda attempts: _Nobody())  # type: ignore[arg-type, return-value]
        self.optimizers = Optimizers(self.worker.algorithm, plan.optimizer)
        batch = None
        for rollout in itertools.cycle(rollouts):
            self.worker.storage.insert(rollout)
            if (batch := self.worker.storage.batch()) is not None:
                break
        assert batch is not None
        self.batch = to_device(batch, self.worker.compute.device)
        self.weights = Weights(0, 0.0, **self.optimizers.networks())

    def work(self) -> int:
        self.worker.learn(self.batch, self.weights)
        steps = 0
        while (gradient := self.worker.finish(self.weights)) is not None:
            self.optimizers.step(gradient.tensors, gradient.weight, 0.0)
            steps += 1
        return steps

    def close(self) -> None:
        self.worker.close()


class _Nobody:
    """Collectors that are not asked for anything."""

    def counts(self) -> dict[str, float]:
        return {}

    def seconds(self) -> dict[str, float]:
        return {}

    def laps(self) -> tuple[()]:
        return ()

    def events(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


class Alone:
    """One part, in as many copies as keep every core busy; on a GPU in one."""

    def __init__(self, copies: list[Any], gpu: bool = False) -> None:
        self.copies = copies
        self.gpu = gpu

    def cost(self, seconds: float) -> Cost:
        """What one unit of its work takes, measured for so long."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the whole has set its own
        try:
            return self._cost(seconds)
        finally:
            torch.set_num_threads(before)

    def _cost(self, seconds: float) -> Cost:
        done = [0] * len(self.copies)
        failures: list[BaseException] = []
        began, cpu = time.perf_counter(), cpu_seconds(all_workers=False)

        def repeat(index: int) -> None:
            use_torch_threads()
            try:
                while time.perf_counter() < began + seconds or not done[index]:
                    done[index] += self.copies[index].work()
                if self.gpu:
                    torch.cuda.synchronize()
            except BaseException as error:  # told below, in the caller's thread
                failures.append(error)

        threads = [threading.Thread(target=repeat, args=(index,), name="bench") for index in range(len(self.copies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        wall = time.perf_counter() - began
        return Cost((cpu_seconds(all_workers=False) - cpu) / sum(done), wall / sum(done) if self.gpu else 0.0)


def cpu_seconds(all_workers: bool = True) -> float:
    """What this process and all that it started have computed so far; or, without Ray's, it and the processes of its environments."""
    total = time.process_time()  # finer than what the system says of other processes
    started = psutil.Process().children(recursive=True)
    if not all_workers:
        ours = {child.pid for child in multiprocessing.active_children()}
        started = [process for process in started if process.pid in ours]
    for process in started:
        with contextlib.suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.contextmanager
def collecting(plan: Plan, attempts: Attempts = ()) -> Iterator[Callable[[], Rollout]]:
    """Makes rollouts of a collector of its own, on the initial weights; `attempts`: with other chances than the run's."""
    with contextlib.closing(plan.parts.collector(0, attempts)) as collector:
        weights = Weights(0, 0.0, State(collector.actor).copy(), {})
        yield lambda: collector.collect(weights)
