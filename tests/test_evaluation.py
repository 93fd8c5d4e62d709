"""Evaluation, and policies loaded from a run."""

from __future__ import annotations

import csv
import json
import shutil
import signal

import numpy as np
import pytest
import torch

import modrl
from modrl import policy as policy_module
from modrl.checkpoint import CheckpointError
from modrl.config import BadInput
from modrl.envs.member import EnvError
from modrl.envs.toy import Toy
from modrl.evaluation import Result, episode_seeds, evaluate
from modrl.evaluator import Evaluator, Score
from modrl.interrupt import Interrupted
from modrl.policy import play
from modrl.rundir import RunDirError
from tests.runs import assert_equal_weights, small, state_of, table, trained, weights_of
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
    parts, _ = parts_of(envs=envs, actor=actor)
    made = parts.make_actor()
    with torch.no_grad():
        made.b.fill_(b)
    return evaluate(made, parts.envs, episodes, seed=seed, greedy=greedy)


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
    result = evaluate(actor, parts.envs, 2, seed=1, greedy=True)
    assert result.lengths == [3, 3]
    assert said == [1, 2, 3, 1, 2, 3]
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


# --- the protocol ---


ECHO = {"name": "gym", "id": "modrl/SeedEcho-v0"}


def opened_with(envs, episodes, seed=0):
    """What each episode of an evaluation begins with."""
    parts, _ = parts_of(envs=envs)
    actor, seen = parts.make_actor(), {}

    def act(obs, first, memory, *rest):
        if first.all():
            seen[len(seen)] = obs.flatten().tolist()
        return type(actor).act(actor, obs, first, memory, *rest)

    actor.act = act
    result = evaluate(actor, parts.envs, episodes, seed=seed, greedy=True)
    return [value for wave in seen.values() for value in wave], result


def test_each_episode_has_its_own_seed_however_many_are_played_side_by_side():
    one, result = opened_with({**ECHO, "count": 1}, 6)
    assert len(set(one)) == 6
    assert result.seeds == episode_seeds(0, 6)
    for count in (2, 4, 6, 8):
        assert opened_with({**ECHO, "count": count}, 6)[0] == one
    assert not set(opened_with({**ECHO, "count": 2}, 6, seed=1)[0]) & set(one)


def test_runs_of_different_seeds_are_evaluated_on_the_same_episodes(tmp_path):
    found = []
    for seed in (1, 2):
        small(seed=seed, evaluation={"every": 400, "episodes": 3}).run(tmp_path / str(seed))
        found.append(evaluations(tmp_path / str(seed)))
    assert [row["seed"] for row in found[0]] == [row["seed"] for row in found[1]] == [str(seed) for seed in episode_seeds(0, 3)] * 2
    small(evaluation={"every": 400, "episodes": 3, "seed": 5}).run(tmp_path / "another")
    assert {row["seed"] for row in evaluations(tmp_path / "another")} == {str(seed) for seed in episode_seeds(5, 3)}


def evaluations(folder):
    """evaluations.csv as dicts of text."""
    with open(folder / "evaluations.csv", newline="") as file:
        return list(csv.DictReader(file))


class Falls(Toy):
    """Ends at its first step that takes action 1, or at the tenth; pays 1 a step, and what `bonus` says at its end."""

    observation_space = modrl.envs.toy.Bandit.observation_space

    def __init__(self, bonus=0.0, fail_at=None):
        super().__init__()
        self.bonus, self.fail_at = bonus, fail_at

    def observe(self):
        return np.zeros(1, np.float32)

    def outcome(self, action):
        if self.fail_at is not None and self.t >= self.fail_at:
            raise RuntimeError("fell over")
        over = self.t >= 10
        return 1.0 + self.bonus * over, over, False


FALLS = {"name": "gym", "id": "tests.test_evaluation:Falls", "count": 8}


def test_every_episode_is_written_down_and_the_row_has_their_mean(tmp_path):
    small(envs={"name": "gym", "id": "CartPole-v1", "count": 8}, evaluation={"every": 200, "episodes": 5}).run(tmp_path)
    rows, written = [row for row in table(tmp_path) if row["eval_return"] is not None], evaluations(tmp_path)
    assert [row["eval/env_steps"] for row in rows] == [row["env_steps"] for row in rows] == [200, 400, 600, 800]
    assert len(written) == 20
    for row in rows:
        own = [entry for entry in written if int(entry["env_steps"]) == row["env_steps"]]
        assert [entry["episode"] for entry in own] == list("01234")
        assert row["eval_return"] == pytest.approx(np.mean([float(entry["return"]) for entry in own]), rel=1e-5)
        assert row["eval/length"] == pytest.approx(np.mean([int(entry["length"]) for entry in own]), rel=1e-5)


def test_in_the_background_the_same_is_found(tmp_path):
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8}
    for name, background in (("here", False), ("background", True)):
        small(envs=envs, evaluation={"every": 160, "episodes": 5, "background": background}).run(tmp_path / name)
    assert evaluations(tmp_path / "here") == evaluations(tmp_path / "background")
    assert len(evaluations(tmp_path / "here")) == 25
    assert_equal_weights(weights_of(state_of(tmp_path / "here")), weights_of(state_of(tmp_path / "background")))
    rows = [row for row in table(tmp_path / "background") if row["eval_return"] is not None]
    assert rows[-1]["eval/env_steps"] == rows[-1]["env_steps"] == 800
    assert all(row["eval/env_steps"] <= row["env_steps"] for row in rows)


@pytest.mark.parametrize("background", [False, True])
def test_an_environment_that_fails_in_an_evaluation_ends_the_run(background, tmp_path):
    envs = {**FALLS, "kwargs": {"fail_at": 7}, "max_episode_steps": 5}
    experiment = small(envs=envs, evaluation={"every": 400, "episodes": 3, "background": background})
    experiment.run(tmp_path / "whole")
    with pytest.raises(EnvError, match="fell over"):
        small(envs={**envs, "max_episode_steps": 50}, steps=40, evaluation={"every": 40, "episodes": 3, "background": background}).run(
            tmp_path / "fails"
        )


def test_the_best_weights_are_kept_however_the_run_goes_on(tmp_path):
    experiment = small(
        envs={"name": "gym", "id": "CartPole-v1", "count": 8}, optimizer={"name": "adam", "lr": 0.03}, evaluation={"every": 80, "episodes": 5}
    )
    experiment.run(tmp_path)
    scores = {row["env_steps"]: row["eval_return"] for row in table(tmp_path) if row["eval_return"] is not None}
    best = max(scores, key=lambda steps: (scores[steps], -steps))
    assert best != max(scores)  # else nothing is shown
    policy = modrl.load(tmp_path, checkpoint="best")
    assert policy.env_steps == best
    assert play(tmp_path, 5, checkpoint="best").mean_return == pytest.approx(scores[best])
    assert play(tmp_path, 5).mean_return == pytest.approx(scores[max(scores)])


def test_a_resumed_run_knows_the_best_so_far_and_writes_no_evaluation_twice(tmp_path):
    settings = {
        "envs": {"name": "gym", "id": "CartPole-v1", "count": 8}, "optimizer": {"name": "adam", "lr": 0.03},
        "evaluation": {"every": 80, "episodes": 5}, "checkpoint": {"every": 400},
    }  # fmt: skip
    small(**settings).run(tmp_path / "straight")
    small(**settings, steps=440).run(tmp_path / "resumed")
    best = modrl.load(tmp_path / "resumed", checkpoint="best").env_steps
    assert best < 440
    shutil.copytree(tmp_path / "resumed", tmp_path / "earlier")
    (tmp_path / "earlier" / "checkpoints" / "440.safetensors").unlink()  # as if killed before it was written
    for name in ("resumed", "earlier"):
        small(**settings).run(tmp_path / name, resume=True)
    straight = evaluations(tmp_path / "straight")
    assert evaluations(tmp_path / "earlier") == straight
    assert [row for row in evaluations(tmp_path / "resumed") if row["env_steps"] != "440"] == straight
    for name in ("resumed", "earlier"):
        assert modrl.load(tmp_path / name, checkpoint="best").env_steps == modrl.load(tmp_path / "straight", checkpoint="best").env_steps


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_evaluation_that_is_stopped_is_made_when_the_run_goes_on(after, tmp_path, monkeypatch):
    """Of 400, of 600, and of the end: the rest is as if nothing had happened."""
    settings = {"envs": {"name": "gym", "id": "CartPole-v1", "count": 8}, "evaluation": {"every": 400, "episodes": 3}, "steps": 1000}
    small(**settings).run(tmp_path / "straight")
    play_task, begun = Evaluator._play_task, []

    def stopped(self, index, config, env_steps, stop):
        begun.append(env_steps)
        if len(begun) == after:
            signal.raise_signal(signal.SIGTERM)
        return play_task(self, index, config, env_steps, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_play_task", stopped)
        with pytest.raises(Interrupted):
            small(**settings).run(tmp_path / "run")
    small(**settings).run(tmp_path / "run", resume=True)
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "straight")
    assert [row["env_steps"] for row in table(tmp_path / "run")] == [row["env_steps"] for row in table(tmp_path / "straight")]
    assert modrl.load(tmp_path / "run", checkpoint="best").env_steps == modrl.load(tmp_path / "straight", checkpoint="best").env_steps
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


def test_an_evaluation_is_due_where_no_row_is(tmp_path):
    small(logging={"tensorboard": False, "every": 400}, evaluation={"every": 160, "episodes": 2}).run(tmp_path)
    rows = table(tmp_path)
    assert [row["env_steps"] for row in rows if row["eval_return"] is not None] == [160, 320, 480, 640, 800]
    assert [row["env_steps"] for row in rows] == [160, 320, 400, 480, 640, 800]


@pytest.mark.parametrize("every", [40, 70, 10_000])
def test_checkpoints_leave_rows_and_evaluations_where_they_are(every, tmp_path):
    small(algorithm={"name": "ppo", "reward": "none"}, checkpoint={"every": every, "keep": 99}, evaluation={"every": 160, "episodes": 2}).run(
        tmp_path
    )
    rows = table(tmp_path)
    assert [row["env_steps"] for row in rows] == list(range(40, 801, 40))
    assert [row["env_steps"] for row in rows if row["eval_return"] is not None] == [160, 320, 480, 640, 800]


def test_the_best_by_another_protocol_is_not_compared_with(tmp_path, caplog):
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8}
    small(envs=envs, evaluation={"every": 80, "episodes": 3, "greedy": False}, steps=400).run(tmp_path)
    small(envs=envs, steps=440).run(tmp_path, resume=True)  # without any
    assert state_of(tmp_path)["best"] is not None
    small(envs=envs, evaluation={"every": 80, "episodes": 3}, steps=480).run(tmp_path, resume=True)
    assert "evaluated otherwise before" in caplog.text
    assert modrl.load(tmp_path, checkpoint="best").env_steps == 480


def test_a_return_that_is_no_number_is_never_the_best(tmp_path):
    run, directory = small(evaluation={"every": 80, "episodes": 1}).prepare(tmp_path)
    weights = run.updater.weights()
    for steps, found, best in ((80, float("nan"), None), (160, 1.0, 160), (240, float("nan"), 160), (320, 2.0, 320)):
        run.evaluator._heed(Score(steps, [Result([found], [1], [0])]), weights)
        assert (run.evaluator.best or {}).get("env_steps") == best
    assert modrl.load(directory.path, checkpoint="best").env_steps == 320


def test_each_task_is_evaluated_and_the_return_is_their_mean(tmp_path):
    per_worker = [{"envs": {"kwargs": {"bonus": bonus}}} for bonus in (0, 5)]
    scheme = {"preset": "local", "collection": {"workers": 4, "per_worker": per_worker}}
    small(envs=FALLS, scheme=scheme, evaluation={"every": 400, "episodes": 2}).run(tmp_path)
    last = table(tmp_path)[-1]
    assert (last["episode_return/task_0"], last["episode_return/task_1"], last["episode_return"]) == (10, 15, 12.5)
    rows = [row for row in table(tmp_path) if row["eval_return"] is not None]
    assert [(row["eval/task_0"], row["eval/task_1"], row["eval_return"]) for row in rows] == [(10, 15, 12.5)] * 2
    assert [(row["task"], row["episode"], row["return"]) for row in evaluations(tmp_path)] == [
        ("0", "0", "10"), ("0", "1", "10"), ("1", "0", "15"), ("1", "1", "15"),
    ] * 2  # fmt: skip


def test_best_without_an_evaluation_says_what_to_do(run_dir):
    with pytest.raises(CheckpointError, match="no best checkpoint: the run was not evaluated yet; set evaluation"):
        modrl.load(run_dir, checkpoint="best")
    with pytest.raises(CheckpointError, match="expected a checkpoint's env steps, latest or best, got 'bets'"):
        modrl.load(run_dir, checkpoint="bets")


# --- many at once ---


def test_a_policy_acts_for_many_as_for_each_alone(run_dir):
    rng = np.random.default_rng(1)
    steps, count = 12, 3
    obs = rng.normal(size=(steps, count, 4)).astype(np.float32)
    rewards = rng.normal(size=(steps, count)).astype(np.float32)
    first = rng.random((steps, count)) < 0.3
    many = modrl.load(run_dir)
    many.reset(count)
    together = np.stack([many.act(obs[t], rewards[t], first=first[t]) for t in range(steps)])
    states = many._memory.state[0].clone()
    assert together.shape == (steps, count)
    for column in range(count):
        alone, acted = modrl.load(run_dir), []
        for t in range(steps):
            if first[t, column]:
                alone.reset()
            acted.append(alone.act(obs[t, column], rewards[t, column]))
        np.testing.assert_array_equal(together[:, column], acted)
        torch.testing.assert_close(alone._memory.state[0].flatten(), states[column].flatten())
    assert first[1:].any()


def test_a_batch_of_another_size_is_refused(run_dir):
    policy = modrl.load(run_dir)
    policy.reset(3)
    with pytest.raises(ValueError, match=r"expected shape \[3, 4\], got \[2, 4\]"):
        policy.act(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="reward: expected 3 of them, one for each environment, got shape"):
        policy.act(np.zeros((3, 4), np.float32), reward=[1.0, 2.0])
    with pytest.raises(ValueError, match="expected the number of environments to act for, got 0"):
        policy.reset(0)
    policy.reset()
    assert np.shape(policy.act(np.zeros(4, np.float32))) == ()


@pytest.mark.parametrize("which", ["latest", "best"])
def test_a_loaded_policy_plays_the_episodes_of_an_evaluation(which, tmp_path):
    import gymnasium

    small(envs={"name": "gym", "id": "CartPole-v1", "count": 8}, actor=LSTM, steps=400, evaluation={"every": 200, "episodes": 5}).run(tmp_path)
    played = play(tmp_path, 5, checkpoint=which)
    policy, env = modrl.load(tmp_path, checkpoint=which), gymnasium.make("CartPole-v1")
    returns = []
    for seed in played.seeds:
        policy.reset()
        obs, _ = env.reset(seed=seed)
        total, reward, over = 0.0, 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs, reward))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert returns == played.returns
    assert len(set(returns)) > 1


# --- recordings ---


def frames_in(path):
    import imageio.v2 as imageio

    with imageio.get_reader(path) as reader:
        return [frame for frame in reader]  # noqa: C416 (not a list)


def test_a_recording_has_a_frame_for_each_step_of_each_episode(tmp_path):
    evaluation = {"every": 80, "episodes": 10, "video": True, "seed": 1}
    small(envs={"name": "gym", "id": "CartPole-v1", "count": 8}, steps=80, evaluation=evaluation).run(tmp_path / "run")
    lengths = [int(row["length"]) for row in evaluations(tmp_path / "run")]
    assert lengths[0] < max(lengths[:8])  # of those side by side; two more follow them
    played = play(tmp_path / "run", 3, video=tmp_path / "video")
    assert played == play(tmp_path / "run", 3)
    for number, length in enumerate(played.lengths):
        assert len(frames_in(tmp_path / "video" / f"episode-{number + 1}.mp4")) == length
    assert len(frames_in(tmp_path / "run" / "videos" / "80.mp4")) == played.lengths[0]
    assert [path.name for path in (tmp_path / "run" / "videos").iterdir()] == ["80.mp4"]


def test_what_cannot_be_recorded_is_refused_before_the_run(tmp_path):
    with pytest.raises(BadInput, match=r"evaluation\.video: these environments cannot be shown"):
        small(evaluation={"every": 80, "video": True}).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
