"""How a run ends when something goes wrong: at once, with the cause, and with nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import ray

from modrl.checkpoint import newest
from modrl.config import to_yaml
from modrl.experiment import Experiment
from modrl.interrupt import Interrupted
from modrl.scheme.collect import Collector
from modrl.scheme.places.base import WorkerError
from tests.runs import SMALL, small, state_of, table

ROOT = Path(__file__).parents[1]
slow = pytest.mark.slow
SCHEMES = ["local", *(pytest.param(name, marks=slow) for name in ("overlapped", "impala", "dppo"))]


def processes_of(folder):
    """Processes whose command line or environment names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append((int(entry.name), text[:200]))
    return found


@pytest.fixture
def folder(tmp_path):
    """A folder whose name every process that starts from it carries, to see that none is left."""
    yield tmp_path
    deadline = time.monotonic() + 10
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def write(folder, **changes):
    """An experiment file that runs for a long time, and a module of components beside it."""
    (folder / "long.yaml").write_text(to_yaml({**SMALL, "steps": 10_000_000, "checkpoint": {"every": "1s"}, **changes}))


def start(folder, *words, seconds=60):
    """`modrl train long.yaml`, marked with the folder."""
    environment = {**os.environ, "MODRL_TEST_FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "modrl", "train", "long.yaml", "--run-dir", "run", *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_updates(folder, process, seconds=90):
    deadline = time.monotonic() + seconds
    file = folder / "run" / "metrics.csv"
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and len(file.read_text().splitlines()) > 4:
            return
        time.sleep(0.1)
    raise AssertionError(f"no update in {seconds} s: {process.communicate(timeout=5)[0] if process.poll() is not None else 'running'}")


def finish(process, seconds=30):
    """Exit status, output and seconds until the end."""
    began = time.monotonic()
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output, time.monotonic() - began


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ctrl_c_ends_a_run_with_a_checkpoint_that_goes_on(scheme, folder):
    write(folder, scheme=scheme)
    process = start(folder)
    wait_for_updates(folder, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    status, output, _ = finish(process)
    assert status == 130, output
    assert "Traceback" not in output
    info = json.loads((folder / "run" / "run.json").read_text())
    state = state_of(folder / "run")
    assert info["status"] == "interrupted"
    assert info["env_steps"] == state["updater"]["env_steps"] > 0
    rows = table(folder / "run")
    assert rows[-1]["env_steps"] == info["env_steps"]
    status, output, _ = finish(start(folder, f"steps={info['env_steps'] + 200}", "--resume"), 60)
    assert status == 0, output
    resumed = table(folder / "run")
    assert [row["updates"] for row in resumed] == sorted({row["updates"] for row in resumed})
    assert resumed[-1]["env_steps"] >= info["env_steps"] + 200


def test_a_second_signal_ends_a_run_at_once(tmp_path, monkeypatch):
    def twice(self, weights):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Collector, "collect", twice)
    with pytest.raises(KeyboardInterrupt) as raised:
        small().run(tmp_path / "run")
    assert not isinstance(raised.value, Interrupted)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"


LEFT = """
from modrl import Experiment

stream = Experiment.load("long.yaml").stream("run")
for row in stream:
    break
"""


@pytest.mark.parametrize("scheme", ["local", "overlapped", pytest.param("impala", marks=slow), pytest.param("dd_ppo", marks=slow)])
def test_a_script_that_ends_without_closing_its_stream_leaves_a_checkpoint(scheme, folder):
    write(folder, scheme=scheme)
    environment = {**os.environ, "MODRL_TEST_FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LEFT], cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    info = json.loads((folder / "run" / "run.json").read_text())
    assert info["status"] == "stopped"
    assert state_of(folder / "run")["updater"]["env_steps"] == info["env_steps"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_queue_systems_signal_ends_a_run_with_status_75(number, folder):
    write(folder)
    process = start(folder)
    wait_for_updates(folder, process)
    process.send_signal(number)
    status, output, _ = finish(process)
    assert status == 75, output
    assert newest(folder / "run" / "checkpoints") is not None


def test_a_killed_ray_collector_ends_the_run_with_its_name(folder):
    write(folder, scheme="impala")
    process = start(folder)
    wait_for_updates(folder, process)
    workers = [number for number, text in processes_of(folder) if b"ray::collector" in text]
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    status, output, seconds = finish(process)
    assert status == 1, output
    assert "collector" in output
    assert "process died" in output
    assert seconds < 30
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "failed"
    assert newest(folder / "run" / "checkpoints") is not None


BROKEN = """
    from modrl.agent.algorithms import IMPALA
    from modrl.agent.actors import ActorCritic

    class BrokenLoss(IMPALA, name="broken_loss"):
        calls = 0

        def terms(self, batch, out):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("a boom in the loss")
            return super().terms(batch, out)

    class BrokenActor(ActorCritic, name="broken_actor"):
        calls = 0

        def act(self, *arguments, **options):
            self.calls += 1
            if self.calls == 13:
                raise RuntimeError("a boom while acting")
            return super().act(*arguments, **options)
"""


FAULTS = {
    "loss": ({"algorithm": {"name": "broken:BrokenLoss"}}, "a boom in the loss"),
    "actor": ({"actor": {"name": "broken:BrokenActor"}}, "a boom while acting"),
    "env": ({"envs": {"name": "gym", "id": "modrl/RaiseAt-v0", "kwargs": {"j": 37}, "count": 8}}, "boom"),
}
CASES = [
    ("local", "loss"), ("overlapped", "actor"), ("impala", "env"),
    *[pytest.param(*case, marks=slow) for case in [("dppo", "loss"), ("local", "actor"), ("local", "env"), ("overlapped", "loss"), ("overlapped", "env"), ("impala", "actor"), ("dppo", "actor"), ("dppo", "env")]],
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "fault"), CASES)
def test_what_raises_inside_a_worker_reaches_the_user(scheme, fault, folder):
    changes, text = FAULTS[fault]
    (folder / "broken.py").write_text(textwrap.dedent(BROKEN))
    write(folder, scheme=scheme, **changes)
    status, output, seconds = finish(start(folder), 60)
    assert status == 1, output
    assert text in output
    assert "Traceback" in output  # the worker's own
    assert "collector" in output or "gradient worker" in output
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "failed"


def test_the_env_that_raised_is_named(tmp_path):
    experiment = small(envs={"name": "gym", "id": "modrl/RaiseAt-v0", "kwargs": {"j": 3}, "count": 8})
    with pytest.raises(WorkerError, match=r"(?s)collector 0 failed.*env 0.*boom"):
        experiment.run(tmp_path / "run")


def test_a_reward_that_is_not_finite_stops_the_run_before_it_is_learned_from(tmp_path):
    experiment = small(envs={"name": "gym", "id": "modrl/NaNAt-v0", "kwargs": {"j": 12}, "count": 8})
    with pytest.raises(WorkerError, match=r"(?s)collector 0 failed.*gave a reward of nan"):
        experiment.run(tmp_path / "run")
    weights = state_of(tmp_path / "run")["updater"]["acting"]
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_leaving_the_stream_ends_the_run_with_a_checkpoint(tmp_path):
    for row in small(steps=1_000_000).stream(tmp_path / "run"):
        if row["updates"] >= 5:
            break
    assert state_of(tmp_path / "run")["updater"]["version"] >= 5
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


class Hog:
    """Holds what it was given."""

    def there(self):
        return True


def test_resources_that_do_not_exist_are_refused_within_seconds(cluster, tmp_path):
    began = time.monotonic()
    scheme = {"preset": "impala", "collection": {"resources": {"gpus": 1}}}
    with pytest.raises(ValueError, match=r"asks for 2 GPU over all its Ray workers, but the cluster has 0"):
        small(scheme=scheme).run(tmp_path / "a")
    scheme = {"preset": "impala", "collection": {"workers": 8, "max_lag": 8, "resources": {"cpus": 1}}}
    with pytest.raises(ValueError, match=r"asks for 8 CPU over all its Ray workers, but the cluster has 2"):
        small(scheme=scheme, storage={"name": "fresh", "horizon": 5, "batch": 8}).run(tmp_path / "b")
    hog = ray.remote(num_cpus=2)(Hog).remote()
    ray.get(hog.there.remote())
    try:
        scheme = {"preset": "impala", "collection": {"resources": {"cpus": 1}}}
        with pytest.raises(ValueError, match=r"asks for 2 CPU over all its Ray workers, but only 0 of 2 are free"):
            small(scheme=scheme).run(tmp_path / "c")
    finally:
        ray.kill(hog)
    assert time.monotonic() - began < 30
    assert not Experiment.from_dict(SMALL).machine.ray.address.startswith("auto")
