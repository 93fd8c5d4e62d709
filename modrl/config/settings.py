"""Frozen settings that say what is wrong with them in a person's words."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from modrl.config.problems import Path_, nearest

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
            items = _of_blocks(error.errors())
            found = [_reword(cls, item) for item in items if not any(item["loc"][:1] == p["loc"] for p in problems)]
            raise ValidationError.from_exception_data(cls.__name__, problems + found) from None
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return return_value


def _of_blocks(items: Sequence[Any]) -> list[Any]:
    """Errors of a union's members, without the members' names in their paths; a block is not said to be no word where something in it is wrong."""
    items = [{**item, "loc": tuple(part for part in item["loc"] if not str(part).startswith("function-wrap["))} for item in items]
    inside = {item["loc"][0] for item in items if item["type"] == "modrl" and len(item["loc"]) > 1}
    words = {item["loc"][0] for item in items if item["type"] == "literal_error"}

    def told_better(item: Any) -> bool:
        first, is_block = item["loc"][:1], isinstance(item["input"], Mapping)
        if item["type"] == "literal_error":
            return is_block and first[0] in inside
        return (item["type"] != "modrl" or len(item["loc"]) == 1) and not is_block and bool(first) and first[0] in words

    return [item for item in items if not told_better(item)]


def problem(text: str, at: str = "") -> PydanticCustomError:
    """What a settings' validator raises: the mistake, and which of its keys to change."""
    return PydanticCustomError("modrl", "{at}: {text}" if at else "{text}", {"text": text, "at": at})


def problem_at(path: Path_, text: str, value: Any, at: str = "") -> InitErrorDetails:
    return InitErrorDetails(type=problem(text, at), loc=path, input=value)


def members_of(annotation: Any) -> list[Any]:
    """The types that an annotation's union admits, as they are written."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return list(dict.fromkeys(member for part in typing.get_args(annotation) for member in members_of(part)))
    if typing.get_origin(annotation) is typing.Annotated:
        return members_of(typing.get_args(annotation)[0])
    return [annotation]


def _wrong_type(cls: type[Settings], name: str, value: Any) -> InitErrorDetails | None:
    """Refuses what pydantic would quietly convert: `yes` is not 1.0, `'3'` is not 3, and 1 is not true."""
    field = cls.model_fields.get(name)
    if field is None:
        return None
    members = members_of(field.annotation)
    takes_text = any(m is str or typing.get_origin(m) is typing.Literal or hasattr(m, "reads_text") for m in members)
    if isinstance(value, (bool, str)) and bool not in members and not takes_text and {int, float}.intersection(members):
        return problem_at((name,), f"expected {_expected(field.annotation)}, got {shown(value)}", value)
    if isinstance(value, (int, float, str)) and not isinstance(value, bool) and set(members) <= {bool, type(None)}:
        return problem_at((name,), f"expected true or false, got {shown(value)}", value)
    return None


def shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"


def _expected(annotation: Any) -> str:
    """An annotation in a user's words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null", dict: "a block", list: "a list"}
    parts = []
    for member in sorted(members_of(annotation), key=lambda m: m is type(None)):
        if typing.get_origin(member) is typing.Literal:
            choices = [str(choice) for choice in typing.get_args(member)]
            parts.append(f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0])
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
        return problem_at(path, item["ctx"]["text"], value, item["ctx"]["at"])
    if kind == "value_error":
        return problem_at(path, item["msg"].removeprefix("Value error, "), value)
    if kind == "extra_forbidden" and len(path) == 1:
        return problem_at(path, _unknown(cls, str(path[0])), value)
    if kind == "missing" and field is not None:
        return problem_at(path, f"missing ({_type_name(field.annotation)})", value)
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        sign = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below", "less_than_equal": "at most"}[kind]
        return problem_at(path, f"must be {sign} {next(iter(item['ctx'].values())):g}, got {value!r}", value)
    if kind == "string_pattern_mismatch":
        return problem_at(path, f"expected text of letters, digits, '_', '-' and, not in front, '.', got {value!r}", value)
    if kind == "finite_number":
        return problem_at(path, f"expected a finite number, got {value!r}", value)
    if kind == "literal_error" and field is not None:
        return problem_at(path[:1], f"expected {_expected(field.annotation)}, got {value!r}", value)
    if field is not None and len(path) == 1:
        return problem_at(path, f"expected {_expected(field.annotation)}, got {shown(value)}", value)
    if (expected := _KINDS.get(kind.split("_")[0])) is not None:
        return problem_at(
            tuple(key for key in path if key in (path[0], path[-1]) or isinstance(key, int)), f"expected {expected}, got {shown(value)}", value
        )
    return problem_at(path, f"expected a block of settings, got {shown(value)}" if kind == "model_type" else item["msg"], value)


def _unknown(cls: type[Settings], word: str) -> str:
    """What to say of a key that is none."""
    meanings = {name: name for name in cls.model_fields} | {word: name for word, name in SYNONYMS.items() if name in cls.model_fields}
    if (close := nearest(word, meanings)) is not None:
        return f"unknown key; did you mean {meanings[close]!r}?"
    return f"unknown key; known are {', '.join(cls.model_fields) or 'none'}"


def _type_name(annotation: Any) -> str:
    names = {getattr(member, "opens_kind", getattr(member, "__name__", str(member))) for member in members_of(annotation) if member is not type(None)}
    names = {"function" if name == "Callable" else name for name in names}
    return " or ".join(sorted(names))
