"""Whether a campaign is rankable: all planned runs were run, none was left out, and all are comparable trials.

Computed from files alone, so that running, submitting and checking a campaign give the same answer. A damaged record
is a reason against the campaign, not an exception.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import NO_EVENTS, Attempt, Campaign, Status
from hpcai500.errors import HpcAi500Error, RecordError
from hpcai500.methodology.passes import MOST_LOST_EVALUATIONS, last_pass, lost_evaluations
from hpcai500.methodology.result import Result, derive, system_identity
from hpcai500.recipe import rulebook, table_differences
from hpcai500.record import Event, Record, iterate, json_object, last_hash, read_record
from hpcai500.text import count

# ----------------------------------------------------------------------------------------------------
# The record of an attempt: its progress, how it ended, and its result if it is complete.


# `interrupted` is followed only by a checkpoint and the error that the run was stopped.
_LAST_EVENTS = 4
FOLDER_MISSING = "its folder is missing: restore it; without it this campaign cannot be ranked"
FOLDER_WAS_GONE = "its folder was missing when its end was written into the journal: this campaign cannot be ranked"
# What reading events or tables of unexpected types may raise.
ODD = (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, IndexError)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: the quality after an epoch (from 1)."""

    epoch: int
    metric: str
    value: float


@dataclass(frozen=True)
class Ending:
    """How an attempt ended according to its record, for the journal."""

    status: Status
    head: str | None
    reason: str | None


@dataclass(frozen=True)
class Outcome:
    """One attempt and its record.

    Attributes:
        attempt: as the journal has it.
        head: hash of the record's last whole event; NO_EVENTS if it has none, None if its folder is missing.
        record: None if there is none yet, or it cannot be read.
        error: why it cannot be read, or gives no result although it is complete.
        epochs: how many were trained and evaluated, without those that a restart has lost.
        latest: the last evaluation, even one that a restart has lost, because it may have been seen.
        lost: evaluations of epochs that were trained again after a restart.
        diverged: which value was not finite and where, if the run diverged.
        result: computed from the events; None unless the record is complete.
        rules: that `result` was computed under.
    """

    attempt: Attempt
    head: str | None
    record: Record | None = None
    error: str | None = None
    epochs: int = 0
    latest: Evaluation | None = None
    lost: tuple[Evaluation, ...] = ()
    diverged: str | None = None
    result: Result | None = None
    rules: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def is_missing(self) -> bool:
        """Whether its folder is missing, unless it had no events: some ways of copying leave out such a folder."""
        return (
            self.head is None
            and self.error is None
            and self.attempt.status != "running"
            and self.attempt.head != NO_EVENTS
        )

    @property
    def seconds(self) -> float | None:
        """How long it ran: by its result, or from the clock's start to the last event; None before that."""
        if self.result:
            return self.result.seconds
        events = self.record.events if self.record else ()
        start = next(iterate(events, "run_start"), None)
        return (events[-1]["time_ms"] - start["time_ms"]) / 1000 if start else None

    @property
    def can_go_on(self) -> bool:
        """Whether the run has an evaluation or a checkpoint that a new start would lose, and has not diverged."""
        events = self.record.events if self.record else ()
        begun = any(iterate(events, "run_start"))
        return begun and self.diverged is None and bool(self.latest or any(iterate(events, "checkpoint")))


def read_outcome(
    campaign: Campaign, attempt: Attempt, rules: Mapping[str, Any], record: Record | None = None
) -> Outcome:
    """The outcome of `attempt` under `rules`. Raises nothing, whatever the record contains.

    `record` is given where it was read before.
    """
    folder = campaign.record(attempt)
    head = None
    try:
        head = record_head(folder)
        if head in (None, NO_EVENTS):
            return Outcome(attempt, head)
        record = record or read_record(folder)
        read = Outcome(
            attempt,
            head,
            record,
            epochs=len(last_pass(record.events, "eval_accuracy")),
            latest=_latest(record.events),
            lost=tuple(map(_evaluation, lost_evaluations(record.events))),
            diverged=_diverged(record.events),
        )
    except HpcAi500Error as error:
        return Outcome(attempt, head, error=str(error))
    except ODD as error:
        return Outcome(attempt, head, error=f"{folder}: {_malformed(error)}")
    return _scored(read, record, rules) if record.status == "done" else read


def record_head(folder: Path) -> str | None:
    """Hash of the last whole event of the record in `folder`; NO_EVENTS without any, None without a folder.

    Raises:
        RecordError: the log cannot be read.
    """
    if not folder.is_dir():
        return None
    try:
        content = (folder / "events.jsonl").read_bytes()
    except FileNotFoundError:
        return NO_EVENTS
    except OSError as error:
        raise RecordError(f"{folder / 'events.jsonl'}: cannot be read: {error.strerror}") from error
    return last_hash(content[: content.rfind(b"\n") + 1])


# Why an attempt without an end stopped. It can still be resumed if it has a checkpoint. Journals contain this text.
KILLED = "it was killed, or its machine went down: its record has no end"


def ending(outcome: Outcome) -> Ending:
    """How an attempt ended; no process may be running it."""
    record = outcome.record
    if outcome.head is None:
        return Ending("failed", None, "its folder is gone")
    if record is None:
        return Ending("failed", outcome.head, outcome.error or "it ended before its first event")
    if record.status == "done":
        return Ending("done", outcome.head, None)
    if record.status == "unfinished":
        return Ending("stopped" if outcome.can_go_on else "failed", outcome.head, KILLED)
    was_interrupted = any(iterate(record.events[-_LAST_EVENTS:], "interrupted"))
    return Ending("stopped" if was_interrupted else "failed", outcome.head, _reason(record))


def _scored(outcome: Outcome, record: Record, rules: Mapping[str, Any]) -> Outcome:
    try:
        return replace(outcome, result=derive(record.tables, rules, record.events), rules=rules)
    except HpcAi500Error as error:
        return replace(outcome, error=str(error))
    except ODD as error:
        return replace(outcome, error=f"{record.path}: {_malformed(error)}")


def _malformed(error: Exception) -> str:
    return f"events or recipe are malformed: {type(error).__name__} {error}"


def _latest(events: Sequence[Event]) -> Evaluation | None:
    last = next(iterate(reversed(events), "eval_accuracy"), None)
    return _evaluation(last) if last else None


def _evaluation(event: Mapping[str, Any]) -> Evaluation:
    value = event["value"]
    return Evaluation(int(value["epoch"]), str(value.get("metric", "quality")), float(value["value"]))


def _diverged(events: Sequence[Event]) -> str | None:
    last = next(iterate(reversed(events), "diverged"), None)
    return f"{last['value']['what']} at epoch {last['value']['epoch']}, step {last['value']['step']}" if last else None


def _reason(record: Record) -> str | None:
    last = record.events[-1]
    if last["key"] == "run_error":
        return str(last["value"]["reason"])
    return "the record says ERROR" if record.status == "error" else None


# ----------------------------------------------------------------------------------------------------
# The ranks and library that a run really used: results must have these in common to be combined.


# Fields of `run_start`, and how sentences show their values.
_FACTS: Mapping[str, Callable[[object], str]] = {
    "world_size": lambda value: count(value, "rank"),
    "nodes": lambda value: count(value, "node"),
    "backend": lambda value: f"the backend {value}",
    "library": str,
}


def world(record: Record) -> Mapping[str, Any]:
    """The ranks, nodes, backend and library of a run; empty before it has started."""
    start = next(iterate(record.events, "run_start"), None)
    value = start["value"] if start else {}
    return value if isinstance(value, dict) else {}


def world_difference(one: Record, other: Record, ignored: Collection[str] = ()) -> str | None:
    """A sentence that says how `other` ran differently from `one`, whatever their recipes asked for, or None.

    Fields of `run_start` in `ignored` may differ.
    """
    left, right = world(one), world(other)
    for key, words in _FACTS.items():
        # Older records lack some of these fields.
        if key not in ignored and key in left and key in right and left[key] != right[key]:
            return f"{other.path} ran on {words(right[key])}, {one.path} on {words(left[key])}"
    return None


# ----------------------------------------------------------------------------------------------------
# Journal and records vouch for each other: each names hashes of the other, so that neither can be replaced later.


def binding_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """Where the record of an attempt is not the one that the journal vouches for."""
    attempt = outcome.attempt
    if attempt.status == "running":
        yield f"{attempt.name}: the journal has no end of it: it is running, or was killed (see `campaign status`)"
    elif attempt.head is None:
        yield f"{attempt.name}: {attempt.record}: {FOLDER_WAS_GONE}"
    elif outcome.is_missing:
        yield f"{attempt.name}: {attempt.record}: {FOLDER_MISSING}"
    elif (outcome.head or NO_EVENTS) != attempt.head:
        yield f"{attempt.name}: {attempt.record}: its last event is not the one in the journal"
    if outcome.record is None:
        return
    if (attempt.status == "done") != (outcome.record.status == "done") and attempt.status != "running":
        yield f"{attempt.name}: {attempt.status} by the journal, {outcome.record.status} by its record"
    expected = {
        "id": campaign.identity, "trial": attempt.trial, "attempt": attempt.attempt, "head": attempt.start_hash,
    }  # fmt: skip
    for number, started in enumerate(iterate(outcome.record.events, "init_start"), 1):
        value = started.get("value")
        named = value.get("campaign") if isinstance(value, dict) else None
        wrong = [key for key in expected if not isinstance(named, dict) or named.get(key) != expected[key]]
        if wrong:
            what = f"another {' and '.join(wrong)}" if isinstance(named, dict) else "no campaign"
            yield f"{attempt.name}: {attempt.record}: start {number} of its record names {what}"


def folder_reasons(campaign: Campaign) -> Iterator[str]:
    """Runs in the campaign's folder that the journal does not name, and records that it names more than once."""
    known = Counter(attempt.record for attempt in campaign.attempts)
    for attempt in campaign.attempts:
        if known[attempt.record] > 1:
            yield f"{attempt.name}: {attempt.record}: named by {known[attempt.record]} attempts"
    for folder in sorted(path for path in campaign.path.iterdir() if path.is_dir() and path.name not in known):
        if _is_run(folder):
            yield f"{folder.name}: a run in the campaign's folder that is not in its journal"


def _is_run(folder: Path) -> bool:
    return folder.name.startswith("trial-") or (folder / "events.jsonl").exists()


# ----------------------------------------------------------------------------------------------------
# Whether runs are comparable trials: the same recipe except for the seed, data set, system and number of ranks.


SEED = "hyperparameters.seed"


def recipe_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first field other than the seed in which two recipes, as plain tables, differ, or None."""
    return min((found.field for found in table_differences(other, one) if found.field != SEED), default=None)


def difference(one: Record, other: Record) -> str | None:
    """A sentence that says why the two are not comparable trials, or None.

    What really ran decides: with equal recipes, ranks, systems or data may still differ.
    """
    field = recipe_difference(one.tables, other.tables)
    if field:
        return f"{other.path} differs from {one.path} in {field}"
    if ran := world_difference(one, other):
        return ran
    if _data(one) != _data(other) and None not in (_data(one), _data(other)):
        return f"{other.path} trained on other data than {one.path}: their fingerprints differ"
    left, right = _system(one), _system(other)
    # Older records lack some of the facts.
    changed = [key for key in left if key in right and left[key] != right[key]]
    return f"{other.path} ran on another system than {one.path}: {', '.join(changed)} differ" if changed else None


def _data(record: Record) -> str | None:
    last = next(iterate(reversed(record.events), "dataset"), None)
    value = last["value"] if last else {}
    found = value.get("fingerprint")
    return None if found is None else str(found)


def _system(record: Record) -> Mapping[str, Any]:
    return system_identity(record.system) if record.system else {}


# ----------------------------------------------------------------------------------------------------
# Whether the `result.json` of a record follows from its events. If not, one of them was edited.


RESULT = "result.json"
# Another Python or C library may round the last digit of a sum or a power differently.
_ROUNDING = 1e-9
# A value in an edited file may be of any length.
_MOST_SHOWN = 100


def differing_keys(written: Mapping[str, Any], computed: Mapping[str, Any]) -> list[str]:
    """Keys of `written` whose values differ from those of `computed`, sorted.

    A file of an older version lacks keys that are derived today; that is no difference.
    """
    older = {*_by_fewer_rules(written, computed), *_by_other_target(written, computed)}
    if "parallel_efficiency_note" not in written:
        # An older version estimated it from its fastest steps, however uncertain.
        older.add("parallel_efficiency")
    if "suspended" not in ((written.get("goodput") or {}).get("seconds") or {}):
        # An older version took it of the steps without the loop around them. Now it is a part of `step_split`.
        older.add("communication_fraction")
    return sorted(key for key in written if key not in older and not _same(computed.get(key), written[key]))


def written_result_reasons(outcome: Outcome, rules: Mapping[str, Any]) -> Iterator[str]:
    """Where the `result.json` of a complete record contradicts its events.

    `rules` are those of the edition that the run was made under, by which the file was written.
    """
    name, record = outcome.attempt.name, outcome.record
    if record is None or record.status != "done":
        return
    place = f"{name}: {outcome.attempt.record}/{RESULT}"
    if not (record.path / RESULT).is_file():
        yield f"{place} is missing"
        return
    try:
        written = json_object(record.path / RESULT)
        known = outcome.result if outcome.rules is rules else None
        computed = (known or derive(record.tables, rules, record.events)).as_json()
        keys = differing_keys(written, computed)
    except HpcAi500Error as error:
        # `outcome.error` already says what is wrong with the events.
        if outcome.error is None:
            yield f"{name}: {error}"
        return
    except (RecursionError, *ODD) as error:
        if outcome.error is None:
            yield f"{place} is malformed: {type(error).__name__} {error}"
        return
    if keys:
        more = f" ({len(keys)} keys differ)" if len(keys) > 1 else ""
        key = keys[0]
        yield f"{place} says {key} is {_shown(written[key])}; its events give {_shown(computed.get(key))}{more}"


def _shown(value: Any) -> str:
    return repr(value)[:_MOST_SHOWN]


def _by_fewer_rules(written: Mapping[str, Any], computed: Mapping[str, Any]) -> Iterator[str]:
    """Keys that differ only because an older version had fewer rules, other words for a reason, or no levels yet."""
    if "level_changes" not in written and written.get("level") is None:
        yield "level"
    reasons = written.get("reasons")
    if isinstance(reasons, list) and len(reasons) <= len(computed["reasons"]):
        yield "reasons"
        if written.get("rankable") is (not reasons):
            yield "rankable"


def _by_other_target(written: Mapping[str, Any], computed: Mapping[str, Any]) -> Iterator[str]:
    """VFLOPS keys that an older version computed with a target other than the edition's."""
    for valid, rate in (("vflops", "flops"), ("vflops_per_watt", "flops_per_watt")):
        coefficient = computed["penalty_coefficient"]
        withheld = computed[valid] is None and computed[rate] is not None and coefficient is not None
        if withheld and _same(computed[rate] * coefficient, written.get(valid)):
            yield valid


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


# ----------------------------------------------------------------------------------------------------
# The standing: all reasons against a campaign, and its table of attempts.


@dataclass(frozen=True)
class Row:
    """One attempt in the table of a campaign; None is unknown.

    Attributes:
        seed: as planned for its trial; None for a trial that was not planned.
        epochs: how many were trained and evaluated.
        target_epochs: how many the recipe asks for.
        quality: at the latest evaluation.
        seconds: from the clock's start to its end, or to the latest event.
        result: of a complete record, computed from its events.
    """

    attempt: Attempt
    seed: int | None
    epochs: int
    target_epochs: int
    quality: float | None
    seconds: float | None
    result: Result | None
    is_missing: bool = False

    @property
    def status(self) -> str:
        """As the journal has it, or `missing` where the record's folder is missing."""
        return "missing" if self.is_missing else self.attempt.status

    @property
    def vflops(self) -> float | None:
        return self.result.vflops if self.result else None


@dataclass(frozen=True)
class Standing:
    """Whether a campaign is rankable.

    Attributes:
        rankable: whether there are no `reasons`.
        reasons: why it is not rankable, one sentence each.
        rows: all attempts, in the order of their trials.
        least_runs: finished runs that the edition requires; None for a benchmark that it does not know.
    """

    rankable: bool
    reasons: tuple[str, ...]
    rows: tuple[Row, ...]
    least_runs: int | None

    @property
    def results(self) -> tuple[Result, ...]:
        """Results of finished runs, in the order of their trials."""
        return tuple(row.result for row in self.rows if row.attempt.status == "done" and row.result)


def standing(campaign: Campaign, edition: str | None = None, records: Mapping[str, Record] | None = None) -> Standing:
    """The standing of `campaign` under its own edition of the rules, or another one.

    `records`, by the names of their folders, are those that were read before.

    Raises:
        RecipeError: there is no such edition.
    """
    edition = edition or campaign.edition
    rules = rulebook(edition, campaign.benchmark)
    known = records or {}
    outcomes = [read_outcome(campaign, one, rules, known.get(one.record)) for one in in_order(campaign)]
    own_rules = rules if edition == campaign.edition else rulebook(campaign.edition, campaign.benchmark)
    least = rules.get("least_runs")
    reasons = reasons_against(campaign, outcomes, own_rules, least, edition)
    return Standing(not reasons, reasons, tuple(_row(campaign, outcome) for outcome in outcomes), least)


def reasons_against(
    campaign: Campaign, outcomes: Sequence[Outcome], rules: Mapping[str, Any], least: int | None, edition: str
) -> tuple[str, ...]:
    """Why the runs of a campaign are not exactly what was planned, one sentence each.

    Args:
        campaign: what was planned.
        outcomes: of all its attempts, in the order of their trials.
        rules: of the edition that they were run under.
        least: finished runs that are required; None for a benchmark that the edition does not know.
        edition: name of the edition that `outcomes` were scored under.
    """
    reasons = [
        *_plan_reasons(campaign),
        *_number_reasons(campaign, outcomes, least, edition),
        *(reason for outcome in outcomes for reason in _own_reasons(campaign, outcome)),
        *(reason for outcome in outcomes for reason in written_result_reasons(outcome, rules)),
        *_selection_reasons(outcomes),
        *_lost_reasons(outcomes),
        *folder_reasons(campaign),
        *_unlike_reasons(outcomes),
    ]
    return tuple(dict.fromkeys([*reasons, *_shared_reasons(campaign, outcomes, reasons)]))


def in_order(campaign: Campaign) -> list[Attempt]:
    return sorted(campaign.attempts, key=lambda one: (one.trial, one.attempt))


def _plan_reasons(campaign: Campaign) -> Iterator[str]:
    """Numbers and seeds that are planned more than once, and attempts at trials that were not planned."""
    for name, found in (
        ("trial", [one.trial for one in campaign.trials]),
        ("seed", [one.seed for one in campaign.trials]),
    ):
        for value, times in Counter(found).items():
            if times > 1:
                yield f"{name} {value} is planned {times} times: each run needs its own"
    planned = {one.trial for one in campaign.trials}
    for attempt in campaign.attempts:
        if attempt.trial not in planned:
            yield f"{attempt.name}: no such trial was planned"


def _number_reasons(campaign: Campaign, outcomes: Sequence[Outcome], least: int | None, edition: str) -> Iterator[str]:
    """Runs that are missing, and attempts that are out of sequence."""
    done = {attempt.trial for attempt in campaign.done()}
    finished = len({one.attempt.trial for one in outcomes if one.attempt.status == "done" and one.result})
    if least is None:
        yield f"edition {edition} has no benchmark {campaign.benchmark}"
    elif finished < least:
        yield f"{finished} finished run{'' if finished == 1 else 's'}; edition {edition} requires at least {least}"
    by_trial: dict[int, list[Attempt]] = {one.trial: [] for one in campaign.trials}
    for attempt in campaign.attempts:
        by_trial.setdefault(attempt.trial, []).append(attempt)
    if never := [str(trial) for trial, attempts in by_trial.items() if not attempts]:
        many = len(never) > 1
        yield f"trial{'s' * many} {', '.join(never)} {'were' if many else 'was'} planned but never attempted"
    for trial, attempts in by_trial.items():
        if not attempts:
            continue
        if trial not in done and attempts[-1].status != "running":
            yield f"{attempts[-1].name}: the last attempt at this trial is not complete"
        if [one.attempt for one in attempts] != list(range(1, len(attempts) + 1)):
            yield f"trial {trial}: its attempts are numbered {', '.join(str(one.attempt) for one in attempts)}"
        first = next((place for place, one in enumerate(attempts) if one.status == "done"), len(attempts))
        for again in attempts[first + 1 :]:
            yield f"{again.name}: started although attempt {attempts[first].attempt} was complete"


def _own_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    yield from binding_reasons(campaign, outcome)
    name, record = outcome.attempt.name, outcome.record
    if outcome.error:
        yield f"{name}: {outcome.error}"
    if record is None:
        return
    try:
        planned = campaign.seed(outcome.attempt.trial)
        seed = record.tables["hyperparameters"]["seed"]
        if planned is not None and seed != planned:
            yield f"{name}: ran with the seed {seed}; the plan has {planned}"
        if field := recipe_difference(campaign.tables, record.tables):
            yield f"{name}: its recipe differs from the campaign's in {field}"
    except ODD as error:
        yield f"{name}: its recipe or system is malformed: {type(error).__name__} {error}"


def _selection_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Runs that were given up after their quality was seen: the better of two could have been chosen."""
    latest: dict[int, int] = {}
    for outcome in outcomes:
        attempt = outcome.attempt
        latest[attempt.trial] = max(attempt.attempt, latest.get(attempt.trial, attempt.attempt))
    for outcome in outcomes:
        attempt, last = outcome.attempt, outcome.latest
        if outcome.diverged:
            yield f"{attempt.name}: diverged ({outcome.diverged}), which is a result of this recipe"
        elif last and attempt.status != "done" and latest[attempt.trial] > attempt.attempt:
            yield (
                f"{attempt.name}: given up after epoch {last.epoch} with {last.metric} {last.value:.4f} and started "
                "again instead of resumed: the better of the two could have been chosen"
            )


def _lost_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Epochs trained again after their quality was seen: one in a campaign is bad luck, more could be a choice."""
    if sum(len(outcome.lost) for outcome in outcomes) <= MOST_LOST_EVALUATIONS:
        return
    for outcome in outcomes:
        if outcome.lost:
            lost = ", ".join(f"epoch {one.epoch} with {one.metric} {one.value:.4f}" for one in outcome.lost[:4])
            yield (
                f"{outcome.attempt.name}: trained again after it was evaluated: {lost}"
                f"{' …' if outcome.lost[4:] else ''}: the better ones could have been chosen"
            )


def _unlike_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Finished runs that share a seed, or are not comparable trials."""
    done = [(one.attempt, one.record) for one in outcomes if one.attempt.status == "done" and one.record]
    seeds: dict[Any, Attempt] = {}
    for attempt, record in done:
        try:
            seed = str(record.tables["hyperparameters"]["seed"])
            if (first := seeds.setdefault(seed, attempt)) is not attempt:
                yield f"{attempt.name}: has {SEED} {seed}, like {first.name}"
            if record is not done[0][1] and (sentence := difference(done[0][1], record)):
                yield f"{attempt.name}: {sentence}"
        except ODD as error:
            yield f"{attempt.name}: its recipe or events are malformed: {type(error).__name__} {error}"


def _shared_reasons(campaign: Campaign, outcomes: Sequence[Outcome], given: Collection[str]) -> Iterator[str]:
    """Reasons against finished runs, without those `given` for the campaign; one that holds for all runs comes once."""
    by_reason: dict[str, list[str]] = {}
    done = [one for one in outcomes if one.attempt.status == "done" and one.result]
    for outcome in done:
        assert outcome.result
        for reason in (*_code_reasons(campaign, outcome), *outcome.result.reasons):
            if reason not in given:
                by_reason.setdefault(reason, []).append(outcome.attempt.name)
    for reason, names in by_reason.items():
        if len(names) == len(done) > 1:
            yield f"all {len(done)} finished runs: {reason}"
        else:
            yield from (f"{name}: {reason}" for name in names)


def _code_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """Where the code that ran is not the code in the plan."""
    assert outcome.record
    try:
        installation = outcome.record.system.get("installation") or {}
        plugin = {"name": None, **(campaign.start.get("plugin") or {})}
        ran = {one["name"]: one.get("code_sha256") for one in installation.get("plugins") or []}
        codes = (
            ("hpcai500", campaign.start.get("code_sha256"), (installation.get("package") or {}).get("code_sha256")),
            (f"the plug-in {plugin['name']}", plugin.get("code_sha256"), ran.get(plugin["name"])),
        )
    except ODD as error:
        yield f"system.json is malformed: {type(error).__name__} {error}"
        return
    for what, planned, code in codes:
        if code is not None and planned not in (None, code):
            yield f"ran other code of {what} than planned (code_sha256 {str(code)[:12]}…, not {str(planned)[:12]}…)"


def _row(campaign: Campaign, outcome: Outcome) -> Row:
    attempt = outcome.attempt
    problem: Mapping[str, Any] = campaign.tables["problem"]
    return Row(
        attempt=attempt,
        seed=campaign.seed(attempt.trial),
        epochs=outcome.epochs,
        target_epochs=int(problem["epochs"]),
        quality=outcome.latest.value if outcome.latest else None,
        seconds=outcome.seconds,
        result=outcome.result,
        is_missing=outcome.is_missing,
    )
