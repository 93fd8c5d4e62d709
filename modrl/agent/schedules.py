"""Settings that change with progress: the share of a run's steps that is done, in [0, 1].

In a file `lr: {linear: [6e-4, 0]}`, in Python `lr=Linear(6e-4, 0)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias, Union

from pydantic import GetCoreSchemaHandler, PlainValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GetJsonSchemaHandler, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r} ({type(value).__name__})")
    return float(value)


class Schedule(ABC):
    """A number that depends on progress. Equal schedules compare equal; a schedule never changes."""

    word: ClassVar[str]
    in_words: ClassVar[str] = ""  # errors say "a number": the schedule is the rarer half of the union
    shape: ClassVar[str] = "a schedule: {constant: x}, {linear: [from, to]}, {cosine: [from, to]} or {piecewise: [[progress, x], ...]}"

    def __init__(self, *arguments: Any) -> None:  # each schedule has its own
        raise NotImplementedError

    @abstractmethod
    def at(self, progress: float) -> float:
        """The value at a progress in [0, 1]; beyond either end, the value there."""

    @abstractmethod
    def values(self) -> list[float]:
        """The values it is bounded by or steps through."""

    @abstractmethod
    def to_data(self) -> Any:
        """The argument as a file writes it."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_data() == other.to_data()

    def __hash__(self) -> int:
        return hash((self.word, repr(self.to_data())))

    def __repr__(self) -> str:
        data = self.to_data()
        return f"{type(self).__name__}({', '.join(map(repr, data if isinstance(data, list) else [data]))})"

    @classmethod
    def from_data(cls, data: Any) -> Schedule:
        """The schedule that a file's block means.

        Raises:
            ValueError: it is none.
        """
        if isinstance(data, Schedule):
            return data
        if not (isinstance(data, Mapping) and len(data) == 1 and next(iter(data)) in _WORDS):
            raise ValueError(f"expected a number or {cls.shape}, got {data!r} ({type(data).__name__})")
        ((word, argument),) = data.items()
        try:
            return _WORDS[word](*argument) if isinstance(argument, Sequence) and not isinstance(argument, str) else _WORDS[word](argument)
        except TypeError:
            raise ValueError(f"{word} does not take {argument!r}; expected {cls.shape}") from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        write = core_schema.plain_serializer_function_ser_schema(
            lambda value: {value.word: value.to_data()} if isinstance(value, Schedule) else value
        )
        return core_schema.no_info_plain_validator_function(Schedule.from_data, serialization=write)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
        shapes = {"constant": {"type": "number"}, "linear": pair, "cosine": pair, "piecewise": {"type": "array", "items": pair}}
        return {"type": "object", "properties": shapes, "minProperties": 1, "maxProperties": 1, "additionalProperties": False}


class Constant(Schedule):
    """The same value throughout."""

    word = "constant"

    def __init__(self, value: float) -> None:
        self.value = _number(value)

    def at(self, progress: float) -> float:
        return self.value

    def values(self) -> list[float]:
        return [self.value]

    def to_data(self) -> float:
        return self.value


class Linear(Schedule):
    """A straight line from `start` to `end`."""

    word = "linear"

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = _number(start), _number(end)

    def at(self, progress: float) -> float:
        share = min(max(progress, 0.0), 1.0)
        return self.start + (self.end - self.start) * share if share < 1 else self.end

    def values(self) -> list[float]:
        return [self.start, self.end]

    def to_data(self) -> list[float]:
        return [self.start, self.end]


class Cosine(Linear):
    """Half a cosine wave from `start` to `end`: flat at both ends (Loshchilov & Hutter, 2017, eq. 5 without restarts)."""

    word = "cosine"

    def at(self, progress: float) -> float:
        return super().at((1 - math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2)


class Piecewise(Schedule):
    """Steps: from each `progress` on, its value."""

    word = "piecewise"

    def __init__(self, *points: Sequence[float]) -> None:
        if not points or any(isinstance(p, (str, int, float)) or len(p) != 2 for p in points):
            raise ValueError(f"piecewise: expected pairs [progress, value], got {list(points)!r}")
        self.points = tuple((_number(progress), _number(value)) for progress, value in points)
        starts = [progress for progress, _ in self.points]
        if starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] > 1:
            raise ValueError(f"piecewise: progress must begin at 0 and rise, at most to 1, got {starts}")

    def at(self, progress: float) -> float:
        return next(value for start, value in reversed(self.points) if progress >= start or start == 0)

    def values(self) -> list[float]:
        return [value for _, value in self.points]

    def to_data(self) -> list[list[float]]:
        return [list(point) for point in self.points]


_WORDS: dict[str, type[Schedule]] = {"constant": Constant, "linear": Linear, "cosine": Cosine, "piecewise": Piecewise}


def _reader(bounds: tuple[Any, ...] = (), optional: bool = False) -> PlainValidator:
    """Reads a number within bounds, or a schedule each of whose values keeps them."""
    number = TypeAdapter(Annotated[(float, *bounds)] if bounds else float)

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, (Schedule, Mapping)):
            value = Schedule.from_data(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"expected a number, got {'nothing' if value is None else f'{value!r} ({type(value).__name__})'}")
        for part in value.values() if isinstance(value, Schedule) else [value]:
            try:
                number.validate_python(part)
            except ValidationError as error:
                raise ValueError(error.errors()[0]["msg"].replace("Input should", "must") + f", got {part!r}") from None
        return value

    return PlainValidator(read, json_schema_input_type=float | Schedule | None if optional else float | Schedule)


Scheduled: TypeAlias = Annotated[float | Schedule, _reader()]
"""A number, or a schedule of it."""


def value_at(setting: float | Schedule, progress: float) -> float:
    """The setting's value at this progress."""
    return setting.at(progress) if isinstance(setting, Schedule) else setting


def admit_schedules(field: FieldInfo) -> None:
    """Lets a float setting be a schedule too, each of whose values keeps the setting's bounds."""
    optional = field.annotation == (float | None)
    bounds = tuple(field.metadata)
    field.annotation = Union[field.annotation, Schedule]  # type: ignore[assignment]  # noqa: UP007
    field.metadata = [_reader(bounds, optional)]
