"""What was wrong with what the user wrote, and where it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

Path_: TypeAlias = tuple[str | int, ...]
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
        return "\n".join([f"{counted(len(self.problems), 'problem')} in {self.source}", *(f"  {problem}" for problem in self.problems)])

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (self.problems, self.source)


def counted(number: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def dotted(path: Iterable[str | int]) -> str:
    """The key path as users write it: `scheme.collection.workers`."""
    return ".".join(str(key) for key in path)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(choices), 1, 0.6)), None)
