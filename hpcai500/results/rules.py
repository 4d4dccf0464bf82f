"""`hpcai500 rules`: the level that a recipe, a record or a campaign qualifies for, and what forces it there.

It is that of the recipe: what the code of a run changes is told by the verification of its submission.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpcai500.campaign.reading import is_campaign, read_campaign
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, RecordError, UsageError
from hpcai500.methodology.conduct import Observation, conduct
from hpcai500.methodology.rules import Judgement, judge
from hpcai500.recipe import load_recipe
from hpcai500.record import Record, read_record
from hpcai500.results.score import score_record
from hpcai500.results.verification.software import other_code
from hpcai500.rulebook import rulebook
from hpcai500.system.versions import package_code_hash

Kind = Literal["recipe", "record", "campaign"]


@dataclass(frozen=True)
class RulesReport:
    """What the rules say of one subject.

    Attributes:
        subject: as it was named.
        kind: what it is.
        benchmark: its name.
        edition: whose rules were asked.
        layers: name of each of the nine layers -> its number, from 9 down.
        judgement: the level, and the changes.
        conduct: what a run's events show; None for what is no complete run.
        reasons: why no result of it can be ranked; empty where it can.
        asked: the level that was asked for.
        other_code: of a record whose code is not what is installed here: why its level is not known; else None.
    """

    subject: str
    kind: Kind
    benchmark: str
    edition: str
    layers: Mapping[str, int]
    judgement: Judgement
    conduct: tuple[Observation, ...] | None
    reasons: tuple[str, ...]
    asked: str | None = None
    other_code: str | None = None

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why it does not qualify for the level that was asked for; empty where it does, or none was asked for."""
        if self.asked is None:
            return ()
        changes = (
            f"{one.field} is not the reference's: "
            + (f"level {one.level}" if one.level else "no level allows it")
            + (f" ({one.section})" if one.section else "")
            for one in self.judgement.beyond(self.asked)
        )
        problems = (problem for rule in self.conduct or () for problem in rule.problems)
        unknown = ("the run has not come to its end",) if self.kind == "record" and self.conduct is None else ()
        return (*changes, *problems, *unknown, *([self.other_code] if self.other_code else []))

    @property
    def exit_code(self) -> ExitCode:
        """2 where it does not qualify for the level that was asked for."""
        return ExitCode.WRONG_ANSWER if self.obstacles else ExitCode.PASS

    def document(self) -> dict[str, Any]:
        """For programs."""
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


def ask_rules(
    subject: str, overrides: Sequence[str] = (), edition: str | None = None, level: str | None = None
) -> RulesReport:
    """Judge a shipped recipe, a recipe file, the folder of a record or that of a campaign.

    Args:
        subject: its name or path.
        overrides: `table.key=value` each, for a recipe.
        edition: whose rules; None: the subject's own.
        level: that it should qualify for.

    Raises:
        RecipeError: it is no recipe, or there is no such edition.
        RecordError: it is no record or campaign, or does not hold together.
        EnvironmentLacksError: the edition's reference recipe is not what it was.
        UsageError: the edition knows no such benchmark or level, or a record is to be changed.
    """
    kind, record, tables = _read(subject, overrides)
    name, benchmark = edition or str(tables.get("edition")), str(tables.get("benchmark"))
    rules = _rules(name, benchmark, level)
    tables = {**tables, "edition": name}
    try:
        judgement = judge(tables, rules)
        observed = _observed(record, tables, rules)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise RecordError(f"{subject}: events or recipe lack something: {type(error).__name__} {error}") from error
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
        raise UsageError(f"--set: {subject} is done, and cannot be changed; give its recipe: {path / 'recipe.toml'}")
    if is_campaign(path):
        return "campaign", None, read_campaign(path).tables
    record = read_record(path)
    return "record", record, record.tables


def _rules(edition: str, benchmark: str, level: str | None) -> Mapping[str, Any]:
    rules = rulebook(edition, benchmark)
    if "reference_error" in rules:
        raise EnvironmentLacksError(rules["reference_error"])
    if "reference" not in rules:
        raise UsageError(f"edition {edition} has no benchmark {benchmark}: no level of it can be told")
    levels = rules["levels"]["order"]
    if level is not None and level not in levels:
        raise UsageError(f"--level: expected one of {', '.join(levels)}, got {level}")
    return rules


def _observed(
    record: Record | None, tables: Mapping[str, Any], rules: Mapping[str, Any]
) -> tuple[Observation, ...] | None:
    """What the events of a run show that has come to its end."""
    if record is None or not any(event["key"] == "run_stop" for event in record.events):
        return None
    return conduct(tables, rules, record.events)


def _reasons_of_record(record: Record, edition: str) -> tuple[str, ...]:
    try:
        return tuple(score_record(record.path, edition).reasons)
    except HpcAi500Error as error:
        return (str(error),)


def _reasons_of_recipe(judgement: Judgement, edition: str) -> tuple[str, ...]:
    never = [change.field for change in judgement.changes if change.level is None]
    return (f"no level of edition {edition} allows a change of {', '.join(never)}",) if never else ()


def _plain(value: Any) -> Any:
    """`value` as JSON has it: a record may hold anything that TOML can."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain else str(value)
