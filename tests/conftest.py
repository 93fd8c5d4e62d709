"""Fixtures for all tests."""

from __future__ import annotations

import pytest


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
