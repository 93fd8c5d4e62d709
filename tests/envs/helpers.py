"""What the tests of environments share."""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from modrl.envs import Gym, Vector

MODES = ["next_step", "same_step", "disabled"]


class Wrapped(Vector):
    """A SyncVectorEnv of gymnasium's own, in the mode asked for."""

    def __init__(self, factories, mode, *, copy=True, episode_info=(), numbers=None, seeds=None):
        self.factories, self.mode_name, self.copied = factories, mode, copy
        numbers = range(len(factories)) if numbers is None else numbers
        seeds = range(len(factories)) if seeds is None else seeds
        super().__init__(Vector.Config(count=len(factories), episode_info=list(episode_info)), numbers=numbers, seeds=seeds)

    def make(self):
        vector = SyncVectorEnv(self.factories, copy=self.copied, autoreset_mode=AutoresetMode[self.mode_name.upper()])
        return vector


def gym_envs(id, count=1, numbers=None, seeds=None, training=True, restarts=0, **settings):
    """Environments by gymnasium's interface, `count` of them."""
    config = Gym.Config(id=id, count=count, **settings)
    numbers = range(count) if numbers is None else numbers
    seeds = range(100, 100 + len(numbers)) if seeds is None else seeds
    return config.build(numbers=numbers, seeds=seeds, training=training, restarts=restarts)


def run(envs, steps, action=0):
    """The reset's timestep and `steps` more, with one action for all."""
    timesteps = [envs.reset()]
    actions = np.full(len(envs.numbers), action)
    timesteps += [envs.step(actions) for _ in range(steps)]
    return timesteps


def episodes(timesteps):
    return [episode for timestep in timesteps for episode in timestep.episodes]


class Rewards(gymnasium.Env):
    """Pays the rewards given, one after another."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, rewards=(-5.0, 0.3, 200.0)):
        self.rewards = rewards

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), self.rewards[self.t - 1], self.t == len(self.rewards), False, {"success": self.t / 10, "text": "yes"}
