"""Memories: a core that counts shows when a state is carried on, reset and asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from modrl.agent.actors import LSTM, ActorCritic, Output, Recurrent
from modrl.agent.batch import Batch
from modrl.config import resolve
from tests.agent.actors.playing import play, vector

NO = torch.zeros(1, dtype=torch.bool)


class Counter(Recurrent, name="counter"):
    """s := 0 where an episode begins, then s := s + 1 at each step; gives s."""

    class Config(Recurrent.Config):
        size: int = 1

    def initial(self, size: int) -> torch.Tensor:
        return torch.zeros(size, 1)

    def advance(self, features: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts = state + torch.arange(1, len(features) + 1).view(-1, 1, 1)
        return counts, counts[-1]


def counting_lstm(inputs: int = 1) -> LSTM:
    """An LSTM whose cell counts: every gate is open, whatever it sees."""
    core = LSTM.Config(size=1).build(inputs=inputs)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        core.core.bias_ih_l0.fill_(30.0)
    return core


def counting_actor(value: str = "shared") -> ActorCritic:
    """An actor whose value is what its counter says."""
    actor = ActorCritic.Config(torso="identity", memory=Counter.Config(), value=value).build(
        observation_space=vector(1), action_space=spaces.Discrete(2)
    )
    nn.init.ones_(actor.value.weight)
    nn.init.zeros_(actor.value.bias)
    return actor


def counted(first: list[list[int]], memory, actor: ActorCritic, truncated: list[list[int]] | None = None) -> Output:
    """The actor's output for these columns of `first` flags."""
    flags = torch.tensor(first, dtype=torch.bool).T
    steps, width = flags.shape
    cut = torch.zeros(steps, width, dtype=torch.bool) if truncated is None else torch.tensor(truncated, dtype=torch.bool).T
    obs = torch.arange(steps).float().view(-1, 1, 1).expand(steps, width, 1)
    final = None if truncated is None else torch.full((int(cut.sum()), 1), 3.0)
    ones = torch.ones(steps, width, dtype=torch.bool)
    action, reward = torch.zeros(steps, width, dtype=torch.int64), torch.zeros(steps, width)
    return actor(Batch(obs, flags, action, reward, ~ones, cut, ones, final, memory, {}, torch.zeros(width), ones[0]))


@pytest.mark.parametrize("value", ["shared", "separate"])
def test_the_learner_replays_the_actors_states(value):
    actor = counting_actor(value)
    one = counted([[1, 0, 0, 1, 0], [1, 0, 0, 0, 1]], actor.initial_memory(2), actor)
    assert one.value.T.tolist() == [[1, 2, 3, 1, 2], [1, 2, 3, 4, 1]]
    state = one.memory.state if value == "shared" else one.memory.state[1]
    assert state.flatten().tolist() == [2, 1]
    assert not state.requires_grad
    two = counted([[0, 1, 0, 0, 1], [0, 0, 0, 1, 0]], one.memory, actor)
    assert two.value.T.tolist() == [[3, 1, 2, 3, 1], [2, 3, 4, 1, 2]]


def test_an_lstm_is_reset_and_carried_on_alike():
    core = counting_lstm()
    features = torch.randn(5, 2, 1)
    flags = [torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]).bool().T, torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 1, 0]]).bool().T]
    one = core(features, flags[0], core.initial(2))
    two = core(features, flags[1], one.state)
    expected = torch.tensor([[1.0, 2, 3, 1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]]).T
    torch.testing.assert_close(torch.cat([one.outputs, two.outputs]).squeeze(-1), expected.tanh())
    torch.testing.assert_close(one.state[1].flatten(), torch.tensor([2.0, 1.0]))


@pytest.mark.parametrize("value", ["shared", "separate"])
def test_a_truncated_episodes_last_observation_is_one_step_more(value):
    actor = counting_actor(value)
    at_the_end = counted([[1, 0, 0]], actor.initial_memory(1), actor, [[0, 0, 1]])
    assert at_the_end.final_value.tolist() == [4.0]
    inside = counted([[1, 0, 0, 1, 0], [1, 0, 1, 0, 0]], actor.initial_memory(2), actor, [[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]])
    assert inside.final_value.tolist() == [3.0, 4.0, 4.0]  # in (t, b) order
    assert inside.value.T.tolist() == [[1, 2, 3, 1, 2], [1, 2, 1, 2, 3]]


def test_the_value_of_a_last_observation_is_its_own():
    actor = ActorCritic.Config(torso="identity").build(observation_space=vector(1), action_space=spaces.Discrete(2))
    nn.init.ones_(actor.value.weight)
    nn.init.zeros_(actor.value.bias)
    assert counted([[1, 0, 0]], actor.initial_memory(1), actor, [[0, 0, 1]]).final_value.tolist() == [3.0]


def test_acting_carries_the_state_on():
    actor = counting_actor()
    memory, values = actor.initial_memory(1), []
    for first in (~NO, NO, NO, ~NO):
        step = actor.act(torch.zeros(1, 1), first, memory)
        memory = step.memory
        values.append(step.behaviour["value"].item())
    assert values == [1, 2, 3, 1]


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_stretch_equals_its_steps(name, layers):
    torch.manual_seed(0)
    core = resolve("memory", {"name": name, "size": 5, "layers": layers}).build(inputs=3)
    features, first = torch.randn(7, 4, 3), torch.zeros(7, 4, dtype=torch.bool)
    whole, state, outputs = core(features, first, core.initial(4)), core.initial(4), []
    for t in range(7):
        step = core(features[t : t + 1], first[t : t + 1], state)
        state = step.state
        outputs.append(step.outputs)
    torch.testing.assert_close(torch.cat(outputs), whole.outputs)
    assert whole.outputs.shape == (7, 4, 5)


def test_last_action_and_reward_are_seen_from_the_second_step_on():
    actor = ActorCritic.Config(torso="identity", last_action=True, last_reward=True).build(
        observation_space=vector(1), action_space=spaces.Discrete(2, start=3)
    )
    seen: list[torch.Tensor] = []
    actor.policy.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = play(actor, rollouts=1, steps=2, width=1, ends=0)[0].batch
    seen.clear()
    batch = batch._replace(
        first=torch.tensor([[True], [False], [True]]),
        action=torch.tensor([[1], [0]]),
        reward=torch.tensor([[-7.0], [0.5]]),
        obs=torch.tensor([[[0.1]], [[0.2]], [[0.3]]]),
    )
    actor(batch)
    torch.testing.assert_close(seen[0][:, 0], torch.tensor([[0.1, 0, 0, 0], [0.2, 0, 1, -1], [0.3, 0, 0, 0]]))


def test_greedy_and_sampled_actions_differ():
    actor = ActorCritic.Config().build(observation_space=vector(1), action_space=spaces.Discrete(2))
    nn.init.zeros_(actor.policy.weight)
    with torch.no_grad():
        actor.policy.bias.copy_(torch.tensor([0.0, 0.1]))
    width, generator = 100_000, torch.Generator().manual_seed(0)
    inputs = torch.zeros(width, 1), torch.ones(width, dtype=torch.bool), actor.initial_memory(width)
    greedy, sampled = actor.act(*inputs, generator, greedy=True), actor.act(*inputs, generator)
    assert greedy.action.sum() == width
    assert greedy.behaviour["log_prob"][0].exp().item() == pytest.approx(0.524979, abs=1e-6)
    assert sampled.action.float().mean().item() == pytest.approx(0.524979, abs=0.005)


@dataclass
class Decoded(Output):
    decoded: torch.Tensor


class Mine(ActorCritic, name="mine"):
    class Config(ActorCritic.Config):
        width: int = 8

    def __init__(self, config: Config, **spaces_: Any) -> None:
        super().__init__(config, **spaces_)
        self.decoder = nn.Linear(self.trunk.size, config.width)

    def output(self, features: torch.Tensor, **said: Any) -> Output:
        return Decoded(**said, decoded=self.decoder(features))


def test_an_actor_of_ones_own_says_more():
    actor = Mine.Config(memory="gru").build(observation_space=vector(), action_space=spaces.Discrete(2))
    batch = play(actor, rollouts=1)[0].batch
    out = actor(batch)
    assert isinstance(out, Decoded)
    assert out.decoded.shape == (*batch.first.shape, 8)
