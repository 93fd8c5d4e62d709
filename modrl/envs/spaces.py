"""Observation spaces as modrl presents them, and observations brought into them: few dtypes, arrays that nobody else holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from modrl.messages import Tree

SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple"


def presented(space: Space, where: str = "observation space") -> Space:
    """The space in which an env's observations reach the actor: Box is float32 or uint8, Discrete int64, the rest as it is.

    Integers in a Box become float32 too (exact up to 2^24); bytes stay bytes.

    Raises:
        ValueError: a part of it is of another kind; names the part.
    """
    if isinstance(space, Box):
        if space.dtype in (np.float32, np.uint8):
            return space
        if space.dtype is None or space.dtype.kind not in "fiub":
            raise ValueError(f"{where}: a Box of {space.dtype} is not supported, only of floats (as float32), uint8 and other integers (as float32)")
        with np.errstate(over="ignore"):  # a float64 bound beyond float32 is no bound
            return Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    if isinstance(space, Discrete):
        return Discrete(int(space.n), start=int(space.start))
    if isinstance(space, (MultiBinary, MultiDiscrete)):
        return space
    if isinstance(space, Dict):
        return Dict({key: presented(part, f"{where}.{key}") for key, part in space.items()})
    if isinstance(space, Tuple):
        return Tuple([presented(part, f"{where}.{i}") for i, part in enumerate(space)])
    raise ValueError(f"{where}: {type(space).__name__} is not supported, only {SUPPORTED}; flatten it in a wrapper")


def require_supported(space: Space, where: str = "action space") -> None:
    """Refuses an action space that no actor can sample from.

    Raises:
        ValueError: a part of it is of another kind; names the part.
    """
    parts = list(space.items() if isinstance(space, Dict) else enumerate(space) if isinstance(space, Tuple) else [])
    if isinstance(space, (Dict, Tuple)) and not parts:
        raise ValueError(f"{where}: {type(space).__name__} is empty: there is nothing to act with")
    for key, part in parts:
        require_supported(part, f"{where}.{key}")
    if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete, Dict, Tuple)):
        raise ValueError(f"{where}: {type(space).__name__} is not supported, only {SUPPORTED}; translate it in a wrapper")


def misfit(space: Space, obs: Any, where: str = "") -> str | None:
    """What of one observation does not fit its space: keys, shape, dtype, or a value that a discrete space has not. None: all fits.

    Bounds of a Box are left alone: no actor relies on them.
    """
    at = f"{where}: " if where else ""
    if isinstance(space, Dict):
        if not isinstance(obs, Mapping) or obs.keys() != space.keys():
            given = ", ".join(map(str, obs)) if isinstance(obs, Mapping) else _brief(obs)
            return f"{at}expected the keys {', '.join(space)}, got {given}"
        inner = ((misfit(part, obs[key], f"{where}.{key}".lstrip("."))) for key, part in space.items())
        return next((text for text in inner if text), None)
    if isinstance(space, Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space):
            return f"{at}expected a tuple of {len(space)}, got {_brief(obs)}"
        inner = (misfit(part, obs[i], f"{where}.{i}".lstrip(".")) for i, part in enumerate(space))
        return next((text for text in inner if text), None)
    array = np.asarray(obs)
    if array.dtype.kind not in "biuf":
        return f"{at}expected numbers, got {_brief(obs)}"
    if array.shape != (space.shape or ()):
        return f"{at}expected shape {list(space.shape or ())}, got {list(array.shape)}"
    if array.dtype.kind == "f" and not (isinstance(space, Box) and space.dtype is not None and space.dtype.kind == "f"):
        return f"{at}expected {space.dtype}, got {array.dtype}: {_brief(obs)}"
    if array.dtype.kind == "f" and np.isnan(array).any():
        return f"{at}{'is' if array.ndim == 0 else 'contains'} not a number (nan)"
    if not isinstance(space, Box) and not space.contains(array.astype(space.dtype)):
        return f"{at}{_brief(obs)} is not in {space}"
    return None


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def adopted(space: Space, batch: Any) -> Tree:
    """A library's batch of observations [B, ...] in the presented space, by key, as arrays of our own."""
    if isinstance(space, Dict):
        return {key: adopted(part, batch[key]) for key, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(adopted(part, batch[i]) for i, part in enumerate(space))
    return np.array(batch, dtype=space.dtype)


def stacked(space: Space, observations: Sequence[Any]) -> Tree:
    """Single observations as one batch [K, ...] in the presented space."""
    if isinstance(space, Dict):
        return {key: stacked(part, [obs[key] for obs in observations]) for key, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(stacked(part, [obs[i] for obs in observations]) for i, part in enumerate(space))
    return np.stack([np.asarray(obs, dtype=space.dtype) for obs in observations])
