"""What an experiment is and implies: its resolved file with each value's origin, and the numbers that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modrl.config import Origin, Path_, origin_of
from modrl.experiment import Experiment, document

SELECTORS = ("name", "preset")


def explain(path: Path, overrides: list[str]) -> Iterator[tuple[str, str]]:
    """Lines of two parts: what, and where from or why."""
    experiment = Experiment.load(path, overrides)
    origins = document(path, overrides).origins
    yield from _values(experiment.to_dict(), (), origins)
    yield "", ""
    yield from implications(experiment)


def _values(data: Any, path: Path_, origins: dict[Path_, Origin]) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        here = (*path, key)
        indent = "  " * len(path)
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:", ""
            yield from _values(value, here, origins)
        else:
            yield f"{indent}{key}: {_text(value)}", _origin(here, origins)


def _origin(path: Path_, origins: dict[Path_, Origin]) -> str:
    if path in origins:
        return str(origins[path])
    if path[-1] in SELECTORS:  # a bare name stands for a block
        return str(origin_of(path, origins) if path[:-1] in origins else "default")
    for depth in range(len(path) - 1, 1, -1):
        if path[:depth] in origins and not any(known[:depth] == path[:depth] and len(known) > depth for known in origins):
            return str(origins[path[:depth]])  # inside a value that was written whole
    return "default"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def implications(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Sizes, counts and bounds that the settings lead to, and where the scheme changes the mathematics."""
    scheme, storage = experiment.scheme, experiment.storage
    collection, gradient = scheme.collection, scheme.gradient
    plan = experiment.plan()
    losses = plan.losses_per_batch
    share = storage.batch // gradient.workers
    yield (
        "workers:",
        f"{gradient.workers} gradient ({gradient.place}) × {collection.workers} collectors ({collection.place}), {experiment.envs.count // experiment.collectors} envs each",
    )
    yield "rollout:", f"{storage.horizon} steps × {experiment.envs.count // experiment.collectors} columns"
    applied = share if gradient.alone else storage.batch
    yield (
        "effective batch:",
        f"{applied} columns × {storage.horizon} steps = {applied * storage.horizon} samples per update"
        + (
            f", of which {experiment.fresh_columns * (1 if gradient.alone else gradient.workers)} columns fresh"
            if experiment.fresh_columns != share
            else ""
        ),
    )
    fresh_steps = experiment.fresh_columns * gradient.workers * storage.horizon
    yield "updates:", f"{losses} per batch; about {experiment.steps * losses * (gradient.workers if gradient.alone else 1) // fresh_steps:,} in all"
    yield "frames:", f"{experiment.steps * plan.action_repeat:,} ({plan.action_repeat} per agent step)"
    bound = collection.lag_bound
    if gradient.alone:
        assert gradient.max_lag is not None
        yield "gradient lag:", f"at most {gradient.max_lag * gradient.taken} applied gradients ({gradient.max_lag} pulls of {gradient.taken})"
        bound = -(-bound * (gradient.max_lag + 1) // gradient.workers)
    else:
        yield "gradient lag:", "0: every gradient is applied to the weights it was computed on"
    exactly = collection.gather == "all" and not gradient.alone and bound and experiment.columns_per_pull >= experiment.fresh_columns
    yield (
        "policy lag:",
        f"{'exactly' if exactly else 'at most'} {bound} rounds" + (" after the first" + (" rounds" if bound > 1 else "") if exactly else ""),
    )
    if gradient.alone:
        yield (
            "note:",
            f"each worker's share ({share} columns) is applied alone: {gradient.workers} updates from 1/{gradient.workers} of the batch each, where a combined scheme makes one",
        )
    if gradient.workers > 1 and getattr(experiment.algorithm, "normalize_advantages", False):
        yield "note:", "advantages are normalised within each worker's share, not over the whole batch"
