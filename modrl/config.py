"""Settings and components: from YAML with line numbers to typed, frozen objects, and back.

A component is a class that nests its settings as `.Config` and is known by a kind and a name:

    class Corridor(Envs, name="corridor"):
        class Config(Envs.Config):
            length: int = 5

In a file it is then `envs: {name: corridor, length: 9}`; a class of the user's own is `name: package.module:Class`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import GetJsonSchemaHandler, JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

S = typing.TypeVar("S", bound="Settings")
Path_: typing.TypeAlias = tuple[str | int, ...]
"""A key path: `("scheme", "collection", "workers")`."""


class Origin(NamedTuple):
    """Where a value was written."""

    source: str  # a file's path, "command line", "preset impala"
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Problem(NamedTuple):
    """One mistake in what the user wrote."""

    path: Path_
    text: str
    origin: Origin | None = None

    def __str__(self) -> str:
        where = f"{self.origin}  " if self.origin else ""
        return f"{where}{dotted(self.path)}: {self.text}" if self.path else f"{where}{self.text}"


class BadInput(ValueError):
    """What the user gave cannot be used; the message says why and what to do. Nothing was begun."""


class ConfigError(BadInput):
    """All mistakes of one experiment at once, each with file, line, key path and remedy."""

    def __init__(self, problems: Sequence[Problem], source: str = "the experiment") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(str(self))

    def __str__(self) -> str:
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''} in {self.source}"
        return "\n".join([count, *(f"  {problem}" for problem in self.problems)])

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (self.problems, self.source)


def dotted(path: Iterable[str | int]) -> str:
    """The key path as users write it: `scheme.collection.workers`."""
    return ".".join(str(key) for key in path)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(choices), 1, 0.6)), None)


# What other libraries call the same thing.
SYNONYMS = {
    "gamma": "discount", "discounting": "discount", "learning_rate": "lr", "entropy_coef": "entropy_cost", "ent_coef": "entropy_cost",
    "value_coef": "value_cost", "vf_coef": "value_cost", "baseline_cost": "value_cost", "num_envs": "count", "n_envs": "count",
    "num_workers": "workers", "unroll_length": "horizon", "n_steps": "horizon", "rollout_length": "horizon", "batch_size": "batch",
    "total_steps": "steps", "grad_clip": "max_grad_norm", "max_norm": "max_grad_norm", "epsilon": "eps", "environment": "envs", "env": "envs",
    "num_minibatches": "minibatches", "gae_lambda": "lambda_", "lambda": "lambda_", "lam": "lambda_",
}  # fmt: skip


class Settings(BaseModel):
    """Frozen, keyword-only settings that refuse unknown keys and name the right one."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _speak_to_a_person(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            problems = [error for name, value in data.items() if (error := _wrong_type(cls, name, value))]
            data = {name: value for name, value in data.items() if not any(error["loc"] == (name,) for error in problems)}
        else:
            problems = []
        try:
            return_value = handler(data)
        except ValidationError as error:
            found = [_reword(cls, item) for item in error.errors() if not any(item["loc"][:1] == p["loc"] for p in problems)]
            raise ValidationError.from_exception_data(cls.__name__, problems + found) from None
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return return_value


def problem(text: str, at: str = "") -> PydanticCustomError:
    """What a settings' validator raises: the mistake, and which of its keys to change."""
    return PydanticCustomError("modrl", "{at}: {text}" if at else "{text}", {"text": text, "at": at})


def _problem(path: Path_, text: str, value: Any, at: str = "") -> InitErrorDetails:
    return InitErrorDetails(type=problem(text, at), loc=path, input=value)


def _members(annotation: Any) -> set[Any]:
    """The types that an annotation's union admits."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {member for part in typing.get_args(annotation) for member in _members(part)}
    if typing.get_origin(annotation) is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    return {annotation}


def _wrong_type(cls: type[Settings], name: str, value: Any) -> InitErrorDetails | None:
    """Refuses what pydantic would quietly convert: `yes` is not 1.0, `'3'` is not 3, and 1 is not true."""
    field = cls.model_fields.get(name)
    if field is None:
        return None
    members = _members(field.annotation)
    takes_text = any(m is str or typing.get_origin(m) is typing.Literal or hasattr(m, "reads_text") for m in members)
    if isinstance(value, (bool, str)) and bool not in members and not takes_text and members & {int, float}:
        return _problem((name,), f"expected {_expected(field.annotation)}, got {_shown(value)}", value)
    if isinstance(value, (int, float, str)) and not isinstance(value, bool) and members - {type(None)} == {bool}:
        return _problem((name,), f"expected true or false, got {_shown(value)}", value)
    return None


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"


def _expected(annotation: Any) -> str:
    """An annotation in a user's words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null", dict: "a block", list: "a list"}
    parts = []
    for member in sorted(_members(annotation), key=lambda m: m is type(None)):
        if typing.get_origin(member) is typing.Literal:
            parts.append("one of " + ", ".join(str(a) for a in typing.get_args(member)))
        else:
            origin = typing.get_origin(member) or member
            words_of = getattr(member, "in_words", None)
            parts.append(words_of if isinstance(words_of, str) else words.get(origin, getattr(origin, "__name__", str(origin))))
    return " or ".join(dict.fromkeys(part for part in parts if part))


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a block",
    "tuple": "a list",
}


def _reword(cls: type[Settings], item: Any) -> InitErrorDetails:
    """A pydantic error in the words of the design: what was expected, what came, and the nearest right name."""
    path, value, kind = item["loc"], item["input"], item["type"]
    field = cls.model_fields.get(str(path[0])) if path else None
    if kind == "modrl":
        return _problem(path, item["ctx"]["text"], value, item["ctx"]["at"])
    if kind == "value_error":
        return _problem(path, item["msg"].removeprefix("Value error, "), value)
    if kind == "extra_forbidden" and len(path) == 1:
        return _problem(path, _unknown(cls, str(path[0])), value)
    if kind == "missing" and field is not None:
        return _problem(path, f"missing ({_type_name(field.annotation)})", value)
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        sign = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below", "less_than_equal": "at most"}[kind]
        return _problem(path, f"must be {sign} {next(iter(item['ctx'].values())):g}, got {value!r}", value)
    if kind == "finite_number":
        return _problem(path, f"expected a finite number, got {value!r}", value)
    if kind == "literal_error" and field is not None:
        return _problem(path[:1], f"expected {_expected(field.annotation)}, got {value!r}", value)
    if field is not None and len(path) == 1:
        return _problem(path, f"expected {_expected(field.annotation)}, got {_shown(value)}", value)
    if (expected := _KINDS.get(kind.split("_")[0])) is not None:
        return _problem(
            tuple(key for key in path if key in (path[0], path[-1]) or isinstance(key, int)), f"expected {expected}, got {_shown(value)}", value
        )
    return _problem(path, f"expected a block of settings, got {_shown(value)}" if kind == "model_type" else item["msg"], value)


def _unknown(cls: type[Settings], word: str) -> str:
    """What to say of a key that is none."""
    meanings = {name: name for name in cls.model_fields} | {word: name for word, name in SYNONYMS.items() if name in cls.model_fields}
    if (close := nearest(word, meanings)) is not None:
        return f"unknown key; did you mean {meanings[close]!r}?"
    return f"unknown key; known are {', '.join(cls.model_fields) or 'none'}"


def _type_name(annotation: Any) -> str:
    names = {getattr(member, "opens_kind", getattr(member, "__name__", str(member))) for member in _members(annotation) - {type(None)}}
    names = {"function" if name == "Callable" else name for name in names}
    return " or ".join(sorted(names))


# --- components -----------------------------------------------------------------------------------------------------

REGISTRY: dict[str, dict[str, type[Component]]] = {}
"""Components by kind and name."""


class Component:
    """A part that users choose by name. The class that opens a kind says `kind=`, each member says `name=`."""

    kind: ClassVar[str]
    name: ClassVar[str]

    class Config(Settings):
        """The settings of a component; `build` makes the component itself."""

        owner: ClassVar[type[Component]]

        def build(self, **runtime: Any) -> Any:
            """The component with these settings; runtime things (spaces, seeds, devices) by keyword."""
            return self.owner(self, **runtime)  # type: ignore[call-arg]

        def __repr_name__(self) -> str:
            return f"{self.owner.__qualname__}.Config"

        @model_serializer(mode="wrap")
        def _with_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
            return {"name": public_name(self.owner), **handler(self)}

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            owner = cls.__dict__.get("opens_kind")
            return core_schema.no_info_plain_validator_function(lambda value: resolve(owner, value)) if owner else handler(source)

        @classmethod
        def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
            kind = cls.__dict__.get("opens_kind")
            return handler(schema) if kind is None else {_KIND: kind}  # kinds nest in each other: `json_schema` refers to them

    def __init_subclass__(cls, kind: str | None = None, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Config" not in cls.__dict__:
            base = cast(Any, cls).Config
            namespace = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config", "__doc__": base.__doc__}
            cls.Config = type("Config", (base,), namespace)  # type: ignore[misc, assignment]
        cls.Config.owner = cls
        if kind is not None:
            cls.kind = kind
            REGISTRY.setdefault(kind, {})
            cls.Config.opens_kind = kind  # type: ignore[attr-defined]
            cls.Config.model_rebuild(force=True)
        if name is not None:
            known = REGISTRY[cls.kind].get(name)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.kind} {name!r} is taken by {known.__module__}.{known.__qualname__}; choose another name")
            cls.name = name
            REGISTRY[cls.kind][name] = cls


def is_builtin(component: type) -> bool:
    """Whether the class comes with modrl."""
    return component.__module__.split(".")[0] == "modrl"


def builtins_of(kind: str) -> dict[str, type[Component]]:
    """The components of a kind that come with modrl."""
    return {name: member for name, member in sorted(REGISTRY.get(kind, {}).items()) if is_builtin(member)}


def module_name(thing: Any) -> str:
    """The module to import it from; for a script's own classes, the script's name."""
    if thing.__module__ != "__main__":
        return str(thing.__module__)
    main = getattr(sys.modules["__main__"], "__file__", None)
    return Path(main).stem if main else "__main__"


def public_name(component: type[Component]) -> str:
    """The name that a file uses: short for modrl's own, `package.module:Class` for a user's."""
    if is_builtin(component) and "name" in component.__dict__:
        return component.name
    return f"{module_name(component)}:{component.__qualname__}"


def load_object(path: str) -> Any:
    """What `package.module:name` names.

    Raises:
        ValueError: the module cannot be imported or has no such name; says which.
    """
    module, _, name = path.partition(":")
    if not re.fullmatch(r"[\w.]+:[\w.]+", path):
        raise ValueError(f"expected package.module:Name, got {path!r}")
    main = sys.modules["__main__"]
    try:
        found = main if module == module_name(types.SimpleNamespace(__module__="__main__")) else importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {module!r} for {path!r}: {error}; it is looked for beside the experiment file and on sys.path") from error
    except Exception as error:  # a user's module may raise anything at import: say where
        raise ValueError(f"importing {module!r} for {path!r} failed: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            meant = nearest(part, dir(found))
            raise ValueError(f"module {module!r} has no {name!r}{f'; did you mean {meant!r}?' if meant else ''}")
        found = getattr(found, part)
    return found


ADAPTERS: dict[str, Any] = {}
"""By kind: makes a Config of something that is no component but may stand for one (an optimiser of torch)."""


def resolve(kind: str, value: Any) -> Any:
    """The Config that a file's entry means: a bare name, a block with `name`, or a Config as it is.

    Raises:
        ValueError: there is no such component; names the nearest.
    """
    if isinstance(value, Component.Config):
        if value.owner.kind != kind:
            raise ValueError(f"expected {a(kind)}, got the {value.owner.kind} {public_name(value.owner)!r}")
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {a(kind)}'s name or a block with a name, got {_shown(value)}")
    if "name" not in value:
        raise ValueError(f"missing name; known are {', '.join(builtins_of(kind))}")
    name, settings = value["name"], {key: item for key, item in value.items() if key != "name"}
    found = REGISTRY.get(kind, {}).get(name) if isinstance(name, str) else None
    if found is None:
        try:
            found = _own(kind, name)
        except ValueError as error:
            raise ValidationError.from_exception_data(kind, [_problem(("name",), str(error), name)]) from None
    if not (inspect.isclass(found) and issubclass(found, Component)):
        return ADAPTERS[kind](name, found, settings)
    return found.Config.model_validate(settings)


def _own(kind: str, name: Any) -> Any:
    if not isinstance(name, str) or ":" not in name:
        meant = nearest(str(name), REGISTRY.get(kind, {}))
        known = f"did you mean {meant!r}?" if meant else f"known are {', '.join(builtins_of(kind))}, or package.module:Class"
        raise ValueError(f"no {kind} is called {name!r}; {known}")
    found = load_object(name)
    if inspect.isclass(found) and issubclass(found, Component):
        if getattr(found, "kind", None) != kind:
            raise ValueError(f"expected {a(kind)}, got {name!r}, {a(getattr(found, 'kind', 'component'))}")
    elif kind not in ADAPTERS:
        raise ValueError(f"{name!r} is no {kind}: derive it from modrl's base class of that kind")
    return found


def a(noun: str) -> str:
    """The noun with its article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


_KIND = "x-kind"


def json_schema(cls: type[Settings]) -> dict[str, Any]:
    """The JSON Schema of a file of these settings, with one definition for every kind of component."""
    definitions: dict[str, Any] = {}

    def lifted(schema: dict[str, Any]) -> dict[str, Any]:
        for name, definition in schema.pop("$defs", {}).items():
            definitions[name] = referring(definition)
        return referring(schema)

    def referring(part: Any) -> Any:
        if isinstance(part, dict) and _KIND in part:
            define(part[_KIND])
            return {"$ref": f"#/$defs/{part[_KIND]}", **{key: value for key, value in part.items() if key != _KIND}}
        if isinstance(part, dict):
            return {key: referring(value) for key, value in part.items()}
        return [referring(item) for item in part] if isinstance(part, list) else part

    def define(kind: str) -> None:
        if kind in definitions:
            return
        definitions[kind] = {}  # stands for itself while its members are written
        choices: list[Any] = [{"type": "string", "enum": list(builtins_of(kind))}, {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}]
        for name, member in builtins_of(kind).items():
            shape = lifted(member.Config.model_json_schema())
            properties = {"name": {"const": name}, **shape.get("properties", {})}
            choices.append({**shape, "title": f"{kind} {name}", "properties": properties, "required": ["name", *shape.get("required", [])]})
        own = {"name": {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}}
        choices.append({"title": f"{kind} of one's own", "type": "object", "properties": own, "required": ["name"]})
        definitions[kind] = {"anyOf": choices}

    schema = lifted(cls.model_json_schema())
    whole = {key: schema.pop(key) for key in ("properties", "required", "additionalProperties") if key in schema}
    # A file that extends another may leave anything out, inside of its blocks too.
    parts = {name: part if "type" in part else {"anyOf": [part, {"type": "object"}]} for name, part in whole["properties"].items()}
    paths = {"type": "array", "items": {"type": "string"}}
    parts["extends"] = {"anyOf": [{"type": "string"}, paths], "description": "Files to lay this one over."}
    either = {"if": {"required": ["extends"]}, "then": {"properties": parts, "additionalProperties": False}, "else": whole}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **either, "$defs": definitions}


# --- YAML -----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: 1e-4 and 2_000 are numbers, `on` and `no` are text; a duplicate key is an error."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[1] not in {"float", "int", "bool", "timestamp"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(re.sub(r"\.(?=[in])|_", "", node.value.lower())))


class Document(NamedTuple):
    """A file's content, and where each key of it stands."""

    data: dict[str, Any]
    origins: dict[Path_, Origin]


def parse(text: str) -> Any:
    """One YAML value, as typed on a command line."""
    return yaml.load(text, _Loader)


def read(text: str, source: str) -> Document:
    """A YAML text as data with origins.

    Raises:
        ConfigError: not YAML, not a mapping, or a key stands twice.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        origins: dict[Path_, Origin] = {(): Origin(source, 1)}
        problems = list(_walk(node, (), source, origins)) if node is not None else []
        data = loader.construct_document(node) if node is not None and not problems else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        text = getattr(error, "problem", None) or str(error)
        raise ConfigError([Problem((), f"not valid YAML: {text}", Origin(source, mark.line + 1 if mark else None))], source) from None
    finally:
        loader.dispose()
    if problems:
        raise ConfigError(problems, source)
    if not isinstance(data, dict):
        raise ConfigError([Problem((), f"expected a mapping of settings, got {_shown(data)}", Origin(source, 1))], source)
    return Document(data, origins)


def _walk(node: yaml.Node, path: Path_, source: str, origins: dict[Path_, Origin]) -> Iterator[Problem]:
    origins.setdefault(path, Origin(source, node.start_mark.line + 1))
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
    for part in reversed(path):
        nested = {part: nested}
    return Document(nested, origins)


def read_file(path: Path) -> Document:
    """An experiment file, with all that it `extends` laid beneath it.

    Raises:
        ConfigError: a file is missing, malformed, or extends itself.
    """
    return _read_file(path, ())


def _read_file(path: Path, chain: tuple[Path, ...]) -> Document:
    path = Path(path)
    if path.resolve() in chain:
        raise ConfigError([Problem(("extends",), f"{path} extends itself", Origin(str(chain[-1])))], str(path))
    try:
        document = read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise ConfigError([Problem((), f"cannot be read: {reason}", Origin(str(path)))], str(path)) from None
    parents = document.data.pop("extends", [])
    if isinstance(parents, str):
        parents = [parents]
    if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
        raise ConfigError([Problem(("extends",), "expected a file or a list of files", document.origins[("extends",)])], str(path))
    base = Document({}, {})
    for parent in parents:
        base = merge(base, _read_file(path.parent / parent, (*chain, path.resolve())))
    return merge(base, document)


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
    """The problem, at the key to change; where an unknown top-level key is known one level down, it says so."""
    context = item.get("ctx", {})
    path = (*item["loc"], *str(context["at"]).split(".")) if context.get("at") else tuple(item["loc"])
    text = str(context["text"]) if item["type"] == "modrl" else str(item["msg"]).removeprefix("Value error, ")
    return Problem(path, _one_level_down(cls, path, text), origin_of(path, origins))


def _one_level_down(cls: type[Settings], path: Path_, text: str) -> str:
    if len(path) == 1 and text.startswith("unknown key; known are"):
        for name, field in cls.model_fields.items():
            for member in _members(field.annotation):
                kind = getattr(member, "__dict__", {}).get("opens_kind")
                owners: list[Any] = [c.Config for c in REGISTRY[kind].values()] if kind else []
                if not kind and inspect.isclass(member) and issubclass(member, Settings):
                    owners = [member]
                if any(path[0] in owner.model_fields for owner in owners):
                    return f"unknown key; did you mean '{name}.{path[0]}'?"
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
    """Writes what `_Loader` reads; lists on one line."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))
_Dumper.add_representer(float, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", repr(value).replace("inf", ".inf")))


def to_yaml(data: dict[str, Any]) -> str:
    """The data as a YAML text that `read` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)
