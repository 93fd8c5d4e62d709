"""Warnings of faults that raise nothing: each once, with what is usually behind it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from modrl.agent.actors.spaces import leaf_spaces
from modrl.metrics import WINDOW, Row

logger = logging.getLogger(__name__)

LOOKS = 3
"""So many looks at a batch have to show a symptom before it is told."""
ROWS = 20
"""So many rows, one after the other, have to show it where every row can."""
COLLAPSED = 0.01
"""Share of a uniform policy's entropy below which a policy has collapsed."""
EARLY = 0.2
"""Share of a run within which that is too early."""
CLIPPED = 0.8

TEXTS = {
    "constant_observations": "all observations of a batch are the same: does the environment return what it computes, in an array of its own?",
    "saturated_actions": "nine in ten actions lie at the bounds of their space: scale the space to about [-1, 1], lower actor.log_std, "
    "or the learning rate",
    "value_dominates": "the value loss moves the shared weights 100 times as much as the policy does: lower algorithm.value_cost, "
    "set actor.popart or algorithm.reward: normalized, or give the value a network of its own (actor.value: separate)",
    "entropy_collapsed": "the policy's entropy is below 1 % of a uniform policy's before a fifth of the run is done: it does not explore any more; "
    "raise algorithm.entropy_cost or lower the learning rate",
    "ratio_clipped": "more than 80 % of the ratios lie outside the clip: the policy moves too far in one batch; lower the learning rate "
    "or the number of epochs",
    "reward_zero": f"the last {WINDOW} episodes all returned 0: is the reward ever paid, and within reach of a policy that acts at random?",
}


class Symptoms:
    """Tells what a run's rows show, once each; `told`: what was told by earlier processes of it."""

    def __init__(self, action_space: gymnasium.Space, told: Iterable[str] = ()) -> None:
        self.uniform = _uniform_entropy(action_space)
        self.told = set(told)
        self._seen = Counter[str]()

    def look(self, row: Row, returns: list[float], progress: float) -> list[dict[str, Any]]:
        """What is new in this row; `returns` of the last episodes."""
        news = []
        for name, shown, needed in self._shown(row, returns, progress):
            self._seen[name] = self._seen[name] + shown if shown or name in _SAMPLED else 0
            if self._seen[name] >= needed and name not in self.told:
                self.told.add(name)
                logger.warning("at %s env steps: %s", f"{row['env_steps']:,}", TEXTS[name])
                news.append({"env_steps": row["env_steps"], "symptom": name, "text": TEXTS[name]})
        return news

    def _shown(self, row: Row, returns: list[float], progress: float) -> Iterator[tuple[str, int, int]]:
        for name in _SAMPLED:
            yield name, int(row.get(f"symptoms/{name}") or 0), LOOKS
        yield "reward_zero", len(returns) == WINDOW and not any(returns), 1
        entropy, clipped = row.get("entropy"), row.get("clipped")
        if self.uniform and entropy is not None:
            yield "entropy_collapsed", progress < EARLY and entropy < COLLAPSED * self.uniform, ROWS
        if clipped is not None:
            yield "ratio_clipped", clipped > CLIPPED, ROWS


_SAMPLED = ("constant_observations", "saturated_actions", "value_dominates")


def _uniform_entropy(space: gymnasium.Space) -> float:
    """Of a uniform policy, in nats; 0 where the space is not of discrete parts alone."""
    parts = [_entropy_of(leaf) for _, leaf in leaf_spaces(space)]
    return sum(parts) if all(parts) else 0.0


def _entropy_of(leaf: gymnasium.Space) -> float:
    match leaf:
        case spaces.Discrete():
            return math.log(leaf.n)
        case spaces.MultiDiscrete():
            return float(np.log(leaf.nvec).sum())
        case spaces.MultiBinary():
            return float(np.prod(leaf.shape)) * math.log(2)
    return 0.0
