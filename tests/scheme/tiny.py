"""Actors and environments whose answers are known on paper, for tests of envs, agent and scheme together."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from modrl.agent.actors.base import Actor, Memory, Output, Step
from modrl.agent.actors.distributions import Categorical
from modrl.envs.toy import Count
from modrl.messages import Weights
from modrl.scheme.compute import State
from modrl.scheme.start import Site, make_board, start_collection
from tests.runs import small


class Bias(Actor):
    """Logits [0, b], whatever it sees; V(obs) is the sum of obs."""

    class Config(Actor.Config):
        b: float = 0.0

    def __init__(self, config, *, observation_space, action_space):
        super().__init__(config, observation_space=observation_space, action_space=action_space)
        self.b = nn.Parameter(torch.tensor(config.b))

    def initial_memory(self, size):
        return Memory((), torch.zeros(size, dtype=torch.int64), torch.zeros(size))

    def policy(self, shape):
        b = self.b.expand(*shape)
        return Categorical(torch.stack([torch.zeros_like(b), b], -1))

    def value(self, obs, shape):
        return obs.reshape(*shape, -1).float().sum(-1)

    def forward(self, batch):
        final = None if batch.final_obs is None else self.value(batch.final_obs, batch.final_obs.shape[:1])
        shape = batch.first.shape
        return Output(self.policy(shape), self.value(batch.obs, shape), final, self.initial_memory(shape[1]))

    @torch.no_grad()
    def act(self, obs, first, memory, generator=None, greedy=False):
        policy = self.policy(first.shape)
        action = policy.mode() if greedy else policy.sample(generator)
        value, state = self.advance(obs, first, memory.state)
        return Step(action, Memory(state, action, torch.zeros(len(first))), {"log_prob": policy.log_prob(action), "value": value})

    def advance(self, obs, first, state):
        return self.value(obs, first.shape), ()

    def to_env(self, action):
        return action.numpy()


class CounterRNN(Bias):
    """Counts an episode's observations in its state; V is the count."""

    recurrent = True

    def initial_memory(self, size):
        return super().initial_memory(size)._replace(state=torch.zeros(size))

    def advance(self, obs, first, state):
        state = torch.where(first, 0, state) + 1
        return state, state

    def forward(self, batch):
        state, values = batch.memory.state, []
        for first in batch.first:
            _, state = self.advance(None, first, state)
            values.append(state)
        values = torch.stack(values)
        final = None if batch.final_obs is None else values[: len(batch.truncated)][batch.truncated] + 1
        return Output(self.policy(batch.first.shape), values, final, batch.memory._replace(state=state))


def counts(num_envs, n=3, end="terminated", mode="next_step", **kwargs):
    """Count side by side, with n of each where a list is given, resetting in the mode asked for."""
    each = (n if isinstance(n, list) else [n] * num_envs)[:num_envs]
    return SyncVectorEnv([partial(Count, k, end) for k in each], autoreset_mode=AutoresetMode[mode.upper()])


gymnasium.register("tests/Count-v0", Count, vector_entry_point=counts)


def counting(count=1, **kwargs):
    """Settings of `count` Count environments in a vector of the reset mode asked for."""
    return {"name": "gym", "id": "tests.scheme.tiny:tests/Count-v0", "count": count, "vectorization": "vector_entry_point", "kwargs": kwargs}


SPACES = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "pixels": spaces.Box(0, 255, (2, 6, 6), np.uint8),
    "number": spaces.Discrete(4),
    "nested": spaces.Dict(b=spaces.Box(-1, 1, (1,), np.float32), a=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(3)])),
    "discrete": spaces.Discrete(3, start=1),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict(move=spaces.Discrete(3), aim=spaces.Box(-2, 2, (2,), np.float32)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([3, 2])]),
}


class Anything(gymnasium.Env):
    """Random observations and rewards; an episode ends after each step with probability 0.3, half of them truncated. Only members of its space are admitted."""

    def __init__(self, see="vector", do="discrete"):
        self.observation_space, self.action_space = SPACES[see], SPACES[do]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        ended, cut = self.np_random.random(2)
        return self.observation_space.sample(), 2 * self.np_random.normal(), ended < 0.3 and cut < 0.5, ended < 0.3 and cut >= 0.5, {}


def anythings(num_envs, **kwargs):
    return SyncVectorEnv([partial(Anything, **kwargs)] * num_envs)


gymnasium.register("tests/Anything-v0", Anything, vector_entry_point=anythings, disable_env_checker=True)


class Reporter(gymnasium.Env):
    """Observes the process that it lives in: torch threads and open files."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def observe(self):
        return np.array([torch.get_num_threads(), len(os.listdir("/proc/self/fd"))], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 1.0, False, False, {}


def parts_of(*, envs, actor="Bias", horizon=5, scheme="local", seed=1, **changes):
    """An experiment's parts: a tiny actor by its name, or any actor's block."""
    actor = {"name": f"tests.scheme.tiny:{actor}"} if isinstance(actor, str) else actor
    experiment = small(
        envs=envs, actor=actor, scheme=scheme, seed=seed, storage={"name": "fresh", "horizon": horizon, "batch": envs["count"]}, **changes
    )
    return experiment.plan().parts, experiment.scheme


def collectors_of(**experiment):
    """The collectors of an experiment, as a group in their place."""
    parts, scheme = parts_of(**experiment)
    return start_collection(Site(scheme, parts, board=make_board(scheme)), 0)


def weights_of(actor, version=0):
    """A snapshot of the actor for collectors."""
    return Weights(version, 0.0, State(actor).copy(), {})


class Deadly(Count):
    """Count, but whoever comes first to step `at` of its life (and creates the file) kills its process, hangs, or fails in another way."""

    def __init__(self, file, at=20, how="kill", n=5):
        super().__init__(n)
        self.file, self.at, self.how, self.life = file, at, how, 0

    def step(self, action):
        self.life += 1
        if self.life >= self.at:
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.how == "raise":
                    raise RuntimeError("the environment broke")
                if self.how == "exit":
                    raise SystemExit(3)
                threading.Event().wait(60)
        return super().step(action)


class Slow(Count):
    """Count, each step of which takes so many seconds."""

    def __init__(self, seconds=0.002, n=5):
        super().__init__(n)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Autocast(gymnasium.Env):
    """Pays where it is stepped under autocast."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 4
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(torch.is_autocast_enabled("cpu")), self.left == 0, False, {}


class Busy(Count):
    """Count, each step of which keeps a core busy for so many seconds."""

    def __init__(self, seconds=0.002, n=5):
        super().__init__(n)
        self.seconds = seconds

    def step(self, action):
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return super().step(action)


class FailsLater(Count):
    """Count, which fails in its third step."""

    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3:
            raise RuntimeError("enough of this")
        return super().step(action)
