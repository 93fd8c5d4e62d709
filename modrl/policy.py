"""A trained policy, ready to act: preprocessing and memory inside; it needs neither environments nor Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from modrl import checkpoint, spaces
from modrl.agent.actors.base import Actor, Memory
from modrl.checkpoint import CheckpointError
from modrl.envs.spaces import misfit
from modrl.evaluation import Result, evaluate
from modrl.experiment import Experiment
from modrl.messages import Tree
from modrl.run import make_evaluation_envs
from modrl.rundir import RunDir
from modrl.scheme.compute import State
from modrl.seeding import Role, generator
from modrl.tree import tree_map
from modrl.video import recording


class Policy:
    """Acts for one environment: `reset()` where an episode begins, then `act(obs)` for each observation."""

    def __init__(self, actor: Actor, env_steps: int, seed: int = 0) -> None:
        self.actor = actor.eval()
        self.env_steps = env_steps  # that it was trained for
        self.generator = torch.Generator().manual_seed(seed)
        self._memory: Memory = actor.initial_memory(1)
        self._first = True

    def __repr__(self) -> str:
        return f"Policy({self.actor.observation_space} -> {self.actor.action_space}, trained for {self.env_steps:,} env steps)"

    def reset(self) -> None:
        """Forgets the episode so far."""
        self._first = True

    def act(self, obs: Tree, reward: float = 0.0, greedy: bool = True) -> Any:
        """The action that the environment takes. `reward`: what the last action was paid, for policies that look at it.

        Raises:
            ValueError: the observation is not one of the space that the policy was trained on.
        """
        if (text := misfit(self.actor.observation_space, obs)) is not None:
            raise ValueError(f"not an observation of this policy's environment: {text}")
        batch = tree_map(lambda x: torch.from_numpy(_supported(x)[None]), obs)
        memory = self._memory._replace(last_reward=torch.tensor([reward], dtype=torch.float32))
        step = self.actor.act(batch, torch.tensor([self._first]), memory, self.generator, greedy)
        self._memory, self._first = step.memory, False
        return tree_map(lambda x: x[0], self.actor.to_env(step.action))


def _supported(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else np.array(array)


def load(run_dir: str | Path, checkpoint: str | int = "latest") -> Policy:
    """The policy of a run, from its newest whole checkpoint or the one at so many env steps.

    Raises:
        RunDirError: the directory holds no run.
        CheckpointError: there is no such checkpoint, or it is not whole.
    """
    experiment, state = load_run(run_dir, checkpoint)
    return Policy(make_actor(experiment, state), state["updater"]["env_steps"], experiment.seed)


def load_run(run_dir: str | Path, which: str | int = "latest") -> tuple[Experiment, dict[str, Any]]:
    """A run's experiment and a checkpoint's content; see `load`."""
    directory = RunDir(Path(run_dir))
    directory.read_info()
    experiment = Experiment.load(directory.experiment)
    if which == "latest":
        found = checkpoint.newest(directory.checkpoints)
        if found is None:
            raise CheckpointError(f"{directory.path}: no whole checkpoint in it yet")
        return experiment, found.tree
    if not str(which).isdecimal():
        raise CheckpointError(f"expected a checkpoint's env steps, or latest, got {which!r}")
    path = checkpoint.path_of(directory.checkpoints, int(which))
    if not path.exists():
        known = ", ".join(file.stem for file in checkpoint.found(directory.checkpoints)) or "none"
        raise CheckpointError(f"{directory.path}: no checkpoint at {which} env steps; there are: {known}")
    return experiment, checkpoint.load(path)


def make_actor(experiment: Experiment, state: dict[str, Any]) -> Actor:
    """The actor with a checkpoint's weights, on the CPU."""
    known = {name: spaces.from_data(space) for name, space in state["spaces"].items()}
    actor: Actor = experiment.actor.build(observation_space=known["observation"], action_space=known["action"])
    State(actor).load(state["updater"]["acting"])
    return actor.eval()


def play(
    run_dir: str | Path, episodes: int, *, greedy: bool = True, video: Path | None = None, checkpoint: str | int = "latest", seed: int | None = None
) -> Result:
    """Plays whole episodes in the run's own kind of environments, in raw reward.

    `video`: a folder for a recording of what the first environment shows. `seed` None: the run's.
    """
    experiment, state = load_run(run_dir, checkpoint)
    seed = experiment.seed if seed is None else seed
    envs = make_evaluation_envs(experiment.envs if video is None else experiment.envs.showing(), seed, episodes)
    try:
        with recording(video) as record:
            watch = (lambda: None) if record is None else (lambda: record(envs.frame()))
            return evaluate(make_actor(experiment, state), envs, episodes, greedy=greedy, generator=generator(seed, Role.EVAL_ACTION), watch=watch)
    finally:
        envs.close()
