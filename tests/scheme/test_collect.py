"""Collectors with environments and actors: what a rollout holds, in every home, reset mode and space."""

from __future__ import annotations

import contextlib
import itertools
import os
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from modrl.agent.algorithms import A2C, IMPALA
from modrl.agent.algorithms.transitions import log_prob, transitions
from modrl.agent.batch import from_rollout
from modrl.envs.toy import Count
from modrl.evaluation import episode_seeds
from modrl.scheme.start import Site, start_collection
from tests.envs.test_processes import Starter
from tests.scheme.tiny import collectors_of, counting, parts_of, weights_of

MODES = ["next_step", "same_step", "disabled"]
PLACES = ["here", "thread", "ray"]


@pytest.fixture
def home(request):
    """The place; a cluster too where it takes one."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param


def collect(rollouts, **experiment):
    """So many rollouts of one collector here, and the parts that it was made of."""
    parts, _ = parts_of(**experiment)
    weights = weights_of(parts.make_actor())
    with contextlib.closing(parts.collector(0)) as collector:
        return [collector.collect(weights) for _ in range(rollouts)], parts


def seen_by_learner(rollout, parts):
    """The rollout as a batch, and what the learner's own copy of the actor says of it."""
    batch = from_rollout(rollout)
    return batch, parts.make_actor().train()(batch)


# --- what is stored ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("horizon", [1, 2, 3, 5])
def test_every_episode_has_its_exact_return_and_length_whatever_the_horizon(mode, horizon):
    rollouts, _ = collect(16, envs=counting(n=3, mode=mode), horizon=horizon)
    episodes = [(episode.reward, episode.length) for rollout in rollouts for episode in rollout.episodes]
    assert len(episodes) >= 4
    assert set(episodes) == {(6.0, 3)}


@pytest.mark.parametrize("mode", MODES)
def test_every_reward_is_in_one_valid_slot_across_rollouts(mode):
    rollouts, _ = collect(4, envs=counting(n=7, mode=mode), horizon=5)
    rewards = [reward for r in rollouts for reward in r.reward[slice(None) if r.valid is None else r.valid].ravel().tolist()]
    assert rewards == [float(1 + i % 7) for i in range(len(rewards))]
    assert len(rewards) == (18 if mode == "next_step" else 20)
    assert all((before.obs[-1] == after.obs[0]).all() for before, after in itertools.pairwise(rollouts))


def test_filler_opens_the_next_rollout_where_an_episode_ended_with_the_last():
    rollouts, _ = collect(3, envs=counting(n=5, end="truncated"), horizon=5)
    assert [None if r.valid is None else np.flatnonzero(~r.valid[:, 0]).tolist() for r in rollouts] == [None, [0], [1]]
    assert [np.flatnonzero(r.first[:, 0]).tolist() for r in rollouts] == [[0], [1], [2]]
    assert [None if r.final_obs is None else r.final_obs.tolist() for r in rollouts] == [[[5.0]], None, [[5.0]]]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("ignore:.*share an object")
def test_stored_observations_do_not_change_when_the_env_writes_to_its_array(vectorization, nested):
    envs = {"name": "gym", "id": "modrl/Alias-v0", "count": 2, "vectorization": vectorization, "kwargs": {"end": "truncated", "nested": nested}}
    actor = {"name": "actor_critic", "torso": "mlp"}
    rollouts, _ = collect(3, envs=envs, horizon=3, actor=actor)
    for part in ("a", "b") if nested else (None,):
        for rollout in rollouts:
            obs, final = (rollout.obs, rollout.final_obs) if part is None else (rollout.obs[part], rollout.final_obs[part])
            assert obs[:, 0, 0].tolist() == [0, 1, 2, 0]
            assert final.tolist() == [[3], [3]]


def test_a_rollout_of_no_ends_has_neither_filler_nor_last_observations():
    [rollout], _ = collect(1, envs=counting(n=9), horizon=4)
    assert rollout.valid is None
    assert rollout.final_obs is None
    assert rollout.episodes == ()


# --- the learner sees what the actor saw ---


def actor_critic(**settings):
    return {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}, **settings}


SEEING = {"memory": {"name": "lstm", "size": 6}, "last_action": True, "last_reward": True}
CASES = {
    **{f"does {do}": ("vector", do, actor_critic()) for do in ("discrete", "multi discrete", "multi binary", "box", "dict", "tuple")},
    "a scalar": ("scalar", "scalar", actor_critic()),
    "squashed": ("vector", "box", actor_critic(distribution="squashed")),
    "sees numbers": ("number", "discrete", actor_critic(**SEEING)),
    "sees pixels": ("pixels", "multi discrete", actor_critic(**SEEING)),
    "sees nested": ("nested", "dict", actor_critic(**SEEING)),
    "lstm in a box": ("vector", "box", actor_critic(**SEEING)),
    "two lstms": ("vector", "discrete", actor_critic(**SEEING, value="separate")),
}


@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
@pytest.mark.parametrize(("see", "do", "actor"), CASES.values(), ids=CASES)
def test_on_equal_weights_the_ratio_is_one_and_vtrace_the_n_step_return(see, do, actor, vectorization):
    envs = {"name": "gym", "id": "tests.scheme.tiny:tests/Anything-v0", "count": 3, "kwargs": {"see": see, "do": do}, "vectorization": vectorization}
    rollouts, parts = collect(3, envs=envs, horizon=8, actor=actor)
    assert any(r.terminated.any() for r in rollouts)
    assert any(r.truncated.any() for r in rollouts)
    assert (vectorization == "sync") == all(r.valid is None for r in rollouts)
    for rollout in rollouts:
        batch, out = seen_by_learner(rollout, parts)
        log_rhos = log_prob(batch, out) - batch.behaviour["log_prob"]
        assert log_rhos[batch.valid].abs().max() < 1e-5
        torch.testing.assert_close(out.value[:-1][batch.valid], batch.behaviour["value"][batch.valid], rtol=0, atol=1e-5)
        on, off = (
            [x[batch.valid] for x in a.build(actor=parts.make_actor()).targets(batch, out)] for a in (A2C.Config(), IMPALA.Config(reward="none"))
        )
        torch.testing.assert_close(on, off, rtol=1e-4, atol=1e-4)


def test_a_continuous_action_is_stored_as_sampled_and_clipped_on_its_way_to_the_env():
    envs = {"name": "gym", "id": "tests.scheme.tiny:Anything", "count": 4, "kwargs": {"do": "box"}}  # refuses what is out of bounds
    [rollout], _ = collect(1, envs=envs, horizon=20, actor=actor_critic())
    assert np.abs(rollout.action).max() > 1
    assert rollout.action.shape == (20, 4, 2)


@pytest.mark.parametrize(("actor", "expected"), [("Bias", 3.0), ("CounterRNN", 4.0)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("horizon", [3, 5])
def test_a_truncated_episode_is_bootstrapped_from_its_last_observation_with_the_state_carried_on(actor, expected, mode, horizon):
    rollouts, parts = collect(3, envs=counting(n=3, end="truncated", mode=mode), horizon=horizon, actor=actor)
    found = 0
    for rollout in rollouts:
        batch, out = seen_by_learner(rollout, parts)
        steps = transitions(batch, out, 0.9)
        assert steps.next_values[batch.truncated].tolist() == [expected] * int(batch.truncated.sum())
        assert steps.cuts[batch.truncated].all()
        found += int(batch.truncated.sum())
    assert found >= 2


@pytest.mark.parametrize("home", PLACES, indirect=True)
def test_the_state_is_stored_at_the_start_reset_at_first_and_carried_on(home):
    scheme = {"collection": {"place": home}}
    experiment = {"envs": counting(2, n=[3, 4], mode="same_step"), "actor": "CounterRNN", "horizon": 5}
    parts, _ = parts_of(**experiment)
    actor = parts.make_actor()
    with contextlib.closing(collectors_of(**experiment, scheme=scheme)) as group:
        one, two = (group.pull(weights_of(actor))[0] for _ in range(2))
    assert one.first[:5, 0].tolist() == [1, 0, 0, 1, 0]
    assert two.first[:5, 0].tolist() == [0, 1, 0, 0, 1]
    assert one.behaviour["value"].T.tolist() == [[1, 2, 3, 1, 2], [1, 2, 3, 4, 1]]
    assert two.behaviour["value"].T.tolist() == [[3, 1, 2, 3, 1], [2, 3, 4, 1, 2]]
    assert two.memory.state.tolist() == [2, 1]
    for rollout in (one, two):
        batch, out = seen_by_learner(rollout, parts)
        assert not batch.memory.state.requires_grad
        torch.testing.assert_close(out.value[:-1], batch.behaviour["value"])


# --- which weights ---


@pytest.mark.parametrize("ahead", [1, 2])
def test_weights_change_between_rollouts_only(ahead):
    """The learner overwrites its parameter while threads collect: every rollout is of one version, the one it names."""
    parts, _ = parts_of(envs=counting(4, n=50))
    actor, known = parts.make_actor(), {}
    scheme = {"collection": {"place": "thread", "workers": 2, "ahead": ahead}}
    with contextlib.closing(collectors_of(envs=counting(4, n=50), scheme=scheme, horizon=10)) as group:
        for version in range(8):
            with torch.no_grad():
                actor.b.fill_(version / 4)
            known[version] = actor.policy((1,)).log_probs[0].tolist()
            for rollout in group.pull(weights_of(actor, version)):
                expected = np.array(known[rollout.version], np.float32)[rollout.action]
                np.testing.assert_allclose(rollout.behaviour["log_prob"], expected, atol=1e-6)
                assert rollout.version == max(0, version - ahead)


def test_a_parameter_changed_in_mid_rollout_is_seen_in_the_next():
    parts, _ = parts_of(envs=counting(n=50), horizon=10)
    actor = parts.make_actor()

    class Changing(Count):
        def outcome(self, action):
            if self.t == 5:
                with torch.no_grad():
                    actor.b.fill_(20)
            return super().outcome(action)

    parts, _ = parts_of(envs={"name": "gym", "id": lambda: Changing(50), "count": 1}, horizon=10)
    with contextlib.closing(parts.collector(0)) as collector:
        one = collector.collect(weights_of(actor, 0))
        two = collector.collect(weights_of(actor, 1))
    np.testing.assert_allclose(one.behaviour["log_prob"], -0.693147, atol=1e-6)
    assert (two.action == 1).all()
    np.testing.assert_allclose(two.behaviour["log_prob"], 0, atol=1e-6)
    assert (one.version, two.version) == (0, 1)


@pytest.fixture(scope="module")
def reporting(_cluster):
    """Three collectors on Ray, two envs each, that report of their processes."""
    envs = {"name": "gym", "id": "tests.scheme.tiny:Reporter", "count": 6}
    group = collectors_of(envs=envs, horizon=20, scheme={"collection": {"place": "ray", "workers": 3}})
    yield group
    group.close()


def at_b(b, version):
    parts, _ = parts_of(envs=counting())
    actor = parts.make_actor()
    with torch.no_grad():
        actor.b.fill_(b)
    return weights_of(actor, version)


def test_every_ray_worker_gets_the_new_weights(reporting):
    before = reporting.pull(at_b(0, 0))
    assert {int(action) for rollout in before for action in rollout.action.ravel()} == {0, 1}
    after = reporting.pull(at_b(20, 1))
    assert len(after) == 3
    for rollout in after:
        assert (rollout.action == 1).all()
        assert rollout.version == 1


def test_each_ray_worker_has_one_torch_thread(reporting):
    assert {threads for rollout in reporting.pull(at_b(0, 2)) for threads in rollout.obs[..., 0].ravel().tolist()} == {1.0}


def test_open_files_do_not_grow_with_the_rollouts_that_are_kept(reporting):
    kept, here, there = [], {}, {}
    for pulls in range(1, 68):
        kept += reporting.pull(at_b(0, 2 + pulls))
        here[3 * pulls] = len(os.listdir("/proc/self/fd"))
        there[3 * pulls] = [rollout.obs[-1, 0, 1] for rollout in kept[-3:]]
    assert len(kept) == 201
    assert abs(here[201] - here[51]) <= 10
    assert all(abs(a - b) <= 10 for a, b in zip(there[201], there[51], strict=True))


# --- seeds ---


def first_draws(place, seed):
    """The first two draws of 3 x 2 environments: [2, 6]."""
    envs = {"name": "gym", "id": "modrl/SeedEcho-v0", "count": 6}
    with contextlib.closing(collectors_of(envs=envs, horizon=2, seed=seed, scheme={"collection": {"place": place, "workers": 3}})) as group:
        rollouts = group.pull(at_b(0, 0))
    return np.concatenate([rollout.obs[[0, 2]] for rollout in rollouts], 1)


def test_parallel_environments_draw_different_numbers_and_the_same_ones_in_every_home(cluster):
    draws = {seed: first_draws("here", seed) for seed in (0, 1)}
    for seed in (0, 1):
        assert len(set(draws[seed].ravel().tolist())) == 12  # six envs; and a second episode is another one
        np.testing.assert_array_equal(first_draws("here", seed), draws[seed])
        np.testing.assert_array_equal(first_draws("thread", seed), draws[seed])
    np.testing.assert_array_equal(first_draws("ray", 0), draws[0])
    assert not set(draws[0].ravel().tolist()) & set(draws[1].ravel().tolist())


def test_evaluation_has_seeds_of_its_own():
    envs = {"name": "gym", "id": "modrl/SeedEcho-v0", "count": 6}
    drawn = set(first_draws("here", 0).ravel().tolist())
    for seed in (0, 1):
        parts, _ = parts_of(envs=envs, seed=seed)
        evaluation = parts.envs.build(numbers=range(6), seeds=episode_seeds(seed, 6), training=False)
        own = evaluation.reset().obs.tolist()
        evaluation.close()
        assert len(set(own)) == 6
        assert not drawn & set(own)


def test_how_envs_are_dealt_out_does_not_change_their_seeds():
    parts, scheme = parts_of(envs={"name": "gym", "id": "modrl/SeedEcho-v0", "count": 6}, scheme={"collection": {"workers": 2}})
    with contextlib.closing(start_collection(Site(scheme, parts), 0)) as group:
        two = np.concatenate([rollout.obs[0] for rollout in group.pull(at_b(0, 0))])
    np.testing.assert_array_equal(two, first_draws("here", 1)[0])


# --- what users give ---


def known_only_here():
    """An id that only this process knows, made by a lambda over a local variable."""
    steps = 3

    class Mine(Count):
        pass

    gymnasium.registry.pop("OnlyHere-v0", None)
    gymnasium.register("OnlyHere-v0", lambda: Mine(steps))
    return "OnlyHere-v0"


def nested():
    steps = 3

    def make():
        return Count(steps)

    return make


def over_a_local_variable():
    steps = 3
    return lambda: Count(steps)


GIVEN = {"id": known_only_here, "lambda": over_a_local_variable, "nested": nested, "partial": lambda: partial(Count, 3), "children": lambda: Starter}


@pytest.mark.parametrize(
    ("place", "given"),
    [*(("thread", given) for given in GIVEN), *(pytest.param("ray", given, marks=pytest.mark.slow) for given in ("lambda", "nested", "partial")), ("ray", "id"), ("ray", "children")],
)  # fmt: skip
def test_what_makes_an_env_travels_to_any_place(place, given, request):
    if place == "ray":
        request.getfixturevalue("cluster")
    envs = {"name": "gym", "id": GIVEN[given](), "count": 2}
    with contextlib.closing(collectors_of(envs=envs, horizon=3, scheme={"collection": {"place": place}})) as group:
        [rollout] = group.pull(at_b(0, 0))
    assert [(e.reward, e.length, e.env) for e in rollout.episodes] == [(6.0, 3, 0), (6.0, 3, 1)]
