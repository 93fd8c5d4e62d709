"""Clusters that were running before: the user's code travels, and a lost node does not end a run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from modrl.config import BadInput, to_yaml
from modrl.scheme.places import ray as place
from modrl.scheme.places.base import WorkerError
from modrl.scheme.places.ray import Options, RayWorker, code_of
from tests.runs import SMALL, small, table

ROOT = Path(__file__).parents[2]


def made_of(folder, name, text):
    """A module of the user's own, imported."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


WORKER = """
    from {name}_helper import VALUE


    class Worker:
        def value(self):
            return VALUE

        def close(self):
            pass
"""


def test_code_that_no_other_machine_has_travels_with_the_workers(cluster, tmp_path):
    (tmp_path / "travelling_helper.py").write_text("VALUE = 42\n")
    module = made_of(tmp_path, "travelling", WORKER.format(name="travelling"))
    code = code_of([str(tmp_path)])
    assert set(code) == {"000/travelling.py", "000/travelling_helper.py"}
    for file in tmp_path.iterdir():
        if file.is_file():
            file.unlink()
    worker = RayWorker("worker", module.Worker, Options(code=code))
    worker.wait_started()
    assert worker.submit("value").result() == 42
    worker.close()


def test_code_that_cannot_be_imported_is_named_with_its_machine(cluster, tmp_path):
    (tmp_path / "staying_helper.py").write_text("VALUE = 42\n")
    module = made_of(tmp_path, "staying", WORKER.format(name="staying"))
    (tmp_path / "staying.py").unlink()
    worker = RayWorker("collector 3", module.Worker, Options())
    with pytest.raises(WorkerError, match=f"collector 3 failed:\ncannot import the experiment's code on {os.uname().nodename}: No module named"):
        worker.wait_started()
    worker.discard()


def test_another_version_of_modrl_is_refused_with_the_one_that_is_wanted(cluster, monkeypatch):
    monkeypatch.setattr(place, "modrl_version", lambda package: "99.0")
    worker = RayWorker("collector", object, Options())
    with pytest.raises(WorkerError, match=r"but the driver has 99\.0; install that there"):
        worker.wait_started()
    worker.discard()


def test_a_folder_with_too_much_in_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(place, "CODE_BYTES", 10)
    (tmp_path / "big.py").write_text("# much more than ten bytes\n")
    with pytest.raises(BadInput, match="too much to send to a cluster's workers"):
        code_of([str(tmp_path)])


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"), ("ray://127.0.0.1:1", "HOST:PORT of a cluster's head"), ("rubbish", "HOST:PORT")],
)
def test_an_address_of_no_cluster_is_refused_at_once_and_nothing_is_begun(address, said, tmp_path):
    experiment = small(scheme="impala", machine={"ray": {"address": address}})
    with pytest.raises(BadInput, match=f"machine.ray.address: .*{said}"):
        experiment.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match=said):
        place.check_address(address)


def test_a_worker_s_process_is_called_as_the_worker_is(cluster):
    worker = RayWorker(
        "collector 1 of gradient worker 0", lambda: type("W", (), {"pid": lambda self: os.getpid(), "close": lambda self: None})(), Options()
    )
    worker.wait_started()
    pid = worker.submit("pid").result()
    assert b"ray::collector_1_of_gradient_worker_0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    worker.close()


TWO_NODES = """
    import sys, threading, time
    from pathlib import Path
    from ray.cluster_utils import Cluster
    from modrl import Experiment

    cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 2, "include_dashboard": False}})
    second = cluster.add_node(num_cpus=2)
    experiment = Experiment.load("two.yaml", [f"machine.ray.address={{cluster.address}}"])
    lost = False
    for row in experiment.stream("run"):
        if not lost and row["env_steps"] > experiment.steps // 2:
            cluster.remove_node(second, allow_graceful=False)
            lost = True
    print("LOST" if lost else "KEPT", row["env_steps"], flush=True)
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_run_of_two_nodes_of_which_one_is_lost_half_way_finishes(tmp_path):
    """In a process of its own, for it joins another cluster; with the user's own environment, which travels."""
    (tmp_path / "mine.py").write_text("from modrl.envs.toy import Corridor as Mine\n")
    experiment = {
        **SMALL, "steps": 20_000, "envs": {"name": "gym", "id": "mine:Mine", "count": 8}, "logging": {"every": 200, "tensorboard": False},
        "scheme": {"preset": "impala", "collection": {"placement": "spread"}, "faults": {"worker_restarts": 2}},
    }  # fmt: skip
    (tmp_path / "two.yaml").write_text(to_yaml(experiment))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TWO_NODES.format())], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "LOST" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "finished"
    assert table(tmp_path / "run")[-1]["env_steps"] >= 20_000
    assert {event["kind"] for event in info["faults"]} == {"restart"}
