"""An inference server says what the collectors' own actors would, in batches; chance stays with the collector."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
import torch

from modrl.agent.actors.base import Inference
from modrl.config import BadInput
from modrl.messages import Weights
from modrl.scheme.compute import Compute, State
from modrl.scheme.inference import Server
from modrl.scheme.start import Site, start_collection
from modrl.tree import leaves, to_numpy
from tests.runs import assert_equal_weights, small, table, trained, weights_of
from tests.scheme.tiny import parts_of

ACTORS = {
    "mlp": {"torso": {"name": "mlp", "hidden": [16]}},
    "lstm": {"torso": {"name": "mlp", "hidden": [16]}, "memory": {"name": "lstm", "size": 8}, "last_action": True, "last_reward": True},
}


def under(place, inference, workers=4, **collection):
    return {"collection": {"place": place, "workers": workers, "inference": inference, **collection}}


@pytest.mark.parametrize(
    ("actor", "place"), [("mlp", "thread"), ("lstm", "thread"), *(pytest.param(name, "ray", marks=pytest.mark.slow) for name in ("mlp", "lstm"))]
)
def test_a_server_is_the_collectors_own_inference(actor, place, cluster, tmp_path):
    runs = [
        trained(small(actor={"name": "actor_critic", **ACTORS[actor]}, scheme=under(place, inference)), tmp_path / str(index))
        for index, inference in enumerate(["collector", "server"])
    ]
    assert_equal_weights(*map(weights_of, runs), tolerance=1e-5)
    episodes = [[row["episode_return"] for row in table(tmp_path / str(index))] for index in range(2)]
    assert episodes[0] == episodes[1]  # the same actions


@pytest.mark.parametrize("do", ["discrete", "multi discrete", "multi binary", "box", "dict", "tuple"])
@pytest.mark.parametrize("log_std", [None, {"state_dependent": True, "initial": -1.0}])
def test_every_distribution_survives_the_journey(do, log_std):
    """Complete parameters as numpy arrays give the same actions and probabilities as acting at once."""
    if log_std is not None and do not in {"box", "dict"}:
        pytest.skip("only Boxes have one")
    envs = {"name": "gym", "id": "tests.scheme.tiny:tests/Anything-v0", "vectorization": "vector_entry_point", "count": 3, "kwargs": {"do": do}}
    parts, _ = parts_of(envs=envs, actor={"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}, "log_std": log_std})
    actor = parts.make_actor()
    obs, first, memory = torch.randn(3, 3), torch.zeros(3, dtype=torch.bool), actor.initial_memory(3)
    direct = actor.act(obs, first, memory, torch.Generator().manual_seed(1))
    server = Server(actor=parts.make_actor(), compute=Compute(), batch=3, timeout=1.0)
    server.load(Weights(4, 0.0, State(actor).copy(), {}))
    answer = server.infer(obs.numpy(), first.numpy(), to_numpy(memory))
    server.close()
    assert answer.version == 4
    inference = answer.inference._replace(policy=torch.from_numpy(answer.inference.policy))
    chosen = actor.choose(inference, torch.Generator().manual_seed(1))
    assert_equal(direct.action, chosen.action)
    torch.testing.assert_close(direct.behaviour["log_prob"], chosen.behaviour["log_prob"], rtol=0, atol=0)


def assert_equal(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


class Recording(torch.nn.Module):
    """Stands for an actor: answers each request with its own numbers, and keeps the batches' widths."""

    def __init__(self):
        super().__init__()
        self.widths = []

    def infer(self, obs, first, memory):
        self.widths.append(len(obs))
        if obs.max() > 99:
            raise ValueError("cannot see this")
        return Inference(obs * 2, {"value": obs[:, 0]}, ())


def ask(server, number, width=1):
    obs = np.full((width, 1), number, np.float32)
    return server.infer(obs, np.zeros(width, bool), ()).inference.policy


def asked_at_once(server, numbers):
    """The answers to requests from as many threads."""
    answers = {}

    def one(number):
        try:
            answers[number] = float(ask(server, number)[0, 0])
        except Exception as error:
            answers[number] = str(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return answers


def test_what_follows_an_answer_is_done_for_its_request_alone():
    server = Server(actor=Recording(), compute=Compute(), batch=2, timeout=5.0)
    told, threads = {}, set()

    def one(number):
        def follow(answer):
            threads.add(threading.current_thread().name)
            return 1 / (float(answer.inference.policy[0, 0]) - 2)  # of 1 there is none

        try:
            told[number] = server.infer(np.full((1, 1), number, np.float32), np.zeros(1, bool), (), follow)
        except ZeroDivisionError:
            told[number] = "its own error"

    for _ in range(2):  # the server goes on
        askers = [threading.Thread(target=one, args=(number,)) for number in (1, 2)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(5)
        assert told == {1: "its own error", 2: 0.5}
        told.clear()
    assert threads == {"inference server"}
    server.close()


def test_requests_are_answered_in_one_batch_each_with_its_own():
    actor = Recording()
    server = Server(actor=actor, compute=Compute(), batch=4, timeout=5.0)
    assert asked_at_once(server, range(4)) == {0: 0, 1: 2, 2: 4, 3: 6}
    assert actor.widths == [4]
    server.close()


def test_a_server_does_not_wait_for_another_one_s_collectors():
    experiment = small(scheme=under("thread", {"name": "server", "replicas": 2}))
    with contextlib.closing(start_collection(Site(experiment.scheme, experiment.plan().parts), 0)) as collectors:
        assert [server.worker.batch for server in collectors.group.servers] == [4, 4]  # two collectors of two environments each


def test_a_batch_waits_no_longer_than_its_timeout():
    actor = Recording()
    server = Server(actor=actor, compute=Compute(), batch=4, timeout=0.1)
    start = time.monotonic()
    assert asked_at_once(server, [7, 8]) == {7: 14, 8: 16}
    assert 0.1 <= time.monotonic() - start < 1
    assert actor.widths == [2]
    server.close()


def test_what_the_actor_raises_reaches_those_that_asked_and_the_server_goes_on():
    server = Server(actor=Recording(), compute=Compute(), batch=2, timeout=1.0)
    assert asked_at_once(server, [1, 100]) == {1: "cannot see this", 100: "cannot see this"}
    assert asked_at_once(server, [1, 2]) == {1: 2, 2: 4}
    server.close()


def test_what_is_counted_is_given_with_the_next_weights():
    server = Server(actor=Recording(), compute=Compute(), batch=2, timeout=1.0)
    asked_at_once(server, [1, 2])
    assert server.load(Weights(0, 0.0, {}, {})) == {"inference/batches": 1, "inference/columns": 2}
    assert server.load(Weights(1, 0.0, {}, {})) == {}
    server.close()


def test_versions_are_recorded_by_step_and_keep_the_bound(tmp_path):
    scheme = under("thread", "server", workers=2, gather=1, ahead=1, max_lag=4)
    trained(small(scheme=scheme, steps=8000), tmp_path / "run")
    rows = table(tmp_path / "run")
    assert max(row["policy_lag_max"] for row in rows if row["policy_lag_max"] is not None) <= 4
    assert rows[-1]["inference/batch"] >= 1


def test_an_actor_that_cannot_be_asked_is_refused_before_anything_starts(tmp_path):
    actor = {"name": "tests.scheme.tiny:Bias"}
    with pytest.raises(BadInput, match=r"scheme\.collection\.inference: a server cannot ask Bias"):
        small(actor=actor, scheme=under("thread", "server")).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
