"""A trained policy, ready to act: preprocessing and memory inside; it needs neither environments nor Ray."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from modrl import checkpoint, spaces
from modrl.agent.actors.base import Actor, Memory
from modrl.envs.spaces import adopted, misfit
from modrl.evaluation import Result, evaluate
from modrl.experiment import Experiment
from modrl.messages import Tree
from modrl.rundir import RunDir
from modrl.scheme.compute import State
from modrl.settings import Evaluation
from modrl.tree import tree_map
from modrl.video import recording, require_video


class Policy:
    """Acts for one environment: `reset()` where an episode begins, then `act(obs)` for each observation.

    After `reset(count)` it acts for so many at once: observations, rewards and actions are batches of that size, and `first` says
    which of them begin an episode.
    """

    def __init__(self, actor: Actor, env_steps: int, seed: int = 0) -> None:
        self.actor = actor.eval()
        self.env_steps = env_steps  # that it was trained for
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()

    def __repr__(self) -> str:
        return f"Policy({self.actor.observation_space} -> {self.actor.action_space}, trained for {self.env_steps:,} env steps)"

    def reset(self, count: int | None = None) -> None:
        """Forgets all episodes so far; None: it acts for one environment, without a batch axis.

        Raises:
            ValueError: the count is not a positive number.
        """
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(f"expected the number of environments to act for, got {count!r}")
        self._single = count is None
        self._space = self.actor.observation_space if count is None else batch_space(self.actor.observation_space, count)
        self._first = torch.ones(count or 1, dtype=torch.bool)
        self._memory: Memory = self.actor.initial_memory(count or 1)

    def act(self, obs: Tree, reward: Any = 0.0, greedy: bool = True, first: Any = None) -> Any:
        """The action that the environment takes.

        `reward`: what the last action was paid, for policies that look at it. `first` [count] bool: which observations of a batch
        open an episode, those after `reset` apart, which all do.

        Raises:
            ValueError: the observation is not one of the space that the policy was trained on, or a batch is of another size.
        """
        if (text := misfit(self._space, obs)) is not None:
            raise ValueError(f"not an observation of this policy's environment: {text}")
        if first is not None and self._single:
            raise ValueError("first: is for batches; without reset(count), reset() says that an episode begins")
        if first is not None:
            self._first |= torch.as_tensor(np.array(self._sized(first, "first")), dtype=torch.bool)
        rewards = torch.tensor(np.array(self._sized(reward, "reward"), np.float32))
        arrays = adopted(self.actor.observation_space, obs)
        batch = tree_map(lambda x: torch.from_numpy(x[None] if self._single else x), arrays)
        step = self.actor.act(batch, self._first, self._memory._replace(last_reward=rewards), self.generator, greedy)
        self._memory, self._first = step.memory, torch.zeros_like(self._first)
        action = self.actor.to_env(step.action)
        return tree_map(lambda x: x[0], action) if self._single else action

    def _sized(self, value: Any, name: str) -> np.ndarray:
        size = len(self._first)
        try:
            return np.broadcast_to(np.asarray(value), size)
        except ValueError:
            raise ValueError(f"{name}: expected {size} of them, one for each environment, got shape {np.shape(value)}") from None


def load(run_dir: str | Path, checkpoint: str | int = "latest") -> Policy:
    """The policy of a run: from its newest whole checkpoint, the one that evaluated `best`, or the one at so many env steps.

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
    return experiment, checkpoint.chosen(directory.checkpoints, which)


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

    `video`: a folder for recordings of all episodes, which are played one after the other then. `seed` None: that of the experiment's evaluation.
    """
    experiment, state = load_run(run_dir, checkpoint)
    evaluation = experiment.evaluation or Evaluation()
    seed = evaluation.seed if seed is None else seed
    played = functools.partial(evaluate, make_actor(experiment, state), episodes=episodes, seed=seed, greedy=greedy)
    if video is None:
        return played(experiment.envs)
    require_video(experiment.envs, "--video")
    with recording(lambda episode: video / f"episode-{episode + 1}.mp4") as watch:
        return played(experiment.envs.showing().model_copy(update={"count": 1}), watch=watch)
