"""Storages: what goes in comes out, in which order, and once more after a restart."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from modrl import checkpoint
from modrl.agent.actors.base import Memory
from modrl.agent.storages import Fresh, Replay
from modrl.agent.storages.base import Storage
from modrl.messages import Rollout
from modrl.tree import leaves, tree_map

HORIZON = 3


def numbered(columns, version=0, horizon=HORIZON, truncated=(), start=0):
    """A rollout that says of every value whose it is: 1000 * version + 100 * (start + column) + step; `truncated`: pairs (t, b)."""
    stamp = (1000 * version + 100 * (start + np.arange(columns)) + np.arange(horizon + 1)[:, None]).astype(np.float32)
    cut = np.zeros((horizon, columns), bool)
    for t, b in truncated:
        cut[t, b] = True
    final = np.array([stamp[t, b] + 0.5 for t, b in sorted(truncated)], np.float32)
    return Rollout(
        obs={"image": (stamp % 251).astype(np.uint8)[..., None], "number": stamp},
        first=np.concatenate([np.zeros((1, columns), bool), cut]),
        action=stamp[:-1].astype(np.int64),
        reward=stamp[:-1],
        terminated=np.zeros((horizon, columns), bool),
        truncated=cut,
        valid=None,
        final_obs={"image": (final % 251).astype(np.uint8)[..., None], "number": final} if truncated else None,
        memory=Memory((stamp[0], 2 * stamp[0]), stamp[0].astype(np.int64), stamp[0]),
        behaviour={"log_prob": -stamp[:-1]},
        version=version,
    )


def build(config, batch=None, seed=0):
    return config.build(batch=batch or config.batch, generator=torch.Generator().manual_seed(seed))


def fresh(batch):
    return build(Fresh.Config(horizon=HORIZON, batch=batch))


def replay(batch=4, capacity=100, seed=0, **options):
    return build(Replay.Config(horizon=HORIZON, batch=batch, capacity=capacity, **options), seed=seed)


def stamps(batch):
    """Whose columns these are."""
    return batch.reward[0].int().tolist()


def assert_equal(one, other):
    assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))
    assert tree_map(lambda x: x.dtype, one) == tree_map(lambda x: x.dtype, other)


def read_only(rollout):
    for leaf in leaves(rollout._replace(version=None, episodes=(), seconds={})):
        leaf.setflags(write=False)
    return rollout


# --- fresh ----------------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out():
    storage, rollout = fresh(2), numbered(2, version=7, truncated=[(1, 0)])
    storage.insert(rollout)
    batch = storage.batch()
    for name in ("obs", "first", "action", "reward", "terminated", "truncated", "final_obs", "memory", "behaviour"):
        got, given = leaves(getattr(batch, name)), leaves(getattr(rollout, name))
        assert all(np.array_equal(a.numpy(), b) and a.numpy().dtype == b.dtype for a, b in zip(got, given, strict=True))
    assert isinstance(batch.memory, Memory)
    assert batch.obs["image"].dtype == torch.uint8
    assert batch.valid.all()
    assert batch.version.tolist() == [7, 7]
    assert batch.fresh.all()
    assert storage.fresh == 2
    assert storage.batch() is None


def test_filler_stays_filler():
    storage = fresh(2)
    valid = np.array([[True, True], [False, True], [True, True]])
    storage.insert(numbered(2)._replace(valid=valid))
    assert np.array_equal(storage.batch().valid.numpy(), valid)


def test_wide_rollouts_are_dealt_out_over_several_batches():
    storage = fresh(2)
    storage.insert(numbered(5, version=1))
    storage.insert(numbered(1, version=2))
    assert [stamps(storage.batch()) for _ in range(3)] == [[1000, 1300], [1100, 1400], [1200, 2000]]
    assert storage.batch() is None


def test_what_is_left_over_waits_for_more():
    storage = fresh(2)
    storage.insert(numbered(5, version=1))
    assert [stamps(storage.batch()) for _ in range(2)] == [[1000, 1200], [1100, 1300]]
    assert storage.batch() is None
    storage.insert(numbered(1, version=2))
    assert stamps(storage.batch()) == [1400, 2000]


@pytest.mark.parametrize("workers", [2, 4])
def test_a_batch_is_of_the_same_columns_however_many_gradient_workers_share_it(workers):
    """Each has its consecutive part of 16 environments and of batches of 8."""
    whole, shares = fresh(8), [fresh(8 // workers) for _ in range(workers)]
    whole.insert(numbered(16))
    width = 16 // workers
    for number, share in enumerate(shares):
        share.insert(numbered(width, start=number * width))
    for _ in range(2):
        assert stamps(whole.batch()) == [column for share in shares for column in stamps(share.batch())]


def test_several_narrow_rollouts_make_one_batch():
    storage = fresh(3)
    for version in (1, 2):
        storage.insert(numbered(1, version))
        assert storage.batch() is None
    storage.insert(numbered(2, version=3))
    batch = storage.batch()
    assert stamps(batch) == [1000, 2000, 3000]
    assert batch.version.tolist() == [1, 2, 3]
    assert storage.batch() is None


def test_final_observations_stay_with_their_steps():
    storage = fresh(4)
    storage.insert(numbered(2, version=1, truncated=[(2, 0), (0, 1)]))
    storage.insert(numbered(3, version=2, truncated=[(1, 2), (0, 0), (2, 1)]))
    batch = storage.batch()
    assert torch.equal(batch.final_obs["number"], batch.obs["number"][:-1][batch.truncated] + 0.5)
    assert len(batch.final_obs["number"]) == 4
    storage.insert(numbered(3, version=3))
    rest = storage.batch()
    assert stamps(rest) == [2200, 3000, 3100, 3200]
    assert torch.equal(rest.final_obs["number"], rest.obs["number"][:-1][rest.truncated] + 0.5)
    assert rest.columns(torch.tensor([1, 2])).final_obs is None


def test_columns_take_their_final_observations_along():
    storage = fresh(3)
    storage.insert(numbered(3, truncated=[(0, 2), (1, 0), (1, 1), (2, 2)]))
    batch = storage.batch().columns(torch.tensor([2, 0]))
    assert stamps(batch) == [200, 0]
    assert batch.final_obs["number"].tolist() == [200.5, 1.5, 202.5]
    assert batch.memory.state[0].tolist() == [200, 0]


def test_a_rollout_that_is_a_batch_is_not_copied():
    storage, rollout = fresh(2), numbered(2, truncated=[(1, 0)])
    storage.insert(rollout)
    batch = storage.batch()
    for mine, theirs in [(batch.obs["number"], rollout.obs["number"]), (batch.reward, rollout.reward), (batch.action, rollout.action)]:
        assert np.shares_memory(mine.numpy(), theirs)


def test_a_replay_keeps_columns_of_its_own():
    storage, rollout = replay(2), numbered(2, truncated=[(1, 0)])
    storage.insert(rollout)
    storage.batch()
    for leaf in leaves(rollout._replace(version=None, episodes=(), seconds={})):
        leaf[...] = 77
    old = storage._stored[0]
    assert old.reward[:, 0].tolist() == [0, 1, 2]
    assert old.obs["number"][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [fresh, replay])
def test_read_only_arrays_are_welcome(make):
    storage = make(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.insert(read_only(numbered(2, truncated=[(1, 0)])))
        batch = storage.batch()
    batch.reward[0] = 5.0  # and what comes out may be written to


@pytest.mark.parametrize("make", [fresh, replay])
@pytest.mark.parametrize(
    "change",
    [
        lambda r: numbered(2, horizon=HORIZON + 1),
        lambda r: r._replace(obs=tree_map(lambda x: x[:-1], r.obs)),
        lambda r: r._replace(action=r.action[:, :1]),
        lambda r: r._replace(memory=tree_map(lambda x: x[:1], r.memory)),
        lambda r: r._replace(final_obs=tree_map(lambda x: x[:0], r.final_obs)),
        lambda r: r._replace(final_obs=None),
        lambda r: r._replace(valid=np.ones((HORIZON, 1), bool)),
        lambda r: r._replace(behaviour={"log_prob": r.reward[0]}),
    ],
)
def test_a_rollout_of_the_wrong_shape_is_our_own_mistake(make, change):
    with pytest.raises(AssertionError):
        make(2).insert(change(numbered(2, truncated=[(1, 0)])))


def test_a_fresh_storage_continues_exactly():
    storage = fresh(2)
    storage.insert(numbered(3, version=1, truncated=[(1, 2), (0, 0)]))
    storage.insert(numbered(2, version=2))
    storage.batch()
    again = fresh(2)
    again.restore(storage.state(contents=False))
    for _ in range(2):
        assert_equal(again.batch() or [], storage.batch() or [])
    one, other = numbered(1, version=3), numbered(1, version=3)
    storage.insert(one)
    again.insert(other)
    assert_equal(again.batch(), storage.batch())


# --- replay ---------------------------------------------------------------------------------------------------------


def test_half_of_each_batch_is_replayed():
    storage = replay(batch=4)
    assert storage.fresh == 2
    for version in range(1, 20):
        storage.insert(numbered(2, version))
        batch = storage.batch()
        assert batch.fresh.tolist() == [True, True, False, False]
        assert stamps(batch)[:2] == [1000 * version, 1000 * version + 100]
        newest_replayed = max(batch.version[2:].tolist())
        assert newest_replayed < version or version == 1  # the first batch has only itself
    assert storage.batch() is None


def test_a_batch_waits_for_its_fresh_part_alone():
    storage = replay(batch=4)
    storage.insert(numbered(1, 1))
    assert storage.batch() is None
    storage.insert(numbered(3, 2))
    assert stamps(storage.batch())[:2] == [1000, 2100]
    assert stamps(storage.batch())[:2] == [2000, 2200]
    assert storage.batch() is None


def test_replayed_columns_are_whole():
    storage = replay(batch=4)
    for version in range(1, 10):
        storage.insert(numbered(2, version, truncated=[(version % 3, 0), (0, 1)]))
        batch = storage.batch()
        assert torch.equal(batch.obs["number"][:-1], batch.reward)
        assert torch.equal(batch.final_obs["number"], batch.reward[batch.truncated] + 0.5)
        assert torch.equal(batch.memory.state[1], 2 * batch.reward[0])
        assert torch.equal(batch.version, batch.reward[0].int() // 1000)
        assert batch.obs["image"].dtype == torch.uint8


def test_the_oldest_columns_leave_first():
    storage = replay(batch=4, capacity=5)
    for version in range(1, 40):
        storage.insert(numbered(2, version))
        batch = storage.batch()
        assert storage.stored == min(2 * version, 5)
        stored = [1000 * v + 100 * b for v in range(1, version) for b in range(2)][-5:]
        assert set(stamps(batch)[2:]) <= set(stored or stamps(batch)[:2])


def test_replay_is_uniform():
    storage, counts = replay(batch=2, capacity=4), dict.fromkeys(range(4), 0)
    for version in range(4004):
        storage.insert(numbered(1, version))
        age = version - 1 - storage.batch().version[1].item()
        if version >= 4:
            counts[age] += 1
    assert min(counts.values()) > 900  # of 1000 expected


@pytest.mark.parametrize(("batch", "fraction"), [(5, 0.5), (4, 0.3), (1, 0.5), (4, 0.001)])
def test_a_part_of_a_column_cannot_be_replayed(batch, fraction):
    with pytest.raises(ValueError, match=rf"storage.fraction: {fraction} of a worker's batch of {batch} columns"):
        replay(batch=batch, fraction=fraction)


def test_a_replay_continues_exactly():
    def rollouts(storage, start, stop):
        batches = []
        for version in range(start, stop):
            storage.insert(numbered(3, version, truncated=[(1, 1)]))
            while (batch := storage.batch()) is not None:
                batches.append(batch)
        return batches

    straight = replay(capacity=7)
    expected = rollouts(straight, 0, 20)[-13:]
    before = replay(capacity=7)
    head = rollouts(before, 0, 11)
    after = replay(capacity=7, seed=99)
    after.restore(before.state(contents=True))
    got = (head + rollouts(after, 11, 20))[-13:]
    for one, other in zip(got, expected, strict=True):
        assert_equal(one, other)


def test_without_contents_only_what_is_new_is_saved():
    before = replay()
    before.insert(numbered(5, 1))
    before.batch()
    after = replay(seed=99)
    after.restore(before.state(contents=False))
    assert after.stored == 0
    assert stamps(after.batch())[:2] == [1100, 1300]


@pytest.mark.parametrize("make", [fresh, replay])
def test_a_state_goes_through_a_checkpoint_file(make, tmp_path):
    straight: Storage = make(2)
    straight.insert(numbered(5, truncated=[(0, 0)]))
    straight.batch()
    checkpoint.save(tmp_path / "1.safetensors", straight.state(contents=True))
    resumed: Storage = make(2)
    resumed.restore(checkpoint.load(tmp_path / "1.safetensors"))
    assert_equal(resumed.batch(), straight.batch())
