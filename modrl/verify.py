"""Proof that schemes which must agree do agree: the experiment's own agent, for a few updates, on one recorded stream.

Each check trains the agent under two schemes that have to give the same numbers, or under one scheme whose bookkeeping has
to add up. The stream is recorded from the experiment's own environments, so that every scheme sees the same experience
whatever it does. Sums in another order, or inference in other batches, agree to rounding alone: such checks state a
tolerance and the error that they measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modrl import checkpoint
from modrl.agent.batch import Batch
from modrl.agent.storages import Fresh
from modrl.config import ConfigError, dump
from modrl.envs.recorded import record
from modrl.experiment import Experiment
from modrl.messages import Gradient, Rollout, Weights
from modrl.run import Plan
from modrl.scheme.collect import Collector
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.parts import Parts
from modrl.scheme.presets import presets
from modrl.scheme.scheme import Scheme
from modrl.scheme.update import Updater
from modrl.seeding import Role, generator, seed_of
from modrl.tree import to_torch, tree_map

UPDATES = 4
"""Batches that each scheme learns from."""
COLUMNS = 8
"""Environments that are recorded, unless the experiment has fewer: every scheme here can deal them out."""
ROUNDING = 1e-5
"""Relative error of sums in another order, in single precision."""
SGD = {"name": "torch.optim:SGD", "lr": 0.01}
LIKELIHOOD = 1e-4
"""Nats that a log-probability may differ by between one step and a sequence, or between batches."""


class Outcome(NamedTuple):
    """What a check found."""

    name: str
    passed: bool | None  # None: it does not apply to this experiment
    error: float | None  # measured
    tolerance: float | None  # 0: bit by bit
    detail: str
    seconds: float


# --- what a scheme did ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TracedParts(Parts):
    """An agent whose workers write down what they do."""

    folder: str = ""

    def collector(self, *arguments: Any, **options: Any) -> Collector:
        made = super().collector(*arguments, **options)
        _write(self.folder, "collector", {"chance": made.generator.initial_seed(), "envs": [seed for lane in made.lanes for seed in lane.envs.seeds]})
        return TracedCollector(made, arguments[0])

    def gradient_worker(self, number: int, *arguments: Any, **options: Any) -> GradientWorker:
        made = super().gradient_worker(number, *arguments, **options)
        return TracedWorker(made, self, number)


def _write(folder: str, kind: str, content: Any) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{kind}-", suffix=".part", delete=False) as file:
        path = Path(file.name)
    checkpoint.save(path.with_suffix(".trace"), content)
    path.unlink()


class TracedCollector(Collector):
    """Numbers its rollouts, in what travels with every step."""

    def __init__(self, made: Collector, number: int) -> None:
        self.__dict__.update(made.__dict__)
        self.number = number
        self.count = 0

    def collect(self, weights: Weights) -> Rollout:
        rollout = super().collect(weights)
        serial = torch.full(rollout.reward.shape, self.number * 1_000_000 + self.count).numpy()
        self.count += 1
        return rollout._replace(behaviour={**rollout.behaviour, "serial": serial})


class TracedWorker(GradientWorker):
    """Writes down each batch: which rollouts are in it, how old, how many valid steps, and whether the weights named by them acted."""

    def __init__(self, made: GradientWorker, parts: TracedParts, number: int) -> None:
        self.__dict__.update(made.__dict__)
        self.parts = parts
        self.number = number
        self.judge = parts.make_actor().to(self.compute.device).eval()
        self.known: dict[int, Mapping[str, Any]] = {}

    def _load(self, weights: Weights) -> None:
        super()._load(weights)
        self.known[weights.version] = weights.acting

    def learn(self, batch: Batch, weights: Weights) -> None:
        serial = batch.behaviour["serial"][0]
        lag, valid = (weights.version - batch.version) // self.steps_per_round, batch.valid.sum(0)
        columns = [{"serial": int(serial[i]), "lag": int(lag[i]), "valid": int(valid[i])} for i in batch.fresh.nonzero().flatten().tolist()]
        content = {"worker": self.number, "version": weights.version, "columns": columns, "likelihood": self._likelihood(batch)}
        _write(self.parts.folder, "batch", content | {"valid": int(batch.valid.sum())})
        behaviour = {key: value for key, value in batch.behaviour.items() if key != "serial"}
        super().learn(batch._replace(behaviour=behaviour), weights)

    @torch.no_grad()
    def _likelihood(self, batch: Batch) -> float:
        """How far the log-probabilities are off that the batch brings, from those of the weights that it names: the largest difference."""
        worst = 0.0
        acted = batch.behaviour.get("version", batch.version.expand(batch.reward.shape))
        if self.judge.recurrent and len(acted.unique()) > 1 and "version" in batch.behaviour:
            return worst  # a state that several weights had a part in
        for version in acted.unique().tolist():
            if version not in self.known:
                return math.inf
            self.judge.load_state_dict(to_torch(dict(self.known[version])))
            with self.compute.precision_scope():
                said = self.judge(batch).policy.log_prob(_padded(batch))[: len(batch.reward)]
            off = (said - batch.behaviour["log_prob"]).abs()[(acted == version) & batch.valid]
            worst = max(worst, float(off.max()) if off.numel() else 0.0)
        return worst


def _padded(batch: Batch) -> Any:
    """The actions [S, B], with the last one again for the bootstrap observation."""
    missing = len(batch.first) - len(batch.reward)
    return tree_map(lambda x: torch.cat([x, x[-1:]]) if missing else x, batch.action)


@dataclass
class Trace:
    """What a scheme did in some updates."""

    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)  # combined, by update: those of a central updater
    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)  # after each update; of replicas the last alone
    lags: list[int] = field(default_factory=list)  # of gradients, as told
    true_lags: list[int] = field(default_factory=list)  # as counted here
    policy_lags: list[int] = field(default_factory=list)  # as told, sorted within an update
    env_steps: int = 0
    samples: int = 0  # valid steps that gradients weigh
    losses: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    collectors: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    paced: bool = False  # batches are drawn from a replay that steps enter when they arrive


def trace(plan: Plan, updates: int) -> Trace:
    """Trains for some updates, and gives what happened."""
    result = Trace()
    with tempfile.TemporaryDirectory(prefix="modrl-verify-") as folder:
        parts = TracedParts(**{f.name: getattr(plan.parts, f.name) for f in dataclasses.fields(Parts)}, folder=folder)
        replicas = plan.scheme.update != "central"

        def note(gradients: Sequence[Gradient], lags: Sequence[int], said: Mapping[str, float]) -> None:
            result.lags += lags
            for gradient in gradients:
                result.policy_lags += gradient.policy_lags
                result.samples += gradient.weight
                result.losses += 1
                for name, number in gradient.counts.items():
                    result.counts[name] = result.counts.get(name, 0) + number

        updater = Updater(algorithm=parts.make_algorithm(), optimizer=plan.optimizer, steps=plan.steps, record=note, replicas=replicas)
        scheme = Scheme(plan.scheme, parts, plan.optimizer)
        with contextlib.closing(scheme):
            group = scheme.start()
            with contextlib.closing(group):
                weights = updater.weights()

                def apply(gradients: Sequence[Gradient]) -> Weights:
                    result.true_lags += [updater.version - gradient.version for gradient in gradients]
                    if not replicas:
                        result.gradients.append(_combined(gradients, plan))
                    weights = updater.apply(gradients)
                    if not replicas:
                        result.weights.append(_flat(weights))
                    return weights

                alone = plan.scheme.gradient.alone
                for _ in range(updates * plan.losses_per_batch * (plan.scheme.gradient.workers if alone else 1)):
                    weights = apply(group.pull(weights))
                for gradient in group.drain():
                    weights = apply([gradient])
                while rest := [gradient for gradient in group.finish(weights) if gradient is not None]:
                    for part in [[gradient] for gradient in rest] if alone else [rest]:
                        weights = apply(part)
                if replicas:
                    updater.optimizers.restore(to_torch(group.ask(0, "learned")))
                    result.weights.append(_flat(updater.learned()))
        result.env_steps = updater.env_steps
        for path in sorted(Path(folder).glob("*.trace")):
            (result.batches if path.name.startswith("batch") else result.collectors).append(checkpoint.load(path))
    return result


def _combined(gradients: Sequence[Gradient], plan: Plan) -> dict[str, torch.Tensor]:
    """The gradient that the optimiser is to apply, computed here again: a sum, divided by its samples where the loss is a mean."""
    total = sum(gradient.weight for gradient in gradients)
    scale = 1 / max(total, 1) if plan.parts.algorithm.reduction == "mean" else 1.0
    names = gradients[0].tensors
    return {f"{name}.{i}": sum(to_torch(g.tensors[name][i]) for g in gradients) * scale for name in names for i in range(len(names[name]))}


def _flat(weights: Weights) -> dict[str, torch.Tensor]:
    modules = {"actor": weights.acting, **weights.learning}
    return {f"{module}.{name}": value for module, state in modules.items() for name, value in state.items()}


# --- checks ---------------------------------------------------------------------------------------------------------


class Checks:
    """All checks of an experiment. `places`: where workers may be; without `ray` its schemes run in threads."""

    def __init__(self, experiment: Experiment, folder: Path, places: Sequence[str] = ("here", "thread", "ray")) -> None:
        self.places = places
        self.folder = folder
        self.own = None if any(experiment.scheme == Scheme.Config(preset=name) for name in presets()) else dump(experiment.scheme)
        if self.own is not None:
            self.own["collection"]["per_worker"] = []  # what is recorded is of one kind
        self.base = _recorded(experiment, folder / "stream.ckpt")
        self.traces: dict[str, Trace] = {}
        self.widths: dict[str, int] = {}  # columns of a rollout, by trace

    def _experiment(self, scheme: Any, **changes: Any) -> Experiment:
        data = {**self.base.to_dict(), **changes, "scheme": scheme}
        if "ray" not in self.places:
            block = Experiment.from_dict(data).scheme
            data["scheme"] = dump(block) | {"preset": None}
            for group in ("collection", "gradient"):
                if data["scheme"][group]["place"] == "ray":
                    data["scheme"][group]["place"] = "thread"
        return Experiment.from_dict(data)

    def trace(self, scheme: Any, **changes: Any) -> Trace:
        """What the agent does under a scheme; each scheme runs once."""
        key = f"{scheme} {changes}" if changes else str(scheme)
        if key not in self.traces:
            experiment = self._experiment(scheme, **changes)
            self.traces[key] = trace(experiment.plan(), UPDATES)
            self.traces[key].paced = not experiment.fresh_columns
            self.widths[key] = experiment.envs.count // experiment.collectors
        return self.traces[key]

    def run(self) -> Iterator[Outcome]:
        """Every check, as soon as it is done."""
        yield from self.pairs()
        yield from self.bounds()
        yield from self.books()

    def bounds(self) -> Iterator[Outcome]:
        """Whether each preset, and the experiment's own scheme if it is none, keeps its bounds on lag."""
        for name in presets():
            yield self._check(f"{name} keeps its bounds on lag", partial(self._bounds, name))
        if self.own is not None:
            yield self._check("the experiment's own scheme keeps its bounds on lag", partial(self._bounds, self.own))

    def books(self) -> Iterator[Outcome]:
        """What has to hold in every scheme that has run."""
        for text, books in BOOKS.items():
            yield self._check(text, partial(self._books, books))

    def pairs(self) -> Iterator[Outcome]:
        """Schemes that have to give the same numbers."""
        two = {"gradient": {"workers": 2, "place": "thread"}}
        threads = {"workers": 2, "place": "thread"}
        shards = {"collection": {"workers": 2}}, {"gradient": {"workers": 2}}
        yield self._compare("2 gradient workers on shards = 1 on the whole", *shards, ROUNDING, self._shares_differ())
        yield self._compare("the same by SGD, which sees the gradient's size", *shards, ROUNDING, self._shares_differ(), optimizer=SGD)
        for place in self.places[1:]:
            yield self._compare(f"collectors: here = {place}", {"collection": {"workers": 2}}, {"collection": {"workers": 2, "place": place}})
        for place in self.places[1:]:
            yield self._compare(f"gradient workers: here = {place}", {"gradient": {"workers": 2}}, {"gradient": {"workers": 2, "place": place}})
        reduced = {**two, "update": "all_reduce"}
        yield self._compare("all_reduce = central", two, reduced)
        yield self._compare("average: 1 = all_reduce, for SGD", reduced, {**two, "update": {"average": 1}}, ROUNDING, optimizer=SGD)
        served = {"collection": {**threads, "inference": "server"}}
        yield self._compare("inference server = collectors' own", {"collection": threads}, served, LIKELIHOOD)
        one = {"workers": 1, "place": "thread", "gather": 1, "ahead": 0, "max_lag": 0}
        yield self._compare("1 asynchronous collector, none ahead = synchronous", "local", {"collection": one})
        if "ray" in self.places:
            rays = {"collection": {"workers": 2, "place": "ray"}}
            yield self._compare("compression on = off", rays, {**rays, "compression": "lz4"})
        yield self._check("sebulba lags by exactly 1 round", self._sebulba)
        yield self._check("a resumed run = a straight one", self._resume)

    def _check(self, name: str, check: Callable[[], tuple[bool | None, float | None, float | None, str]]) -> Outcome:
        began = time.perf_counter()
        try:
            found = check()
        except ConfigError as error:  # the experiment's numbers cannot be dealt out so
            found = (None, None, None, "; ".join(str(each) for each in error.problems))
        except ValueError as error:
            found = (None, None, None, " ".join(str(error).split()))
        return Outcome(name, *found, time.perf_counter() - began)

    def _compare(self, name: str, one: Any, other: Any, tolerance: float = 0.0, by_design: str | None = None, **changes: Any) -> Outcome:
        """Two schemes that have to give the same gradients and weights; `by_design`: why they need not."""
        if by_design is not None:
            return Outcome(name, None, None, None, by_design, 0.0)

        def check() -> tuple[bool, float, float, str]:
            a, b = self.trace(one, **changes), self.trace(other, **changes)
            error = max(_distance(a.gradients, b.gradients), _distance(a.weights, b.weights))
            detail = f"{UPDATES} batches" if error <= tolerance else _where(a, b)
            return error <= tolerance, error, tolerance, detail

        return self._check(name, check)

    def _shares_differ(self) -> str | None:
        """Why shares of a batch are not learned from as the whole is, by design; None: they are."""
        algorithm, storage = self.base.algorithm, self.base.storage
        if getattr(algorithm, "normalize_advantages", False):
            return "advantages are normalised within each share, by design"
        if getattr(algorithm, "minibatches", 1) > 1:
            return "each worker shuffles its own share into minibatches, by design"
        if not isinstance(storage, Fresh.Config):
            return "each worker draws from a replay of its own, by design"
        return None

    def _sebulba(self) -> tuple[bool | None, float | None, float | None, str]:
        lags = self.trace("sebulba").policy_lags
        experiment = self._experiment("sebulba")
        if not experiment.fresh_columns:
            return None, None, None, "batches are drawn from a replay, whatever has arrived"
        first = max(experiment.fresh_columns, experiment.columns_per_pull)  # of the first pull, or of the first batch, which lag by none
        expected = [0] * first + [1] * (len(lags) - first)
        if experiment.columns_per_pull < experiment.fresh_columns:
            expected = [min(lag, 1) for lag in lags]
        off = sum(lag != right for lag, right in zip(lags, expected, strict=True))
        return off == 0, float(off), 0.0, f"{len(lags)} columns, {off} of them with another lag"

    def _bounds(self, settings: Any) -> tuple[bool, float, float, str]:
        did, scheme = self.trace(settings), self._experiment(settings).scheme
        most = scheme.lag_bound()
        policy, bound = max(did.policy_lags, default=0), math.inf if most is None else most
        gradient = scheme.gradient_lag_bound()
        text = f"policy lag {policy} of {bound:g}, gradient lag {max(did.true_lags)} of {gradient}"
        return policy <= bound and max(did.true_lags) <= gradient, float(policy), float(bound), text

    def _resume(self) -> tuple[bool, float, float, str]:
        per_batch = self.base.storage.batch * self.base.storage.horizon
        changes = {"steps": UPDATES * per_batch, "logging": {"every": 1, "tensorboard": False}, "checkpoint": {"storage": True}}
        experiment = self._experiment("local", **changes)
        for name in ("straight", "resumed"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        experiment.run(self.folder / "straight")
        with contextlib.closing(experiment.stream(self.folder / "resumed")) as rows:
            for row in rows:
                if (row["env_steps"] or 0) >= UPDATES // 2 * per_batch:
                    break
        experiment.run(self.folder / "resumed", resume=True)
        ends = []
        for name in ("straight", "resumed"):
            found = checkpoint.newest(self.folder / name / "checkpoints")
            assert found is not None
            ends.append(found.tree["updater"])
        flat = [{**end["acting"], **{f"{m}.{k}": v for m, state in end["learning"].items() for k, v in state.items()}} for end in ends]
        error = _distance([flat[0]], [flat[1]])
        return error == 0, error, 0.0, f"{UPDATES} batches, stopped and resumed after {UPDATES // 2}"

    def _books(self, books: Callable[[Trace, int], str | None]) -> tuple[bool, None, None, str]:
        wrong = [f"{key}: {text}" for key, did in self.traces.items() if (text := books(did, self.widths[key])) is not None]
        return not wrong, None, None, f"in {len(self.traces)} schemes" if not wrong else "; ".join(wrong[:3])


def _recorded(experiment: Experiment, file: Path) -> Experiment:
    """The experiment on a recording of its own environments, narrower where it can be."""
    data = experiment.to_dict()
    quiet = {"evaluation": None, "logging": {"tensorboard": False}, "scheme": "local"}
    machine = {**data["machine"], "threads": 1, "worker_threads": 1}
    count, batch = data["envs"]["count"], data["storage"]["batch"]
    widths = [(COLUMNS, batch * COLUMNS // count)] if count > COLUMNS and batch * COLUMNS % count == 0 else []
    for width, columns in [*widths, (count, batch)]:
        narrow = {**data, **quiet, "machine": machine, "envs": {**data["envs"], "count": width}, "storage": {**data["storage"], "batch": columns}}
        try:
            base = Experiment.from_dict(narrow)
            plan = base.plan()
        except ValueError:
            if (width, columns) == (count, batch):
                raise
            continue
        break
    parts = plan.parts
    numbers = range(base.envs.count)
    envs = base.envs.build(numbers=numbers, seeds=[seed_of(base.seed, Role.ENV, n) for n in numbers])
    chance = generator(base.seed, Role.ACTION, 0)
    actor, memory = parts.make_actor().eval(), [parts.make_actor().initial_memory(len(numbers))]
    with contextlib.closing(envs):

        def actions(now: Any) -> Any:
            obs, first, reward = tree_map(torch.from_numpy, (now.obs, now.first, now.reward))
            step = actor.act(obs, first, memory[0]._replace(last_reward=reward), chance)
            memory[0] = step.memory
            return actor.to_env(step.action)

        rollouts = UPDATES * -(-base.storage.batch // base.envs.count) * 4 + 8
        record(envs, actions, rollouts * base.storage.horizon, file)
    return Experiment.from_dict({**base.to_dict(), "envs": {"name": "recorded", "file": str(file), "count": base.envs.count}})


def _distance(one: Sequence[Mapping[str, torch.Tensor]], other: Sequence[Mapping[str, torch.Tensor]]) -> float:
    """The largest relative difference between two sequences of named tensors, in the norm of all; of unequal lengths, the last of each."""
    pairs = list(zip(one, other, strict=True)) if len(one) == len(other) else list(zip(one[-1:], other[-1:], strict=False))
    worst = 0.0
    for a, b in pairs:
        assert a.keys() == b.keys()
        difference = math.sqrt(sum(float((a[name].double() - b[name].double()).square().sum()) for name in a))
        size = math.sqrt(sum(float(a[name].double().square().sum()) for name in a))
        worst = max(worst, difference / size if size else difference)
    return worst


def _where(a: Trace, b: Trace) -> str:
    """The first update after which two traces differ."""
    for kind in ("gradients", "weights"):
        one, other = getattr(a, kind), getattr(b, kind)
        for index in range(min(len(one), len(other)) if len(one) == len(other) else 0):
            if (error := _distance(one[index : index + 1], other[index : index + 1])) > 0:
                return f"{kind} first differ at update {index + 1}, by {error:.1e}"
    return "the weights at the end differ"


def _once(did: Trace, width: int) -> str | None:
    """Every rollout is learned from once, in order, none left out."""
    seen: dict[int, int] = {}
    for batch in did.batches:
        for column in batch["columns"]:
            seen[column["serial"]] = seen.get(column["serial"], 0) + 1
    newest = {serial // 1_000_000: serial for serial in sorted(seen)}
    for serial, last in ((s, newest[s // 1_000_000]) for s in seen):
        if seen[serial] > width or (serial < last and seen[serial] < width):
            return f"rollout {serial % 1_000_000} of collector {serial // 1_000_000}: {seen[serial]} of its {width} columns were learned from"
    for collector, last in newest.items():
        if missing := [n for n in range(last % 1_000_000) if collector * 1_000_000 + n not in seen]:
            return f"rollout {missing[0]} of collector {collector} was never learned from"
    return None


def _steps(did: Trace, width: int) -> str | None:
    if did.paced:
        return None
    learned = sum(column["valid"] for batch in did.batches for column in batch["columns"])
    return None if did.env_steps == learned else f"{did.env_steps} env steps were counted, {learned} were learned from"


def _samples(did: Trace, width: int) -> str | None:
    samples = sum(batch["valid"] for batch in did.batches)
    if did.losses != len(did.batches):  # several losses to a batch
        return None if did.samples % max(samples, 1) == 0 else f"gradients weigh {did.samples} samples, not a multiple of the {samples} valid ones"
    return None if did.samples == samples else f"gradients weigh {did.samples} samples, the batches have {samples} valid ones"


def _acted(did: Trace, width: int) -> str | None:
    worst = max((batch["likelihood"] for batch in did.batches), default=0.0)
    return None if worst <= LIKELIHOOD else f"log-probabilities differ by {worst:.1e} nats from those of the weights that a rollout names"


def _policy_lags(did: Trace, width: int) -> str | None:
    if did.paced or any(name.startswith("inference/") for name in did.counts):
        return None  # told when steps arrive, or by step
    counted = sorted(column["lag"] for batch in did.batches for column in batch["columns"])
    return None if sorted(did.policy_lags) == counted else f"policy lags {sorted(did.policy_lags)} were told, {counted} counted"


def _gradient_lags(did: Trace, width: int) -> str | None:
    return None if did.lags == did.true_lags else f"gradient lags {did.lags} were told, {did.true_lags} counted"


def _chances(did: Trace, width: int) -> str | None:
    chances = [note["chance"] for note in did.collectors]
    seeds = [seed for note in did.collectors for seed in note["envs"]]
    if len(set(chances)) < len(chances):
        return "two collectors draw the same random numbers"
    return "two environments have one seed" if len(set(seeds)) < len(seeds) else None


BOOKS: dict[str, Callable[[Trace, int], str | None]] = {
    "every rollout is learned from once": _once,
    "env steps are the valid steps learned from": _steps,
    "gradients weigh valid steps alone": _samples,
    "the weights that a rollout names are those that acted": _acted,
    "policy lags are told as they are": _policy_lags,
    "gradient lags are told as they are": _gradient_lags,
    "workers and environments share no seed": _chances,
}
"""What has to hold in every scheme that ran; gives what is wrong, or None."""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One torch thread, as every worker has here, for sums depend on it; and nothing said of the runs within."""
    threads, log = torch.get_num_threads(), logging.getLogger("modrl")
    level = log.level
    torch.set_num_threads(1)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        log.setLevel(level)


@contextlib.contextmanager
def checks(experiment: Experiment, places: Sequence[str] = ("here", "thread", "ray")) -> Iterator[Checks]:
    """The checks of an experiment, which share one Ray cluster."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modrl-verify-")))
        made = Checks(experiment, folder, places)
        if "ray" in places:
            from modrl.scheme.places.ray import Cluster

            ray = experiment.machine.ray
            stack.callback(Cluster(ray.address, ray.object_store).close)
        yield made
