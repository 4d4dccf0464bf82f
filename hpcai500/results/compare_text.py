"""A comparison for a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcai500.methodology.comparison import Compared, Side
from hpcai500.results.compare import Comparison, Metric
from hpcai500.results.report.blocks import Block, Cell, Row, Section, Table, Text, Tone
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.rendering import render
from hpcai500.results.report.words import UNKNOWN, duration, listed, plain, quantity, share, short

_MOST_ROWS = 200
# A ratio as near to 1 as this is none worth a word.
_SAME = 5e-4


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What differs first, then each number and its ratio."""
    yield from _side_lines("A", comparison.a)
    yield from _side_lines("B", comparison.b)
    if comparison.problems:
        yield ""
        yield "NOT COMPARABLE"
        yield from (f"  ! {problem}" for problem in comparison.problems)
    yield ""
    yield "recipes differ in" if comparison.recipe else "recipes are the same (but for the seed)"
    for one in comparison.recipe[:_MOST_ROWS]:
        yield f"  {one.layer} {one.field:36} {_value(one.reference):28} {_value(one.value)}"
    yield ""
    yield "systems differ in" if comparison.system else "systems are the same, as far as the records tell"
    for field, a, b in comparison.system[:_MOST_ROWS]:
        yield f"  {short(field, 60):38} {short(a, 26):28} {short(b, 26)}"
    if comparison.numbers:
        yield ""
        yield f"{'':34} {'A':>22} {'B':>22} {'B/A':>8}"
        for metric, compared in comparison.numbers:
            a, b = (_with_spread(metric, one) for one in (compared.a, compared.b))
            judgement = _judgement(metric, compared) if comparison.comparable else ""
            yield f"{metric.name:34} {a:>22} {b:>22} {_ratio(compared):>8}  {judgement}".rstrip()


def comparison_page(comparison: Comparison) -> str:
    """The same as a page in the report's style."""
    sections = [
        Section("The two sides", [_side_table(comparison)]),
        Section("What differs", list(_differences(comparison))),
        Section(
            "Numbers", [_number_table(comparison)] if comparison.numbers else [Text("Neither has a result.", "flag")]
        ),
    ]
    return render("compare.html.j2", title="HPC AI500: two sides compared", comparison=comparison, sections=sections)


def _side_lines(name: str, subjects: Sequence[Subject]) -> Iterator[str]:
    for subject in subjects:
        yield f"{name}           {subject.path}  {subject.verdict}" + (
            f": {subject.problem}" if subject.problem else ""
        )
        if subject.result and subject.result.why_no_vflops:
            yield f"            VFLOPS not shown: {subject.result.why_no_vflops}"


def _side_table(comparison: Comparison) -> Table:
    rows: list[Row] = [
        (
            side,
            short(subject.path, 200),
            short(subject.record.tables.get("benchmark", ""), 20),
            f"{subject.world_size:,}",
            Cell(subject.verdict, "good" if subject.verdict == "PASS" else "bad"),
            short(subject.problem or ""),
        )
        for side, subjects in (("A", comparison.a), ("B", comparison.b))
        for subject in subjects[:_MOST_ROWS]
    ]
    return Table("A and B", ("side", "record", "benchmark", "ranks", "verdict", "why"), rows, (3,))


def _differences(comparison: Comparison) -> Iterator[Block]:
    if comparison.recipe:
        recipe = [
            (str(one.layer), one.field, _value(one.reference), _value(one.value))
            for one in comparison.recipe[:_MOST_ROWS]
        ]
        left_out = max(0, len(comparison.recipe) - _MOST_ROWS)
        yield Table("Recipes differ in", ("layer", "field", "A", "B"), recipe, (0,), left_out)
    else:
        yield Text("The recipes are the same (but for the seed).", "good")
    if comparison.system:
        left_out = max(0, len(comparison.system) - _MOST_ROWS)
        rows = [tuple(short(text, 60) for text in row) for row in comparison.system[:_MOST_ROWS]]
        yield Table("Systems differ in", ("field", "A", "B"), rows, left_out=left_out)
    else:
        yield Text("The systems are the same, as far as the records tell.", "good")


def _number_table(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for metric, compared in comparison.numbers:
        judgement = _judgement(metric, compared) if comparison.comparable else ""
        tone: Tone = "good" if "better" in judgement else "bad" if "worse" in judgement else ""
        a, b = (_with_spread(metric, one) for one in (compared.a, compared.b))
        rows.append((metric.name.replace("_", " "), a, b, _ratio(compared), Cell(judgement, tone)))
    return Table(
        "B against A; ± is one standard deviation of the runs", ("", "A", "B", "B/A", "so B is"), rows, (1, 2, 3)
    )


def _with_spread(metric: Metric, side: Side | None) -> str:
    if side is None:
        return UNKNOWN
    shown = _number(metric, side.mean)
    if side.deviation is None or not side.mean:
        return shown
    return f"{shown} ±{side.deviation / abs(side.mean):.1%}".replace("%", " %")


def _number(metric: Metric, value: float) -> str:
    if metric.unit == "s":
        return duration(value)
    if metric.unit == "fraction":
        return share(value)
    if metric.unit in ("FLOPS", "FLOP", "J", "W", "FLOPS/W"):
        return quantity(value, metric.unit)
    counted = metric.unit in ("ranks", "nodes", "restarts")
    return f"{plain(value, ',.6g')} {'' if counted else metric.unit}".strip()


def _ratio(compared: Compared) -> str:
    return "" if compared.ratio is None else f"{compared.ratio:.3f}"


def _judgement(metric: Metric, compared: Compared) -> str:
    """Better or worse, and whether the runs' own spread allows to say so."""
    if compared.ratio is None or not metric.better:
        return ""
    if abs(compared.ratio - 1) < _SAME:
        return "the same"
    word = "better" if (compared.ratio > 1) == (metric.better == "higher") else "worse"
    if compared.exceeds_spread is None:
        return word
    return f"{word}, beyond the spread" if compared.exceeds_spread else "within the spread"


def _value(value: object) -> str:
    return "-" if value is None else short(listed(value), 60)
