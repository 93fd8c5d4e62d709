"""Gymnasium environments by id, module, function and wrapper; one seed each; errors that say which env."""

import functools
import pickle
import subprocess
import sys
import traceback

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from modrl.config import ConfigError, dump, read, resolve, validate
from modrl.envs import Envs, Gym, probe
from modrl.envs.member import EnvError
from modrl.envs.toy import Count
from tests.envs import registering
from tests.envs.helpers import episodes, gym_envs, run

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])
gymnasium.register("OnlyHere-v0", Count)
IDS = ["modrl/Count-v0", "OnlyHere-v0", "tests.envs.registering:Imported-v0", "tests.envs.registering:make"]


@BOTH
@pytest.mark.parametrize("id", [*IDS, registering.make])
def test_an_env_is_named_by_id_module_or_function(id, vectorization):
    envs = gym_envs(id, 2, vectorization=vectorization)
    found = episodes(run(envs, 6))
    envs.close()
    assert [(e.reward, e.length, e.env) for e in found] == [(6.0, 3, 0), (6.0, 3, 1)] * 2


@BOTH
def test_a_lambda_a_nested_function_and_a_partial_make_envs(vectorization):
    n = 4

    def nested():
        return Count(n)

    for factory in [lambda: Count(n), nested, functools.partial(Count, n)]:
        envs = gym_envs(factory, 2, vectorization=vectorization)
        found = episodes(run(envs, 4))
        envs.close()
        assert [(e.reward, e.length) for e in found] == [(10.0, 4), (10.0, 4)]


def test_each_env_is_wrapped_and_numbered_for_itself():
    made = []
    wraps = [lambda env, name=name: made.append(name) or env for name in "ab"]
    envs = gym_envs(Count, 3, numbers=[4, 5, 6], wrappers=wraps)
    assert [env.number for env in envs.vector.envs] == [4, 5, 6]
    assert made == ["a", "b"] * 3


@pytest.mark.parametrize(
    "wrapper",
    [
        functools.partial(FrameStackObservation, stack_size=2),
        {"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 2},
        lambda env: FrameStackObservation(env, 2),
    ],
)
def test_wrappers_are_functions_names_or_blocks(wrapper):
    assert gym_envs(Count, wrappers=[wrapper, "gymnasium.wrappers:FlattenObservation"]).observation_space.shape == (2,)


@pytest.mark.parametrize("id", [Count, "modrl/Count-v0"])
def test_max_episode_steps_truncates(id):
    timesteps = run(gym_envs(id, kwargs={"n": 9}, max_episode_steps=4), 4)
    assert (timesteps[4].truncated[0], timesteps[4].final_obs.tolist()) == (True, [[4.0]])


def test_an_unknown_id_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no environment is registered as 'CartPol-v1'; did you mean 'CartPole-v\d'\?"):
        gym_envs("CartPol-v1")
    with pytest.raises(ValueError, match=r"registered as 'CartPole'; did you mean 'CartPole-v1'\?"):
        gym_envs("CartPole")
    with pytest.raises(ValueError, match=r"registered as 'Importd-v0'; did you mean 'Imported-v0'\?"):
        gym_envs("tests.envs.registering:Importd-v0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id: 'no.such.module:make'", "envs.id: cannot import 'no.such.module'"),
        ("id: 'no_such_module:Some-v0'", "envs.id: cannot import 'no_such_module' for 'no_such_module:Some-v0'"),
        ("id: 'tests.envs.registering:mak'", "envs.id: module 'tests.envs.registering' has no 'mak'; did you mean 'make'?"),
        ("id: 'x:<lambda>'", "envs.id: 'x:<lambda>' stands for a function that only the script that made it knows"),
        ("id: 3", "envs.id: expected an id, a function's name or a function, got 3"),
        ("id: CartPole-v1, wrappers: ['gymnasium.wrappers:Nothing']", "envs.wrappers: module 'gymnasium.wrappers' has no 'Nothing'"),
        ("id: CartPole-v1, wrappers: [{stack_size: 3}]", "envs.wrappers: expected a wrapper as package.module:Class, or as a block"),
        ("id: CartPole-v1, wrappers: [3]", "envs.wrappers: expected a wrapper as package.module:Class"),
        ("id: CartPole-v1, wrappers: 'gymnasium.wrappers:TimeLimit'", "envs.wrappers: expected a list, got"),
        ("id: CartPole-v1, vectorization: vector_entry_point, wrappers: ['gymnasium.wrappers:TimeLimit']", "wrappers: cannot take effect"),
        ("id: 'tests.envs.registering:make', vectorization: vector_entry_point", "'vector_entry_point' needs a registered id"),
        ("id: CartPole-v1, start_method: spawn", "start_method: takes effect with vectorization 'async' only, not 'sync'"),
        ("id: CartPole-v1, num_envs: 3", "envs.num_envs: unknown key; did you mean 'count'?"),
    ],
)
def test_what_cannot_work_is_refused_in_the_file(text, message):
    from modrl.config import Settings

    class File(Settings):
        envs: Envs.Config

    with pytest.raises(ConfigError) as error:
        validate(File, read(f"envs: {{name: gym, {text}}}", "bad.yaml"), "bad.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        Gym.Config(id="CartPole-v1", count=3),
        Gym.Config(id=registering.make),
        Gym.Config(id="tests.envs.registering:make"),
        Gym.Config(id="tests.envs.registering:Imported-v0"),
        Gym.Config(id="CartPole-v1", wrappers=[FrameStackObservation, {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 3}]),
    ],
)
def test_settings_with_importable_functions_survive_the_file(config):
    again = resolve("envs", dump(config))
    assert again == config
    assert dump(again) == dump(config)
    assert cloudpickle.loads(cloudpickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_settings_with_a_lambda_are_written_as_what_cannot_be_read():
    data = dump(Gym.Config(id=lambda: Count(), wrappers=[functools.partial(TimeLimit, max_episode_steps=3)]))
    assert data["id"].endswith("<lambda>")
    assert isinstance(data["wrappers"][0], str)
    with pytest.raises(ValueError, match="stands for a function"):
        resolve("envs", data)


def test_an_id_known_only_here_travels_with_its_settings():
    data = cloudpickle.dumps(Gym.Config(id="OnlyHere-v0"))
    program = "import sys, pickle; e = pickle.loads(sys.stdin.buffer.read()).build(numbers=[0], seeds=[0]); e.reset(); print(e.step([0]).obs[0, 0])"
    out = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=60, check=True)
    assert out.stdout.split() == [b"1.0"]


def test_the_schema_can_be_written():
    assert Gym.Config.model_json_schema()["properties"]["id"]


def test_seeds_differ_by_env_repeat_by_run_and_are_used_once():
    def draws(seeds):
        envs = gym_envs("modrl/SeedEcho-v0", 2, seeds=seeds)
        obs = [t.obs for t in run(envs, 2)]
        return np.array([obs[0], obs[2], envs.reset().obs]).T.tolist()

    first, second = draws([11, 12])
    assert len(set(first + second)) == 6
    assert draws([11, 12]) == [first, second]
    assert draws([12, 11]) == [second, first]
    assert not {*first, *second} & {x for row in draws([13, 14]) for x in row}


def test_sync_and_async_draw_the_same():
    sync, processes = gym_envs("modrl/SeedEcho-v0", 3), gym_envs("modrl/SeedEcho-v0", 3, vectorization="async")
    for a, b in zip(run(sync, 4), run(processes, 4), strict=True):
        assert a.obs.tolist() == b.obs.tolist()
    processes.close()


@BOTH
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("ignore:.*share an object")
def test_an_env_that_reuses_its_array_gives_the_right_observations(vectorization, nested):
    envs = gym_envs("modrl/Alias-v0", 2, kwargs={"n": 3, "end": "truncated", "nested": nested}, vectorization=vectorization)
    timesteps = run(envs, 3)
    envs.close()
    for key in ["a", "b"] if nested else [None]:
        leaves = [t.obs if key is None else t.obs[key] for t in timesteps]
        assert [leaf[:, 0].tolist() for leaf in leaves] == [[0, 0], [1, 1], [2, 2], [0, 0]]
        final = timesteps[3].final_obs
        assert (final if key is None else final[key]).tolist() == [[3.0], [3.0]]


@BOTH
def test_named_entries_are_taken_at_the_true_end(vectorization):
    envs = gym_envs("modrl/Lives-v0", 2, kwargs={"k": 2, "m": 2}, episode_info=["lives"], vectorization=vectorization)
    found = episodes(run(envs, 4))
    envs.close()
    assert [e.info for e in found] == [{"lives": 0.0}, {"lives": 0.0}]


class Broken(Count):
    """Fails in reset from the second on, or in the making."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.resets == 2:
            raise KeyError("second reset")
        return super().reset(seed=seed, options=options)


@BOTH
def test_an_env_that_raises_is_named_with_its_own_traceback(vectorization):
    envs = gym_envs("modrl/RaiseAt-v0", 1, numbers=[37], kwargs={"j": 3}, vectorization=vectorization)
    with pytest.raises(EnvError, match="env 37 failed in step: RuntimeError: boom") as error:
        run(envs, 5)
    envs.close()
    text = "".join(traceback.format_exception(error.value))
    assert "in fault" in text
    assert 'raise RuntimeError("boom")' in text


@BOTH
def test_an_env_that_raises_in_reset_is_named(vectorization):
    envs = gym_envs(Broken, 2, numbers=[5, 6], vectorization=vectorization)
    with pytest.raises(EnvError, match=r"env [56] failed in reset: KeyError: 'second reset'"):
        run(envs, 3)
    envs.close()


def test_if_one_env_cannot_be_made_the_others_are_closed():
    closed = []

    class Fourth(Count):
        made = 0

        def __init__(self):
            Fourth.made += 1
            if Fourth.made == 4:
                raise RuntimeError("no licence left")
            super().__init__()

        def close(self):
            closed.append(self)

    with pytest.raises(RuntimeError, match="no licence left"):
        gym_envs(Fourth, 4)
    assert len(closed) == 3


def test_what_is_no_gymnasium_env_is_refused():
    with pytest.raises(TypeError, match=r"builtins:dict gave dict, expected a gymnasium\.Env"):
        gym_envs(dict)


def test_an_envs_own_vector_version_gives_filler_and_one_seed_for_all():
    def play():
        envs = gym_envs("CartPole-v1", 4, vectorization="vector_entry_point", max_episode_steps=6)
        return run(envs, 14)

    timesteps = play()
    assert timesteps[6].truncated.all()
    assert timesteps[6].final_obs.tolist() == timesteps[6].obs.tolist()
    assert not timesteps[7].valid.any()
    assert timesteps[7].first.all()
    assert {(e.reward, e.length) for e in episodes(timesteps)} == {(6.0, 6)}
    assert all((a.obs == b.obs).all() for a, b in zip(timesteps, play(), strict=True))
    assert len({tuple(row) for row in timesteps[0].obs.tolist()}) == 4


def test_a_missing_vector_version_is_refused():
    with pytest.raises(ValueError, match="Acrobot-v1 has no vector version of its own; choose sync or async"):
        gym_envs("Acrobot-v1", vectorization="vector_entry_point")
    with pytest.raises(ValueError, match=r"changes the task; use envs \{name: atari, game: ALE/Pong-v5\}"):
        gym_envs("ALE/Pong-v5", vectorization="vector_entry_point")


def test_atari_ids_need_no_import():
    program = (
        "from modrl.envs import Gym\n"
        "for id in ('PongNoFrameskip-v4', 'ALE/Pong-v5'): print(Gym.Config(id=id).build(numbers=[0], seeds=[0]).reset().obs.shape)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True, text=True)
    assert out.stdout.splitlines() == ["(1, 210, 160, 3)"] * 2


def test_a_probe_tells_the_spaces_and_the_action_repeat():
    found = probe(Gym.Config(id="CartPole-v1", count=8))
    assert found[1:3] == (gymnasium.spaces.Discrete(2), 1)
    assert found.first.obs.shape == (1, 4)


def test_importing_the_envs_imports_no_emulator():
    program = "import sys, modrl.envs; assert not {'ale_py', 'ray', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
