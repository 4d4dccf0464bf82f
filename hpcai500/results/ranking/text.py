"""A ranking for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from hpcai500.results.columns import aligned
from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import LEVELS, Entry, Level, Unranked, benchmark_title
from hpcai500.results.ranking.examined import Examined
from hpcai500.results.ranking.ranking import Group, Ranked, Ranking
from hpcai500.results.report.words import duration, quantity, share, short

_HEADER = ("rank", "system", "organisation", "VFLOPS", "variation", "per watt", "to quality", "quality")
_RIGHT = {0, 3, 4, 5, 6, 7}
_WIDTH = 120
_INDENT = " " * 8
_MOST_PATH = 200


def ranking_lines(ranking: Ranking, level: Level | None = None, benchmark: str | None = None) -> Iterator[str]:
    """Each list, then the files without a place.

    Args:
        ranking: all of it.
        level: show its lists only.
        benchmark: show its lists only.
    """
    groups = [group for group in ranking.groups if benchmark in (None, group.benchmark)]
    for group in groups:
        yield from _group_lines(group, (level,) if level else LEVELS)
    if not groups:
        yield "No submission is ranked."
        yield ""
    if ranking.unranked:
        yield "Not ranked"
        for one in ranking.unranked:
            yield f"  {one.status:12}  {shown(one.examined.file, _MOST_PATH)}"
            yield from wrap(one.reason, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def examined_line(examined: Examined) -> str:
    """One file for the log of progress."""
    name, verification = shown(examined.file, _MOST_PATH), examined.verification
    if verification is None:
        return f"{name}: unverified: {examined.problem}"
    if verification.verdict == "refused":
        return f"{name}: refused"
    return f"{name}: verified, {'rankable' if verification.rankable else 'not rankable'}"


def _group_lines(group: Group, levels: Sequence[Level]) -> Iterator[str]:
    before: list[Ranked] = []
    for level in levels:
        standing = group.standing_in(level)
        if not standing:
            continue
        title = f"{benchmark_title(group.benchmark)}, edition {group.edition}, {level} level"
        if standing == before:
            yield f"{title}: the same list"
        else:
            yield title
            rows = [_row(one.entry, one.ranks[level]) for one in standing]
            head, *lines = aligned([_HEADER, *rows], right=_RIGHT)
            yield f"  {head}"
            for line, one in zip(lines, standing, strict=True):
                yield f"  {line}"
                yield f"{_INDENT}{_means(one.entry)}"
                claims = [f"also claimed by {claim}" for claim in one.claimed_by]
                for told in (*_doubts(one.entry), *claims):
                    yield from wrap(told, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        yield ""
        before = standing


def _row(entry: Entry, place: int) -> tuple[str, ...]:
    per_watt, seconds = entry.mean("vflops_per_watt"), entry.mean("time_to_quality_seconds")
    return (
        str(place),
        short(entry.system, 26),
        short(entry.organisation, 20),
        quantity(entry.vflops, "FLOPS"),
        share(entry.metrics["vflops"].variation),
        "unknown" if per_watt is None else quantity(per_watt, "FLOPS/W"),
        "never" if seconds is None else duration(seconds),
        quality_text(entry),
    )


def _means(entry: Entry) -> str:
    """By what it got there: too long for columns."""
    by = f"{short(entry.accelerators, 50)}; {short(entry.framework, 30)}"
    return f"level {entry.level}; {date_text(entry)}; {by}"


def _doubts(entry: Entry) -> list[str]:
    """Findings that no honest run has shown."""
    verification = entry.examined.verification
    return [f"{one.name}: {one.evidence}" for one in verification.doubts] if verification else []


def quality_text(entry: Entry) -> str:
    """Its quality with the metric's name."""
    achieved = entry.quality.achieved
    return "unknown" if achieved is None else f"{entry.quality.metric} {achieved:.4f}"


def date_text(entry: Entry) -> str:
    """The day of its submission."""
    return entry.submitted.isoformat() if entry.submitted else "unknown"


def unranked_title(one: Unranked) -> str:
    """How a file without a place is called: its system, else the file."""
    return one.system or shown(one.examined.file.name, 80)
