"""A run's own directory: what was asked for, what happened, and what to continue from."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modrl.config import BadInput

logger = logging.getLogger(__name__)
FORMAT = 1
PACKAGES = ("modrl", "torch", "numpy", "gymnasium", "ale-py", "ray")


class RunDirError(BadInput):
    """A directory that cannot be used as asked, and what to do."""


class RunDir:
    """experiment.yaml, run.json, metrics.csv, TensorBoard files and checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.experiment = self.path / "experiment.yaml"
        self.info = self.path / "run.json"
        self.metrics = self.path / "metrics.csv"
        self.evaluations = self.path / "evaluations.csv"
        self.checkpoints = self.path / "checkpoints"
        self.videos = self.path / "videos"
        self.dumps = self.path / "dumps"

    def new_trace(self) -> Path:
        """Where the next profile goes: trace.json, and for a run that goes on trace-2.json, …"""
        return next(path for path in self._traces() if not path.exists())

    def newest_trace(self) -> Path | None:
        """The newest profile."""
        return max(itertools.takewhile(Path.exists, self._traces()), key=lambda path: path.stat().st_mtime, default=None)

    def _traces(self) -> Iterator[Path]:
        return itertools.chain([self.path / "trace.json"], (self.path / f"trace-{number}.json" for number in itertools.count(2)))

    @property
    def used(self) -> bool:
        """Whether it holds a run already."""
        return self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running in this directory, where its file system knows locks.

        Raises:
            RunDirError: one does.
        """
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirError(f"{self.path} is in use: another process trains in it") from None
            except OSError as error:
                logger.warning("%s cannot be locked (%s): take care that no other process trains in it", self.path, error.strerror)
            yield
        finally:
            os.close(handle)

    def read_info(self) -> dict[str, Any]:
        """run.json.

        Raises:
            RunDirError: there is none, or it is not one of ours.
        """
        try:
            info = json.loads(self.info.read_text("utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise RunDirError(f"{self.path} holds no run: run.json cannot be read ({error})") from None
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise RunDirError(f"{self.path}: expected a run of format {FORMAT}, got {info.get('format') if isinstance(info, dict) else info!r}")
        if missing := {"status", "env_steps", "import_from", "restarts"} - info.keys():
            raise RunDirError(f"{self.info} is damaged: it lacks {', '.join(sorted(missing))}")
        return info

    def import_from(self) -> list[str]:
        """The folders that the run imported the user's own components from; none where this holds no run."""
        return list(self.read_info()["import_from"]) if self.info.exists() and self.experiment.exists() else []

    def write_info(self, info: dict[str, Any]) -> None:
        """run.json, whole or not at all."""
        write_whole(self.info, json.dumps(info, indent=2) + "\n")

    def write_experiment(self, experiment: str) -> None:
        """experiment.yaml, whole or not at all."""
        write_whole(self.experiment, experiment)

    def begin(self, experiment: str, import_from: list[str]) -> dict[str, Any]:
        """Writes what a new run starts from, and gives run.json's content."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.write_experiment(experiment)
        info = {
            "format": FORMAT,
            "status": "running",
            "started": now(),
            "ended": None,
            "env_steps": 0,
            "command": sys.argv,
            "import_from": import_from,
            **surroundings(import_from),
            "restarts": [],
        }
        self.write_info(info)
        return info


def write_whole(path: Path, text: str) -> None:
    """Writes a file, whole or not at all."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, "utf-8")
    os.replace(aside, path)


def surroundings(import_from: Sequence[str]) -> dict[str, Any]:
    """What a run depends on beside its experiment, as it is here and now: versions, machine, the user's repository."""
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": {"host": platform.node(), "platform": platform.platform(), "cpus": os.cpu_count()},
        "git": git(Path(import_from[0]) if import_from else Path.cwd()),
    }


def differences(info: Mapping[str, Any]) -> list[str]:
    """What differs here and now from where and when the run of a run.json was begun, each as `what: then -> now`."""
    now_ = surroundings(info.get("import_from", []))
    found = []
    for group in ("versions", "machine"):
        then = info.get(group) or {}
        found += [f"{name}: {then.get(name)} -> {value}" for name, value in now_[group].items() if then.get(name) != value]
    then, here = info.get("git") or {}, now_["git"] or {}
    if then.get("commit") != here.get("commit"):
        found.append(f"commit: {then.get('commit')} -> {here.get('commit')}")
    elif then.get("diff") != here.get("diff"):
        found.append(f"uncommitted changes: {len(then.get('diff') or '')} -> {len(here.get('diff') or '')} characters of diff")
    return found


def default_path(name: str, seed: int) -> Path:
    """runs/NAME/DATE-TIME-seed; with a number behind it where two runs start in one second."""
    stem = Path("runs") / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    return next(path for path in (stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 1000))) if not path.exists())


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def version(package: str) -> str | None:
    """The installed version."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def git(folder: Path) -> dict[str, str] | None:
    """Commit and uncommitted changes of the repository that the folder is in; None: it is in none."""

    def ask(*words: str) -> str | None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            answer = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False, errors="replace")
            return answer.stdout if answer.returncode == 0 else None
        return None

    commit, diff = ask("rev-parse", "HEAD"), ask("diff", "HEAD")
    return None if commit is None else {"commit": commit.strip(), "diff": (diff or "")[:1_000_000]}
