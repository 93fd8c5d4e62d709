"""Timesteps follow one convention, whatever the vector env underneath does."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from modrl.envs.toy import Alias, Const, Count, Lives
from tests.envs.helpers import MODES, Rewards, Wrapped, episodes, run


def count(n, end="terminated"):
    return lambda: Count(n, end)


def test_a_next_step_env_gives_its_resets_as_filler():
    timesteps = run(Wrapped([count(3)], "next_step"), 8)
    assert [t.obs[0, 0] for t in timesteps[1:]] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [i for i, t in enumerate(timesteps) if i and t.valid[0]] == [1, 2, 3, 5, 6, 7]
    assert [i for i, t in enumerate(timesteps) if t.first[0]] == [0, 4, 8]
    assert [i for i, t in enumerate(timesteps) if t.terminated[0]] == [3, 7]
    assert [(e.reward, e.length) for e in episodes(timesteps)] == [(6.0, 3), (6.0, 3)]


def test_filler_is_marked_for_each_env_alone():
    timesteps = run(Wrapped([count(3), count(5)], "next_step"), 8)
    assert sum(t.valid.astype(int) for t in timesteps[1:]).tolist() == [6, 7]


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_without_next_step_resets_all_steps_are_valid(mode):
    timesteps = run(Wrapped([count(3)], mode), 8)
    assert all(t.valid.all() for t in timesteps)
    assert [t.obs[0, 0] for t in timesteps[1:]] == [1, 2, 0, 1, 2, 0, 1, 2]
    assert [i for i, t in enumerate(timesteps) if t.first[0]] == [0, 3, 6]
    assert [t.reward[0] for t in timesteps[1:]] == [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_truncated_episode_gives_its_true_last_observation(mode):
    timesteps = run(Wrapped([count(3, "truncated"), count(5, "terminated"), count(3, "truncated")], mode), 4)
    assert timesteps[3].final_obs.tolist() == [[3.0], [3.0]]
    assert timesteps[3].truncated.tolist() == [True, False, True]
    assert all(t.final_obs is None for i, t in enumerate(timesteps) if i != 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_terminated_episode_has_no_final_observation(mode):
    assert all(t.final_obs is None for t in run(Wrapped([count(3)], mode), 8))


@pytest.mark.parametrize("mode", MODES)
def test_terminated_wins_over_truncated(mode):
    class Both(Count):
        def outcome(self, action):
            return 1.0, self.t >= 2, self.t >= 2

    last = run(Wrapped([lambda: Both(2)], mode), 2)[-1]
    assert (last.terminated[0], last.truncated[0], last.final_obs) == (True, False, None)


def test_three_rollouts_of_five_hold_thirteen_valid_steps_of_fifteen():
    timesteps = run(Wrapped([lambda: Const(5, "truncated")], "next_step"), 15)
    valid = np.array([t.valid[0] for t in timesteps[1:]]).reshape(3, 5)
    assert np.argwhere(~valid).tolist() == [[1, 0], [2, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_every_episode_has_its_exact_return_and_length(mode):
    timesteps = run(Wrapped([count(3), count(5)], mode, numbers=[7, 9]), 24)
    found = episodes(timesteps)
    assert len([e for e in found if e.env == 7]) >= 4
    assert {(e.env, e.reward, e.length) for e in found} == {(7, 6.0, 3), (9, 15.0, 5)}


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_in_mid_episode_starts_the_statistics_anew(mode):
    envs = Wrapped([count(3)], mode)
    run(envs, 2)
    assert [(e.reward, e.length) for e in episodes(run(envs, 3))] == [(6.0, 3)]


@pytest.mark.parametrize("mode", MODES)
def test_the_return_is_the_sum_of_raw_rewards(mode):
    timesteps = run(Wrapped([Rewards], mode), 3)
    assert episodes(timesteps)[0].reward == pytest.approx(195.3, abs=1e-9)
    assert timesteps[1].reward.dtype == np.float32


@pytest.mark.parametrize("mode", MODES)
def test_named_entries_of_the_true_end_are_in_the_episode(mode):
    timesteps = run(Wrapped([Rewards, Rewards], mode, episode_info=["success"]), 3)
    assert [e.info for e in episodes(timesteps)] == [{"success": 0.3}, {"success": 0.3}]
    timesteps = run(Wrapped([lambda: Lives(2, 2)], mode, episode_info=["lives"]), 4)
    assert episodes(timesteps)[0].info == {"lives": 0.0}


@pytest.mark.parametrize("mode", MODES)
def test_an_entry_that_is_missing_or_no_number_is_an_error(mode):
    with pytest.raises(ValueError, match=r"env 0 gave no 'sucess' at its episode's end, only success, text"):
        run(Wrapped([Rewards], mode, episode_info=["sucess"]), 3)
    with pytest.raises(ValueError, match=r"expected a number as 'text', got 'yes'"):
        run(Wrapped([Rewards], mode, episode_info=["text"]), 3)


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
@pytest.mark.parametrize("nested", [False, True])
def test_observations_do_not_change_after_they_were_given(mode, nested):
    timesteps = run(Wrapped([lambda: Alias(3, "truncated", nested)], mode, copy=False), 3)
    for key in ["a", "b"] if nested else [None]:
        obs = [(t.obs if key is None else t.obs[key])[0, 0] for t in timesteps]
        final = timesteps[3].final_obs if key is None else timesteps[3].final_obs[key]
        assert obs[:3] == [0, 1, 2]
        assert final.tolist() == [[3.0]]


@pytest.mark.parametrize("said", [None, "Sometimes"])
def test_an_unknown_autoreset_mode_is_refused(said):
    class Unknown(Wrapped):
        def make(self):
            vector = super().make()
            vector.metadata = {} if said is None else {"autoreset_mode": said}
            return vector

    with pytest.raises(ValueError, match=r"metadata\['autoreset_mode'\].*expected one of NextStep, SameStep, Disabled"):
        Unknown([count(3)], "same_step")


def test_a_mode_may_be_given_as_text():
    class Text(Wrapped):
        def make(self):
            vector = super().make()
            vector.metadata = {"autoreset_mode": "NextStep"}
            return vector

    assert Text([count(3)], "next_step").mode is AutoresetMode.NEXT_STEP


def test_close_may_be_called_twice_and_closes_each_env_once():
    closed = []

    class Closing(Count):
        def close(self):
            closed.append(self)

    envs = Wrapped([Closing, Closing], "same_step")
    envs.close()
    envs.close()
    assert len(closed) == len(set(map(id, closed))) == 2
