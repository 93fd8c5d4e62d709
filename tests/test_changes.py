"""Settings of the algorithm and the storage that change while a run trains."""

from __future__ import annotations

import gc
import itertools
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from modrl.agent.schedules import Linear
from modrl.agent.storages import Replay
from modrl.config import BadInput, ConfigError
from modrl.experiment import Experiment
from modrl.explain import values
from modrl.messages import Rollout
from modrl.run import Run
from modrl.rundir import RunDir
from modrl.scheme.group import Group, Recovery
from modrl.scheme.places.base import WorkerError, WorkerLost
from modrl.scheme.places.here import HereWorker
from modrl.scheme.scheme import Scheme
from modrl.stream import Stream
from tests.runs import SMALL, small, state_of, table

SCHEMES = {
    "local": "local",
    "dppo in threads": {"preset": "dppo", "gradient": {"place": "thread"}},
    "overlapped": "overlapped",
    "sebulba": "sebulba",
}
PPO = {"name": "ppo", "epochs": 2, "minibatches": 2, "reward": "none"}
REPLAY = {"name": "replay", "horizon": 5, "batch": 8, "fraction": 0.5, "capacity": 100}


def info_of(folder):
    return json.loads((folder / "run.json").read_text())


def changing(experiment, folder, at, path, value, **options):
    """The rows of a run in which a setting changes after so many rows."""
    rows = []
    stream = experiment.stream(folder, **options)
    for row in stream:
        rows.append(row)
        if len(rows) == at:
            stream.change(path, value)
    return rows


@pytest.mark.parametrize("algorithm", [SMALL["algorithm"], PPO], ids=["impala", "ppo"])
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_change_holds_from_the_next_batch_on(scheme, algorithm, tmp_path):
    rows = changing(small(scheme=scheme, algorithm=algorithm), tmp_path / "run", 5, "algorithm.entropy_cost", 0)
    assert [row["loss/entropy"] == 0 for row in rows] == [False] * 5 + [True] * 15
    assert all(row["entropy"] > 0 for row in rows)


def test_a_change_holds_on_replicas(cluster, tmp_path):
    scheme = {"preset": "dd_ppo", "collection": {"preemption": None}}
    rows = changing(small(scheme=scheme), tmp_path / "run", 3, "algorithm.entropy_cost", 0)
    assert [row["loss/entropy"] == 0 for row in rows] == [False] * 3 + [True] * 17


def test_a_change_holds_where_gradient_workers_are_busy(cluster, tmp_path):
    scheme = {"preset": "a3c", "gradient": {"workers": 2}}
    rows = changing(small(scheme=scheme, steps=60 * 8 * 5), tmp_path / "run", 5, "algorithm.entropy_cost", 0)
    assert all(row["loss/entropy"] < 0 for row in rows[:5])
    assert all(row["loss/entropy"] == 0 for row in rows[5 + 5 :])  # a gradient that was under way may be 4 pulls old
    assert len(rows) > 20


def test_a_change_to_what_was_is_no_change(tmp_path):
    plain = list(small().stream(tmp_path / "plain"))
    same = changing(small(), tmp_path / "same", 5, "algorithm.entropy_cost", 0.01)
    assert [row["loss/total"] for row in plain] == [row["loss/total"] for row in same]


def test_the_changed_loss_is_that_of_a_run_with_the_setting(tmp_path):
    """The sixth row of both was acted and learned on the same weights."""
    changed = changing(small(optimizer={"name": "adam", "lr": 0}), tmp_path / "changed", 5, "algorithm.value_cost", 3)
    asked = list(small(optimizer={"name": "adam", "lr": 0}, algorithm={**SMALL["algorithm"], "value_cost": 3}).stream(tmp_path / "asked"))
    assert [row["loss/value"] for row in changed[5:]] == [row["loss/value"] for row in asked[5:]]
    assert [row["loss/value"] * 6 for row in changed[:5]] == pytest.approx([row["loss/value"] for row in asked[:5]])


@pytest.mark.parametrize("schedule", [{"linear": [0.01, 0]}, Linear(0.01, 0)])
def test_a_value_may_be_a_schedule(schedule, tmp_path):
    rows = changing(small(steps=30 * 40), tmp_path / "run", 10, "algorithm.entropy_cost", schedule)
    costs = [-row["loss/entropy"] / row["entropy"] for row in rows]
    assert costs[:10] == pytest.approx([0.01] * 10)
    assert costs[10:] == pytest.approx([0.01 * (1 - i / 30) for i in range(10, 30)])
    assert info_of(tmp_path / "run")["changes"][0]["value"] == {"linear": [0.01, 0.0]}


def test_run_json_records_changes(tmp_path):
    stream = small().stream(tmp_path / "run")
    for row in stream:
        if row["updates"] == 5:
            stream.change("algorithm.entropy_cost", 0.5)
            assert info_of(tmp_path / "run")["changes"][0]["env_steps"] == 200  # at once: the process may be killed
        if row["updates"] == 8:
            stream.change("algorithm.discount", 0.9)
            stream.change("algorithm.entropy_cost", 0)
    changes = info_of(tmp_path / "run")["changes"]
    assert [(change["env_steps"], change["key"], change["value"]) for change in changes] == [
        (200, "algorithm.entropy_cost", 0.5), (320, "algorithm.discount", 0.9), (320, "algorithm.entropy_cost", 0),
    ]  # fmt: skip
    assert all(change["time"].startswith("20") for change in changes)
    algorithm = Experiment.load(tmp_path / "run" / "experiment.yaml").algorithm
    assert (algorithm.discount, algorithm.entropy_cost) == (0.9, 0)


def test_a_resumed_run_and_explain_see_the_change(tmp_path):
    with closing(small().stream(tmp_path / "run")) as stream:
        next(stream)
        stream.change("algorithm.entropy_cost", 0)
    file = tmp_path / "run" / "experiment.yaml"
    again = Experiment.load(file)
    assert again.algorithm.entropy_cost == 0
    assert "  entropy_cost: 0" in [line for line, _ in values(again, file, [])]
    rows = list(again.stream(tmp_path / "run", resume=True))
    assert [row["updates"] for row in rows] == list(range(2, 21))
    assert {row["loss/entropy"] for row in rows} == {0}


def test_resuming_with_another_value_than_the_changed_one_says_so(tmp_path, caplog):
    with closing(small().stream(tmp_path / "run")) as stream:
        next(stream)
        stream.change("algorithm.entropy_cost", 0.5)
        stream.change("algorithm.discount", 0.9)
        stream.change("algorithm.value_cost", 3)
        stream.change("algorithm.value_cost", 0.5)  # as it was
    list(small(algorithm={**SMALL["algorithm"], "discount": 0.9}).stream(tmp_path / "run", resume=True))
    said = [record.getMessage() for record in caplog.records if "had changed" in record.getMessage()]
    assert said == ["resuming with algorithm.entropy_cost = 0.01; the run had changed it to 0.5, at 40 env steps"]


def test_what_is_changed_before_the_first_row_holds_from_it_on(tmp_path):
    stream = small().stream(tmp_path / "run")
    stream.change("algorithm.entropy_cost", 0)
    assert {row["loss/entropy"] for row in stream} == {0}


REFUSED = [
    ({}, "algorithm.entropy_cst", 0.1, r"algorithm.entropy_cst: unknown key; did you mean 'entropy_cost'\?"),
    ({}, "algorithm.entropy_cost", -1, "algorithm.entropy_cost: must be greater than or equal to 0, got -1"),
    ({}, "algorithm.entropy_cost", "0.1", "algorithm.entropy_cost: expected a number, got '0.1'"),
    ({}, "algorithm.entropy_cost", {"linear": [0.1, -1]}, "algorithm.entropy_cost: must be greater than or equal to 0, got -1"),
    ({}, "algorithm.name", "ppo", "algorithm.name: cannot change in mid-run; of this algorithm's settings can: .*entropy_cost"),
    ({}, "algorithm.reduction", "mean", "algorithm.reduction: cannot change in mid-run"),
    ({}, "algorithm", {"entropy_cost": 0}, "algorithm: cannot change in mid-run; what can are settings of the algorithm and the storage"),
    ({}, None, 0, "None: cannot change in mid-run; what can are settings of the algorithm and the storage"),
    ({}, "steps", 10**6, "steps: cannot change in mid-run; what can are"),
    ({}, "optimizer.lr", 0.1, "optimizer.lr: cannot change in mid-run; what can are"),
    ({}, "storage.horizon", 7, "storage.horizon: cannot change in mid-run; of this storage's settings can: none"),
    ({}, "storage.fraction", 0.5, "storage.fraction: unknown key; known are horizon, batch"),
    ({"algorithm": PPO}, "algorithm.epochs", 3, "algorithm.epochs: cannot change in mid-run: each batch would make 6 losses instead of 4"),
    ({"algorithm": PPO}, "algorithm.minibatches", 1, "each batch would make 2 losses instead of 4"),
    ({"storage": REPLAY, "envs": {**SMALL["envs"], "count": 4}}, "storage.batch", 16, "storage.batch: cannot change in mid-run; of this storage's settings can: capacity, fraction"),
    ({"storage": REPLAY, "envs": {**SMALL["envs"], "count": 4}}, "storage.fraction", 0.3, "storage.fraction: 0.3 of a worker's batch of 8 columns is 2.4"),
    ({"storage": REPLAY, "envs": {**SMALL["envs"], "count": 4}}, "storage.fraction", 0.25, "one batch takes 6 new columns"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "path", "value", "said"), REFUSED, ids=[f"{path}={value}" for _, path, value, _ in REFUSED])
def test_what_cannot_be_changed_is_refused_and_the_run_goes_on_unchanged(changes, path, value, said, tmp_path):
    plain = list(small(**changes).stream(tmp_path / "plain"))
    stream = small(**changes).stream(tmp_path / "run")
    before = [next(stream) for _ in range(3)]
    with pytest.raises(ConfigError, match=said):
        stream.change(path, value)
    rows = [*before, *stream]
    assert [row["loss/total"] for row in rows] == [row["loss/total"] for row in plain]
    assert "changes" not in info_of(tmp_path / "run")
    assert (tmp_path / "run" / "experiment.yaml").read_text() == (tmp_path / "plain" / "experiment.yaml").read_text()


def test_a_run_that_has_ended_cannot_be_changed(tmp_path):
    stream = small().stream(tmp_path / "run")
    list(stream)
    with pytest.raises(BadInput, match=r"algorithm.entropy_cost: cannot be changed any more: the run has ended"):
        stream.change("algorithm.entropy_cost", 0)
    again = small().stream(tmp_path / "run", resume=True)
    assert list(again) == []
    with pytest.raises(BadInput, match="the run has ended"):
        again.change("algorithm.entropy_cost", 0)


def test_a_stream_of_which_nothing_was_taken_is_a_stopped_run(tmp_path):
    with small().stream(tmp_path / "run"):
        pass
    assert info_of(tmp_path / "run")["status"] == "stopped"


def test_a_stream_is_closed_by_another_thread(tmp_path):
    before = signal.default_int_handler
    signal.signal(signal.SIGINT, before)  # a job in a shell's background may ignore it
    stream = small().stream(tmp_path / "run")
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result()
    assert info_of(tmp_path / "run")["status"] == "stopped"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_change_by_another_thread_while_a_row_is_made_is_refused(tmp_path):
    entered, leave = threading.Event(), threading.Event()
    stream = small().stream(tmp_path / "run")
    pull = Group.pull

    def held(self, weights, wait=True):
        if self.method == "gradient":
            entered.set()
            leave.wait(60)
        return pull(self, weights, wait)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "pull", held)
        thread = threading.Thread(target=next, args=(stream,))
        thread.start()
        entered.wait(60)
        with pytest.raises(BadInput, match="only between two rows"):
            stream.change("algorithm.entropy_cost", 0)
        leave.set()
        thread.join()
    stream.close()


# --- leaving ---


def test_a_stream_that_nobody_holds_ends_its_run_without_the_garbage_collector(tmp_path):
    gc.disable()
    try:
        for _ in small(steps=10**6).stream(tmp_path / "run"):
            break
        assert info_of(tmp_path / "run")["status"] == "stopped"
        stream = small(steps=10**6).stream(tmp_path / "changed")
        next(stream)
        stream.change("algorithm.entropy_cost", 0)
        del stream
        assert info_of(tmp_path / "changed")["status"] == "stopped"
        assert state_of(tmp_path / "changed")["updater"]["version"] == 1
    finally:
        gc.enable()


def test_a_worker_that_is_lost_while_it_is_told_ends_the_run(tmp_path, monkeypatch):
    stream = small().stream(tmp_path / "run")
    next(stream)

    def lost(*_):
        raise WorkerLost("gradient worker", "its process died")

    monkeypatch.setattr(Group, "call", lost)
    with pytest.raises(WorkerError, match="gradient worker"):
        stream.change("algorithm.entropy_cost", 0)
    monkeypatch.undo()
    assert info_of(tmp_path / "run")["status"] == "failed"
    assert list(stream) == []


# --- workers ---


class Listener:
    """Remembers what it was told."""

    def __init__(self):
        self.heard = []

    def change(self, *words):
        self.heard.append(words)

    def work(self, weights):
        if weights == "die":
            raise WorkerLost("a worker", "died")
        return list(self.heard)

    def close(self):
        pass


def test_a_batch_in_progress_is_learned_from_as_it_was_begun():
    plan, dearer = small(algorithm=PPO).plan(), small(algorithm={**PPO, "entropy_cost": 0.5}).algorithm
    run = Run(plan, RunDir(Path("nowhere")), {}, resume=False)
    scheme = Scheme(plan.scheme, plan.parts, plan.optimizer)
    with closing(scheme.start()) as group:
        costs = []
        for number in range(6):
            (gradient,) = group.pull(run.updater.weights())
            run.updater.apply([gradient])
            costs.append(-gradient.metrics["loss/entropy"] / gradient.metrics["entropy"])
            if number == 0:
                group.tell("change", dearer, plan.parts.storage, plan.parts.steps_per_round)
    assert costs == pytest.approx([0.01] * 4 + [0.5] * 2)


def test_the_drivers_own_algorithm_changes_too(tmp_path):
    experiment = small()
    run, _ = experiment.prepare(tmp_path / "run")
    with closing(Stream(experiment, run)) as stream:
        next(stream)
        stream.change("algorithm.entropy_cost", {"linear": [1, 0]})
        assert run.updater.algorithm.config.entropy_cost == pytest.approx(1 - 1 / 20)


def test_a_replacement_is_told_before_its_first_task():
    def hire(index, attempt):
        worker = HereWorker(f"{index}.{attempt}", Listener)
        hired.append(worker)
        return worker

    hired = []
    group = Group([hire(0, 0), hire(1, 0)], "work", recovery=Recovery(hire, 2, None))
    group.tell("change", "a", 1)
    group.tell("change", "b", 2)
    assert group.pull("fine") == [[("a", 1), ("b", 2)]] * 2
    with pytest.raises(WorkerError):
        group.pull("die")
    assert hired[2].worker.heard == [("b", 2)]


# --- storages ---


def a_replay(**settings):
    config = Replay.Config(**{"horizon": 1, "batch": 4, **settings})
    return config.build(batch=4, generator=torch.Generator())


def column(number):
    """A rollout of one step of one environment that saw this number."""
    return Rollout(
        torch.full((2, 1), number).numpy(), torch.zeros(2, 1).bool().numpy(), torch.zeros(1, 1).numpy(), torch.zeros(1, 1).numpy(),
        torch.zeros(1, 1).bool().numpy(), torch.zeros(1, 1).bool().numpy(), None, None, (), {}, number,
    )  # fmt: skip


def test_a_replays_fraction_changes_what_is_fresh():
    replay = a_replay(fraction=0.5)
    for number in range(8):
        replay.insert(column(number))
    assert replay.batch().fresh.tolist() == [True, True, False, False]
    replay.change(Replay.Config(horizon=1, batch=4, fraction=0.75))
    assert replay.fresh == 1
    batch = replay.batch()
    assert batch.fresh.tolist() == [True, False, False, False]
    assert batch.version[0] == 1
    assert set(batch.version[1:].tolist()) <= {0, 4}


def test_a_replay_that_gets_smaller_keeps_the_newest():
    replay = a_replay(fraction=0.25, capacity=100)
    for number in range(12):
        replay.insert(column(number))
    for _ in range(3):
        replay.batch()
    replay.change(Replay.Config(horizon=1, batch=4, fraction=0.25, capacity=2))
    assert replay.stored == 2
    assert [int(entry.version) for entry in replay.state(contents=True)["stored"]] == [6, 10]  # the last batch was 2, 6 and 10


def test_a_replays_fraction_changes_in_mid_run(tmp_path):
    """A pull brings 8 columns: two batches of 4 fresh ones, then four of 2; lags are counted in rounds of that many updates."""
    replay = {"name": "replay", "horizon": 5, "batch": 8, "fraction": 0.5}
    rows = changing(small(storage=replay, steps=20 * 40), tmp_path / "run", 4, "storage.fraction", 0.75)
    assert [b["env_steps"] - a["env_steps"] for a, b in itertools.pairwise(rows)] == [20] * 3 + [10] * (len(rows) - 4)
    assert {row["policy_lag_max"] for row in rows} == {0}
    assert table(tmp_path / "run")[-1]["env_steps"] == 800
