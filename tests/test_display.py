"""What a run shows while it trains."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from modrl import display
from modrl.display import Display
from modrl.metrics import COLUMNS


def row(steps, **more):
    return dict.fromkeys(COLUMNS) | {"env_steps": steps, "updates": steps // 40, "episodes": 3, "steps_per_second": 500.0} | more


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def shown(rows, clock, seconds=10.0, total=10_000, **console):
    """What is printed for rows that come `seconds` apart."""
    stream = io.StringIO()
    with Display(Console(file=stream, width=200, **console), "a run", total) as panel:
        for item in rows:
            panel.show(item)
            clock[0] += seconds
    return stream.getvalue()


def test_plain_lines_say_where_the_run_is(clock):
    rows = [
        row(1000, episode_return=1.5, policy_lag_mean=1.0, policy_lag_max=2, **{"loss/policy": -0.25}),
        row(3000, episode_return=2.5, policy_lag_mean=1.5, policy_lag_max=3, eval_return=7.25, **{"loss/policy": 0.5}),
    ]
    lines = shown(rows, clock).splitlines()
    assert lines[0] == "a run: starting"
    assert [line.split() for line in lines[1:]] == [
        ["1,000", "of", "10,000", "steps", "500", "steps/s", "0:18", "left", "return", "1.5", "lag", "1", "(max", "2)", "loss/policy", "-0.25"],
        [
            "3,000",
            "of",
            "10,000",
            "steps",
            "200",
            "steps/s",
            "0:35",
            "left",
            "return",
            "2.5",
            "eval",
            "7.25",
            "lag",
            "1.5",
            "(max",
            "3)",
            "loss/policy",
            "0.5",
        ],
    ]


def test_what_is_not_known_yet_is_a_dash(clock):
    assert "return –  lag – (max –)" in shown([row(40)], clock)


def test_lines_are_few_but_the_last_row_is_always_shown(clock):
    lines = shown([row(1000 * i) for i in range(1, 11)], clock, seconds=1.0).splitlines()[1:]
    assert [int(line.split()[0].replace(",", "")) for line in lines] == [1000, 6000, 10_000]


def test_one_line_stays_one_line_however_narrow_the_output(clock):
    text = shown([row(1000, **{f"loss/{name}": 1.0 for name in "abcdefghijklmnopqrstuvwxyz"})], clock, force_terminal=False)
    assert len(text.splitlines()) == 2


def test_a_terminal_gets_a_panel(clock):
    text = shown([row(2000, episode_return=12.5, **{"loss/policy": 0.125})], clock, force_terminal=True)
    for part in ("a run", "2,000 of 10,000", "12.5", "0.125"):
        assert part in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600, "1:00:00"), (359_999, "99:59:59"), (864_000, "10 days")]
)
def test_the_time_left_is_read_easily(seconds, text):
    assert display._clock(seconds) == text
