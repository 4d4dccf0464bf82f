"""A repetition held against its original: one table, one verdict (V2.0 section 3.3; docs/replication.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from hpcai500.errors import ExitCode, UsageError
from hpcai500.methodology.equivalence import (
    INCONCLUSIVE,
    NOT_REPLICATED,
    REPLICATED,
    Equivalence,
    Verdict,
    equivalence,
    quality_tolerance,
)
from hpcai500.methodology.intervals import CONFIDENCE
from hpcai500.methodology.result import DEFAULT_EXPONENT
from hpcai500.results.compare import Metric, metrics_of
from hpcai500.results.replication.likeness import likeness
from hpcai500.results.replication.side import Side
from hpcai500.results.same_runs import shared_runs
from hpcai500.results.score import TRIAL_METRICS
from hpcai500.rulebook import rulebook

SCHEMA = "hpcai500-replication-1"
NO_REPETITION: Literal["not a repetition"] = "not a repetition"
TOLERANCE = 0.05
# Speed, in the forms in which it is published. Time to quality comes in whole epochs, and energy from any meter: told.
_SPEED = ("vflops", "flops", "images_per_second", "seconds")

Overall = Verdict | Literal["not a repetition"]


@dataclass(frozen=True)
class Row:
    """One metric: the numbers, and whether the verdict depends on them."""

    metric: Metric
    found: Equivalence
    decides: bool


@dataclass(frozen=True)
class Replication:
    """What came out.

    Attributes:
        one: the original.
        other: the repetition.
        tolerance: share of the original's mean that speed may differ by.
        quality_tolerance: the same of quality.
        same_system: whether speed must come out the same.
        rows: the metrics that both sides have.
        obstacles: why it is no repetition.
        notes: what differed.
    """

    one: Side
    other: Side
    tolerance: float
    quality_tolerance: float
    same_system: bool
    rows: tuple[Row, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not `replicated`."""
        if self.obstacles:
            return self.obstacles
        rows = [row for row in self.rows if row.decides and row.found.verdict != REPLICATED]
        return (*self._level_reasons(), *(f"{row.metric.name}: {row.found.verdict}" for row in rows))

    @property
    def verdict(self) -> Overall:
        """The worst of what decides."""
        if self.obstacles:
            return NO_REPETITION
        verdicts = [row.found.verdict for row in self.rows if row.decides]
        unknown = self.one.no_level or self.other.no_level
        if NOT_REPLICATED in verdicts or (not unknown and self.one.level != self.other.level):
            return NOT_REPLICATED
        return REPLICATED if set(verdicts) == {REPLICATED} and not unknown else INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """0 for `replicated`; 2 for all else: whoever asks has no proof."""
        return ExitCode.PASS if self.verdict == REPLICATED else ExitCode.WRONG_ANSWER

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "same_system": self.same_system,
            "tolerance": self.tolerance,
            "quality_tolerance": self.quality_tolerance,
            "confidence": CONFIDENCE,
            "original": _side_document(self.one),
            "repetition": _side_document(self.other),
            "metrics": [_row_document(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def _level_reasons(self) -> tuple[str, ...]:
        """That the levels are not the same, or that nobody can tell."""
        ours, theirs = self.one, self.other
        unknown = [f"{side.path}: {side.no_level}" for side in (ours, theirs) if side.no_level]
        if unknown or ours.level == theirs.level:
            return tuple(unknown)
        return (f"the level is {ours.level} in the original, {theirs.level} in the repetition",)


def compare_sides(
    one: Side, other: Side, tolerance: float = TOLERANCE, tolerance_of_quality: float | None = None
) -> Replication:
    """Whether `other` repeats `one`.

    Args:
        one: the original.
        other: the repetition.
        tolerance: relative difference of speed that is none.
        tolerance_of_quality: the same of quality; None: what changes the penalty coefficient by `tolerance`.

    Raises:
        UsageError: both are the same runs, runs of other seeds learnt the same, or a tolerance is none.
    """
    for number in (tolerance, tolerance_of_quality):
        if number is not None and not 0 < number < 1:
            raise UsageError(f"tolerance: expected a share between 0 and 1, got {number}")
    _require_runs_of_its_own(one, other)
    alike = likeness(one, other)
    rules = rulebook(one.campaign.edition, one.campaign.benchmark)
    exponent = float(rules.get("exponent", DEFAULT_EXPONENT))
    of_quality = quality_tolerance(tolerance, exponent) if tolerance_of_quality is None else tolerance_of_quality
    decides = (*_SPEED, *_qualities(one)) if alike.same_system else tuple(_qualities(one))
    rows = tuple(_rows(one, other, tolerance, of_quality, decides))
    return Replication(one, other, tolerance, of_quality, alike.same_system, rows, alike.obstacles, alike.notes)


def _require_runs_of_its_own(one: Side, other: Side) -> None:
    """Refuse what of the original's runs is told again.

    With the same seed a machine that computes alike repeats losses, weights and checkpoints, but no times; with another
    seed it repeats nothing.
    """
    ours, theirs = one.runs, other.runs
    found = shared_runs([ours, theirs])[1].get(0)
    if found and found.measured:
        _refuse(one, other, found.runs, found.what, "")
    copied: set[str] = set()
    what: dict[str, None] = {}
    for seed in dict.fromkeys(other.seeds):
        left = {name: ours[name] for name, of in zip(ours, one.seeds, strict=True) if of != seed}
        right = {name: theirs[name] for name, of in zip(theirs, other.seeds, strict=True) if of == seed}
        if same := shared_runs([left, right])[1].get(0):
            copied |= same.runs
            what.update(dict.fromkeys(same.what))
    if copied:
        _refuse(one, other, copied, tuple(what), " under other seeds")


def _refuse(one: Side, other: Side, runs: Collection[str], what: Sequence[str], how: str) -> NoReturn:
    raise UsageError(
        f"{other.path}: {len(runs)} of {len(other.records)} runs are those of {one.path}{how} (the same "
        f"{', '.join(what)}): a repetition needs runs of its own"
    )


def _qualities(side: Side) -> dict[str, None]:
    return dict.fromkeys(result.quality.metric for result in side.results)


def _rows(one: Side, other: Side, tolerance: float, of_quality: float, decides: Sequence[str]) -> Iterator[Row]:
    qualities = _qualities(one)
    wanted = (*qualities, *TRIAL_METRICS)
    metrics = {metric.name: metric for metric in metrics_of([*one.results, *other.results])}
    for name in wanted:
        metric = metrics[name]
        ours, theirs = ([metric.of(result) for result in side.results] for side in (one, other))
        left, right = ([value for value in values if value is not None] for values in (ours, theirs))
        # A metric that a run does not have would be a mean of the lucky ones.
        if not left or not right or len(left) < len(ours) or len(right) < len(theirs):
            continue
        allowed = of_quality if name in qualities else tolerance
        yield Row(metric, equivalence(left, right, allowed), name in decides)


def _row_document(row: Row) -> dict[str, Any]:
    found = row.found
    return {
        "name": row.metric.name,
        "unit": row.metric.unit,
        "decides": row.decides,
        "original": asdict(found.one),
        "repetition": asdict(found.other),
        "ratio": found.ratio,
        "difference": asdict(found.difference) if found.difference else None,
        "limit": found.limit,
        "verdict": found.verdict,
    }


def _side_document(side: Side) -> dict[str, Any]:
    return {
        "path": str(side.path),
        "campaign": side.campaign.identity,
        "system": side.manifest.system if side.manifest else None,
        "organisation": side.manifest.organisation if side.manifest else None,
        "signer": side.verification.signer if side.verification else None,
        "verified": side.verification is not None,
        "level": side.level,
        "runs": len(side.results),
        "planned": len(side.campaign.trials),
        "attempts": len(side.campaign.attempts),
        "seeds": list(side.seeds),
    }
