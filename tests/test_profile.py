"""A profile shows every worker's stages one after the other, and which rollouts each update learned from."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from modrl.messages import Lap
from modrl.profile import Profile
from tests.runs import small, table


def events_of(path):
    return json.loads(path.read_text())


def lines_of(events):
    """The stages of each worker, in order."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lines = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        lines[names[event["tid"]]].append(event)
    return dict(lines)


@pytest.mark.parametrize(
    ("scheme", "workers"),
    [
        ("local", {"updater", "gradient worker 0", "collector 0"}),
        ("overlapped", {"updater", "gradient worker 0", "collector 0"}),
        ({"gradient": {"place": "thread", "workers": 2}, "collection": {"place": "thread", "workers": 2}},
         {"updater", *(f"gradient worker {i}" for i in range(2)), *(f"collector {i}" for i in range(4))}),
        pytest.param({"gradient": {"place": "ray", "workers": 2}, "collection": {"place": "ray", "workers": 2}},
                     {"updater", *(f"gradient worker {i}" for i in range(2)), *(f"collector {i}" for i in range(4))}, marks=pytest.mark.slow),
        ({"gradient": {"place": "thread", "workers": 2}, "update": "all_reduce"},
         {"updater", *(f"{kind} {i}" for kind in ("gradient worker", "collector") for i in range(2))}),
    ],
    ids=["local", "overlapped", "dppo", "rapid", "dd_ppo"],
)  # fmt: skip
def test_every_worker_has_a_line_of_stages_that_follow_one_another(scheme, workers, cluster, tmp_path):
    small(scheme=scheme).run(tmp_path / "run", profile=True)
    lines = lines_of(events_of(tmp_path / "run" / "trace.json"))
    assert lines.keys() == workers
    for line in lines.values():
        ends = [event["ts"] + event["dur"] for event in line]
        assert all(event["ts"] >= end - 1 for end, event in zip(ends, line[1:], strict=False)), "two stages of a worker at once"
    assert {event["name"] for event in lines["collector 0"]} == {"load", "act", "env", "record"}
    assert {"batch", "loss", "backward", "transfer"} <= {event["name"] for event in lines["gradient worker 0"]}


@pytest.mark.parametrize("scheme", ["local", "overlapped"])
def test_an_arrow_leads_from_each_rollout_to_the_update_that_learned_from_it(scheme, tmp_path):
    small(scheme=scheme).run(tmp_path / "run", profile=True)
    events = events_of(tmp_path / "run" / "trace.json")
    arrows = {kind: [event for event in events if event["ph"] == kind] for kind in "st"}
    assert len(arrows["t"]) == 20
    assert Counter(event["id"] for event in arrows["s"]) == Counter(event["id"] for event in arrows["t"])
    began = {event["id"]: event["ts"] for event in arrows["s"]}
    assert all(began[event["id"]] < event["ts"] for event in arrows["t"])


@pytest.mark.parametrize("scheme", ["local", "overlapped", {"gradient": {"place": "thread", "workers": 2}, "update": "all_reduce"}])
def test_every_update_is_in_it_and_has_an_arrow_from_its_rollout(scheme, tmp_path):
    """Those too that end the last batch after all steps are done."""
    workers = 2 if isinstance(scheme, dict) else 1
    small(scheme=scheme, steps=160, algorithm={"name": "ppo", "epochs": 3, "minibatches": 2, "reward": "none"}).run(tmp_path / "run", profile=True)
    events = events_of(tmp_path / "run" / "trace.json")
    assert Counter(event["name"] for event in events)["backward"] == 4 * 6 * workers
    arrows = Counter(event["id"] for event in events if event["ph"] == "t")
    assert list(arrows.values()) == [6] * 4 * workers


def test_its_seconds_are_those_of_the_metrics(tmp_path):
    small().run(tmp_path / "run", profile=True)
    spent = Counter()
    for line in lines_of(events_of(tmp_path / "run" / "trace.json")).values():
        for event in line:
            spent[event["name"]] += event["dur"] / 1e6
    for stage in ("act", "env", "record", "loss", "backward", "optimise"):
        assert spent[stage] == pytest.approx(sum(row[f"time/{stage}"] for row in table(tmp_path / "run")), rel=0.01)


def test_a_replayed_rollout_has_an_arrow_to_each_update(tmp_path):
    small(storage={"name": "replay", "horizon": 5, "batch": 16, "capacity": 100, "fraction": 0.5}).run(tmp_path / "run", profile=True)
    used = Counter(event["id"] for event in events_of(tmp_path / "run" / "trace.json") if event["ph"] == "t")
    assert max(used.values()) > 1


def test_a_run_that_goes_on_has_another_file(tmp_path):
    experiment = small()
    experiment.run(tmp_path / "run", profile=True)
    experiment.replace(steps=2 * experiment.steps).run(tmp_path / "run", resume=True, profile=True)
    first, second = (events_of(tmp_path / "run" / name) for name in ("trace.json", "trace-2.json"))
    assert len(first) == pytest.approx(len(second), rel=0.2)


@pytest.mark.parametrize("first", [True, False])
def test_what_is_stored_without_serial_numbers_mixes_with_what_has_them(first, tmp_path):
    storage = {"name": "replay", "horizon": 5, "batch": 16, "capacity": 1000, "fraction": 0.5}
    experiment = small(storage=storage, checkpoint={"storage": True})
    experiment.run(tmp_path / "run", profile=first)
    experiment.replace(steps=2 * experiment.steps).run(tmp_path / "run", resume=True, profile=not first)
    assert len(table(tmp_path / "run")) == 40


def test_without_one_nothing_is_written_down(tmp_path):
    small().run(tmp_path / "run")
    assert not (tmp_path / "run" / "trace.json").exists()


def test_the_file_is_whole_after_every_write(tmp_path):
    profile = Profile(tmp_path / "trace.json", 100.0)
    assert (tmp_path / "trace.json").exists()
    for number in range(3):
        profile.write([Lap("a worker", "act", 100.0 + number, 0.5)])
        stages = [event for event in events_of(tmp_path / "trace.json") if event["ph"] == "X"]
        assert [(event["ts"], event["dur"]) for event in stages] == [(1e6 * n, 5e5) for n in range(number + 1)]
    profile.close()
    Profile(tmp_path / "empty.json", 0.0).close()
    assert events_of(tmp_path / "empty.json") == []
