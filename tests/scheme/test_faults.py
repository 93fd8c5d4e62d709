"""Workers that are lost: replaced within the budget, their unfinished work dropped and counted, while the others go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from modrl.interrupt import Interrupted
from modrl.scheme.collect import Collector
from modrl.scheme.group import Group, Recovery
from modrl.scheme.places.base import WorkerError, WorkerLost
from tests.runs import assert_equal_weights, small, state_of, table, trained, weights_of
from tests.scheme.test_group import Fake, Speedy, weights


class Doomed(Fake):
    """Its first task ends when told to; then its process is gone."""

    def die(self):
        for future, _ in self.queue:
            future.set_exception(WorkerLost(self.name, "its process died"))
        self.queue.clear()


class Dead(Fake):
    """Gone before its first task."""

    def submit(self, method, *arguments):
        future = Future()
        future.set_exception(WorkerLost(self.name, "its process died"))
        return future


def recovery(restarts=1, timeout=None, made=None, kind=Speedy):
    def recruit(index, attempt):
        worker = kind(f"{'ab'[index]}{attempt}")
        if made is not None:
            made.append(worker)
        return worker

    return Recovery(recruit, restarts, timeout)


def test_a_lost_worker_is_replaced_and_starts_anew_on_the_weights_of_now():
    lost, other = Doomed("a"), Speedy("b")
    group = Group([lost, other], "work", ahead=1, recovery=recovery())
    threading.Timer(0.05, lost.finish).start()
    assert group.pull(weights(0)) == [("a", 0), ("b", 0)]
    lost.die()
    assert group.pull(weights(1)) == [("a1", 1), ("b", 0)]
    assert lost.discarded
    (event,) = group.events()
    assert (event.kind, event.worker, event.dropped) == ("restart", "a", 1)


def test_results_that_were_ready_before_the_loss_are_taken():
    lost = Doomed("a")
    group = Group([lost], "work", ahead=2, recovery=recovery())
    threading.Timer(0.05, lost.finish).start()
    group.pull(weights(0))
    lost.finish()
    lost.die()
    assert group.pull(weights(1)) == [("a", 0)]
    assert group.pull(weights(2)) == [("a1", 1)]
    assert group.events()[0].dropped == 1


def test_past_the_budget_the_loss_ends_the_run_and_says_so():
    group = Group([Dead("a")], "work", recovery=recovery(restarts=2, kind=Dead))
    with pytest.raises(WorkerError, match="no replacement is left: 2 were made") as raised:
        group.pull(weights(0))
    assert not isinstance(raised.value, WorkerLost)


def test_without_a_budget_no_worker_is_replaced():
    group = Group([Dead("a")], "work", recovery=recovery(restarts=0))
    with pytest.raises(WorkerError, match="its process died"):
        group.pull(weights(0))


def test_what_a_worker_raises_is_not_answered_by_a_replacement():
    class Raising(Fake):
        def submit(self, method, *arguments):
            future = Future()
            future.set_exception(WorkerError("a", "boom"))
            return future

    made = []
    group = Group([Raising("a")], "work", recovery=recovery(made=made))
    with pytest.raises(WorkerError, match="boom"):
        group.pull(weights(0))
    assert not made


def test_a_task_that_takes_too_long_is_given_to_another_worker():
    group = Group([Fake("a"), Speedy("b")], "work", recovery=recovery(timeout=0.2))
    start = time.monotonic()
    assert group.pull(weights(0)) == [("a1", 0), ("b", 0)]
    assert 0.2 <= time.monotonic() - start < 2
    assert [event.kind for event in group.events()] == ["timeout", "restart"]


def test_a_task_waits_for_the_one_before_it_without_being_late():
    """Two tasks of 0.15 s each are in time with a timeout of 0.2 s, though the second is done 0.3 s after it was submitted."""
    worker = Fake("a")
    group = Group([worker], "work", ahead=2, recovery=recovery(restarts=0, timeout=0.2))
    for seconds in (0.15, 0.3):
        threading.Timer(seconds, worker.finish).start()
    assert group.pull(weights(0)) == [("a", 0)]
    assert group.pull(weights(1)) == [("a", 0)]


def test_with_gather_k_the_others_go_on_while_a_replacement_starts():
    lost, other = Doomed("a"), Speedy("b")
    group = Group([lost, other], "work", gather=1, ahead=1, max_lag=4, recovery=recovery(kind=Fake))
    assert group.pull(weights(0)) == [("b", 0)]
    lost.die()
    assert [name for name, _ in (group.pull(weights(1)) + group.pull(weights(2)))] == ["b", "b"]


def test_a_loss_while_another_method_is_called_is_answered_by_the_replacement():
    group = Group([Dead("a"), Speedy("b")], "work", recovery=recovery())
    assert group.call("state", [weights(3)] * 2) == [("a1", 3), ("b", 3)]


# --- whole runs -----------------------------------------------------------------------------------------------------


def deadly(folder, how="kill", at=60):
    return {"name": "gym", "id": "tests.scheme.tiny:Deadly", "count": 4, "kwargs": {"file": str(folder / "died"), "at": at, "how": how}}


def run(folder, scheme, how="kill", at=60, updates=40, **changes):
    experiment = small(
        envs=deadly(folder, how, at), scheme=scheme, steps=updates * 4 * 5, storage={"name": "fresh", "horizon": 5, "batch": 4}, **changes
    )
    state = trained(experiment, folder / "run")
    info = json.loads((folder / "run" / "run.json").read_text())
    return state, table(folder / "run"), info


TWO = {"gradient": {"workers": 2, "place": "thread"}}


def test_a_checkpoint_after_a_failure_has_what_the_replicas_had_learned(tmp_path):
    scheme = {**TWO, "update": "all_reduce"}
    with pytest.raises(WorkerError, match="the environment broke"):
        run(tmp_path, scheme, how="raise", at=42)
    state = state_of(tmp_path / "run")
    assert state["updater"]["env_steps"] == state["updater"]["version"] * 20 == 160
    straight = small(envs=deadly(tmp_path), scheme=scheme, steps=160, storage={"name": "fresh", "horizon": 5, "batch": 4})
    assert_equal_weights(weights_of(state), weights_of(trained(straight, tmp_path / "straight")))


def test_a_thread_s_environment_that_asks_for_an_exit_ends_the_run(tmp_path):
    with pytest.raises(WorkerError, match="SystemExit: 3"):
        run(tmp_path, {"collection": {"place": "thread"}}, how="exit")


def test_a_worker_that_dies_of_a_signal_to_all_does_not_make_the_run_a_failed_one(tmp_path, monkeypatch):
    collect = Collector.collect

    def dies(self, weights):
        if weights.version == 10:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            raise WorkerLost("collector", "its process died")
        return collect(self, weights)

    monkeypatch.setattr(Collector, "collect", dies)
    with pytest.raises(Interrupted, match="stopped by SIGTERM; checkpoint") as raised:
        small(scheme={"collection": {"place": "thread"}}).run(tmp_path / "run")
    assert raised.value.signal == signal.SIGTERM
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert state_of(tmp_path / "run")["updater"]["version"] == 10


def check(rows, info, worker, steps):
    assert info["status"] == "finished"
    assert rows[-1]["faults/worker_restarts"] == 1
    assert [event["kind"] for event in info["faults"] if event["kind"] == "restart"] == ["restart"]
    assert worker in [event["worker"] for event in info["faults"]]
    assert steps <= rows[-1]["env_steps"] < steps + 4 * 5 * 2  # what was lost is not counted, and learned from never


FAULTS = {"worker_restarts": 1}


@pytest.mark.parametrize(
    ("scheme", "worker"),
    [
        ({"preset": "impala", "faults": FAULTS}, "collector"),
        pytest.param({"collection": {"place": "ray", "workers": 2}, "faults": FAULTS}, "collector", marks=pytest.mark.slow),
        pytest.param({"preset": "dppo", "faults": FAULTS}, "gradient worker", marks=pytest.mark.slow),
        pytest.param({"preset": "a3c", "faults": FAULTS}, "gradient worker", marks=pytest.mark.slow),
        pytest.param({"preset": "dd_ppo", "faults": FAULTS}, "gradient worker", marks=pytest.mark.slow),
        pytest.param({"preset": "local_sgd", "faults": FAULTS}, "gradient worker", marks=pytest.mark.slow),
        pytest.param({"preset": "seed", "collection": {"place": "ray"}, "faults": FAULTS}, "collector", marks=pytest.mark.slow),
        pytest.param({"preset": "rapid", "faults": FAULTS, "collection": {"workers": 2}}, "of gradient worker", marks=pytest.mark.slow),
    ],
    ids=["impala", "parallel", "dppo", "a3c", "dd_ppo", "local_sgd", "seed", "rapid"],
)
def test_a_killed_worker_is_replaced_and_the_run_ends_well(scheme, worker, cluster, tmp_path):
    _, rows, info = run(tmp_path, scheme)
    assert (tmp_path / "died").exists()
    assert any(worker in event["worker"] for event in info["faults"])
    check(rows, info, info["faults"][0]["worker"], 40 * 4 * 5)


def test_a_hung_environment_in_a_thread_is_found_by_its_timeout(tmp_path):
    scheme = {"collection": {"place": "thread", "workers": 2}, "faults": {"worker_restarts": 1, "timeout": 1.0}}
    _, rows, info = run(tmp_path, scheme, how="hang")
    assert [event["kind"] for event in info["faults"]] == ["timeout", "restart"]
    assert (rows[0]["faults/timeouts"], rows[-1]["faults/timeouts"]) == (0, 1)
    assert rows[-1]["faults/dropped_rollouts"] == sum(event["dropped"] for event in info["faults"]) == 1


@pytest.mark.slow
def test_a_hung_environment_on_ray_is_found_by_its_timeout(cluster, tmp_path):
    scheme = {"preset": "impala", "faults": {"worker_restarts": 1, "timeout": 3.0}}
    _, rows, _ = run(tmp_path, scheme, how="hang")
    assert (rows[-1]["faults/timeouts"], rows[-1]["faults/worker_restarts"]) == (1, 1)


def test_a_replacement_has_chances_of_its_own(tmp_path):
    """Another attempt draws other actions and other episodes, and the same attempt the same."""
    from modrl.seeding import Role, seed_of

    seeds = [seed_of(1, Role.ENV, 0, attempts) for attempts in ((), (1,), (2,), (0, 1), (1, 0))]
    assert len(set(seeds)) == len(seeds)
    parts = small().plan().parts
    first, second, again = (parts.collector(0, attempts) for attempts in ((), (0, 1), (0, 1)))
    assert not first.generator.get_state().equal(second.generator.get_state())
    assert second.generator.get_state().equal(again.generator.get_state())
    assert not set(first.lanes[0].envs.seeds) & set(second.lanes[0].envs.seeds)
    assert second.lanes[0].envs.seeds == again.lanes[0].envs.seeds


@pytest.mark.slow
def test_replicas_agree_after_one_was_replaced(cluster, tmp_path):
    scheme = {"preset": "dd_ppo", "collection": {"preemption": None}, "faults": FAULTS}
    small_batch = {"optimizer": {"name": "torch.optim:SGD", "lr": 0.01}}
    run(tmp_path, {**scheme, "update": {"average": 1}}, **small_batch)
    one, other = (worker["replica"]["acting"] for worker in state_of(tmp_path / "run")["workers"])
    assert_equal_weights(one, other)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def worker_of_ours(title):
    """The process of a worker, of the cluster that this process started."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            ours = entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(f"ray::{title}".encode())
            if ours and parent_of(parent_of(entry.name)) == os.getpid():
                return int(entry.name)
    raise AssertionError(f"no {title}")


def run_with(sent, title, folder, **changes):
    """A run in whose middle a worker's process is sent a signal; what run.json says of it."""
    done = False
    for row in small(steps=12_000, **changes).stream(folder):
        if not done and row["env_steps"] > 2000:
            done = True
            os.kill(worker_of_ours(title), sent)
    info = json.loads((folder / "run.json").read_text())
    assert info["status"] == "finished"
    return info


@pytest.mark.slow
@pytest.mark.parametrize("gather", [{}, {"gather": 1, "ahead": 1, "max_lag": 4}], ids=["sync", "async"])
def test_a_killed_inference_server_is_replaced_and_its_collectors_start_anew(gather, cluster, tmp_path):
    collection = {"place": "ray", "workers": 2, "inference": {"name": "server"}, **gather}
    info = run_with(signal.SIGKILL, "inference_server_0", tmp_path / "run", scheme={"collection": collection, "faults": FAULTS})
    assert [event["worker"] for event in info["faults"] if event["kind"] == "restart"] == ["inference server 0"]
    assert {event["kind"] for event in info["faults"]} <= {"restart", "stranded"}  # the latter where collectors were at work
    last = table(tmp_path / "run")[-1]
    assert last["env_steps"] == last["updates"] * 40
    assert (last.get("faults/dropped_rollouts") or 0) == sum(event["dropped"] for event in info["faults"])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dd_ppo", "local_sgd"])
def test_a_stopped_replica_is_found_by_its_timeout_and_the_others_go_on(preset, cluster, tmp_path):
    info = run_with(signal.SIGSTOP, "gradient_worker_1", tmp_path / "run", scheme={"preset": preset, "faults": {"worker_restarts": 2, "timeout": 4}})
    assert [event["kind"] for event in info["faults"]] == ["timeout", "restart"]
