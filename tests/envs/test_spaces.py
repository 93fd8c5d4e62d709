"""Observations come in few dtypes; spaces that no actor understands are refused by name."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

from modrl.envs.spaces import presented, require_supported
from tests.envs.helpers import gym_envs


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (Box(-1, 1, (2,), np.float32), np.float32),
        (Box(-1, 1, (2,), np.float64), np.float32),
        (Box(-np.inf, np.inf, (2,), np.float64), np.float32),
        (Box(-1e300, 1e300, (2,), np.float64), np.float32),
        (Box(0, 255, (4, 8, 8), np.uint8), np.uint8),
        (Box(-5, 5, (2,), np.int64), np.float32),
        (Box(0, 1, (2,), np.bool_), np.float32),
        (Discrete(5, start=-2), np.int64),
        (MultiDiscrete([2, 3]), np.int64),
        (MultiBinary(4), np.int8),
    ],
)
def test_each_space_has_one_dtype_for_the_actor(space, dtype):
    ours = presented(space)
    assert (ours.dtype, ours.shape) == (dtype, space.shape)


def test_nested_spaces_are_presented_leaf_by_leaf():
    space = presented(Dict(a=Box(-1, 1, (2,), np.float64), b=Tuple([Box(0, 255, (3,), np.uint8), Discrete(3)])))
    assert space == Dict(a=Box(-1, 1, (2,), np.float32), b=Tuple([Box(0, 255, (3,), np.uint8), Discrete(3)]))


@pytest.mark.parametrize("space", [Text(3), Graph(Box(0, 1, (1,)), Discrete(2)), Sequence(Discrete(2)), OneOf([Discrete(2), Discrete(3)])])
def test_other_spaces_are_refused_by_name_and_place(space):
    name = type(space).__name__
    with pytest.raises(ValueError, match=rf"^observation space: {name} is not supported, only Box"):
        presented(space)
    with pytest.raises(ValueError, match=rf"observation space\.b\.1: {name} is not supported"):
        presented(Dict(b=Tuple([Discrete(2), space])))
    with pytest.raises(ValueError, match=rf"action space\.b\.1: {name} is not supported"):
        require_supported(Dict(b=Tuple([Discrete(2), space])))


class Sampling(gymnasium.Env):
    """Observations and actions of any space, as sampled; both ends come at step 2."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = Discrete(2) if action_space is None else action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(3)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 2, {}


SPACES = [
    Box(-1, 1, (2, 3), np.float64),
    Box(-9, 9, (2,), np.int32),
    Discrete(5, start=-2),
    MultiBinary(3),
    MultiDiscrete([2, 3]),
    Dict(b=Box(0, 1, (1,), np.float64), a=Tuple([Discrete(3), Box(0, 255, (2,), np.uint8)])),
]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_batches_lie_in_the_presented_space(vectorization):
    spaces = Dict({str(i): space for i, space in enumerate(SPACES)})
    envs = gym_envs(Sampling, 2, kwargs={"observation_space": spaces}, vectorization=vectorization)
    timesteps = [envs.reset(), envs.step(np.zeros(2, int)), envs.step(np.zeros(2, int))]
    envs.close()
    for timestep in timesteps:
        assert all(envs.observation_space.contains(member) for member in _members(timestep.obs, 2))
    assert all(envs.observation_space.contains(member) for member in _members(timesteps[2].final_obs, 2))


@pytest.mark.parametrize("space", SPACES)
def test_a_bare_space_gives_a_bare_batch(space):
    envs = gym_envs(Sampling, 2, kwargs={"observation_space": space})
    assert all(envs.observation_space.contains(member) for member in _members(envs.reset().obs, 2))


def _members(batch, count):
    """The members of a batch, one by one."""
    if isinstance(batch, dict):
        return [{key: _members(part, count)[i] for key, part in batch.items()} for i in range(count)]
    if isinstance(batch, tuple):
        return [tuple(_members(part, count)[i] for part in batch) for i in range(count)]
    assert len(batch) == count
    return list(batch)


@pytest.mark.parametrize("space", SPACES)
def test_actions_reach_the_env_as_members_of_its_space(space):
    envs = gym_envs(Sampling, 2, kwargs={"observation_space": Discrete(2), "action_space": space})
    envs.reset()
    envs.step(gymnasium.vector.utils.batch_space(envs.action_space, 2).sample())


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_env_with_an_unsupported_space_is_refused(vectorization):
    with pytest.raises(ValueError, match="observation space: Text is not supported"):
        gym_envs(Sampling, kwargs={"observation_space": Text(3)}, vectorization=vectorization)
    with pytest.raises(ValueError, match="action space: Text is not supported"):
        gym_envs(Sampling, kwargs={"observation_space": Discrete(2), "action_space": Text(3)}, vectorization=vectorization)


class Keys(gymnasium.Env):
    """A Dict observation whose keys come in either order."""

    observation_space = Dict(b=Box(0, 9, (1,), np.float32), a=Box(0, 9, (2,), np.float32))
    action_space = Discrete(2)

    def __init__(self, reverse):
        self.reverse = reverse

    def observe(self):
        items = [("a", np.array([1, 2], np.float32)), ("b", np.array([3], np.float32))]
        return dict(reversed(items) if self.reverse else items)

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, True, {}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("reverse", [False, True])
def test_dict_observations_are_matched_by_key(vectorization, reverse):
    envs = gym_envs(Keys, 3, kwargs={"reverse": reverse}, vectorization=vectorization)
    envs.reset()
    timestep = envs.step(np.zeros(3, int))
    envs.close()
    for obs in (timestep.obs, timestep.final_obs):
        assert (obs["a"].shape, obs["b"].shape) == ((3, 2), (3, 1))
        assert np.concatenate([obs["a"], obs["b"]], 1).tolist() == [[1, 2, 3]] * 3
