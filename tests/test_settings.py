"""Durations, and when an interval has passed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from modrl import settings
from modrl.settings import Checkpointing, Evaluation, Logging, Ticker


@pytest.mark.parametrize("value", ["30s", "30 s", "10min", "2h", "1.5h", "1d", "90sec"])
def test_a_duration_stays_as_it_was_written(value):
    assert Checkpointing(every=value).every == value


@pytest.mark.parametrize(("value", "steps"), [(1, 1), (1e6, 1_000_000), (2_000, 2000)])
def test_a_number_is_env_steps(value, steps):
    assert Evaluation(every=value).every == steps
    assert isinstance(Evaluation(every=value).every, int)


@pytest.mark.parametrize("value", [0, -5, 0.5, 1.5, True, "", "10", "min", "-3s", "10 weeks", "1e6", None, [1]])
def test_anything_else_is_refused(value):
    with pytest.raises(ValidationError, match=r"expected env steps \(1e6\) or a duration \(30s, 10min, 2h\)"):
        Evaluation(every=value)


def test_only_rows_may_come_with_every_batch():
    assert Logging(every=None).every is None


def test_steps_are_due_once_in_each_interval():
    ticker = Ticker(100, 0)
    assert [steps for steps in range(0, 500, 40) if ticker.due(steps)] == [120, 200, 320, 400]


def test_a_jump_over_several_intervals_is_due_once():
    ticker = Ticker(100, 0)
    assert [ticker.due(steps) for steps in (550, 560, 610)] == [True, False, True]


def test_a_resumed_run_keeps_to_the_same_marks():
    ticker = Ticker(100, 250)
    assert [steps for steps in range(260, 500, 20) if ticker.due(steps)] == [300, 400]


def test_no_interval_is_always_due():
    assert all(Ticker(None, 0).due(0) for _ in range(3))


@pytest.mark.parametrize(("interval", "seconds"), [("30s", 30), ("90 sec", 90), ("10min", 600), ("1.5h", 5400), ("1d", 86_400)])
def test_time_is_due_when_it_has_passed(interval, seconds, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(settings.time, "monotonic", lambda: now[0])
    ticker = Ticker(interval, 0)
    due = []
    for passed in (0.0, seconds - 0.5, seconds + 0.5, 1.5 * seconds, 2 * seconds + 1):
        now[0] = 1000 + passed
        due.append(ticker.due(10**9))
    assert due == [False, False, True, False, True]
