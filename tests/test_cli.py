"""Every command as a user types it: what it prints, what it leaves behind, and how it exits."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from modrl import cli
from modrl.config import read, to_yaml
from modrl.diagram import draw
from modrl.interrupt import Interrupted
from modrl.run import Run
from modrl.scheme.presets import preset_text, presets
from modrl.scheme.scheme import Scheme
from tests.runs import SMALL, table

ROOT = Path(__file__).parents[1]
COLUMNS = [
    "env_steps", "frames", "updates", "wall_seconds", "episodes", "episode_return", "episode_length", "steps_per_second",
    "policy_lag_mean", "policy_lag_max", "gradient_lag_mean", "gradient_lag_max", "learning_rate", "eval_return",
]  # fmt: skip
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))


@pytest.fixture
def file(tmp_path):
    """A small experiment's file."""
    path = tmp_path / "small.yaml"
    path.write_text(to_yaml(SMALL))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run that `modrl train` finished, in a process of its own; and what was printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(to_yaml({**SMALL, "checkpoint": {"every": 200, "keep": 2}}))
    words = [sys.executable, "-m", "modrl", "train", "small.yaml", "seed=3", "algorithm.discount=0.9", "--run-dir", "run"]
    done = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def assert_refused(answer, *words):
    """Bad input: status 2, all of the words on stderr, and nothing else anywhere."""
    status, out, err = answer
    assert status == 2, err
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


# --- train


def test_train_says_how_far_it_is_and_where_the_run_is(finished):
    _, printed = finished
    first, *_, last_row, where = printed.strip().splitlines()
    assert first == "small · local · seed 3: starting"
    assert last_row.split()[:4] == ["800", "of", "800", "steps"]
    assert where == "run directory: run"


def test_train_leaves_a_whole_run_directory(finished):
    run, _ = finished
    assert {path.name for path in run.iterdir()} == {"experiment.yaml", "run.json", "metrics.csv", "checkpoints"}
    assert [path.name for path in sorted(run.glob("checkpoints/*"))] == ["600.safetensors", "800.safetensors"]
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["env_steps"] == 800
    assert {"format", "versions", "machine", "git", "started", "ended", "restarts", "command"} <= info.keys()
    resolved = read((run / "experiment.yaml").read_text(), "experiment.yaml").data
    assert resolved["seed"] == 3
    assert resolved["algorithm"]["discount"] == 0.9


def test_metrics_begin_with_the_named_columns_and_cover_the_steps(finished):
    run, _ = finished
    with open(run / "metrics.csv", newline="") as lines:
        columns, *rows = csv.reader(lines)
    assert columns[: len(COLUMNS)] == COLUMNS
    assert {"loss/policy", "loss/value", "loss/entropy", "loss/total", "time/env", "time/loss", "time/backward"} <= set(columns)
    assert [int(row[0]) for row in rows] == list(range(40, 801, 40))
    assert rows[-1][columns.index("updates")] == "20"
    assert all(row[columns.index("policy_lag_max")] == "0" for row in rows)


def test_train_with_tensorboard_writes_its_files(modrl, file, tmp_path):
    status, _, err = modrl("train", file, "logging.tensorboard=true", "steps=80", "--run-dir", tmp_path / "run")
    assert status == 0, err
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


def test_the_default_run_directory_has_the_name_and_the_seed(modrl, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert modrl("train", file, "seed=7", "steps=40")[0] == 0
    (run,) = Path("runs/small").iterdir()
    assert run.name.endswith("-7")


def test_what_train_resolved_trains_again(modrl, finished, tmp_path):
    run, _ = finished
    assert modrl("train", run / "experiment.yaml", "--run-dir", tmp_path / "again")[0] == 0
    seconds = ("wall_seconds", "steps_per_second", "time/")

    def numbers(folder):
        with open(folder / "metrics.csv", newline="") as lines:
            return [{key: cell for key, cell in row.items() if not key.startswith(seconds)} for row in csv.DictReader(lines)]

    assert numbers(tmp_path / "again") == numbers(run)


def test_a_used_directory_is_refused(modrl, file, finished):
    assert_refused(modrl("train", file, "--run-dir", finished[0]), "is not empty", "--resume")


def test_a_finished_run_is_not_run_again(modrl, finished, tmp_path):
    run, _ = finished
    before = (run / "metrics.csv").read_bytes()
    status, out, _ = modrl("train", run / "experiment.yaml", "--run-dir", run, "--resume")
    assert (status, (run / "metrics.csv").read_bytes()) == (0, before)
    assert "finished already" in out


def test_resume_needs_a_directory(modrl, file):
    assert_refused(modrl("train", file, "--resume"), "--run-dir")


def test_a_directory_that_cannot_be_written_to_is_refused(modrl, file, tmp_path):
    (tmp_path / "taken").write_text("a file")
    assert_refused(modrl("train", file, "--run-dir", tmp_path / "taken" / "run"), "cannot write to", "Not a directory")


BAD = [
    (["algorithm.discout=0.9"], ["command line  algorithm.discout: unknown key; did you mean 'discount'?"]),
    (["algorithm=impla"], ["no algorithm is called 'impla'; did you mean 'impala'?"]),
    (["scheme=impalla"], ["no scheme is called 'impalla'; did you mean 'impala'?"]),
    (["steps"], ["expected key.path=value, got 'steps'"]),
    (["envs.id=CartPole-v9"], ["no environment is registered as 'CartPole-v9'; did you mean 'CartPole-v1'?"]),
    (["envs.id=math:sqrt"], ["envs: cannot be made", "TypeError: math.sqrt() takes exactly one argument", "math.sqrt() takes exactly one argument"]),
    (["envs.id=nowhere:Env-v0"], ["cannot import 'nowhere'"]),
    (["envs.kwargs={lenght: 3}"], ["envs: cannot be made", "TypeError", "unexpected keyword argument 'lenght'"]),
    (["envs.kwargs={lenght: 3}", "envs.vectorization=async"], ["envs: cannot be made", "unexpected keyword argument 'lenght'"]),
    (["envs.id=FrozenLake-v1", "envs.kwargs={map_name: 3x3}"], ["envs: cannot be made", "KeyError: '3x3'", "frozen_lake.py:"]),
    (["envs.wrappers=[{name: 'gymnasium.wrappers:ClipReward', lowest: 1}]"], ["envs: cannot be made", "'lowest'"]),
    (["envs={name: atari, game: pongg, count: 8}"], ["no game is called 'pongg'; did you mean 'pong'?"]),
    (["envs={name: atari, game: pong, size: 16, count: 8}", "actor.torso=nature"], ["torso nature needs images of 36 pixels a side, got 16x16"]),
    (["actor.torso=nature"], ["torso nature takes images", "got Box(5,)"]),
    (["machine.device=cuda:99"], ["machine.device", "cuda:99"]),
    (["storage={name: replay, horizon: 5, batch: 8, fraction: 0.3}"], ["storage.fraction", "whole number of columns"]),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "words"), BAD, ids=[" ".join(overrides) for overrides, _ in BAD])
@pytest.mark.parametrize("command", ["train", "explain"])
def test_what_cannot_be_used_is_told_and_nothing_begins(modrl, file, tmp_path, monkeypatch, command, overrides, words):
    monkeypatch.chdir(tmp_path)
    assert_refused(modrl(command, file, *overrides), *words)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("command", ["train", "explain"])
def test_a_missing_file_is_refused(modrl, command):
    assert_refused(modrl(command, "nowhere.yaml"), "nowhere.yaml  cannot be read: No such file or directory")


def test_a_failure_in_a_worker_ends_with_status_1_and_its_traceback(modrl, file, tmp_path):
    status, _, err = modrl("train", file, "envs.id=modrl/RaiseAt-v0", "scheme=overlapped", "--run-dir", tmp_path / "run")
    assert status == 1
    assert "collector" in err
    assert "RuntimeError: boom" in err


# --- eval


def test_eval_as_json_prints_one_object_and_nothing_else(modrl, finished):
    status, out, err = modrl("eval", finished[0], "--episodes", 3, "--json")
    said = json.loads(out)
    assert (status, err) == (0, "")
    assert said.keys() == {"episodes", "mean_return", "returns", "lengths", "seeds"}
    assert said["episodes"] == len(said["returns"]) == len(said["lengths"]) == 3
    assert said["mean_return"] == sum(said["returns"]) / 3


def test_eval_prints_a_line_for_each_episode(modrl, finished):
    status, out, _ = modrl("eval", finished[0], "--episodes", 4)
    lines = out.strip().splitlines()
    assert status == 0
    assert lines[0].split() == ["episode", "return", "length"]
    assert [line.split()[0] for line in lines[1:5]] == ["1", "2", "3", "4"]
    assert lines[5].startswith("mean return ")
    assert lines[5].endswith("over 4 episodes (greedy actions)")


def test_eval_is_greedy_unless_asked_to_sample(modrl, finished):
    def lengths(*words):
        return json.loads(modrl("eval", finished[0], "--episodes", 16, "--json", *words)[1])["lengths"]

    assert len(set(lengths())) == 1  # one policy, one way through the corridor
    assert len(set(lengths("--sample"))) > 1
    assert lengths("--sample") == lengths("--sample")
    assert lengths("--sample", "--seed", 9) != lengths("--sample")


def test_eval_takes_the_checkpoint_that_is_asked_for(modrl, finished):
    assert modrl("eval", finished[0], "--checkpoint", 600)[0] == 0
    assert_refused(modrl("eval", finished[0], "--checkpoint", 5), "no checkpoint at 5 env steps; there are: 600, 800")
    assert_refused(modrl("eval", finished[0], "--checkpoint", "last"), "got 'last'")


def test_eval_of_no_run_is_refused(modrl, tmp_path):
    assert_refused(modrl("eval", tmp_path), "holds no run")
    assert_refused(modrl("eval", tmp_path / "nowhere"), "holds no run")


def test_eval_of_no_episodes_is_refused(modrl, finished):
    assert_refused(modrl("eval", finished[0], "--episodes", 0), "--episodes")


# --- plot


def test_plot_draws_a_picture_and_names_it(modrl, finished, tmp_path):
    picture = tmp_path / "pictures" / "curve.png"
    status, out, err = modrl("plot", finished[0], "--out", picture)
    assert status == 0, err
    assert out.strip() == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["curve.doc", "curve"])
def test_plot_refuses_an_ending_that_is_no_pictures(modrl, finished, tmp_path, name):
    assert_refused(modrl("plot", finished[0], "--out", tmp_path / name), "png", name)
    assert not list(tmp_path.iterdir())


def test_plot_refuses_a_place_that_cannot_be_written_to(modrl, finished, tmp_path):
    (tmp_path / "taken").write_text("a file")
    assert_refused(modrl("plot", finished[0], "--out", tmp_path / "taken" / "curve.png"), "cannot write to")


def test_plot_of_no_run_is_refused(modrl, finished, tmp_path):
    assert_refused(modrl("plot", finished[0], tmp_path / "nowhere", "--out", tmp_path / "curve.png"), "nowhere holds no run")


# --- list, schemes, schema


def test_list_shows_every_component_with_its_settings(modrl):
    status, out, _ = modrl("list")
    assert status == 0
    for word in (
        "impala",
        "a2c",
        "ppo",
        "actor_critic",
        "fresh",
        "replay",
        "rmsprop",
        "adam",
        "atari",
        "gym",
        "shallow",
        "lstm",
        "discount: 0.99",
        'torso: "auto"',
    ):
        assert word in out


def test_list_of_one_kind_shows_only_that(modrl):
    status, out, _ = modrl("list", "storage")
    assert status == 0
    assert [name for name in ("fresh", "replay", "impala", "mlp") if f" {name} " in out] == ["fresh", "replay"]


def test_list_of_an_unknown_kind_is_refused(modrl):
    assert_refused(modrl("list", "torsos"), "no kind is called 'torsos'; did you mean 'torso'?")


def test_schemes_lists_each_preset_with_a_whole_sentence(modrl, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 300)
    status, out, _ = modrl("schemes")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines() if line[:1].strip()]
    assert sorted(names) == sorted(["scheme", *presets()] * 2)  # two tables
    assert "(Sebulba: Hessel et al., 2021; Cleanba: Huang et al., 2024)." in " ".join(out.split())


def test_schemes_states_the_bounds_on_lag(modrl):
    numbers = modrl("schemes")[1].partition("what it is")[0]
    rows = {line.split()[0]: line for line in numbers.splitlines() if line[:1].strip()}
    for name, policy, gradient in [("local", 0, 0), ("overlapped", 2, 0), ("impala", 4, 0), ("a3c", 0, 4), ("fully_async", 10, 4)]:
        assert f" central     {policy:<8}{gradient:<10}" in rows[name]
    assert " average 4   0       0 " in rows["local_sgd"]


def test_schemes_fits_eighty_columns(modrl, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 80)
    lines = modrl("schemes")[1].splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]


def test_schemes_with_a_name_draws_it_and_prints_its_file(modrl):
    status, out, _ = modrl("schemes", "a3c")
    picture, printed = out.split("\n\n#")
    assert status == 0
    assert picture == draw(Scheme.Config(preset="a3c"))
    assert f"#{printed}" == preset_text("a3c")


def test_schemes_draws_a_file_of_the_users_own(modrl, tmp_path):
    text = "# Four, patiently.\npreset: impala\ncollection: {workers: 4}\n"
    (tmp_path / "patient.yaml").write_text(text)
    status, out, _ = modrl("schemes", tmp_path / "patient.yaml")
    assert status == 0
    assert "4 collectors (ray)" in out
    assert out.endswith(f"\n\n{text}")


def test_schemes_with_a_bad_file_is_refused(modrl, tmp_path):
    (tmp_path / "bad.yaml").write_text("preset: impala\ncollection: {workrs: 4}\n")
    assert_refused(modrl("schemes", tmp_path / "bad.yaml"), "bad.yaml:2  collection.workrs: unknown key; did you mean 'workers'?")
    assert_refused(modrl("schemes", tmp_path / "none.yaml"), "none.yaml  cannot be read")
    (tmp_path / "whole.yaml").write_text("envs: cartpole\nscheme: impala\n")
    assert_refused(modrl("schemes", tmp_path / "whole.yaml"), "whole.yaml is an experiment, not a scheme; `modrl explain")


def test_schemes_with_an_unknown_name_is_refused(modrl):
    assert_refused(modrl("schemes", "impalla"), "no scheme is called 'impalla'; did you mean 'impala'?")


@pytest.fixture
def schema(modrl):
    status, out, _ = modrl("schema")
    assert status == 0
    return json.loads(out)


def test_the_schema_admits_a_part_of_a_file_only_where_it_extends_another(schema):
    part = {"steps": 5, "actor": {"torso": {"name": "mlp"}}}
    check = jsonschema.Draft202012Validator(schema)
    check.validate({"extends": "base.yaml", **part})
    assert list(check.iter_errors(part))


def test_the_schema_is_one_and_admits_the_examples(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert EXAMPLES
    for path in EXAMPLES:
        jsonschema.Draft202012Validator(schema).validate(read(path.read_text("utf-8"), str(path)).data)


@pytest.mark.parametrize(
    "changes",
    [{"step": 5}, {"extends": "base.yaml", "step": 5}, {"extends": "base.yaml", "seed": "one"}, {"extends": 3}, {"algorithm": {"name": "impala", "discout": 0.9}}, {"algorithm": "impla"}, {"scheme": "impalla"}, {"seed": "one"}, {"storage": {"horizon": 5}}],
)  # fmt: skip
def test_the_schema_refuses_what_a_file_may_not_say(schema, changes):
    data = read(to_yaml(SMALL), "small").data
    jsonschema.Draft202012Validator(schema).validate(data)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors({**data, **changes}))


# --- explain


@pytest.fixture
def explained(modrl, file):
    """What explain says of the small experiment with overrides: value and origin by line, and what follows by its first word."""

    def explain(*overrides):
        status, out, err = modrl("explain", file, *overrides)
        assert status == 0, err
        values, implied = out.strip().split("\n\n")
        pairs = [line.strip().replace(str(file), "FILE").rsplit("   ", 1) for line in values.splitlines()]
        lines = {pair[0].strip(): pair[-1].strip() for pair in pairs}
        return lines, {line.partition(":")[0]: line.partition(":")[2].strip() for line in implied.splitlines()}

    return explain


def test_explain_gives_each_values_origin(explained, file):
    values, _ = explained("algorithm.discount=0.9", "scheme=overlapped")
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "horizon" in text)
    assert values["horizon: 5"] == f"FILE:{line}"
    assert values["discount: 0.9"] == "command line"
    assert values["rho_clip: 1.0"] == "default"
    assert values["place: thread"].startswith("preset overlapped:")


def test_explain_gives_the_effective_batch_and_the_number_of_updates(explained):
    _, implied = explained()
    assert implied["effective batch"] == "8 columns × 5 steps = 40 samples per update"
    assert implied["updates"] == "1 per batch, about 20 in all"
    assert implied["rollout"] == "5 steps × 8 columns"
    _, implied = explained("algorithm={name: ppo, epochs: 3, minibatches: 4}")
    assert implied["effective batch"] == "8 columns × 5 steps = 40 samples per 12 updates"


LAGS = [
    ("local", "0: rollouts are learned from by the weights that acted"),
    ("overlapped", "exactly 2 rounds, after the first 2"),
    ("sebulba", "exactly 1 round, after the first"),
    ("impala", "at most 4 rounds"),
    ("rapid", "at most 4 rounds"),
]


@pytest.mark.parametrize(("scheme", "text"), LAGS)
def test_explain_states_the_bound_on_policy_lag(explained, scheme, text):
    assert explained(f"scheme={scheme}")[1]["policy lag"] == text


def test_the_lag_of_a_run_is_what_explain_says(modrl, file, tmp_path):
    assert modrl("train", file, "scheme=overlapped", "--run-dir", tmp_path / "run")[0] == 0
    assert [row["policy_lag_max"] for row in table(tmp_path / "run")] == [0, 1, *[2] * 18]


def test_explain_says_where_a_scheme_changes_the_mathematics(explained):
    _, implied = explained("scheme=a3c")
    assert implied["note"] == "each worker's share is applied alone: 2 updates of 4 columns where a combined scheme makes one"
    assert implied["effective batch"] == "4 columns × 5 steps = 20 samples per update"
    assert implied["gradient lag"] == "at most 4 applied gradients"
    assert "note" not in explained("scheme=dppo")[1]


def test_explain_shows_square_brackets_as_they_are(explained):
    values, _ = explained("envs.episode_info=['[/bold]']")
    assert "episode_info: ['[/bold]']" in values


# --- all


def test_help_names_every_command(modrl):
    status, out, _ = modrl("--help")
    assert status == 0
    for command in ("train", "eval", "plot", "list", "schemes", "schema", "explain"):
        assert f"\n  {command} " in out


@pytest.mark.parametrize("words", [["nosuch"], ["train"], ["plot"], ["train", "--nosuch"]])
def test_a_mistyped_command_is_bad_input(modrl, words):
    assert modrl(*words)[0] == 2


def test_a_reader_that_is_gone_is_no_crash():
    words = f"{sys.executable} -m modrl schema | true"
    done = subprocess.run(words, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_what_an_interrupted_run_says_can_be_pasted_into_a_shell(modrl, file, tmp_path, monkeypatch):
    def stopped(self):
        raise Interrupted(signal.SIGTERM, None)
        yield

    monkeypatch.setattr(Run, "stream", stopped)
    folder = tmp_path / "a run's directory"
    status, _, err = modrl("train", file, "optimizer.lr={linear: [1e-3, 0]}", "--run-dir", folder)
    assert status == 75
    line = err.splitlines()[-1].removeprefix("go on with: ")
    assert shlex.split(line) == ["modrl", "train", str(file), "optimizer.lr={linear: [1e-3, 0]}", "--run-dir", str(folder), "--resume"]


def test_a_word_between_colons_is_no_picture(modrl, file):
    assert ":A:" in modrl("train", file, "envs.id='nowhere:A:'")[2]


def test_bench_prints_one_object(modrl, file):
    status, said, _ = modrl("bench", file, "scheme=overlapped", "--rounds", 1, "--seconds", 0.2, "--json")
    result = json.loads(said)
    assert status == 0
    assert {"steps_per_second", "roofline", "efficiency", "stages"} <= result.keys()
    assert result["efficiency"] == pytest.approx(result["steps_per_second"] / result["roofline"])


def test_bench_is_a_table_for_people(modrl, file):
    status, said, _ = modrl("bench", file, "--rounds", 1, "--seconds", 0.2)
    assert status == 0
    for word in ("environments", "acting", "learning", "roofline", "efficiency", "gradient workers: ", "machine.compile=true makes both cheaper"):
        assert word in said


def test_bench_without_a_file_is_of_pong_and_takes_settings_too(modrl):
    status, said, _ = modrl("bench", "scheme=overlaped")
    assert status == 2
    assert "did you mean 'overlapped'?" in said + _
    status, said, _ = modrl("bench", "nowhere.yaml")
    assert status == 2
