"""Central inference: collectors send observations, a server answers them in batches (SEED RL: Espeholt et al., 2020; PolyBeast).

The server holds the weights and nothing else. Recurrent state stays with its environments and travels along; the server
answers with the parameters of the distribution, and the collector draws the action with its own generator, so that no
action depends on who else was in the batch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np
import torch

from modrl.agent.actors.base import Actor, Inference, Memory
from modrl.messages import Tree, Weights
from modrl.scheme.compute import Compute, load
from modrl.tree import to_numpy, to_torch, tree_map


class Answer(NamedTuple):
    """What the server says of one collector's environments."""

    inference: Inference
    version: int  # of the weights that said it


class Client(Protocol):
    """A collector's way to its server."""

    def infer(self, obs: Tree, first: np.ndarray, memory: Memory) -> Answer:
        """The server's answer to observations [B, ...], as numpy arrays; waits for it."""


class _Request(NamedTuple):
    inputs: tuple[Tree, np.ndarray, Memory]  # numpy
    width: int
    answer: Future[Answer]


class Server:
    """Answers requests in batches: as soon as `batch` columns wait, or the oldest request has waited for `timeout` seconds."""

    def __init__(self, *, actor: Actor, compute: Compute, batch: int, timeout: float) -> None:
        self.actor = actor.to(compute.device).eval()
        self.compute = compute
        self.batch = batch
        self.timeout = timeout
        self.version = -1
        self._counts = Counter[str]()
        self._weights = threading.Lock()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="inference server", daemon=True)
        self._thread.start()

    def load(self, weights: Weights) -> dict[str, float]:
        """Answers from now on with these weights; gives what was counted since the last ones: batches, and the columns in them."""
        with self._weights:
            if weights.version != self.version:
                load(self.actor, weights.acting)
                self.version = weights.version
            counts, self._counts = self._counts, Counter()
        return {name: float(number) for name, number in counts.items()}

    def infer(self, obs: Tree, first: np.ndarray, memory: Memory) -> Answer:
        """What the actor says of these observations [B, ...]; waits for a batch to be full."""
        request = _Request((obs, first, memory), len(first), Future())
        self._requests.put(request)
        return request.answer.result()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            requests, deadline = [request], time.monotonic() + self.timeout
            while sum(r.width for r in requests) < self.batch:
                try:
                    more = self._requests.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if more is None:
                    self._requests.put(None)
                    break
                requests.append(more)
            try:
                answers = self._answer(requests)
            except Exception as error:  # of the actor's; it is told by whoever asked
                for request in requests:
                    request.answer.set_exception(error)
                continue
            for request, answer in zip(requests, answers, strict=True):
                request.answer.set_result(answer)

    @torch.no_grad()
    def _answer(self, requests: list[_Request]) -> list[Answer]:
        obs, first, memory = tree_map(lambda *xs: torch.from_numpy(np.concatenate(xs)).to(self.compute.device), *[r.inputs for r in requests])
        with self._weights, self.compute.precision_scope():
            inference, version = to_numpy(self.actor.infer(obs, first, memory)), self.version
            self._counts.update({"inference/batches": 1, "inference/columns": len(first)})
        ends = np.cumsum([request.width for request in requests])
        return [Answer(_rows(inference, end - r.width, end), version) for r, end in zip(requests, ends, strict=True)]

    def close(self) -> None:
        """Ends the server; requests that wait are not answered."""
        self._requests.put(None)


def _rows(tree: Tree, start: int, end: int) -> Tree:
    return tree_map(lambda x: x[start:end], tree)


def ask(client: Client, obs: Tree, first: np.ndarray, memory: Memory, device: torch.device) -> Answer:
    """A server's answer, as tensors."""
    answer = client.infer(obs, first, to_numpy(memory))
    return answer._replace(inference=tree_map(lambda x: x.to(device), to_torch(answer.inference)))
