"""How fast a peer is: what its script asks, what it counts, and what it says last of all."""

from __future__ import annotations

import argparse
import time


class Pace:
    """Agent steps per second once the warm-up is over, which begins with the first report: start-up does not count."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.warm_up, self.seconds = options.warm_up, options.seconds
        self.begin: float | None = None
        self.steps = 0
        self.counted: list[tuple[float, int]] = []

    def report(self, steps: int) -> bool:
        """Notes that so many steps in all have been learned from; gives whether the time is up.

        A number that was reported before is no new report, so that seconds are counted from one update to another.
        """
        if steps > self.steps:
            now = time.perf_counter()
            self.begin = self.begin or now
            if now - self.begin >= self.warm_up:
                self.counted.append((now, steps))
            self.steps = steps
        return bool(self.counted) and self.counted[-1][0] - self.counted[0][0] >= self.seconds

    def say(self) -> None:
        (begin, before), *_, (end, after) = self.counted
        print(f"{(after - before) / (end - begin):.1f}", flush=True)


def parser(about: str | None) -> argparse.ArgumentParser:
    """Takes what every script takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="that count")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before them, from the first update on")
    return parser
