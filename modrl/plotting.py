"""Learning curves: return against env steps and against wall time, runs that differ only in their seed as one curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modrl.config import BadInput, read_file
from modrl.metrics import number, read_rows
from modrl.rundir import RunDir, RunDirError


class Curve(NamedTuple):
    """One run's rows that have a return."""

    env_steps: np.ndarray  # [N]
    wall_seconds: np.ndarray  # [N]
    episode_return: np.ndarray  # [N]


def read_curve(directory: RunDir) -> Curve:
    """The curve of a run.

    Raises:
        RunDirError: it holds no metrics, or no finished episode.
    """
    if not directory.metrics.exists():
        raise RunDirError(f"{directory.path} holds no run: there is no metrics.csv")
    columns, rows = read_rows(directory.metrics)
    wanted = [columns.index(name) for name in Curve._fields]
    table = np.array([[number(directory.metrics, row[i]) for i in wanted] for row in rows if row[wanted[-1]]])
    if not len(table):
        raise RunDirError(f"{directory.path}: no episode has finished yet, so there is no return to plot")
    return Curve(*table.T)


def _settings(data: Any, path: str = "") -> dict[str, Any]:
    """Nested settings by dotted path."""
    if not isinstance(data, dict) or not data:
        return {path: data}
    return {at: value for key, part in data.items() for at, value in _settings(part, f"{path}.{key}".lstrip(".")).items()}


def _labels(groups: Sequence[dict[str, Any]]) -> list[str]:
    """A name for each group of runs: the experiment's, its scheme's, and the settings in which groups of the same name differ."""
    titles = [f"{group.get('name')} · {group.get('scheme.preset') or 'own scheme'}" for group in groups]
    labels = []
    for group, title in zip(groups, titles, strict=True):
        rivals = [other for other, same in zip(groups, titles, strict=True) if same == title]
        shared = [key for key in group if all(key in other for other in rivals)]
        differing = [key for key in shared if any(other[key] != group[key] for other in rivals)]
        labels.append(", ".join([title, *(f"{key.removesuffix('.name')}={group[key]}" for key in differing[:3])]))
    return labels


def plot(run_dirs: Sequence[str | Path], out: Path) -> Path:
    """Draws the runs' learning curves into a picture file.

    Raises:
        RunDirError: a directory holds no run.
        BadInput: the file's ending is none that matplotlib can write, or it cannot be written to.
    """
    groups: list[tuple[dict[str, Any], list[Curve]]] = []
    for path in run_dirs:
        directory = RunDir(Path(path))
        curve, data = read_curve(directory), read_file(directory.experiment).data
        settings = _settings({key: part for key, part in data.items() if key not in {"seed", "machine"}})
        curves = next((curves for known, curves in groups if known == settings), None)
        if curves is None:
            groups.append((settings, curves := []))
        curves.append(curve)
    labels = _labels([settings for settings, _ in groups])

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    endings = FigureCanvasAgg(figure).get_supported_filetypes()
    if out.suffix.removeprefix(".").lower() not in endings:
        raise BadInput(f"expected a picture file ending in one of {', '.join(endings)}, got {str(out)!r}")
    axes = figure.subplots(1, 2, sharey=True)
    for index, (label, (_, curves)) in enumerate(zip(labels, groups, strict=True)):
        seeds = f", {len(curves)} seeds" if len(curves) > 1 else ""
        for ax, field in zip(axes, ("env_steps", "wall_seconds"), strict=True):
            _draw(ax, curves, field, f"C{index % 10}", label + seeds)
    for ax, text in zip(axes, ("env steps", "wall time (s)"), strict=True):
        ax.set_xlabel(text)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("episode return (mean of the last 100)")
    axes[0].legend(frameon=False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=120)
    except OSError as error:
        raise BadInput(f"cannot write to {out}: {error.strerror}") from error
    return out


def _draw(ax: object, curves: Sequence[Curve], field: str, colour: str, label: str) -> None:
    """A line for one run; for several the mean over what all of them cover, and the range between lowest and highest."""
    xs = [np.maximum.accumulate(getattr(curve, field)) for curve in curves]
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    if len(curves) == 1 or not math.isfinite(low) or low >= high:
        for i, (x, curve) in enumerate(zip(xs, curves, strict=True)):
            ax.plot(x, curve.episode_return, color=colour, label=label if i == 0 else None)  # type: ignore[attr-defined]
        return
    grid = np.linspace(low, high, 300)
    lines = np.stack([np.interp(grid, x, curve.episode_return) for x, curve in zip(xs, curves, strict=True)])
    ax.plot(grid, lines.mean(0), color=colour, label=label)  # type: ignore[attr-defined]
    ax.fill_between(grid, lines.min(0), lines.max(0), color=colour, alpha=0.15, linewidth=0)  # type: ignore[attr-defined]
