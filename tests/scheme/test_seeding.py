"""Streams of random numbers: one for every role and number, the same wherever they are drawn."""

from __future__ import annotations

import itertools

import torch

from modrl.seeding import Role, generator, seed_of


def test_every_stream_of_every_run_has_a_seed_of_its_own():
    streams = list(itertools.product(range(5), Role, range(50)))
    assert len({seed_of(*stream) for stream in streams}) == len(streams)
    draws = {tuple(torch.randint(2**40, (2,), generator=generator(*stream)).tolist()) for stream in streams}
    assert len(draws) == len(streams)


def test_a_stream_is_the_same_twice_and_on_every_machine():
    """The numbers are written down: another one would make old runs unrepeatable."""
    assert [seed_of(1, Role.ENV, n) for n in range(3)] == SEEDS
    assert torch.randint(1000, (4,), generator=generator(1, Role.ACTION, 2)).tolist() == DRAWS


def test_seeds_are_what_gymnasium_takes():
    assert all(0 <= seed_of(seed, Role.EVAL_ENV, n) < 2**31 for seed in (0, 2**40) for n in range(100))


def test_the_numbers_of_roles_do_not_change():
    assert {role.name: int(role) for role in Role} == {
        "WEIGHTS": 0, "ENV": 1, "ACTION": 2, "LEARNING": 3, "REPLAY": 4, "EVAL_ENV": 5, "EVAL_ACTION": 6,
    }  # fmt: skip


SEEDS = [1645468115, 1368576262, 579240235]
DRAWS = [213, 361, 943, 537]
