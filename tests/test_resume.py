"""Checkpoints and going on from them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from modrl import checkpoint
from modrl.checkpoint import CheckpointError
from modrl.config import BadInput, to_yaml
from modrl.messages import Episode, Rollout
from modrl.rundir import RunDirError
from tests.runs import SMALL, assert_equal_weights, small, state_of, table, trained, weights_of

STEPS = 8 * 5  # of one update


def twenty(updates=20, **changes):
    """A run of so many updates whose schedules run over twenty."""
    changes = {"optimizer": {"name": "rmsprop", "lr": {"linear": [1e-2, 1e-2]}, "eps": 0.01}, **changes}
    return small(steps=updates * STEPS, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"envs": {"name": "gym", "id": "modrl/Catch-v0", "count": 8}, "actor": {"name": "actor_critic", "torso": "mlp", "memory": {"name": "lstm", "size": 8}, "last_action": True, "last_reward": True}},
        {"algorithm": {"name": "ppo", "epochs": 2, "minibatches": 2, "reward": "none"}},
        {"storage": {"name": "replay", "horizon": 5, "batch": 16}, "checkpoint": {"storage": True}},
        {"scheme": "sebulba"},
        {"scheme": {"gradient": {"workers": 2, "place": "thread"}}},
    ],
    ids=["impala", "lstm", "ppo", "replay", "sebulba", "dppo in threads"],
)  # fmt: skip
def test_ten_updates_and_ten_more_are_twenty(changes, tmp_path):
    straight = trained(twenty(**changes), tmp_path / "straight")
    trained(twenty(10, **changes), tmp_path / "run")
    resumed = trained(twenty(**changes), tmp_path / "run", resume=True)
    assert resumed["updater"]["version"] == straight["updater"]["version"]
    assert_equal_weights(weights_of(resumed), weights_of(straight), 1e-6)
    one, other = table(tmp_path / "straight"), table(tmp_path / "run")
    for name in ("updates", "env_steps", "episodes", "episode_return", "loss/total"):
        assert [row[name] for row in one] == pytest.approx([row[name] for row in other])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["restarts"][0]["episodes"] == "continued"


@pytest.mark.slow
def test_resuming_on_ray_goes_on_exactly(cluster, tmp_path):
    scheme = {"gradient": {"workers": 2, "place": "ray"}, "collection": {"place": "ray", "workers": 2}}
    in_threads = {group: {**settings, "place": "thread"} for group, settings in scheme.items()}  # which gives the same numbers
    straight = trained(twenty(scheme=in_threads), tmp_path / "straight")
    trained(twenty(10, scheme=scheme), tmp_path / "run")
    resumed = trained(twenty(scheme=scheme), tmp_path / "run", resume=True)
    assert_equal_weights(weights_of(resumed), weights_of(straight), 1e-6)


def test_checkpoints_in_mid_run_change_nothing(tmp_path):
    changes = {"algorithm": {"name": "ppo", "epochs": 2, "minibatches": 2}, "scheme": "sebulba"}
    plain = trained(twenty(**changes), tmp_path / "plain")
    saved = trained(twenty(**changes, checkpoint={"every": 2 * STEPS, "keep": 100}), tmp_path / "saved")
    assert len(checkpoint.found(tmp_path / "saved" / "checkpoints")) == 10
    assert_equal_weights(weights_of(plain), weights_of(saved))


def test_envs_that_cannot_be_saved_start_new_episodes_and_the_run_says_so(tmp_path):
    envs = {"name": "gym", "id": "CartPole-v1", "count": 8, "wrappers": ["gymnasium.wrappers:NormalizeReward"]}
    trained(twenty(10, envs=envs), tmp_path / "run")
    trained(twenty(envs=envs), tmp_path / "run", resume=True)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [(restart["env_steps"], restart["episodes"]) for restart in info["restarts"]] == [(400, "new")]
    assert info["status"] == "finished"
    assert table(tmp_path / "run")[-1]["updates"] == 20


@pytest.mark.parametrize(("before", "after"), [("central", "all_reduce"), ("all_reduce", {"average": 2}), ({"average": 2}, "central")])
def test_a_run_goes_on_under_another_update(before, after, tmp_path):
    learners = {"gradient": {"workers": 2, "place": "thread"}}
    first = trained(twenty(10, scheme={**learners, "update": before}), tmp_path / "run")
    last = trained(twenty(11, scheme={**learners, "update": after}), tmp_path / "run", resume=True)
    assert (first["updater"]["version"], last["updater"]["version"]) == (10, 11)
    one_step = max((weights_of(last)[name] - value).abs().max() for name, value in weights_of(first).items())
    assert 0 < one_step < 0.1


@pytest.mark.parametrize("storage", [{"name": "replay", "horizon": 5, "batch": 16, "fraction": 0.5}, {"name": "fresh", "horizon": 10, "batch": 8}])
def test_another_storage_begins_empty_and_says_so(storage, tmp_path, caplog):
    trained(small(scheme="sebulba"), tmp_path / "run")
    state = trained(small(scheme="sebulba", storage=storage, steps=30 * STEPS), tmp_path / "run", resume=True)
    assert state["updater"]["env_steps"] >= 30 * STEPS
    assert "the storage was fresh of horizon 5: this one begins empty, with new episodes" in caplog.text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["restarts"][0]["episodes"] == "new"


def test_a_finished_run_is_left_alone(tmp_path):
    trained(twenty(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.csv").read_text()
    result = twenty().run(tmp_path / "run", resume=True)
    assert result.env_steps == 20 * STEPS
    assert (tmp_path / "run" / "metrics.csv").read_text() == before


def test_schedules_and_counters_go_on(tmp_path):
    decaying = {"optimizer": {"name": "adam", "lr": {"linear": [6e-4, 0]}}}
    stream = small(**decaying).stream(tmp_path / "run")
    for row in stream:
        if row["updates"] == 5:
            stream.close()
            break
    resumed = list(small(**decaying).stream(tmp_path / "run", resume=True))
    assert resumed[0]["learning_rate"] == pytest.approx(6e-4 * (1 - 5 / 20))
    assert resumed[0]["updates"] == 6
    assert [row["updates"] for row in table(tmp_path / "run")] == list(range(1, 21))


def test_a_new_setting_given_at_resume_wins_and_is_logged(tmp_path, caplog):
    trained(small(steps=400), tmp_path / "run")
    trained(small(optimizer={"name": "adam", "lr": 5e-5, "max_grad_norm": 40}), tmp_path / "run", resume=True)
    changes = ["steps: 400 -> 800", "optimizer.lr: 0.001 -> 5e-05"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["restarts"][0]["settings"] == changes
    assert all(f"resuming with another setting: {change}" in caplog.text for change in changes)
    assert [row["learning_rate"] for row in table(tmp_path / "run")] == [1e-3] * 10 + [5e-5] * 10


def test_a_used_directory_is_refused_and_resume_needs_one(tmp_path):
    small(steps=STEPS).run(tmp_path / "run")
    with pytest.raises(RunDirError, match="is not empty; choose another --run-dir"):
        small(steps=STEPS).run(tmp_path / "run")
    with pytest.raises(RunDirError, match="needs --run-dir"):
        small(steps=STEPS).run(resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(RunDirError, match="holds no run"):
        small(steps=STEPS).run(tmp_path / "other", resume=True)
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_resume_starts_a_run_where_there_is_none(tmp_path):
    assert trained(small(steps=STEPS), tmp_path / "run", resume=True)["updater"]["version"] == 1


# --- the files ---


def test_a_tree_comes_back_as_it_was(tmp_path):
    rollout = Rollout(
        {"a": np.zeros((3, 2), np.uint8)}, np.ones((3, 2), bool), np.arange(4).reshape(2, 2), np.ones((2, 2), np.float32),
        np.zeros((2, 2), bool), np.zeros((2, 2), bool), None, None, (), {"log_prob": np.zeros((2, 2))}, 3, (Episode(1.5, 3, 0, {"x": 1.0}),),
    )  # fmt: skip
    tree = {"n": 2**100, "text": "ü", "none": None, "list": [1, (2.5, True)], "ints": {3: torch.arange(3)}, "rollout": rollout, "nan": float("inf")}
    checkpoint.save(tmp_path / "1.safetensors", tree)
    again = checkpoint.load(tmp_path / "1.safetensors")
    assert {key: again[key] for key in ("n", "text", "none", "list", "nan")} == {key: tree[key] for key in ("n", "text", "none", "list", "nan")}
    assert again["ints"][3].tolist() == [0, 1, 2]
    assert again["rollout"].obs["a"].dtype == np.uint8
    assert again["rollout"].episodes == rollout.episodes
    assert again["rollout"].memory == ()


def test_who_may_read_the_folder_may_read_the_file(tmp_path):
    for mode, expected in ((0o755, 0o644), (0o770, 0o660), (0o700, 0o600)):
        tmp_path.chmod(mode)
        checkpoint.save(tmp_path / "10.safetensors", {"x": 1})
        assert (tmp_path / "10.safetensors").stat().st_mode & 0o777 == expected


def test_what_is_no_plain_data_is_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot store a object at 'a/0'"):
        checkpoint.save(tmp_path / "1.safetensors", {"a": [object()]})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_newest_checkpoint_is_skipped_and_ten_is_newer_than_nine(tmp_path, caplog):
    for number in (9, 10, 100):
        checkpoint.save(tmp_path / f"{number}.safetensors", {"number": number})
    whole = (tmp_path / "100.safetensors").read_bytes()
    (tmp_path / "100.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / ".200.safetensors.17").write_bytes(b"half")
    path, state, wrong = checkpoint.newest(tmp_path)
    assert (path.name, state) == ("10.safetensors", {"number": 10})
    assert wrong == [tmp_path / "100.safetensors"]
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        checkpoint.load(tmp_path / "100.safetensors")
    checkpoint.put_aside(wrong[0])
    checkpoint.keep_newest(tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["10.safetensors", "100.safetensors.damaged", "9.safetensors"]


def damage(file):
    file.write_bytes(file.read_bytes()[:100])


def test_going_on_from_before_a_damaged_checkpoint_keeps_what_is_new(tmp_path):
    """The damaged one has the higher number: it must not push the new ones out."""
    every = {"checkpoint": {"every": STEPS, "keep": 2}}
    trained(twenty(10, **every), tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / f"{10 * STEPS}.safetensors")
    with closing(twenty(**every).stream(tmp_path / "run", resume=True)) as rows:
        next(rows)
    assert [file.name for file in checkpoint.found(tmp_path / "run" / "checkpoints")][-1] == f"{10 * STEPS}.safetensors"
    assert state_of(tmp_path / "run")["updater"]["version"] == 10
    assert [row["updates"] for row in table(tmp_path / "run")] == list(range(1, 11))


def test_nothing_goes_on_where_no_checkpoint_is_whole(tmp_path):
    trained(twenty(10), tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        damage(file)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint in it is whole; move them away to start anew.*400.safetensors"):
        twenty().run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_starts_anew_without_its_rows(tmp_path):
    trained(twenty(10), tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    trained(twenty(12), tmp_path / "run", resume=True)
    assert [row["updates"] for row in table(tmp_path / "run")] == list(range(1, 13))
    assert [start["env_steps"] for start in json.loads((tmp_path / "run" / "run.json").read_text())["restarts"]] == [0]


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    with closing(twenty(2000).stream(tmp_path / "run")) as rows:
        next(rows)
        program = f"from modrl import Experiment; Experiment.load({str(tmp_path / 'run' / 'experiment.yaml')!r}).run({str(tmp_path / 'run')!r}, resume=True)"
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
        assert "is in use: another process trains in it" in done.stderr
        next(rows)


@pytest.mark.parametrize("given", [{"name": "adam", "lr": 1e-3}, {"name": "torch.optim:SGD", "lr": 1e-3}])
def test_another_optimizer_cannot_go_on(given, tmp_path):
    trained(twenty(10), tmp_path / "run")
    with pytest.raises(RunDirError, match=rf"is of another agent: its optimizer is rmsprop, not {given['name']}"):
        twenty(optimizer=given).run(tmp_path / "run", resume=True)


def test_evaluations_go_on_as_if_never_stopped(tmp_path):
    changes = {"envs": {"name": "gym", "id": "modrl/Catch-v0", "count": 8}, "evaluation": {"every": 4 * STEPS, "episodes": 5, "greedy": False}}
    trained(twenty(**changes), tmp_path / "straight")
    trained(twenty(10, **changes), tmp_path / "run")
    trained(twenty(**changes), tmp_path / "run", resume=True)
    straight, resumed = table(tmp_path / "straight"), table(tmp_path / "run")
    assert [row["eval_return"] for row in straight if row["updates"] != 10] == [row["eval_return"] for row in resumed if row["updates"] != 10]
    assert sum(row["eval_return"] is not None for row in straight) == 5


DAMAGE = {
    "metrics.csv": [
        ("env_steps,frames\n", "its header is damaged"),
        (None, "expected a number, got 'z'; mend the row or delete it"),
    ],
    "run.json": [
        ('{"format": 1}', "run.json is damaged: it lacks env_steps, import_from, restarts, status"),
        ("[1", "run.json cannot be read"),
    ],
}


@pytest.mark.parametrize(("name", "text", "said"), [(name, *case) for name, cases in DAMAGE.items() for case in cases])
def test_a_damaged_file_of_a_run_is_named(name, text, said, tmp_path):
    trained(twenty(10), tmp_path / "run")
    file = tmp_path / "run" / name
    file.write_text(file.read_text().replace("\n40,40,1,", "\n40,40,z,") if text is None else text)
    with pytest.raises(BadInput, match=said):
        twenty().run(tmp_path / "run", resume=True)


def test_a_full_disk_ends_a_run_with_its_reason(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*: No space left on device"):
        twenty(10, checkpoint={"every": 2 * STEPS}).run(tmp_path / "run")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "failed"
    assert "No space left" in info["error"]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
import torch
from modrl import checkpoint
folder = Path(sys.argv[1])
checkpoint.save(folder / "10.safetensors", {"x": torch.ones(10)})
def dies(descriptor): os.kill(os.getpid(), signal.SIGKILL)
checkpoint.os.fsync = dies
checkpoint.save(folder / "20.safetensors", {"x": torch.ones(10)})
"""


def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path)], cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # the good one, and a leftover that is ignored
    path, _, wrong = checkpoint.newest(tmp_path)
    assert (path.name, wrong) == ("10.safetensors", [])


def test_a_killed_driver_goes_on_from_its_last_checkpoint(tmp_path):
    (tmp_path / "long.yaml").write_text(to_yaml({**SMALL, "steps": 100_000_000, "checkpoint": {"every": STEPS * 10}}))
    words = [sys.executable, "-m", "modrl", "train", str(tmp_path / "long.yaml"), "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(words, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(checkpoint.found(tmp_path / "run" / "checkpoints")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    saved = state_of(tmp_path / "run")["updater"]["env_steps"]
    trained(small(steps=saved + 10 * STEPS), tmp_path / "run", resume=True)
    updates = [row["updates"] for row in table(tmp_path / "run")]
    assert updates == list(range(1, len(updates) + 1))
    assert updates[-1] == saved // STEPS + 10
