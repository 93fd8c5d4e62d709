"""Makes a run as this version writes it, for tests of later versions: `python tests/formats/make.py`, once for each format.

A file of a format that was released is never made anew: that today's code still reads it is the point.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

SETTINGS = {
    "name": "kept", "steps": 800, "envs": {"name": "gym", "id": "CartPole-v1", "count": 4},
    "actor": {
        "name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}, "memory": {"name": "lstm", "size": 8}, "last_action": True,
        "last_reward": True, "normalize_observations": True, "popart": 0.01,
    },
    "algorithm": {"name": "impala", "reward": "normalized"}, "optimizer": {"name": "adam", "lr": {"linear": [1e-3, 0]}},
    "storage": {"name": "replay", "horizon": 5, "batch": 8, "capacity": 80, "fraction": 0.5}, "checkpoint": {"storage": True, "keep": 1},
    "evaluation": {"every": 400, "episodes": 2}, "logging": {"tensorboard": False, "every": 80},
}  # fmt: skip


def main() -> None:
    from modrl import Experiment, rundir
    from modrl.policy import play

    folder = HERE / str(rundir.FORMAT)
    if folder.exists():
        raise SystemExit(f"{folder} is there already; a released format stays as it is")
    experiment = Experiment.from_dict(SETTINGS)
    experiment.run(folder / "run")
    played = play(folder / "run", 3)
    info = json.loads((folder / "run" / "run.json").read_text())
    info |= {"git": None, "command": ["modrl", "train", "kept.yaml"], "import_from": [], "machine": {"host": "then", "platform": "then", "cpus": 2}}
    (folder / "run" / "run.json").write_text(json.dumps(info, indent=2) + "\n")
    (folder / "expected.json").write_text(json.dumps({"returns": played.returns, "seeds": played.seeds}) + "\n")
    for leftover in (folder / "run").glob("*.lock"):
        leftover.unlink()
    shutil.rmtree(folder / "run" / "dumps", ignore_errors=True)


if __name__ == "__main__":
    main()
