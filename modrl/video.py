"""Recordings of what an environment shows, one file per episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from modrl.config import BadInput
from modrl.envs.base import Envs
from modrl.extras import require_extra

FRAMES_PER_SECOND = 30
SMALLEST = 160
"""Pixels: smaller frames are enlarged by whole factors, so that each stays visible."""


def require_video(config: Envs.Config, key: str) -> None:
    """Finds out whether these environments can be recorded.

    Raises:
        BadInput: they cannot be shown, or imageio is not installed; `key` says what asked for it.
    """
    require_extra("video", key, "imageio", "imageio.v2", "imageio_ffmpeg")
    try:
        envs: Envs = config.showing().build(numbers=(0,), seeds=(0,), training=False)
        with contextlib.closing(envs):
            envs.reset()
            envs.frame()
    except Exception as error:  # anything: rendering is the environment's own
        raise BadInput(f"{key}: these environments cannot be shown: {error}") from error


@contextlib.contextmanager
def recording(path_of: Callable[[int], Path | None]) -> Iterator[Callable[[int, Envs], None]]:
    """Gives what `evaluate` calls before each step with an episode's number: it adds what the first environment shows to the episode's file."""
    import imageio.v2 as imageio

    writer: Any = None
    running: int | None = None

    def watch(episode: int, envs: Envs) -> None:
        nonlocal writer, running
        if episode != running:
            if writer is not None:
                writer.close()
            running, path, writer = episode, path_of(episode), None
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                writer = imageio.get_writer(path, fps=FRAMES_PER_SECOND, macro_block_size=2)
        if writer is not None:
            writer.append_data(_enlarged(envs.frame()))

    try:
        yield watch
    finally:
        if writer is not None:
            writer.close()


def _enlarged(frame: np.ndarray) -> np.ndarray:
    factor = max(1, -(-SMALLEST // min(frame.shape[:2])))
    return frame.repeat(factor, 0).repeat(factor, 1)
