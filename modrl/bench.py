"""Throughput against the machine's own limit: the parts of an experiment alone, and the whole under its scheme.

A step costs what its environment, its share of acting and its share of learning take alone, in seconds of a core with all
cores busy, or of the GPU. Where nothing else is done and nobody waits, these costs alone bound the steps per second: that
is the roofline, and the whole's share of it is the efficiency. All is measured in one sitting, in turns, for machines drift.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from modrl.config import BadInput
from modrl.cores import usable_cores
from modrl.costs import Acting, Alone, Cost, Learning, Stepping, collecting, cpu_seconds
from modrl.experiment import Experiment
from modrl.metrics import Row
from modrl.run import Plan, Run
from modrl.scheme.parts import is_small
from modrl.scheme.stages import add

STANDARD: dict[str, Any] = {
    "name": "pong",
    "steps": 10**9,
    "envs": {"name": "atari", "game": "pong", "count": 32},
    "actor": {"name": "actor_critic", "torso": "shallow"},
    "algorithm": {"name": "impala"},
    "optimizer": {"name": "rmsprop"},
    "storage": {"name": "fresh", "horizon": 20, "batch": 32},
    "scheme": "overlapped",
}
"""What is measured where no file is named: IMPALA on Pong."""

ENDLESS = 10**12
COLLECTING = ("act", "env", "record", "load")
LEARNING = ("wait", "batch", "transfer", "loss", "backward", "optimise", "reduce")
NOTABLE = 0.1
"""Waiting for more than this share of the time is worth a word."""


class Result(NamedTuple):
    """What was measured; times in seconds per env step."""

    parts: dict[str, Cost]
    roofline: float  # steps/s
    steps_per_second: float
    efficiency: float
    busy: float  # share of the cores' time that the whole uses
    cores: int
    collectors: dict[str, float]  # share of the collectors' time by stage; {}: the gradient worker's thread collects too
    learners: dict[str, float]  # share of the gradient workers' time by stage
    stages: dict[str, float]
    rounds: list[dict[str, float]]  # of each round: steps_per_second, roofline, efficiency
    advice: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "parts": {name: cost._asdict() for name, cost in self.parts.items()}}


# --- the whole ------------------------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """Some seconds of the whole."""

    seconds: float
    env_steps: float
    updates: float
    stages: dict[str, float]  # seconds over all workers
    core: float  # seconds of cores


class Whole:
    """The experiment's own run, which goes on for a while and rests in between."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        row = {"every": "0.2s", "tensorboard": False}
        endless = experiment.replace(steps=ENDLESS, logging=row, checkpoint={"every": "365d"}, evaluation=None)
        made, _ = endless.prepare(folder)
        assert made is not None
        self.run: Run = made
        self.rows = self.run.stream()

    def go_on(self, seconds: float) -> Slice:
        """Runs for so long, and then until no worker is busy."""
        first, last = next(self.rows), None  # what was done before the rest is in the first row
        began, cpu = time.perf_counter(), cpu_seconds()
        stages: dict[str, float] = {}
        while last is None or time.perf_counter() < began + seconds:
            last = next(self.rows)
            stages = add(stages, {name.removeprefix("time/"): float(value or 0) for name, value in last.items() if name.startswith("time/")})
        core = cpu_seconds() - cpu
        self.run.group.call("state", [False] * len(self.run.group.workers))  # waits for what is under way
        stages.pop("collect_to_learn", None)
        return Slice(_grown(first, last, "wall_seconds"), _grown(first, last, "env_steps"), _grown(first, last, "updates"), stages, core)

    def close(self) -> None:
        """Ends it."""
        self.rows.close()


def _grown(first: Row, last: Row, column: str) -> float:
    return float(last[column] or 0) - float(first[column] or 0)


# --- both -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What is measured in each round."""

    plan: Plan
    parts: dict[str, Alone]
    whole: Whole

    def rounds(self, number: int, seconds: float) -> Iterator[tuple[dict[str, Cost], Slice]]:
        """The cost of each part by env step, and the whole, in turns."""
        for part in self.parts.values():  # warm up
            part.cost(seconds / 4)
        self.whole.go_on(seconds / 2)
        for _ in range(number):
            costs = {name: part.cost(seconds) for name, part in self.parts.items()}
            whole = self.whole.go_on(2 * seconds)
            if not whole.env_steps:
                raise BadInput(f"no env step was learned from in {2 * seconds:g} seconds: measure for longer (--seconds)")
            shares = 1 if self.plan.scheme.gradient.alone else self.plan.scheme.gradient.workers
            updates = shares * whole.updates / whole.env_steps
            yield {**costs, "learn": Cost(*(updates * cost for cost in costs["learn"]))}, whole


@contextlib.contextmanager
def bench(experiment: Experiment) -> Iterator[Bench]:
    """All that has to be started for the experiment to be measured.

    Raises:
        BadInput: it cannot run here.
    """
    cores = usable_cores()
    log = logging.getLogger("modrl")
    level = log.level
    with contextlib.ExitStack() as stack:
        stack.callback(log.setLevel, level)
        log.setLevel(logging.WARNING)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="modrl-bench-"))
        whole = Whole(experiment, Path(folder) / "run")
        stack.callback(whole.close)
        plan = whole.run.plan
        gpu = plan.parts.compute().device.type == "cuda"
        stepping = [Stepping(plan, number % plan.parts.collectors) for number in range(cores)]
        for part in stepping:
            stack.callback(part.close)
        with collecting(plan) as collect:
            rollouts = [collect() for _ in range(2)]
        copies = 1 if gpu else cores
        learning = [Learning(plan, rollouts) for _ in range(copies)]
        parts = {
            "env": Alone(stepping),
            "act": Alone([Acting(plan, stepping[0]) for _ in range(copies)], gpu),
            "learn": Alone(learning, gpu),
        }
        yield Bench(plan, parts, whole)


def measure(experiment: Experiment, rounds: int = 5, seconds: float = 2.0, tell: Callable[[int], None] = lambda round_: None) -> Result:
    """Measures the experiment in so many rounds, each part for so many seconds in each, and the whole for twice as long; medians.

    Raises:
        BadInput: the experiment cannot run here. WorkerError, FloatingPointError: as in a run.
    """
    cores = usable_cores()
    costs: list[dict[str, Cost]] = []
    slices: list[Slice] = []
    figures: list[dict[str, float]] = []
    with bench(experiment) as made:
        for number, (cost, whole) in enumerate(made.rounds(rounds, seconds)):
            limit, rate = _roofline(cost, cores), whole.env_steps / whole.seconds
            costs.append(cost)
            slices.append(whole)
            figures.append({"steps_per_second": rate, "roofline": limit, "efficiency": rate / limit})
            tell(number + 1)
    parts = {name: Cost(*(statistics.median(cost[name][i] for cost in costs) for i in range(2))) for name in costs[0]}
    roofline, rate, efficiency = (statistics.median(f[name] for f in figures) for name in ("roofline", "steps_per_second", "efficiency"))
    seconds_in_all, steps = sum(s.seconds for s in slices), sum(s.env_steps for s in slices)
    stages = add(*(s.stages for s in slices))
    collectors, learners = _timelines(made.plan, stages, seconds_in_all)
    busy = sum(s.core for s in slices) / seconds_in_all / cores
    return Result(
        parts, roofline, rate, efficiency, busy, cores, collectors, learners, {name: value / steps for name, value in stages.items()},
        figures, advise(experiment, collectors, learners, busy, cores, small=is_small(made.whole.run.updater.algorithm.actor)),
    )  # fmt: skip


def _roofline(cost: dict[str, Cost], cores: int) -> float:
    """Steps per second where nobody waits and nothing else is done: what the cores can do, or the GPU beside them."""
    gpu = sum(part.gpu for part in cost.values())
    return min(cores / sum(part.core for part in cost.values()), 1 / gpu if gpu else float("inf"))


def _timelines(plan: Plan, stages: dict[str, float], wall: float) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of the collectors' and of the gradient workers' time."""
    scheme, parts = plan.scheme, plan.parts
    learning = wall * scheme.gradient.workers if scheme.gradient.place != "here" else wall
    learners = {name: stages[name] / learning for name in LEARNING if name in stages}
    collecting = {name: stages[name] for name in COLLECTING if name in stages}
    if scheme.collection.place == "here":
        learners = {name: seconds / learning for name, seconds in collecting.items()} | learners
        return {}, learners | {"other": max(0.0, 1 - sum(learners.values()))}
    collectors = {name: seconds / wall / parts.collectors for name, seconds in collecting.items()}
    return collectors | {"rest": max(0.0, 1 - sum(collectors.values()))}, learners | {"other": max(0.0, 1 - sum(learners.values()))}


def advise(experiment: Experiment, collectors: dict[str, float], learners: dict[str, float], busy: float, cores: int, *, small: bool) -> list[str]:
    """What the figures mean, and what to change. `small`: the network is; then threads take turns at the interpreter more than they compute."""
    words: list[str] = []
    scheme, machine, wait, rest = experiment.scheme, experiment.machine, learners.get("wait", 0.0), collectors.get("rest", 0.0)
    idle = f"{1 - busy:.0%} of the {cores} cores' time is unused"
    cheaper, has_it = ("machine.compile=true", machine.compile) if small else ("machine.precision=bf16", machine.precision != "fp32")
    ways = [] if has_it else [cheaper]
    if not collectors:
        together = sum(learners.get(name, 0.0) for name in COLLECTING)
        remedy = ": with scheme=overlapped both go on at once" if not small else f"; {cheaper} makes both cheaper" if ways else ""
        words.append(f"collecting takes {together:.0%} of the time and learning waits for it{remedy}")
    elif busy > 1 - NOTABLE:
        words += [f"all cores are busy: {ways[0]} may need less of them"] if ways else []
    elif rest > max(wait, NOTABLE):
        ways += [f"machine.threads={cores}"] if scheme.gradient.place == "here" and machine.threads is None and cores > 1 and not small else []
        ways += ["fewer collectors"] if scheme.collection.workers > 1 else []
        words.append(
            f"collectors rest {rest:.0%} of the time: learning is the bottleneck, and {idle}; try {' or '.join(ways or ['a smaller network'])}"
        )
    elif wait > max(rest, NOTABLE):
        more = 2 * scheme.collection.workers
        dealt_out = experiment.envs.count % (more * scheme.gradient.workers) == 0
        ways = [f"scheme.collection.workers={more}" if dealt_out else "more environments (envs.count)", *ways]
        words.append(f"gradient workers wait {wait:.0%} of the time: collection is the bottleneck, and {idle}; try {' or '.join(ways)}")
    else:
        words.append(f"{idle}: more environments (envs.count) or more collectors (scheme.collection.workers) may use it")
    reduce = learners.get("reduce", 0.0)
    if reduce > NOTABLE:
        words.append(f"gradient workers spend {reduce:.0%} of the time on agreeing: scheme.update={{average: k}} agrees every k-th step only")
    if scheme.on_ray and learners.get("transfer", 0.0) > NOTABLE:
        words.append(
            f"{learners['transfer']:.0%} of the time goes into handing out weights: scheme.collection.broadcast_interval hands them out less often"
        )
    return words
