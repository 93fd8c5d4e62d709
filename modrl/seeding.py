"""Random numbers: one seed for a run, and a stream of its own for every role and every global number.

Streams are spawned from one `numpy.random.SeedSequence`, never counted up: runs with seeds 0 and 1 share nothing, and an
environment's stream does not depend on which worker steps it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import torch


class Role(IntEnum):
    """What a stream is for. The numbers are part of what makes a run repeatable: never renumber."""

    WEIGHTS = 0  # initial weights
    ENV = 1  # by global env number
    ACTION = 2  # by global collector number
    LEARNING = 3  # minibatches; by gradient worker
    REPLAY = 4  # by gradient worker
    EVAL_ENV = 5  # by env number
    EVAL_ACTION = 6


Attempts: TypeAlias = tuple[int, ...]
"""Which replacement of a lost worker something belongs to, outermost worker first; (): to the first."""


def seed_of(seed: int, role: Role, number: int = 0, attempts: Attempts = ()) -> int:
    """A 31-bit seed for this role and number."""
    return int(np.random.SeedSequence(seed, spawn_key=(int(role), number, *attempts)).generate_state(1)[0] >> 1)


def generator(seed: int, role: Role, number: int = 0, device: torch.device | str = "cpu", attempts: Attempts = ()) -> torch.Generator:
    """A torch generator for this role and number."""
    words = np.random.SeedSequence(seed, spawn_key=(int(role), number, *attempts)).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(words[0] >> np.uint64(1)))


def restore(generator: torch.Generator, state: Any) -> None:
    """Puts the generator where it was when `get_state` gave this tensor or array, which may be read-only."""
    generator.set_state(state if isinstance(state, torch.Tensor) else torch.from_numpy(np.array(state)))
