"""The toy environments give what they say."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from modrl.envs.toy import TOYS
from tests.envs.helpers import episodes, gym_envs, run

HARMLESS = [toy for toy in TOYS if not toy.__name__.startswith(("Raise", "Hang", "NaN", "Alias"))]


@pytest.mark.parametrize("toy", HARMLESS)
@pytest.mark.filterwarnings("ignore")
def test_each_keeps_to_gymnasiums_interface(toy):
    check_env(gymnasium.make(f"modrl/{toy.__name__}-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("name", "kwargs", "action", "reward", "length"),
    [
        ("Count", {"n": 3}, 0, 6, 3),
        ("Count", {"n": 4, "end": "truncated"}, 0, 10, 4),
        ("Const", {"n": 5}, 0, 5, 5),
        ("Lives", {"k": 2, "m": 3}, 0, 6, 6),
        ("Bandit", {}, 1, 1, 1),
        ("Bandit", {}, 0, 0, 1),
        ("Corridor", {"length": 5}, 1, 1, 4),
        ("Corridor", {"length": 5, "limit": 9}, 0, 0, 9),
        ("SeedEcho", {}, 0, 0, 2),
    ],
)
def test_return_and_length_are_those_on_paper(name, kwargs, action, reward, length):
    found = episodes(run(gym_envs(f"modrl/{name}-v0", kwargs=kwargs), length, action))
    assert [(e.reward, e.length) for e in found] == [(reward, length)]


@pytest.mark.parametrize("length", [1, 3, 6])
def test_memory_pays_for_the_bit_that_was_shown(length):
    envs = gym_envs("modrl/Memory-v0", 4, kwargs={"length": length})
    shown = envs.reset().obs
    bits = (shown[:, 0] > 0).astype(int)
    for _ in range(length - 1):
        asked = envs.step(bits).obs
    if length > 1:
        assert asked.tolist() == [[0, 1]] * 4
    last = envs.step(np.where([True, True, False, False], bits, 1 - bits))
    assert last.reward.tolist() == [1, 1, 0, 0]
    assert last.terminated.all()


def test_a_paddle_that_follows_the_ball_catches_it():
    envs = gym_envs("modrl/Catch-v0", 8)
    timestep = envs.reset()
    while not timestep.terminated.any():
        ball = timestep.obs[:, 0, :-1].any(1).argmax(1)
        paddle = timestep.obs[:, 0, -1].argmax(1)
        timestep = envs.step(np.sign(ball - paddle) + 1)
    assert [(e.reward, e.length) for e in timestep.episodes] == [(1.0, 15)] * 8
    assert timestep.obs.dtype == np.uint8


def test_nan_comes_at_the_call_asked_for():
    rewards = [t.reward[0] for t in run(gym_envs("modrl/NaNAt-v0", kwargs={"j": 3}), 4)[1:]]
    assert np.isnan(rewards).tolist() == [False, False, True, False]
