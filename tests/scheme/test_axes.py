"""The other axes of a scheme, each swapped alone: preemption, hand-outs of weights, staleness, compression, collectors that differ."""

from __future__ import annotations

import contextlib
import itertools
import time

import numpy as np
import pytest
import ray

from modrl.config import BadInput, ConfigError
from modrl.scheme.places.base import WorkerError
from modrl.scheme.places.ray import RayBoard, pack, unpack
from modrl.scheme.race import LocalBoard, Race
from tests.runs import assert_equal_weights, small, table, trained, weights_of
from tests.scheme.tiny import collectors_of, parts_of
from tests.scheme.tiny import weights_of as acting

# --- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LocalBoard, RayBoard])
def test_a_board_counts_who_is_done_with_a_round_and_forgets_old_ones(make, cluster):
    board = make()
    board.finish((3, 0))
    board.finish((3, 0))
    board.finish((3, 1))

    def seen(round):
        deadline = time.monotonic() + 5
        while board.finished(round) == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        return board.finished(round)

    assert (seen((3, 0)), seen((3, 1))) == (2, 1)
    for version in range(4, 20):
        board.finish((version, 0))
    assert board.finished((3, 0)) == 0 or make is RayBoard  # whose answer is one step old
    with contextlib.suppress(AttributeError):
        board.close()


def test_a_board_that_is_lost_is_followed_by_an_empty_one(cluster):
    board = RayBoard()

    def seen(round, enough):
        deadline = time.monotonic() + 30
        while board.finished(round) < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        return board.finished(round)

    board.finish((0, 0))
    assert seen((0, 0), 1) == 1
    ray.kill(board.actor, no_restart=False)
    assert board.finished((0, 0)) == 1  # what is known stays
    deadline = time.monotonic() + 30
    while board.finished((1, 0)) == 0 and time.monotonic() < deadline:  # what is said while it is away is lost
        board.finish((1, 0))
        time.sleep(0.1)
    assert board.finished((1, 0)) > 0
    board.close()


def test_who_has_its_share_stops_once_enough_are_done():
    board = LocalBoard()
    race = Race(board, needed=2, share=0.25)
    board.finish((0, 0))
    assert not race.over((0, 0), 9, 10)
    board.finish((0, 0))
    assert not race.over((0, 0), 2, 10)
    assert race.over((0, 0), 3, 10)
    assert not race.over((0, 1), 9, 10)


SLOW = {"name": "gym", "id": "tests.scheme.tiny:Slow", "count": 4, "kwargs": {"seconds": 0.002}}


def preempting(place, **preemption):
    """Four collectors, the first of them ten times slower than the others."""
    paces = [{"envs": {"kwargs": {"seconds": seconds}}} for seconds in (0.02, 0.002, 0.002, 0.002)]
    return {"collection": {"place": place, "workers": 4, "preemption": preemption or None, "per_worker": paces}}


@pytest.mark.parametrize("place", ["thread", "ray"])
def test_a_straggler_hands_in_what_it_has(place, cluster, tmp_path):
    """One of four collectors is ten times slower: its rollout ends early, the rest of it is filler, and the next goes on from there."""
    scheme = preempting(place, fraction_workers=0.75, fraction_samples=0.1)
    with contextlib.closing(collectors_of(envs=SLOW, horizon=20, scheme=scheme)) as collectors:
        weights = acting(parts_of(envs=SLOW, horizon=20, scheme=scheme)[0].make_actor())
        rounds = [collectors.pull(weights._replace(version=version)) for version in range(3)]
    columns = [[rollout for rollout in rollouts if rollout.valid is not None] for rollouts in rounds]
    assert all(len(short) == 1 for short in columns)
    steps = []
    for (short,) in columns:
        done = int(short.valid.sum())
        steps.append(done)
        assert 2 <= done <= 10
        assert short.valid[:done].all()
        assert not short.valid[done:].any()
        np.testing.assert_array_equal(short.obs[done:], np.broadcast_to(short.obs[done], short.obs[done:].shape))
        assert not short.reward[done:].any()
        assert not short.terminated[done:].any()
    for (short,), (following,) in itertools.pairwise(columns):
        np.testing.assert_array_equal(short.obs[-1], following.obs[0])
    assert sum(episode.length for (short,) in columns for episode in short.episodes) == sum(steps) - columns[-1][0].obs[-1].sum() % 5


def test_only_samples_that_exist_are_counted_and_learned_from(tmp_path):
    scheme = preempting("thread", fraction_workers=0.75, fraction_samples=0.1)
    storage = {"name": "fresh", "horizon": 20, "batch": 4}
    trained(small(envs=SLOW, scheme=scheme, storage=storage, steps=1000), tmp_path / "run")
    row = table(tmp_path / "run")[-1]
    assert row["env_steps"] < row["updates"] * 4 * 20
    assert row["env_steps"] > row["updates"] * 3 * 20


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ({"preset": "impala", "collection": {"preemption": {}}}, "needs collectors that are all at the same round"),
        ({"collection": {"preemption": {}}}, "needs collectors that run at the same time"),
        ({"preset": "a3c", "collection": {"preemption": {}}}, "needs collectors that run at the same time"),
        ({"collection": {"inference": "server"}}, "a server has nothing to batch with place: here"),
        ({"preset": "overlapped", "collection": {"max_staleness": 1}}, "would drop what is no older than it has to be"),
        ({"preset": "impala", "collection": {"max_staleness": 4}}, "has no effect: no rollout lags by more than 4"),
        ({"collection": {"broadcast_interval": 5, "max_staleness": 3}}, "broadcast_interval: 5 rollouts lag by 4; raise it"),
        ({"collection": {"place": "ray", "resources": {"custom": {"tpu": -1}}}}, "scheme.collection.resources.custom"),
        ({"preset": ["impala"]}, r"expected a scheme's name, got \['impala'\]"),
        ({"update": "all_reduce"}, "need gradient workers that run at the same time"),
        ({"preset": "a3c", "update": {"average": 2}}, "need gradient workers that run at the same time and are all awaited"),
        ({"update": {"average": 0}}, "scheme.update.average"),
        ({"compression": "lz4"}, "has no effect where no worker is on ray"),
        ({"collection": {"placement": "spread"}}, "has no effect with place: here"),
        ({"faults": {"worker_restarts": 2}}, "has no effect where every worker is here"),
        ({"faults": {"timeout": 2}}, "has no effect where every worker is here"),
        ({"collection": {"preemption": {"fraction_workers": 1.5}}}, "scheme.collection.preemption.fraction_workers"),
    ],
)
def test_what_cannot_take_effect_is_refused(scheme, text):
    with pytest.raises(ConfigError, match=text):
        small(scheme=scheme)


# --- weights and staleness ------------------------------------------------------------------------------------------


def test_weights_are_handed_out_in_every_kth_pull(tmp_path):
    trained(small(scheme={"collection": {"broadcast_interval": 3}}), tmp_path / "run")
    assert [row["policy_lag_max"] for row in table(tmp_path / "run")[:7]] == [0, 1, 2, 0, 1, 2, 0]


def test_an_interval_survives_a_resume(tmp_path):
    changes = {"scheme": {"collection": {"broadcast_interval": 3}}}
    straight = trained(small(**changes), tmp_path / "straight")
    trained(small(**changes, steps=7 * 8 * 5), tmp_path / "resumed")
    assert_equal_weights(weights_of(straight), weights_of(trained(small(**changes), tmp_path / "resumed", resume=True)))


def test_rollouts_that_are_too_old_are_dropped_and_counted_and_learned_from_never(tmp_path):
    """Two workers with three tasks ahead each, one result a pull: rollouts lag by up to 6, and at most 2 are wanted."""
    scheme = {"collection": {"place": "thread", "workers": 2, "gather": 1, "ahead": 3, "max_lag": 6, "max_staleness": 2}}
    trained(small(scheme=scheme, storage={"name": "fresh", "horizon": 5, "batch": 4}, steps=4000), tmp_path / "run")
    rows = table(tmp_path / "run")
    assert max(row["policy_lag_max"] for row in rows) <= 2
    assert rows[-1]["faults/stale_rollouts"] > 0
    assert rows[-1]["env_steps"] == rows[-1]["updates"] * 4 * 5


# --- compression ----------------------------------------------------------------------------------------------------


def test_compressed_results_are_the_same_and_their_arrays_can_be_written_to():
    tree = {"obs": np.zeros((100, 84, 84), np.uint8), "version": 3}
    packed = pack(tree)
    assert packed.size > 100 * 84 * 84 > 50 * len(packed.data)
    again = unpack(packed)
    np.testing.assert_array_equal(again["obs"], tree["obs"])
    again["obs"][0] = 1


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param({"collection": {"workers": 2, "place": "ray"}}, id="rollouts"),
        pytest.param({"gradient": {"workers": 2, "place": "ray"}}, id="gradients", marks=pytest.mark.slow),
    ],
)
def test_compression_changes_nothing_but_what_is_sent(scheme, cluster, tmp_path):
    plain = trained(small(scheme=scheme), tmp_path / "plain")
    packed = trained(small(scheme={**scheme, "compression": "lz4"}), tmp_path / "packed")
    assert_equal_weights(weights_of(plain), weights_of(packed))
    row = table(tmp_path / "packed")[-1]
    assert row["transport/bytes_sent"] > 0
    assert "transport/bytes_sent" not in table(tmp_path / "plain")[-1]


# --- collectors that differ -----------------------------------------------------------------------------------------


def counting(n):
    return {"name": "gym", "id": "modrl/Count-v0", "count": 4, "kwargs": {"n": n}}


def test_collectors_can_have_environments_of_their_own(tmp_path):
    """Episodes of 3 steps at one collector and of 5 at the other: multi-task training."""
    scheme = {"collection": {"place": "thread", "workers": 2, "per_worker": [{"envs": {"kwargs": {"n": 3}}}, {"envs": {"kwargs": {"n": 5}}}]}}
    lengths = set()
    with contextlib.closing(collectors_of(envs=counting(4), horizon=15, scheme=scheme)) as collectors:
        weights = acting(parts_of(envs=counting(4), horizon=15, scheme=scheme)[0].make_actor())
        rollouts = collectors.pull(weights)
    lengths = [{episode.length for episode in rollout.episodes} for rollout in rollouts]
    assert lengths == [{3}, {5}]


@pytest.mark.parametrize(
    ("per_worker", "text"),
    [
        ([{"envs": {"kwargs": {"n": 3}}}] * 3, "3 entries cannot be dealt out equally over 2 collectors"),
        ([{"envs": {"count": 2}}], "scheme.collection.per_worker.0: count cannot differ"),
        (
            [{"envs": {"wrappers": [{"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 2}]}}],
            "scheme.collection.per_worker.0.envs: observations",
        ),
        ([{"actor": {"init": "orthogonal"}}], "scheme.collection.per_worker.0.actor: changes what .* begins with"),
        ([{"envs": {"kwargs": {"m": 3}}}], "scheme.collection.per_worker.0.envs: cannot be made with these settings"),
        ([{"actor": {"torso": {"name": "mlp", "hidden": [3]}}}], "scheme.collection.per_worker.0.actor: gives networks of other shapes"),
    ],
)
def test_collectors_cannot_differ_in_what_one_actor_is_for(per_worker, text, tmp_path):
    scheme = {"collection": {"place": "thread", "workers": 2, "per_worker": per_worker}}
    with pytest.raises(BadInput, match=text):
        small(envs=counting(4), scheme=scheme, storage={"name": "fresh", "horizon": 5, "batch": 4}).run(tmp_path / "run")


# --- pacing ---------------------------------------------------------------------------------------------------------

REPLAY = {"name": "replay", "horizon": 5, "batch": 8, "fraction": 1}
AHEAD = {"place": "thread", "workers": 2, "gather": 0, "ahead": 1}
PACED = pytest.mark.parametrize("scheme", [{}, {"collection": AHEAD}, {"gradient": {"workers": 2, "place": "thread"}}], ids=["local", "free", "dppo"])


def ratio(rows):
    """Updates per env step, over a run."""
    return rows[-1]["updates"] / rows[-1]["env_steps"]


def test_without_pacing_a_replay_makes_one_batch_of_each_pull(tmp_path):
    trained(small(storage=REPLAY), tmp_path / "run")
    assert ratio(table(tmp_path / "run")) == 1 / 40


@PACED
def test_the_learner_waits_where_it_would_make_too_many_updates(scheme, tmp_path):
    trained(small(storage=REPLAY, scheme={**scheme, "pacing": {"at_most": 1 / 100}}, steps=8000), tmp_path / "run")
    assert 0.8 / 100 < ratio(table(tmp_path / "run")) <= 1 / 100


@PACED
def test_collectors_rest_where_there_would_be_too_few_updates(scheme, tmp_path):
    trained(small(storage=REPLAY, scheme={**scheme, "pacing": {"at_least": 1 / 10, "at_most": 1 / 9}}, steps=2000), tmp_path / "run")
    assert 0.9 / 10 < ratio(table(tmp_path / "run")) <= 1 / 9


def test_a_free_running_learner_learns_while_a_slow_collector_collects(tmp_path):
    """Steps of 5 ms: a rollout of 5 takes longer than several updates do."""
    slow = {"name": "gym", "id": "tests.scheme.tiny:Slow", "count": 2, "kwargs": {"seconds": 0.005}}
    storage = {**REPLAY, "batch": 4}
    trained(small(envs=slow, storage=storage, scheme={"collection": {**AHEAD, "workers": 1}}, steps=300), tmp_path / "run")
    assert ratio(table(tmp_path / "run")) > 1 / 5


def test_nothing_is_learned_before_the_replay_holds_what_it_should_start_with(tmp_path):
    trained(small(storage={**REPLAY, "start": 80}, steps=1600), tmp_path / "run")
    rows = table(tmp_path / "run")
    assert rows[0]["env_steps"] == 80 * 5


def test_a_paced_run_goes_on_with_its_pace(tmp_path):
    changes = {"storage": REPLAY, "scheme": {"pacing": {"at_most": 1 / 100}}, "checkpoint": {"storage": True}}
    straight = trained(small(**changes, steps=4000), tmp_path / "straight")
    trained(small(**changes, steps=2000), tmp_path / "resumed")
    assert_equal_weights(weights_of(straight), weights_of(trained(small(**changes, steps=4000), tmp_path / "resumed", resume=True)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scheme": {"collection": AHEAD}}, "takes what is ready: it needs a storage whose batches need no new steps"),
        ({"scheme": {"pacing": {"at_most": 1}}}, "has no effect: the storage sets how often each step is learned from"),
        ({"storage": REPLAY, "scheme": {"pacing": {"at_most": 1, "at_least": 2}}}, "must not be above at_most"),
        ({"storage": REPLAY, "scheme": {"pacing": {"at_most": 1e-4}}}, "allows no update within 800 env steps"),
        ({"storage": REPLAY, "scheme": {"collection": {**AHEAD, "ahead": 0}}}, "gather: needs ahead: 1 or more"),
        ({"storage": REPLAY, "scheme": {"collection": {**AHEAD, "max_lag": 3}}}, "max_lag: has no effect with gather: 0"),
        ({"storage": {**REPLAY, "fraction": 0.5, "start": 8}}, "start: takes effect with fraction: 1 alone"),
        ({"scheme": {"preset": "a3c", "gradient": {"gather": 0}}}, "must lie between 1 and 2"),
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        small(**changes)


def test_a_bound_on_updates_holds_from_the_first_and_a_run_ends_while_it_waits(tmp_path):
    """One update in 1000 steps at most: the first comes when 1000 are there, and 1600 make no second one."""
    trained(small(storage=REPLAY, scheme={"pacing": {"at_most": 1 / 1000}}, steps=1600), tmp_path / "run")
    rows = table(tmp_path / "run")
    assert (rows[0]["env_steps"], rows[0]["updates"]) == (1000, 1)
    assert 1600 <= rows[-1]["env_steps"] <= 1640


def test_rollouts_that_are_never_new_enough_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("modrl.scheme.gradient.MANY_STALE", 20)
    slow = {"name": "gym", "id": "tests.scheme.tiny:Slow", "count": 2, "kwargs": {"seconds": 0.005}}
    scheme = {"collection": {**AHEAD, "workers": 1, "max_staleness": 0}}
    with pytest.raises(WorkerError, match="the last 20 rollouts all lagged by more than max_staleness: 0 rounds"):
        small(envs=slow, storage={**REPLAY, "batch": 4}, scheme=scheme, steps=10**6).run(tmp_path / "run")
