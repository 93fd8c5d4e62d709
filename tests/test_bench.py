"""Throughput against the machine's own limit: each part's cost, the roofline that follows, and what is said of the rest."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest

from modrl.bench import _roofline, advise, measure
from modrl.config import BadInput
from modrl.costs import Alone, Cost, Stepping
from tests.runs import SMALL, small

SLOW_LEARNER = {"name": "ppo", "epochs": 8, "minibatches": 4}


class Busy:
    """Keeps a core busy for 1 ms for each step, or only waits."""

    def __init__(self, wait=False):
        self.wait = wait

    def work(self):
        if self.wait:
            time.sleep(0.001)
        else:
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass
        return 1


def test_a_parts_cost_is_what_it_computes_not_what_it_waits():
    assert Alone([Busy()]).cost(0.2).core == pytest.approx(0.001, rel=0.3)
    assert Alone([Busy(), Busy()]).cost(0.2).core == pytest.approx(0.001, rel=0.3)
    assert Alone([Busy(wait=True)]).cost(0.2).core < 0.0005


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_environments_cost_what_they_compute_in_whatever_process(vectorization):
    envs = {"name": "gym", "id": "tests.scheme.tiny:Busy", "count": 2, "vectorization": vectorization, "kwargs": {"seconds": 0.005}}
    with contextlib.closing(Stepping(small(envs=envs, storage={"name": "fresh", "horizon": 5, "batch": 2}).plan(), 0)) as part:
        assert Alone([part]).cost(0.5).core == pytest.approx(0.005, rel=0.4)


def test_a_part_that_fails_says_so():
    class Failing:
        def work(self):
            raise ValueError("cannot be measured")

    with pytest.raises(ValueError, match="cannot be measured"):
        Alone([Busy(), Failing()]).cost(0.1)


def test_the_roofline_is_what_the_cores_can_do_or_the_gpu_beside_them():
    parts = {"env": Cost(300e-6), "act": Cost(60e-6), "learn": Cost(280e-6)}
    assert _roofline(parts, 2) == pytest.approx(2 / 640e-6)
    on_gpu = {"env": Cost(300e-6), "act": Cost(20e-6, 30e-6), "learn": Cost(20e-6, 370e-6)}
    assert _roofline(on_gpu, 16) == pytest.approx(1 / 400e-6)
    assert _roofline(on_gpu, 1) == pytest.approx(1 / 400e-6)
    assert _roofline({"env": Cost(600e-6), "act": Cost(0, 1e-6)}, 1) == pytest.approx(1 / 600e-6)


@pytest.mark.parametrize("scheme", ["local", "overlapped", {"gradient": {"place": "thread", "workers": 2}}], ids=["local", "overlapped", "dppo"])
def test_what_is_measured_adds_up(scheme):
    told = []
    result = measure(small(scheme=scheme), rounds=2, seconds=0.3, tell=told.append)
    assert told == [1, 2]
    assert all(figure["efficiency"] == pytest.approx(figure["steps_per_second"] / figure["roofline"]) for figure in result.rounds)
    assert 0 < result.efficiency < 2
    assert result.roofline == pytest.approx(result.cores / sum(cost.core for cost in result.parts.values()), rel=0.5)
    assert bool(result.collectors) == (scheme == "overlapped")
    for shares in filter(None, (result.collectors, result.learners)):
        assert sum(shares.values()) == pytest.approx(1, abs=0.1)
    assert {"act", "env", "record", "batch", "transfer", "loss", "backward", "optimise"} <= result.stages.keys()
    assert 0 < result.busy < 1.2


@pytest.mark.slow
def test_a_steps_share_of_learning_is_that_of_the_scheme_however_many_losses_and_workers():
    """Eight epochs of four minibatches cost about eight times one pass; shares of two workers cost what the whole does."""
    ppo = {"name": "ppo", "epochs": 1, "minibatches": 4}
    costs = [
        measure(small(algorithm=algorithm, scheme=scheme), rounds=1, seconds=0.4).parts["learn"].core
        for algorithm, scheme in [(ppo, "local"), (ppo | {"epochs": 8}, "local")]
    ]
    assert 4 < costs[1] / costs[0] < 12


def test_learning_that_is_slower_than_collecting_is_the_bottleneck():
    result = measure(small(scheme="overlapped", algorithm=SLOW_LEARNER), rounds=1, seconds=0.4)
    assert result.collectors["rest"] > 0.5
    assert result.advice[0].startswith("collectors rest ")
    assert "learning is the bottleneck" in result.advice[0]
    assert "try machine.compile=true" in result.advice[0]


@pytest.mark.parametrize(
    ("collectors", "learners", "busy", "said"),
    [
        ({}, {"env": 0.5, "act": 0.2, "loss": 0.3}, 0.5, ["collecting takes 70% of the time and learning waits for it"]),
        ({"env": 0.9, "rest": 0.1}, {"wait": 0.4, "loss": 0.6}, 0.75, ["gradient workers wait 40% of the time: collection is the bottleneck, and 25% of the 2 cores"]),
        ({"env": 0.6, "rest": 0.4}, {"wait": 0.05, "loss": 0.9}, 0.7, ["collectors rest 40% of the time: learning is the bottleneck, and 30% of the 2 cores"]),
        ({"env": 0.97, "rest": 0.03}, {"wait": 0.05, "loss": 0.95}, 0.97, ["all cores are busy: machine.precision=bf16"]),
        ({"env": 0.97, "rest": 0.03}, {"wait": 0.05, "loss": 0.95}, 0.6, ["40% of the 2 cores' time is unused: more environments"]),
        ({"env": 1.0}, {"reduce": 0.3, "loss": 0.7}, 0.95, ["all cores are busy", "gradient workers spend 30% of the time on agreeing"]),
    ],
)  # fmt: skip
def test_what_is_said_of_the_figures(collectors, learners, busy, said):
    words = advise(small(scheme="overlapped"), collectors, learners, busy, 2, small=False)
    assert len(words) == len(said)
    for expected, text in zip(said, words, strict=True):
        assert text.startswith(expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("collectors", [{}, {"env": 0.6, "rest": 0.4}])
def test_threads_and_bf16_are_not_advised_for_a_small_network(collectors, compiled):
    """On CartPole either makes it slower; torch.compile does not."""
    small_one = small(scheme="overlapped" if collectors else "local", machine={"compile": compiled})
    (text,) = advise(small_one, collectors, {"env": 0.5, "wait": 0.05, "loss": 0.4}, 0.6, 2, small=True)
    assert ("machine.compile=true" in text) == (not compiled)
    assert not {word for word in ("bf16", "threads", "overlapped") if word in text}


def test_more_collectors_are_advised_only_where_the_environments_can_be_dealt_out():
    one = small(scheme="overlapped", envs={**SMALL["envs"], "count": 1}, storage={"name": "fresh", "horizon": 5, "batch": 1})
    for experiment, way in ((one, "more environments (envs.count)"), (small(scheme="overlapped"), "scheme.collection.workers=2")):
        (text,) = advise(experiment, {"env": 0.9, "rest": 0.1}, {"wait": 0.4, "loss": 0.6}, 0.75, 2, small=True)
        assert f"try {way} or machine.compile=true" in text


def test_a_time_without_env_steps_is_told():
    paced = small(
        storage={"name": "replay", "horizon": 5, "batch": 8, "capacity": 100, "fraction": 1}, scheme={"preset": "local", "pacing": {"at_least": 1000}}
    )
    with pytest.raises(BadInput, match=r"no env step was learned from in 0\.2 seconds: measure for longer"):
        measure(paced, rounds=1, seconds=0.1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_are_those_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from modrl.cores import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "1"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["impala", "dppo", "dd_ppo", "seed"])
def test_schemes_on_ray_are_measured_too(scheme, cluster):
    result = measure(small(scheme=scheme, storage={"name": "fresh", "horizon": 5, "batch": 8}), rounds=1, seconds=0.5)
    assert 0 < result.efficiency < 2
