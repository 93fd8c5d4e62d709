"""The actor with a policy and a value: torsos, a memory where asked, and a linear head for each.

An actor of one's own that says more extends the output; `features` are what the policy's head reads:

    @dataclass
    class Decoded(Output):
        decoded: torch.Tensor  # [S, B, n]

    class Mine(ActorCritic, name="mine"):
        def __init__(self, config: Config, **spaces: gymnasium.Space) -> None:
            super().__init__(config, **spaces)
            self.decoder = nn.Linear(self.trunk.size, 8)

        def output(self, features: torch.Tensor, **said: Any) -> Output:
            return Decoded(**said, decoded=self.decoder(features))
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import gymnasium
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from modrl.agent.actors.auto import Auto
from modrl.agent.actors.base import Actor, Inference, Memory, Output, Step
from modrl.agent.actors.encoder import Encoder, TorsoChoice
from modrl.agent.actors.heads import Continuous, LogStd, build_head
from modrl.agent.actors.memory import Recurrent, Slots, Unrolled
from modrl.agent.actors.normalizer import Normalizer
from modrl.agent.batch import Batch
from modrl.agent.statistics import PopArt
from modrl.messages import Tree
from modrl.tree import tree_map


class Trunk(nn.Module):
    """From observations and extra inputs to the features that a head reads."""

    def __init__(self, torso: TorsoChoice, memory: Recurrent.Config | None, space: gymnasium.Space, extra: int) -> None:
        super().__init__()
        self.encoder = Encoder(torso, space)
        self.memory: Recurrent | None = None if memory is None else memory.build(inputs=self.encoder.size + extra)
        self.size = self.encoder.size + extra if self.memory is None else self.memory.size

    def initial(self, size: int) -> Tree:
        return () if self.memory is None else self.memory.initial(size)

    def features(self, obs: Tree, extra: torch.Tensor | None) -> torch.Tensor:
        """Encoded observations [N, ...] and extra inputs [N, E], side by side."""
        encoded: torch.Tensor = self.encoder(obs)
        return encoded if extra is None else torch.cat([encoded, extra], -1)

    def forward(self, obs: Tree, extra: torch.Tensor | None, first: torch.Tensor, state: Tree, slots: Slots | None) -> Unrolled:
        """Features of a sequence of observations [S, B, ...]."""
        flat = tree_map(lambda x: x.flatten(0, 1), obs)
        features = self.features(flat, None if extra is None else extra.flatten(0, 1))
        features = features.view(*first.shape, features.shape[1])
        return Unrolled(features, state, ()) if self.memory is None else self.memory(features, first, state, slots)

    def one_more(self, obs: Tree, extra: torch.Tensor | None, state: Tree) -> torch.Tensor:
        """Features of one observation [K, ...] that continues from each state [K, ...]."""
        features = self.features(obs, extra)
        return features if self.memory is None else self.memory.advance(features[None], state)[0][0]

    def init_orthogonal(self) -> None:
        self.encoder.init_orthogonal(math.sqrt(2))
        if self.memory is not None:
            self.memory.init_orthogonal()


class Said(NamedTuple):
    """What the networks say of S steps of B environments."""

    features: torch.Tensor  # [S, B, F] of the policy's trunk
    parameters: torch.Tensor  # [S, B, n] that the policy's head reads
    value: torch.Tensor  # [S, B]
    state: Tree  # [B, ...] after the last step
    at_slots: Tree  # [K, ...] after the steps asked for


class ActorCritic(Actor, name="actor_critic"):
    """A policy and a value, of one network or of two.

    With a memory and `value: separate` each network has its own, and the state is the pair (policy's, value's).
    """

    class Config(Actor.Config):
        torso: TorsoChoice = Auto.Config()
        memory: Recurrent.Config | None = None
        last_action: bool = False
        """Whether the network sees the action before, one-hot where discrete; zero where an episode begins."""
        last_reward: bool = False
        """Whether the network sees the reward before, clipped to [-1, 1]; zero where an episode begins."""
        value: Literal["shared", "separate"] = "shared"
        """Whether the value reads the policy's features, or has a network, and a memory, of its own."""
        value_torso: TorsoChoice | None = None
        """Of the value's own network; null: as `torso`."""
        normalize_observations: bool = False
        """Gives what is Box of floats mean 0 and standard deviation 1 over all steps learned from so far, within 10 of them."""
        popart: float | None = Field(None, gt=0, lt=1)
        """Step size of the values' statistics (0.0003 in the paper): the value is learned in units of its targets' spread; null: as it is."""
        init: Literal["default", "orthogonal"] = "default"
        """`orthogonal`: gain sqrt(2) in torsos, 1 in memories, 0.01 for the policy, 1 for the value; no bias."""
        distribution: Continuous = "gaussian"
        """For Box actions. `squashed`: tanh of a Gaussian, scaled to the bounds."""
        log_std: LogStd | None = None
        """For Box actions; null: one parameter per dimension, from 0."""

        @field_validator("value_torso")
        @classmethod
        def _takes_effect(cls, value: Any, info: ValidationInfo) -> Any:
            if value is not None and info.data.get("value") == "shared":
                raise ValueError("has no effect with value: shared; set value: separate or leave it out")
            return value

    def __init__(self, config: Config, *, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        super().__init__(config, observation_space=observation_space, action_space=action_space)
        self.recurrent = config.memory is not None
        self.last_action, self.last_reward = config.last_action, config.last_reward
        self.head = build_head(action_space, config.distribution, config.log_std)
        extra = self.head.features * self.last_action + self.last_reward
        self.trunk = Trunk(config.torso, config.memory, observation_space, extra)
        self.value_trunk: Trunk | None = None
        if config.value == "separate":
            self.value_trunk = Trunk(config.value_torso or config.torso, config.memory, observation_space, extra)
        self.policy = nn.Linear(self.trunk.size, self.head.size)
        inputs = (self.value_trunk or self.trunk).size
        self.value: nn.Linear | PopArt = nn.Linear(inputs, 1) if config.popart is None else PopArt(inputs, config.popart)
        self.normalizer = Normalizer(observation_space) if config.normalize_observations else None
        if config.init == "orthogonal":
            self._init_orthogonal()

    def _init_orthogonal(self) -> None:
        for trunk in (self.trunk, self.value_trunk):
            if trunk is not None:
                trunk.init_orthogonal()
        for layer, gain in ((self.policy, 0.01), (self.value, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def initial_memory(self, size: int) -> Memory:
        device = self.policy.weight.device
        state = self.trunk.initial(size)
        if self.value_trunk is not None and self.recurrent:
            state = (state, self.value_trunk.initial(size))
        return Memory(state, self.head.zero(size, device), torch.zeros(size, device=device))

    def output(self, features: torch.Tensor, **said: Any) -> Output:
        """The answer to the learner: `said` are Output's fields, `features` [S, B, F] what the policy's head read."""
        return Output(**said)

    def forward(self, batch: Batch) -> Output:
        memory: Memory = batch.memory
        extra, steps = None, len(batch.first)
        if self.last_action or self.last_reward:
            before = tree_map(lambda x, start: torch.cat([start[None], x[: steps - 1]]), batch.action, memory.last_action)
            extra = self._extra(before, torch.cat([memory.last_reward[None], batch.reward[: steps - 1]]), batch.first)
        slots = None if batch.final_obs is None else Slots(*batch.truncated.nonzero(as_tuple=True))
        said = self._say(batch.obs, batch.first, extra, memory.state, slots)
        after = Memory(
            tree_map(torch.Tensor.detach, said.state),
            tree_map(lambda x: x[-1], batch.action),
            batch.reward[-1],
        )
        final_value = None if slots is None else self._final_value(batch, slots, said.at_slots)
        scale = self.value.std if isinstance(self.value, PopArt) else None
        return self.output(
            said.features, policy=self.head(said.parameters), value=said.value, final_value=final_value, memory=after, value_scale=scale
        )

    def measure(self, batch: Batch, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.normalizer is None:
            return {}
        return {f"normalizer.{name}": sums for name, sums in self.normalizer.measure(batch.obs, valid).items()}

    @torch.no_grad()
    def act(self, obs: Tree, first: torch.Tensor, memory: Memory, generator: torch.Generator | None = None, greedy: bool = False) -> Step:
        return self.choose(self.infer(obs, first, memory), generator, greedy)

    def infer(self, obs: Tree, first: torch.Tensor, memory: Memory) -> Inference:
        extra = self._extra(memory.last_action, memory.last_reward, first)
        said = self._say(tree_map(lambda x: x[None], obs), first[None], None if extra is None else extra[None], memory.state, None)
        return Inference(self.head.complete(said.parameters)[0], {"value": said.value[0]}, said.state)

    def choose(self, inference: Inference, generator: torch.Generator | None = None, greedy: bool = False) -> Step:
        policy = self.head.distribution(inference.policy)
        action = policy.mode() if greedy else policy.sample(generator)
        after = Memory(inference.state, action, torch.zeros(len(inference.policy), device=inference.policy.device))
        return Step(action, after, {"log_prob": policy.log_prob(action), **inference.behaviour})

    def to_env(self, action: Tree) -> Tree:
        return self.head.to_env(action)

    def _say(self, obs: Tree, first: torch.Tensor, extra: torch.Tensor | None, state: Tree, slots: Slots | None) -> Said:
        """What the networks say: obs, first and the inputs beside them [S, B, ...], from `state` [B, ...] on."""
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        if self.value_trunk is None:
            seen = valued = self.trunk(obs, extra, first, state, slots)
            state, at_slots = seen.state, seen.at_slots
        else:
            of_policy, of_value = state if self.recurrent else ((), ())
            seen = self.trunk(obs, extra, first, of_policy, None)
            valued = self.value_trunk(obs, extra, first, of_value, slots)
            state, at_slots = (seen.state, valued.state) if self.recurrent else (), valued.at_slots
        return Said(seen.outputs, self.policy(seen.outputs), self._valued(valued.outputs), state, at_slots)

    def _extra(self, action: Tree, reward: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor | None:
        """The inputs beside the observation [..., E], of the action and the reward before; None: there are none."""
        parts = [self.head.encode(action)] if self.last_action else []
        if self.last_reward:
            parts.append(reward.clamp(-1, 1).unsqueeze(-1))
        if not parts:
            return None
        extra = torch.cat(parts, -1)
        return extra if first is None else extra.masked_fill(first.unsqueeze(-1), 0)

    def _valued(self, features: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.value(features)
        return value.squeeze(-1).float()

    def _final_value(self, batch: Batch, slots: Slots, state: Tree) -> torch.Tensor:
        """V(final_obs) [K]: one step more from the state after each truncated slot."""
        action = tree_map(lambda x: x[slots.times, slots.envs], batch.action)
        extra = self._extra(action, batch.reward[slots.times, slots.envs], None)
        obs = batch.final_obs if self.normalizer is None else self.normalizer(batch.final_obs)
        return self._valued((self.value_trunk or self.trunk).one_more(obs, extra, state))
