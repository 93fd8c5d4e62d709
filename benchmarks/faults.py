"""What a scheme survives: one SIGKILL in the middle of a run for each kind of worker, and a soak of many.

    python benchmarks/faults.py matrix            # {collector, gradient worker, inference server, node, driver} × schemes
    python benchmarks/faults.py soak --minutes 15 --kills 20
    python benchmarks/faults.py slow              # a round with one collector in four ten times slower, preempted and not

Each run is checked: it reaches its steps; every step is learned from once, and exactly the steps that are learned from are
counted; no process is left. Results go to benchmarks/results/faults_*.json.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import RESULTS, save

from modrl.config import to_yaml

COMPONENTS = '''
import os
from pathlib import Path

import gymnasium
import numpy as np

from modrl.agent.algorithms import IMPALA

LOG = Path("LEARNED")


class Numbered(gymnasium.Env):
    """Every step that ever happens has a number of its own: the environment's, drawn when it is made, and a count."""

    observation_space = gymnasium.spaces.Box(0, 2**24, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.number, self.count = int.from_bytes(os.urandom(3), "little"), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count += 1
        self.t = 0
        return np.array([self.number, self.count], np.float32), {}

    def step(self, action):
        import time

        time.sleep(self.seconds)
        self.count += 1
        self.t += 1
        return np.array([self.number, self.count], np.float32), float(action), self.t == 20, False, {}


class Bookkeeping(IMPALA, name="bookkeeping"):
    """Writes down which steps it learns from."""

    def losses(self, batch):
        steps = batch.obs[:-1][batch.valid].double()
        with open(LOG / f"{os.getpid()}-{id(self)}", "ab") as file:
            file.write((steps[:, 0] * 2**24 + steps[:, 1]).long().numpy().tobytes())
        yield from super().losses(batch)
'''
EXPERIMENT = {
    "name": "faults", "seed": 1, "envs": {"name": "gym", "id": "components:Numbered", "count": 8, "kwargs": {"seconds": 0.001}},
    "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}}, "algorithm": {"name": "components:Bookkeeping", "reward": "none"},
    "optimizer": {"name": "adam", "lr": 1e-3}, "storage": {"name": "fresh", "horizon": 10, "batch": 8}, "checkpoint": {"every": "2s"},
    "logging": {"every": 400, "tensorboard": False},
}  # fmt: skip
SCHEMES = {
    "impala": {"preset": "impala"},
    "dppo": {"preset": "dppo"},
    "a3c": {"preset": "a3c"},
    "dd_ppo": {"preset": "dd_ppo"},
    "seed": {"preset": "seed", "collection": {"place": "ray"}},
}
WORKERS = {"collector": ["impala", "seed"], "gradient worker": ["dppo", "a3c", "dd_ppo"], "inference server": ["seed"]}
PYTHON = [sys.executable, "-m", "modrl"]


class Run:
    """`modrl train` in a folder of its own, in a process."""

    def __init__(self, folder: Path, scheme: dict, steps: int, restarts: int, address: str = "local") -> None:
        self.folder, self.steps = folder, steps
        self.run_dir = folder / "run"
        (folder / "learned").mkdir(exist_ok=True)
        (folder / "components.py").write_text(COMPONENTS.replace("LEARNED", str(folder / "learned")))
        machine = {"ray": {"address": address, "object_store": None if address != "local" else 200_000_000}}
        faults = {"worker_restarts": restarts}
        (folder / "file.yaml").write_text(to_yaml({**EXPERIMENT, "steps": steps, "scheme": {**scheme, "faults": faults}, "machine": machine}))
        self.start()

    def start(self) -> None:
        words = ["train", "file.yaml", "--run-dir", "run", "--resume"]
        environment = {**os.environ, "FAULTS": str(self.folder)}
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen([*PYTHON, *words], cwd=self.folder, stdout=log, stderr=log, env=environment)

    def rows(self) -> list[dict]:
        path = self.run_dir / "metrics.csv"
        return list(csv.DictReader(path.open())) if path.exists() else []

    def env_steps(self) -> int:
        rows = self.rows()
        return int(rows[-1]["env_steps"] or 0) if rows else 0

    def wait_for(self, env_steps: int, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while self.env_steps() < env_steps:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"at {self.env_steps()} of {env_steps} env steps, status {self.process.poll()}: {self.text()[-2000:]}")
            time.sleep(0.1)

    def text(self) -> str:
        return (self.folder / "log").read_text()

    def workers(self, kind: str) -> list[int]:
        """Processes of Ray workers of a kind."""
        title = f"ray::{kind.replace(' ', '_')}"
        return [pid for pid, words in self.processes() if words.startswith(title)]

    def processes(self) -> list[tuple[int, str]]:
        """What this run started, by their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"FAULTS={self.folder}".encode() in (entry / "environ").read_bytes():
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        return found

    def end(self, seconds: float = 300) -> dict:
        """What was learned and what was counted."""
        status = self.process.wait(seconds)
        learned = [np.frombuffer(path.read_bytes(), np.int64) for path in (self.folder / "learned").iterdir()]
        numbers = np.concatenate(learned) if learned else np.zeros(0, np.int64)
        info = json.loads((self.run_dir / "run.json").read_text())
        last = self.rows()[-1]
        deadline = time.monotonic() + 60  # agents of Ray's own take their time when their cluster was killed
        while (left := [words for pid, words in self.processes() if pid != os.getpid()]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return {
            "status": status, "run": info["status"], "env_steps": int(last["env_steps"]), "learned": len(numbers),
            "twice": len(numbers) - len(np.unique(numbers)), "restarts": int(last.get("faults/worker_restarts") or 0),
            "dropped": int(last.get("faults/dropped_rollouts") or 0), "resumed": len(info["restarts"]), "left": left,
        }  # fmt: skip


def verdict(found: dict, steps: int, resumed: bool = False) -> bool:
    """Whether the books balance. After the driver's loss steps since the last checkpoint are learned from again."""
    reached = found["status"] == 0 and found["run"] == "finished" and found["env_steps"] >= steps and not found["left"]
    return reached and (resumed or found["twice"] == 0)


def cell(kind: str, name: str) -> dict:
    """One kill in the middle of a run."""
    steps = 8000
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = None
        if kind == "node":
            from ray.cluster_utils import Cluster

            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
            stack.callback(cluster.shutdown)
            second = cluster.add_node(num_cpus=4)
        scheme = SCHEMES[name]
        if kind == "node":
            group = "gradient" if name in WORKERS["gradient worker"] else "collection"
            scheme = {**scheme, group: {**scheme.get(group, {}), "placement": "spread"}}
        run = Run(folder, scheme, steps, restarts=4, address=cluster.address if cluster else "local")
        began = time.monotonic()
        run.wait_for(steps // 3)
        before = time.monotonic()
        if kind == "driver":
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()
            time.sleep(1)
            run.start()
        elif cluster is not None:
            cluster.remove_node(second, allow_graceful=False)
        else:
            os.kill(random.choice(run.workers(kind)), signal.SIGKILL)
        at = run.env_steps()
        run.wait_for(at + 1)
        gap = time.monotonic() - before
        found = run.end()
        found |= {"killed": kind, "scheme": name, "seconds": round(time.monotonic() - began, 1), "seconds_to_next_row": round(gap, 1)}
        found["ok"] = verdict(found, steps, resumed=kind == "driver")
        if not found["ok"]:
            print(run.text()[-3000:])
        return found


def matrix(names: list[str]) -> None:
    cells = [(kind, name) for kind, schemes in WORKERS.items() for name in schemes]
    cells += [(kind, name) for kind in ("driver", "node") for name in SCHEMES]
    kept = RESULTS / "faults_matrix.json"
    found = {(c["killed"], c["scheme"]): c for c in json.loads(kept.read_text())["cells"]} if kept.exists() else {}
    for kind, name in cells:
        if not names or f"{kind}:{name}" in names:
            found[kind, name] = cell(kind, name)
            print(found[kind, name], flush=True)
            save("faults_matrix", {"cells": [found[key] for key in cells if key in found]})


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(minutes: float, kills: int) -> None:
    """A run with many kills, a collector at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scheme = {"preset": "impala", "collection": {"workers": 4, "max_lag": 8}}
        run = Run(folder, scheme, 10**9, restarts=kills)
        run.wait_for(4000)
        pause = minutes * 60 / (kills + 1)
        began, sizes = time.monotonic(), []
        for _ in range(kills):
            until = time.monotonic() + pause
            while time.monotonic() < until:
                time.sleep(min(5, max(0.0, until - time.monotonic())))
                sizes.append((time.monotonic() - began, resident(run.process.pid)))
            os.kill(random.choice(run.workers("collector")), signal.SIGKILL)
        time.sleep(pause)
        sizes.append((time.monotonic() - began, resident(run.process.pid)))
        warm = [size for at, size in sizes if at > 60] or [sizes[0][1]]
        run.process.send_signal(signal.SIGTERM)
        found = run.end()
        found |= {"kills": kills, "minutes": minutes, "rss_after_warm_up": warm[0], "rss_at_end": warm[-1], "growth": warm[-1] / warm[0] - 1}
        found["ok"] = (
            found["status"] == 75 and found["twice"] == 0 and found["restarts"] == kills and found["growth"] < 0.05 and not found["left"]
            and found["learned"] - found["env_steps"] < 2 * 80
        )  # fmt: skip
        print(found)
        if not found["ok"]:
            print(run.text()[-3000:])
        save("faults_soak", {"soak": found})


def slow(rounds: int) -> None:
    """Seconds of a round of four collectors: undisturbed, with one of them ten times slower, and with that one preempted."""
    from modrl import Experiment

    usual, slowed = 0.002, 0.02
    found = {}
    for name, paces, preemption in (
        ("undisturbed", [usual] * 4, None),
        ("one slowed", [slowed, usual, usual, usual], None),
        ("one slowed, preempted", [slowed, usual, usual, usual], {"fraction_workers": 0.75, "fraction_samples": 0.1}),
    ):
        collection = {
            "place": "ray", "workers": 4, "preemption": preemption, "per_worker": [{"envs": {"kwargs": {"seconds": pace}}} for pace in paces],
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "components.py").write_text(COMPONENTS.replace("LEARNED", str(Path(folder, "learned"))))
            Path(folder, "learned").mkdir()
            storage = {"name": "fresh", "horizon": 100, "batch": 4}
            settings = {
                **EXPERIMENT,
                "steps": 10**9,
                "storage": storage,
                "scheme": {"collection": collection},
                "logging": {"every": 1, "tensorboard": False},
            }
            settings["envs"] = {**EXPERIMENT["envs"], "count": 4}
            path = Path(folder, "file.yaml")
            path.write_text(to_yaml(settings))
            sys.modules.pop("components", None)
            seconds, steps, counted = [], 0, 0
            with contextlib.closing(Experiment.load(path).stream(Path(folder) / "run")) as rows:
                last = None
                for row in rows:
                    if last is not None:
                        seconds.append(row["wall_seconds"] - last["wall_seconds"])
                    last = row
                    if len(seconds) == rounds:
                        break
            counted = json.loads((Path(folder) / "run" / "run.json").read_text())["env_steps"]
            steps = sum(len(p.read_bytes()) // 8 for p in (Path(folder) / "learned").iterdir())
            sys.path.remove(str(folder)) if str(folder) in sys.path else None
        found[name] = {"seconds": float(np.median(seconds)), "env_steps": counted, "learned": steps}
        print(name, found[name], flush=True)
    ratio = found["one slowed, preempted"]["seconds"] / found["undisturbed"]["seconds"]
    print(f"ratio {ratio:.2f}")
    save("faults_slow", {"rounds": found, "ratio": ratio})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["matrix", "soak", "slow"])
    parser.add_argument("only", nargs="*", help="of the matrix: cells, as node:dppo; the results of others are kept")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    if given.what == "matrix":
        matrix(given.only)
    elif given.what == "soak":
        soak(given.minutes, given.kills)
    else:
        slow(given.rounds)


if __name__ == "__main__":
    main()
