"""Runs that begin with another run's weights, and what is said of a run that is trained again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from modrl import rundir
from modrl.config import BadInput, ConfigError
from tests.runs import assert_equal_weights, small, state_of, trained, weights_of

NO_STEP = {"optimizer": {"name": "torch.optim:SGD", "lr": 0.0}}
SCHEMES = ["local", "sebulba", {"gradient": {"workers": 2, "place": "thread"}, "update": "all_reduce"}]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("initial") / "run"
    small(optimizer={"name": "adam", "lr": 0.01}, evaluation={"every": 200, "episodes": 2}, checkpoint={"every": 400}).run(folder)
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("which", ["latest", 400, "best"])
def test_a_run_begins_with_the_weights_of_another(scheme, which, pretrained, tmp_path):
    from modrl import checkpoint

    state = trained(small(**NO_STEP, seed=2, steps=80, scheme=scheme, init_from={"run": str(pretrained), "checkpoint": which}), tmp_path)
    assert_equal_weights(weights_of(state), checkpoint.chosen(pretrained / "checkpoints", which)["updater"]["acting"])


def test_a_directory_alone_means_its_newest_checkpoint(pretrained, tmp_path):
    experiment = small(**NO_STEP, steps=40, init_from=str(pretrained))
    assert experiment.init_from.run == str(pretrained)
    assert_equal_weights(weights_of(trained(experiment, tmp_path)), weights_of(state_of(pretrained)))


def test_skipped_parts_keep_their_own_beginning(pretrained, tmp_path):
    settings = {**NO_STEP, "steps": 40, "seed": 2}
    fresh = weights_of(trained(small(**settings), tmp_path / "fresh"))
    mixed = weights_of(trained(small(**settings, init_from={"run": str(pretrained), "skip": ["policy"]}), tmp_path / "mixed"))
    theirs = weights_of(state_of(pretrained))
    for name, value in mixed.items():
        torch.testing.assert_close(value, (fresh if name.startswith("policy.") else theirs)[name], rtol=0, atol=0)
    assert not torch.equal(theirs["policy.weight"], fresh["policy.weight"])


def test_a_resumed_run_goes_on_with_its_own_weights(pretrained, tmp_path):
    settings = {"optimizer": {"name": "adam", "lr": {"linear": [0.01, 0.01]}}, "init_from": str(pretrained)}
    straight = trained(small(**settings), tmp_path / "straight")
    trained(small(**settings, steps=400), tmp_path / "run")
    assert_equal_weights(weights_of(trained(small(**settings), tmp_path / "run", resume=True)), weights_of(straight), 1e-6)


def test_a_run_that_has_begun_does_not_need_the_other_any_more(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "source")
    experiment = small(init_from=str(tmp_path / "source"))
    experiment.replace(steps=400).run(tmp_path / "run")
    shutil.rmtree(tmp_path / "source")
    assert trained(experiment, tmp_path / "run", resume=True)["updater"]["env_steps"] == 800


def test_the_directory_is_kept_as_an_absolute_one(pretrained, monkeypatch):
    monkeypatch.chdir(pretrained.parent)
    assert small(init_from="run").init_from.run == str(pretrained)


def test_what_does_not_fit_is_named_before_anything_begins(pretrained, tmp_path):
    wider = {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [32]}}
    with pytest.raises(BadInput, match=r"init_from: the weights of .* do not fit: .*\[16, 5\] there and \[32, 5\] here.*leave parts as they are"):
        small(actor=wider, init_from=str(pretrained)).run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"normalizer\.parts\.0\.seen is here and not there"):
        small(
            actor={"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}, "normalize_observations": True}, init_from=str(pretrained)
        ).run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"init_from.skip: no part of the networks is called 'polcy'; known are policy, trunk, value"):
        small(init_from={"run": str(pretrained), "skip": ["polcy"]}).run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"init_from: .*holds no run"):
        small(init_from=str(tmp_path / "nowhere")).run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"init_from: .*no checkpoint at 7 env steps; there are: 400, 800"):
        small(init_from={"run": str(pretrained), "checkpoint": 7}).run(tmp_path / "run")
    with pytest.raises(ConfigError, match="init_from"):
        small(init_from={"directory": str(pretrained)})
    assert not (tmp_path / "run").exists()


# --- the same run again ---


def test_what_differs_from_then_is_told(pretrained, tmp_path, monkeypatch):
    info = json.loads((pretrained / "run.json").read_text())
    assert rundir.differences(info) == []
    info["versions"] |= {"torch": "1.0.0"}
    info["machine"] |= {"cpus": 999}
    info["git"] = {"commit": "abc", "diff": ""}
    monkeypatch.setattr(rundir, "git", lambda folder: {"commit": "def", "diff": "x"})
    told = rundir.differences(info)
    assert told[0] == f"torch: 1.0.0 -> {rundir.version('torch')}"
    assert told[1].startswith("cpus: 999 -> ")
    assert told[2:] == ["commit: abc -> def"]
    info["git"] = {"commit": "def", "diff": ""}
    assert rundir.differences(info)[2:] == ["uncommitted changes: 0 -> 1 characters of diff"]


def test_training_a_runs_own_file_repeats_it_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small(steps=80).run(tmp_path / "run")

    def train(*words):
        command = [sys.executable, "-m", "modrl", "train", str(tmp_path / "run" / "experiment.yaml"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=True).stderr

    assert "again; nothing differs from then" in train("--run-dir", str(tmp_path / "again"))
    assert_equal_weights(weights_of(state_of(tmp_path / "run")), weights_of(state_of(tmp_path / "again")))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(info | {"versions": info["versions"] | {"numpy": "1.0"}}))
    assert "what differs from then:\n  numpy: 1.0 -> " in train("--run-dir", str(tmp_path / "third"))
    assert "again" not in train("--run-dir", str(tmp_path / "run"), "--resume")


def test_a_restart_elsewhere_says_what_differs(tmp_path):
    small(steps=400).run(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    info = json.loads((tmp_path / "moved" / "run.json").read_text())
    (tmp_path / "moved" / "run.json").write_text(json.dumps(info | {"machine": info["machine"] | {"host": "another"}}))
    small().run(tmp_path / "moved", resume=True)
    restart = json.loads((tmp_path / "moved" / "run.json").read_text())["restarts"][0]
    assert restart["differs"] == [f"host: another -> {info['machine']['host']}"]
