"""Fills the tables between `<!-- settings: KIND NAME -->` or `<!-- results: SECTION -->` and `<!-- end -->` in the pages of the docs.

    python docs/tables.py

Settings are those of a component, with the text that stands below each in the source; results are the first table of a section of
results.md, all of its rows or those with a word in them (`; rows: WORD`). A test fails where a page's tables are not up to date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modrl  # noqa: F401 (registers the components)
from modrl.config import Settings, dump
from modrl.config.components import builtins_of
from modrl.config.settings import members_of

DOCS = Path(__file__).parent
MARKED = re.compile(r"(<!-- (settings|results): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
PLAIN = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text", type(None): "`null`"}


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        if (filled := fill(text)) != text:
            page.write_text(filled, "utf-8")
            print(page.relative_to(DOCS.parent))


def fill(text: str) -> str:
    """The page's text with all of its tables made anew."""
    return MARKED.sub(lambda match: f"{match[1]}\n{_table(match[2], match[3])}\n\n{match[4]}", text)


def _table(what: str, of: str) -> str:
    if what == "settings":
        kind, name = of.split()
        return settings_table(builtins_of(kind)[name].Config)
    section, _, word = of.partition("; rows: ")
    return results_table(section, word)


def settings_table(config: type[Settings]) -> str:
    """Every setting with its type, its default and what it means."""
    meanings = dict(docstrings(config))
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in config.model_fields.items():
        default = "required" if field.is_required() else f"`{_written(field.get_default(call_default_factory=True))}`"
        lines.append(f"| `{name}` | {default} | {_values(field.annotation, field.metadata)} | {_prose(meanings.get(name, ''))} |")
    return "\n".join(lines)


def docstrings(config: type[Settings]) -> Iterator[tuple[str, str]]:
    """What stands below each setting in the source, base classes first."""
    for cls in reversed(config.__mro__):
        if not (issubclass(cls, Settings) and cls is not Settings):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                assert isinstance(statement.target, ast.Name)
                yield statement.target.id, str(after.value.value)


def _written(value: Any) -> str:
    if isinstance(value, Settings):
        plain = dump(value)
        value = plain["name"] if "name" in plain and value == type(value)() else plain
    return value if isinstance(value, str) else json.dumps(value)


def _values(annotation: Any, metadata: list[Any]) -> str:
    """What a setting may be, with its bounds."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(part, name):g}" for part in metadata for name, sign in signs.items() if getattr(part, name, None) is not None]
    words = []
    for member in members_of(annotation):
        if typing.get_origin(member) is typing.Literal:
            words += [f"`{choice}`" for choice in typing.get_args(member)]
        elif member in PLAIN:
            words.append(" ".join([PLAIN[member], ", ".join(bounds)]).strip() if member in (int, float) else PLAIN[member])
        else:
            words.append("schedule" if hasattr(member, "word") or "Schedule" in str(member) else getattr(member, "__name__", str(member)))
    return ", ".join(dict.fromkeys(words))


def _prose(text: str) -> str:
    """A docstring in one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def results_table(section: str, word: str = "") -> str:
    """The first table of a section of results.md; only the rows with the word, if one is given."""
    text = (DOCS / "results.md").read_text("utf-8")
    _, found, rest = text.partition(f"\n## {section}\n")
    assert found, f"results.md has no section {section!r}"
    lines = rest.partition("\n## ")[0].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next((number for number, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    head, rows = lines[start : start + 2], [line for line in lines[start + 2 : end] if word in line]
    assert rows, f"{section} in results.md has no row with {word!r}"
    return "\n".join(head + rows)


if __name__ == "__main__":
    main()
