"""Compares a repetition with its original: one table, one verdict (V2.0 section 3.3; docs/replication.md).

Each side is a verified submission or a campaign on disk. Speed decides only if the systems are the same.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, NoReturn

from hpcai500.campaign.journal import Campaign, is_campaign, read_campaign
from hpcai500.campaign.standing import ODD, SEED, Outcome, read_outcome, standing, world
from hpcai500.errors import ExitCode, RecordError, UsageError, WrongAnswerError
from hpcai500.files import why_not
from hpcai500.methodology.result import DEFAULT_EXPONENT, Result, system_identity
from hpcai500.methodology.statistics import (
    CONFIDENCE,
    INCONCLUSIVE,
    NOT_REPLICATED,
    REPLICATED,
    Equivalence,
    Spread,
    Verdict,
    equivalence,
    quality_tolerance,
)
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import Difference, global_batch, rulebook, table_differences
from hpcai500.record import Record, iterate
from hpcai500.results.compare import Metric, metrics_of
from hpcai500.results.score import TRIAL_METRICS
from hpcai500.results.submission.claim import level_of
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.verification.campaign import not_compared
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.copies import Runs, run_facts, shared_runs
from hpcai500.results.verification.facts import other_code
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.results.verification.verify import verify_submission
from hpcai500.system.software import package_code_hash
from hpcai500.text import UNKNOWN, aligned, quantity, share, short

# ----------------------------------------------------------------------------------------------------
# One side of a replication.


@dataclass(frozen=True)
class Side:
    """The finished runs of one campaign.

    Attributes:
        path: the submission, or the campaign's folder.
        records: of the finished runs, in order of their trials; `results` are computed from their events.
        reasons: why the campaign is not rankable.
        level: the lowest level that allows all runs: from verification for a submission, from the recipes for a
            campaign on disk; None if none does, or if it is unknown (`no_level`).
        no_level: why the level is unknown; None if the code of the runs is that of this installation.
        verification: of the submission; None, as is `manifest`, for the user's own campaign on disk.
    """

    path: Path
    campaign: Campaign
    records: tuple[Record, ...]
    results: tuple[Result, ...]
    reasons: tuple[str, ...]
    level: str | None
    no_level: str | None = None
    verification: Verification | None = None
    manifest: Manifest | None = None

    @property
    def tables(self) -> Mapping[str, Any]:
        """The recipe, with the seed of the first trial."""
        return self.campaign.tables

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(int(record.tables["hyperparameters"]["seed"]) for record in self.records)

    @property
    def runs(self) -> Runs:
        """The facts that identify each finished run, by the names of their records."""
        return {record.path.name: run_facts(record) for record in self.records}


def read_side(path: Path, signers: Path | None = None, tracker: Tracker = silent) -> Side:
    """The submission, or the campaign, at `path`.

    Raises:
        UsageError: it is neither, or has no finished run.
        RecordError: the campaign's journal, or a record of a finished run, cannot be read.
        WrongAnswerError: verification refuses the submission.
    """
    if is_campaign(path):
        return _of_campaign(read_campaign(path))
    if path.is_dir():
        raise UsageError(f"{path}: neither a submission nor a campaign: a campaign's folder holds campaign.jsonl")
    return read_submission(path, signers, tracker)


def read_submission(path: Path, signers: Path | None = None, tracker: Tracker = silent) -> Side:
    """The submission in the file `path`, verified.

    Raises:
        UsageError: there is no such file.
        WrongAnswerError: verification refuses it.
    """
    kept: list[Context] = []

    def keep(context: Context) -> Iterable[Finding]:
        kept.append(context)
        return ()

    verification = verify_submission(path, signers=signers, more_checks=[keep], tracker=tracker)
    if verification.verdict != "verified" or not kept:
        failed = verification.failures
        first = f"{failed[0].name}: {failed[0].evidence}" if failed else "it cannot be read"
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise WrongAnswerError(f"{path}: refused: {first}{more}; see `hpcai500 verify {path}`")
    context = kept[0]
    results = verification.results
    scored = [(record, results[name]) for name, record in context.done.items() if name in results]
    return _side(path, context.campaign, scored, verification.reasons, not_compared(context), verification)


def _of_campaign(campaign: Campaign) -> Side:
    rules = rulebook(campaign.edition, campaign.benchmark)
    outcomes = [read_outcome(campaign, attempt, rules) for attempt in campaign.done()]
    scored = [_scored(one) for one in outcomes]
    level, ours = level_of([result for _, result in scored]), package_code_hash()
    unknown = next((reason for record, _ in scored if (reason := other_code(record, level, ours))), None)
    return _side(campaign.path, campaign, scored, standing(campaign).reasons, unknown)


def _scored(outcome: Outcome) -> tuple[Record, Result]:
    if outcome.record is None or outcome.result is None:
        raise RecordError(f"{outcome.attempt.name}: {outcome.error or 'its record is not complete'}")
    return outcome.record, outcome.result


def _side(
    path: Path,
    campaign: Campaign,
    scored: Sequence[tuple[Record, Result]],
    reasons: Sequence[str],
    no_level: str | None,
    verification: Verification | None = None,
) -> Side:
    if not scored:
        raise UsageError(f"{path}: no finished run: there is nothing to compare")
    records, results = (tuple(one) for one in zip(*scored, strict=True))
    manifest = verification.manifest if verification else None
    level = verification.level if verification else level_of(results)
    known = None if no_level else level
    side = Side(path, campaign, records, results, tuple(reasons), known, no_level, verification, manifest)
    try:
        # Read once here what is used later, as a recipe in plain tables may contain anything.
        for record in records:
            global_batch(record.tables)
        _ = side.seeds, global_batch(side.tables)
    except ODD as error:
        raise RecordError(f"{path}: its recipe is incomplete: {type(error).__name__} {error}") from error
    return side


# ----------------------------------------------------------------------------------------------------
# The data of an original: their fingerprints, and whether `hpcai500 data make` can make them again.


_KINDS = {"content_fingerprint": "content", "fingerprint": "list of files"}


def data_facts(record: Record) -> Mapping[str, Any]:
    """The run's event `dataset`; empty if there is none."""
    last = next(iterate(reversed(record.events), "dataset"), None)
    value = last["value"] if last else None
    return value if isinstance(value, dict) else {}


def fingerprints_of(record: Record) -> dict[str, str]:
    """Fingerprints of content and list of files; the content has one only if it was checked."""
    facts = data_facts(record)
    return {kind: str(facts[key]) for key, kind in _KINDS.items() if facts.get(key)}


def require_data(original: Side, data: Path | None) -> str | None:
    """A warning if the data are not given, but hpcai500 can make them.

    Raises:
        UsageError: the user must give the folder.
    """
    record = original.records[0]
    name = original.tables["problem"]["dataset"]
    if data is not None:
        if data.exists() and not data.is_dir():
            raise UsageError(f"--data {data}: {why_not('folder', data)}; give the folder of {name}")
        why = why_not("folder", data)
        return f"--data {data}: {why}; it must exist on the nodes of the runs" if why else None
    known_by = next(iter(fingerprints_of(record).values()), "unknown")[:16]
    if not data_facts(record).get("synthetic"):
        raise UsageError(
            f"the original trained on {name} (fingerprint {known_by}…), which hpcai500 cannot make: give the folder "
            "of the same data with --data DIR"
        )
    line = make_line(record, original.tables, "DATA") or "hpcai500 data make"
    return (
        f"without --data: the original trained on synthetic data (fingerprint {known_by}…): make the same data with "
        f"`{line}`, and give them to every run (`--data DATA`), as the guide explains"
    )


def make_line(record: Record, tables: Mapping[str, Any], folder: str) -> str | None:
    """The command that makes the synthetic set of `record` in `folder`; None if the set is not synthetic.

    Seed and layout are not in a record, so the command has the defaults; the fingerprint shows whether they were used.
    """
    facts, problem = data_facts(record), tables.get("problem")
    benchmark = tables.get("benchmark")
    if not facts.get("synthetic"):
        return None
    try:
        if benchmark == "ic":
            options = _images(facts)
        elif benchmark == "ewa":
            options = _years(facts, problem)
        else:
            return None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    words = (f"{option} {shlex.quote(str(value))}" for option, value in options.items())
    return " ".join([f"hpcai500 data make {benchmark} {folder}", *words])


def _images(facts: Mapping[str, Any]) -> dict[str, object]:
    classes = int(facts["classes"])
    return {
        "--classes": classes,
        "--train-per-class": _each(facts["training_samples"], classes),
        "--val-per-class": _each(facts["evaluation_samples"], classes),
    }


def _years(facts: Mapping[str, Any], problem: Any) -> dict[str, object]:
    spans = [_span(problem[key]) for key in ("training_years", "evaluation_years")]
    height, width = map(int, facts["grid"])
    return {
        "--years": f"{min(first for first, _ in spans)}-{max(last for _, last in spans)}",
        "--images-per-year": _each(facts["training_samples"], spans[0][1] - spans[0][0] + 1),
        "--height": height,
        "--width": width,
    }


def _span(years: Any) -> tuple[int, int]:
    first, last = str(years).split("-") if isinstance(years, str) else (years[0], years[-1])
    return int(first), int(last)


def _each(samples: Any, groups: int) -> int:
    """How many samples are in each group; raises ValueError if groups differ."""
    whole, rest = divmod(int(samples), groups)
    if rest or not whole:
        raise ValueError("groups of different sizes: not a set of `hpcai500 data make`")
    return whole


# ----------------------------------------------------------------------------------------------------
# Whether two campaigns did the same work, and whether on the same system.


# A recipe's fields up to this layer describe the system: hardware, operating system, communication, accelerators.
HIGHEST_SYSTEM_LAYER = 4
# With another number of accelerators, changes of these keep the global batch, and so the mathematics of an update.
BATCH_FIELDS = ("hyperparameters.batch_size", "hyperparameters.accumulation_steps")
_SOFTWARE = ("image", "code", "plug-in", "software versions")
_WORLD = {"world_size": "ranks", "nodes": "nodes", "backend": "backend"}


@dataclass(frozen=True)
class Differences:
    """The differences between two sides.

    Attributes:
        obstacles: why one is not a repetition of the other, a sentence each.
        same_system: whether speed must be the same.
        notes: other differences, a sentence each.
    """

    obstacles: tuple[str, ...]
    same_system: bool
    notes: tuple[str, ...]


def differences(one: Side, other: Side) -> Differences:
    """The differences in work and systems between two sides."""
    found = [one for one in table_differences(other.tables, one.tables) if one.field != SEED]
    other_system = [*_hardware_differences(one.records[0], other.records[0]), *_world_differences(one, other)]
    allowed = [difference for difference in found if _is_of_the_system(difference)]
    obstacles = [
        *(_sentence(difference) for difference in found if not _is_of_the_system(difference)),
        *_batch_obstacle(one.tables, other.tables),
        *_data_obstacles(one.records, other.records),
    ]
    notes = [
        *(_sentence(difference) for difference in allowed),
        *other_system,
        *_software_differences(one.records[0], other.records[0]),
        *_seed_notes(one, other),
        *_rank_notes(one, other),
    ]
    return Differences(tuple(obstacles), not allowed and not other_system, tuple(notes))


def _is_of_the_system(difference: Difference) -> bool:
    return 0 < difference.layer <= HIGHEST_SYSTEM_LAYER or difference.field in BATCH_FIELDS


def _sentence(difference: Difference) -> str:
    return f"{difference.field} is {_both(difference.reference, difference.value)}"


def _both(ours: object, theirs: object) -> str:
    return f"{ours} in the original, {theirs} in the repetition"


def _batch_obstacle(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = global_batch(one), global_batch(other)
    if ours != theirs:
        yield (
            f"the global batch is {_both(ours, theirs)}: choose {' and '.join(BATCH_FIELDS)} so that batch x "
            f"accumulation x accelerators is {ours}"
        )


def _data_obstacles(ours: Sequence[Record], theirs: Sequence[Record]) -> Iterator[str]:
    kinds = [dict.fromkeys(kind for record in side for kind in fingerprints_of(record)) for side in (ours, theirs)]
    # The content decides; if it was not checked, there is only the fingerprint of the list of files.
    for kind in (kind for kind in kinds[0] if kind in kinds[1]):
        left, right = (
            {found[kind] for record in side if kind in (found := fingerprints_of(record))} for side in (ours, theirs)
        )
        if left != right:
            yield f"different data: the fingerprint is {_both(_listed(left), _listed(right))}"
        return


def _listed(fingerprints: set[str]) -> str:
    return ", ".join(f"{one[:16]}…" for one in sorted(fingerprints))


def _hardware_differences(one: Record, other: Record) -> Iterator[str]:
    left, right = (system_identity(record.system) for record in (one, other))
    for what in ("processors", "accelerators"):
        ours, theirs = (_counted(side[what]) for side in (left, right))
        if ours != theirs:
            yield f"{what}: {_both(_devices(ours), _devices(theirs))}"


def _counted(names: Sequence[Any]) -> Counter[str]:
    flat = [name for names_of in names for name in (names_of if isinstance(names_of, list) else [names_of])]
    return Counter(map(str, flat))


def _devices(names: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


def _world_differences(one: Side, other: Side) -> Iterator[str]:
    left, right = world(one.records[0]), world(other.records[0])
    for key, word in _WORLD.items():
        if key in left and key in right and left[key] != right[key]:
            yield f"{word}: {_both(left[key], right[key])}"


def _software_differences(one: Record, other: Record) -> Iterator[str]:
    left, right = (system_identity(record.system) for record in (one, other))
    for what in _SOFTWARE:
        if _first(left[what]) != _first(right[what]):
            yield f"{what}: {_both(_first(left[what]), _first(right[what]))}"
    ours, theirs = (world(record).get("library") for record in (one, other))
    if None not in (ours, theirs) and ours != theirs:
        yield f"library: {_both(ours, theirs)}"


def _first(found: Any) -> Any:
    """Versions are listed for each node; they are the same on all."""
    return found[0] if isinstance(found, list) and found and isinstance(found[0], list) else found


def _seed_notes(one: Side, other: Side) -> Iterator[str]:
    shared = len(set(one.seeds) & set(other.seeds))
    if shared:
        yield (
            f"{shared} seeds are the same on both sides: such runs are not independent, and their intervals are wider "
            "than necessary"
        )


def _rank_notes(one: Side, other: Side) -> Iterator[str]:
    for reason in dict.fromkeys([*one.reasons, *other.reasons]):
        both = reason in one.reasons and reason in other.reasons
        who = "neither is" if both else f"the {'original' if reason in one.reasons else 'repetition'} is not"
        yield f"{who} rankable: {reason}"


# ----------------------------------------------------------------------------------------------------
# The comparison and its verdict.


SCHEMA = "hpcai500-replication-1"
NO_REPETITION: Literal["not a repetition"] = "not a repetition"
TOLERANCE = 0.05
# The published forms of speed. Time to quality changes in whole epochs, and energy depends on the meter, so both are
# shown without a verdict.
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
    """The comparison of the original `one` with the repetition `other`.

    Attributes:
        tolerance: share of the original's mean by which speed may differ.
        quality_tolerance: the same for quality.
        same_system: whether speed must be the same.
        rows: the metrics that both sides have.
        obstacles: why it is not a repetition.
        notes: other differences.
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
        """The worst verdict of deciding metrics and levels; `not a repetition` if there are obstacles."""
        if self.obstacles:
            return NO_REPETITION
        verdicts = [row.found.verdict for row in self.rows if row.decides]
        unknown = self.one.no_level or self.other.no_level
        if NOT_REPLICATED in verdicts or (not unknown and self.one.level != self.other.level):
            return NOT_REPLICATED
        return REPLICATED if set(verdicts) == {REPLICATED} and not unknown else INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """PASS for `replicated`, else WRONG_ANSWER."""
        return ExitCode.PASS if self.verdict == REPLICATED else ExitCode.WRONG_ANSWER

    def document(self) -> dict[str, Any]:
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
        """That the levels differ, or that one is unknown."""
        ours, theirs = self.one, self.other
        unknown = [f"{side.path}: {side.no_level}" for side in (ours, theirs) if side.no_level]
        if unknown or ours.level == theirs.level:
            return tuple(unknown)
        return (f"the level is {_both(ours.level, theirs.level)}",)


def compare_sides(
    one: Side, other: Side, tolerance: float = TOLERANCE, tolerance_of_quality: float | None = None
) -> Replication:
    """Whether the repetition `other` repeats the original `one`.

    Args:
        tolerance: allowed relative difference of speed.
        tolerance_of_quality: the same for quality; None: the one that changes the penalty coefficient by `tolerance`,
            or `tolerance` itself for a loss, which has no such coefficient.

    Raises:
        UsageError: both have the same runs, runs with other seeds are copies, or a tolerance is out of range.
    """
    for number in (tolerance, tolerance_of_quality):
        if number is not None and not 0 < number < 1:
            raise UsageError(f"tolerance: expected a share between 0 and 1, got {number}")
    _require_new_runs(one, other)
    found = differences(one, other)
    rules = rulebook(one.campaign.edition, one.campaign.benchmark)
    exponent = float(rules.get("exponent", DEFAULT_EXPONENT))
    is_loss = any(result.quality.better == "lower" for result in one.results)
    usual = tolerance if is_loss else quality_tolerance(tolerance, exponent)
    of_quality = usual if tolerance_of_quality is None else tolerance_of_quality
    decides = (*_SPEED, *_qualities(one)) if found.same_system else tuple(_qualities(one))
    rows = tuple(_rows(one, other, tolerance, of_quality, decides))
    return Replication(one, other, tolerance, of_quality, found.same_system, rows, found.obstacles, found.notes)


def _require_new_runs(one: Side, other: Side) -> None:
    """Refuse a repetition that contains the original's own runs.

    With the same seed, a machine of the same kind reproduces losses, weights and checkpoints, but not times; with
    another seed, nothing.
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
        f"{', '.join(what)}): a repetition needs new runs"
    )


def _qualities(side: Side) -> dict[str, None]:
    return dict.fromkeys(result.quality.metric for result in side.results)


def _rows(one: Side, other: Side, tolerance: float, of_quality: float, decides: Sequence[str]) -> Iterator[Row]:
    qualities = _qualities(one)
    metrics = {metric.name: metric for metric in metrics_of([*one.results, *other.results])}
    for name in dict.fromkeys((*qualities, *TRIAL_METRICS, *one.results[0].rates)):
        metric = metrics[name]
        ours, theirs = ([metric.of(result) for result in side.results] for side in (one, other))
        left, right = ([value for value in values if value is not None] for values in (ours, theirs))
        # If some runs lack a metric, the mean of the others would be biased.
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


# ----------------------------------------------------------------------------------------------------
# The comparison for a terminal.


_HEAD = ("", "original", "repetition", "ratio", "verdict")
_DIFFERENCES = ("", "difference", "95 % interval", "allowed")
_WIDTH = 100
_INDENT = " " * 12
_LONGEST_NOTE = 300


def replication_lines(replication: Replication) -> Iterator[str]:
    """Both sides, their differences, the table, the verdict."""
    yield from _side_lines("original", replication.one)
    yield from _side_lines("repetition", replication.other)
    yield f"system      {'the same' if replication.same_system else 'different: quality decides, speed does not'}"
    for note in replication.notes:
        yield from _wrapped("note", note)
    yield ""
    yield from aligned([_HEAD, *map(_cells, replication.rows)], right={1, 2, 3})
    yield ""
    yield from aligned([_DIFFERENCES, *map(_difference, replication.rows)], right={1, 2, 3})
    yield ""
    yield "(±: coefficient of variation, standard deviation / mean of all runs)"
    yield "(verdicts in brackets do not decide)"
    yield ""
    yield f"verdict     {replication.verdict}"
    for reason in replication.reasons:
        yield from _wrapped("", reason)


def _wrapped(name: str, text: str) -> list[str]:
    line, first = short(text, _LONGEST_NOTE), f"{name:12}"
    return wrap(
        line, _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def _side_lines(name: str, side: Side) -> list[str]:
    who = f"{side.manifest.organisation}, {side.manifest.system}" if side.manifest else "a campaign on disk"
    runs = f"{len(side.results)} of {len(side.campaign.trials)} runs, {len(side.campaign.attempts)} attempts"
    level = "unknown" if side.no_level else (side.level or "none") + ("" if side.verification else " (from the recipe)")
    return _wrapped(name, f"{side.path}: {who}; {runs}; level {level}")


def _cells(row: Row) -> tuple[str, ...]:
    found, unit = row.found, row.metric.unit
    return (
        row.metric.name,
        _spread(found.one, unit),
        _spread(found.other, unit),
        UNKNOWN if found.ratio is None else f"{found.ratio:.4f}",
        found.verdict if row.decides else f"({found.verdict})",
    )


def _spread(spread: Spread, unit: str) -> str:
    varies = "" if spread.variation is None else f" ±{spread.variation:.2%}".replace("%", " %")
    return f"{_number(spread.mean, unit)}{varies}"


def _difference(row: Row) -> tuple[str, ...]:
    found, unit = row.found.difference, row.metric.unit
    allowed = f"±{_number(row.found.limit, unit)}"
    if found is None:
        return row.metric.name, UNKNOWN, "fewer than two runs", allowed
    interval = f"[{_number(found.low, unit)}, {_number(found.high, unit)}]"
    return row.metric.name, _number(found.mean, unit), interval, allowed


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.6g} s"
    if unit == "fraction":
        return share(value)
    return quantity(value, unit) if unit else f"{value:.4f}"
