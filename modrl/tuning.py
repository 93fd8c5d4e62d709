"""What a run finds out about its machine before it begins: how many torch threads learning is worth."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch

from modrl.costs import Learning, collecting, cpu_seconds
from modrl.run import Plan
from modrl.scheme.compute import usable_cores
from modrl.scheme.parts import SMALL

logger = logging.getLogger(__name__)

TRIAL = 1_000_000
"""Environments that are only measured count as this replacement of theirs: their chances are not those of the run."""
QUICK = 0.5
"""Seconds of a pass that is worth a second one."""
SLACK = 0.1
"""Of a core that learning may lack before it is given one more."""


def torch_threads(plan: Plan) -> int | None:
    """How many torch threads to learn with where collectors work beside; None: nothing has to be measured to say that.

    Collecting and learning share the cores. Where a step of learning costs L of a core and all else C, learning keeps up with L / (L + C)
    of the cores, and more threads would only take them from collectors. Both are measured on a rollout and on a batch.
    """
    machine, scheme, cores = plan.parts.machine, plan.scheme, usable_cores()
    if machine.threads is not None or cores == 1 or plan.parts.compute().device.type != "cpu":
        return None
    if scheme.gradient.place != "here" or scheme.collection.place == "here":
        return None
    if scheme.collection.place == "ray" and machine.ray.address != "local":  # collectors have cores of their own
        return None
    if not plan.parts.storage.build(batch=plan.parts.storage.batch // plan.parts.gradient_workers, generator=torch.Generator()).fresh:
        return None  # how often a step is learned from is not known beforehand
    if sum(p.numel() for p in plan.parts.make_actor().parameters()) < SMALL:
        return None
    share = _learnings_share(plan)
    return None if share is None else max(1, math.ceil(cores * share - SLACK))


def _learnings_share(plan: Plan) -> float | None:
    """L / (L + C); None: it could not be measured, of which the run itself will tell more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with collecting(plan, (TRIAL,)) as collect:
            first = collect()
            rollout, spent = _timed(collect)
        learning = Learning(plan, [first, rollout])
        fresh = int(learning.batch.valid[:, learning.batch.fresh].sum())
        _, seconds = _timed(learning.work)
        if seconds < QUICK:  # the first time is not like the others
            _, seconds = _timed(learning.work)
    except Exception:
        logger.debug("the parts could not be measured", exc_info=True)
        return None
    finally:
        torch.set_num_threads(before)
    learn, collect = seconds / fresh, spent / rollout.reward.size
    return learn / (learn + collect)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the seconds of a core that it takes."""
    before = cpu_seconds(all_workers=False)
    return work(), cpu_seconds(all_workers=False) - before
