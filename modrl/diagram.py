"""A scheme as a picture in text: who works for whom, what travels between them, and who waits for whom.

From top to bottom: collectors, inference servers, gradient workers, and where gradients are applied. What there is several
of is drawn as a stack; what each of several gradient workers has is drawn inside one of them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from modrl.config import counted
from modrl.scheme.scheme import Scheme
from modrl.scheme.settings import Servers, Workers

BOX = 48  # columns of a box
SIDE = 32  # columns of a box that an arrow passes on its right
LEFT, MIDDLE, RIGHT = 4, 14, 34  # where the arrows are
LABEL = 38  # columns of the label of the arrow on the right

Lines: TypeAlias = list[str]


def draw(scheme: Scheme.Config) -> str:
    """The picture, at most 80 columns wide."""
    workers = scheme.gradient.workers
    own = [*_collection(scheme), *_learner(scheme)]
    below = _central(scheme) if scheme.update == "central" else _replicas(scheme)
    if workers > 1:
        arrows = [LEFT, RIGHT] if scheme.update == "central" else [LEFT, MIDDLE, RIGHT]
        own = _stack(own, f" {workers} gradient workers ({scheme.gradient.place}), each: ", arrows)
        below = [f"  {line}" for line in below]
    return "\n".join(line.rstrip() for line in [*own, *below, "", *_bounds(scheme)])


# --- the parts, from top to bottom ---


def _collection(scheme: Scheme.Config) -> Lines:
    """The collectors, the inference servers if there are any, and the arrows below."""
    collection, total = scheme.collection, scheme.gradient.workers * scheme.collection.workers
    several = collection.workers > 1
    in_turn = ", one after the other" if several and collection.place == "here" else ""
    text = [
        f"{counted(collection.workers, 'collector')} ({collection.place}){in_turn}",
        f"1/{total} of the environments{' each' if several else ''}" if total > 1 else "all environments",
    ]
    if collection.preemption is not None:
        needed = math.ceil(collection.preemption.fraction_workers * total)
        text.append(
            f"preemption: once {needed} of all {total} collectors {'is' if needed == 1 else 'are'} done, the others stop "
            f"at {100 * collection.preemption.fraction_samples:g}% of their steps or later"
        )
    if collection.per_worker:
        text.append(f"per_worker: {len(collection.per_worker)} kinds of settings, by turns")
    weights = ["weights"] + ([f"broadcast_interval {collection.broadcast_interval}"] if collection.broadcast_interval > 1 else [])
    rollouts = _rollouts(scheme)
    if isinstance(collection.inference, Servers):
        servers = _servers(collection.inference, collection.place)
        return [
            *_box(text, BOX, bottom={LEFT: "▲", MIDDLE: "┬", RIGHT: "┬"}, stacked=several),
            *_arrows({LEFT: ["answers"], MIDDLE: ["observations"], RIGHT: []}),
            *_beside(servers, rollouts),
            *_arrows({LEFT: weights, RIGHT: rollouts[len(servers) :]}),
        ]
    return [*_box(text, BOX, bottom={LEFT: "▲", RIGHT: "┬"}, stacked=several), *_arrows({LEFT: weights, RIGHT: rollouts})]


def _rollouts(scheme: Scheme.Config) -> Lines:
    """How a gradient worker takes its collectors' rollouts."""
    collection = scheme.collection
    label = [_gathered("rollouts", collection, "each is awaited")]
    if collection.ahead:
        label.append(f"ahead {collection.ahead}: collectors work on meanwhile")
    if collection.max_lag is not None:
        label.append(f"max_lag {collection.max_lag}: at most {counted(collection.max_lag, 'pull')} behind")
    if collection.max_staleness is not None:
        label.append(f"max_staleness {collection.max_staleness}: older are dropped")
    return _wrapped(label, LABEL)


def _gathered(what: str, group: Workers, all_are: str) -> str:
    if group.gather == "all":
        return f"{what}, gather all: {all_are}" if group.workers > 1 else what
    if group.gather == 0:
        return f"{what}, gather 0: those that are ready"
    return f"{what}, gather {group.gather}: the first {'' if group.gather == 1 else f'{group.gather} '}done"


def _servers(settings: Servers, place: str) -> Lines:
    """The inference servers of one gradient worker."""
    text = [
        f"{counted(settings.replicas, 'inference server')} ({place})",
        f"batch: {'all' if settings.batch is None else settings.batch}, or after {settings.timeout_ms:g} ms",
    ]
    if settings.device is not None:
        text.append(f"device: {settings.device}")
    return _box(text, SIDE, top={LEFT: "┴", MIDDLE: "▼"}, bottom={LEFT: "▲"}, stacked=settings.replicas > 1)


def _learner(scheme: Scheme.Config) -> Lines:
    """What a gradient worker does itself."""
    alone = [] if scheme.gradient.workers > 1 else [f"1 gradient worker ({scheme.gradient.place})"]
    if scheme.update == "central":
        steps, bottom = "storage → losses → gradients", {LEFT: "▲", RIGHT: "┬"}
    else:
        steps, bottom = "storage → losses → gradients → optimisers", {LEFT: "▲", MIDDLE: "┬", RIGHT: "┬"}
    return _box([*alone, steps], BOX, top={LEFT: "┴", RIGHT: "▼"}, bottom=bottom)


def _central(scheme: Scheme.Config) -> Lines:
    """The updater that applies gradients."""
    gradient = scheme.gradient
    label = [_gathered("gradients", gradient, "added up")]
    if gradient.gather != "all":
        label += ["they are added up"] if gradient.gather > 1 else []
        label += [f"max_lag {gradient.max_lag}: at most {counted(gradient.max_lag or 0, 'pull')} behind"]
    return [
        *_arrows({LEFT: ["weights"], RIGHT: _wrapped(label, LABEL)}),
        *_box(["updater (here)", "gradients → optimisers → weights"], BOX, top={LEFT: "┴", RIGHT: "▼"}),
    ]


def _replicas(scheme: Scheme.Config) -> Lines:
    """How gradient workers with optimisers of their own agree, and the updater that only counts."""
    every = scheme.average_every
    back, forth = ("sum", "gradients") if every is None else ("mean", "weights")
    text = [f"all-reduce {'at each step' if every in (None, 1) else f'every {every} steps'}", f"among {counted(scheme.gradient.workers, 'worker')}"]
    return [
        *_arrows({LEFT: [back], MIDDLE: [forth], RIGHT: ["counts, metrics"]}),
        *_beside(_box(text, SIDE, top={LEFT: "┴", MIDDLE: "▼"}), []),
        *_box(["updater (here)", "version and env steps; no weights"], BOX, top={RIGHT: "▼"}),
    ]


def _bounds(scheme: Scheme.Config) -> Lines:
    bounds = {"policy lag": (scheme.lag_bound(), "round"), "gradient lag": (scheme.gradient_lag_bound(), "applied gradient")}
    return [f"{name}: {_bound(bound, unit)}" for name, (bound, unit) in bounds.items()]


def _bound(bound: int | None, unit: str) -> str:
    if bound is None:
        return "without bound"
    return f"at most {counted(bound, unit)}" if bound else "none"


# --- lines and corners ---


def _box(text: Sequence[str], width: int, top: Mapping[int, str] = {}, bottom: Mapping[int, str] = {}, stacked: bool = False) -> Lines:
    """A box around lines, broken where they are too long. `top`, `bottom`: marks in its borders, by column; `stacked`: with its like behind it."""
    rows = [f"│ {line.ljust(width - 4)} │" for line in _wrapped(text, width - 4)]
    if not stacked:
        return [_border("┌", "┐", width, top), *rows, _border("└", "┘", width, bottom)]
    behind = " " + _border("┌", "┐", width, {column - 1: mark for column, mark in top.items()})
    rows = [f"{row}│" for row in rows[:-1]] + [f"{rows[-1][:-1]}├┘"]
    return [behind, _border("┌", "┐", width, {1: "┴"}) + "│", *rows, _border("└", "┘", width, bottom)]


def _wrapped(lines: Sequence[str], width: int) -> Lines:
    return [part for line in lines for part in textwrap.wrap(line, width)]


def _border(left: str, right: str, width: int, marks: Mapping[int, str]) -> str:
    return left + "".join(marks.get(column, "─") for column in range(1, width - 1)) + right


def _arrows(labels: Mapping[int, Sequence[str]]) -> Lines:
    """Lines down the page at these columns, each with its label to its right."""
    lines = []
    for index in range(max(1, *map(len, labels.values()))):
        line = ""
        for column, label in sorted(labels.items()):
            line = line.ljust(column) + "│" + (f" {label[index]}" if index < len(label) else "")
        lines.append(line)
    return lines


def _beside(box: Lines, label: Sequence[str]) -> Lines:
    """A narrow box with the arrow that passes it, and what of the arrow's label fits beside it."""
    return [f"{line.ljust(RIGHT)}│ {text}" for line, text in zip(box, [*label, *[""] * len(box)], strict=False)]


def _stack(inside: Lines, title: str, arrows: Sequence[int]) -> Lines:
    """A frame with its like behind it; arrows at these columns of `inside` leave it below."""
    width = max(BOX, *map(len, inside)) + 4
    rows = [f"│ {line.ljust(width - 4)} │" for line in inside]
    front = "┌┴" + title.center(len(title), "─").ljust(width - 3, "─") + "┐│"
    rows = [f"{row}│" for row in rows[:-1]] + [f"{rows[-1][:-1]}├┘"]
    return [" " + _border("┌", "┐", width, {}), front, *rows, _border("└", "┘", width, {column + 2: "┼" for column in arrows})]
