"""Action spaces: what is stored, what the environment gets, and which spaces are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from modrl.agent.actors import ActorCritic
from modrl.agent.actors.heads import LogStd, build_head
from modrl.config import ConfigError
from tests.agent.actors.playing import vector

BOX = spaces.Box(-1, 1, (1,), np.float32)


def test_a_clipped_action_is_stored_as_it_was_sampled():
    head = build_head(BOX)
    policy, sample = head(torch.zeros(1, 1)), torch.tensor([[3.0]])
    assert head.to_env(sample).tolist() == [[1.0]]
    torch.testing.assert_close(policy.log_prob(sample), torch.tensor([-5.418939]))
    again = head(torch.zeros(1, 1)).log_prob(sample)
    assert (again - policy.log_prob(sample)).exp().item() == 1
    assert policy.sample(torch.Generator().manual_seed(0)).shape == (1, 1)


def test_one_env_one_step_and_one_action_keep_their_axes():
    actor = ActorCritic.Config().build(observation_space=vector(), action_space=BOX)
    step = actor.act(torch.zeros(1, 4), torch.ones(1, dtype=torch.bool), actor.initial_memory(1), torch.Generator().manual_seed(0))
    assert step.action.shape == (1, 1)
    assert actor.to_env(step.action).shape == (1, 1)
    assert actor.to_env(step.action)[0].shape == (1,)
    assert step.behaviour["log_prob"].shape == step.behaviour["value"].shape == (1,)


def test_a_discrete_start_is_the_environments_affair():
    head = build_head(spaces.Discrete(3, start=5))
    sent = head.to_env(torch.tensor([0, 2]))
    assert sent.tolist() == [5, 7]
    assert sent.dtype == np.int64
    assert head.encode(torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_multi_discrete_parts_have_their_own_starts():
    head = build_head(spaces.MultiDiscrete([2, 3], start=[1, -4]))
    assert head.to_env(torch.tensor([[1, 2]])).tolist() == [[2, -2]]
    assert head.encode(torch.tensor([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]


def test_squashed_actions_fill_the_bounds():
    head = build_head(spaces.Box(np.array([-2, 0], np.float32), np.array([4, 1], np.float32)), "squashed")
    sent = head.to_env(torch.tensor([[0.0, 0.0], [50.0, -50.0], [0.5, 0.5]]))
    np.testing.assert_allclose(sent[:2], [[1, 0.5], [4, 0]], atol=1e-6)
    np.testing.assert_allclose(sent[2], [1 + 3 * np.tanh(0.5), 0.5 + 0.5 * np.tanh(0.5)], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_rounding_does_not_step_over_a_bound(distribution, dtype):
    space = spaces.Box(0.0, 0.1, (1,), dtype)  # 0.1 is more in float32 than in float64
    sent = build_head(space, distribution).to_env(torch.full((1, 1), 0.1 if distribution == "gaussian" else 99.0))
    assert sent.dtype == dtype
    assert space.contains(sent[0])


def test_a_standard_deviation_keeps_its_limits():
    settings = LogStd(state_dependent=True, initial=-1, min=-2, max=0.5)
    policy = build_head(BOX, log_std=settings)(torch.tensor([[0.0, -9.0], [0.0, 0.0], [0.0, 9.0]]))
    assert policy.log_std.flatten().tolist() == [-2, -1, 0.5]


INTEGERS = spaces.Box(0, 5, (2,), np.int64)


@pytest.mark.parametrize(("space", "settings", "words"), [
    (spaces.Text(5), {}, "no actor takes actions of Text; supported are Discrete"),
    (spaces.Dict({"a": spaces.Sequence(BOX)}), {}, "no actor takes actions of Sequence"),
    (spaces.Dict({}), {}, "no actor takes actions of Dict"),
    (INTEGERS, {}, "only a Box of floats has a Gaussian; use Discrete or MultiDiscrete"),
    (spaces.Box(-np.inf, np.inf, (2,)), {"distribution": "squashed"}, "squashed needs finite bounds"),
    (spaces.Discrete(2), {"distribution": "squashed"}, r"squashed is for Box actions, but the action space is Discrete\(2\)"),
    (spaces.Discrete(2), {"log_std": {"initial": 0.0}}, "log_std is for Box actions"),
])  # fmt: skip
def test_what_cannot_be_acted_is_refused_by_name(space, settings, words):
    with pytest.raises(ValueError, match=words):
        ActorCritic.Config(**settings).build(observation_space=vector(), action_space=space)


def test_log_std_limits_must_hold_the_start():
    with pytest.raises((ValueError, ConfigError), match="initial must lie between min and max"):
        LogStd(initial=3)
