"""Evaluation while training: when it is due, whether training waits for it, and which weights were the best so far."""

from __future__ import annotations

import csv
import functools
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from modrl import checkpoint
from modrl.agent.actors.base import Actor
from modrl.envs.base import Envs
from modrl.evaluation import Result, evaluate
from modrl.messages import Weights
from modrl.metrics import Row
from modrl.rundir import RunDir, write_whole
from modrl.scheme.compute import State, use_torch_threads
from modrl.scheme.parts import Parts
from modrl.settings import Evaluation
from modrl.video import recording

logger = logging.getLogger(__name__)

COLUMNS = ["env_steps", "task", "episode", "seed", "return", "length"]


class Score(NamedTuple):
    """What an evaluation found."""

    env_steps: int  # of the weights
    results: list[Result]  # one per task

    @property
    def mean_return(self) -> float:
        """Over tasks."""
        return sum(result.mean_return for result in self.results) / len(self.results)


class Evaluator:
    """Plays the same episodes each time, and keeps the weights that played them best. `stop` ends what is being played."""

    def __init__(self, settings: Evaluation, parts: Parts, directory: RunDir, policy: Callable[[Weights, int], dict[str, Any]]) -> None:
        self.settings = settings
        self.parts = parts
        self.directory = directory
        self.policy = policy  # what a checkpoint of weights alone holds
        self.best: dict[str, Any] | None = None
        self.owed = False  # whether an evaluation was begun and not ended
        self._actor: Actor | None = None
        self._running: tuple[Future[Score | None], Weights] | None = None
        self._stopping = threading.Event()
        self._news: Row = {}

    def begin(self, weights: Weights, env_steps: int, stop: Callable[[], bool]) -> None:
        """Evaluates these weights; in the background, once the evaluation before is over.

        Raises:
            Exception: what the environments raised.
        """
        self.wait()
        self.owed = True
        play = functools.partial(self._play, weights, env_steps, lambda: stop() or self._stopping.is_set())
        future: Future[Score | None] = Future()
        self._running = future, weights
        if self.settings.background:
            threading.Thread(target=_into, args=(future, play), name="evaluation", daemon=True).start()
        else:
            _into(future, play)
            self.wait()

    def wait(self) -> None:
        """Until nothing is being played; what was found is written down.

        Raises:
            Exception: what the environments raised.
        """
        if self._running is None:
            return
        (future, weights), self._running = self._running, None
        if (score := future.result()) is not None:
            self._heed(score, weights)

    def news(self) -> Row:
        """Columns of what was found since this was last asked."""
        if self._running is not None and self._running[0].done():
            self.wait()
        news, self._news = self._news, {}
        return news

    def close(self) -> None:
        """Ends what is being played."""
        self._stopping.set()
        if self._running is not None:
            self._running[0].exception()

    @property
    def _protocol(self) -> dict[str, Any]:
        """What makes returns comparable."""
        return {"episodes": self.settings.episodes, "greedy": self.settings.greedy, "seed": self.settings.seed}

    def state(self) -> dict[str, Any]:
        """Plain data to continue from."""
        return {"best": self.best, "owed": self.owed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`; what was best by another protocol is not compared with."""
        self.best, self.owed = state.get("best"), bool(state.get("owed"))
        if self.best is not None and self.best.get("protocol") != self._protocol:
            logger.warning("the run was evaluated otherwise before: which weights are best is asked anew")
            self.best = None

    def cut(self, env_steps: int) -> None:
        """Drops what was written down past so many env steps."""
        path = self.directory.evaluations
        if path.exists():
            with open(path, newline="", encoding="utf-8", errors="replace") as file:
                rows = list(csv.reader(file))
            kept = [row for row in rows if len(row) == len(COLUMNS) and row[0].isdecimal() and int(row[0]) <= env_steps]
            write_whole(path, "".join(f"{','.join(row)}\n" for row in [COLUMNS, *kept]))

    def _play(self, weights: Weights, env_steps: int, stop: Callable[[], bool]) -> Score | None:
        """What these weights score; None: it was stopped."""
        if self.settings.background:
            use_torch_threads()
        if self._actor is None:
            self._actor = self.parts.make_actor().to(self.parts.compute().device).eval()
        State(self._actor).load(weights.acting)
        results = [self._play_task(index, config, env_steps, stop) for index, config in enumerate(self.parts.tasks())]
        return Score(env_steps, results) if all(len(result.returns) == self.settings.episodes for result in results) else None

    def _play_task(self, index: int, config: Envs.Config, env_steps: int, stop: Callable[[], bool]) -> Result:
        settings = self.settings
        assert self._actor is not None
        play = functools.partial(evaluate, self._actor, episodes=settings.episodes, seed=settings.seed, greedy=settings.greedy, stop=stop)
        if not settings.video:
            return play(config)
        path = self.directory.videos / f"{env_steps}{f'-task-{index}' if len(self.parts.tasks()) > 1 else ''}.mp4"
        with recording(lambda episode: path if episode == 0 else None) as watch:
            return play(config.showing(), watch=watch)

    def _heed(self, score: Score, weights: Weights) -> None:
        path = self.directory.evaluations
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not path.stat().st_size:
                writer.writerow(COLUMNS)
            for task, result in enumerate(score.results):
                for number, (seed, reward, length) in enumerate(zip(result.seeds, result.returns, result.lengths, strict=True)):
                    writer.writerow([score.env_steps, task, number, seed, f"{reward:.7g}", length])
        self.owed = False
        self._news = {"eval_return": score.mean_return, "eval/env_steps": score.env_steps, "eval/length": _mean_length(score.results)}
        if len(score.results) > 1:
            self._news |= {f"eval/task_{index}": result.mean_return for index, result in enumerate(score.results)}
        if not math.isfinite(score.mean_return):
            logger.warning("the evaluation at %d env steps returned %s: it cannot be the best", score.env_steps, score.mean_return)
        elif self.best is None or score.mean_return > self.best["eval_return"]:
            self.best = {"env_steps": score.env_steps, "eval_return": score.mean_return, "protocol": self._protocol}
            checkpoint.save(checkpoint.best_of(self.directory.checkpoints), {**self.policy(weights, score.env_steps), "evaluation": self.best})


def _into(future: Future[Any], play: Callable[[], Any]) -> None:
    try:
        future.set_result(play())
    except BaseException as error:  # anything: it is raised where the result is asked for
        future.set_exception(error)


def _mean_length(results: Sequence[Result]) -> float:
    lengths = [length for result in results for length in result.lengths]
    return sum(lengths) / len(lengths)
