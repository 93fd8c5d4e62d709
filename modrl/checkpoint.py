"""Checkpoints: a tree of plain data and arrays in one safetensors file, written whole or not at all.

Arrays are stored under their place in the tree (`updater/acting/policy.weight`), everything else as JSON in the file's
metadata. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from modrl.agent.actors.base import Memory
from modrl.agent.batch import Batch
from modrl.config import BadInput
from modrl.messages import Episode, Frames, Lap, Rollout

FORMAT = 1
MESSAGES = {message.__name__: message for message in (Rollout, Frames, Episode, Lap, Memory, Batch)}
SUFFIX = ".safetensors"


class CheckpointError(BadInput):
    """A checkpoint that cannot be read, and why."""


def save(path: Path, tree: Any) -> None:
    """Writes the tree beside `path`, flushes it to disk, and renames it into place.

    Raises:
        OSError: the disk is full, or the folder cannot be written to; nothing is left of it.
    """
    arrays: dict[str, torch.Tensor] = {}
    metadata = {"format": str(FORMAT), "tree": json.dumps(_encode(tree, "", arrays))}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            save_file(arrays, aside, metadata)
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}") from error
        os.chmod(aside, path.parent.stat().st_mode & 0o666)  # who may read the folder may read it
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def load(path: Path) -> Any:
    """The tree in the file; tensors on the CPU.

    Raises:
        CheckpointError: it is not a whole checkpoint of this format.
    """
    try:
        with safe_open(path, "pt", device="cpu") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if metadata.get("format") != str(FORMAT):
            raise CheckpointError(f"{path}: expected checkpoint format {FORMAT}, got {metadata.get('format')}")
        return _decode(json.loads(metadata["tree"]), arrays)
    except (SafetensorError, OSError, json.JSONDecodeError, KeyError) as error:
        raise CheckpointError(f"{path}: not a complete checkpoint ({error})") from None


def path_of(folder: Path, env_steps: int) -> Path:
    """The file of a checkpoint at this number of env steps."""
    return folder / f"{env_steps}{SUFFIX}"


def best_of(folder: Path) -> Path:
    """The file of the weights that evaluated best."""
    return folder / f"best{SUFFIX}"


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, by number."""
    files = [file for file in folder.glob(f"*{SUFFIX}") if file.name.removesuffix(SUFFIX).isdigit()]
    return sorted(files, key=lambda file: int(file.name.removesuffix(SUFFIX)))


class Newest(NamedTuple):
    """The newest checkpoint that is whole."""

    path: Path
    tree: Any
    damaged: list[Path]  # newer ones


def newest(folder: Path) -> Newest | None:
    """The newest checkpoint that is whole; None: there are none at all.

    Raises:
        CheckpointError: none of those that there are is whole.
    """
    wrong: dict[Path, str] = {}
    for path in reversed(found(folder)):
        try:
            return Newest(path, load(path), list(wrong))
        except CheckpointError as error:
            wrong[path] = str(error)
    if wrong:
        raise CheckpointError("\n".join([f"{folder}: no checkpoint in it is whole; move them away to start anew", *wrong.values()]))
    return None


def chosen(folder: Path, which: str | int = "latest") -> Any:
    """The tree of a run's newest whole checkpoint, of the weights that evaluated `best`, or of the checkpoint at so many env steps.

    Raises:
        CheckpointError: there is no such checkpoint, or it is not whole.
    """
    if which == "latest":
        if (last := newest(folder)) is None:
            raise CheckpointError(f"{folder.parent}: no whole checkpoint in it yet")
        return last.tree
    if which == "best":
        if not (path := best_of(folder)).exists():
            raise CheckpointError(
                f"{folder.parent}: no best checkpoint: the run was not evaluated yet; set evaluation in its file, or ask for latest"
            )
        return load(path)
    if not str(which).isdecimal():
        raise CheckpointError(f"expected a checkpoint's env steps, latest or best, got {which!r}")
    if not (path := path_of(folder, int(which))).exists():
        known = ", ".join(file.stem for file in found(folder)) or "none"
        raise CheckpointError(f"{folder.parent}: no checkpoint at {which} env steps; there are: {known}")
    return load(path)


def put_aside(path: Path) -> Path:
    """Renames a damaged checkpoint, so that it is counted no more."""
    return path.rename(path.with_name(f"{path.name}.damaged"))


def keep_newest(folder: Path, count: int) -> None:
    """Deletes all but the newest `count` checkpoints, and what an interrupted save left."""
    for path in found(folder)[:-count]:
        path.unlink(missing_ok=True)
    for path in folder.glob(f".*{SUFFIX}.*"):
        path.unlink(missing_ok=True)


def _encode(tree: Any, path: str, arrays: dict[str, torch.Tensor]) -> Any:
    def inside(key: Any, value: Any) -> Any:
        return _encode(value, f"{path}/{key}" if path else str(key), arrays)

    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, (np.ndarray, torch.Tensor)):
        # copied: a file may not hold two views of one memory
        arrays[path] = torch.from_numpy(np.array(tree)) if isinstance(tree, np.ndarray) else tree.detach().cpu().contiguous().clone()
        return {"$array": path, "numpy": isinstance(tree, np.ndarray)}
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        if type(tree).__name__ not in MESSAGES:
            raise TypeError(f"cannot store a {type(tree).__name__} at {path!r}; give plain data")
        return {"$message": type(tree).__name__, "fields": {key: inside(key, value) for key, value in tree._asdict().items()}}
    if isinstance(tree, (list, tuple)):
        items = [inside(index, value) for index, value in enumerate(tree)]
        return {"$tuple": items} if isinstance(tree, tuple) else items
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: inside(key, value) for key, value in tree.items()}
        return {"$items": [[key, inside(key, value)] for key, value in tree.items()]}
    raise TypeError(f"cannot store a {type(tree).__name__} at {path!r}: state() has to give numbers, text, arrays, lists and dicts")


def _decode(data: Any, arrays: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(data, list):
        return [_decode(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    if "$array" in data:
        tensor = arrays[data["$array"]]
        return tensor.numpy() if data["numpy"] else tensor
    if "$tuple" in data:
        return tuple(_decode(item, arrays) for item in data["$tuple"])
    if "$items" in data:
        return {key: _decode(value, arrays) for key, value in data["$items"]}
    if "$message" in data:
        return MESSAGES[data["$message"]](**{key: _decode(value, arrays) for key, value in data["fields"].items()})
    return {key: _decode(value, arrays) for key, value in data.items()}
