"""A run that is killed again and again, and queued again by the same command, ends as if it had never been."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modrl.config import to_yaml
from modrl.experiment import Experiment
from tests.runs import SMALL, assert_equal_weights, state_of, table, weights_of

ROOT = Path(__file__).parents[1]
slow = pytest.mark.slow
SCHEMES = {
    "here": "local",
    "threads": {"gradient": {"workers": 2, "place": "thread"}, "collection": {"workers": 2, "place": "thread"}},
    "replicas": {"gradient": {"workers": 2, "place": "thread"}, "update": "all_reduce"},
    "ray": {"gradient": {"workers": 2, "place": "ray"}, "collection": {"workers": 2, "place": "thread"}},
}
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL]
GRACE = 30.0
"""Seconds within which a run has to have stopped with a checkpoint."""


def queued(folder, kills, seed, total, patience=900):
    """Starts `modrl train` until it says that it is done, after `total` rows; kills it so often at random moments. The exit statuses."""
    command = [sys.executable, "-m", "modrl", "train", "run.yaml", "--run-dir", "run", "--resume"]
    chance, statuses, deadline = random.Random(seed), [], time.monotonic() + patience
    sent = [SIGNALS[i % 3] for i in range(kills)]
    chance.shuffle(sent)
    while time.monotonic() < deadline:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )  # fmt: skip
        if sent:
            rows = len(table(folder / "run")) if (folder / "run" / "metrics.csv").exists() else 0
            enough = rows + chance.randrange(1, total // (kills + 1))
            while process.poll() is None and (not (folder / "run" / "metrics.csv").exists() or len(table(folder / "run")) < enough):
                time.sleep(0.02)
            number = sent.pop()
            os.killpg(process.pid, number)
            _, said = process.communicate(timeout=GRACE)
            assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 75), said
            if number == signal.SIGKILL:  # which leaves Ray's own processes to end by themselves
                time.sleep(1)
        else:
            _, said = process.communicate(timeout=patience)
            assert process.returncode == 0, said
        statuses.append(process.returncode)
        if not process.returncode:
            return statuses
    raise AssertionError(f"not done in {patience} s: {statuses}")


@pytest.mark.parametrize(("scheme", "kills"), [("here", 3), *(pytest.param(name, 10, marks=slow) for name in SCHEMES)], ids=lambda value: str(value))
@pytest.mark.timeout(1200)
def test_a_killed_and_queued_run_ends_as_the_straight_one(scheme, kills, tmp_path):
    settings = {
        **SMALL, "name": "queued", "steps": 40 * (100 if kills == 3 else 400), "envs": {"name": "gym", "id": "CartPole-v1", "count": 8},
        "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}, "normalize_observations": True},
        "optimizer": {"name": "adam", "lr": {"linear": [1e-3, 0]}}, "checkpoint": {"every": "1s"}, "evaluation": {"every": 4000, "episodes": 2},
        "scheme": SCHEMES[scheme],
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(to_yaml(settings))
    statuses = queued(tmp_path, kills, seed=kills, total=settings["steps"] // 40)
    assert len(statuses) == kills + 1
    Experiment.from_dict(settings).run(tmp_path / "straight")
    one, other = state_of(tmp_path / "run"), state_of(tmp_path / "straight")
    for name in ("version", "updates", "env_steps"):
        assert one["updater"][name] == other["updater"][name]
    assert one["metrics"]["episodes"] == other["metrics"]["episodes"]
    assert_equal_weights(weights_of(one), weights_of(other), 0.0 if scheme == "here" else 1e-5)
    rows, straight = table(tmp_path / "run"), table(tmp_path / "straight")
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(set(steps)) == [row["env_steps"] for row in straight]
    assert [row["eval_return"] for row in rows] == [row["eval_return"] for row in straight]
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "finished"
    assert all(restart["episodes"] == "continued" for restart in info["restarts"])
