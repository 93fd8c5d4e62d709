"""Learning curves."""

from __future__ import annotations

import numpy as np
import pytest

from modrl import plotting
from modrl.plotting import plot, read_curve
from modrl.rundir import RunDir, RunDirError
from tests.runs import small, table


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of one experiment, and one of another."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        small(seed=seed).run(folder / f"seed{seed}")
    small(algorithm="a2c").run(folder / "other")
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """Curves and label of every call that draws a group."""
    calls = []
    draw = plotting._draw
    monkeypatch.setattr(
        plotting,
        "_draw",
        lambda ax, curves, field, colour, label: (calls.append((len(curves), field, label)), draw(ax, curves, field, colour, label)),
    )
    return calls


def test_a_curve_is_the_rows_that_have_a_return(runs):
    curve = read_curve(RunDir(runs / "seed1"))
    rows = [row for row in table(runs / "seed1") if row["episode_return"] is not None]
    assert curve.env_steps.tolist() == [row["env_steps"] for row in rows]
    assert curve.episode_return.tolist() == [row["episode_return"] for row in rows]
    assert (np.diff(curve.wall_seconds) >= 0).all()


def test_seeds_of_one_experiment_are_one_group(runs, drawn, tmp_path):
    out = plot([runs / "seed1", runs / "other", runs / "seed2", runs / "seed3"], tmp_path / "new" / "curves.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    one, other = "small · local, algorithm=impala, algorithm.reduction=sum", "small · local, algorithm=a2c, algorithm.reduction=mean"
    assert drawn == [
        (3, "env_steps", f"{one}, 3 seeds"), (3, "wall_seconds", f"{one}, 3 seeds"), (1, "env_steps", other), (1, "wall_seconds", other),
    ]  # fmt: skip


def test_a_group_is_its_mean_between_its_lowest_and_highest(tmp_path):
    from matplotlib.figure import Figure

    steps = np.arange(0.0, 100, 10)
    curves = [plotting.Curve(steps, steps, steps + shift) for shift in (0, 6, 3)]
    ax = Figure().subplots()
    plotting._draw(ax, curves, "env_steps", "C0", "label")
    [line], [band] = ax.lines, ax.collections
    np.testing.assert_allclose(line.get_ydata(), line.get_xdata() + 3)
    low, high = band.get_datalim(ax.transData).get_points()[:, 1]
    assert (low, high) == (0, 96)


def test_what_holds_no_curve_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="holds no run"):
        plot([tmp_path], tmp_path / "a.png")
    small(envs={"name": "gym", "id": "modrl/Const-v0", "kwargs": {"n": 10_000}, "count": 8}, steps=80).run(tmp_path / "run")
    with pytest.raises(RunDirError, match="no episode has finished yet"):
        plot([tmp_path / "run"], tmp_path / "a.png")
