"""Evaluation, and policies loaded from a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import modrl
from modrl import policy as policy_module
from modrl.checkpoint import CheckpointError
from modrl.envs.toy import Toy
from modrl.evaluation import evaluate
from modrl.policy import play
from modrl.run import make_evaluation_envs
from modrl.rundir import RunDirError
from tests.runs import assert_equal_weights, small, table, trained, weights_of
from tests.scheme.tiny import counting, parts_of


class PaysTheAction(Toy):
    """The reward is the action; length 100."""

    observation_space = modrl.envs.toy.Bandit.observation_space

    def observe(self):
        return np.zeros(1, np.float32)

    def outcome(self, action):
        return float(action), self.t >= 100, False


PAYS = {"name": "gym", "id": "tests.test_evaluation:PaysTheAction", "count": 20}


def evaluated(envs, episodes, greedy, actor="Bias", b=0.1, seed=1):
    parts, _ = parts_of(envs=envs, actor=actor, seed=seed)
    made = parts.make_actor()
    with torch.no_grad():
        made.b.fill_(b)
    own = make_evaluation_envs(parts.envs, seed, episodes)
    try:
        return evaluate(made, own, episodes, greedy=greedy, generator=torch.Generator().manual_seed(seed))
    finally:
        own.close()


def test_a_greedy_policy_takes_the_likelier_action_always():
    for _ in range(2):
        result = evaluated(PAYS, 2, greedy=True)
        assert result.returns == [100, 100]
        assert result.lengths == [100, 100]


def test_a_sampled_policy_takes_it_as_often_as_it_is_likely():
    """Its probability is 0.524979, so the return is 52.5 with a standard deviation of 5."""
    result = evaluated(PAYS, 100, greedy=False)
    assert abs(result.mean_return - 52.4979) < 3 * 5 / 100**0.5
    assert 3 < np.std(result.returns) < 7
    assert evaluated(PAYS, 100, greedy=False).returns == result.returns
    assert evaluated(PAYS, 100, greedy=False, seed=2).returns != result.returns


def test_short_episodes_are_not_preferred():
    """Two envs of lengths 1 and 9: as many episodes of each."""
    envs = counting(2, n=[1, 9], mode="same_step")
    result = evaluated(envs, 6, greedy=True)
    assert sorted(result.lengths) == [1, 1, 1, 9, 9, 9]
    assert sorted(result.returns) == [1, 1, 1, 45, 45, 45]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_memory_is_carried_through_an_episode_and_forgotten_after_it(mode):
    parts, _ = parts_of(envs=counting(n=3, mode=mode), actor="CounterRNN")
    actor, said, first = parts.make_actor(), [], []

    def act(obs, begins, memory, *rest):
        step = type(actor).act(actor, obs, begins, memory, *rest)
        said.append(step.behaviour["value"].item())
        first.append(bool(begins))
        return step

    actor.act = act
    envs = make_evaluation_envs(parts.envs, 1, 1)
    evaluate(actor, envs, 2, greedy=True, generator=torch.Generator())
    envs.close()
    assert said == ([1, 2, 3, 4, 1, 2, 3] if mode == "next_step" else [1, 2, 3, 1, 2, 3])  # the fourth is filler
    assert first[0]
    assert sum(first) == 2


@pytest.mark.parametrize("scheme", ["local", "sebulba"])
def test_training_is_the_same_with_and_without_evaluation(scheme, tmp_path):
    plain = trained(small(scheme=scheme), tmp_path / "plain")
    watched = trained(small(scheme=scheme, evaluation={"every": 80, "episodes": 5, "greedy": False}), tmp_path / "watched")
    assert_equal_weights(weights_of(plain), weights_of(watched))
    evaluated_at = [row["env_steps"] for row in table(tmp_path / "watched") if row["eval_return"] is not None]
    assert evaluated_at == list(range(80, 801, 80))
    assert all(row["eval_return"] is None for row in table(tmp_path / "plain"))


def test_sampled_evaluation_repeats_whatever_the_callers_generator(tmp_path):
    found = []
    for number in (1, 2):
        torch.manual_seed(number)
        small(envs=PAYS, evaluation={"every": 100, "episodes": 5, "greedy": False}, storage={"name": "fresh", "horizon": 5, "batch": 20}).run(
            tmp_path / str(number)
        )
        found.append([row["eval_return"] for row in table(tmp_path / str(number))])
    assert found[0] == found[1]
    assert len(set(found[0])) > 4


def test_evaluation_is_in_raw_reward_and_whole_episodes(tmp_path):
    experiment = small(
        envs={"name": "gym", "id": "tests.envs.helpers:Rewards", "count": 8},
        algorithm={"name": "impala", "reward": "clip"},
        evaluation={"every": 400, "episodes": 3},
    )
    experiment.run(tmp_path / "run")
    assert [row["eval_return"] for row in table(tmp_path / "run") if row["eval_return"] is not None] == pytest.approx([195.3, 195.3])
    result = play(tmp_path / "run", 3)
    assert result.returns == pytest.approx([195.3] * 3)
    assert result.lengths == [3, 3, 3]


# --- policies ---


LSTM = {"name": "actor_critic", "torso": "mlp", "memory": {"name": "lstm", "size": 8}, "last_action": True, "last_reward": True}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A short run on CartPole with memory, and checkpoints at 400, 800 and 1200 steps."""
    folder = tmp_path_factory.mktemp("policy") / "run"
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8}
    small(envs=envs, actor=LSTM, steps=1200, checkpoint={"every": 400, "keep": 5}).run(folder)
    return folder


def test_a_loaded_policy_plays_an_environment_that_modrl_does_not_know_of(run_dir):
    import gymnasium

    policy, env = modrl.load(run_dir), gymnasium.make("CartPole-v1")
    assert policy.env_steps == 1200
    obs, _ = env.reset(seed=1)
    total, over, reward = 0, False, 0.0
    while not over:
        action = policy.act(obs, reward)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + 1, terminated or truncated
    assert total >= 8


def test_a_policy_remembers_until_its_reset(run_dir):
    def values(policy, count):
        said = []
        for i in range(count):
            policy.act(np.full(4, 0.1, np.float32), reward=float(i > 0))
            said.append(policy._memory.state[0].flatten().tolist())
        return said

    policy = modrl.load(run_dir)
    first = values(policy, 3)
    assert first[0] != first[1] != first[2]
    policy.reset()
    assert values(policy, 3) == first
    assert values(policy, 1) != first[:1]


def test_a_policy_says_what_the_collectors_actor_says(run_dir):
    """Step by step the same state as one stretch of the learner's."""
    policy = modrl.load(run_dir)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(5, 4))  # float64, as some envs give
    actions = [policy.act(x) for x in obs]
    actor, memory = policy.actor, policy.actor.initial_memory(1)
    for t, x in enumerate(obs):
        step = actor.act(torch.tensor(x[None], dtype=torch.float32), torch.tensor([t == 0]), memory, None, True)
        memory = step.memory
        assert step.action.item() == actions[t]
    assert all(np.shape(action) == () for action in actions)


def test_greedy_is_the_default_and_sampling_repeats_by_its_seed(run_dir):
    def acted(greedy):
        policy = modrl.load(run_dir)
        actions = []
        for _ in range(30):
            policy.reset()
            actions.append(int(policy.act(np.zeros(4, np.float32), greedy=greedy)))
        return actions

    assert len(set(acted(True))) == 1
    assert set(acted(False)) == {0, 1}
    assert acted(False) == acted(False)


def test_any_checkpoint_can_be_asked_for(run_dir):
    assert [modrl.load(run_dir, checkpoint=steps).env_steps for steps in (400, "800", "latest")] == [400, 800, 1200]
    one, other = (modrl.load(run_dir, checkpoint=steps).actor.state_dict() for steps in (400, 800))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_what_is_not_there_is_named(run_dir, tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at 500 env steps; there are: 400, 800, 1200"):
        modrl.load(run_dir, checkpoint=500)
    with pytest.raises(RunDirError, match="holds no run"):
        modrl.load(tmp_path / "nowhere")
    run, directory = small().prepare(tmp_path / "new")
    assert run is not None
    with pytest.raises(CheckpointError, match="no whole checkpoint in it yet"):
        modrl.load(directory.path)


def test_a_damaged_newest_checkpoint_gives_the_one_before(run_dir, tmp_path):
    import shutil

    shutil.copytree(run_dir, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "1200.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert modrl.load(tmp_path / "run").env_steps == 800


def test_observations_and_actions_keep_their_structure(tmp_path):
    actor = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}}
    envs = {"name": "gym", "id": "tests.scheme.tiny:Anything", "count": 8, "kwargs": {"see": "nested", "do": "dict"}}
    small(envs=envs, actor=actor, steps=80).run(tmp_path / "run")
    from tests.scheme.tiny import SPACES

    policy = modrl.load(tmp_path / "run")
    for _ in range(3):
        action = policy.act(SPACES["nested"].sample(), greedy=False)
        assert SPACES["dict"].contains(action), action


def test_playing_greedily_twice_is_the_same_and_another_seed_is_not(run_dir):
    one, two = (play(run_dir, 4) for _ in range(2))
    assert one == two
    assert play(run_dir, 4, greedy=False, seed=7) != play(run_dir, 4, greedy=False, seed=8)
    assert len(one.returns) == 4
    assert policy_module.load is modrl.load
