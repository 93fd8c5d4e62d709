"""Recordings of what an environment shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from modrl.config import BadInput

FRAMES_PER_SECOND = 30


@contextlib.contextmanager
def recording(folder: Path | None) -> Iterator[Callable[[np.ndarray], None] | None]:
    """Writes frames [H, W, 3] into `folder`/episodes.mp4; None where no folder is given.

    Raises:
        BadInput: imageio is not installed.
    """
    if folder is None:
        yield None
        return
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401 (what imageio writes mp4 with)
    except ImportError as error:
        raise BadInput(f"--video needs imageio: pip install 'modrl[video]' ({error})") from None
    folder.mkdir(parents=True, exist_ok=True)
    with imageio.get_writer(folder / "episodes.mp4", fps=FRAMES_PER_SECOND, macro_block_size=2) as writer:
        yield writer.append_data  # type: ignore[attr-defined]
