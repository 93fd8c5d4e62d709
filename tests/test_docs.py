"""The tutorials and the pages beside them, followed from top to bottom as a reader would.

Files that are shown are written, commands run, scripts run, and fragments of YAML are laid over an experiment. SHORTER makes
runs short; what it replaces has to be there. Nothing is left out but `pip install`, whose extras have to exist.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from modrl import cli
from modrl.experiment import Experiment
from tests.test_readme import FILES as README_FILES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [DOCS / "index.md", DOCS / "observation.md", *sorted((DOCS / "tutorials").glob("*.md")), *sorted((DOCS / "algorithms").glob("*.md"))]
NAME = re.compile(r"(?:#!.*\n)?# ([\w/]+\.(?:py|yaml|sh))\n")
STATUS = re.compile(r"# exit status (\d+)")
SHORTER = {
    "index.md": {"steps: 300e3": "steps: 2048", "every: 100e3": "every: 1024", "steps=50e3": "steps=1024"},
    "resume.md": {"steps: 100e3": "steps: 8192"},
    "evaluate.md": {"steps: 100e3": "steps: 2048", "every: 20e3": "every: 1024", "--episodes 30": "--episodes 11"},
    "load.md": {"steps: 100e3": "steps: 2048", "every: 20e3": "every: 1024"},
    "video.md": {"steps: 100e3": "steps: 1024", "every: 20e3": "every: 1024", "steps=10e3": "steps=1024"},
    "wrong_numbers.md": {"steps: 50e3": "steps: 10e3"},
    "metrics.md": {"steps: 50e3": "steps: 5120", "every: 5e3": "every: 1024"},
    "normalise.md": {"steps: 100e3": "steps: 4096", "every: 20e3": "every: 4096"},
    "reproduce.md": {"steps: 100e3": "steps: 2048", "steps=200e3": "steps=2048"},
}
SIGNALLING = """\
#!{python}
# Runs a command, and sends it a signal once the run has its first row; where it had one before, lets it end.
import pathlib, signal, subprocess, sys, time

words = sys.argv[1:]
number = signal.SIGUSR1
while words[0].startswith("--") or words[0].isdecimal():
    word = words.pop(0)
    if word.startswith("--signal="):
        number = signal.Signals["SIG" + word.partition("=")[2]]
rows = pathlib.Path(words[words.index("--run-dir") + 1]) / "metrics.csv"
there = rows.exists()
process = subprocess.Popen(words)
while not there and process.poll() is None:
    if rows.exists() and rows.read_text().count("\\n") > 1:
        process.send_signal(number)
        break
    time.sleep(0.02)
sys.exit(process.wait())
"""


def blocks(text):
    """The code blocks in order: language and content."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def text_of(page):
    """The page with its runs made short."""
    text = page.read_text("utf-8")
    for written, instead in SHORTER.get(page.name, {}).items():
        assert written in text, f"{page.name} has no {written!r} any more: mend SHORTER"
        text = text.replace(written, instead)
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with `modrl` on the path and stand-ins for what sends signals."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {
        "modrl": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m modrl "$@"\n',
        "timeout": SIGNALLING.format(python=sys.executable),
        "srun": SIGNALLING.format(python=sys.executable),
        "scontrol": '#!/bin/sh\necho "$@" >> scontrol.txt\n',
    }.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logging.getLogger("modrl").level
    yield work
    logging.getLogger("modrl").setLevel(level)
    for name, module in list(sys.modules.items()):  # the next page may call another file so
        if str(work) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


class Reader:
    """Does what a page says. `said` is all that commands and scripts printed."""

    def __init__(self, page, folder, monkeypatch, capfd):
        self.page, self.folder, self.monkeypatch, self.capfd = page, folder, monkeypatch, capfd
        self.said = ""
        self.experiment = "cartpole.yaml"  # that fragments are laid over: the page's last one, or the README's
        (folder / self.experiment).write_text(README_FILES["cartpole.yaml"])

    def follow(self):
        for language, block in blocks(text_of(self.page)):
            getattr(self, f"_{language}")(block)

    def _written(self, block):
        """Whether the block is a file; it is written then."""
        if (named := NAME.match(block)) is None:
            return None
        (self.folder / named[1]).write_text(block)
        return named[1]

    def _yaml(self, block):
        if (name := self._written(block)) is not None:
            self.experiment = name
            return
        shown = block if "extends:" in block else f"extends: {self.experiment}\n{block}"
        (self.folder / "shown.yaml").write_text(shown)
        Experiment.load("shown.yaml")

    def _python(self, block):
        if self._written(block) is None:
            exec(compile(block, self.page.name, "exec"), {"__name__": "__main__"})
            self._listen()

    def _sh(self, block):
        if self._written(block) is not None:
            return
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            expected = int(status[1]) if (status := STATUS.search(line)) else 0
            if words[:2] == ["pip", "install"]:
                self._pip(words[2:])
            elif words[0] == "modrl":
                self._modrl(words, expected)
            else:
                assert self._bash(line) == expected, line

    def _pip(self, words):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = {extra for word in words if (match := re.fullmatch(r"(?:modrl|\.)\[(.*)\]", word)) for extra in match[1].split(",")}
        assert named <= extras.keys()

    def _modrl(self, words, expected):
        self.monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit:
            cli.main()
        said = self._listen()
        for library in ("wandb", "mlflow"):
            if any(f"logging.{library}" in word for word in words) and importlib.util.find_spec(library) is None:
                assert f"pip install 'modrl[{library}]'" in said
                expected = 2
        assert exit.value.code == expected, f"{shlex.join(words)}: {said}"

    def _bash(self, line):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
        self.said += done.stdout + done.stderr
        return done.returncode

    def _text(self, block):
        """What is shown as printed was printed, but for the numbers, which depend on how long a run is."""
        if self.page.parent.name == "tutorials":
            for line in block.splitlines():
                assert re.sub(r"\d+", "0", line.strip()) in re.sub(r"\d+", "0", self.said), f"nothing printed {line!r}: {self.said}"

    def _math(self, block):
        assert block.count("{") == block.count("}")
        assert block.count(r"\left") == block.count(r"\right")

    def _listen(self):
        out, err = self.capfd.readouterr()
        self.said += out + err
        return out + err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed_from_top_to_bottom(page, folder, monkeypatch, capfd):
    monkeypatch.setattr(cli.out, "_width", 200)
    Reader(page, folder, monkeypatch, capfd).follow()


def test_the_job_puts_itself_back_into_the_queue_until_the_run_is_finished(folder):
    text = text_of(DOCS / "tutorials" / "resume.md")
    for name, block in [(named[1], block) for _, block in blocks(text) if (named := NAME.match(block))]:
        (folder / name).write_text(block)
    statuses = [subprocess.run(["bash", "job.sh"], env={**os.environ, "SLURM_JOB_ID": "7"}, timeout=120, check=False).returncode for _ in range(2)]
    assert statuses == [75, 0]
    assert (folder / "scontrol.txt").read_text() == "requeue 7\n"


def test_every_page_is_followed_or_tested_with_the_readme():
    others = {
        DOCS / name
        for name in ("agents.md", "cluster.md", "configuration.md", "dependencies.md", "envs.md", "results.md", "running.md", "schemes.md")
    }
    assert set(DOCS.rglob("*.md")) - set(PAGES) - others == set((DOCS / "api").glob("*.md"))
    assert not [page for page in (DOCS / "api").glob("*.md") if blocks(page.read_text("utf-8"))]


def test_the_first_run_is_the_readmes():
    shown = {named[1]: block for _, block in blocks((DOCS / "index.md").read_text("utf-8")) if (named := NAME.match(block))}
    assert shown["cartpole.yaml"] == README_FILES["cartpole.yaml"]


def tables():
    """docs/tables.py."""
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_tables_made_from_the_sources_are_up_to_date(page):
    text = page.read_text("utf-8")
    assert tables().fill(text) == text, "run `python docs/tables.py`"


def test_every_setting_of_an_algorithm_says_what_it_means():
    from modrl.config.components import builtins_of

    for name, algorithm in builtins_of("algorithm").items():
        assert algorithm.Config.model_fields.keys() == dict(tables().docstrings(algorithm.Config)).keys(), name


def test_the_real_timeout_takes_what_its_stand_in_is_given():
    assert subprocess.run(["timeout", "--preserve-status", "--signal=TERM", "10", "true"], timeout=20, check=False).returncode == 0
