"""Who may import whom, read from the sources; and what `import modrl` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "modrl"
TOP = {
    "bench", "cli", "costs", "evaluation", "evaluator", "experiment", "explain", "export", "initial", "loggers", "plotting", "policy", "replay",
    "run", "stream", "symptoms", "tuning", "verify",
}  # fmt: skip
"""Modules that may know everything; nothing below imports them."""
BASES = {"modrl.agent.statistics", "modrl.agent.actors.base", "modrl.agent.algorithms.base", "modrl.agent.storages.base", "modrl.envs.base"}


def name_of(path):
    """The module's dotted name."""
    parts = ("modrl", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree, module):
    """Every module that is imported anywhere in it, as a dotted name, and whether the import stands at the top level."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in SOURCES else node.module, id(node) in top


IMPORTS = {module: set(imports(ast.parse(path.read_text("utf-8")), module)) for module, path in SOURCES.items()}
OF_MODRL = {module: {name for name, _ in found if name.split(".")[0] == "modrl"} for module, found in IMPORTS.items()}


def within(*packages):
    """The modules in these packages, the packages themselves included."""
    return sorted(module for module in SOURCES if any(module == p or module.startswith(f"{p}.") for p in packages))


def of(name, *packages):
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def test_the_sources_are_read():
    assert {"modrl", "modrl.config", "modrl.scheme.places.ray", "modrl.agent.actors.base"} <= SOURCES.keys()
    assert "modrl.agent.algorithms.base" in OF_MODRL["modrl.agent.algorithms.impala"]
    assert ("ray", True) in IMPORTS["modrl.scheme.places.ray"]


@pytest.mark.parametrize("module", within("modrl.messages", "modrl.config"))
def test_messages_and_config_import_nothing_else_of_modrl(module):
    assert not [name for name in OF_MODRL[module] if not of(name, "modrl.config")]


@pytest.mark.parametrize("module", within("modrl.envs"))
def test_envs_do_not_know_the_agent(module):
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.agent")]


@pytest.mark.parametrize("module", within("modrl.agent"))
def test_the_agent_does_not_know_envs(module):
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.envs")]


@pytest.mark.parametrize("module", within("modrl.agent", "modrl.envs"))
def test_no_component_imports_the_scheme(module):
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.scheme")]


@pytest.mark.parametrize("module", within("modrl.agent.storages"))
def test_storages_know_neither_actors_nor_algorithms(module):
    allowed = {"modrl.agent.batch"}
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.agent") and not of(name, "modrl.agent.storages") and name not in allowed]


@pytest.mark.parametrize("module", within("modrl.agent.algorithms"))
def test_algorithms_know_of_actors_only_their_base(module):
    assert {name for name in OF_MODRL[module] if of(name, "modrl.agent.actors")} <= {"modrl.agent.actors.base"}
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.agent.storages")]


@pytest.mark.parametrize("module", within("modrl.agent.actors"))
def test_actors_know_neither_algorithms_nor_storages(module):
    assert not [name for name in OF_MODRL[module] if of(name, "modrl.agent.algorithms", "modrl.agent.storages")]


@pytest.mark.parametrize("module", within("modrl.scheme"))
def test_the_scheme_knows_base_classes_only(module):
    allowed = BASES | {"modrl.agent.batch", "modrl.agent.optimizers"}
    assert {name for name in OF_MODRL[module] if of(name, "modrl.agent", "modrl.envs")} <= allowed


@pytest.mark.parametrize("module", [module for module in SOURCES if module.removeprefix("modrl.") not in TOP | {"modrl", "__main__"}])
def test_nothing_below_knows_the_modules_that_know_everything(module):
    assert not [name for name in OF_MODRL[module] if name.removeprefix("modrl.") in TOP or name == "modrl"]


def test_ray_is_imported_by_one_module_and_that_one_only_when_it_is_needed():
    assert {module for module, found in IMPORTS.items() if any(of(name, "ray") for name, _ in found)} == {"modrl.scheme.places.ray"}
    assert not [module for module, found in IMPORTS.items() if ("modrl.scheme.places.ray", True) in found]


@pytest.mark.parametrize("library", ["ale_py", "matplotlib", "tensorboard", "torch.utils.tensorboard", "imageio", "rich", "typer"])
def test_libraries_that_a_worker_does_not_need_are_imported_only_when_they_are(library):
    eager = {module for module, found in IMPORTS.items() if any(of(name, library) for name, at_top in found if at_top)}
    assert eager <= {"modrl.cli", "modrl.display"}


def python(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent, timeout=120).stdout.strip()


def test_import_modrl_leaves_heavy_libraries_alone():
    code = "import modrl, sys; print([m for m in ('ray', 'ale_py', 'matplotlib', 'tensorboard', 'rich', 'typer') if m in sys.modules])"
    assert python(code) == "[]"


def test_import_modrl_takes_little_more_than_import_torch():
    code = "import sys, torch; before = set(sys.modules); import modrl; print(*sorted(set(sys.modules) - before))"
    modules = python(code).split()
    assert not [name for name in modules if of(name, "torch")]  # torch._dynamo alone takes 75 MB
    assert len(modules) < 330  # counted, as seconds depend on what else runs, and on whether the bytecode was stored
