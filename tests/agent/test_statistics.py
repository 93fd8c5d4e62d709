"""Running statistics: what workers measure adds up, and PopArt's outputs stay when its statistics change."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from modrl.agent.actors import ActorCritic
from modrl.agent.actors.normalizer import Normalizer
from modrl.agent.algorithms import IMPALA, PPO
from modrl.agent.algorithms.minibatches import without_bootstrap
from modrl.agent.batch import from_rollout
from modrl.agent.statistics import PopArt, Running, statistics_of, sums_over
from modrl.config import BadInput
from modrl.scheme.stages import add
from modrl.tree import tree_map
from tests.agent.toys import ACTIONS, OBS, random_rollout


def drawn(seed=0, steps=6, columns=5, shape=(3,), scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(size=(steps, columns, *shape)) * scale + shift, dtype=torch.float32)
    return x, torch.tensor(rng.random((steps, columns)) < 0.7)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-3, 1e3), (1e4, -50.0)])
def test_what_workers_measure_adds_up_to_mean_and_deviation_of_all_steps_at_once(shape, scale, shift):
    parts = [drawn(seed, columns=seed + 1, shape=shape, scale=scale, shift=shift) for seed in range(4)]
    one, other = Running(shape), Running(shape)
    for x, valid in parts:
        one.merge(sums_over(x, valid))
    measured = add(*[{"x": sums_over(x, valid)} for x, valid in reversed(parts)])
    other.merge(measured["x"])
    kept = np.concatenate([x.numpy().astype(np.float64)[valid.numpy()] for x, valid in parts])
    np.testing.assert_allclose(one.mean, kept.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.std, kept.std(0), rtol=1e-2 if shift > 100 * scale else 1e-5)
    assert one.seen[0] == len(kept)
    torch.testing.assert_close(one.seen, other.seen, rtol=1e-12, atol=0)


def test_before_anything_is_measured_nothing_changes_but_for_the_bounds():
    running = Running((3,))
    x, valid = drawn()
    torch.testing.assert_close(running(x), x)
    running.merge(sums_over(x, torch.zeros_like(valid)))
    torch.testing.assert_close(running(x), x)
    assert running(torch.full((3,), 1e6)).tolist() == [10.0] * 3


def test_what_was_measured_is_centred_and_scaled_and_a_reward_only_scaled():
    running = Running((3,))
    x, valid = drawn(steps=40, scale=20, shift=5)
    running.merge(sums_over(x, valid))
    seen = running(x)[valid]
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(0, correction=0), 1, atol=1e-5)
    np.testing.assert_allclose(running.scaled(x), (x / running.std).clamp(-10, 10))


def test_what_never_changes_becomes_zero():
    running = Running((2,))
    x = torch.full((4, 3, 2), 7.0)
    running.merge(sums_over(x, torch.ones(4, 3, dtype=torch.bool)))
    assert running(x).abs().max() < 1e-3
    assert running(x + 1).tolist() == [[[10.0] * 2] * 3] * 4


# --- observations ---


def test_only_boxes_of_floats_are_normalized_wherever_they_stand():
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (3, 8, 8), np.uint8), number=spaces.Discrete(3),
        inner=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2)]), speed=spaces.Box(-9, 9, (), np.float64),
    )  # fmt: skip
    normalizer = Normalizer(space)
    rng = np.random.default_rng(0)
    obs = {
        "camera": torch.tensor(rng.integers(0, 255, (5, 4, 3, 8, 8)), dtype=torch.uint8), "number": torch.zeros(5, 4, dtype=torch.int64),
        "inner": (torch.tensor(rng.normal(3, 2, (5, 4, 2)), dtype=torch.float32), torch.zeros(5, 4, 2)),
        "speed": torch.tensor(rng.normal(-5, 3, (5, 4)), dtype=torch.float32),
    }  # fmt: skip
    valid = torch.ones(4, 4, dtype=torch.bool)
    measured = normalizer.measure(obs, valid)
    assert set(measured) == {"parts.0", "parts.1"}
    for name, sums in measured.items():
        normalizer.get_submodule(name).merge(sums)
    seen = normalizer(obs)
    assert seen["camera"] is obs["camera"]
    assert seen["number"] is obs["number"]
    assert seen["inner"][1] is obs["inner"][1]
    for raw, normal in ((obs["inner"][0], seen["inner"][0]), (obs["speed"], seen["speed"])):
        kept = raw[:4].flatten(0, 1)  # the bootstrap observation is measured when it is acted on
        torch.testing.assert_close(normal, (raw - kept.mean(0)) / kept.std(0, correction=0), rtol=1e-4, atol=1e-4)


def test_an_observation_without_floats_is_refused():
    with pytest.raises(BadInput, match="normalize_observations: has no effect: no part of the observation is a Box of floats"):
        actor_of(normalize_observations=True, space=spaces.Box(0, 255, (3, 8, 8), np.uint8))


def actor_of(space=None, **settings):
    config = ActorCritic.Config(torso={"name": "mlp", "hidden": [8]}, **settings)
    return config.build(observation_space=space or gymnasium.spaces.Box(-9, 9, (OBS,)), action_space=gymnasium.spaces.Discrete(ACTIONS))


# --- PopArt ---


def targets(seed, count=64, scale=300.0, shift=1000.0):
    x = torch.tensor(np.random.default_rng(seed).normal(shift, scale, (count, 1)), dtype=torch.float32)
    return x, torch.ones(count, 1, dtype=torch.bool)


def test_outputs_stay_when_the_statistics_change():
    torch.manual_seed(0)
    value, features = PopArt(8, step=0.1), torch.randn(20, 8)
    for seed in range(5):
        before = value(features)
        value.merge(sums_over(*targets(seed, shift=100.0 * seed)))
        after = value(features)
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-3)
    assert value.std > 100


def test_moving_averages_are_those_of_the_papers_corrected_for_their_beginning():
    value, mean, square, mass = PopArt(4, step=0.3), 0.0, 0.0, 0.0
    for seed in range(6):
        x, valid = targets(seed)
        value.merge(sums_over(x, valid))
        numbers = x.numpy().astype(np.float64)
        mean, square, mass = (0.7 * a + 0.3 * b for a, b in ((mean, numbers.mean()), (square, (numbers**2).mean()), (mass, 1.0)))
        assert value.mean.item() == pytest.approx(mean / mass, rel=1e-6)
        assert value.std.item() == pytest.approx(np.sqrt(square / mass - (mean / mass) ** 2), rel=1e-5)
    before = value.state_dict()
    value.merge(value.zero())  # of no steps
    assert all(torch.equal(before[name], x) for name, x in value.state_dict().items())


def test_the_deviation_is_bounded():
    value = PopArt(4, step=0.5)
    value.merge(sums_over(torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool)))
    assert value.std.item() == pytest.approx(1e-4)
    value.merge(sums_over(*targets(0, scale=1e9)))
    assert value.std.item() == pytest.approx(1e6)


def batch_of(seed=0):
    return tree_map(lambda x: x.float() if x.is_floating_point() else x, from_rollout(random_rollout(5, 4, seed)))


@pytest.mark.parametrize("algorithm", [IMPALA, PPO])
def test_values_are_learned_as_if_their_targets_were_normalized_and_so_are_advantages(algorithm):
    """Against the same loss in normalised units: n = w x + b drawn to (G - mean) / std."""
    torch.manual_seed(1)
    actor = actor_of(popart=0.01)
    made = algorithm.Config(reward="none", **({"normalize_advantages": False} if algorithm is PPO else {})).build(actor=actor)
    actor.value.merge(sums_over(*targets(0)))
    batch = batch_of()
    if algorithm is PPO:
        batch = without_bootstrap(made.with_targets(batch))
    out = actor(batch)
    advantages, returns = made.targets(batch, out)
    loss = made.loss(batch)
    torch.testing.assert_close(loss.statistics["actor.value"], sums_over(returns, batch.valid))
    said = actor.value.linear(actor._say(batch.obs, batch.first, None, batch.memory.state, None).features)[..., 0][: len(returns)]
    expected = 0.5 * ((returns - actor.value.mean) / actor.value.std - said).square() * made.config.value_cost
    value = loss.terms["value"]
    torch.testing.assert_close(value[: len(returns)], expected, rtol=1e-4, atol=1e-4)
    weight = actor.value.linear.weight
    one, other = (torch.autograd.grad(term[batch.valid].sum(), weight, retain_graph=True)[0] for term in (value[: len(returns)], expected))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    policy = made.policy_loss(batch, out, advantages / actor.value.std)
    torch.testing.assert_close(loss.terms["policy"], policy)


def test_statistics_are_found_by_name_in_actor_and_algorithm():
    made = IMPALA.Config(reward="normalized").build(actor=actor_of(popart=0.01, normalize_observations=True))
    assert {name: type(part) for name, part in statistics_of(made.actor, made.modules()).items()} == {
        "actor.value": PopArt, "actor.normalizer.parts.0": Running, "returns": Running,
    }  # fmt: skip
    plain = IMPALA.Config(reward="none").build(actor=actor_of())
    assert statistics_of(plain.actor, plain.modules()) == {}
    assert isinstance(plain.actor.value, nn.Linear)
