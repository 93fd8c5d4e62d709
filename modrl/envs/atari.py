"""Atari games on ale-py's own vector env: `envs: {name: atari, game: pong, count: 32}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from pydantic import Field

from modrl.config import nearest
from modrl.cores import usable_cores
from modrl.envs.base import Timestep
from modrl.envs.restarts import Budget
from modrl.envs.vector import Vector
from modrl.messages import Tree


class Atari(Vector, name="atari"):
    """Frames repeated, maximised, resized and stacked by ale-py in its own threads; rewards raw.

    Observations are uint8, channels first: the last `stack` frames [stack, H, W], or in colour [stack * 3, H, W], oldest
    first, each as red, green, blue. The settings below say all there is, whichever id names the game: a `-v4` or `-v5` changes nothing.
    """

    class Config(Vector.Config):
        game: str
        """In any usual spelling: pong, Pong, PongNoFrameskip-v4, ALE/Pong-v5, ms_pacman, MsPacman."""
        action_repeat: int = Field(4, ge=1)
        """Frames that each action lasts."""
        max_pool: bool = True
        """Whether a frame is the brighter, pixel by pixel, of the last two that an action lasts: games flicker."""
        stack: int = Field(4, ge=1)
        """Frames in an observation."""
        size: int | tuple[int, int] = 84
        """Height and width, or one number for both."""
        grey: bool = True
        """Grey frames; false: in colour."""
        noop_max: int = Field(30, ge=0)
        """An episode begins with 0 to so many frames of doing nothing."""
        fire_reset: bool = True
        """Presses fire once when an episode begins, in the games that wait for it."""
        life_loss: bool = True
        """In training a lost life ends the learner's episode (`terminated`); the game goes on, and so do its return and length."""
        sticky: float = Field(0.0, ge=0, le=1)
        """Probability that the emulator repeats the previous action instead, frame by frame."""
        full_actions: bool = False
        """All 18 actions, instead of those that the game uses."""
        max_frames: int = Field(108_000, ge=1)
        """Frames after which an episode is truncated, not counting those that do nothing at its beginning."""
        threads: int = Field(0, ge=0)
        """Threads that step the games; 0: one per core, and no more than games. Each of a collector's halves has so many."""

        @property
        def overlaps(self) -> bool:
            return True

    config: Config
    frames_before: np.ndarray  # [B] frames of all games before the running one

    def __init__(self, config: Config, *, numbers: Sequence[int], seeds: Sequence[int], training: bool = True, restarts: int | Budget = 0) -> None:
        self.action_repeat, self.stack = config.action_repeat, config.stack
        super().__init__(config, numbers=numbers, seeds=seeds, training=training, restarts=restarts)
        if not config.grey:
            frames, height, width, colours = self.observation_space.shape or ()
            self.observation_space = Box(0, 255, (frames * colours, height, width), np.uint8)

    def make(self) -> VectorEnv:
        from ale_py.vector_env import AtariVectorEnv

        config = self.config
        height, width = (config.size, config.size) if isinstance(config.size, int) else config.size
        threads = config.threads or min(usable_cores(), len(self.numbers))
        return AtariVectorEnv(
            rom_name(config.game), len(self.numbers), num_threads=threads, autoreset_mode=AutoresetMode.SAME_STEP,
            reward_clipping=False, episodic_life=False, life_loss_info=config.life_loss and self.training,
            frameskip=config.action_repeat, maxpool=config.max_pool, stack_num=config.stack, img_height=height, img_width=width,
            grayscale=config.grey, noop_max=config.noop_max, use_fire_reset=config.fire_reset,
            repeat_action_probability=config.sticky, full_action_space=config.full_actions, max_num_frames_per_episode=config.max_frames,
        )  # fmt: skip

    def seed(self) -> np.ndarray:
        return np.array([seed % 2**31 for seed in self.seeds], np.int64)  # all that ale-py takes

    def adopt(self, obs: Any) -> Tree:
        self.seen = obs[0, -1]
        if not self.config.grey:  # [B, stack, H, W, 3]
            batch, frames, height, width, colours = obs.shape
            return np.moveaxis(obs, 4, 2).reshape(batch, frames * colours, height, width)
        return obs  # ale-py gives new arrays in every step

    def frame(self) -> np.ndarray:
        """What the policy saw last, at its own size."""
        return self.seen if self.seen.ndim == 3 else np.repeat(self.seen[..., None], 3, axis=2)

    def begin(self, action: Tree) -> None:
        self.vector.send(action)  # type: ignore[attr-defined]

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return cast(tuple[Any, Any, Any, Any, dict[str, Any]], self.vector.recv())  # type: ignore[attr-defined]

    def over(self, terminated: np.ndarray, truncated: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        # A lost life only sets `terminated`. A new game starts to count its own frames anew, on top of all frames so far.
        before = info["frame_number"] - info["episode_frame_number"]
        over = before != self.frames_before
        self.frames_before = before
        return over

    def reset(self) -> Timestep:
        timestep = super().reset()
        self.frames_before = np.zeros(len(self.numbers), np.int32)
        return timestep

    def close(self) -> None:
        if not self.closed:
            super().close()
            del self.vector  # ends ale-py's threads


def rom_name(game: str) -> str:
    """Ale-py's name of a game: `ms_pacman` for MsPacman, "Ms. Pacman", MsPacmanNoFrameskip-v4 or ALE/MsPacman-v5.

    Raises:
        ValueError: there is no such game; names the nearest.
    """
    from ale_py import roms

    known = {name.replace("_", ""): name for name in roms.get_all_rom_ids()}
    bare = re.sub(r"^ALE/|(-ram|Deterministic|NoFrameskip)*(-v\d+)?$", "", game.strip())
    word = re.sub(r"[^a-z0-9]", "", bare.lower())
    if word not in known:
        meant = nearest(word, known)
        hint = f"; did you mean {known[meant]!r}?" if meant else f"; known are {', '.join(known.values())}"
        raise ValueError(f"envs.game: no game is called {game!r}{hint}")
    return known[word]
