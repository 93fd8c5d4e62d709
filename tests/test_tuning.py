"""What a run finds out about its machine: measured once, where it matters, and kept."""

from __future__ import annotations

import pytest
import torch

from modrl import tuning
from modrl.agent.actors.images import ImageTorso
from modrl.cores import usable_cores
from modrl.experiment import Experiment
from modrl.scheme.parts import MEMORY_FORMATS
from modrl.tuning import Seconds, tuned
from tests.runs import small

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="there is nothing to share out")
LARGE = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [512, 512]}}
HEAVY = {"name": "ppo", "epochs": 10, "minibatches": 4}


def large(**changes):
    return small(**{"actor": LARGE, "scheme": "overlapped", "machine": {}, **changes})


def slow_envs(seconds):
    return {"name": "gym", "id": "tests.scheme.tiny:Busy", "count": 8, "kwargs": {"seconds": seconds}}


def test_learning_that_costs_most_gets_most_cores():
    assert tuned(large(algorithm=HEAVY, storage={"name": "fresh", "horizon": 64, "batch": 64}).plan())["threads"] > usable_cores() / 2


def test_learning_that_costs_little_gets_one():
    assert tuned(large(envs=slow_envs(0.002)).plan()) == {"threads": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"threads": 3}},
        {"scheme": "local"},
        {"scheme": {"gradient": {"place": "thread", "workers": 2}}},
        {"actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}}},
        {"storage": {"name": "replay", "horizon": 5, "batch": 8, "capacity": 100, "fraction": 1.0}, "scheme": {"collection": {"place": "thread", "ahead": 1}}},
        {"machine": {"ray": {"address": "auto"}}, "scheme": "impala"},
    ],
    ids=["said", "nobody beside", "elsewhere", "small", "unknown", "on a cluster"],
)  # fmt: skip
def test_nothing_is_measured_where_it_is_known(changes, monkeypatch):
    monkeypatch.setattr(tuning, "_measured", lambda plan, images: pytest.fail("measured"))
    assert tuned(large(**changes).plan()) == {}


def test_what_was_measured_is_written_down_and_holds_when_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_measured", lambda plan, images: Seconds(0.0, 1.0, None))
    experiment = large(steps=400)
    experiment.run(tmp_path / "run")
    written = Experiment.load(tmp_path / "run" / "experiment.yaml")
    assert written == experiment.replace(machine={"threads": usable_cores()})
    monkeypatch.setattr(tuning, "_measured", lambda plan, images: pytest.fail("measured again"))
    experiment.replace(steps=800).run(tmp_path / "run", resume=True)
    assert Experiment.load(tmp_path / "run" / "experiment.yaml").machine.threads == usable_cores()


def test_environments_that_fail_while_measured_fail_in_the_run(tmp_path):
    """Which says where, and leaves a directory that tells of it."""
    experiment = large(envs={"name": "gym", "id": "tests.scheme.tiny:FailsLater", "count": 8})
    with pytest.raises(Exception, match="collector 0 failed") as error:
        experiment.run(tmp_path / "run")
    assert "enough of this" in str(error.value)
    assert (tmp_path / "run" / "run.json").exists()


def test_what_is_measured_leaves_the_runs_chances_alone(tmp_path, monkeypatch):
    """Measured or told, the same number of threads gives the same numbers."""
    monkeypatch.setattr(tuning, "_measured", lambda plan, images, measure=tuning._measured: (measure(plan, images), Seconds(0.0, 1.0, None))[1])
    rows = [
        large(steps=400, machine={} if index == 0 else {"threads": usable_cores()}).run(tmp_path / str(index)).metrics["loss/total"]
        for index in range(2)
    ]
    assert rows[0] == rows[1]


# --- how images lie in memory ---

CATCH = {"name": "gym", "id": "modrl/Catch-v0", "count": 4, "kwargs": {"size": 20}}
IMAGES = {"name": "actor_critic", "torso": {"name": "shallow", "hidden": 4096}}


def seeing(**changes):
    return large(**{"envs": CATCH, "actor": IMAGES, "scheme": "local", **changes})


@pytest.mark.parametrize(("contiguous", "chosen"), [(0.5, "contiguous"), (0.95, "channels_last"), (2.0, "channels_last")])
def test_images_lie_as_is_clearly_fastest_to_learn_from(contiguous, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_measured", lambda plan, images: Seconds(1.0, 1.0, contiguous))
    experiment = seeing(steps=80)
    experiment.run(tmp_path / "run")
    assert Experiment.load(tmp_path / "run" / "experiment.yaml") == experiment.replace(machine={"memory_format": chosen})


@pytest.mark.parametrize("given", ["contiguous", "channels_last"])
def test_the_memory_format_is_what_convolutions_get(given, monkeypatch):
    monkeypatch.setattr(tuning, "_measured", lambda plan, images: pytest.fail("measured"))
    plan = seeing(envs={"name": "atari", "game": "pong", "count": 4, "size": 40}, machine={"memory_format": given}).plan()
    assert tuned(plan) == {}
    torso = next(module for module in plan.parts.make_actor().modules() if isinstance(module, ImageTorso))
    prepared = torso.prepare(torch.zeros(2, *torso.shape, dtype=torch.uint8))
    assert prepared.is_contiguous(memory_format=MEMORY_FORMATS[given])
    assert not prepared.is_contiguous(memory_format=MEMORY_FORMATS["contiguous" if given == "channels_last" else "channels_last"])


def test_both_formats_are_measured_and_the_share_of_threads_follows():
    plan = seeing(scheme="overlapped").plan()
    seconds = tuning._measured(plan, images=True)
    assert min(seconds) > 0
    assert tuned(plan).keys() == {"memory_format", "threads"}
