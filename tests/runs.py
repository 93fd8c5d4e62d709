"""What tests of whole runs share: a small experiment, and what a run left behind."""

from __future__ import annotations

import torch

from modrl import checkpoint
from modrl.experiment import Experiment
from modrl.metrics import read_rows

SMALL = {
    "name": "small",
    "steps": 20 * 8 * 5,
    "envs": {"name": "gym", "id": "modrl/Corridor-v0", "count": 8},
    "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [16]}},
    "algorithm": {"name": "impala", "reward": "none"},
    "optimizer": {"name": "adam", "lr": 1e-3, "max_grad_norm": 40},
    "storage": {"name": "fresh", "horizon": 5, "batch": 8},
    "scheme": "local",
    "logging": {"tensorboard": False},
    "machine": {"threads": 1, "ray": {"object_store": 100_000_000}},
}


def small(**changes):
    """20 updates of IMPALA on the corridor, with some blocks changed."""
    return Experiment.from_dict({**SMALL, **changes})


def trained(experiment, folder, resume=False):
    """The checkpoint that a run ends with."""
    experiment.run(folder, resume=resume)
    return state_of(folder)


def state_of(folder):
    """The newest checkpoint's content."""
    return checkpoint.newest(folder / "checkpoints")[1]


def weights_of(state):
    return state["updater"]["acting"]


def assert_equal_weights(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance)


def table(folder):
    """metrics.csv as dicts of numbers; None where empty."""
    columns, rows = read_rows(folder / "metrics.csv")
    return [{name: float(cell) if cell else None for name, cell in zip(columns, row, strict=True)} for row in rows]
