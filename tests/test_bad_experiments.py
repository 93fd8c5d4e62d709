"""What is wrong with a file or an override, and exactly what the user is told."""

from __future__ import annotations

import pytest

from modrl.config import BadInput, ConfigError
from modrl.experiment import Experiment

GOOD = """\
name: good
steps: 1e4
envs: {name: gym, id: CartPole-v1, count: 8}
actor: {name: actor_critic, torso: mlp}
algorithm: {name: impala}
optimizer: {name: adam, lr: 1e-3}
storage: {name: fresh, horizon: 4, batch: 8}
scheme: local
"""


def told(text, tmp_path, overrides=()):
    """The lines of the error for a file with this text."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        Experiment.load(path, overrides)
    return str(error.value).replace(f"{tmp_path}/", "").splitlines()


def with_line(number, line):
    """The good file with one line replaced."""
    lines = GOOD.splitlines()
    lines[number - 1] = line
    return "\n".join(lines) + "\n"


FILES = [
    (5, "algorithm: {name: impala, discout: 0.9}", ["bad.yaml:5  algorithm.discout: unknown key; did you mean 'discount'?"]),
    (5, "algorithm: {name: impala, gamma: 0.9}", ["bad.yaml:5  algorithm.gamma: unknown key; did you mean 'discount'?"]),
    (5, "algorithm: {name: impala, entropy_cost: four}", ["bad.yaml:5  algorithm.entropy_cost: expected a number, got 'four' (str)"]),
    (5, "algorithm: {name: impala, discount: 1.5}", ["bad.yaml:5  algorithm.discount: must be less than or equal to 1, got 1.5"]),
    (5, "algorithm: {name: impala, entropy_cost: {linear: [0.1, -1]}}", ["bad.yaml:5  algorithm.entropy_cost: must be greater than or equal to 0, got -1.0"]),
    (5, "algorithm: {name: impala, reward: cliped}", ["bad.yaml:5  algorithm.reward: expected one of none, clip, sign, soft_asymmetric, soft_asymmetric_paper, normalized, got 'cliped'"]),
    (5, "algorithm: {name: impla}", ["bad.yaml:5  algorithm.name: no algorithm is called 'impla'; did you mean 'impala'?"]),
    (5, "algorithm: {discount: 0.9}", ["bad.yaml:5  algorithm: missing name; known are a2c, impala, ppo"]),
    (5, "algorithm: {name: nowhere:Mine}", ["bad.yaml:5  algorithm.name: cannot import 'nowhere' for 'nowhere:Mine': No module named 'nowhere'; it is looked for beside the experiment file and on sys.path"]),
    (5, "algorithm: {name: 'modrl.agent.algorithms:PP'}", ["bad.yaml:5  algorithm.name: module 'modrl.agent.algorithms' has no 'PP'; did you mean 'PPO'?"]),
    (5, "algorithm: {name: 'modrl.envs:Gym'}", ["bad.yaml:5  algorithm.name: expected an algorithm, got 'modrl.envs:Gym', envs"]),
    (5, "algorithm: 3", ["bad.yaml:5  algorithm: expected a name, or a block with a name, of an algorithm, got 3 (int)"]),
    (5, "algorithm: {name: ppo, epochs: 0}", ["bad.yaml:5  algorithm.epochs: must be at least 1, got 0"]),
    (6, "optimizer: {name: adam, learning_rat: 0.001}", ["bad.yaml:6  optimizer.learning_rat: unknown key; did you mean 'lr'?"]),
    (6, "optimizer: {name: adam, lr: on}", ["bad.yaml:6  optimizer.lr: expected a number, got 'on' (str)"]),
    (6, "optimizer: {name: adam, lr: true}", ["bad.yaml:6  optimizer.lr: expected a number, got True (bool)"]),
    (6, "optimizer: {name: adam, lr: '1e-3'}", ["bad.yaml:6  optimizer.lr: expected a number, got '1e-3' (str)"]),
    (6, "optimizer: {name: 'torch.optim:AdamW', lr: 1e-3, weight_decy: 0.1}", ["bad.yaml:6  optimizer.weight_decy: unknown key; did you mean 'weight_decay'?"]),
    (6, "optimizer: {name: adam, lr: {linear: [1e-3]}}", ["bad.yaml:6  optimizer.lr: linear does not take [0.001]; expected a schedule: {constant: x}, {linear: [from, to]}, {cosine: [from, to]} or {piecewise: [[progress, x], ...]}"]),
    (7, "storage: {name: fres}", ["bad.yaml:7  storage.name: no storage is called 'fres'; did you mean 'fresh'?"]),
    (7, "storage: {name: fresh, horizon: 0.5, batch: 8}", ["bad.yaml:7  storage.horizon: expected a whole number, got 0.5 (float)"]),
    (7, "storage: {name: fresh, horizon: 4, batch: 12}", ["bad.yaml:7  storage.batch: one batch takes 12 new columns from each gradient worker's share, a pull of the scheme brings 8: a batch has to be whole pulls or a pull whole batches; change storage.batch, envs.count or the scheme's workers"]),
    (4, "actor: {name: actor_critic, torso: mpl}", ["bad.yaml:4  actor.torso.name: no torso is called 'mpl'; did you mean 'mlp'?"]),
    (4, "actor: {name: actor_critic, torso: {name: mlp, hidden: [64, wide]}}", ["bad.yaml:4  actor.torso.hidden.1: expected a whole number, got 'wide' (str)"]),
    (3, "envs: {name: gym, count: 8}", ["bad.yaml:3  envs.id: missing (function or str)"]),
    (2, "steps: many", ["bad.yaml:2  steps: expected a whole number, got 'many' (str)"]),
    (2, "horizon: 20", ["bad.yaml:2  horizon: unknown key; did you mean 'storage.horizon'?", "bad.yaml:1  steps: missing (int)"]),
    (2, "name: twice", ["bad.yaml:2  name: this key stands twice, first in line 1"]),
    (2, "steps: [1, 2", None),
    (8, "scheme: impalla", ["bad.yaml:8  scheme: no scheme is called 'impalla'; did you mean 'impala'?"]),
    (8, "scheme: {collection: {place: remote}}", ["bad.yaml:8  scheme.collection.place: expected one of here, thread, ray, got 'remote'"]),
    (8, "scheme: {preset: impala, collection: {workers: 8, gather: 12}}", ["bad.yaml:8  scheme.collection.gather: must lie between 0 and 8 (the number of workers), got 12"]),
    (8, "scheme: {preset: impala, collection: {workers: 8}}", ["bad.yaml:8  scheme.collection.max_lag: cannot be kept: 8 workers × ahead 1 > gather 1 × max_lag 4; raise max_lag or gather, or use fewer workers"]),
    (8, "scheme: {preset: dppo, gradient: {workers: 3}}", ["bad.yaml:3  envs.count: 8 environments cannot be dealt out equally over 3 collectors (3 gradient workers × 1); choose a multiple of 3"]),
    (8, "evaluation: {every: 3 weeks}", ["bad.yaml:8  evaluation.every: expected env steps (1e6) or a duration (30s, 10min, 2h), got '3 weeks' (str)"]),
    (8, "checkpoint: {keep: 0}", ["bad.yaml:8  checkpoint.keep: must be at least 1, got 0"]),
    (8, "machine: {precision: fp16}", ["bad.yaml:8  machine.precision: expected one of fp32, bf16, got 'fp16'"]),
    (8, "extends: nowhere.yaml", ["bad.yaml:8  extends: nowhere.yaml cannot be read: No such file or directory"]),
    (8, "extends: bad.yaml", None),
]  # fmt: skip


@pytest.mark.parametrize(("number", "line", "expected"), FILES, ids=[line for _, line, _ in FILES])
def test_a_mistake_in_a_file_is_told_with_line_key_and_remedy(number, line, expected, tmp_path):
    lines = told(with_line(number, line), tmp_path)
    if expected is not None:
        assert [text.strip() for text in lines[1:]] == expected
        assert lines[0].startswith(f"{len(expected)} problem")
    else:
        assert "bad.yaml" in "\n".join(lines)


OVERRIDES = [
    ("algorithm.discout=0.9", "command line  algorithm.discout: unknown key; did you mean 'discount'?"),
    ("scheme=a3", "command line  scheme: no scheme is called 'a3'; did you mean 'a3c'?"),
    ("steps", "command line  expected key.path=value, got 'steps'"),
    ("name=../x", "command line  name: expected text of letters, digits, '_', '-' and, not in front, '.', got '../x'"),
    ("algorithm.lr=1e-3", "command line  algorithm.lr: unknown key; did you mean 'optimizer.lr'?"),
    ("extend=3", "command line  extend: unknown key; did you mean 'extends'?"),
    ("scheme.collection.max_lag=3", "command line  scheme.collection.max_lag: has no effect with gather: all, where the lag is the number of tasks ahead; set it to null or gather fewer"),
    ("actor={torso: {pos: mlp, goal: nature}}", "command line  actor.torso.pos: unknown key; known are hidden, activation, layer_norm"),
    ("pacing={at_least: 1}", "command line  pacing: unknown key; did you mean 'scheme.pacing'?"),
    ("scheme=", "command line  scheme: expected a preset's name or a block of settings, got nothing"),
    ("scheme.collection.gather=most", "command line  scheme.collection.gather: expected a whole number or all, got 'most'"),
    ("scheme.collection.per_worker=[{envs: {idd: 3}}]", "command line  scheme.collection.per_worker.0.envs.idd: unknown key; did you mean 'id'?"),
    ("scheme={preset: impala, collection: {resources: {custom: {GPU: 1}}}}", "command line  scheme.collection.resources.custom: GPU is no custom resource; say gpus: 1"),
    ("scheme={preset: impala, collection: {inference: {replicas: 3}}}", "command line  scheme.collection.inference.replicas: 3 servers for 2 collectors: some would serve nobody"),
    ("seed=-1", "command line  seed: must be at least 0, got -1"),
    ("seed=1.5", "command line  seed: expected a whole number, got 1.5 (float)"),
    ("steps=[1", "command line  steps: not valid YAML: '[1'"),
    ("optimizer.lr=", "command line  optimizer.lr: expected a number, got nothing"),
    ("scheme.collection.ahead=2", "command line  scheme.collection.ahead: has no effect with place: here, where nothing runs while the caller learns; use thread or ray"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "expected"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_a_mistake_on_the_command_line_is_told(override, expected, tmp_path):
    assert told(GOOD, tmp_path, [override])[1].strip() == expected


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path):
    text = """\
algorithm:
  name: impala
  discout: 0.9
  entropy_cost: four
storage: {name: fres}
envs: {name: gym, id: CartPole-v1}
actor: actor_critic
scheme: {collection: {place: remote}}
"""
    assert told(text, tmp_path) == [
        "6 problems in bad.yaml",
        "  bad.yaml:3  algorithm.discout: unknown key; did you mean 'discount'?",
        "  bad.yaml:4  algorithm.entropy_cost: expected a number, got 'four' (str)",
        "  bad.yaml:5  storage.name: no storage is called 'fres'; did you mean 'fresh'?",
        "  bad.yaml:8  scheme.collection.place: expected one of here, thread, ray, got 'remote'",
        "  bad.yaml:1  steps: missing (int)",
        "  bad.yaml:1  optimizer: missing (optimizer)",
    ]


MONSTERS = {
    "nested too deeply to be an experiment": "steps: " + "[" * 3000 + "]" * 3000,
    "nested too deeply": "steps: &a [*a]",
    "not valid: Exceeds the limit": "steps: " + "9" * 5000,
    "more than 50,000 values; an alias that repeats others many times?": "\n".join(
        ["a0: &a0 [0]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
    ),
}


@pytest.mark.parametrize("expected", MONSTERS)
def test_a_file_that_no_person_wrote_is_refused_at_once(expected, tmp_path):
    assert expected in told(MONSTERS[expected], tmp_path)[1]


def test_minibatches_that_a_share_cannot_give_are_refused_before_the_run(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(with_line(5, "algorithm: {name: ppo, minibatches: 20}"))
    with pytest.raises(BadInput, match=r"algorithm.minibatches: must be at most 16, the steps of each gradient worker's share of a batch, got 20"):
        Experiment.load(path, ["scheme=dppo"]).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
