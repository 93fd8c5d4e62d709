"""An environment of one's own: any gymnasium.Env, named by its function or class.

modrl train examples/custom_env.yaml scheme=impala
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Chase(gymnasium.Env):
    """A point on a line is chased: actions go left, stay or go right; reward is minus the distance. Truncated after 50 steps."""

    observation_space = Box(-10, 10, (2,), np.float32)  # where I am, where it is
    action_space = Discrete(3)

    def __init__(self, speed: float = 0.2):
        self.speed = speed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.me, self.it, self.t = 0.0, float(self.np_random.uniform(-2, 2)), 0
        return self._see(), {}

    def step(self, action):
        self.me = float(np.clip(self.me + self.speed * (int(action) - 1), -10, 10))
        self.it = float(np.clip(self.it + self.np_random.normal(0, 0.1), -10, 10))
        self.t += 1
        return self._see(), -abs(self.me - self.it), False, self.t >= 50, {}

    def _see(self):
        return np.array([self.me, self.it], np.float32)
