"""A recorded stream as environments: what comes next does not depend on the actions, and is the same for every scheme."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from modrl import checkpoint, spaces
from modrl.envs.base import Envs, Timestep
from modrl.messages import Episode, Tree
from modrl.tree import to_numpy, tree_map

ARRAYS = ("obs", "first", "reward", "terminated", "truncated", "valid")


def record(envs: Envs, actions: Any, steps: int, file: Path) -> None:
    """Writes the next `steps` timesteps to a file; `actions(timestep)` gives the actions."""
    timesteps = [envs.reset()]
    for _ in range(steps):
        timesteps.append(envs.step(actions(timesteps[-1])))
    final = [step.final_obs for step in timesteps if step.final_obs is not None]
    tree = {name: tree_map(lambda *xs: np.stack(xs), *[getattr(step, name) for step in timesteps]) for name in ARRAYS}
    tree |= {
        "final_obs": tree_map(lambda *xs: np.concatenate(xs), *final) if final else None,
        "episodes": [[at, *episode] for at, step in enumerate(timesteps) for episode in step.episodes],
        "spaces": [spaces.to_data(space) for space in (envs.observation_space, envs.action_space)],
    }
    checkpoint.save(file, tree)


@lru_cache(maxsize=2)
def _load(file: str) -> Any:
    return to_numpy(checkpoint.load(Path(file)))


class Recorded(Envs, name="recorded"):
    """Plays a recording, each environment its own column, whatever the actions are.

    The recording must be long enough; the columns of more environments than were recorded do not exist.
    """

    class Config(Envs.Config):
        file: str
        """What `record` wrote."""

    config: Config
    exact = True

    def __init__(self, config: Config, *, numbers: Sequence[int], seeds: Sequence[int], training: bool = True) -> None:
        super().__init__(config, numbers=numbers, seeds=seeds, training=training)
        self.stream = _load(config.file)
        self.observation_space, self.action_space = (spaces.from_data(data) for data in self.stream["spaces"])
        self.columns = np.array(self.numbers)
        self.final_times, self.final_columns = self.stream["truncated"].nonzero()
        self.at = 0

    def reset(self) -> Timestep:
        self.at = 0
        return self._now()

    def step(self, action: Tree) -> Timestep:
        self.at += 1
        if self.at == len(self.stream["first"]):
            raise EOFError(f"{self.config.file}: the recording is over after {self.at - 1} steps")
        return self._now()

    def _now(self) -> Timestep:
        arrays = [tree_map(lambda x: x[self.at, self.columns], self.stream[name]) for name in ARRAYS]
        mine = (self.final_times == self.at) & np.isin(self.final_columns, self.columns)
        final_obs = tree_map(lambda x: x[mine], self.stream["final_obs"]) if mine.any() else None
        episodes = [Episode(reward, length, env, info) for at, reward, length, env, info in self.stream["episodes"] if at == self.at]
        return Timestep._make([*arrays, final_obs, tuple(episode for episode in episodes if episode.env in self.numbers)])

    def state(self) -> dict[str, int]:
        return {"at": self.at}

    def restore(self, state: dict[str, int]) -> None:
        self.at = int(state["at"])

    def close(self) -> None:
        pass
