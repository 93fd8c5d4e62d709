"""Components of the user's own, with the mistakes that people make in them: what they are told, and that nothing is left behind."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import modrl
from modrl.config import BadInput
from modrl.experiment import Experiment
from tests.runs import SMALL, small, state_of, table

MODULE = """
    import gymnasium, numpy as np, torch
    from gymnasium.spaces import Box, Dict, Discrete
    from torch import nn
    from modrl.agent.actors import Torso
    from modrl.agent.algorithms import A2C, IMPALA
    from modrl.config import Component

    class Good(Torso):
        def __init__(self, config, *, space):
            super().__init__(config, space=space)
            self.size = 10
            self.linear = nn.Linear(self.shape[0], self.size)

        def forward(self, x):
            return self.linear(x)

    class WrongSize(Good):
        def forward(self, x):
            return super().forward(x)[:, :7]

    class ForgotReturn(Good):
        def forward(self, x):
            self.linear(x)

    class Raises(Good):
        def forward(self, x):
            raise RuntimeError("no such thing")

    class ForgotSize(Good):
        def __init__(self, config, *, space):
            Torso.__init__(self, config, space=space)

    class Env(gymnasium.Env):
        observation_space = Dict(pos=Discrete(6), goal=Box(-1, 1, (2,), np.float32))
        action_space = Discrete(2)
        obs = {"pos": 3, "goal": np.zeros(2, np.float32)}
        reward = 1.0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.first(), {}

        def first(self):
            return dict(self.obs)

        def step(self, action):
            return dict(self.obs), self.reward, bool(self.np_random.random() < 0.3), False, {}

    class Outside(Env):
        obs = {"pos": 9, "goal": np.zeros(2, np.float32)}

    class MissingKey(Env):
        obs = {"pos": 3}

    class WrongShape(Env):
        obs = {"pos": 3, "goal": np.zeros(3, np.float32)}

    class Words(Env):
        obs = {"pos": 3, "goal": ["a", "b"]}

    class NaNs(Env):
        obs = {"pos": 3, "goal": np.array([0, np.nan], np.float32)}

    class WrongStep(Env):
        obs = {"pos": -1, "goal": np.zeros(2, np.float32)}

        def first(self):
            return {"pos": 3, "goal": np.zeros(2, np.float32)}

    class NoReward(Env):
        reward = None

    class ListedReward(Env):
        reward = np.array([1.0])

    class NoInfo(Env):
        def reset(self, *, seed=None, options=None):
            return self.first()

    class Bytes(gymnasium.Env):
        observation_space = Box(0, 255, (4,), np.uint8)
        action_space = Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.full(4, 0.5), {}

        def step(self, action):
            return np.full(4, 0.5), 0.0, False, False, {}

    class TakenName(IMPALA):
        def metrics(self, batch, out):
            return super().metrics(batch, out) | {"wall_seconds": batch.reward}

    class TermsName(IMPALA):
        def metrics(self, batch, out):
            return super().metrics(batch, out) | {"loss/policy": batch.reward}

    class OptimizersName(IMPALA):
        def metrics(self, batch, out):
            return super().metrics(batch, out) | {"grad_norm": batch.reward}

    class TotalTerm(IMPALA):
        def terms(self, batch, out):
            return super().terms(batch, out) | {"total": batch.reward}

    class FloatTerm(IMPALA):
        def terms(self, batch, out):
            return super().terms(batch, out) | {"mine": 0.5}

    class AveragedMetric(IMPALA):
        def metrics(self, batch, out):
            return super().metrics(batch, out) | {"mine": batch.reward.mean()}

    class NoTerms(IMPALA):
        def terms(self, batch, out):
            pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports the module above, or a text, under a name of its own; it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text=MODULE):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def refused(experiment, folder):
    """What is said of it, before anything is written."""
    with pytest.raises(BadInput) as error:
        experiment.run(folder)
    assert not folder.exists()
    return str(error.value)


TORSOS = [
    ("WrongSize", "torso mine:WrongSize gave [1, 7], expected [1, 10]: observations × its `size`"),
    ("ForgotReturn", "torso mine:ForgotReturn gave a NoneType, expected [1, 10]: observations × its `size`"),
    ("Raises", "actor: cannot act on these observations: RuntimeError: no such thing (mine.py:28)"),
    ("ForgotSize", "torso mine:ForgotSize does not say how many features it gives: set self.size in its __init__"),
]


@pytest.mark.parametrize(("name", "expected"), TORSOS, ids=[name for name, _ in TORSOS])
def test_a_torso_that_breaks_its_promise_is_found_before_the_run(name, expected, module, tmp_path):
    experiment = small(actor={"name": "actor_critic", "torso": f"{module('mine')}:{name}"})
    assert refused(experiment, tmp_path / "run") == expected


GAVE = "envs: env 0: reset() gave an observation that is not in its observation_space: "
ENVS = [
    ("Outside", f"{GAVE}pos: 9 (int) is not in Discrete(6)"),
    ("MissingKey", f"{GAVE}expected the keys pos, goal, got pos"),
    ("WrongShape", f"{GAVE}goal: expected shape [2], got [3]"),
    ("Words", f"{GAVE}goal: expected numbers, got ['a', 'b'] (list)"),
    ("NaNs", f"{GAVE}goal: contains not a number (nan)"),
    ("Bytes", f"{GAVE}expected uint8, got float64: array([0.5, 0.5, 0.5, 0.5]) (ndarray)"),
    ("WrongStep", "envs: env 0: step() gave an observation that is not in its observation_space: pos: -1 (int) is not in Discrete(6)"),
    ("NoReward", "envs: env 0: step() gave the reward None (NoneType), expected a number"),
    ("ListedReward", "envs: env 0: step() gave the reward array([1.]) (ndarray), expected a number"),
    ("NoInfo", "envs: env 0: reset() has to return an observation and an info dict"),
]


@pytest.mark.parametrize(("name", "expected"), ENVS, ids=[name for name, _ in ENVS])
def test_an_env_that_breaks_its_promise_is_found_before_the_run(name, expected, module, tmp_path):
    experiment = small(envs={"name": "gym", "id": f"{module('mine')}:{name}", "count": 8})
    assert refused(experiment, tmp_path / "run") == expected


def test_the_env_that_keeps_its_promise_trains(module, tmp_path):
    small(envs={"name": "gym", "id": f"{module('mine')}:Env", "count": 8}, steps=40).run(tmp_path / "run")
    assert len(table(tmp_path / "run")) == 1


ALGORITHMS = [
    ("TakenName", ValueError, "the algorithm's metric or loss term wall_seconds has the name of a column of the run's: rename it"),
    ("TermsName", Exception, "metric 'loss/policy' has the name of a loss term's column: rename it"),
    ("OptimizersName", ValueError, "the algorithm's metric or loss term grad_norm has the name of a column of the run's: rename it"),
    ("TotalTerm", Exception, "a loss term cannot be called 'total', which is the terms' sum: rename it"),
    ("FloatTerm", Exception, "loss term 'mine' is the float 0.5, expected one number per step, [5, 8]"),
    ("AveragedMetric", Exception, "metric 'mine' is [], expected one number per step, [5, 8]"),
    ("NoTerms", Exception, "loss terms have to be a dict of tensors by name, got NoneType"),
]


@pytest.mark.parametrize(("name", "kind", "expected"), ALGORITHMS, ids=[name for name, *_ in ALGORITHMS])
def test_terms_and_metrics_that_cannot_be_logged_are_refused(name, kind, expected, module, tmp_path):
    with pytest.raises(kind) as error:
        small(algorithm=f"{module('mine')}:{name}").run(tmp_path / "run")
    assert expected in str(error.value)


HEAD = "from modrl.agent.actors import Torso\nfrom modrl.agent.algorithms import A2C, IMPALA\nfrom pydantic import BaseModel\n"
MODULES = [
    ("class A(Torso):\n    class Config:\n        pass\n", "TypeError: A.Config must extend the settings of its base class: class Config(Torso.Config) (bad.py:4)"),
    ("class A(Torso):\n    class Config(BaseModel):\n        pass\n", "A.Config must extend the settings of its base class: class Config(Torso.Config)"),
    ("class A(IMPALA):\n    class Config(A2C.Config):\n        pass\n", "A.Config must extend the settings of its base class: class Config(IMPALA.Config)"),
    ("class A(Torso):\n    class Config(Torso.Config):\n        width = 3\n", "A non-annotated attribute was detected: `width = 3`"),
    ("class A(Torso)\n    pass\n", "importing 'bad' for 'bad:A' failed: SyntaxError: expected ':' (bad.py, line 4)"),
    ("1 / 0\n", "importing 'bad' for 'bad:A' failed: ZeroDivisionError: division by zero (bad.py:4)"),
    ("import not_there\n", "importing 'bad' for 'bad:A' failed: ModuleNotFoundError: No module named 'not_there' (bad.py:4)"),
    ("class B(Torso):\n    pass\n", "module 'bad' has no 'A'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MODULES, ids=[expected for _, expected in MODULES])
@pytest.mark.parametrize("place", ["actor.torso", "envs"])
def test_what_a_users_module_raises_is_told(text, expected, place, module):
    module("bad", HEAD + text)
    named = {"envs": {"name": "gym", "id": "bad:A", "count": 8}} if place == "envs" else {"actor": {"name": "actor_critic", "torso": "bad:A"}}
    with pytest.raises(BadInput) as error:
        small(**named)
    assert expected in str(error.value)


def test_an_env_named_where_envs_belong_is_told_the_way(module):
    with pytest.raises(BadInput, match=r"an environment of gymnasium's interface is \{name: gym, id: mine:Env\}"):
        small(envs={"name": f"{module('mine')}:Env", "count": 8})


def test_a_run_with_components_of_ones_own_is_repeated_from_its_own_file(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(textwrap.dedent(MODULE))
    path = tmp_path / "code" / "own.yaml"
    small().replace().save(path)
    words = [sys.executable, "-m", "modrl", "train", "own.yaml", "actor.torso=mine:Good", "--run-dir", str(tmp_path / "run")]
    subprocess.run(words, cwd=tmp_path / "code", check=True, timeout=120)
    again = [sys.executable, "-m", "modrl", "train", str(tmp_path / "run" / "experiment.yaml"), "--run-dir", str(tmp_path / "again")]
    subprocess.run(again, cwd=tmp_path, check=True, timeout=120)
    assert state_of(tmp_path / "again")["updater"]["version"] == 20


def test_ray_workers_import_modrl_from_where_this_process_did(tmp_path):
    """Ray puts the working directory first on its workers' path."""
    (tmp_path / "modrl").mkdir()
    (tmp_path / "modrl" / "__init__.py").write_text('raise ImportError("another modrl")')
    small(scheme="impala", steps=80).save(tmp_path / "small.yaml")
    program = (
        f"import sys; sys.path[0] = {str(Path(modrl.__file__).parents[1])!r}; from modrl import Experiment; Experiment.load('small.yaml').run('run')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_a_scheme_of_ones_own_is_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("preset: overlapped\ncollection: {ahead: 1}\n")
    path = tmp_path / "small.yaml"
    small().save(path)
    path.write_text(path.read_text().replace("scheme:\n  preset: local\n", "scheme:\n  preset: mine.yaml\n").partition("  collection:")[0])
    text = path.read_text() + "".join(
        f"{key}: {value!r}\n" for key, value in {"machine": {"threads": 1}}.items() if f"{key}:" not in path.read_text()
    )
    path.write_text(text)
    assert Experiment.load(path).scheme.collection.ahead == 1
    assert Experiment.load(path, ["scheme.collection.ahead=2"]).scheme.collection.ahead == 2
    (tmp_path / "mine.yaml").write_text("collection: {ahed: 1}\n")
    with pytest.raises(BadInput, match=r"mine.yaml:1  scheme.collection.ahed: unknown key; did you mean 'ahead'"):
        Experiment.load(path)
    (tmp_path / "mine.yaml").unlink()
    with pytest.raises(BadInput, match=r"mine\.yaml  cannot be read: No such file"):
        Experiment.load(path)


def test_a_scheme_file_named_on_the_command_line_is_looked_for_where_it_is_typed(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.yaml").write_text("collection: {place: thread, ahead: 1}\n")
    small().save(tmp_path / "small.yaml")
    monkeypatch.chdir(tmp_path / "here")
    assert Experiment.load(tmp_path / "small.yaml", ["scheme=mine.yaml"]).scheme.collection.place == "thread"


def test_a_resolved_experiment_needs_no_scheme_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("preset: overlapped\ncollection: {ahead: 1}\n")
    small().save(tmp_path / "small.yaml")
    experiment = Experiment.load("small.yaml", ["scheme=mine.yaml"])
    experiment.save("resolved.yaml")
    shutil.move("mine.yaml", "gone.yaml")
    assert Experiment.load("resolved.yaml") == experiment


def test_resuming_in_another_arrangement_begins_new_episodes(tmp_path):
    small(steps=400).run(tmp_path / "run")
    small(scheme="sebulba").run(tmp_path / "run", resume=True)
    small(steps=1200, scheme="local").run(tmp_path / "run", resume=True)
    assert table(tmp_path / "run")[-1]["env_steps"] == 1200


def test_resuming_with_another_network_is_refused_by_name(tmp_path):
    small(steps=400).run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"(?s)is of another agent: .*trunk\S+ is \[24, 5\] here, \[16, 5\] there"):
        small(actor={"name": "actor_critic", "torso": {"name": "mlp", "hidden": [24]}}).run(tmp_path / "run", resume=True)
    assert Experiment.load(tmp_path / "run" / "experiment.yaml").actor.torso.hidden == SMALL["actor"]["torso"]["hidden"]


def test_nothing_is_left_to_do_where_fewer_steps_are_asked_for(tmp_path):
    small(steps=400).run(tmp_path / "run")
    assert small(steps=40).run(tmp_path / "run", resume=True).env_steps == 400


def test_a_policy_refuses_what_is_no_observation(tmp_path):
    small(steps=80).run(tmp_path / "run")
    policy = modrl.load(tmp_path / "run")
    assert "trained for 80 env steps" in repr(policy)
    with pytest.raises(ValueError, match=r"not an observation of this policy's environment: "):
        policy.act([1.0, 2.0, 3.0])
