"""From a document to settings, with every mistake at once, and back to a file."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, cast

import yaml
from pydantic import ValidationError

from modrl.config.components import REGISTRY, module_name
from modrl.config.documents import Document, Loader
from modrl.config.problems import ConfigError, Origin, Path_, Problem
from modrl.config.settings import SYNONYMS, Settings, members_of

S = typing.TypeVar("S", bound=Settings)


def validate(cls: type[S], document: Document, source: str) -> S:
    """The settings that a document describes.

    Raises:
        ConfigError: every mistake in it, in the order of its lines.
    """
    try:
        return cls.model_validate(document.data)
    except ValidationError as error:
        problems = [_located(cls, item, document.origins) for item in error.errors()]
        problems.sort(key=lambda p: (p.path not in document.origins, p.origin.line or 0 if p.origin else 0))
        raise ConfigError(problems, source) from None


def _located(cls: type[Settings], item: Any, origins: Mapping[Path_, Origin]) -> Problem:
    """The problem, at the key to change; where an unknown key is known in a block, it says which."""
    context = item.get("ctx", {})
    at = [int(key) if key.isdigit() else key for key in str(context["at"]).split(".")] if context.get("at") else []
    path = (*item["loc"], *at)
    text = str(context["text"]) if item["type"] == "modrl" else str(item["msg"]).removeprefix("Value error, ")
    return Problem(path, _known_elsewhere(cls, path, text), origin_of(path, origins))


def _known_elsewhere(cls: type[Settings], path: Path_, text: str) -> str:
    if text.startswith("unknown key") and path == ("extend",):
        return "unknown key; did you mean 'extends'?"
    if len(path) <= 2 and text.startswith("unknown key") and path[-1] not in SYNONYMS:
        for name, field in cls.model_fields.items():
            for member in members_of(field.annotation):
                kind = getattr(member, "__dict__", {}).get("opens_kind")
                owners: list[Any] = [c.Config for c in REGISTRY[kind].values()] if kind else []
                if not kind and inspect.isclass(member) and issubclass(member, Settings):
                    owners = [member]
                if name != path[0] and any(path[-1] in owner.model_fields for owner in owners):
                    return f"unknown key; did you mean '{name}.{path[-1]}'?"
    return text


def origin_of(path: Path_, origins: Mapping[Path_, Origin]) -> Origin | None:
    """Where the user wrote a key, or else the block that it is missing from."""
    path = tuple(path)
    while path and (path not in origins or origins[path].source.startswith("preset ")):
        path = path[:-1]
    return origins.get(path)


def dump(settings: Settings) -> dict[str, Any]:
    """Plain data that a file can hold and `validate` turns back into equal settings."""
    return cast(dict[str, Any], _plain(settings.model_dump(mode="python")))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{module_name(value)}:{value.__qualname__}"
    return value


class _Dumper(yaml.SafeDumper):
    """Writes what `Loader` reads; lists on one line."""


_Dumper.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))
_Dumper.add_representer(float, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", repr(value).replace("inf", ".inf")))


def to_yaml(data: dict[str, Any]) -> str:
    """The data as a YAML text that `read` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)
