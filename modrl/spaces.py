"""Gymnasium's spaces as plain data, so that a checkpoint says what its policy sees and does without building an env."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def to_data(space: spaces.Space) -> dict[str, Any]:
    """The space as names, numbers and arrays."""
    if isinstance(space, spaces.Box):
        return {"box": [space.low, space.high], "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.Discrete):
        return {"discrete": [int(space.n), int(space.start)]}
    if isinstance(space, spaces.MultiDiscrete):
        return {"multi_discrete": [np.asarray(space.nvec), np.asarray(space.start)]}
    if isinstance(space, spaces.MultiBinary):
        return {"multi_binary": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"dict": {key: to_data(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"tuple": [to_data(part) for part in space.spaces]}
    raise ValueError(f"a {type(space).__name__} space is not supported; supported are Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple")


def from_data(data: dict[str, Any]) -> spaces.Space:
    """The space that `to_data` wrote."""
    if "box" in data:
        low, high = map(np.asarray, data["box"])
        return spaces.Box(low, high, dtype=np.dtype(data["dtype"]).type)
    if "discrete" in data:
        n, start = data["discrete"]
        return spaces.Discrete(n, start=start)
    if "multi_discrete" in data:
        nvec, start = map(np.asarray, data["multi_discrete"])
        return spaces.MultiDiscrete(nvec, start=start)
    if "multi_binary" in data:
        return spaces.MultiBinary(data["multi_binary"])
    if "dict" in data:
        return spaces.Dict({key: from_data(part) for key, part in data["dict"].items()})
    return spaces.Tuple([from_data(part) for part in data["tuple"]])
