"""YAML files as data that knows where each value was written, and how one is laid over another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modrl.config.problems import ConfigError, Origin, Path_, Problem
from modrl.config.settings import shown


class Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: 1e-4 and 2_000 are numbers, `on` and `no` are text; a duplicate key is an error."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[1] not in {"float", "int", "bool", "timestamp"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"),
    list("-+0123456789."),
)
Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(re.sub(r"\.(?=[in])|_", "", node.value.lower())))


class Document(NamedTuple):
    """A file's content, and where each key of it stands."""

    data: dict[str, Any]
    origins: dict[Path_, Origin]


def parse(text: str) -> Any:
    """One YAML value, as typed on a command line."""
    return yaml.load(text, Loader)


def read(text: str, source: str) -> Document:
    """A YAML text as data with origins.

    Raises:
        ConfigError: not YAML, not a mapping, or a key stands twice.
    """
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        origins: dict[Path_, Origin] = {(): Origin(source, 1)}
        problems = list(_walk(node, (), source, origins)) if node is not None else []
        data = loader.construct_document(node) if node is not None and not problems else {}
    except RecursionError:
        raise ConfigError([Problem((), "nested too deeply to be an experiment", Origin(source))], source) from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError([Problem((), f"not valid: {error}", Origin(source))], source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        text = getattr(error, "problem", None) or str(error)
        raise ConfigError([Problem((), f"not valid YAML: {text}", Origin(source, mark.line + 1 if mark else None))], source) from None
    finally:
        loader.dispose()
    if problems:
        raise ConfigError(problems, source)
    if not isinstance(data, dict):
        raise ConfigError([Problem((), f"expected a mapping of settings, got {shown(data)}", Origin(source, 1))], source)
    return Document(data, origins)


LARGEST = 50_000
"""Values in one file."""


def _walk(node: yaml.Node, path: Path_, source: str, origins: dict[Path_, Origin]) -> Iterator[Problem]:
    origins.setdefault(path, Origin(source, node.start_mark.line + 1))
    if len(origins) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} values; an alias that repeats others many times?")
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in seen:
                yield Problem((*path, name), f"this key stands twice, first in line {seen[name]}", Origin(source, line))
            seen.setdefault(name, line)
            origins[(*path, name)] = Origin(source, line)
            yield from _walk(value, (*path, name), source, origins)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*path, index), source, origins)


SELECTORS = ("name", "preset")


def _block(value: Any, selector: str) -> Any:
    return {selector: value} if isinstance(value, str) else value


def merge(base: Document, top: Document) -> Document:
    """`top` laid over `base`, deeply; a block whose `name` or `preset` changes replaces the old one."""
    origins = {(): top.origins[()], **base.origins} if () in top.origins else dict(base.origins)
    data = _merge(base.data, top.data, (), origins, top.origins)
    return Document(data, origins)


def _merge(base: dict[str, Any], top: dict[str, Any], path: Path_, origins: dict[Path_, Origin], new: dict[Path_, Origin]) -> dict[str, Any]:
    result = dict(base)
    for key, value in top.items():
        here = (*path, key)
        old = result.get(key)
        selector = "preset" if key == "scheme" else "name"
        if isinstance(old, str) and isinstance(value, dict):
            old = _block(old, selector)
        if isinstance(old, dict) and isinstance(value, str) and (set(old) & set(SELECTORS) or key == "scheme"):
            value = _block(value, selector)
        if isinstance(old, dict) and isinstance(value, dict) and not _replaces(old, value):
            if here in new:
                origins[here] = new[here]
            result[key] = _merge(old, value, here, origins, new)
            continue
        for stale in [known for known in origins if known[: len(here)] == here]:
            del origins[stale]
        origins.update({known: origin for known, origin in new.items() if known[: len(here)] == here})
        result[key] = value
    return result


def _replaces(old: dict[str, Any], new: dict[str, Any]) -> bool:
    if {"linear", "cosine", "piecewise", "constant"} & set(old):
        return True  # a schedule is one value
    return any(selector in new and new[selector] != old.get(selector) for selector in SELECTORS)


def _paths(value: Any, path: Path_) -> Iterator[Path_]:
    """The paths of all that is nested in a value."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _paths(item, (*path, key))


def override(text: str) -> Document:
    """One `key.path=value` of the command line.

    Raises:
        ConfigError: it is not of that form.
    """
    key, equals, value = text.partition("=")
    origin = Origin("command line")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key.strip()):
        raise ConfigError([Problem((), f"expected key.path=value, got {text!r}", origin)], "the command line")
    path = tuple(key.strip().split("."))
    try:
        nested: Any = parse(value)
    except yaml.YAMLError:
        raise ConfigError([Problem(path, f"not valid YAML: {value!r}", origin)], "the command line") from None
    origins: dict[Path_, Origin] = {path[: i + 1]: origin for i in range(len(path))}
    origins |= dict.fromkeys(_paths(nested, path), origin)
    for part in reversed(path):
        nested = {part: nested}
    return Document(nested, origins)


def read_file(path: Path) -> Document:
    """An experiment file, with all that it `extends` laid beneath it.

    Raises:
        ConfigError: a file is missing, malformed, or extends itself.
    """
    return _read_file(Path(path), (), None)


def _read_file(path: Path, chain: tuple[Path, ...], named_at: Origin | None) -> Document:
    if path.resolve() in chain:
        raise ConfigError([Problem(("extends",), f"{path} extends itself", named_at)], str(path))
    try:
        document = read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        wrong = Problem((), f"cannot be read: {reason}", Origin(str(path)))
        if named_at is not None:
            wrong = Problem(("extends",), f"{path} cannot be read: {reason}", named_at)
        raise ConfigError([wrong], str(chain[-1] if chain else path)) from None
    parents = document.data.pop("extends", [])
    if isinstance(parents, str):
        parents = [parents]
    if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
        raise ConfigError([Problem(("extends",), "expected a file or a list of files", document.origins[("extends",)])], str(path))
    base = Document({}, {})
    for parent in parents:
        base = merge(base, _read_file(path.parent / parent, (*chain, path.resolve()), document.origins[("extends",)]))
    return merge(base, document)
