"""The package as others get it: a wheel, installed where the sources are not."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from modrl.config import to_yaml
from tests.runs import SMALL, table

ROOT = Path(__file__).parents[1]


def ran(*words, cwd, **environment):
    """What a command printed; no PYTHONPATH of ours goes with it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources: a build leaves traces."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "modrl"):
        (sources / name).symlink_to(ROOT / name)
    ran(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, sources, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def modrl(wheel, tmp_path_factory):
    """The installed command, in an environment that has the wheel and the dependencies of this one, but not the sources."""
    folder = tmp_path_factory.mktemp("installed")
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    packages = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # Found after the wheel, and without its own .pth files: an editable install in it does not count.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ran(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    where = ran(python, "-c", "import modrl; print(modrl.__file__)", cwd=folder).strip()
    assert Path(where).is_relative_to(packages)
    return folder / "venv" / "bin" / "modrl"


def test_the_wheel_holds_the_package_its_data_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "modrl").rglob("*") if path.suffix in {".py", ".yaml", ".typed"}}
    assert package == sources
    assert {"modrl/py.typed", "modrl/scheme/presets/impala.yaml"} <= package
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_installed_command_trains_evaluates_and_plots(modrl, tmp_path):
    """A file outside the repository, under a preset, with a component that stands beside the file."""
    (tmp_path / "mine.py").write_text(
        "from modrl.agent.algorithms import IMPALA\n\n\nclass Mine(IMPALA):\n"
        "    def terms(self, batch, out):\n        return super().terms(batch, out) | {'mine': 0 * out.value}\n"
    )
    changes = {"algorithm": {"name": "mine:Mine", "reward": "none"}, "scheme": "sebulba"}
    (tmp_path / "small.yaml").write_text(to_yaml({**SMALL, **changes}))
    ran(modrl, "train", "small.yaml", "--run-dir", "run", cwd=tmp_path)
    assert table(tmp_path / "run")[-1]["env_steps"] == 800
    assert "loss/mine" in table(tmp_path / "run")[0]
    assert '"episodes": 2' in ran(modrl, "eval", "run", "--episodes", 2, "--json", cwd=tmp_path)
    ran(modrl, "plot", "run", "--out", "curve.png", cwd=tmp_path)
    assert (tmp_path / "curve.png").exists()
    for preset in ("a3c", "fully_async"):
        assert "max_lag: 4" in ran(modrl, "schemes", preset, cwd=tmp_path)
