"""Fixtures for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from modrl import cli


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def _cluster():
    """One Ray cluster for all tests that ask for it: each run finds it running and leaves it so."""
    from modrl.scheme.places.ray import Cluster

    cluster = Cluster("local", 200_000_000)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(_cluster):
    return _cluster


@pytest.fixture
def modrl(monkeypatch, capsys):
    """Runs a command in this process: its exit status, stdout and stderr."""
    monkeypatch.setattr(cli.out, "_width", 200)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["modrl", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        said = capsys.readouterr()
        return exit.value.code, said.out, said.err

    return run
