"""What the README and the docs show: their files run, their commands parse, their links lead somewhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer.main

from modrl import cli
from modrl.config import ConfigError, read
from modrl.experiment import Experiment
from modrl.scheme.presets import presets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = [*PAGES, *sorted(page for page in (ROOT / "docs").rglob("*.md") if page not in PAGES)]
README = PAGES[0].read_text("utf-8")


def blocks(text, language):
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def files(text):
    """The blocks that begin with a comment naming a file, by that name."""
    named = [(re.match(r"# ([\w/]+\.(?:py|yaml))\n", block), block) for language in ("python", "yaml") for block in blocks(text, language)]
    return {match[1]: block for match, block in named if match}


def commands(text, program):
    """The lines of shell blocks that call a program, as words."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == program]


FILES = files(README)
SHOWN = {name: block for page in PAGES for name, block in files(page.read_text("utf-8")).items()}
MODRL = [(page.name, words) for page in PAGES for words in commands(page.read_text("utf-8"), "modrl")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that holds the files that are shown, as a user would have copied them."""
    for name, text in SHOWN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*words, cwd):
    """A process that finds modrl, and nothing of a run of ours."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_has_files_and_commands():
    assert {"cartpole.yaml", "train.py", "custom_torso.py", "custom_algorithm.py", "custom_env.py"} <= FILES.keys()
    assert len([name for name, _ in MODRL if name == "README.md"]) >= 6
    assert len(blocks(README, "python")) + len(blocks(README, "yaml")) == len(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".yaml")])
def test_the_readmes_experiments_run(folder, name):
    python("-m", "modrl", "train", name, "steps=512", "logging.tensorboard=false", "--run-dir", "run", cwd=folder)
    columns = read_columns(folder / "run")
    assert ("loss/calm" in columns) == (name == "custom_algorithm.yaml")


def test_the_docs_algorithm_logs_what_it_says(folder):
    python(
        "-m",
        "modrl",
        "train",
        "cartpole.yaml",
        "algorithm.name=logged:Logged",
        "steps=512",
        "logging.tensorboard=false",
        "--run-dir",
        "run",
        cwd=folder,
    )
    assert {"loss/small", "rewarded"} <= set(read_columns(folder / "run"))


def read_columns(run):
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 2
    return header.split(",")


def test_the_readmes_script_runs(folder):
    text = FILES["train.py"]
    assert "steps=300_000" in text
    (folder / "train.py").write_text(text.replace("steps=300_000", "steps=512"))
    directory, steps, _ = python("train.py", cwd=folder).split()
    assert steps == "512"
    assert (folder / directory / "metrics.csv").exists()


def test_the_readmes_script_is_the_readmes_file(folder):
    space = {"__name__": "shown"}
    exec(FILES["train.py"], space)
    shown = space["experiment"].replace(evaluation={"every": 100_000, "episodes": 10}, checkpoint={"every": "10min", "keep": 3})
    assert shown == Experiment.load("cartpole.yaml")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("custom_") and name.endswith(".py")])
def test_the_readmes_components_are_those_of_the_examples(name):
    text = (ROOT / "examples" / name).read_text("utf-8")
    without_docstring = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    assert FILES[name].splitlines()[1:] == "\n".join(without_docstring).strip().splitlines()


@pytest.mark.parametrize(("page", "words"), MODRL, ids=[" ".join(words) for _, words in MODRL])
def test_commands_that_are_shown_parse(folder, monkeypatch, page, words):
    command, *arguments = words[1:]
    known = typer.main.get_command(cli.app).commands
    assert command in known, f"{page}: no command {command}"
    given = known[command].make_context(command, arguments).params
    if "file" in given:
        monkeypatch.chdir(folder if (folder / given["file"]).exists() else ROOT)
        Experiment.load(given["file"], given["overrides"] or [])
    if command == "schemes" and given["name"]:
        assert given["name"] in presets()


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_make_targets_that_are_shown_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = page.read_text("utf-8")
    assert {words[1] for words in commands(text, "make")} | set(re.findall(r"`make ([\w-]+)`", text)) <= set(targets)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_lists_every_scheme():
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(presets())


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: page.name)
def test_yaml_in_the_docs_can_be_laid_over_an_experiment(page, folder):
    """Fragments stand for the part of a file that they are about; those that show a mistake are not marked as yaml."""
    for block in blocks(page.read_text("utf-8"), "yaml"):
        data = read(block, page.name).data
        if "collection" in data:  # a scheme's file
            block = f"scheme:\n{textwrap.indent(block, '  ')}"
        (folder / "shown.yaml").write_text(block if "extends:" in block else f"extends: cartpole.yaml\n{block}")
        try:
            Experiment.load("shown.yaml")
        except ConfigError as error:
            raise AssertionError(f"{page.name}: {data}") from error


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_python_that_is_shown_is_python(page):
    for block in blocks(page.read_text("utf-8"), "python"):
        compile(block, page.name, "exec")
