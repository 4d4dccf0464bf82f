"""Where the time of a step goes: over all ranks, rank by rank, and who holds the others up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hpcai500.methodology.communication import rank_name
from hpcai500.results.report.bars import Bar, bars
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Fold, Key, Row, Section, Table, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.words import count, duration, number, share, short, tables

# Beyond so many ranks, the slowest and the quantiles tell more than all of them.
MOST_RANKS = 20
_PARTS = {
    "data_wait_seconds": "data wait",
    "compute_seconds": "compute",
    "communication_wait_seconds": "communication",
    "other_seconds": "other",
}
# Compute in blue; what is lost in warmer colours.
_COLOURS = (2, 1, 4, 6)
_QUANTILES = {"least": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "most": 1.0}


def step_section(subject: Subject) -> Section:
    """The split of a step into data wait, compute, communication and other, as far as the record knows it."""
    ranks = _ranks(subject.last("steps").get("ranks"))
    source = f"Input: {subject.result.input}." if subject.result and getattr(subject.result, "input", None) else ""
    if not ranks:
        return Section("Where the time goes", _by_epochs(subject, source))
    total = {part: sum(rank[part] for rank in ranks) for part in _PARTS}
    whole = sum(rank["seconds"] for rank in ranks)
    blocks: list[Block] = [Text(f"{_sentence(total, whole)} {source}".strip())]
    blocks.append(Charts([_split_chart(ranks, total, whole)]))
    blocks.append(Fold("Seconds of each rank", [_rank_table(ranks)]))
    if len(ranks) > MOST_RANKS:
        blocks.append(_quantile_table(ranks))
    return Section("Where the time goes", blocks)


def straggler_section(subject: Subject) -> Section | None:
    """Which ranks are slow, by the time that each needs for itself; None where one rank ran or nothing was measured."""
    value = subject.last("communication")
    ranks = [rank for rank in tables(value.get("ranks")) if number(rank.get("own_seconds"))]
    if len(ranks) < 2:
        return None
    slow = [rank for rank in ranks if rank.get("straggler")]
    middle = statistics.median(rank["own_seconds"] for rank in ranks)
    if slow:
        names = ", ".join(short(rank_name(rank), 60) for rank in slow[:MOST_RANKS])
        more = f" and {len(slow) - MOST_RANKS:,} more" if len(slow) > MOST_RANKS else ""
        slow_down = f"{'slows' if len(slow) == 1 else 'slow'} the others down"
        said = Text(f"{count(len(slow), 'rank')} of {len(ranks):,} {slow_down}: {names}{more}.", "bad")
    elif value.get("stragglers") is None:
        said = Text("Too few steps to tell who is slow.", "soft")
    else:
        said = Text(f"None of {len(ranks):,} ranks slows the others down.", "good")
    worst = sorted(ranks, key=lambda rank: -rank["own_seconds"])[:MOST_RANKS]
    return Section("Stragglers", [said, Charts([_own_chart(worst, middle, len(ranks))]), _own_table(worst, len(ranks))])


def _ranks(found: Any) -> list[dict[str, Any]]:
    """Ranks whose numbers are all there."""
    return [
        dict(rank)
        for rank in tables(found)
        if number(rank.get("seconds")) and all(number(rank.get(part)) is not None for part in _PARTS)
    ]


def _sentence(total: Mapping[str, float], whole: float) -> str:
    parts = ", ".join(f"{name} {share(total[part] / whole)}" for part, name in _PARTS.items())
    return f"Of the time of all training steps, mean over the ranks: {parts}."


def _by_epochs(subject: Subject, source: str) -> list[Block]:
    """What the epochs say of runs that did not come to their end, or are older than the split."""
    epochs = [value for value in subject.values("epoch_stop") if number(value.get("seconds"))]
    if not epochs:
        return [Text("No epoch was trained to its end, so nothing is known of the time of steps.", "soft")]
    whole = sum(value["seconds"] for value in epochs)
    known = {part: sum(number(value.get(part)) or 0.0 for value in epochs) for part in _PARTS}
    measured = [part for part in _PARTS if any(number(value.get(part)) is not None for value in epochs)]
    parts = {part: known[part] for part in measured}
    rest = max(0.0, whole - sum(parts.values()))
    rest_name = "other" if len(measured) > 1 else "compute, communication and other (not told apart in this record)"
    names = [*(_PARTS[part] for part in measured), rest_name]
    shares = [seconds / whole for seconds in (*parts.values(), rest)]
    said = ", ".join(f"{name} {share(part)}" for name, part in zip(names, shares, strict=True))
    colours = [*(_COLOURS[list(_PARTS).index(part)] for part in measured), 6]
    drawing = bars(
        "Where the time of training steps goes", f"{said}.", _percent(), [Bar("all ranks", _hundred(shares), colours)]
    )
    keys = [Key(name, colour) for name, colour in zip(names, colours, strict=True)]
    return [
        Text(f"Of the time of all training steps: {said}. {source}".strip()),
        Charts([Chart("Parts of step time", drawing, "mean over the ranks", keys)]),
    ]


def _split_chart(ranks: Sequence[Mapping[str, Any]], total: Mapping[str, float], whole: float) -> Chart:
    shown = _slowest(ranks)
    rows = [] if len(ranks) == 1 else [Bar("all ranks", _hundred([total[part] / whole for part in _PARTS]), _COLOURS)]
    rows += [
        Bar(short(rank_name(rank), 30), _hundred([rank[part] / rank["seconds"] for part in _PARTS]), _COLOURS)
        for rank in shown
    ]
    note = "" if len(shown) == len(ranks) else f"the {len(shown)} slowest of {len(ranks):,} ranks, by their own time"
    drawing = bars("Parts of step time", f"{_sentence(total, whole)} {note}".strip(), _percent(), rows)
    keys = [Key(name, colour) for name, colour in zip(_PARTS.values(), _COLOURS, strict=True)]
    return Chart("Parts of step time", drawing, note, keys)


def _slowest(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All of few ranks in their order; of many, those whose own time is longest."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    return sorted(ranks, key=lambda rank: -(rank["data_wait_seconds"] + rank["compute_seconds"]))[:MOST_RANKS]


def _rank_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    shown = _slowest(ranks)
    rows = [
        (
            str(rank.get("rank")),
            short(rank.get("host", ""), 60),
            str(rank.get("steps")),
            duration(rank["seconds"]),
            *(f"{duration(rank[part])} ({share(rank[part] / rank['seconds'])})" for part in _PARTS),
        )
        for rank in shown
    ]
    return Table(
        "Sums over the training steps of each rank since the last start"
        + (", the slowest first" if len(shown) < len(ranks) else ""),
        ("rank", "host", "steps", "all", *_PARTS.values()),
        rows,
        numeric=(0, 2, 3, 4, 5, 6, 7),
        left_out=len(ranks) - len(shown),
    )


def _quantile_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    ordered = {part: sorted(rank[part] / rank["seconds"] for rank in ranks) for part in _PARTS}
    rows = [
        (name, *(share(ordered[part][round(at * (len(ranks) - 1))]) for part in _PARTS))
        for name, at in _QUANTILES.items()
    ]
    caption = f"Quantiles over {len(ranks):,} ranks: share of a rank's step time, each column by itself"
    return Table(caption, ("quantile", *_PARTS.values()), rows, numeric=(1, 2, 3, 4))


def _own_chart(worst: Sequence[Mapping[str, Any]], middle: float, of: int) -> Chart:
    rows = [
        Bar(
            short(rank_name(rank), 30),
            [rank["own_seconds"] * 1e3],
            [4 if rank.get("straggler") else 1],
            duration(rank["own_seconds"]) + (" ◀" if rank.get("straggler") else ""),
        )
        for rank in worst
    ]
    axis = spanning("own time of a step: data wait and compute, ms", [rank["own_seconds"] * 1e3 for rank in worst])
    said = f"Median over the steps of each rank; the dashed line is the median of {of:,} ranks, {duration(middle)}."
    drawing = bars("Own time of each rank", said, axis, rows, middle * 1e3)
    keys = [Key("rank", 1), Key("median of the ranks", 0, "dashes")]
    if any(rank.get("straggler") for rank in worst):
        keys.append(Key("straggler (◀)", 4))
    return Chart("Own time of the slowest ranks", drawing, said, keys)


def _own_table(worst: Sequence[Mapping[str, Any]], of: int) -> Fold:
    rows: list[Row] = [
        (
            str(rank.get("rank")),
            short(rank.get("host", ""), 60),
            *(duration(rank.get(f"{part}_seconds")) for part in ("step", "data_wait", "compute", "communication_wait")),
            duration(rank["own_seconds"]),
            Cell("straggler", "bad") if rank.get("straggler") else "",
        )
        for rank in worst
    ]
    shown = Table(
        "Medians over the steps of each rank, the slowest first",
        ("rank", "host", "step", "data wait", "compute", "communication wait", "own time", ""),
        rows,
        numeric=(0, 2, 3, 4, 5, 6),
        left_out=of - len(worst),
    )
    return Fold("The slowest ranks in numbers", [shown])


def _percent() -> Axis:
    return Axis("share of step time, %", 0, 100)


def _hundred(shares: Sequence[float]) -> list[float]:
    return [part * 100 for part in shares]
