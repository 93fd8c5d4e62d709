"""machine.compile: networks and losses compiled by torch.compile say what they said."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.runs import assert_equal_weights, small, table, trained, weights_of

ALGORITHMS = {"impala": {"name": "impala"}, "ppo": {"name": "ppo", "epochs": 2, "minibatches": 2}, "a2c": {"name": "a2c"}}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_acts_and_what_learns_is_compiled(algorithm, tmp_path, monkeypatch):
    compiled = []

    def stand_in(function):
        def called(*arguments, **options):
            compiled.append(function.__qualname__)
            return function(*arguments, **options)

        return called

    monkeypatch.setattr(torch, "compile", stand_in)
    trained(small(algorithm=ALGORITHMS[algorithm], steps=80, machine={"compile": True}), tmp_path)
    assert set(compiled) == {"ActorCritic.infer", "PolicyGradient.loss"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.parametrize("scheme", ["local", "overlapped"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_compiled_runs_learn_the_same(algorithm, scheme, tmp_path):
    runs = [
        trained(small(algorithm=ALGORITHMS[algorithm], steps=400, scheme=scheme, machine={"compile": compiled}), tmp_path / str(compiled))
        for compiled in (False, True)
    ]
    assert_equal_weights(*map(weights_of, runs), tolerance=1e-4)
    episodes = [[row["episode_return"] for row in table(tmp_path / str(compiled))] for compiled in (False, True)]
    assert episodes[0] == episodes[1]
