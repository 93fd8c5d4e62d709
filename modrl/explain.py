"""What an experiment is and implies: its resolved file with each value's origin, and the numbers that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modrl.config import Origin, Path_, counted, origin_of
from modrl.experiment import Experiment, document

SELECTORS = ("name", "preset")


def values(experiment: Experiment, path: Path, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The resolved file line by line, and where each value comes from."""
    return _values(experiment.to_dict(), (), document(path, overrides).origins)


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
    return "default"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def implications(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Sizes, counts and bounds that the settings lead to, and where the scheme changes the mathematics."""
    storage, collection, gradient = experiment.storage, experiment.scheme.collection, experiment.scheme.gradient
    plan = experiment.plan()
    width = experiment.envs.count // experiment.collectors
    share = storage.batch // gradient.workers
    updates_of = gradient.workers if gradient.alone else 1  # of one batch
    columns, fresh = storage.batch // updates_of, experiment.fresh_columns * gradient.workers // updates_of
    collectors = counted(collection.workers, "collector")
    yield "workers:", f"{gradient.workers} gradient ({gradient.place}) × {collectors} ({collection.place}), {width} envs each"
    if collection.inference != "collector":
        yield "inference:", f"{counted(collection.inference.replicas, 'server')} ({collection.place}) for {collectors}"
    yield "rollout:", f"{storage.horizon} steps × {width} columns"
    replayed = f", {fresh} of the columns fresh" if fresh != columns else ""
    per = "update" if plan.losses_per_batch == 1 else f"{plan.losses_per_batch} updates"
    yield "effective batch:", f"{columns} columns × {storage.horizon} steps = {columns * storage.horizon} samples per {per}{replayed}"
    if experiment.fresh_columns > experiment.columns_per_pull:
        yield "batch:", f"{experiment.fresh_columns // experiment.columns_per_pull} pulls make one"
    yield "updates:", f"{plan.losses_per_batch * updates_of} per batch, {_updates(experiment, plan.losses_per_batch, fresh)}"
    yield "frames:", f"{experiment.steps * plan.action_repeat:,}, {plan.action_repeat} per agent step"
    yield from _lags(experiment)
    if gradient.alone:
        yield "note:", f"each worker's share is applied alone: {gradient.workers} updates of {share} columns where a combined scheme makes one"
    if gradient.workers > 1 and getattr(experiment.algorithm, "normalize_advantages", False):
        yield "note:", "advantages are normalised within each worker's share, not over the whole batch"


def _updates(experiment: Experiment, losses_per_batch: int, fresh: int) -> str:
    """How many there will be in all, as far as the settings say."""
    if fresh:
        return f"about {experiment.steps * losses_per_batch // (fresh * experiment.storage.horizon):,} in all"
    pacing = experiment.scheme.pacing
    if pacing is None:
        return "as fast as the learner is" if experiment.scheme.collection.gather == 0 else "one batch for each pull of rollouts"
    bounds = {"at least": pacing.at_least, "at most": pacing.at_most}
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None) + " per env step"


def _lags(experiment: Experiment) -> Iterator[tuple[str, str]]:
    scheme = experiment.scheme
    collection, gradient = scheme.collection, scheme.gradient
    if most := scheme.gradient_lag_bound():
        yield "gradient lag:", f"at most {most} applied gradients"
    else:
        yield "gradient lag:", "0: gradients are applied to the weights they were computed on"
    bound = scheme.lag_bound()
    exact = collection.gather == "all" and not gradient.alone and experiment.columns_per_pull >= experiment.fresh_columns
    if bound is None:
        yield "policy lag:", "without bound: what is ready is taken, and nobody is awaited"
    elif exact and bound and collection.broadcast_interval == 1 and collection.inference == "collector":
        yield "policy lag:", f"exactly {bound} rounds, after the first {bound}" if bound > 1 else "exactly 1 round, after the first"
    else:
        yield "policy lag:", f"at most {bound} rounds" if bound else "0: rollouts are learned from by the weights that acted"
    if (every := scheme.average_every) is not None:
        yield "note:", f"each worker steps on its own share; weights are averaged every {every} steps"
    if collection.preemption is not None:
        share = collection.preemption.fraction_samples
        yield "note:", f"stragglers' rollouts end early, at {share:.0%} of their steps or later: a batch may hold fewer samples"
    if collection.max_staleness is not None:
        yield (
            "note:",
            f"rollouts that lag by more than {collection.max_staleness} rounds are dropped: they are neither learned from nor counted as env steps",
        )
    if collection.per_worker:
        yield "note:", f"collectors differ: {len(collection.per_worker)} kinds of settings, by turns"
