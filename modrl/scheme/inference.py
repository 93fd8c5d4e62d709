"""Central inference: collectors send observations, a server answers them in batches (SEED RL: Espeholt et al., 2020; PolyBeast).

The server holds the weights and nothing else. Recurrent state stays with its environments and travels along; the server
answers with the parameters of the distribution, and each collector's action is drawn with its own generator, so that no
action depends on who else was in the batch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from modrl.agent.actors.base import Actor, Inference, Memory
from modrl.messages import Tree, Weights
from modrl.scheme.compute import Compute, State, use_torch_threads
from modrl.tree import on_device, to_numpy, tree_map


class Answer(NamedTuple):
    """What the server says of one collector's environments."""

    inference: Inference
    version: int  # of the weights that said it


class Client(Protocol):
    """A collector's way to its server."""

    def infer(self, obs: Tree, first: np.ndarray, memory: Memory, then: Callable[[Answer], Any]) -> Any:
        """`then` of the server's answer to observations [B, ...], as numpy arrays; waits for it."""


def _as_it_is(answer: Answer) -> Answer:
    return answer


class _Request(NamedTuple):
    inputs: tuple[Tree, np.ndarray, Memory]  # numpy
    width: int
    then: Callable[[Answer], Any]
    result: Future[Any]  # `then` of the answer


class Server:
    """Answers requests in batches: as soon as `batch` columns wait, or the oldest request has waited for `timeout` seconds."""

    def __init__(self, *, actor: Actor, compute: Compute, batch: int, timeout: float) -> None:
        self.actor = actor.to(compute.device).eval()
        self._state = State(self.actor)
        self.compute = compute
        self.batch = batch
        self.timeout = timeout
        self.version = -1
        self._counts = Counter[str]()
        self._weights = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="inference server", daemon=True)
        self._thread.start()

    def load(self, weights: Weights) -> dict[str, float]:
        """Answers from now on with these weights; gives what was counted since the last ones: batches, and the columns in them."""
        with self._weights:
            if weights.version != self.version:
                self._state.load(weights.acting)
                self.version = weights.version
            counts, self._counts = self._counts, Counter()
        return {name: float(number) for name, number in counts.items()}

    def infer(self, obs: Tree, first: np.ndarray, memory: Memory, then: Callable[[Answer], Any] = _as_it_is) -> Any:
        """`then` of what the actor says of these observations [B, ...]; waits for a batch to be full.

        It is called in the server's thread, one request after the other: threads that were all woken to go on at the same
        time would take the interpreter from each other at every operation of torch, which takes longer than the work itself.
        """
        request = _Request((obs, first, memory), len(first), then, Future())
        with self._changed:
            self._waiting.append(request)
            if len(self._waiting) == 1 or self._full():  # in between nothing changes for the server, which is not woken
                self._changed.notify()
        return request.result.result()

    def _full(self) -> bool:
        return self._closed or sum(request.width for request in self._waiting) >= self.batch

    def _serve(self) -> None:
        use_torch_threads()
        while requests := self._next():
            try:
                answers = self._answer(requests)
            except Exception as error:  # of the actor's; it is told by whoever asked
                for request in requests:
                    request.result.set_exception(error)
                continue
            for request, answer in zip(requests, answers, strict=True):
                try:
                    request.result.set_result(request.then(answer))
                except Exception as error:
                    request.result.set_exception(error)

    def _next(self) -> list[_Request]:
        """The next batch; nothing once the server is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._changed.wait_for(self._full, self.timeout)
            requests, self._waiting = self._waiting, []
            return [] if self._closed else requests

    @torch.no_grad()
    def _answer(self, requests: list[_Request]) -> list[Answer]:
        obs, first, memory = on_device(tree_map(lambda *xs: torch.from_numpy(np.concatenate(xs)), *[r.inputs for r in requests]), self.compute.device)
        with self._weights, self.compute.precision_scope():
            inference, version = to_numpy(self.actor.infer(obs, first, memory)), self.version
            self._counts.update({"inference/batches": 1, "inference/columns": len(first)})
        ends = np.cumsum([request.width for request in requests])
        return [Answer(_rows(inference, end - r.width, end), version) for r, end in zip(requests, ends, strict=True)]

    def close(self) -> None:
        """Ends the server; requests that wait are not answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()


def _rows(tree: Tree, start: int, end: int) -> Tree:
    return tree_map(lambda x: x[start:end], tree)
