"""What many Ray collectors take: memory and file handles of each, with a toy environment.

    python benchmarks/memory.py --collectors 32

Results go to benchmarks/results/memory_collectors.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
from common import save

from modrl import Experiment


def memory(pid: int) -> dict:
    """Megabytes of a process: resident, its share of what is shared, and its own."""
    found = {"rss": 0, "pss": 0, "uss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        kilobytes = int(value.split()[0])
        found["rss"] += kilobytes * (name == "Rss")
        found["pss"] += kilobytes * (name == "Pss")
        found["uss"] += kilobytes * (name in {"Private_Clean", "Private_Dirty"})
    return {name: kilobytes / 1000 for name, kilobytes in found.items()}


def collectors() -> list[int]:
    """The processes of Ray collectors."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::collector"):
                found.append(int(entry.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--collectors", type=int, default=32)
    count = parser.parse_args().collectors
    experiment = Experiment.from_dict({
        "name": "memory", "steps": 10**9, "envs": {"name": "gym", "id": "modrl/Corridor-v0", "count": count},
        "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}}, "algorithm": {"name": "impala", "reward": "none"},
        "optimizer": {"name": "adam", "lr": 1e-3}, "storage": {"name": "fresh", "horizon": 20, "batch": count},
        "scheme": {"collection": {"place": "ray", "workers": count}}, "logging": {"every": 1, "tensorboard": False},
        "machine": {"ray": {"object_store": 500_000_000}},
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(experiment.stream(Path(folder) / "run")) as rows:
        for row in rows:
            if row["updates"] >= 50:
                break
        pids = collectors()
        assert len(pids) == count, f"{len(pids)} collectors"
        sizes = [memory(pid) for pid in pids]
        handles = [len(os.listdir(f"/proc/{pid}/fd")) for pid in [*pids, os.getpid()]]
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        result = {
            "collectors": count, "startup_and_50_updates_seconds": row["wall_seconds"],
            **{f"{name}_mb": float(np.mean([size[name] for size in sizes])) for name in ("rss", "pss", "uss")},
            "handles_of_a_collector": max(handles[:-1]), "handles_of_the_driver": handles[-1],
            "memory_left_mb": int(meminfo["MemAvailable"].split()[0]) / 1000,
        }  # fmt: skip
    print(result)
    save("memory_collectors", result)


if __name__ == "__main__":
    main()
