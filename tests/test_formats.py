"""The files of every released format are read by today's code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import modrl
from modrl import rundir
from modrl.experiment import Experiment
from modrl.metrics import read_rows
from modrl.policy import play
from tests.runs import state_of, table

FORMATS = sorted(path for path in (Path(__file__).parent / "formats").iterdir() if path.name.isdigit())


def test_the_format_of_today_is_among_them():
    assert str(rundir.FORMAT) in {path.name for path in FORMATS}


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_run_of_each_format_is_loaded_played_and_gone_on_with(folder, tmp_path):
    expected = json.loads((folder / "expected.json").read_text())
    shutil.copytree(folder / "run", tmp_path / "run")
    assert modrl.load(tmp_path / "run").env_steps >= 800
    assert modrl.load(tmp_path / "run", checkpoint="best").env_steps > 0
    played = play(tmp_path / "run", len(expected["returns"]))
    assert (played.seeds, played.returns) == (expected["seeds"], expected["returns"])
    experiment = Experiment.load(tmp_path / "run" / "experiment.yaml")
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    columns, rows = read_rows(tmp_path / "run" / "metrics.csv")
    assert rows
    experiment.replace(steps=1200).run(tmp_path / "run", resume=True)
    assert state_of(tmp_path / "run")["updater"]["env_steps"] >= 1200
    steps = [row["env_steps"] for row in table(tmp_path / "run")]
    assert steps == sorted(set(steps))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "finished"
    assert any(line.startswith("host: then -> ") for line in info["restarts"][0]["differs"])
    experiment.replace(steps=40, init_from=str(folder / "run")).run(tmp_path / "from")
