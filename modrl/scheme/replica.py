"""Gradient workers that hold the weights themselves: replicas, which agree by all-reduce instead of through an updater.

Where a replica is lost, the collective of all others fails. They keep the gradient at hand; the group is formed again with
a replacement that takes over the newest replica's state, and those whose step did not happen go on with it.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch
import torch.distributed as dist

from modrl.messages import Gradient, Weights
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.group import Group
from modrl.scheme.places.base import PeerLost, WorkerError, WorkerLost
from modrl.scheme.stages import Stages, add
from modrl.scheme.update import Optimizers
from modrl.tree import to_torch

MEETING = datetime.timedelta(seconds=20)
"""How long a replica waits for the others when a group is formed: one of them may be gone."""
FORMING_SECONDS = 60.0
"""How long replicas that are all there may fail to meet."""
RESCUE_SECONDS = 10.0
"""How long a replica may take to hand out its weights after another one's failure."""
PATIENCE = 1800.0
"""Seconds that a collective waits for the other replicas where tasks have no timeout.

Where they have one it is half of that, so that who waits is not taken for who hangs."""


_LEFT: list[Any] = []
"""Process groups that were left in the middle of a collective: to destroy one waits for its end."""


class Replica:
    """A gradient worker with optimisers of its own.

    `every` None: gradients are summed over all replicas at each step (all-reduce; DD-PPO: Wijmans et al., 2020). `every` k:
    each steps on its own share, and each k-th step all weights are averaged (local SGD: Stich, 2019); optimisers are not.
    """

    def __init__(self, worker: GradientWorker, optimizers: Optimizers, every: int | None, timeout: float | None) -> None:
        self.worker = worker
        self.optimizers = optimizers
        self.every = every
        self.timeout = timeout
        self.steps = 0  # steps that the weights have seen: the version that they are
        self._pending: Gradient | None = None  # computed, and not yet part of a step that all have made
        self._peers: Any = None  # the process group
        self._store: Any = None
        self._size = 1
        self._summing = False  # a collective is under way
        self.stages = Stages(worker.stages.worker)

    # --- the process group ---

    def host(self, address: str) -> int:
        """Opens the place where the replicas find each other, at an address of this machine; gives its port."""
        listening = socket.create_server((address, 0))
        port: int = listening.getsockname()[1]
        self._store = dist.TCPStore(
            address, port, is_master=True, wait_for_workers=False, timeout=MEETING, master_listen_fd=listening.detach(), use_libuv=False
        )  # fmt: skip
        return port

    def join(self, address: str, port: int, own: str, rank: int, size: int) -> int:
        """Joins the replicas that meet at this address, from an `own` one; gives the version of this replica's weights."""
        self.leave()
        try:
            self._meet(address, port, own, rank, size)
        except RuntimeError as error:
            raise PeerLost("a replica", f"the replicas could not meet at {address}: {error}") from error
        return self.steps

    def _meet(self, address: str, port: int, own: str, rank: int, size: int) -> None:
        if rank != 0:
            self._store = dist.TCPStore(address, port, is_master=False, timeout=MEETING)
        self._size = size
        if self.worker.compute.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = MEETING
            self._peers = dist.ProcessGroupNCCL(self._store, rank, size, options)
        else:
            listening = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            listening._timeout = MEETING
            listening._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
            self._peers = dist.ProcessGroupGloo(self._store, rank, size, listening)

    def leave(self) -> None:
        """Leaves the others: who waits for this replica fails at once."""
        if self._peers is not None:
            self._peers.abort()
            if self._summing:
                _LEFT.append(self._peers)
            self._peers = None

    def _sum(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors, added up over all replicas.

        Raises:
            PeerLost: a replica was lost meanwhile; nothing has changed here.
        """
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        self._summing = True
        self.stages.lap("optimise")
        try:
            options = dist.AllreduceOptions()
            options.timeout = datetime.timedelta(seconds=PATIENCE if self.timeout is None else self.timeout / 2)
            self._peers.allreduce([flat], options).wait()
        except RuntimeError as error:
            raise PeerLost("a replica", f"the replicas could not agree: {error}") from error
        finally:
            self._summing = False
            self.stages.lap("reduce")
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    # --- training ---

    def gradient(self, weights: Weights) -> Gradient:
        """The next gradient of this replica's share, applied: its tensors are not in it any more."""
        if self.steps > weights.version:  # the step that is asked for came with another replica's state
            return self._taken(weights)
        if self._pending is None:
            self._pending = self.worker.gradient(self._own(weights))
        return self._step(weights)

    def finish(self, weights: Weights) -> Gradient | None:
        """As `gradient`, but no batch begins: None once every replica's is used up."""
        if self.steps > weights.version:
            return self._taken(weights)
        if self._pending is None:
            self._pending = self.worker.finish(self._own(weights))
        (busy,) = self._sum([torch.tensor([float(self._pending is not None)], device=self.worker.compute.device)])
        if not busy.item():
            return None
        if self._pending is None:  # others still have losses
            self._pending = self.worker.nothing(weights)
        return self._step(weights)

    def _own(self, weights: Weights) -> Weights:
        self.stages.begin()
        own = weights._replace(**self.optimizers.networks())
        self.stages.lap("transfer")
        return own

    def _taken(self, weights: Weights) -> Gradient:
        gradient, self._pending = self._pending or self.worker.nothing(weights), None
        return gradient._replace(tensors={})

    def _step(self, weights: Weights) -> Gradient:
        assert self._pending is not None
        self.stages.begin()
        if self.every is None:
            said = self._step_together(self._pending, weights)
        else:
            said = self._step_alone(self._pending, weights) if self._pending.tensors else self._pending.said
            self._pending = self._pending._replace(tensors={}, said=said)  # if the average fails, the step is not made again
            if (weights.version + 1) % self.every == 0:
                self._average()
        gradient, self._pending = self._pending, None
        self.steps = weights.version + 1
        self.stages.lap("optimise")
        seconds, laps = add(gradient.seconds, self.stages.take()), (*gradient.laps, *self.stages.take_laps())
        return gradient._replace(tensors={}, said=said, seconds=seconds, laps=laps)

    def _step_together(self, gradient: Gradient, weights: Weights) -> dict[str, float]:
        """One step on the sum of all replicas' gradients. Each optimiser's part is in it, for a replacement may be at another loss."""
        tensors: list[torch.Tensor] = []
        for name, optimizer in self.optimizers.by_name.items():
            own = gradient.tensors.get(name)
            weight = gradient.weight if own is not None else 0
            tensors += [torch.tensor([float(weight)], device=self.worker.compute.device)]
            tensors += own if own is not None else [torch.zeros_like(parameter) for parameter in optimizer.parameters]
        statistics = {name: gradient.statistics.get(name, part.zero().to(tensors[0].device)) for name, part in self.optimizers.statistics.items()}
        measured = self._sum(list(statistics.values())) if statistics else []  # apart: they are of double precision
        summed = iter(self._sum(tensors))
        said: dict[str, float] = {}
        for name, optimizer in self.optimizers.by_name.items():
            total, part = next(summed).item(), [next(summed) for _ in optimizer.parameters]
            if total:
                said |= self.optimizers.step({name: part}, total, weights.progress)
        self.optimizers.merge(dict(zip(statistics, measured, strict=True)))
        return said

    def _step_alone(self, gradient: Gradient, weights: Weights) -> dict[str, float]:
        """One step on this share, which stands for the whole batch: a summed loss counts as often as there are shares."""
        if not gradient.weight:
            return {}
        if self.optimizers.algorithm.config.reduction == "sum":
            for tensors in gradient.tensors.values():
                torch._foreach_mul_(tensors, float(self._size))
        said = self.optimizers.step(gradient.tensors, gradient.weight, weights.progress)
        self.optimizers.merge(gradient.statistics)
        return said

    @torch.no_grad()
    def _average(self) -> None:
        """The mean of all replicas' weights, everywhere."""
        algorithm = self.optimizers.algorithm
        values = [v for module in (algorithm.actor, *algorithm.modules().values()) for v in module.state_dict().values()]
        for dtype in sorted({v.dtype for v in values if v.is_floating_point()}, key=str):
            alike = [v for v in values if v.dtype == dtype]
            means = self._sum(alike)
            torch._foreach_div_(means, float(self._size))
            torch._foreach_copy_(alike, means)

    def change(self, *settings: Any) -> None:
        """Other settings, from the next batch on."""
        self.worker.change(*settings)

    # --- state ---

    def learned(self) -> dict[str, Any]:
        """Weights and optimisers, and how many steps they have seen."""
        return {"steps": self.steps, **self.optimizers.state()}

    def adopt(self, state: dict[str, Any]) -> None:
        """Takes over what another replica, or a checkpoint, has learned."""
        self.optimizers.restore(to_torch(state))
        self.steps = state["steps"]

    def state(self, contents: bool) -> dict[str, Any]:
        """Plain data to continue from; weights of its own only where replicas differ between two averages."""
        return {"worker": self.worker.state(contents), "replica": None if self.every is None else self.learned()}

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`, of a replica or of a gradient worker; whether all episodes go on where they were."""
        if state.get("replica") is not None:
            self.adopt(state["replica"])
        return self.worker.restore(state)

    def close(self) -> None:
        """Ends the collectors."""
        self.leave()
        self.worker.close()


class ReplicaGroup(Group):
    """Gradient workers that hold replicas, all at the same step; `address(worker)`: where others reach this worker's machine."""

    def __init__(self, *arguments: Any, address: Callable[[Any], Future[str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.address = address
        self.form()

    def form(self) -> None:
        """Forms the process group of the workers that there are; those that are behind take over the newest replica's state.

        Raises:
            WorkerError: a worker was lost meanwhile, and no replacement is left; or they could not reach each other for long.
        """
        deadline = time.monotonic() + FORMING_SECONDS
        while failures := self._formed():
            lost = {worker: error for worker, error in failures.items() if isinstance(error, WorkerLost)}
            for worker, error in lost.items():
                self._replace(worker, error)
            if not lost and time.monotonic() > deadline:
                raise next(iter(failures.values()))
            time.sleep(0.0 if lost else 0.5)  # one of them may be gone without anyone knowing yet

    def _formed(self) -> dict[int, WorkerError]:
        """One attempt; what failed, by worker."""
        failures: dict[int, WorkerError] = {}

        def each(function: Callable[[int], Future[Any]], workers: Iterable[int]) -> dict[int, Any]:
            results: dict[int, Any] = {}
            for worker, future in [(worker, function(worker)) for worker in workers]:
                try:
                    results[worker] = future.result()
                except (WorkerLost, PeerLost) as error:
                    failures[worker] = error
            return results

        everyone = range(len(self.workers))
        addresses = each(lambda worker: self.address(self.workers[worker]), everyone)
        ports = {} if failures else each(lambda worker: self.workers[worker].submit("host", addresses[0]), [0])
        if failures:
            return failures
        steps = each(lambda w: self.workers[w].submit("join", addresses[0], ports[0], addresses[w], w, len(self.workers)), everyone)
        if failures or min(steps.values()) == max(steps.values()):
            return failures
        newest = max(steps, key=steps.__getitem__)
        learned = each(lambda worker: self.workers[worker].submit("learned"), [newest])
        behind = [] if failures else [worker for worker in everyone if steps[worker] < steps[newest]]
        each(lambda worker: self.workers[worker].submit("adopt", learned[newest]), behind)
        return failures

    def rescue(self) -> dict[str, Any] | None:
        """What the newest replica has learned, of those that still answer after a failure; None: none does."""
        self._part()
        deadline = time.monotonic() + RESCUE_SECONDS
        found = []
        for future in [worker.submit("learned") for worker in self.workers]:
            with contextlib.suppress(WorkerError, TimeoutError):
                found.append(future.result(max(0.0, deadline - time.monotonic())))
        return max(found, key=lambda learned: learned["steps"], default=None)

    def _part(self) -> None:
        """Those that have ended leave, so that those that wait for them do not any more."""
        for worker in self.workers:
            worker.submit("leave")

    def close(self) -> None:
        self._part()
        super().close()

    def _make_up(self, worker: int, error: WorkerLost) -> None:
        super()._make_up(worker, error)
        self.form()

    def _attend(self) -> None:
        broken = [e for t in self._tasks if t.future.done() and isinstance(e := t.future.exception(), (PeerLost, WorkerLost))]
        if not broken and not any(time.monotonic() > deadline for deadline in self._deadlines().values()):
            super()._attend()
            return
        job, self._job = self._job, None
        while running := [task.future for task in self._tasks if not task.future.done()]:  # they fail too, or have made their step
            if not wait(running, self._patience(), FIRST_COMPLETED).done:
                break  # and one hangs
        self._forget_the_bereft()
        before = self.restarts
        super()._attend()
        if self.restarts == before:
            raise broken[0]
        self.form()
        self._forget_the_bereft()  # those that waited for the one that hung
        self._job = job
        if job is not None:
            self._start_idle()

    def _forget_the_bereft(self) -> None:
        """Tasks that failed for want of a peer: they go on when the group is whole."""
        self._tasks = [t for t in self._tasks if not (t.future.done() and isinstance(t.future.exception(), PeerLost))]
