"""A tiny actor and random rollouts for tests of what learns."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import nn

from modrl.agent.actors.base import Actor, Distribution, Memory, Output, Step
from modrl.agent.batch import Batch
from modrl.messages import Rollout

OBS, ACTIONS = 3, 4


class Categorical(Distribution):
    def __init__(self, logits: torch.Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)

    def sample(self, generator=None):
        return torch.distributions.Categorical(logits=self.log_probs).sample()

    def mode(self):
        return self.log_probs.argmax(-1)

    def log_prob(self, action):
        assert action.shape == self.log_probs.shape[:-1]
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self):
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


@dataclass
class Decoded(Output):
    decoded: torch.Tensor | None = None  # [S, B, OBS]


class Linear(Actor):
    """Everything linear in the observation, the last reward and whether the last action was 0."""

    class Config(Actor.Config):
        pass

    def __init__(self, config=None, *, recurrent=False, seed=0, has_critic=True) -> None:
        spaces = {"observation_space": gymnasium.spaces.Box(-9, 9, (OBS,)), "action_space": gymnasium.spaces.Discrete(ACTIONS)}
        super().__init__(config or Linear.Config(), **spaces)
        generator = torch.Generator().manual_seed(seed)
        self.recurrent, self.has_critic = recurrent, has_critic
        self.policy = nn.Parameter(torch.randn(OBS + 2, ACTIONS, generator=generator, dtype=torch.float64) / 2)
        self.value = nn.Parameter(torch.randn(OBS + 2, generator=generator, dtype=torch.float64) / 2)
        self.decoder = nn.Parameter(torch.randn(OBS + 2, OBS, generator=generator, dtype=torch.float64) / 2)

    def initial_memory(self, size):
        return Memory((), torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.float64))

    def inputs(self, batch: Batch) -> torch.Tensor:
        reward = torch.cat([batch.memory.last_reward.unsqueeze(0), batch.reward])[: len(batch.first)]
        action = torch.cat([batch.memory.last_action.unsqueeze(0), batch.action])[: len(batch.first)]
        parts = torch.stack([reward, (action == 0).to(reward.dtype)], -1) * ~batch.first.unsqueeze(-1)
        return torch.cat([batch.obs, parts], -1)

    def forward(self, batch):
        assert batch.first.numel(), "some networks refuse an empty batch"
        x = self.inputs(batch)
        final = None
        if batch.final_obs is not None:
            final = batch.final_obs @ self.value[:OBS]
        value = x @ self.value if self.has_critic else None
        return Decoded(Categorical(x @ self.policy), value, final, self.initial_memory(x.shape[1]), x @ self.decoder)

    def act(self, obs, first, memory, generator=None, greedy=False):
        return Step(torch.zeros(len(first), dtype=torch.int64), memory, {})

    def to_env(self, action):
        return action.numpy()


def random_rollout(steps: int, columns: int, seed: int = 0, ends: float = 0.2, version: int = 0) -> Rollout:
    """A rollout whose episodes end in either way, with filler after some of the ends and at one column's tail."""
    rng = np.random.default_rng(seed)
    ended = rng.random((steps, columns)) < ends
    terminated = ended & (rng.random((steps, columns)) < 0.5)
    truncated = ended & ~terminated
    valid = np.ones((steps, columns), bool)
    valid[1:] = ~(ended[:-1] & (rng.random((steps - 1, columns)) < 0.5)) if steps > 1 else valid[1:]
    valid[steps // 2 + 1 :, -1] = False  # a tail that was given up
    terminated &= valid
    truncated &= valid
    followed = np.concatenate([valid[1:], np.ones((1, columns), bool)])
    first = np.concatenate([rng.random((1, columns)) < 0.5, (terminated | truncated) & followed | ~valid])
    return Rollout(
        obs=rng.normal(size=(steps + 1, columns, OBS)),
        first=first,
        action=rng.integers(ACTIONS, size=(steps, columns)),
        reward=2 * rng.normal(size=(steps, columns)),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_obs=rng.normal(size=(int(truncated.sum()), OBS)) if truncated.any() else None,
        memory=Memory((), rng.integers(ACTIONS, size=columns), rng.normal(size=columns)),
        behaviour={"log_prob": np.log(rng.uniform(0.1, 0.9, size=(steps, columns)))},
        version=version,
    )
