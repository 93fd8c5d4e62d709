"""From YAML to typed settings and back: numbers, merging, `extends`, overrides and round trips."""

from __future__ import annotations

import math
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modrl.agent.actors import ActorCritic
from modrl.agent.algorithms import IMPALA
from modrl.agent.optimizers import Linear, RMSProp
from modrl.agent.storages import Fresh
from modrl.config import ConfigError, Document, merge, nearest, override, parse, read, read_file, to_yaml
from modrl.envs import Gym
from modrl.experiment import Experiment
from modrl.scheme.presets import presets
from tests.runs import SMALL, small

# --- scalars ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("5e-04", 5e-4), ("1e4", 1e4), ("+1e3", 1e3), ("1e-4 ", 1e-4), ("1.0e-4", 1e-4), (".5", 0.5), ("1.", 1.0), ("-1e-4", -1e-4),
        ("20e6", 2e7), ("2_000", 2000), ("1_000_000", 1_000_000), ("1_0.5", 10.5), ("010", 10), ("-3", -3), ("0", 0), ("1E5", 1e5),
        (".inf", math.inf), ("-.inf", -math.inf), ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("on", "on"), ("no", "no"), ("yes", "yes"), ("off", "off"), ("1:30", "1:30"), ("2024-01-02", "2024-01-02"), ("0x1F", "0x1F"), ("1e", "1e"),
        ("e5", "e5"), ("1.2.3", "1.2.3"), ("'1e-4'", "1e-4"), ("_1", "_1"),
    ],
)  # fmt: skip
def test_scalars_are_what_a_person_means(text, value):
    found = parse(text)
    assert found == value
    assert type(found) is type(value)


def test_plain_yaml_reads_the_first_of_them_as_text():
    """The reason for a loader of our own."""
    assert [yaml.safe_load(text) for text in ("1e-4", "010", "1:30", "no")] == ["1e-4", 8, 90, False]


def loaded(text, folder, overrides=(), name="experiment.yaml"):
    (folder / name).write_text(text)
    return Experiment.load(folder / name, overrides)


TEXT = to_yaml(SMALL)


def test_numbers_take_the_type_of_their_setting(tmp_path):
    experiment = loaded(TEXT, tmp_path, ["steps=1e4", "optimizer.lr=1e-4", "envs.count=1_6", "storage.batch=16.0", "algorithm.discount=1"])
    assert (experiment.steps, experiment.envs.count, experiment.storage.batch) == (10_000, 16, 16)
    assert all(type(value) is int for value in (experiment.steps, experiment.envs.count, experiment.storage.batch))
    assert experiment.optimizer.lr == 1e-4
    assert experiment.algorithm.discount == 1


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ("optimizer.lr=on", "optimizer.lr", "expected a number, got 'on' (str)"),
        ("optimizer.lr=abc", "optimizer.lr", "expected a number, got 'abc' (str)"),
        ("steps=0.5", "steps", "expected a whole number, got 0.5 (float)"),
        ("steps='1e4'", "steps", "expected a whole number, got '1e4' (str)"),
        ("seed=true", "seed", "expected a whole number, got True (bool)"),
        ("algorithm.discount=.nan", "algorithm.discount", None),
        ("algorithm.discount=.inf", "algorithm.discount", None),
    ],
)
def test_what_does_not_convert_is_refused_with_its_key(given, path, expected, tmp_path):
    with pytest.raises(ConfigError) as error:
        loaded(TEXT, tmp_path, [given])
    [problem] = error.value.problems
    assert ".".join(map(str, problem.path)) == path
    assert expected is None or problem.text == expected


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "x:\n  a: 1\n  b: 2\n  a: 3\n", "x: {a: 1, a: 3}\n"])
def test_a_key_that_stands_twice_is_an_error_with_both_lines(text):
    with pytest.raises(ConfigError, match="this key stands twice, first in line") as error:
        read(text, "a.yaml")
    line = max(i for i, part in enumerate(text.splitlines(), 1) if "a: 3" in part)
    assert error.value.problems[0].origin == ("a.yaml", line)


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just text\n", "a: [1\n", "a: {b: 1\n", "\ta: 1\n"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigError):
        read(text, "a.yaml")


# --- merging ---


def merged(base, top):
    return merge(Document(base, {}), Document(top, {})).data


@pytest.mark.parametrize(
    ("base", "top", "result"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"x": {"a": 1, "b": {"c": 2, "d": 3}}}, {"x": {"b": {"c": 4}}}, {"x": {"a": 1, "b": {"c": 4, "d": 3}}}),
        ({"x": {"name": "a", "p": 1}}, {"x": {"p": 2}}, {"x": {"name": "a", "p": 2}}),
        ({"x": {"name": "a", "p": 1}}, {"x": {"name": "a", "q": 2}}, {"x": {"name": "a", "p": 1, "q": 2}}),
        ({"x": {"name": "a", "p": 1}}, {"x": {"name": "b", "q": 2}}, {"x": {"name": "b", "q": 2}}),
        ({"x": {"name": "a", "p": 1}}, {"x": "b"}, {"x": {"name": "b"}}),
        ({"x": {"name": "a", "p": 1}}, {"x": "a"}, {"x": {"name": "a", "p": 1}}),
        ({"x": "a"}, {"x": {"p": 2}}, {"x": {"name": "a", "p": 2}}),
        ({"x": "a"}, {"x": {"name": "b", "p": 2}}, {"x": {"name": "b", "p": 2}}),
        ({"scheme": "impala"}, {"scheme": {"collection": {"workers": 4}}}, {"scheme": {"preset": "impala", "collection": {"workers": 4}}}),
        ({"scheme": {"preset": "impala", "collection": {"workers": 4}}}, {"scheme": "a3c"}, {"scheme": {"preset": "a3c"}}),
        ({"scheme": {"collection": {"workers": 4}}}, {"scheme": "a3c"}, {"scheme": {"preset": "a3c"}}),
        ({"lr": {"linear": [1, 0]}}, {"lr": {"cosine": [1, 0]}}, {"lr": {"cosine": [1, 0]}}),
        ({"lr": {"linear": [1, 0]}}, {"lr": 0.1}, {"lr": 0.1}),
        ({"lr": 0.1}, {"lr": {"linear": [1, 0]}}, {"lr": {"linear": [1, 0]}}),
        ({"l": [1, 2, 3]}, {"l": [4]}, {"l": [4]}),
        ({"x": {"a": 1}}, {"x": None}, {"x": None}),
        ({"x": None}, {"x": {"a": 1}}, {"x": {"a": 1}}),
    ],
)  # fmt: skip
def test_a_block_is_laid_over_another_unless_it_names_something_else(base, top, result):
    before = repr((base, top))
    assert merged(base, top) == result
    assert repr((base, top)) == before


def test_origins_follow_what_was_taken_from_where():
    base = read("x: {name: a, p: 1}\ny:\n  q: 1\n  r: 2\n", "base.yaml")
    top = read("x: {name: b}\ny: {q: 3}\n", "top.yaml")
    origins = merge(base, top).origins
    assert ("x", "p") not in origins
    assert origins["y", "q"] == ("top.yaml", 2)
    assert origins["y", "r"] == ("base.yaml", 4)


def test_an_override_is_nested_by_its_dots():
    assert override("a.b.c=[1, 2e-3]").data == {"a": {"b": {"c": [1, 2e-3]}}}
    assert override("scheme={preset: impala, collection: {workers: 4}}").data == {"scheme": {"preset": "impala", "collection": {"workers": 4}}}
    assert override("a=").data == {"a": None}
    assert override("a=b=c").data == {"a": "b=c"}


def test_the_last_override_wins(tmp_path):
    assert loaded(TEXT, tmp_path, ["seed=3", "seed=5"]).seed == 5


def test_an_override_of_another_component_leaves_nothing_of_the_old_one(tmp_path):
    experiment = loaded(
        TEXT,
        tmp_path,
        ["algorithm=ppo", "algorithm.epochs=2", "scheme=impala", "scheme.collection.workers=4", "scheme.collection.gather=2", "storage.batch=4"],
    )
    assert experiment.algorithm.owner.name == "ppo"
    assert (experiment.algorithm.epochs, experiment.algorithm.reward) == (2, "none")
    assert (experiment.scheme.collection.workers, experiment.scheme.collection.max_lag) == (4, 4)
    assert loaded(TEXT, tmp_path, ["optimizer=rmsprop"]).optimizer == RMSProp.Config()


# --- extends ---


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_a_file_is_laid_over_what_it_extends(tmp_path):
    write(tmp_path, base="a: 1\nx: {name: n, p: 1, q: 2}\n", top="extends: base.yaml\nb: 2\nx: {p: 3}\n")
    assert read_file(tmp_path / "top.yaml").data == {"a": 1, "x": {"name": "n", "p": 3, "q": 2}, "b": 2}


def test_several_files_are_laid_one_over_the_other_in_their_order(tmp_path):
    write(tmp_path, one="a: 1\nb: 1\nc: 1\n", two="b: 2\nc: 2\n", top="extends: [one.yaml, two.yaml]\nc: 3\n")
    assert read_file(tmp_path / "top.yaml").data == {"a": 1, "b": 2, "c": 3}


def test_extending_goes_on_and_paths_are_relative_to_each_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.yaml").write_text("extends: ../base.yaml\nb: 2\n")
    write(tmp_path, base="a: 1\nb: 1\n", top="extends: sub/deep.yaml\nc: 3\n")
    assert read_file(tmp_path / "top.yaml").data == {"a": 1, "b": 2, "c": 3}


def test_two_may_extend_the_same_but_none_itself(tmp_path):
    write(tmp_path, base="a: 1\n", one="extends: base.yaml\nb: 1\n", two="extends: base.yaml\nc: 1\n", top="extends: [one.yaml, two.yaml]\n")
    assert read_file(tmp_path / "top.yaml").data == {"a": 1, "b": 1, "c": 1}
    write(tmp_path, x="extends: y.yaml\n", y="extends: x.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        read_file(tmp_path / "x.yaml")


@pytest.mark.parametrize("value", ["3", "[1]", "{a: b}"])
def test_what_cannot_be_extended_is_refused(value, tmp_path):
    write(tmp_path, top=f"extends: {value}\n")
    with pytest.raises(ConfigError, match="expected a file or a list of files"):
        read_file(tmp_path / "top.yaml")


def test_a_mistake_in_an_extended_file_is_told_with_that_file(tmp_path):
    write(tmp_path, base=TEXT + "sede: 3\n", top="extends: base.yaml\nseed: 2\n")
    line = len(TEXT.splitlines()) + 1
    with pytest.raises(ConfigError, match=rf"base\.yaml:{line}  sede: unknown key; did you mean 'seed'\?"):
        Experiment.load(tmp_path / "top.yaml")


# --- round trips ---


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(blacklist_categories=["Cs", "Cc"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(whitelist_categories=["Ll", "Nd"]), min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), PLAIN, min_size=1, max_size=4))
def test_any_plain_data_survives_a_file(data):
    again = read(to_yaml(data), "a.yaml").data
    assert again == data
    assert repr(again) == repr(data)  # 1 is not 1.0, and true is not 1


rates = st.floats(1e-6, 1) | st.fixed_dictionaries({"linear": st.lists(st.floats(0, 1), min_size=2, max_size=2)})
experiments = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9_.-]{0,7}", fullmatch=True),
        "seed": st.integers(0, 2**40),
        "steps": st.integers(1, 10**12),
        "envs": st.just({"name": "gym", "id": "CartPole-v1", "count": 16}) | st.just({"name": "atari", "game": "pong", "count": 16}),
        "actor": st.fixed_dictionaries({"name": st.just("actor_critic"), "last_action": st.booleans(), "memory": st.none() | st.just("lstm")}),
        "algorithm": st.fixed_dictionaries({"name": st.sampled_from(["impala", "a2c", "ppo"]), "discount": st.floats(0, 1), "entropy_cost": rates}),
        "optimizer": st.fixed_dictionaries(
            {"name": st.sampled_from(["adam", "rmsprop", "torch.optim:SGD"]), "lr": rates, "max_grad_norm": st.none() | st.floats(0.1, 100)}
        ),
        "storage": st.fixed_dictionaries({"name": st.sampled_from(["fresh", "replay"]), "horizon": st.integers(1, 100), "batch": st.just(16)}),
        "scheme": st.sampled_from(["local", "overlapped", "sebulba", {"collection": {"place": "thread", "workers": 2}}]),
        "evaluation": st.none() | st.fixed_dictionaries({"every": st.sampled_from([1000, 1e6, "10min", "2h"])}),
        "checkpoint": st.fixed_dictionaries({"every": st.sampled_from([1000, "30s"]), "storage": st.booleans()}),
    }
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments)
def test_an_experiment_survives_plain_data_and_a_file(tmp_path_factory, data):
    experiment = Experiment.from_dict(data)
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    folder = tmp_path_factory.mktemp("saved")
    experiment.save(folder / "a.yaml")
    again = Experiment.load(folder / "a.yaml")
    assert again == experiment
    again.save(folder / "b.yaml")
    assert (folder / "a.yaml").read_text() == (folder / "b.yaml").read_text()


@pytest.mark.parametrize("preset", sorted(presets()))
def test_every_preset_survives_a_file(preset, tmp_path):
    experiment = small(scheme=preset, envs={**SMALL["envs"], "count": 8}, storage={"name": "fresh", "horizon": 5, "batch": 8})
    experiment.save(tmp_path / "a.yaml")
    assert Experiment.load(tmp_path / "a.yaml") == experiment
    assert experiment.scheme.preset == preset


def test_a_script_and_a_file_give_the_same_experiment(tmp_path):
    text = """\
name: same
steps: 1e3
envs: {name: gym, id: CartPole-v1, count: 8}
actor: {name: actor_critic, torso: mlp, last_action: true}
algorithm: {name: impala, entropy_cost: 0.02}
optimizer: {name: rmsprop, lr: {linear: [6e-4, 0]}, eps: 0.01}
storage: {name: fresh, horizon: 5, batch: 8}
scheme: overlapped
"""
    script = Experiment(
        name="same", steps=1000, envs=Gym.Config(id="CartPole-v1", count=8), actor=ActorCritic.Config(torso="mlp", last_action=True),
        algorithm=IMPALA.Config(entropy_cost=0.02), optimizer=RMSProp.Config(lr=Linear(6e-4, 0), eps=0.01), storage=Fresh.Config(horizon=5, batch=8),
        scheme="overlapped",
    )  # fmt: skip
    assert loaded(text, tmp_path) == script


def test_replacing_follows_the_same_rule_as_a_file():
    one = small()
    assert one.replace(seed=7).seed == 7
    assert one.replace(algorithm={"discount": 0.5}).algorithm == IMPALA.Config(discount=0.5, reward="none")
    assert one.replace(algorithm="impala").algorithm == one.algorithm
    assert one.replace(algorithm={"name": "a2c"}).algorithm.reward == "none"
    assert one.replace(scheme="overlapped").scheme.collection.place == "thread"
    assert one.replace(optimizer=RMSProp.Config(lr=Linear(1, 0))).optimizer == RMSProp.Config(lr=Linear(1, 0))
    assert one.seed == 1
    with pytest.raises(ConfigError, match=re.escape("sede: unknown key; did you mean 'seed'?")):
        one.replace(sede=7)


def test_a_run_directory_trains_the_same_experiment_again(tmp_path):
    experiment = small(steps=40, algorithm={"name": "impala", "entropy_cost": {"linear": [0.1, 0]}})
    experiment.run(tmp_path / "run")
    assert Experiment.load(tmp_path / "run" / "experiment.yaml") == experiment


@pytest.mark.parametrize(("word", "meant"), [("discout", "discount"), ("impalla", "impala"), ("zzz", None)])
def test_the_nearest_name_is_suggested(word, meant):
    assert nearest(word, ["discount", "impala", "seed"]) == meant
