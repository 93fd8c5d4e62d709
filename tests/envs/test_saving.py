"""What `state` gives is plain data, and `restore` continues from it exactly."""

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import NormalizeReward

from modrl.envs.toy import TOYS, Count
from tests.envs.helpers import gym_envs

EXACT = [toy.__name__ for toy in TOYS if toy.__name__ not in ("RaiseAt", "RaiseAlways", "HangAt", "NaNAt")]


def actions(envs, seed, steps):
    generator = np.random.default_rng(seed)
    return generator.integers(envs.action_space.n, size=(steps, len(envs.numbers)))


def is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (int, float, bool, str, np.ndarray)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.filterwarnings("ignore:.*share an object")
def test_a_restored_env_continues_exactly(name, before):
    straight = gym_envs(f"modrl/{name}-v0", 2, max_episode_steps=7)
    straight.reset()
    for action in actions(straight, 1, before):
        straight.step(action)
    saved = straight.state()
    assert straight.exact
    assert is_plain(saved), saved
    restored = gym_envs(f"modrl/{name}-v0", 2, max_episode_steps=7, seeds=[1, 2])
    restored.restore(saved)
    for action in actions(straight, 2, 40):
        a, b = straight.step(action), restored.step(action)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_equal(x, y)


def test_a_time_limit_continues_too():
    envs = gym_envs("modrl/Count-v0", kwargs={"n": 99}, max_episode_steps=5)
    envs.reset()
    for _ in range(3):
        envs.step([0])
    saved = envs.state()
    envs.restore(saved)
    assert [bool(envs.step([0]).truncated[0]) for _ in range(3)] == [False, True, False]


def test_a_state_does_not_change_while_the_env_goes_on():
    envs = gym_envs("modrl/Count-v0", kwargs={"n": 9})
    envs.reset()
    saved = envs.state()
    envs.step([0])
    envs.restore(saved)
    assert envs.step([0]).obs.tolist() == [[1.0]]
    assert saved["lengths"].tolist() == [0]


class OwnCartPole(CartPoleEnv):
    """May carry more along than CartPole does."""


PIXELS = ["gymnasium.wrappers:AtariPreprocessing", {"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 4}]


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "CartPole-v1"}, {"id": "Pendulum-v1"}, {"id": "Acrobot-v1"}, {"id": "MountainCar-v0"}, {"id": "MountainCarContinuous-v0"},
        {"id": "FrozenLake-v1"}, {"id": "CliffWalking-v1"}, {"id": "CartPole-v1", "wrappers": PIXELS[1:]},
        {"id": "ALE/Pong-v5", "kwargs": {"frameskip": 1}, "wrappers": PIXELS},
        {"id": "ALE/Breakout-v5"}, {"id": "ALE/Pong-v5", "kwargs": {"frameskip": 1, "obs_type": "ram"}, "max_episode_steps": 40},
    ],
    ids=lambda settings: settings["id"],
)  # fmt: skip
@pytest.mark.parametrize("before", [0, 23])
@pytest.mark.filterwarnings("ignore")
def test_what_gymnasium_and_ale_have_is_restored_exactly(settings, before):
    """Through ends of episodes and random beginnings, in environments that have been elsewhere meanwhile; Breakout repeats actions at random."""

    def played(envs, seed, steps):
        envs.vector.action_space.seed(seed)
        return [envs.step(envs.vector.action_space.sample()) for _ in range(steps)]

    straight, other = gym_envs(count=2, **settings), gym_envs(count=2, seeds=[5, 6], **settings)
    straight.reset()
    other.reset()
    played(straight, 1, before)
    played(other, 2, 11)
    saved = straight.state()
    assert straight.exact
    assert is_plain(saved), saved
    other.restore(saved)
    for a, b in zip(played(straight, 3, 60), played(other, 3, 60), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_equal(x, y)


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "CartPole-v1", "wrappers": [lambda env: NormalizeReward(env)]},
        {"id": Count, "vectorization": "async"},
        {"id": "tests.envs.test_saving:OwnCartPole"},
    ],
)
def test_what_cannot_be_saved_says_so(settings):
    envs = gym_envs(**settings)
    assert not envs.exact
    with pytest.raises(NotImplementedError, match="Gym cannot be saved"):
        envs.state()
    with pytest.raises(NotImplementedError, match="Gym cannot be restored"):
        envs.restore({})
    envs.close()


def test_another_number_of_envs_is_refused():
    saved = gym_envs(Count, 2)
    saved.reset()
    with pytest.raises(ValueError, match="expected the state of 1 envs, got that of 2"):
        gym_envs(Count, 1).restore(saved.state())
