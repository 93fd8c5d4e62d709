"""Statistics of a whole run: the same under every scheme, of valid steps alone, saved, and left alone by evaluations."""

from __future__ import annotations

import contextlib
import json

import gymnasium
import numpy as np
import pytest
import torch

import modrl
from modrl.config import BadInput
from modrl.envs.toy import Toy
from modrl.messages import Rollout, Weights
from modrl.policy import play
from modrl.scheme.compute import State
from modrl.scheme.start import Site, start_collection
from tests.runs import assert_equal_weights, small, state_of, table, trained, weights_of
from tests.scheme.tiny import counting, parts_of

NORMAL = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}, "normalize_observations": True, "popart": 0.01}
NORMALIZED = {"actor": NORMAL, "algorithm": {"name": "impala", "reward": "normalized"}}
SCHEMES = {
    "two learners": {"gradient": {"workers": 2, "place": "thread"}},
    "replicas": {"gradient": {"workers": 2, "place": "thread"}, "update": "all_reduce"},
    "two collectors": {"collection": {"workers": 2, "place": "thread"}},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_synchronous_scheme_has_the_same_statistics(scheme, tmp_path):
    """Two collectors everywhere, for each draws its own actions."""
    one = trained(small(**NORMALIZED, scheme={"gradient": {"workers": 2, "place": "here"}}), tmp_path / "here")
    other = trained(small(**NORMALIZED, scheme=SCHEMES[scheme]), tmp_path / "other")
    assert_equal_weights(weights_of(one), weights_of(other), 1e-4)
    for state in (one, other):
        assert state["updater"]["acting"]["normalizer.parts.0.seen"][0] == state["updater"]["env_steps"] == 800
        assert state["updater"]["learning"]["returns"]["seen"][0] == 800


def test_only_valid_steps_are_measured(tmp_path):
    """Count with next-step resets: observations 0, 1, 2, and a filler slot that shows 3."""
    state = trained(small(envs=counting(8, n=3, mode="next_step"), actor=NORMAL, steps=400), tmp_path)
    seen = weights_of(state)["normalizer.parts.0.seen"]
    assert seen[0] == state["updater"]["env_steps"]
    assert seen[0] < state["updater"]["updates"] * 40  # else there was no filler
    assert seen[1] / seen[0] == pytest.approx(1, abs=0.05)
    assert weights_of(state)["normalizer.parts.0.std"] == pytest.approx(np.sqrt(2 / 3), abs=0.05)


def test_rewards_are_scaled_by_the_deviation_of_discounted_returns():
    """Rewards 1, 2, 3 of an episode of three steps, over and over."""
    parts, scheme = parts_of(envs=counting(2, n=3, mode="same_step"), algorithm={"name": "impala", "discount": 0.5, "reward": "normalized"})
    weights = Weights(0, 0.0, State(parts.make_actor()).copy(), {})
    with contextlib.closing(start_collection(Site(scheme, parts), 0)) as group:
        rollouts = [rollout for _ in range(2) for rollout in group.pull(weights)]
    found = np.concatenate([rollout.behaviour["discounted_return"] for rollout in rollouts])
    rewards = np.concatenate([rollout.reward for rollout in rollouts])
    first = np.concatenate([rollout.first[:-1] for rollout in rollouts])
    expected, running = [], np.zeros(2)
    for reward, begins in zip(rewards, first, strict=True):
        running = np.where(begins, 0, running) * 0.5 + reward
        expected.append(running)
    np.testing.assert_allclose(found, expected)
    assert first[1:].any()
    assert rewards.max() > 1


@pytest.mark.parametrize("changes", [{}, {"scheme": SCHEMES["replicas"]}])
def test_a_resumed_run_goes_on_with_its_statistics(changes, tmp_path):
    """From the middle of episodes that pay at each step."""
    rate = {
        "optimizer": {"name": "adam", "lr": {"linear": [1e-2, 1e-2]}},
        "envs": {"name": "gym", "id": "modrl/Count-v0", "count": 8, "kwargs": {"n": 7}},
    }
    straight = trained(small(**NORMALIZED, **rate, **changes), tmp_path / "straight")
    trained(small(**NORMALIZED, **rate, **changes, steps=400), tmp_path / "run")
    resumed = trained(small(**NORMALIZED, **rate, **changes), tmp_path / "run", resume=True)
    assert_equal_weights(weights_of(resumed), weights_of(straight), 1e-6)
    assert_equal_weights(resumed["updater"]["learning"]["returns"], straight["updater"]["learning"]["returns"], 1e-9)


def test_an_evaluation_and_a_loaded_policy_use_the_statistics_and_leave_them_alone(tmp_path):
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8}
    plain = trained(small(envs=envs, **NORMALIZED), tmp_path / "plain")
    watched = trained(small(envs=envs, **NORMALIZED, evaluation={"every": 80, "episodes": 3}), tmp_path / "watched")
    assert_equal_weights(weights_of(plain), weights_of(watched))
    played = play(tmp_path / "watched", 3)
    assert played.mean_return == pytest.approx(table(tmp_path / "watched")[-1]["eval_return"], rel=1e-6)
    policy, env, returns = modrl.load(tmp_path / "watched"), gymnasium.make("CartPole-v1"), []
    for seed in played.seeds:
        policy.reset()
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert returns == played.returns
    normalizer = policy.actor.normalizer.parts[0]
    assert normalizer.seen[0] == 800
    assert not torch.equal(normalizer.mean, torch.zeros(4))


def test_filler_leaves_the_return_of_an_episode_as_it_is():
    parts, _ = parts_of(envs=counting(1, n=99), algorithm={"name": "impala", "discount": 0.5, "reward": "normalized"})
    collector = parts.collector(0)
    shape = np.zeros((3, 1), np.float32)
    rollout = Rollout(None, np.array([[1], [0], [0], [0]], bool), None, shape + 2, None, None, np.array([[True], [False], [True]]), None, None, {}, 0)
    assert collector._discounted(rollout, 0.5).tolist() == [[2], [2], [3]]
    collector.close()


def test_all_losses_of_a_batch_see_the_same_statistics(tmp_path):
    """PPO's first pass over a batch finds the policy that acted: ratios of 1."""
    ppo = {"name": "ppo", "epochs": 2, "minibatches": 2, "reward": "none"}
    far = {"name": "gym", "id": "tests.test_normalizing:FarAway", "count": 8}
    settings = {"envs": far, "actor": NORMAL, "algorithm": ppo, "optimizer": {"name": "torch.optim:SGD", "lr": 0.0}}
    small(**settings, steps=120).run(tmp_path)
    assert table(tmp_path)[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert weights_of(state_of(tmp_path))["normalizer.parts.0.seen"][0] == 120


def test_what_is_given_up_is_not_measured(tmp_path):
    ppo = {"name": "ppo", "epochs": 4, "minibatches": 2, "reward": "none", "target_kl": 1e-12}
    state = trained(small(actor=NORMAL, algorithm=ppo, steps=40, optimizer={"name": "adam", "lr": 0.1}), tmp_path)
    moments = weights_of(state)["value.moments"]
    assert moments[0] == pytest.approx(1 - 0.99 ** state["updater"]["updates"])
    assert state["updater"]["updates"] < 8


def test_a_run_without_statistics_cannot_go_on_with_them(tmp_path):
    small(steps=80).run(tmp_path)
    with pytest.raises(BadInput, match="there is no state of returns"):
        small(algorithm={"name": "impala", "reward": "normalized"}).run(tmp_path, resume=True)


def test_rewards_cannot_begin_to_be_normalized_in_mid_run(tmp_path):
    with small().stream(tmp_path) as stream:
        next(stream)
        with pytest.raises(BadInput, match="cannot become or cease to be normalized in mid-run"):
            stream.change("algorithm.reward", "normalized")
        next(stream)
    assert "changes" not in json.loads((tmp_path / "run.json").read_text())


class FarAway(Toy):
    """Observations of 900 to 1100; five steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self):
        return self.np_random.uniform(900, 1100, 2).astype(np.float32)

    def outcome(self, action):
        return 1.0, self.t >= 5, False


class Offset(gymnasium.ObservationWrapper):
    """CartPole as a badly chosen unit of measure gives it."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation):
        return (1000 * observation + 3000).astype(np.float32)


class Dear(gymnasium.RewardWrapper):
    """Rewards of another currency."""

    def reward(self, reward):
        return 1000.0 * reward


def learned(tmp_path, wrapper, name, steps=60_000, **changes):
    """The mean return, in steps, of the last 100 episodes of CartPole."""
    settings = {
        "steps": steps, "envs": {"name": "gym", "id": "CartPole-v1", "count": 8, "wrappers": [f"tests.test_normalizing:{wrapper}"]},
        "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [64, 64]}, "init": "orthogonal"},
        "algorithm": {"name": "ppo", "epochs": 4, "minibatches": 4, "reward": "none"}, "optimizer": {"name": "adam", "lr": 1e-3, "max_grad_norm": 0.5},
        "storage": {"name": "fresh", "horizon": 64, "batch": 8},
    }  # fmt: skip
    settings = {key: {**value, **changes.get(key, {})} if isinstance(value, dict) else value for key, value in settings.items()}
    small(**settings).run(tmp_path / name)
    return table(tmp_path / name)[-1]["episode_length"]


@pytest.mark.slow
def test_observations_in_a_bad_unit_are_learned_from_with_normalization_and_not_without(tmp_path):
    assert learned(tmp_path, "Offset", "without", steps=100_000) < 60
    assert learned(tmp_path, "Offset", "with", steps=100_000, actor={"normalize_observations": True}) > 100


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"actor": {"popart": 0.01}}, {"algorithm": {"reward": "normalized"}}], ids=["popart", "rewards"])
def test_rewards_in_a_bad_unit_are_learned_from_with_popart_or_scaled_and_not_without(changes, tmp_path):
    assert learned(tmp_path, "Dear", "without") < 100
    assert learned(tmp_path, "Dear", "with", **changes) > 150
