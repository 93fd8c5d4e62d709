"""The hot loops, each as work that can be done again and again at the same cost.

Environments are toys whose episodes end after ten steps whatever is done, so that chance decides nothing that costs anything.
"""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import torch

from modrl import Experiment
from modrl.agent.returns import gae, vtrace
from modrl.agent.storages import Replay
from modrl.costs import Learning, collecting
from modrl.messages import Rollout
from modrl.metrics import WINDOW, Metrics, MetricsFile
from modrl.scheme.compute import State
from modrl.scheme.update import Optimizers
from modrl.seeding import Role, generator
from modrl.tree import to_numpy

HORIZON, COLUMNS = 20, 4
MLP = {"name": "mlp", "hidden": [64, 64]}
VECTORS: dict[str, Any] = {
    "name": "loops", "steps": 10**9,
    "envs": {"name": "gym", "id": "modrl/Count-v0", "count": COLUMNS, "kwargs": {"n": 10, "end": "truncated"}},
    "actor": {"name": "actor_critic", "torso": MLP}, "algorithm": {"name": "impala"}, "optimizer": {"name": "rmsprop"},
    "storage": {"name": "fresh", "horizon": HORIZON, "batch": COLUMNS}, "scheme": "local",
    "checkpoint": {"every": "365d"}, "logging": {"tensorboard": False}, "machine": {"device": "cpu", "threads": 1},
}  # fmt: skip
IMAGES: dict[str, Any] = VECTORS | {
    "envs": {"name": "gym", "id": "modrl/Catch-v0", "count": COLUMNS, "kwargs": {"size": 84}, "max_episode_steps": 10},
    "actor": {"name": "actor_critic", "torso": "shallow"},
}  # fmt: skip
PPO: dict[str, Any] = VECTORS | {"algorithm": {"name": "ppo"}, "optimizer": {"name": "adam", "lr": 1e-3}}


class Loop(NamedTuple):
    """Work whose cost is known per unit."""

    unit: str
    units: int  # done by one call of `work`
    work: Callable[[], Any]
    more: Mapping[str, int] = {}  # figures that are known without counting
    writes_files: bool = False  # through buffers as large as the file system likes


@contextlib.contextmanager
def collect(experiment: dict[str, Any]) -> Iterator[Loop]:
    """The collector: acting, stepping and recording."""
    with collecting(Experiment.from_dict(experiment).plan()) as rollout:
        yield Loop("step", HORIZON, rollout)


@contextlib.contextmanager
def batch(workers: int) -> Iterator[Loop]:
    """A batch of one rollout that is the storage's own, or of those that several workers sent."""
    rollout = _rollout(IMAGES)
    rollouts = [rollout] if workers == 1 else [_received(*_sent(rollout)) for _ in range(workers)]
    storage = Experiment.from_dict(IMAGES).storage.build(batch=workers * COLUMNS, generator=torch.Generator())

    def work() -> None:
        for each in rollouts:
            storage.insert(each)
        assert storage.batch() is not None

    yield Loop("batch", 1, work)


@contextlib.contextmanager
def replay() -> Iterator[Loop]:
    """A full replay: one rollout in, and a batch of it and as many old columns out."""
    settings = Replay.Config(horizon=HORIZON, batch=2 * COLUMNS, capacity=4 * COLUMNS)
    storage = settings.build(batch=2 * COLUMNS, generator=generator(1, Role.REPLAY))
    rollout = _rollout(IMAGES)

    def work() -> None:
        storage.insert(rollout)
        assert storage.batch() is not None

    yield Loop("batch", 1, work)


@contextlib.contextmanager
def returns(function: Callable[..., Any], arrays: int) -> Iterator[Loop]:
    """A function of so many arrays and of cuts."""
    chance = generator(1, Role.LEARNING)
    inputs = [torch.rand(20, 32, generator=chance) for _ in range(arrays)]
    yield Loop("call", 1, partial(function, *inputs, torch.rand(20, 32, generator=chance) < 0.1))


@contextlib.contextmanager
def learn(experiment: dict[str, Any]) -> Iterator[Loop]:
    """Loss, gradient and optimiser step, with the weights taken over before each."""
    with _learning(experiment) as learning:
        worker, updates = learning.worker, learning.worker.algorithm.num_losses

        def work() -> None:
            worker.learn(learning.batch, learning.weights)
            for _ in range(updates):
                gradient = worker.gradient(learning.weights)
                learning.optimizers.step(gradient.tensors, gradient.weight, 0.0)

        yield Loop("update", updates, work)


@contextlib.contextmanager
def weights() -> Iterator[Loop]:
    """A snapshot of the weights, loaded by one other worker."""
    plan = Experiment.from_dict(IMAGES).plan()
    optimizers = Optimizers(plan.parts.make_algorithm(), plan.optimizer)
    state = State(plan.parts.make_actor())
    yield Loop("version", 1, lambda: state.load(optimizers.networks()["acting"]))


@contextlib.contextmanager
def message() -> Iterator[Loop]:
    """A rollout as Ray sends it. What is not sent as a buffer of its own is copied once more."""
    rollout = _rollout(IMAGES)
    data, buffers = _sent(rollout)
    size = len(data) + sum(buffer.raw().nbytes for buffer in buffers)
    yield Loop("message", 1, lambda: _sent(rollout), {"buffers": len(buffers), "bytes sent": size})


@contextlib.contextmanager
def metrics_row() -> Iterator[Loop]:
    """What an update reports, into metrics.csv."""
    with tempfile.TemporaryDirectory() as folder, _learning(VECTORS) as learning:
        learning.worker.learn(learning.batch, learning.weights)
        episodes = _rollout().episodes
        gradient = learning.worker.gradient(learning.weights)._replace(episodes=episodes)
        metrics, file = Metrics(1), MetricsFile(Path(folder) / "metrics.csv")
        metrics.recent.extend([(episodes[0].reward, episodes[0].length)] * WINDOW)

        def work() -> None:
            metrics.record([gradient], [0], {"learning_rate": 1e-3, "grad_norm": 1.0})
            file.append(metrics.row(80, 1))

        yield Loop("row", 1, work, writes_files=True)


@contextlib.contextmanager
def run() -> Iterator[Loop]:
    """All that a run does from one row to the next."""
    with tempfile.TemporaryDirectory() as folder, Experiment.from_dict(VECTORS).stream(Path(folder) / "run") as rows:
        while float(next(rows)["episodes"] or 0) < WINDOW:
            pass
        yield Loop("update", 1, partial(next, rows), writes_files=True)


LOOPS: dict[str, Callable[[], AbstractContextManager[Loop]]] = {
    "collect": partial(collect, VECTORS), "collect-images": partial(collect, IMAGES),
    "batch": partial(batch, 1), "batch-from-ray": partial(batch, 2), "replay": replay,
    "vtrace": partial(returns, vtrace, 5), "gae": partial(returns, gae, 4),
    "impala": partial(learn, VECTORS), "ppo": partial(learn, PPO),
    "weights": weights, "message": message, "metrics": metrics_row, "run": run,
}  # fmt: skip
"""By the name that figures are stored under."""


def _rollout(experiment: dict[str, Any] = VECTORS) -> Rollout:
    with collecting(Experiment.from_dict(experiment).plan()) as collect:
        return collect()


@contextlib.contextmanager
def _learning(experiment: dict[str, Any]) -> Iterator[Learning]:
    plan = Experiment.from_dict(experiment).plan()
    with collecting(plan) as collect, contextlib.closing(Learning(plan, [collect()])) as learning:
        yield learning


def _sent(rollout: Rollout) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return cloudpickle.dumps(to_numpy(rollout), protocol=5, buffer_callback=buffers.append), buffers


def _received(data: bytes, buffers: list[pickle.PickleBuffer]) -> Rollout:
    """Read-only, as from an object store."""
    rollout: Rollout = pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])
    return rollout
