"""Schemes as pictures: right for every preset and for mixtures of one's own."""

from __future__ import annotations

import itertools
import re

import pytest

from modrl.diagram import draw
from modrl.scheme.presets import presets
from modrl.scheme.scheme import Scheme

ASYNCHRONOUS = {"place": "ray", "workers": 6, "gather": 2, "ahead": 1, "max_lag": 5}
SERVED = {**ASYNCHRONOUS, "inference": {"replicas": 3, "batch": 7, "timeout_ms": 25, "device": "cuda:1"}}
MIXTURES = [
    {"collection": ASYNCHRONOUS, "gradient": {"place": "ray", "workers": 4, "gather": 3, "max_lag": 2}},
    {"collection": {**SERVED, "broadcast_interval": 9, "max_staleness": 8, "per_worker": [{}, {}]}, "gradient": {"place": "ray", "workers": 4}},
    {"collection": {"place": "ray", "workers": 8, "preemption": {}}, "gradient": {"place": "ray", "workers": 16}, "update": {"average": 12}},
    {"collection": {"place": "ray", "workers": 1000, "gather": 500, "ahead": 200, "max_lag": 10**6, "max_staleness": 10**5}, "gradient": {"place": "ray", "workers": 1000, "gather": 900, "max_lag": 10**6}},
    {"gradient": {"place": "ray", "workers": 1}, "update": "all_reduce"},
]  # fmt: skip


def drawn(**settings):
    return draw(Scheme.Config(**settings))


def settings_of(picture):
    """What the picture says in the words of a file: `gather 2`, `max_lag 5`, …"""
    return set(re.findall(r"\b(?:gather|ahead|max_lag|max_staleness|broadcast_interval) (?:\d+|all)", picture))


@pytest.mark.parametrize("settings", [*[{"preset": name} for name in presets()], *MIXTURES])
def test_a_picture_fits_eighty_columns_and_its_lines_meet(settings):
    lines = drawn(**settings).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]
    for above, below in itertools.pairwise(lines):
        for column, mark in enumerate(above):
            if mark in "│┬┌┐┼├▲" and column < len(below):
                assert below[column] in "│└┘┴▼┼├┤▲┬" or (mark, below[column]) == ("│", " "), f"{mark} at column {column} of\n{above}\n{below}"


@pytest.mark.parametrize("name", presets())
def test_the_numbers_are_those_of_the_preset(name):
    scheme, picture = Scheme.Config(preset=name), drawn(preset=name)
    collection, gradient = scheme.collection, scheme.gradient
    assert re.findall(r"(\d+) collectors? \((\w+)\)", picture) == [(str(collection.workers), collection.place)]
    assert re.findall(r"(\d+) gradient workers? \((\w+)\)", picture) == [(str(gradient.workers), gradient.place)]
    shares = collection.workers * gradient.workers
    assert (f"1/{shares} of the environments" if shares > 1 else "all environments") in picture
    said = settings_of(picture)
    for group in (collection, gradient):
        if group.workers > 1 and (group is collection or scheme.update == "central"):
            assert f"gather {group.gather}" in said
        if group.max_lag is not None:
            assert f"max_lag {group.max_lag}" in said
    assert (f"ahead {collection.ahead}" in said) == (collection.ahead > 0)
    assert ("preemption" in picture) == (collection.preemption is not None)
    assert ("inference server" in picture) == (collection.inference != "collector")
    assert ("all-reduce" in picture) == (scheme.update != "central")
    assert [int(n) for n in re.findall(r"lag: at most (\d+)", picture)] == [n for n in (scheme.lag_bound(), scheme.gradient_lag_bound()) if n]


def test_every_setting_of_a_mixture_is_shown():
    asynchronous, served, preempted, *_ = [drawn(**settings) for settings in MIXTURES]
    assert settings_of(asynchronous) == {"gather 2", "ahead 1", "max_lag 5", "gather 3", "max_lag 2"}
    assert "1/24 of the environments each" in asynchronous
    assert "gradient lag: at most 6 applied gradients" in asynchronous
    assert settings_of(served) == {"gather 2", "ahead 1", "max_lag 5", "broadcast_interval 9", "max_staleness 8", "gather all"}
    for text in ("3 inference servers (ray)", "batch: 7, or after 25 ms", "device: cuda:1", "per_worker: 2 kinds"):
        assert text in served
    assert "once 96 of all 128 collectors" in preempted
    assert "at 25% of" in preempted
    assert "every 12 steps" in preempted
    assert "among 16 workers" in preempted


def test_an_interval_of_one_and_a_server_that_is_not_there_are_not_mentioned():
    picture = drawn(preset="impala")
    assert "broadcast_interval" not in picture
    assert "server" not in picture


IMPALA = """\
 ┌──────────────────────────────────────────────┐
┌┴─────────────────────────────────────────────┐│
│ 2 collectors (ray)                           ││
│ 1/2 of the environments each                 ├┘
└───▲─────────────────────────────┬────────────┘
    │ weights                     │ rollouts, gather 1: the first done
    │                             │ ahead 1: collectors work on meanwhile
    │                             │ max_lag 4: at most 4 pulls behind
┌───┴─────────────────────────────▼────────────┐
│ 1 gradient worker (here)                     │
│ storage → losses → gradients                 │
└───▲─────────────────────────────┬────────────┘
    │ weights                     │ gradients
┌───┴─────────────────────────────▼────────────┐
│ updater (here)                               │
│ gradients → optimisers → weights             │
└──────────────────────────────────────────────┘

policy lag: at most 4 rounds
gradient lag: none"""

DD_PPO = """\
 ┌──────────────────────────────────────────────────┐
┌┴ 2 gradient workers (ray), each: ────────────────┐│
│ ┌──────────────────────────────────────────────┐ ││
│ │ 1 collector (here)                           │ ││
│ │ 1/2 of the environments                      │ ││
│ │ preemption: once 1 of all 2 collectors is    │ ││
│ │ done, the others stop at 25% of their steps  │ ││
│ │ or later                                     │ ││
│ └───▲─────────────────────────────┬────────────┘ ││
│     │ weights                     │ rollouts     ││
│ ┌───┴─────────────────────────────▼────────────┐ ││
│ │ storage → losses → gradients → optimisers    │ ││
│ └───▲─────────┬───────────────────┬────────────┘ ├┘
└─────┼─────────┼───────────────────┼──────────────┘
      │ sum     │ gradients         │ counts, metrics
  ┌───┴─────────▼────────────────┐  │
  │ all-reduce at each step      │  │
  │ among 2 workers              │  │
  └──────────────────────────────┘  │
  ┌─────────────────────────────────▼────────────┐
  │ updater (here)                               │
  │ version and env steps; no weights            │
  └──────────────────────────────────────────────┘

policy lag: none
gradient lag: none"""

SEED_IN_RAPID = """\
 ┌───────────────────────────────────────────────────────────────────────────┐
┌┴ 2 gradient workers (ray), each: ─────────────────────────────────────────┐│
│  ┌──────────────────────────────────────────────┐                         ││
│ ┌┴─────────────────────────────────────────────┐│                         ││
│ │ 3 collectors (ray)                           ││                         ││
│ │ 1/6 of the environments each                 ├┘                         ││
│ └───▲─────────┬───────────────────┬────────────┘                          ││
│     │ answers │ observations      │                                       ││
│  ┌──┴─────────▼─────────────────┐ │ rollouts, gather 1: the first done    ││
│ ┌┴─────────────────────────────┐│ │ ahead 1: collectors work on meanwhile ││
│ │ 3 inference servers (ray)    ││ │ max_lag 4: at most 4 pulls behind     ││
│ │ batch: 8, or after 10 ms     ├┘ │                                       ││
│ └───▲──────────────────────────┘  │                                       ││
│     │ weights                     │                                       ││
│     │ broadcast_interval 2        │                                       ││
│ ┌───┴─────────────────────────────▼────────────┐                          ││
│ │ storage → losses → gradients                 │                          ││
│ └───▲─────────────────────────────┬────────────┘                          ├┘
└─────┼─────────────────────────────┼───────────────────────────────────────┘
      │ weights                     │ gradients, gather all: added up
  ┌───┴─────────────────────────────▼────────────┐
  │ updater (here)                               │
  │ gradients → optimisers → weights             │
  └──────────────────────────────────────────────┘

policy lag: at most 5 rounds
gradient lag: none"""

OWN = {"preset": "rapid", "collection": {"workers": 3, "broadcast_interval": 2, "inference": {"replicas": 3, "batch": 8}}}


@pytest.mark.parametrize(("settings", "picture"), [({"preset": "impala"}, IMPALA), ({"preset": "dd_ppo"}, DD_PPO), (OWN, SEED_IN_RAPID)])
def test_pictures(settings, picture):
    assert drawn(**settings) == picture
