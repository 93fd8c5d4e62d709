"""Stacks of frames, stored once: in rollouts, batches and replay."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from modrl import checkpoint
from modrl.agent.batch import concatenate, from_rollout, to_device
from modrl.agent.storages import Replay
from modrl.envs import Atari
from modrl.envs.gym import Gym
from modrl.envs.toy import Count
from modrl.messages import Frames
from modrl.tree import leaves, tree_map
from tests.scheme.tiny import parts_of, weights_of

CPU = torch.device("cpu")
STACKED = {"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}
ATARI = {"name": "atari", "game": "breakout", "count": 4, "size": 20, "noop_max": 3, "max_frames": 4 * 37, "action_repeat": 4}
GYM = {"name": "gym", "id": "modrl/Count-v0", "count": 3, "kwargs": {"n": 5}, "wrappers": [STACKED]}
NESTED = {"name": "gym", "id": "tests.scheme.test_frames:Nested", "count": 2, "wrappers": [STACKED]}
SHORT = {"name": "gym", "id": "modrl/Count-v0", "count": 3, "kwargs": {"n": 1}, "wrappers": [STACKED]}
CASES = {"atari": ATARI, "colour": {**ATARI, "grey": False}, "gym": GYM, "nested": NESTED, "every step an end": SHORT}


class Nested(Count):
    """Observations of two parts, truncated episodes."""

    def __init__(self):
        super().__init__(4, "truncated")
        self.observation_space = Dict(a=self.observation_space, b=Box(0, 255, (2, 3), np.uint8))

    def observe(self):
        return {"a": super().observe(), "b": np.full((2, 3), self.t, np.uint8)}


def rollouts_of(envs, count, horizon, whole=False):
    """So many rollouts of one collector; `whole`: of envs that do not say that they stack."""
    parts, _ = parts_of(envs=envs, horizon=horizon, actor={"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}})
    with contextlib.closing(parts.collector(0)) as collector:
        for lane in collector.lanes:
            assert lane.envs.stack > 1
            lane.envs.stack = 1 if whole else lane.envs.stack
        return [collector.collect(weights_of(collector.actor)) for _ in range(count)]


def observed(batch):
    return leaves(to_device(batch, CPU).obs)


def assert_same(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture(params=CASES)
def pairs(request):
    """Batches whose frames are stored once, and the same with whole stacks."""
    once, whole = (list(map(from_rollout, rollouts_of(CASES[request.param], 9, 6, whole=whole))) for whole in (False, True))
    assert any(batch.first[1:].any() for batch in once)
    assert not any(isinstance(leaf, Frames) for leaf in leaves(whole[0].obs))
    return once, whole


def test_the_learner_sees_what_the_actor_saw(pairs):
    for once, whole in zip(*pairs, strict=True):
        assert_same(observed(once), observed(whole))


def test_any_columns_side_by_side_are_what_they_were(pairs):
    picks = [torch.tensor([1, 0, 1]), torch.tensor([0]), torch.tensor([1])]
    mixed = [concatenate([batch.columns(pick) for batch, pick in zip(batches, picks, strict=False)]) for batches in pairs]
    assert_same(observed(mixed[0]), observed(mixed[1]))
    assert_same(leaves(mixed[0]._replace(obs=())), leaves(mixed[1]._replace(obs=())))


def test_a_replay_gives_back_what_it_was_given(pairs, tmp_path):
    def replayed(batches, resumed):
        def made():
            return Replay.Config(horizon=6, batch=4, capacity=7, fraction=0.5).build(batch=4, generator=torch.Generator().manual_seed(0))

        storage, seen = made(), []
        for batch in batches:
            storage._pending._waiting.append(batch)
            while (given := storage.batch()) is not None:
                seen.append(given)
                if resumed:
                    checkpoint.save(tmp_path / "state", storage.state(contents=True))
                    storage = made()
                    storage.restore(checkpoint.load(tmp_path / "state"))
        return seen

    expected = replayed(pairs[1], resumed=False)
    for resumed in (False, True):
        for once, whole in zip(replayed(pairs[0], resumed), expected, strict=True):
            assert_same(observed(once), observed(whole))


def test_a_rollout_without_an_end_within_is_not_copied():
    batch = from_rollout(rollouts_of({**ATARI, "max_frames": 108_000, "game": "pong"}, 2, 20)[1])
    seen = to_device(batch, CPU).obs
    assert seen.shape == (21, 4, 4, 20, 20)
    assert seen.data_ptr() == batch.obs.frames.data_ptr()


def stored_bytes(tree):
    return sum({leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in leaves(tree)}.values())


def test_a_step_takes_little_more_than_a_frame():
    rollouts = rollouts_of({**ATARI, "max_frames": 108_000, "game": "pong"}, 12, 20)
    steps = 4 * 20
    assert sum(leaf.nbytes for leaf in leaves(rollouts[0].obs)) <= 1.3 * steps * 20 * 20
    storage = Replay.Config(horizon=20, batch=4, capacity=100, fraction=1.0).build(batch=4, generator=torch.Generator())
    for rollout in rollouts:
        storage.insert(rollout)
    kept = [column.obs for column in storage._stored._kept]
    assert stored_bytes(kept) <= 1.1 * 12 * steps * 20 * 20


def test_columns_that_are_dropped_let_go_of_their_memory():
    rollouts = rollouts_of({**ATARI, "max_frames": 108_000, "game": "pong"}, 12, 20)
    storage = Replay.Config(horizon=20, batch=4, capacity=8, fraction=1.0).build(batch=4, generator=torch.Generator())
    for rollout in rollouts:
        storage.insert(rollout)
    assert len(storage._stored) == 8
    assert len(storage._stored._ends) <= 8
    assert stored_bytes([column.obs for column in storage._stored._kept]) <= (8 + 4) * 24 * 20 * 20  # an older one for each environment


class Backwards(Atari, name="backwards"):
    """Newest frame first, which is not what `stack` says."""

    def adopt(self, obs):
        return super().adopt(obs)[:, ::-1].copy()


def test_observations_that_are_no_stacks_are_not_taken_for_such():
    with pytest.raises(
        RuntimeError, match=r"Backwards\.stack is 4, but of its observations one was not the stack before it.*its `stack` has to be 1"
    ):
        rollouts_of({**ATARI, "name": "backwards"}, 9, 6)


@pytest.mark.parametrize(
    "wrappers", [[], [STACKED, {"name": "gymnasium.wrappers:TransformReward", "func": abs}], ["gymnasium.wrappers:FlattenObservation"]]
)
def test_only_the_outermost_wrapper_says_that_observations_are_stacks(wrappers):
    envs = Gym.Config(id="modrl/Count-v0", wrappers=wrappers).build(numbers=[0], seeds=[0])
    assert envs.stack == 1
    envs.close()


def test_filler_after_a_stopped_rollout_keeps_the_last_observation():
    """What a valid step bootstraps from is as it was."""
    parts, _ = parts_of(envs=GYM, horizon=8, actor={"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}})
    with contextlib.closing(parts.collector(0)) as collector:
        recorder = collector._recorder()
        for slot in range(4):
            collector._step(recorder, slot)
        collector._receive(recorder, collector.lanes)
        recorder.stop(4)
        now = collector.lanes[0].now
    batch = to_device(from_rollout(recorder.rollout(0, {})), CPU)
    assert_same(leaves(tree_map(lambda x: x[4], batch.obs)), leaves(tree_map(torch.from_numpy, now.obs)))
    assert batch.valid.sum() == 4 * 3
    assert batch.obs.isfinite().all()
