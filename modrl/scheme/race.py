"""Preemption: once enough collectors are done with a round, the stragglers hand in what they have."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import NamedTuple, Protocol, TypeAlias

Round: TypeAlias = tuple[int, int]
"""What all collectors are at together: the weights' version, and which pull on it."""
KEPT = 8
"""Rounds that a board remembers."""


class Board(Protocol):
    """Where collectors see how many others are done; writing and reading never wait."""

    def finish(self, round: Round) -> None:
        """One more is done with this round."""

    def finished(self, round: Round) -> int:
        """How many are, as far as is known here."""


class LocalBoard:
    """A board for collectors in threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished = Counter[Round]()

    def finish(self, round: Round) -> None:
        with self._lock:
            self._finished[round] += 1
            while len(self._finished) > KEPT:
                del self._finished[min(self._finished)]

    def finished(self, round: Round) -> int:
        return self._finished[round]


class Race(NamedTuple):
    """The rule: whoever has `samples` of its rollout stops once `workers` of all collectors are done."""

    board: Board
    needed: int  # collectors that have to be done
    share: float  # of its rollout that a straggler must have

    def over(self, round: Round, done: int, horizon: int) -> bool:
        """Whether a collector with `done` steps of `horizon` stops here."""
        return done >= math.ceil(self.share * horizon) and self.board.finished(round) >= self.needed
