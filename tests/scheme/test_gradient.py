"""Gradient workers and the updater: shards combine to the whole, filler does not count, nothing is kept for longer than needed."""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from modrl.agent.algorithms import A2C, IMPALA
from modrl.agent.storages import Fresh
from modrl.config import resolve
from modrl.messages import Gradient
from modrl.scheme.compute import Compute
from modrl.scheme.gradient import GradientWorker
from modrl.scheme.start import Site, start_collection
from modrl.scheme.update import Updater
from modrl.tree import leaves
from tests.agent.toys import Linear, random_rollout
from tests.runs import small, state_of, table, trained
from tests.scheme.tiny import SPACES, Bias, counting, parts_of

SGD = {"name": "torch.optim:SGD", "lr": 1.0}


class Given:
    """Stands for a group of collectors: hands out the rollouts it was given."""

    def __init__(self, *rollouts):
        self.rollouts = list(rollouts)

    def pull(self, weights, wait=True):
        return [self.rollouts.pop(0)]

    def counts(self):
        return Counter()

    def seconds(self):
        return {}

    def laps(self):
        return ()

    def events(self):
        return ()


def columns(rollout, index):
    """The rollout's columns with these numbers."""
    kept = np.isin(np.nonzero(rollout.truncated)[1], index)
    return rollout._replace(
        **{name: getattr(rollout, name)[:, index] for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid")},
        final_obs=rollout.final_obs[kept] if kept.any() else None,
        memory=type(rollout.memory)((), rollout.memory.last_action[index], rollout.memory.last_reward[index]),
        behaviour={name: value[:, index] for name, value in rollout.behaviour.items()},
    )


def worker(config, rollout):
    return GradientWorker(
        algorithm=config.build(actor=Linear(seed=3), generator=torch.Generator()), collection=Given(rollout), steps_per_round=1, compute=Compute(),
        storage=Fresh.Config(horizon=len(rollout.reward), batch=rollout.reward.shape[1]).build(batch=rollout.reward.shape[1], generator=torch.Generator()),
    )  # fmt: skip


def updater(config, optimizer=SGD, actor=None):
    records = []
    algorithm = config.build(actor=actor or Linear(seed=3))
    made = Updater(algorithm=algorithm, optimizer=resolve("optimizer", optimizer), steps=1000, record=lambda *said: records.append(said))
    made.records = records
    return made


# --- combining ---


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", [IMPALA, A2C])
def test_workers_on_shards_are_one_worker_on_the_whole(algorithm, reduction, max_grad_norm):
    """With filler and ends of both kinds inside, and shards of different weight."""
    config = algorithm.Config(reduction=reduction, reward="none")
    rollout = random_rollout(7, 6, seed=5)
    optimizer = SGD | ({"max_grad_norm": max_grad_norm} if max_grad_norm else {})
    results = {}
    for shards in ([range(6)], [range(3), range(3, 6)], [[0], [1, 2], [3, 4, 5]]):
        up = updater(config, optimizer)
        gradients = [worker(config, columns(rollout, list(shard))).gradient(up.weights()) for shard in shards]
        weights = up.apply(gradients)
        results[len(shards)] = weights.acting
        assert up.env_steps == int(rollout.valid.sum()) == sum(gradient.weight for gradient in gradients) < 42
        assert up.version == 1
    start = Linear(seed=3).state_dict()
    assert any((results[1][name] - start[name]).abs().max() > 1e-3 for name in start)
    for shards in (2, 3):
        for name, value in results[1].items():
            torch.testing.assert_close(results[shards][name], value, rtol=0, atol=1e-6)
            assert value.dtype is torch.float64


def gradient(tensor, weight):
    return Gradient({"main": [torch.tensor(tensor)]}, weight, 0, weight, True, (), (0,), {}, {})


def with_b(value):
    """An actor whose only parameter is b."""
    actor = Bias(Bias.Config(), observation_space=SPACES["vector"], action_space=SPACES["discrete"])
    actor.b = torch.nn.Parameter(torch.tensor(value))
    return actor


@pytest.mark.parametrize(("reduction", "step"), [("mean", 1.0), ("sum", 4.0)])
def test_a_mean_weighs_workers_by_their_samples(reduction, step):
    """Mean gradients 4 of one sample and 0 of three."""
    up = updater(A2C.Config(reduction=reduction), actor=with_b(0.0))
    up.apply([gradient(4.0 * 1, 1), gradient(0.0 * 3, 3)])
    assert up.algorithm.actor.b.item() == -step


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_combined_gradient_is_clipped_once(reduction):
    up = updater(A2C.Config(reduction=reduction), SGD | {"max_grad_norm": 1.0}, actor=with_b([0.0, 0.0]))
    up.apply([gradient([3.0, 0.0], 2), gradient([0.0, 4.0], 2)])
    torch.testing.assert_close(up.algorithm.actor.b.detach(), torch.tensor([-0.6, -0.8]), atol=1e-5, rtol=0)


def test_a_gradient_that_is_not_finite_is_not_applied():
    up = updater(A2C.Config(), actor=with_b(0.0))
    with pytest.raises(FloatingPointError):
        up.apply([gradient(float("nan"), 1)])
    assert up.algorithm.actor.b.item() == 0
    assert (up.version, up.env_steps) == (0, 0)


def test_frozen_parameters_are_left_alone():
    """Weight decay, and momentum of before, would move them too; a frozen number need not even be a floating one."""
    actor = with_b(1.0)
    actor.fixed, actor.count = torch.nn.Parameter(torch.ones(3), requires_grad=False), torch.nn.Parameter(torch.tensor(7), requires_grad=False)
    up = updater(A2C.Config(), {"name": "adam", "lr": 0.1, "weight_decay": 0.5}, actor=actor)
    up.apply([gradient(1.0, 1)])
    assert actor.b.item() < 1
    assert (actor.fixed.tolist(), actor.count.item()) == ([1.0] * 3, 7)


def test_empty_losses_are_counted_but_not_stepped():
    up = updater(A2C.Config(), actor=with_b(0.0))
    up.apply([gradient(0.0, 0)])
    assert (up.version, up.updates, up.env_steps) == (1, 0, 0)


def test_gradient_lag_is_the_versions_between_computing_and_applying():
    up = updater(A2C.Config(reduction="sum"), actor=with_b(0.0))
    for _ in range(3):
        up.apply([gradient(1.0, 1)])
    assert [lags for _, lags, _ in up.records] == [[0], [1], [2]]


def test_a_snapshot_does_not_change_with_later_steps():
    up = updater(A2C.Config(reduction="sum"), actor=with_b(0.0))
    before = up.weights()
    after = up.apply([gradient(1.0, 1)])
    assert (before.acting["b"].item(), after.acting["b"].item()) == (0.0, -1.0)
    assert (before.version, after.version) == (0, 1)


@pytest.mark.parametrize("algorithm", [IMPALA, A2C])
def test_a_workers_gradient_holds_nothing_of_its_last_one(algorithm):
    rollout = random_rollout(7, 3, seed=5)
    made, up = worker(algorithm.Config(), rollout), updater(algorithm.Config())
    made.collection.rollouts.append(rollout)
    one, two = (made.gradient(up.weights()).tensors["main"] for _ in range(2))
    for first, second in zip(one, two, strict=True):
        torch.testing.assert_close(first, second)
        assert first.data_ptr() != second.data_ptr()


# --- what is counted ---


def one_gradient(**experiment):
    parts, scheme = parts_of(**experiment)
    with contextlib.closing(parts.gradient_worker(0, partial(start_collection, Site(scheme, parts), 0))) as made:
        up = Updater(algorithm=parts.make_algorithm(), optimizer=resolve("optimizer", SGD), steps=1000, record=lambda *_: None)
        found = made.gradient(up.weights())
        up.apply([found])
    return found, up, made


@pytest.mark.parametrize(
    ("envs", "steps", "episodes"),
    [
        (counting(n=3), 6, 2),
        (counting(2, n=[3, 5]), 13, 3),
        (counting(n=3, mode="same_step"), 8, 2),
        (counting(n=3, mode="disabled"), 8, 2),
    ],
    ids=["one", "two lengths", "same step", "disabled"],
)
def test_filler_is_neither_counted_nor_weighed(envs, steps, episodes):
    found, up, _ = one_gradient(envs=envs, horizon=8)
    assert (found.env_steps, found.weight, up.env_steps) == (steps, steps, steps)
    assert len(found.episodes) == episodes


def test_a_run_counts_valid_steps_alone(tmp_path):
    experiment = small(envs=counting(4, n=3), storage={"name": "fresh", "horizon": 8, "batch": 4}, steps=240)
    trained(experiment, tmp_path / "run")
    rows = table(tmp_path / "run")
    assert [row["env_steps"] for row in rows[:4]] == [24, 48, 72, 96]  # 6 of each 8 slots: every fourth only resets
    assert rows[-1]["env_steps"] == 240
    assert {(row["episode_return"], row["episode_length"]) for row in rows} == {(6, 3)}
    assert rows[-1]["episodes"] == 80


def test_cartpoles_own_vector_version_is_counted_without_its_resets(tmp_path):
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8, "vectorization": "vector_entry_point"}
    result = small(envs=envs, storage={"name": "fresh", "horizon": 20, "batch": 8}, steps=4000).run(tmp_path / "run")
    rows = table(tmp_path / "run")
    slots = rows[-1]["updates"] * 160
    resets = slots - result.env_steps
    assert result.metrics["episodes"] - 8 <= resets <= result.metrics["episodes"]
    assert resets > 50


@pytest.mark.parametrize(("form", "seen"), [("clip", (1 + 0.09 + 1) / 6), ("sign", 0.5), ("none", (25 + 0.09 + 40_000) / 6)])
def test_the_reward_is_transformed_for_the_learner_and_logged_raw(form, seen, tmp_path):
    """V is 0 and nothing is discounted in: the values' loss is half the mean square of what the learner sees."""
    experiment = small(
        envs={"name": "gym", "id": "tests.envs.helpers:Rewards", "count": 2}, actor={"name": "tests.scheme.tiny:Bias"},
        algorithm={"name": "a2c", "discount": 0, "value_cost": 1, "reward": form}, storage={"name": "fresh", "horizon": 3, "batch": 2}, steps=6,
    )  # fmt: skip
    row = experiment.run(tmp_path / "run").metrics
    assert row["loss/value"] == pytest.approx(seen, rel=1e-5)
    assert row["episode_return"] == pytest.approx(195.3)


def test_replayed_columns_are_learned_from_but_not_counted(tmp_path):
    experiment = small(storage={"name": "replay", "horizon": 5, "batch": 16}, steps=400)
    state = trained(experiment, tmp_path / "run")
    rows = table(tmp_path / "run")
    assert [row["env_steps"] for row in rows] == [40 * i for i in range(1, 11)]
    assert state["updater"]["version"] == 10
    assert max(row["policy_lag_max"] for row in rows) == 0  # taken when a column is learned from for the first time


def test_a_schedule_reaches_the_algorithm_in_a_run(tmp_path):
    """The policy stays uniform where nothing is learned, so the entropy's loss is its cost times log 2."""
    experiment = small(
        envs=counting(8), actor={"name": "tests.scheme.tiny:Bias"}, optimizer={"name": "torch.optim:SGD", "lr": 1e-12},
        algorithm={"name": "impala", "entropy_cost": {"linear": [0.1, 0]}}, storage={"name": "fresh", "horizon": 4, "batch": 8}, steps=240,
    )  # fmt: skip
    experiment.run(tmp_path / "run")
    rows = table(tmp_path / "run")
    assert rows[-1]["env_steps"] == 240
    costs = [-row["loss/entropy"] / np.log(2) for row in rows]
    assert costs == pytest.approx([0.1 * (1 - before / 240) for before in [0, *(row["env_steps"] for row in rows[:-1])]], rel=1e-4)


# --- what is kept ---


def test_nothing_that_is_kept_carries_a_graph():
    actor = {"name": "actor_critic", "torso": "mlp", "memory": {"name": "lstm", "size": 8}, "last_action": True, "last_reward": True}
    experiment = {"envs": {"name": "gym", "id": "modrl/Catch-v0", "count": 4}, "actor": actor}
    parts, scheme = parts_of(**experiment)
    with contextlib.closing(parts.gradient_worker(0, partial(start_collection, Site(scheme, parts), 0))) as made:
        up = Updater(algorithm=parts.make_algorithm(), optimizer=resolve("optimizer", SGD), steps=1000, record=lambda *_: None)
        weights = up.weights()
        for _ in range(3):
            found = made.gradient(weights)
            weights = up.apply([found])
        collector = made.collection.group.workers[0].worker
        kept = [found.tensors, weights, collector.lanes[0].memory, made.storage.state(True), up.state()["optimizers"]]
    tensors = [leaf for leaf in leaves(kept) if isinstance(leaf, torch.Tensor)]
    assert len(tensors) > 20
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in tensors)


# --- precision ---


@pytest.mark.parametrize("memory", [None, {"name": "lstm", "size": 8}])
def test_bf16_gives_the_learner_the_collectors_probabilities(memory, tmp_path):
    """The ratio is that of two bf16 passes over the same numbers, whatever their batch: it stays 1 to bf16's precision."""
    actor = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [64, 64]}, "memory": memory}
    experiment = small(machine={"precision": "bf16", "threads": 1}, actor=actor, optimizer={"name": "adam", "lr": 1e-3})
    state = trained(experiment, tmp_path / "run")
    assert all(value.dtype is torch.float32 and value.isfinite().all() for value in state["updater"]["acting"].values())
    for row in table(tmp_path / "run"):
        assert row["rho"] == pytest.approx(1, abs=2e-3)
        assert row["kl"] < 1e-4


def test_bf16_is_what_it_says(tmp_path):
    one, other = (trained(small(machine={"precision": p, "threads": 1}), tmp_path / p)["updater"]["acting"] for p in ("fp32", "bf16"))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_environments_compute_as_they_would_without_us(tmp_path):
    """Their rewards say whether autocast is on while they step."""
    experiment = small(envs={"name": "gym", "id": "tests.scheme.tiny:Autocast", "count": 8}, machine={"precision": "bf16", "threads": 1})
    assert experiment.run(tmp_path / "run").metrics["episode_return"] == 0


def test_the_callers_torch_threads_are_restored(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        inside = [torch.get_num_threads() for _ in small(steps=80).stream(tmp_path / "run")]
        assert set(inside) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert state_of(tmp_path / "run")["updater"]["version"] == 2
