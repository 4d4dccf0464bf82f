"""What the rules say, for a terminal: the nine layers drawn, then every change in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcai500.editions import load_edition
from hpcai500.methodology.rules import Change
from hpcai500.results.columns import aligned
from hpcai500.results.report.words import count
from hpcai500.results.rules import RulesReport
from hpcai500.streams import spelt_out

_HEAD = ("layer", "field", "reference", "value", "level", "section")
_MOST_ROWS = 200
_MOST_LETTERS = 36
_NONE = "none"


def report_lines(report: RulesReport) -> Iterator[str]:
    """All of a report."""
    judgement = report.judgement
    yield f"{report.kind:11} {spelt_out(report.subject, 200)}"
    yield f"benchmark   {report.benchmark}, edition {report.edition}"
    forcing = [spelt_out(change.field) for change in judgement.forcing]
    by = "" if report.kind == "recipe" else " by its recipe"
    yield f"level       {judgement.level or _NONE}{by}" + (f" (forced by {_named(forcing)})" if forcing else "")
    yield from ([f"            {report.other_code}"] if report.other_code else [])
    held = "its recipe can be ranked; a result needs runs too" if report.kind == "recipe" else "yes"
    yield "rankable    " + (f"no: {spelt_out(report.reasons[0], 200)}" if report.reasons else held)
    yield from (f"            {spelt_out(reason, 200)}" for reason in report.reasons[1:_MOST_ROWS])
    yield ""
    yield from _drawing(report)
    if judgement.changes:
        yield ""
        yield from _table(judgement.changes)
    if judgement.absent:
        yield ""
        yield f"not stated, as the recipe is older, and so the reference's: {', '.join(judgement.absent)}"
    if report.conduct is not None:
        yield ""
        yield "from the events"
        for rule in report.conduct:
            yield f"  {rule.layer} {rule.name:24} {'holds' if rule.holds else 'DOES NOT HOLD':14} {rule.section}"
            yield from (f"      {spelt_out(problem, 200)}" for problem in rule.problems)
    if report.asked is not None:
        yield ""
        yield f"qualifies for {report.asked}{'' if report.kind == 'recipe' else ' by its recipe'}: " + (
            "no" if report.obstacles else "yes"
        )
        yield from (f"  {spelt_out(obstacle, 200)}" for obstacle in report.obstacles[:_MOST_ROWS])


def overview_lines(edition: str) -> Iterator[str]:
    """The rules of `edition` in short: what may change at which level, a line for each layer."""
    rules = load_edition(edition)
    order, levels = rules["levels"]["order"], rules["levels"]
    yield f"Edition {edition}" + (f", which extends {rules['extends']}" if "extends" in rules else "")
    yield ""
    rows = []
    for table, layer in levels["layers"].items():
        first = order.index(layer["level"]) if layer["level"] in order else len(order)
        allowed = ("free to change" if place >= first else "fixed" for place in range(len(order)))
        exceptions = levels["fields"].get(table, {})
        own = count(len(exceptions), "field") if exceptions else ""
        rows.append((str(layer["layer"]), table, *allowed, own, layer["section"]))
    yield from aligned([("layer", "table", *order, "with rules of their own", "section"), *rows])
    yield ""
    yield "Every field: docs/rules.md, or --json. What a recipe or record qualifies for: hpcai500 rules ic/reference"
    yield "(hpcai500 rules --help)"


def _drawing(report: RulesReport) -> Iterator[str]:
    """A bar for each layer: the higher the level that its changes force, the longer."""
    levels = report.judgement.levels
    for table, number in sorted(report.layers.items(), key=lambda layer: -layer[1]):
        changes = [change for change in report.judgement.changes if change.field.partition(".")[0] == table]
        if any(change.level is None for change in changes):
            level, bar = "at no level", "X" * len(levels)
        elif changes:
            level = max((str(change.level) for change in changes), key=levels.index)
            bar = "#" * (1 + levels.index(level))
        else:
            level, bar = "untouched", ""
        told = f"{level:12} {count(len(changes), 'change')}" if changes else level
        yield f"  {number} {table:16} [{bar:{len(levels)}}]  {told}"


def _table(changes: Sequence[Change]) -> Iterator[str]:
    rows = [
        (
            str(change.layer or "-"),
            spelt_out(change.field, 60),
            _value(change.reference),
            _value(change.value),
            change.level or _NONE,
            change.section or "-",
        )
        for change in changes[:_MOST_ROWS]
    ]
    yield from (f"  {line}" for line in aligned([_HEAD, *rows]))
    if len(changes) > _MOST_ROWS:
        yield f"  and {len(changes) - _MOST_ROWS} more"
    yield from dict.fromkeys(
        f"  {spelt_out(change.field, 60)}: {change.why}" for change in changes[:_MOST_ROWS] if _is_odd(change)
    )


def _is_odd(change: Change) -> bool:
    """Whether a field is there that should not be, or is not there that should."""
    return change.reference is None or change.value is None


def _named(fields: Sequence[str]) -> str:
    most = 4
    return ", ".join(fields[:most]) + (f" and {len(fields) - most} more" if len(fields) > most else "")


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return spelt_out(value, _MOST_LETTERS)
