"""A collector's two halves: one steps while the other is acted for, and nothing else is different."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from modrl.agent.actors.base import Memory
from modrl.envs import Atari, Envs
from modrl.envs.base import Timestep
from modrl.envs.member import EnvError
from modrl.scheme.inference import Server
from modrl.scheme.race import LocalBoard, Race
from modrl.tree import leaves
from tests.scheme.tiny import parts_of, weights_of

ACTOR = {
    "name": "actor_critic",
    "torso": {"name": "mlp", "hidden": [8]},
    "memory": {"name": "lstm", "size": 4},
    "last_action": True,
    "last_reward": True,
}


class Overlapping(Envs, name="overlapping"):
    """Sums up its actions, in episodes of five steps; writes down what it is asked for."""

    asked: ClassVar[list[str]] = []
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)
    exact = True

    class Config(Envs.Config):
        @property
        def overlaps(self):
            return True

    def reset(self):
        self.t, self.sums = 0, np.zeros(len(self.numbers), np.float32)
        return self.timestep(True)

    def timestep(self, begins):
        no = np.zeros(len(self.sums), bool)
        obs = np.stack([np.array(self.numbers, np.float32), self.sums], 1)
        return Timestep(obs, ~no if begins else no, self.sums.copy(), no, no, ~no, None, ())

    def send(self, action):
        self.asked.append(f"send {self.numbers[0]}")
        self.action = action

    def receive(self):
        self.asked.append(f"receive {self.numbers[0]}")
        self.sums += self.action
        self.t += 1
        if over := self.t % 5 == 0:
            self.sums[:] = 0
        then = self.timestep(over)
        return then._replace(terminated=then.first.copy())

    def step(self, action):
        self.send(action)
        return self.receive()

    def state(self):
        return {"t": self.t, "sums": self.sums.copy()}

    def restore(self, state):
        self.t, self.sums = state["t"], np.array(state["sums"])

    def close(self):
        self.asked.append(f"close {self.numbers[0]}")


@contextlib.contextmanager
def collector_of(count=5, horizon=7, race=None, envs="overlapping", **settings):
    parts, _ = parts_of(envs={"name": envs, "count": count, **settings}, horizon=horizon, actor=ACTOR)
    Overlapping.asked.clear()
    with contextlib.closing(parts.collector(0, race=race)) as collector:
        yield collector, weights_of(parts.make_actor())


def assert_same(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=1e-6)


def test_one_half_steps_while_the_other_is_acted_for():
    with collector_of(horizon=3) as (collector, weights):
        for _ in range(2):
            collector.collect(weights)
            one_step = ["receive 0", "send 0", "receive 3", "send 3"]
            assert Overlapping.asked == ["send 0", "send 3", *one_step, *one_step, "receive 0", "receive 3"]
            Overlapping.asked.clear()


@pytest.mark.parametrize(("count", "widths"), [(1, [1]), (3, [3]), (4, [2, 2]), (5, [3, 2]), (8, [4, 4])])
def test_few_environments_have_one_half(count, widths):
    with collector_of(count) as (collector, _):
        assert [len(lane.envs.numbers) for lane in collector.lanes] == widths
        assert [number for lane in collector.lanes for number in lane.envs.numbers] == list(range(count))
        assert len({seed for lane in collector.lanes for seed in lane.envs.seeds}) == count


def test_a_rollout_holds_what_each_environment_did():
    with collector_of() as (collector, weights):
        for rollout in [collector.collect(weights) for _ in range(3)]:
            assert (rollout.obs[..., 0] == np.arange(5)).all()
            sums = rollout.obs[:-1, :, 1] + rollout.action
            np.testing.assert_array_equal(np.where(rollout.first[1:], 0, sums), rollout.obs[1:, :, 1])
            np.testing.assert_array_equal(rollout.reward, rollout.obs[1:, :, 1])
            np.testing.assert_array_equal(rollout.terminated, rollout.first[1:])
            assert rollout.memory.state[0].shape[0] == 5
            assert rollout.behaviour["log_prob"].shape == (7, 5)


def test_a_server_says_the_same_for_both_halves():
    with collector_of() as (collector, weights):
        own = [collector.collect(weights) for _ in range(3)]
    with collector_of() as (collector, weights):
        server = Server(actor=collector.actor, compute=collector.compute, batch=5, timeout=60.0)
        server.load(weights)
        collector.serve(server)
        for one in own:
            other = collector.collect(weights._replace(acting={}))
            assert_same(one.obs, other.obs)
            assert_same(one.action, other.action)
            assert_same(one.behaviour["log_prob"], other.behaviour["log_prob"])
        assert server.load(weights) == {"inference/batches": 21, "inference/columns": 105}  # one request for both halves
        server.close()


def test_a_race_stops_both_halves_at_the_same_step():
    board = LocalBoard()
    with collector_of(race=Race(board, 1, 0.5)) as (collector, weights):
        board.finish((weights.version, 0))
        rollout = collector.collect(weights)
        assert rollout.valid.sum(0).tolist() == [4] * 5
        assert (rollout.obs[4:] == rollout.obs[4]).all()
        assert rollout.action.shape == (7, 5)
        after = collector.collect(weights)
        assert (after.obs[0] == rollout.obs[4]).all()
        assert after.valid is None


def test_what_is_restored_goes_on_where_it_was():
    with collector_of() as (collector, weights):
        collector.collect(weights)
        state = collector.state()
        expected = [collector.collect(weights) for _ in range(2)]
    with collector_of() as (collector, weights):
        assert collector.restore(state)
        for rollout in expected:
            again = collector.collect(weights)
            assert_same(rollout.obs, again.obs)
            assert_same(rollout.memory, again.memory)
    with collector_of(count=4) as (collector, weights):
        assert not collector.restore(state)  # other environments
        assert isinstance(collector.collect(weights).memory, Memory)


def test_both_halves_are_closed_whatever_happens():
    with collector_of():
        pass
    assert sorted(Overlapping.asked) == ["close 0", "close 3"]
    parts, _ = parts_of(envs={"name": "overlapping", "count": 4}, actor=ACTOR)
    Overlapping.asked.clear()

    class Failing(Overlapping):
        def __init__(self, config, *, numbers, **options):
            if numbers[0]:
                raise RuntimeError("the second half")
            super().__init__(config, numbers=numbers, **options)

    object.__setattr__(parts, "envs", Failing.Config(count=4))
    with pytest.raises(RuntimeError, match="the second half"):
        parts.make_envs(0)
    assert Overlapping.asked == ["close 0"]


class Doubled(Atari, name="doubled"):
    """Pays ten times as much, in a step of its own."""

    def step(self, action):
        timestep = super().step(action)
        return timestep._replace(reward=timestep.reward + 10)


def test_a_step_of_ones_own_is_what_a_collector_takes():
    with collector_of(4, envs="doubled", game="pong", size=20) as (collector, weights):
        assert (collector.collect(weights).reward == 10).all()


@pytest.mark.slow
def test_halves_share_their_restarts():
    envs = {"name": "gym", "id": "modrl/RaiseAt-v0", "kwargs": {"j": 9}, "count": 4, "vectorization": "async"}
    parts, _ = parts_of(envs=envs, horizon=40, actor=ACTOR, scheme={"preset": "local", "faults": {"env_restarts": 5}})
    with contextlib.closing(parts.collector(0)) as collector, pytest.raises(EnvError, match="no restart is left: 5 were made"):
        collector.collect(weights_of(collector.actor))
