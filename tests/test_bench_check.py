"""The guard of the hot loops: what costs more than is stored fails by name, and the same code never does."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from modrl.agent.actors.actor_critic import ActorCritic
from modrl.agent.storages.fresh import Fresh
from modrl.scheme.collect import Collector
from modrl.scheme.compute import State
from modrl.tree import to_numpy

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
QUICK = ("collect-images", "batch", "weights", "message")


@pytest.fixture(scope="module")
def check():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("check")


@pytest.fixture(scope="module")
def written(check, tmp_path_factory):
    """What quick loops cost, as --write stores it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check.common, "RESULTS", tmp_path_factory.mktemp("results"))
        patch.setattr(check, "LOOPS", {name: check.LOOPS[name] for name in QUICK})
        assert check.main(["--write"]) == 0
        return json.loads((check.common.RESULTS / "check.json").read_text())


@pytest.fixture
def store(check, tmp_path, monkeypatch):
    """Stores something else."""
    monkeypatch.setattr(check.common, "RESULTS", tmp_path)
    return lambda result: (tmp_path / "check.json").write_text(json.dumps(result))


def first(extra, method):
    """The method, and something extra before it."""

    def dearer(self, *arguments, **options):
        extra(*arguments)
        return method(self, *arguments, **options)

    return dearer


def copy_images(patch):
    patch.setattr(Collector, "_act", first(lambda lanes: [np.array(lane.now.obs) for lane in lanes], Collector._act))


def run_an_operator(patch):
    patch.setattr(ActorCritic, "act", first(lambda *observed: torch.ones(1), ActorCritic.act))


def compute_in_python(patch):
    patch.setattr(Fresh, "insert", first(lambda rollout: [str(number) for number in range(10)], Fresh.insert))


def copy_weights(patch):
    load = State.load
    patch.setattr(State, "load", lambda self, state: load(self, {name: value.clone() for name, value in state.items()}))


def send_floats(patch):
    patch.setattr("loops.to_numpy", lambda rollout: to_numpy(rollout._replace(obs=rollout.obs.astype(np.float32))))


@pytest.mark.parametrize(
    ("plant", "loop", "measure"),
    [
        (copy_images, "collect-images", "bytes per step"), (run_an_operator, "collect-images", "operators per step"),
        (compute_in_python, "batch", "instructions per batch"), (copy_weights, "weights", "bytes per version"),
        (send_floats, "message", "bytes sent per message"),
    ],
)  # fmt: skip
def test_what_was_planted_is_told_with_both_figures_and_the_remedy(check, written, store, monkeypatch, capsys, plant, loop, measure):
    store(written)
    plant(monkeypatch)
    assert check.main([loop]) == 1
    out = capsys.readouterr().out
    told = next(line for line in out.splitlines() if line.startswith(f"{loop}: ") and f" {measure}, " in line)
    assert f"where {written['loops'][loop][measure]:,.10g} is stored: +" in told
    assert told.endswith("2% is allowed")
    assert f"`python benchmarks/check.py {loop} --where`" in out
    assert "`python benchmarks/check.py --write` stores it" in out


def test_the_same_code_costs_the_same_again_and_passes(check, written, capsys):
    again = {name: check.figures(name) for name in QUICK}
    for loop, figures in written["loops"].items():
        assert again[loop] == {name: pytest.approx(value, rel=0, abs=check.SLACK_BYTES if "bytes" in name else 0) for name, value in figures.items()}
    assert check.report(written, again) == 0
    assert "allowed" not in capsys.readouterr().out


@pytest.mark.parametrize(("more", "status"), [(0.2, 0), (0.3, 1)])
def test_across_versions_more_is_allowed_and_the_guard_says_so(check, written, capsys, more, status):
    old = written | {"machine": {"python": "2.7.18"}, "versions": written["versions"] | {"torch": "1.0.1"}}
    dearer = {loop: {measure: (1 + more) * figure for measure, figure in figures.items()} for loop, figures in written["loops"].items()}
    assert check.report(old, dearer) == status
    out = capsys.readouterr().out
    assert "Counts are compared across versions, Python 2.7 there and " in out
    assert ", torch 1.0 there and " in out
    assert ": 25% more is allowed, not 2%" in out


def test_a_loop_of_which_nothing_is_stored_fails(check, written, store, capsys):
    with pytest.raises(SystemExit, match="2"):
        check.main(["batch"])
    assert "does not exist: --write stores what the loops cost now" in capsys.readouterr().err
    store(written | {"loops": {}})
    assert check.main(["batch"]) == 1
    assert "instructions per batch, where nothing is stored" in capsys.readouterr().out


def test_what_became_cheaper_passes_and_is_to_be_stored(check, written, capsys):
    cheaper = {"batch": {measure: figure / 2 for measure, figure in written["loops"]["batch"].items()}}
    assert check.report(written, cheaper) == 0
    assert "`python benchmarks/check.py --write` keeps it so" in capsys.readouterr().out


def test_every_loop_is_stored(check):
    assert json.loads((BENCHMARKS / "results" / "check.json").read_text())["loops"].keys() == check.LOOPS.keys()


def test_twice_the_work_is_counted_twice_and_small_arrays_by_number_alone(check):
    def costs(times, size):
        def work():
            for _ in range(times):
                np.zeros(size, np.uint8)
                torch.zeros(size, dtype=torch.uint8)

        counts = check.count(work)
        return counts.instructions.total(), counts.operators.total(), counts.bytes

    costs(1, 100_000)  # dicts that grow at the first use are not of the work
    (once, one, few), (twice, two, many), (thrice, three, most) = (costs(times, 100_000) for times in (1, 2, 3))
    assert thrice - twice == twice - once > 5
    assert (one, two, three) == (1, 2, 3)
    assert [few, many, most] == pytest.approx([200_000, 400_000, 600_000], rel=0.01)
    assert costs(3, 1000) == (thrice, 3, 0)
