"""Who waits for whom: the group's lag invariants, with fake workers whose results are released by hand."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from concurrent.futures import Future

import pytest

from modrl.messages import Weights
from modrl.scheme.group import Group
from modrl.scheme.places.base import WorkerError
from modrl.scheme.settings import Collection, Gradients


class Fake:
    """A worker whose tasks finish when told to; a result is the version that it was started on."""

    def __init__(self, name):
        self.name = name
        self.queue = []
        self.closed = self.discarded = False
        self.counts = Counter()

    def submit(self, method, weights):
        future = Future()
        self.queue.append((future, weights.version))
        return future

    def finish(self):
        future, version = self.queue.pop(0)
        future.set_result((self.name, version))

    def close(self):
        self.closed = True

    def discard(self):
        self.discarded = True


def weights(version):
    return Weights(version, 0.0, {}, {})


class Speedy(Fake):
    """Done at once."""

    def submit(self, method, weights):
        future = super().submit(method, weights)
        self.finish()
        return future


def pull_versions(group, version):
    return [started for _, started in group.pull(weights(version))]


def test_a_synchronous_group_has_no_lag_and_keeps_worker_order():
    group = Group([Speedy("a"), Speedy("b")], "work")
    for version in range(5):
        assert group.pull(weights(version)) == [("a", version), ("b", version)]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_ahead_n_lags_exactly_n_rounds_after_the_first(ahead):
    group = Group([Speedy("a"), Speedy("b")], "work", ahead=ahead)
    for version in range(10):
        assert pull_versions(group, version) == [max(0, version - ahead)] * 2


def test_results_beyond_ahead_are_not_started():
    workers = [Fake("a"), Fake("b")]
    group = Group(workers, "work", gather=1, ahead=1, max_lag=8)
    timer = threading.Timer(0.05, workers[0].finish)
    timer.start()
    assert group.pull(weights(0)) == [("a", 0)]
    assert [len(worker.queue) for worker in workers] == [1, 1]


def test_gather_k_takes_in_order_of_completion():
    workers = [Fake(name) for name in "abc"]
    group = Group(workers, "work", gather=2, ahead=1, max_lag=9)
    threading.Timer(0.05, lambda: (workers[2].finish(), workers[0].finish())).start()
    assert group.pull(weights(0)) == [("c", 0), ("a", 0)]


def run_with_random_speeds(group, workers, pulls, slow=()):
    """Pulls while a thread finishes tasks at random; the slow workers only when nothing else is left to finish."""
    stop = threading.Event()
    chance = random.Random(0)

    def work():
        while not stop.is_set():
            busy = [worker for worker in workers if worker.queue]
            fast = [worker for worker in busy if worker.name not in slow]
            if fast:
                chance.choice(fast).finish()
            elif busy and (slow and chance.random() < 0.02):
                chance.choice(busy).finish()
            time.sleep(0.0002)

    thread = threading.Thread(target=work)
    thread.start()
    lags = []
    try:
        for version in range(pulls):
            lags += [version - started for started in pull_versions(group, version)]
    finally:
        stop.set()
        thread.join()
    return lags


@pytest.mark.parametrize(("workers", "gather", "ahead", "max_lag"), [(4, 1, 1, 4), (4, 2, 1, 2), (4, 1, 0, 4), (3, 2, 2, 3), (4, 3, 0, 1)])
def test_no_result_is_older_than_max_lag_however_slow_a_worker(workers, gather, ahead, max_lag):
    fakes = [Fake(str(i)) for i in range(workers)]
    group = Group(fakes, "work", gather=gather, ahead=ahead, max_lag=max_lag)
    lags = run_with_random_speeds(group, fakes, pulls=150, slow={"0"})
    assert max(lags) <= max_lag
    assert len(lags) == 150 * gather


def test_without_max_lag_a_slow_worker_falls_behind_without_bound():
    fakes = [Fake(str(i)) for i in range(4)]
    group = Group(fakes, "work", gather=1, ahead=1)
    lags = run_with_random_speeds(group, fakes[1:], pulls=60)
    fakes[0].finish()
    for version in range(60, 64):  # what the others had finished before is taken first
        if any(task.succeeded for task in group._tasks):
            lags += [version - started for name, started in group.pull(weights(version)) if name == "0"]
    assert max(lags) > 20


def test_lag_of_equal_workers_does_not_rise():
    fakes = [Fake(str(i)) for i in range(2)]
    group = Group(fakes, "work", gather=1, ahead=2, max_lag=8)
    lags = run_with_random_speeds(group, fakes, pulls=200)
    assert max(lags) <= 8
    assert abs(sum(lags[-50:]) / 50 - sum(lags[:50]) / 50) <= 1


def test_a_failure_ends_the_wait_for_another_worker():
    workers = [Fake("slow"), Fake("broken")]
    group = Group(workers, "work")
    failure = WorkerError("broken", "boom")
    threading.Timer(0.05, lambda: workers[1].queue[0][0].set_exception(failure)).start()
    start = time.monotonic()
    with pytest.raises(WorkerError, match="boom"):
        group.pull(weights(0))
    assert time.monotonic() - start < 5


def test_weights_are_shared_once_per_pull():
    calls = []
    group = Group([Speedy("a"), Speedy("b")], "work", ahead=2, share=lambda w: calls.append(w.version) or w)
    for version in range(3):
        group.pull(weights(version))
    assert calls == [0, 1, 2]


def test_drained_results_are_all_that_was_in_flight():
    group = Group([Speedy("a"), Speedy("b")], "work", ahead=2)
    group.pull(weights(0))
    assert group.drain() == [("a", 0), ("b", 0), ("a", 0), ("b", 0)]
    assert group.pull(weights(1)) == [("a", 1), ("b", 1)]


def test_a_restored_group_goes_on_where_it_was():
    class Stateful(Speedy):
        def submit(self, method, *arguments):
            if method == "state":
                arguments = (weights(-1),)
            if method == "restore":
                future = Future()
                future.set_result(True)
                return future
            return super().submit(method, *arguments)

    group = Group([Stateful("a"), Stateful("b")], "work", ahead=1)
    group.pull(weights(0))
    state = group.state()
    again = Group([Stateful("a"), Stateful("b")], "work", ahead=1)
    assert again.restore(state)
    assert pull_versions(again, 1) == pull_versions(group, 1) == [0, 0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"place": "ray", "workers": 8, "gather": 12, "max_lag": 1}, "gather: must lie between 0 and 8 (the number of workers), got 12"),
        ({"place": "ray", "workers": 4, "gather": 1, "ahead": 1, "max_lag": 3}, "4 workers × ahead 1 > gather 1 × max_lag 3"),
        ({"place": "ray", "workers": 4, "gather": 1, "max_lag": 2}, "4 workers > gather 1 × (max_lag 2 + 1)"),
        ({"place": "ray", "workers": 2, "gather": 1}, "max_lag: missing"),
        ({"place": "ray", "workers": 2, "max_lag": 3}, "max_lag: has no effect with gather: all"),
        ({"place": "here", "ahead": 1}, "ahead: has no effect with place: here"),
        ({"place": "thread", "resources": {"gpus": 1}}, "resources: have no effect with place: thread"),
    ],
)
def test_what_cannot_be_kept_is_refused_when_built(settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Collection(**settings)


def test_a_bound_that_can_be_kept_is_admitted():
    assert Collection(place="ray", workers=4, gather=1, ahead=1, max_lag=4).lag_bound == 4
    assert Gradients(place="ray", workers=4, gather=1, max_lag=3).alone
