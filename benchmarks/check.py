"""Fails where a hot loop costs more than it did: its counts against those in benchmarks/results/check.json.

    python benchmarks/check.py [LOOP ...]     # all loops, or these
    python benchmarks/check.py LOOP --where   # the functions and operators that a loop's cost is made of
    python benchmarks/check.py --write        # what the loops cost now is what they may cost from now on

Nothing is timed (see counting.py), so the figures are the same on a slow or busy machine. They do depend on the versions of
Python and of the libraries that the loops go through.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import common
import torch
from counting import Counts, count
from loops import LOOPS, Loop
from rich.console import Console
from rich.table import Table

TOLERANCE = 0.02
SLACK_BYTES = 4352
"""Bytes more that are no change: by a few bytes, one piece of memory of about a page is counted or not."""
ACROSS_VERSIONS = 0.25
"""The tolerance where Python or a library is of another minor version than the stored figures are of."""
LIBRARIES = ("torch", "numpy", "gymnasium")
REMEDY = """\
Mend what was added: `python benchmarks/check.py {loop} --where` shows what the cost is made of, to be compared with the same of an \
older commit. Where it is worth its price, `python benchmarks/check.py --write` stores it; say why in the commit."""

Figures = dict[str, float]
"""What a loop costs, by measure."""


class Change(NamedTuple):
    """One figure of one loop, then and now."""

    loop: str
    measure: str
    stored: float | None  # None: nothing is
    measured: float

    @property
    def share(self) -> float:
        """How much more it is, as a share of what it was."""
        if self.stored == self.measured:
            return 0.0
        return self.measured / self.stored - 1 if self.stored else float("inf")

    def told(self) -> list[str]:
        """Both figures and the change."""
        return ["nothing" if self.stored is None else f"{self.stored:,.10g}", f"{self.measured:,.10g}", f"{self.share:+.1%}"]


# --- measuring ------------------------------------------------------------------------------------------------------


def counted(name: str) -> tuple[Loop, Counts]:
    """A loop, and what it cost."""
    with LOOPS[name]() as loop:
        return loop, count(loop.work)


def figures(name: str) -> Figures:
    """What a loop costs per unit."""
    loop, counts = counted(name)
    totals = {"instructions": counts.instructions.total(), "operators": counts.operators.total(), "bytes": counts.bytes}
    if loop.writes_files:
        del totals["bytes"]
    found = {measure: round(total / loop.units, 2) for measure, total in totals.items()} | loop.more
    return {f"{measure} per {loop.unit}": value for measure, value in found.items()}


def compared(stored: dict[str, Figures], measured: dict[str, Figures]) -> Iterator[Change]:
    """Every figure that is, or was, more than nothing."""
    for loop, now in measured.items():
        for measure, value in now.items():
            before = stored.get(loop, {}).get(measure)
            if before or value:
                yield Change(loop, measure, before, value)


def versions(about: dict[str, Any]) -> dict[str, str]:
    """The minor versions that counts depend on."""
    found = {"Python": about["machine"]["python"]} | {name: about["versions"][name] for name in LIBRARIES}
    return {name: ".".join(version.split(".")[:2]) for name, version in found.items()}


# --- telling --------------------------------------------------------------------------------------------------------


def report(stored: dict[str, Any], measured: dict[str, Figures]) -> int:
    """Prints every change, and what to do about it; the exit status."""
    then, now = versions(stored), versions(common.about())
    tolerance = TOLERANCE if then == now else ACROSS_VERSIONS
    changes = list(compared(stored["loops"], measured))
    worse = [change for change in changes if change.share > tolerance and not _slight(change)]
    console = Console(soft_wrap=True)
    console.print(_table(changes, worse))
    if then != now:
        differing = ", ".join(f"{name} {then[name]} there and {now[name]} here" for name in then if then[name] != now[name])
        print(f"Counts are compared across versions, {differing}: {ACROSS_VERSIONS:.0%} more is allowed, not {TOLERANCE:.0%}.")
    for change in worse:
        before, after, share = change.told()
        print(f"{change.loop}: {after} {change.measure}, where {before} is stored: {share}, and {tolerance:.0%} is allowed")
    if worse:
        print(REMEDY.format(loop=worse[0].loop))
    elif any(change.share < -tolerance for change in changes):
        print("Some of it costs less than is stored: `python benchmarks/check.py --write` keeps it so.")
    return 1 if worse else 0


def _slight(change: Change) -> bool:
    return change.measure.startswith("bytes") and change.stored is not None and change.measured - change.stored <= SLACK_BYTES


def _table(changes: Sequence[Change], worse: Sequence[Change]) -> Table:
    table = Table("loop", "", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("stored", "measured", "change"):
        table.add_column(column, justify="right")
    last = ""
    for change in changes:
        table.add_row(change.loop if change.loop != last else "", change.measure, *change.told(), style="bold red" if change in worse else None)
        last = change.loop
    return table


def show(name: str, most: int = 25) -> None:
    """Prints what a loop's cost is made of."""
    loop, counts = counted(name)
    for what, parts in (("instructions", counts.instructions), ("operators", counts.operators)):
        print(f"{name}: {parts.total() / loop.units:,.10g} {what} per {loop.unit}")
        for part, number in parts.most_common(most):
            print(f"{number / loop.units:10,.1f}  {part}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=", ".join(LOOPS))
    parser.add_argument("--where", action="store_true", help="show the functions and operators that the cost is made of")
    parser.add_argument("--write", action="store_true", help="store what the loops cost now")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.loops) - LOOPS.keys():
        parser.error(f"no such loop: {', '.join(sorted(unknown))}; there are {', '.join(LOOPS)}")
    if asked.write and asked.loops:
        parser.error("--write stores all loops, so that all are of the same versions: name none")
    path = common.RESULTS / "check.json"
    if not (asked.write or asked.where or path.exists()):
        parser.error(f"{path} does not exist: --write stores what the loops cost now")
    names = asked.loops or list(LOOPS)
    if asked.where:
        for name in names:
            show(name)
        return 0
    measured = {name: figures(name) for name in names}
    if asked.write:
        common.save("check", {"loops": measured})
    return report(json.loads(path.read_text()), measured)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
