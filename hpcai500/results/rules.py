"""`hpcai500 rules`: the level that a recipe, a record or a campaign qualifies for, and the changes that force it.

The level comes from the recipe; changes of the code are found when a submission is verified.
`python -m hpcai500.results.rules docs/rules.md` updates the table of docs/rules.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from hpcai500.campaign.journal import is_campaign, read_campaign
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.layers import RECIPE_TYPES
from hpcai500.methodology.conduct import Observation, conduct
from hpcai500.methodology.rules import Change, LevelReport, find_level, row_of
from hpcai500.recipe import editions, load_edition, load_recipe, rulebook
from hpcai500.record import Record, read_record
from hpcai500.results.score import score
from hpcai500.results.verification.facts import other_code
from hpcai500.streams import escaped
from hpcai500.system.software import package_code_hash
from hpcai500.text import aligned, count

Kind = Literal["recipe", "record", "campaign"]


@dataclass(frozen=True)
class RulesReport:
    """What the rules say about one subject.

    Attributes:
        subject: as named by the user.
        edition: whose rules apply.
        layers: name of each of the nine layers -> its number, from 9 down.
        conduct: what a run's events show; None unless the run is complete.
        reasons: why no result of it can be ranked; empty if it can.
        asked: the level that it should qualify for; None if none was given.
        other_code: why the level of a record is unknown (its code is not the one installed here); else None.
    """

    subject: str
    kind: Kind
    benchmark: str
    edition: str
    layers: Mapping[str, int]
    judgement: LevelReport
    conduct: tuple[Observation, ...] | None
    reasons: tuple[str, ...]
    asked: str | None = None
    other_code: str | None = None

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why it does not qualify for the level `asked`; empty if it does, or no level was given."""
        if self.asked is None:
            return ()
        changes = (
            f"{one.field} differs from the reference: "
            + (f"level {one.level}" if one.level else "no level allows it")
            + (f" ({one.section})" if one.section else "")
            for one in self.judgement.beyond(self.asked)
        )
        problems = (problem for rule in self.conduct or () for problem in rule.problems)
        unknown = ("the run is not finished",) if self.kind == "record" and self.conduct is None else ()
        return (*changes, *problems, *unknown, *([self.other_code] if self.other_code else []))

    @property
    def exit_code(self) -> ExitCode:
        """WRONG_ANSWER if it does not qualify for the level `asked`."""
        return ExitCode.WRONG_ANSWER if self.obstacles else ExitCode.PASS

    def document(self) -> dict[str, Any]:
        judgement = self.judgement
        return {
            "subject": self.subject,
            "kind": self.kind,
            "benchmark": self.benchmark,
            "edition": self.edition,
            "level": judgement.level,
            "rankable": not self.reasons,
            "reasons": list(self.reasons),
            "changes": [_plain(asdict(change)) for change in judgement.changes],
            "forcing": [change.field for change in judgement.forcing],
            "absent": list(judgement.absent),
            "conduct": None
            if self.conduct is None
            else [{**asdict(rule), "problems": list(rule.problems), "holds": rule.holds} for rule in self.conduct],
            "asked": self.asked,
            "qualifies": None if self.asked is None else not self.obstacles,
            "obstacles": list(self.obstacles),
        }


def check_rules(
    subject: str, overrides: Sequence[str] = (), edition: str | None = None, level: str | None = None
) -> RulesReport:
    """Apply the rules to a shipped recipe, a recipe file, or the folder of a record or campaign.

    Args:
        overrides: `table.key=value` each, for a recipe only.
        edition: whose rules apply; None for the subject's own.
        level: that it should qualify for.

    Raises:
        RecipeError: it is not a recipe, or the edition does not exist.
        RecordError: it is not a record or campaign, or is inconsistent.
        EnvironmentLacksError: the edition's reference recipe was changed.
        UsageError: the edition does not have the benchmark or level, or overrides are given for a record.
    """
    kind, record, tables = _read(subject, overrides)
    name, benchmark = edition or str(tables.get("edition")), str(tables.get("benchmark"))
    rules = _rules(name, benchmark, level)
    tables = {**tables, "edition": name}
    try:
        judgement = find_level(tables, rules)
        observed = _observed(record, tables, rules)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise RecordError(f"{subject}: events or recipe are incomplete: {type(error).__name__} {error}") from error
    return RulesReport(
        subject=subject,
        kind=kind,
        benchmark=benchmark,
        edition=name,
        layers={table: row["layer"] for table, row in rules["levels"]["layers"].items()},
        judgement=judgement,
        conduct=observed,
        reasons=_reasons_of_record(record, name) if record else _reasons_of_recipe(judgement, name),
        asked=level,
        other_code=other_code(record, judgement.level, package_code_hash()) if record else None,
    )


def _read(subject: str, overrides: Sequence[str]) -> tuple[Kind, Record | None, Mapping[str, Any]]:
    path = Path(subject)
    if not path.is_dir():
        return "recipe", None, load_recipe(subject, overrides).model_dump(mode="json")
    if overrides:
        raise UsageError(f"--set: {subject} is a folder of runs; give its recipe instead: {path / 'recipe.toml'}")
    if is_campaign(path):
        return "campaign", None, read_campaign(path).tables
    record = read_record(path)
    return "record", record, record.tables


def _rules(edition: str, benchmark: str, level: str | None) -> Mapping[str, Any]:
    rules = rulebook(edition, benchmark)
    if "reference_error" in rules:
        raise EnvironmentLacksError(rules["reference_error"])
    if "reference" not in rules:
        raise UsageError(f"edition {edition} has no benchmark {benchmark}, and so no level for it")
    levels = rules["levels"]["order"]
    if level is not None and level not in levels:
        raise UsageError(f"--level: expected one of {', '.join(levels)}, got {level}")
    return rules


def _observed(
    record: Record | None, tables: Mapping[str, Any], rules: Mapping[str, Any]
) -> tuple[Observation, ...] | None:
    """What the events of a finished run show; None if it is not one."""
    if record is None or not any(event["key"] == "run_stop" for event in record.events):
        return None
    return conduct(tables, rules, record.events)


def _reasons_of_record(record: Record, edition: str) -> tuple[str, ...]:
    try:
        return tuple(score(record, edition).reasons)
    except HpcAi500Error as error:
        return (str(error),)


def _reasons_of_recipe(judgement: LevelReport, edition: str) -> tuple[str, ...]:
    never = [change.field for change in judgement.changes if change.level is None]
    return (f"no level of edition {edition} allows a change of {', '.join(never)}",) if never else ()


def _plain(value: Any) -> Any:
    """`value` as JSON allows it; a record may contain any value of TOML."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain else str(value)


# ----------------------------------------------------------------------------------------------------
# A report for a terminal: a drawing of the nine layers, then a line for each change.


_HEAD = ("layer", "field", "reference", "value", "level", "section")
_MOST_ROWS = 200
_MOST_LETTERS = 36
_NONE = "none"


def report_lines(report: RulesReport) -> Iterator[str]:
    judgement = report.judgement
    yield f"{report.kind:11} {escaped(report.subject, 200)}"
    yield f"benchmark   {report.benchmark}, edition {report.edition}"
    forcing = [escaped(change.field) for change in judgement.forcing]
    details = [] if report.kind == "recipe" else ["from the recipe"]
    details += [f"forced by {_named(forcing)}"] if forcing else []
    yield f"level       {judgement.level or _NONE}" + (f" ({'; '.join(details)})" if details else "")
    yield from ([f"            {report.other_code}"] if report.other_code else [])
    rankable = "yes, with runs of this recipe" if report.kind == "recipe" else "yes"
    yield "rankable    " + (f"no: {escaped(report.reasons[0], 200)}" if report.reasons else rankable)
    yield from (f"            {escaped(reason, 200)}" for reason in report.reasons[1:_MOST_ROWS])
    yield ""
    yield from _drawing(report)
    if judgement.changes:
        yield ""
        yield from _table(judgement.changes)
    if judgement.absent:
        yield ""
        yield f"not in this older recipe, so as in the reference: {', '.join(judgement.absent)}"
    if report.conduct is not None:
        yield ""
        yield "from the events"
        for rule in report.conduct:
            yield f"  {rule.layer} {rule.name:24} {'pass' if rule.holds else 'FAIL':14} {rule.section}"
            yield from (f"      {escaped(problem, 200)}" for problem in rule.problems)
    if report.asked is not None:
        yield ""
        recipe = "" if report.kind == "recipe" else "recipe "
        yield f"{recipe}qualifies for {report.asked}: {'no' if report.obstacles else 'yes'}"
        yield from (f"  {escaped(obstacle, 200)}" for obstacle in report.obstacles[:_MOST_ROWS])


def overview_lines(edition: str) -> Iterator[str]:
    """A summary of the rules of `edition`: what may change at which level, a line for each layer."""
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
    yield from aligned([("layer", "table", *order, "with their own rules", "section"), *rows])
    yield ""
    yield "Every field: docs/rules.md, or --json. The level of a recipe or record: hpcai500 rules ic/reference"
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
        text = f"{level:12} {count(len(changes), 'change')}" if changes else level
        yield f"  {number} {table:16} [{bar:{len(levels)}}]  {text}"


def _table(changes: Sequence[Change]) -> Iterator[str]:
    rows = [
        (
            str(change.layer or "-"),
            escaped(change.field, 60),
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
        f"  {escaped(change.field, 60)}: {change.why}"
        for change in changes[:_MOST_ROWS]
        # A field that exists only in the recipe, or only in the reference.
        if change.reference is None or change.value is None
    )


def _named(fields: Sequence[str]) -> str:
    most = 4
    return ", ".join(fields[:most]) + (f" and {len(fields) - most} more" if len(fields) > most else "")


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return escaped(value, _MOST_LETTERS)


# ----------------------------------------------------------------------------------------------------
# An edition's rules in Markdown: the meaning of each field, and the lowest level at which it may change.


BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
EDITION = "v2.0"


def rules_lines(edition: str = EDITION) -> Iterator[str]:
    """The rules of `edition` in Markdown: the fixed values of each benchmark, then a table for each layer."""
    rules = load_edition(edition)
    levels = rules["levels"]
    benchmarks = rules["benchmarks"]
    keys = dict.fromkeys(key for fixed in benchmarks.values() for key in fixed)
    yield f"Edition {edition}" + (f", which extends {rules['extends']}" if "extends" in rules else "") + "."
    yield ""
    yield f"| fixed | {' | '.join(benchmarks)} |"
    yield f"|---|{'---|' * len(benchmarks)}"
    for key in keys:
        if key != "joined_fields":
            yield f"| `{key}` | {' | '.join(_cell(fixed.get(key)) for fixed in benchmarks.values())} |"
    for table in sorted(levels["layers"], key=lambda name: -levels["layers"][name]["layer"]):
        yield from _layer_lines(table, levels)
    # Tables of newer editions only.
    for name in editions() if edition == EDITION else ():
        newer = load_edition(name)["levels"]
        for table in newer["layers"].keys() - levels["layers"].keys():
            yield from _layer_lines(table, newer, f", from edition {name} on")


def _layer_lines(table: str, levels: Mapping[str, Any], since: str = "") -> Iterator[str]:
    """A layer's fields, grouped by the levels that may change them; fields with the same meaning share a row."""
    layer, order = levels["layers"][table], levels["order"]
    groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for name, meaning, whose in _fields(table):
        row = row_of(levels, table, name)
        fields = groups.setdefault((_at(row, order), row["section"], whose), {})
        fields.setdefault(meaning, []).append(f"`{name}`")
    yield ""
    yield f"### Layer {layer['layer']}: {table}{since}"
    yield ""
    yield "| field | meaning |"
    yield "|---|---|"
    for (at, section, whose), fields in groups.items():
        yield f"| **{at}**{whose} | {section} |"
        yield from (f"| {', '.join(names)} | {meaning} |" for meaning, names in fields.items())


def page_with_table(page: str) -> str:
    """`page` with a new table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(rules_lines()) + f"\n\n{END}{after}"


def _fields(table: str) -> Iterator[tuple[str, str, str]]:
    """Name, meaning and benchmarks (empty: all of them) of every field of a layer."""
    found: dict[tuple[str, str], list[str]] = {}
    for benchmark, recipe in RECIPE_TYPES.items():
        annotation = recipe.model_fields[table].annotation
        # An optional table is a union with None.
        layer = next(one for one in (annotation, *get_args(annotation)) if isinstance(one, type))
        assert issubclass(layer, BaseModel)
        for name, field in layer.model_fields.items():
            found.setdefault((name, field.description or ""), []).append(benchmark)
    for (name, meaning), of in found.items():
        yield name, meaning, "" if len(of) == len(RECIPE_TYPES) else f" ({', '.join(of)})"


def _at(row: Mapping[str, Any], order: Sequence[str]) -> str:
    named: dict[str, list[str]] = {}
    for value, level in row.get("values", {}).items():
        named.setdefault(level, []).append(f"`{value}`")
    exceptions = (f"to {', '.join(values)}: {_from(level, order)}" for level, values in named.items())
    return "; ".join([_from(row["level"], order), *exceptions])


def _from(level: str, order: Sequence[str]) -> str:
    if level not in order:
        return level
    return "at every level" if level == order[0] else "at " + " and ".join(order[order.index(level) :])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main(page: Path) -> None:
    """Update the table of `page`."""
    write_atomically(page, page_with_table(page.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
