"""A thread of ours computes with the torch threads that the process is set to, not with all cores of the machine."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from modrl.agent.actors.base import Inference
from modrl.scheme.compute import Compute
from modrl.scheme.inference import Server
from modrl.scheme.places.thread import ThreadWorker

MAPS = Path("/proc/self/maps")
pytestmark = pytest.mark.skipif(not MAPS.exists() or (os.cpu_count() or 1) < 2, reason="needs several cores, and to see which OpenMP is loaded")


def openmp_threads():
    """What OpenMP would use in the calling thread; torch.get_num_threads() would set it as it asks."""
    libraries = {line.split(maxsplit=5)[-1].strip() for line in MAPS.read_text().splitlines() if "libgomp" in line or "libomp" in line}
    return max(ctypes.CDLL(name).omp_get_max_threads() for name in libraries)


@pytest.fixture(autouse=True)
def _one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Teller(torch.nn.Module):
    """A worker, and an actor, that says how many threads it has."""

    def work(self):
        return openmp_threads()

    def close(self):
        pass

    def infer(self, obs, first, memory):
        return Inference(torch.full((len(obs), 1), float(openmp_threads())), {}, ())


def test_a_worker_in_a_thread():
    worker = ThreadWorker("worker", Teller)
    assert worker.submit("work").result(10) == 1
    worker.close()


def test_an_inference_server():
    server = Server(actor=Teller(), compute=Compute(), batch=1, timeout=1.0)
    answer = server.infer(np.zeros((1, 1), np.float32), np.zeros(1, bool), ())
    server.close()
    assert answer.inference.policy.item() == 1


def test_a_thread_of_nobodys_has_all_cores():
    """Were it otherwise, the tests above could not fail."""
    said = []
    thread = threading.Thread(target=lambda: said.append(openmp_threads()))
    thread.start()
    thread.join()
    assert said[0] > 1 or "OMP_NUM_THREADS" in os.environ
