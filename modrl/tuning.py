"""What a run finds out about its machine before it begins: how many torch threads learning is worth, and how images should lie in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from modrl.cores import usable_cores
from modrl.costs import Learning, collecting, cpu_seconds
from modrl.run import Plan
from modrl.scheme.parts import is_small

logger = logging.getLogger(__name__)

TRIAL = 1_000_000
"""Environments that are only measured count as this replacement of theirs: their chances are not those of the run."""
QUICK = 0.5
"""Seconds of a pass that is worth a second one."""
SLACK = 0.25
"""Of a core that learning may lack before it is given one more."""
FASTER = 0.9
"""Of channels_last's time that the other format may take to be preferred: what is chosen should not depend on the day."""


class Seconds(NamedTuple):
    """What a step takes of a core, alone."""

    collecting: float
    learning: float  # with images channels_last
    contiguous: float | None  # learning with images channels first; None: not measured


def tuned(plan: Plan) -> dict[str, Any]:
    """The settings of `machine` that were not given, and that a measurement finds a better value for than the usual one."""
    threads, images = _shares_cores(plan), _has_images(plan)
    if not (threads or images):
        return {}
    seconds = _measured(plan, images)
    if seconds is None:
        return {}
    found: dict[str, Any] = {}
    learning = seconds.learning
    if images:
        assert seconds.contiguous is not None
        faster = seconds.contiguous < FASTER * learning
        found["memory_format"] = "contiguous" if faster else "channels_last"
        learning = seconds.contiguous if faster else learning
    if threads:
        share = learning / (learning + seconds.collecting)
        found["threads"] = max(1, math.ceil(usable_cores() * share - SLACK))
    return found


def _shares_cores(plan: Plan) -> bool:
    """Whether learning has to share the cores with collectors beside it, in a proportion that is not known beforehand.

    Where a step of learning costs L of a core and all else C, learning keeps up with L / (L + C) of the cores, and more threads
    would only take them from collectors.
    """
    machine, scheme = plan.parts.machine, plan.scheme
    if machine.threads is not None or usable_cores() == 1 or not _measurable(plan):
        return False
    if scheme.gradient.place != "here" or scheme.collection.place == "here":
        return False
    # On a cluster collectors have cores of their own.
    return scheme.collection.place != "ray" or machine.ray.address == "local"


def _has_images(plan: Plan) -> bool:
    """Whether the format of images matters, and is not given."""
    return plan.parts.machine.memory_format is None and _measurable(plan) and bool(plan.parts.make_actor().use_memory_format(torch.channels_last))


def _measurable(plan: Plan) -> bool:
    """Whether it is a network on a CPU that is worth it, and every step is learned from once."""
    if plan.parts.compute().device.type != "cpu":
        return False
    if not plan.parts.storage.build(batch=plan.parts.storage.batch // plan.parts.gradient_workers, generator=torch.Generator()).fresh:
        return False
    return not is_small(plan.parts.make_actor())


def _measured(plan: Plan, images: bool) -> Seconds | None:
    """None: it could not be measured, of which the run itself will tell more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with collecting(plan, (TRIAL,)) as collect:
            first = collect()
            rollout, spent = _timed(collect)
        learning = Learning(plan, [first, rollout])
        fresh = int(learning.batch.valid[:, learning.batch.fresh].sum())
        seconds = [_spent(learning.work)]
        if images:
            learning.worker.algorithm.actor.use_memory_format(torch.contiguous_format)
            seconds.append(_spent(learning.work))
    except Exception:
        logger.debug("the parts could not be measured", exc_info=True)
        return None
    finally:
        torch.set_num_threads(before)
    return Seconds(spent / rollout.reward.size, seconds[0] / fresh, seconds[1] / fresh if images else None)


def _spent(work: Callable[[], Any]) -> float:
    """The seconds of a core that it takes: the first time is not like the others, if that does not take long."""
    _, seconds = _timed(work)
    return min(_timed(work)[1] for _ in range(2)) if seconds < QUICK else seconds


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the seconds of a core that it takes."""
    before = cpu_seconds(all_workers=False)
    return work(), cpu_seconds(all_workers=False) - before
