"""Environments that fail are made anew with another seed, as often as the budget says, and what they failed in is filler."""

import contextlib
import multiprocessing
import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from modrl.agent.algorithms.transitions import transitions
from modrl.agent.batch import from_rollout
from modrl.config import BadInput
from modrl.envs import Atari, Envs
from modrl.envs.member import EnvError
from modrl.envs.restarts import new_seed
from modrl.envs.toy import Count
from tests.envs.helpers import MODES, Wrapped, episodes, gym_envs, run
from tests.envs.test_processes import await_gone, pids_of
from tests.runs import small, table
from tests.scheme.tiny import parts_of, weights_of

pytestmark = pytest.mark.timeout(60)

EACH_KIND = pytest.mark.parametrize("vectorization", ["sync", "async"])
ONE = {"faults/env_restarts": 1}


class Flaky(Count):
    """As Count, and observes a number drawn at the first reset. An env fails where one of its calls stands under its first seed.

    `fails`: by seed, the step call or (under `reset`) the reset call, counted from 1 over its life; `how`: it raises, or its process is killed.
    """

    saved = ("drawn", "born", "calls", "resets")

    def __init__(self, n=6, end="terminated", fails=None, reset=None, how="raise"):
        super().__init__(n, end)
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        self.fails, self.reset_fails, self.how = fails or {}, reset or {}, how
        self.drawn = self.calls = self.resets = 0
        self.born = None

    def reset(self, *, seed=None, options=None):
        self.born = seed if self.born is None else self.born
        self.resets += 1
        if self.reset_fails.get(self.born) == self.resets:
            self.fail()
        return super().reset(seed=seed, options=options)

    def begin(self):
        if self.resets == 1:
            self.drawn = draw(self.np_random)

    def observe(self):
        return np.array([self.t, self.drawn], np.float32)

    def outcome(self, action):
        self.calls += 1
        if self.fails.get(self.born) == self.calls:
            self.fail()
        return super().outcome(action)

    def fail(self):
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("boom")


def draw(generator):
    return int(generator.integers(2**20))


def drawn(seed):
    """What a Flaky that begins with this seed observes."""
    return draw(np.random.default_rng(seed))


def column(timestep, i):
    """What env i has in a timestep."""
    return (
        timestep.obs[i].tolist(),
        *(bool(x[i]) for x in (timestep.first, timestep.terminated, timestep.truncated, timestep.valid)),
        timestep.reward[i],
    )


def told(timesteps):
    """Env, return and length of each episode that ended."""
    return [(e.env, e.reward, e.length) for e in episodes(timesteps)]


# --- one environment ---


@EACH_KIND
def test_an_env_that_raises_is_made_anew_and_the_others_are_as_without_it(vectorization, caplog):
    with contextlib.closing(gym_envs(Flaky, 3, vectorization=vectorization)) as envs:
        whole = run(envs, 14)
    with contextlib.closing(gym_envs(Flaky, 3, kwargs={"fails": {101: 4}}, restarts=1, vectorization=vectorization)) as envs:
        broken = run(envs, 14)
        assert envs.counts() == ONE
        assert envs.counts() == {}
    assert [[column(t, i) for t in broken] for i in (0, 2)] == [[column(t, i) for t in whole] for i in (0, 2)]
    again = drawn(new_seed(101, 1))
    assert again != drawn(101)
    assert [column(t, 1) for t in broken[:4]] == [column(t, 1) for t in whole[:4]]
    assert [column(t, 1) for t in broken[4:]] == [
        ([0, again], True, False, False, False, 0),
        *(([k, again], False, False, False, True, k) for k in range(1, 6)),
        ([0, again], True, True, False, True, 6),
        *(([k, again], False, False, False, True, k) for k in range(1, 5)),
    ]
    assert all(t.final_obs is None for t in broken)
    assert sorted(told(broken)) == [*[(0, 21, 6)] * 2, (1, 21, 6), *[(2, 21, 6)] * 2]
    assert [record.getMessage() for record in caplog.records] == ["made anew: env 1 failed in step: RuntimeError: boom"]


@EACH_KIND
def test_an_episode_cut_short_beside_a_failure_keeps_its_last_observation(vectorization):
    with contextlib.closing(
        gym_envs(Flaky, 3, kwargs={"n": 4, "end": "truncated", "fails": {100: 4}}, restarts=1, vectorization=vectorization)
    ) as envs:
        last = run(envs, 4)[-1]
    assert last.truncated.tolist() == [False, True, True]
    assert last.final_obs.tolist() == [[4, drawn(101)], [4, drawn(102)]]
    assert [e.env for e in last.episodes] == [1, 2]


@EACH_KIND
def test_a_reset_that_fails_leaves_the_end_before_it_as_it_is(vectorization):
    with contextlib.closing(gym_envs(Flaky, 2, kwargs={"reset": {101: 2}}, restarts=1, vectorization=vectorization)) as envs:
        timesteps = run(envs, 12)
        assert envs.counts() == ONE
    assert column(timesteps[6], 1) == ([0, drawn(new_seed(101, 1))], True, True, False, True, 6)
    assert sorted(told(timesteps)) == [*[(0, 21, 6)] * 2, *[(1, 21, 6)] * 2]


def test_a_reset_of_all_that_fails_gives_a_new_env():
    envs = gym_envs(Flaky, 2, kwargs={"reset": {101: 2}}, restarts=1)
    run(envs, 2)
    again = envs.reset()
    assert again.obs.tolist() == [[0, drawn(100)], [0, drawn(new_seed(101, 1))]]
    assert again.valid.all()
    assert envs.counts() == ONE


@EACH_KIND
def test_each_restart_has_a_seed_of_its_own(vectorization):
    with contextlib.closing(
        gym_envs(Flaky, 1, kwargs={"fails": dict.fromkeys((100, new_seed(100, 1)), 2)}, restarts=2, vectorization=vectorization)
    ) as envs:
        timesteps = run(envs, 5)
        assert envs.counts() == {"faults/env_restarts": 2}
    assert [t.obs[0, 1] for t in timesteps if t.first[0]] == [drawn(100), drawn(new_seed(100, 1)), drawn(new_seed(100, 2))]
    assert [bool(t.valid[0]) for t in timesteps] == [True, True, False, True, False, True]


@EACH_KIND
def test_what_an_env_gives_wrongly_is_a_failure_too(vectorization, caplog):
    rewards = [1.0, None]
    with contextlib.closing(gym_envs("tests.envs.helpers:Rewards", 1, kwargs={"rewards": rewards}, restarts=1, vectorization=vectorization)) as envs:
        assert [bool(t.valid[0]) for t in run(envs, 3)] == [True, True, False, True]
        with pytest.raises(EnvError, match=r"env 0: step\(\) gave the reward None"):
            envs.step([0])
    assert [record.getMessage() for record in caplog.records] == ["made anew: env 0: step() gave the reward None (NoneType), expected a number"]


def test_what_raises_in_the_closing_of_an_env_that_failed_is_ignored():
    class Closing(Flaky):
        def close(self):
            if self.calls == 4:
                raise RuntimeError("cannot close")

    envs = gym_envs(Closing, 2, kwargs={"fails": {101: 4}}, restarts=1)
    assert run(envs, 4)[-1].valid.tolist() == [True, False]


# --- the budget ---


@pytest.mark.parametrize(
    ("restarts", "settings"),
    [
        *[(restarts, {"vectorization": vectorization}) for restarts in (1, 2, 3) for vectorization in ("sync", "async")],
        (3, {"vectorization": "async", "start_method": "spawn"}),
    ],
)
def test_past_the_budget_the_error_names_the_env_and_the_restarts(restarts, settings):
    """Both envs fail in steps 2, 4, …: the budget is for both together."""
    with contextlib.closing(gym_envs("modrl/RaiseAt-v0", 2, numbers=[6, 7], kwargs={"j": 2}, restarts=restarts, **settings)) as envs:
        run(envs, 3 if restarts > 1 else 1)
        with pytest.raises(EnvError, match=r"env [67] failed in step: RuntimeError: boom[\s\S]*no restart is left: \d were made") as error:
            envs.step([0, 0])
    assert error.value.__notes__ == [f"no restart is left: {restarts} were made (scheme.faults.env_restarts)"]


@EACH_KIND
def test_without_a_budget_an_error_is_as_ever(vectorization):
    with contextlib.closing(gym_envs("modrl/RaiseAt-v0", kwargs={"j": 2}, vectorization=vectorization)) as envs:
        with pytest.raises(EnvError, match="env 0 failed in step: RuntimeError: boom") as error:
            run(envs, 2)
        assert envs.counts() == {}
    assert not hasattr(error.value, "__notes__")


@EACH_KIND
def test_a_first_reset_that_fails_fails_at_once(vectorization):
    with contextlib.closing(gym_envs(Flaky, 2, kwargs={"reset": {101: 1}}, restarts=5, vectorization=vectorization)) as envs:
        with pytest.raises(EnvError, match="env 1 failed in reset: RuntimeError: boom") as error:
            envs.reset()
        assert envs.counts() == {}
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("where", ["made", "reset"])
def test_an_env_that_cannot_begin_again_spends_a_restart_at_each_attempt(where):
    made, closed = [], []

    class Once(Flaky):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)
            if where == "made" and len(made) > 1:
                raise OSError("no licence")

        def reset(self, **options):
            if len(made) > 1:
                raise OSError("no licence")
            return super().reset(**options)

        def close(self):
            closed.append(self)

    envs = gym_envs(Once, kwargs={"fails": {100: 2}}, restarts=3)
    doing = "while it was made anew" if where == "made" else "in reset"
    with pytest.raises(EnvError, match=f"env 0 failed {doing}: OSError: no licence[\\s\\S]*no restart is left: 3 were made"):
        run(envs, 2)
    envs.close()
    assert len(made) == 4
    assert closed == (made[:1] if where == "made" else made)


@pytest.mark.parametrize("attempts", [2, 3])
def test_attempts_that_fail_are_counted_until_one_succeeds(attempts):
    fails = {new_seed(100, k): 1 for k in range(1, attempts)}
    envs = gym_envs(Flaky, kwargs={"fails": {100: 2}, "reset": fails}, restarts=attempts)
    assert run(envs, 2)[-1].obs.tolist() == [[0, drawn(new_seed(100, attempts))]]
    assert envs.counts() == {"faults/env_restarts": attempts}


# --- all of a vector ---


def assert_all_anew(timestep, seeds):
    """Filler for every env, and first observations of envs with these seeds."""
    filler = [column(timestep, i) for i in range(len(seeds))]
    assert filler == [([0, drawn(seed)], True, False, False, False, 0) for seed in seeds]
    assert (timestep.final_obs, timestep.episodes) == (None, ())


def test_after_the_end_of_a_process_all_envs_of_the_vector_are_made_anew(caplog):
    with contextlib.closing(gym_envs(Flaky, 2, vectorization="async", kwargs={"fails": {101: 4}, "how": "kill"}, restarts=1)) as envs:
        timesteps = run(envs, 3)
        before = pids_of(envs)
        timesteps.append(envs.step([0, 0]))
        assert await_gone(before)
        timesteps += [envs.step([0, 0]) for _ in range(6)]
        assert envs.counts() == ONE
    assert_all_anew(timesteps[4], [new_seed(100, 0), new_seed(101, 0)])
    assert told(timesteps) == [(0, 21, 6), (1, 21, 6)]
    assert all(t.valid.all() for t in timesteps[:4] + timesteps[5:])
    (record,) = caplog.records
    message = "envs 0, 1 made anew: env 1 (exit status -9): its process ended in step; what it printed stands above"
    assert (record.levelname, record.getMessage()) == ("WARNING", message)
    assert not multiprocessing.active_children()


def test_processes_that_end_and_envs_that_raise_spend_one_budget():
    fails = {100: 2, new_seed(new_seed(100, 0), 1): 2}
    envs = gym_envs(Flaky, 2, vectorization="async", kwargs={"fails": fails}, restarts=2)
    with contextlib.closing(envs):
        run(envs, 2)
        os.kill(pids_of(envs)[1], signal.SIGKILL)
        assert not envs.step([0, 0]).valid.any()
        assert envs.counts() == {"faults/env_restarts": 2}
        os.kill(pids_of(envs)[1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"env 1 \(exit status -9\): its process ended in step[\s\S]*no restart is left: 2 were made"):
            envs.step([0, 0])


class Breaking(SyncVectorEnv):
    """Flaky side by side; the first `times` of them that are made raise in the third call of `where`, the next `stillborn` in their first reset."""

    made = ended = 0

    def __init__(self, num_envs, mode, where="step", times=1, stillborn=0):
        super().__init__([Flaky] * num_envs, autoreset_mode=AutoresetMode[mode.upper()])
        self.where, self.calls = where, 0
        self.breaks = Breaking.made < times
        self.stillborn = times <= Breaking.made < times + stillborn
        Breaking.made += 1

    def reset(self, **options):
        if self.stillborn:
            raise RuntimeError("cannot begin")
        self.called("reset")
        return super().reset(**options)

    def step(self, actions):
        self.called("step")
        return super().step(actions)

    def close_extras(self, **options):
        Breaking.ended += 1
        super().close_extras(**options)

    def called(self, what):
        self.calls += what == self.where
        if self.breaks and self.calls == 3:
            raise RuntimeError("crash")


gymnasium.register("tests/Breaking-v0", Flaky, vector_entry_point=Breaking)


def breaking(restarts, mode="same_step", **kwargs):
    Breaking.made = Breaking.ended = 0
    kwargs = {"mode": mode, **kwargs}
    return gym_envs("tests.envs.test_restarts:tests/Breaking-v0", 2, vectorization="vector_entry_point", kwargs=kwargs, restarts=restarts)


def seeds_of_vector(*seeds):
    """The columns' seeds where the env's own vector version has one for all."""
    first = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    return [first + i for i in range(len(seeds))]


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_env_of_its_own_that_raises_is_made_anew(mode, caplog):
    envs = breaking(1, mode)
    timesteps = run(envs, 9)
    assert_all_anew(timesteps[3], seeds_of_vector(new_seed(100, 0), new_seed(101, 0)))
    assert all(t.valid.all() for t in timesteps[:3] + timesteps[4:])
    assert told(timesteps) == [(0, 21, 6), (1, 21, 6)]
    assert envs.counts() == ONE
    assert [record.getMessage() for record in caplog.records] == ["envs 0, 1 made anew: RuntimeError: crash"]


def test_a_vector_env_that_raises_when_it_is_told_to_reset_some_is_made_anew():
    envs = breaking(1, "disabled", where="reset")
    timesteps = run(envs, 18)
    assert_all_anew(timesteps[12], seeds_of_vector(new_seed(100, 0), new_seed(101, 0)))
    assert told(timesteps) == [(0, 21, 6), (1, 21, 6)] * 2


def test_a_vector_env_past_the_budget_raises_its_own_error():
    envs = breaking(2, times=3)
    run(envs, 8)
    with pytest.raises(RuntimeError, match=r"crash[\s\S]*no restart is left: 2 were made"):
        envs.step([0, 0])


def test_a_vector_env_that_cannot_begin_again_spends_a_restart_at_each_attempt():
    envs = breaking(3, stillborn=2)
    assert run(envs, 3)[-1].first.all()
    assert envs.counts() == {"faults/env_restarts": 3}
    envs = breaking(3, stillborn=5)
    with pytest.raises(RuntimeError, match=r"cannot begin[\s\S]*no restart is left: 3 were made"):
        run(envs, 3)
    envs.close()
    assert Breaking.made == Breaking.ended == 4


def test_atari_games_are_made_anew():
    envs = Atari.Config(game="breakout", count=2).build(numbers=[0, 1], seeds=[1, 2], restarts=1)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(2, np.int64))

    def crash():
        raise RuntimeError("crash")

    envs.frames_before += 100  # as after an episode
    envs.vector.recv = crash
    again = envs.step(np.zeros(2, np.int64))
    assert (again.first.all(), again.valid.any(), again.obs.shape) == (True, False, (2, 4, 84, 84))
    assert envs.seeds == (new_seed(1, 0), new_seed(2, 0))
    timesteps = [envs.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert all(t.valid.all() for t in timesteps)
    assert not episodes(timesteps)
    assert envs.counts() == ONE
    envs.close()


# --- what others see of it ---


def test_no_trace_crosses_a_failure():
    envs = {"name": "gym", "id": "tests.envs.test_restarts:Flaky", "count": 1, "kwargs": {"n": 9}}
    parts, _ = parts_of(envs=envs, horizon=6, scheme={"preset": "local", "faults": {"env_restarts": 1}})
    collector = parts.collector(0)
    for env in collector.lanes[0].envs.vector.envs:
        env.unwrapped.fails = dict.fromkeys(collector.lanes[0].envs.seeds, 3)
    rollout = collector.collect(weights_of(parts.make_actor()))
    collector.close()
    batch = from_rollout(rollout)
    assert rollout.valid[:, 0].tolist() == [True, True, False, True, True, True]
    assert rollout.first[:, 0].tolist() == [True, False, False, True, False, False, False]
    assert transitions(batch, parts.make_actor()(batch), 1.0).cuts[:, 0].tolist() == [False, True, True, False, False, False]
    assert (rollout.counts, rollout.episodes, rollout.final_obs) == (ONE, (), None)


def test_a_run_counts_its_restarts(tmp_path):
    envs = {"name": "gym", "id": "modrl/RaiseAt-v0", "count": 8, "kwargs": {"j": 60}}
    small(envs=envs, scheme={"preset": "local", "faults": {"env_restarts": 8}}).run(tmp_path)
    assert table(tmp_path)[-1]["faults/env_restarts"] == 8


def test_a_restored_env_continues_exactly_through_its_restarts():
    fails = {100: 2, new_seed(100, 1): 4}
    straight, restored = (gym_envs(Flaky, 2, kwargs={"fails": fails}, restarts=2) for _ in range(2))
    run(straight, 4)
    restored.restore(straight.state())
    for _ in range(8):
        one, other = straight.step([0, 0]), restored.step([0, 0])
        for x, y in zip(one, other, strict=True):
            np.testing.assert_equal(x, y)
    assert straight.counts() == {"faults/env_restarts": 2}
    assert restored.counts() == ONE


@pytest.mark.parametrize("before", [0, 1])
def test_a_state_fits_whether_envs_may_be_made_anew_or_not(before):
    saved, restored = gym_envs(Flaky, 1, restarts=before), gym_envs(Flaky, 1, restarts=1 - before)
    run(saved, 3)
    restored.restore(saved.state())
    np.testing.assert_equal(restored.step([0])._asdict(), saved.step([0])._asdict())


def test_envs_that_do_not_take_restarts_say_so():
    class Own(Envs):
        def reset(self):
            raise NotImplementedError

        step = close = reset

    class Old(Wrapped):
        def __init__(self, config, *, numbers, seeds, training=True):
            super().__init__([Count], "same_step")

    class Passing(Own):
        def __init__(self, config, **runtime):
            super().__init__(config, **runtime)

    runtime = {"numbers": [0], "seeds": [0]}
    for owner in (Own, Old):
        with pytest.raises(BadInput, match=rf"envs: .*{owner.__name__} cannot make environments anew; set scheme.faults.env_restarts to 0"):
            owner.Config().build(**runtime, restarts=1)
        assert owner.Config().build(**runtime).restarts == 0
    assert Passing.Config().build(**runtime, restarts=2).restarts == 2
