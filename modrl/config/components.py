"""Components: classes that users choose by kind and name, each nesting its settings as `.Config`.

    class Corridor(Envs, name="corridor"):
        class Config(Envs.Config):
            length: int = 5

In a file it is then `envs: {name: corridor, length: 9}`; a class of the user's own is `name: package.module:Class`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import GetCoreSchemaHandler, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic.json_schema import GetJsonSchemaHandler, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from modrl.config.problems import nearest
from modrl.config.settings import Settings, problem_at, shown

KIND = "x-kind"
"""Where a JSON Schema means any component of a kind."""

REGISTRY: dict[str, dict[str, type[Component]]] = {}
"""Components by kind and name."""


class Component:
    """A part that users choose by name. The class that opens a kind says `kind=`, each member says `name=`."""

    kind: ClassVar[str]
    name: ClassVar[str]
    logged: dict[str, np.ndarray]  # [sum, number] of what was logged since it was last taken

    def log(self, name: str, value: Any) -> None:
        """Logs a number, or a tensor of one: the metrics' column `name` is the mean of all that is logged between two rows, on all workers."""
        so_far = self.__dict__.setdefault("logged", {}).get(name, 0.0)
        self.logged[name] = so_far + np.array([float(value.detach() if hasattr(value, "detach") else value), 1.0])

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
            return handler(schema) if kind is None else {KIND: kind}  # kinds nest in each other: `json_schema` refers to them

    def __init_subclass__(cls, kind: str | None = None, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__bases__:
            if issubclass(base, Component) and not (inspect.isclass(cls.Config) and issubclass(cls.Config, base.Config)):
                raise TypeError(f"{cls.__qualname__}.Config must extend the settings of its base class: class Config({base.__qualname__}.Config)")
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


def import_module(module: str, wanted: str) -> types.ModuleType:
    """A module of the user's, for the thing in it that a file names.

    Raises:
        ValueError: there is no such module, or it raised; says which, and where.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"cannot import {module!r} for {wanted!r}: {error}; it is looked for beside the experiment file and on sys.path"
            ) from error
        raise ValueError(f"importing {module!r} for {wanted!r} failed: {raised(error)}") from error
    except Exception as error:  # a user's module may raise anything at import
        raise ValueError(f"importing {module!r} for {wanted!r} failed: {raised(error)}") from error


def raised(error: BaseException) -> str:
    """What code of the user's raised, on one line, with the place: the user's own last line, or else a library's."""
    text = str(getattr(error, "message", error)).partition("\n")[0]  # pydantic's go on with a link
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"  # says where itself
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _is_ours(file: str) -> bool:
    """Whether a traceback's file is modrl's or Python's import machinery, which tell a user nothing."""
    folders = Path(__file__).parents[1], Path(inspect.__file__).parent / "importlib"
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in folders)


def load_object(path: str) -> Any:
    """What `package.module:name` names.

    Raises:
        ValueError: the module cannot be imported or has no such name; says which.
    """
    module, _, name = path.partition(":")
    if not re.fullmatch(r"[\w.]+:[\w.]+", path):
        raise ValueError(f"expected package.module:Name, got {path!r}")
    main = sys.modules["__main__"]
    found = main if module == module_name(types.SimpleNamespace(__module__="__main__")) else import_module(module, path)
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
            raise ValueError(f"expected {with_article(kind)}, got the {value.owner.kind} {public_name(value.owner)!r}")
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name, or a block with a name, of {with_article(kind)}, got {shown(value)}")
    if "name" not in value:
        raise ValueError(f"missing name; known are {', '.join(builtins_of(kind))}")
    name, settings = value["name"], {key: item for key, item in value.items() if key != "name"}
    found = REGISTRY.get(kind, {}).get(name) if isinstance(name, str) else None
    if found is None:
        try:
            found = _own(kind, name)
        except ValueError as error:
            raise ValidationError.from_exception_data(kind, [problem_at(("name",), str(error), name)]) from None
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
            raise ValueError(f"expected {with_article(kind)}, got {name!r}, {with_article(getattr(found, 'kind', 'component'))}")
    elif kind not in ADAPTERS:
        raise ValueError(f"{name!r} is no {kind}: derive it from modrl's base class of that kind")
    return found


def with_article(noun: str) -> str:
    """The noun with its article, if it takes one."""
    return noun if noun == "envs" else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
