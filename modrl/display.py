"""What a run shows while it trains: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from modrl.metrics import Row

LINE_SECONDS = 5.0
"""Seconds between two plain lines."""


class Display:
    """Shows rows as they come. `title` names the run; `total` is the env steps it goes to."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self.console = console
        self.title = title
        self.total = total
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        self._line_at = 0.0
        self._shown: Row | None = None
        self._first: tuple[float, float] | None = None  # steps and seconds at the first row

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update(Text(f"{self.title}: starting …", style="dim"))
        else:
            self.console.print(f"{self.title}: starting", highlight=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._shown is not None:
            self.console.print(self._line(self._shown), highlight=False, soft_wrap=True)

    def show(self, row: Row) -> None:
        """The newest row."""
        seconds = time.monotonic()
        if self._first is None:
            self._first = (float(row["env_steps"] or 0), seconds)
        if self._live is not None:
            self._live.update(self._panel(row))
        elif seconds - self._line_at >= LINE_SECONDS:
            self._line_at, self._shown = seconds, None
            self.console.print(self._line(row), highlight=False, soft_wrap=True)
        else:
            self._shown = row

    def _speed(self, row: Row) -> tuple[float, float]:
        """Steps per second since the first row, and the seconds left at that speed."""
        assert self._first is not None
        steps, seconds = float(row["env_steps"] or 0) - self._first[0], time.monotonic() - self._first[1]
        speed = steps / seconds if steps and seconds > 0.2 else float(row["steps_per_second"] or 0)
        return speed, max(0.0, self.total - float(row["env_steps"] or 0)) / max(speed, 1e-9)

    def _line(self, row: Row) -> str:
        speed, left = self._speed(row)
        losses = "  ".join(f"{name} {_number(value)}" for name, value in row.items() if name.startswith("loss/"))
        tested = f"  eval {_number(row['eval_return'])}" if row["eval_return"] is not None else ""
        return (
            f"{row['env_steps']:>11,} of {self.total:,} steps  {speed:,.0f} steps/s  {_clock(left)} left  "
            f"return {_number(row['episode_return'])}{tested}  lag {_number(row['policy_lag_mean'])} (max {_number(row['policy_lag_max'])})  {losses}"
        )

    def _panel(self, row: Row) -> Table:
        speed, left = self._speed(row)
        panel = Table.grid(padding=(0, 3))
        panel.add_row(
            Text(self.title, style="bold"), ProgressBar(total=self.total, completed=min(float(row["env_steps"] or 0), self.total), width=40)
        )
        grid = Table.grid(padding=(0, 3))
        grid.add_row(
            _pair("steps", f"{row['env_steps']:,} of {self.total:,}"), _pair("steps/s", f"{speed:,.0f}"), _pair("left", _clock(left)),
            _pair("updates", f"{row['updates']:,}"),
        )  # fmt: skip
        grid.add_row(
            _pair("return", _number(row["episode_return"])), _pair("episodes", f"{row['episodes']:,}"),
            _pair("lag", f"{_number(row['policy_lag_mean'])} (max {_number(row['policy_lag_max'])})"), _pair("eval", _number(row["eval_return"])),
        )  # fmt: skip
        losses = [_pair(name, _number(value)) for name, value in row.items() if name.startswith("loss/")]
        for start in range(0, len(losses), 4):
            grid.add_row(*losses[start : start + 4])
        whole = Table.grid()
        whole.add_row(panel)
        whole.add_row(grid)
        return whole


def _pair(name: str, value: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), value)


def _number(value: float | int | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _clock(seconds: float) -> str:
    if seconds > 100 * 3600:
        return f"{seconds / 86400:.0f} days"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
