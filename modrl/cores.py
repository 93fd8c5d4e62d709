"""How many cores there are to use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path


def usable_cores() -> int:
    """How many cores this process may keep busy: its affinity, and what its control group allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no control groups here, or `max`
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return cores
