"""Checks of time: clocks of journal and records, heads received while a campaign ran, and Slurm's accounting.

All times are UTC. Clocks of a cluster's nodes may differ by `SKEW_MS`.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from hpcai500.campaign.journal import JOURNAL, Attempt, GivenHeads, heads_of
from hpcai500.hosts import expand_hosts
from hpcai500.record import Event, Record, iterate, json_object
from hpcai500.results.submission.manifest import ACCOUNTING, CAMPAIGN
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import nodes, values
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning
from hpcai500.text import count, duration

# ----------------------------------------------------------------------------------------------------
# Dates: journal and records agree, nothing is in the future, no two runs used one node at once.


_DATES, _OVERLAP, _CLOCKS = "dates", "overlap", "clocks"
# Clocks of a cluster's nodes agree to milliseconds with a time server, and to seconds without one.
SKEW_MS = 60_000
# All times are UTC, so that time zones do not matter.
_FUTURE_MS = 600_000
# The rendezvous of ranks takes up to five minutes; a run exits within seconds of its end.
_GAP_MS = 600_000


@dataclass(frozen=True)
class Stretch:
    """A record's time from one start of its job to the last event before the next one.

    Attributes:
        name: of the record.
        hosts: all hosts that the record ever ran on.
        devices: UUIDs of the accelerators; empty without accelerators, or if one has no UUID.
        start_ms, stop_ms: wall clock of the first and the last event.
        boot: ID of the boot of the machine that the first rank ran on.
        boot_start_ms, boot_stop_ms: time since that boot at the first and the last event.
    """

    name: str
    hosts: frozenset[str]
    devices: frozenset[str]
    start_ms: int
    stop_ms: int
    boot: str | None
    boot_start_ms: float
    boot_stop_ms: float


def check_dates(context: Context) -> Iterator[Finding]:
    """Compare the wall clocks of journal, records and manifest, and the machine clocks of records."""
    found = [*_journal(context), *_future(context), *_overlaps(context), *_boots(context)]
    yield from found
    names = {one.name for one in found}
    if _DATES not in names and context.records:
        first = min(_start_ms(record) for record in context.records.values())
        last = max(_end_ms(record) for record in context.records.values())
        span = f"runs from {in_words(first)} to {in_words(last)}"
        yield note(_DATES, f"{span}; journal and records agree within a minute")
    if _OVERLAP not in names:
        yield note(_OVERLAP, "no two runs used a node at the same time")
    if _CLOCKS not in names:
        yield note(_CLOCKS, "records from one boot of a machine agree on the time of the boot")


def _journal(context: Context) -> Iterator[Finding]:
    """Check that each record is between the journal's lines of its start and end."""
    events = context.campaign.events
    by_attempt: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["key"].startswith("attempt_"):
            by_attempt[_number(event)].append(event)
    for before, event in pairwise(events):
        if event["time_ms"] < before["time_ms"] - SKEW_MS:
            where = f"the journal goes back in time at line {event['seq'] + 1}"
            yield fail(_DATES, f"{where}: {in_words(event['time_ms'])}")
    for name, attempt in context.attempts.items():
        record = context.records.get(name)
        if record is None or not record.events:
            continue
        own = by_attempt[attempt.trial, attempt.attempt]
        started, ended = own[0]["time_ms"], own[-1]["time_ms"]
        if _start_ms(record) < started - SKEW_MS:
            what = f"{name}: started at {in_words(_start_ms(record))}"
            yield fail(_DATES, f"{what}, before its start in the journal ({in_words(started)})")
        if own[-1]["key"] == "attempt_stop" and _end_ms(record) > ended + SKEW_MS:
            what = f"{name}: ended at {in_words(_end_ms(record))}"
            yield fail(_DATES, f"{what}, after its end in the journal ({in_words(ended)})")
        yield from (warning(_DATES, f"{name}: {gap}") for gap in _gaps(record, own))


def _gaps(record: Record, own: Sequence[Event]) -> Iterator[str]:
    """Find times between a line of the journal and its event in the record that are long enough for another run."""
    starts = [event["time_ms"] for event in record.events if event["key"] == "init_start"]
    for event, after in zip(own, [*own[1:], None], strict=True):
        if event["key"] == "attempt_stop":
            continue
        until_ms = after["time_ms"] if after else math.inf
        first_ms = next((one for one in starts if event["time_ms"] - SKEW_MS <= one <= until_ms), None)
        if first_ms is not None and first_ms > event["time_ms"] + _GAP_MS:
            yield f"started at {in_words(event['time_ms'])} by the journal, first event at {in_words(first_ms)}"
    if own[-1]["key"] == "attempt_stop" and own[-1]["time_ms"] > _end_ms(record) + _GAP_MS:
        last, stop = in_words(_end_ms(record)), in_words(own[-1]["time_ms"])
        yield f"last event at {last}, ended at {stop} by the journal"


def _future(context: Context) -> Iterator[Finding]:
    now_ms = time.time_ns() // 1_000_000 + _FUTURE_MS
    last_ms = 0
    for name, record in context.records.items():
        if not record.events:
            continue
        last_ms = max(last_ms, _end_ms(record))
        if _end_ms(record) > now_ms:
            yield fail(_DATES, f"{name}: ends in the future, at {in_words(_end_ms(record))}")
    created = context.submission.manifest.created
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        yield fail(_DATES, f"manifest: created is {created!r}; expected a time in UTC, ISO 8601")
        return
    created_ms = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    if created_ms < last_ms - SKEW_MS or created_ms > now_ms:
        yield fail(_DATES, f"packed at {created}; the last event is from {in_words(last_ms)}")


def _overlaps(context: Context) -> Iterator[Finding]:
    stretches = sorted(
        (one for name, record in context.records.items() for one in stretches_of(name, record)),
        key=lambda one: one.start_ms,
    )
    latest: dict[str, Stretch] = {}
    for one in stretches:
        for host in sorted(one.hosts):
            before = latest.get(host)
            if before and before.stop_ms > one.start_ms and not are_apart(before.devices, one.devices):
                until = in_words(before.stop_ms)
                yield fail(
                    _OVERLAP, f"{host}: {before.name} ran until {until}, {one.name} started at {in_words(one.start_ms)}"
                )
            if before is None or one.stop_ms > before.stop_ms:
                latest[host] = one


def stretches_of(name: str, record: Record) -> Iterator[Stretch]:
    """Yield the times in which the job of a record ran: one for its first start, and one for each resumption."""
    starts = [place for place, event in enumerate(record.events) if event["key"] == "init_start"]
    where = frozenset(_hosts(record))
    uuids = [device.get("uuid") for node in nodes(record) for device in node.get("accelerators") or []]
    devices = frozenset(map(str, uuids)) if None not in uuids else frozenset()
    for start, stop in pairwise([*starts, len(record.events)]):
        first, last = record.events[start], record.events[stop - 1]
        boot = first["value"].get("boot_id")
        yield Stretch(
            name=name,
            hosts=where,
            devices=devices,
            start_ms=first["time_ms"],
            stop_ms=last["time_ms"],
            boot=None if boot is None else str(boot),
            boot_start_ms=1000 * first["clock_s"],
            boot_stop_ms=1000 * last["clock_s"],
        )


def _hosts(record: Record) -> Iterator[str]:
    """All hosts that the record ever ran on."""
    for key in ("run_start", "run_resume"):
        for value in values(record, key):
            yield from map(str, value.get("hosts") or [])
    yield from (str(node["host"]) for node in nodes(record) if node.get("host"))


def _start_ms(record: Record) -> int:
    """Wall clock of the record's first event (UNIX time)."""
    return int(record.events[0]["time_ms"])


def _end_ms(record: Record) -> int:
    """Wall clock of the record's last event (UNIX time)."""
    return int(record.events[-1]["time_ms"])


def are_apart(devices: Set[str], others: Set[str]) -> bool:
    """Whether two jobs on one node used different accelerators; false if that is unknown."""
    return bool(devices and others) and not devices & others


def _boots(context: Context) -> Iterator[Finding]:
    """A machine's clock counts from its boot: all records with one boot must give the same time for it."""
    starts: dict[str, tuple[str, float]] = {}
    for name, record in context.records.items():
        for event in record.events:
            boot = event["value"].get("boot_id") if event["key"] == "init_start" else None
            if boot is None:
                continue
            started_ms = event["time_ms"] - 1000 * event["clock_s"]
            other, other_ms = starts.setdefault(str(boot), (name, started_ms))
            if abs(started_ms - other_ms) > SKEW_MS:
                both = f"{in_words(started_ms)} by {name}, {in_words(other_ms)} by {other}"
                yield fail(_CLOCKS, f"the machine booted at {both}: the times of one record were changed")


def in_words(moment_ms: float) -> str:
    """`2026-11-22 03:00:00 UTC`."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# ----------------------------------------------------------------------------------------------------
# Heads: the campaign is not the best of several copies.
#
# A head is the hash of a line of the journal, and covers all lines before it. The committee receives heads while the
# campaign runs.


_HEADS = "heads"
_DID = {"attempt_start": "started", "attempt_resume": "resumed", "attempt_stop": "ended"}
_MOST_NAMED = 5


@dataclass(frozen=True)
class _Journal:
    """The journal of the registered campaign.

    Attributes:
        identity: of the campaign, before host names were replaced.
        hashes: by line number (from 1), as far as known: of an anonymised journal, only of its first and last line.
        events: of all lines.
    """

    identity: str
    hashes: Mapping[int, str]
    events: tuple[Event, ...]

    def line(self, number: int) -> str:
        """A line in words: `line 4 of the journal (trial 2, attempt 1 ended)`."""
        event = self.events[number - 1]
        value = event["value"]
        did = _DID.get(event["key"])
        detail = f" (trial {value['trial']}, attempt {value['attempt']} {did})" if did else ""
        return f"line {number} of the journal{detail}"


@dataclass(frozen=True)
class _Span:
    """When an attempt started, was evaluated, and finally ended (UNIX time)."""

    started_ms: int
    evaluated_ms: tuple[int, ...]
    ended_ms: int

    @property
    def latest_ms(self) -> int:
        """Latest time for the head of its start, before its result could be known, as far as clocks agree."""
        is_long = self.ended_ms - self.started_ms > 2 * SKEW_MS
        return self.ended_ms - SKEW_MS if is_long else self.ended_ms + SKEW_MS

    def seen(self, from_ms: int, until_ms: int) -> int:
        """Number of evaluations between two times, as far as clocks agree."""
        return sum(from_ms < one < until_ms - SKEW_MS for one in self.evaluated_ms)


def check_heads(context: Context) -> Iterator[Finding]:
    """Compare the received heads with the journal: each must be of one of its lines, and each line covered in time."""
    given = context.question.heads
    if given is None:
        yield skipped(
            _HEADS,
            "not compared: this may be the best of several copies of the campaign; give the heads that were received "
            "while it ran: --heads FILE",
        )
        return
    journal = _registered_journal(context)
    ours = {head: received_ms for head, received_ms in given.items() if head.campaign == journal.identity}
    covered_ms = _covered_ms(journal, ours)
    found = [*_other_copy(journal, ours)] or [*_check_covered(context, journal, covered_ms)]
    yield from found
    if not any(one.severity == "fail" for one in found):
        yield _passed(context, journal, len(ours), covered_ms)
    others = sorted({head.campaign for head in given} - {journal.identity})
    if others:
        named = ", ".join(f"{one[:12]}…" for one in others[:_MOST_NAMED]) + (" …" if len(others) > _MOST_NAMED else "")
        number = count(len(others), "other campaign")
        check = "check whether one is of the same system and was never submitted"
        yield note(_HEADS, f"the file also has heads of {number} ({named}): {check}")


def _registered_journal(context: Context) -> _Journal:
    events, anonymised = context.campaign.events, context.submission.manifest.anonymised
    if anonymised is None:
        hashes = {head.line: head.hash for head in heads_of(context.campaign)}
        return _Journal(context.campaign.identity, {1: context.campaign.identity, **hashes}, events)
    # The last one covers all lines between them.
    last = anonymised.original_heads[f"{CAMPAIGN}/{JOURNAL}"]
    return _Journal(anonymised.original_campaign, {len(events): last, 1: anonymised.original_campaign}, events)


def _other_copy(journal: _Journal, ours: GivenHeads) -> Iterator[Finding]:
    """Report the first head that is not of this journal: once two copies differ, all later lines differ."""
    if not ours:
        yield fail(_HEADS, f"no head of the campaign {journal.identity} was received; expected those of all its lines")
    known = dict(journal.hashes)
    foreign = []
    for head in sorted(ours, key=lambda one: (one.line, ours[one])):
        # If names were replaced in a line, its hash is unknown, and the head that was received first counts.
        own = known.setdefault(head.line, head.hash) if head.line <= len(journal.events) else None
        if own != head.hash:
            foreign.append((head, own))
    if foreign:
        head, own = foreign[0]
        expected = f"expected {own}" if own else f"and this journal ends at line {len(journal.events)}"
        where = journal.line(head.line) if own else f"line {head.line}"
        evidence = f"{where}: {head.hash} was received at {in_words(ours[head])}, {expected}"
        more = f" ({len(foreign)} heads differ)" if foreign[1:] else ""
        yield fail(_HEADS, f"{evidence}{more}: another copy of the campaign was run")


def _check_covered(context: Context, journal: _Journal, covered_ms: Mapping[int, int]) -> Iterator[Finding]:
    """Check that a head covered each line before the line could be chosen by its result."""
    uncovered = [number for number in range(2, len(journal.events) + 1) if number not in covered_ms]
    if uncovered:
        more = f", and {count(len(uncovered) - 1, 'line')} after it" if uncovered[1:] else ""
        yield fail(
            _HEADS,
            f"{journal.line(uncovered[0])}{more}: no head was received; expected it as soon as the line was written",
        )
    spans = _spans(context, journal)
    for number, received_ms in covered_ms.items():
        event = journal.events[number - 1]
        if received_ms < event["time_ms"] - SKEW_MS:
            times = f"received at {in_words(received_ms)}, but it was written at {in_words(event['time_ms'])}"
            yield warning(
                _HEADS, f"{journal.line(number)}: its head was {times}: a clock is wrong, or times were changed"
            )
        elif event["key"] in _DID and (span := spans.get(_number(event))):
            yield from _late(journal, number, received_ms, span)


def _covered_ms(journal: _Journal, ours: GivenHeads) -> dict[int, int]:
    """By line, in order: when the first head of it or of a later line, which covers it, was received."""
    first_ms: dict[int, int] = {}
    for head, received_ms in ours.items():
        first_ms[head.line] = min(received_ms, first_ms.get(head.line, received_ms))
    lines = range(min(len(journal.events), max(first_ms, default=0)), 1, -1)
    never_ms = max(ours.values(), default=0)
    soonest_ms = accumulate((first_ms.get(line, never_ms) for line in lines), min)
    return dict(sorted(zip(lines, soonest_ms, strict=True)))


def _late(journal: _Journal, number: int, received_ms: int, span: _Span) -> Iterator[Finding]:
    """Report a line that was covered when results were known, or so late that there was time for another run."""
    event = journal.events[number - 1]
    arrived = f"{journal.line(number)}: the first head that covers it arrived at {in_words(received_ms)}"
    if event["key"] != "attempt_stop":
        seen = span.seen(event["time_ms"], received_ms)
        if received_ms > span.latest_ms:
            yield fail(_HEADS, f"{arrived}, and the attempt ended at {in_words(span.ended_ms)}: its result was known")
        elif seen:
            known = f"{seen} of its {len(span.evaluated_ms)} evaluations were known: it may have been chosen by them"
            yield warning(_HEADS, f"{arrived}, when {known}")
    elif received_ms > event["time_ms"] + span.ended_ms - span.started_ms + SKEW_MS:
        later, ran = ((received_ms - event["time_ms"]) / 1000, (span.ended_ms - span.started_ms) / 1000)
        yield warning(_HEADS, f"{arrived}, {duration(later)} after it: time for another run of {duration(ran)}")


def _spans(context: Context, journal: _Journal) -> dict[tuple[int, int], _Span]:
    """Spans of ended attempts that are done or were evaluated: only these could be chosen by their results."""
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    for one in context.campaign.attempts:
        record = context.records.get(one.record)
        evaluated = tuple(event["time_ms"] for event in iterate(record.events, "eval_accuracy")) if record else ()
        if one.status == "done" or evaluated:
            seen[one.trial, one.attempt] = evaluated
    own: dict[tuple[int, int], list[Event]] = {number: [] for number in seen}
    for event in journal.events:
        if event["key"] in _DID and _number(event) in seen:
            own[_number(event)].append(event)
    return {
        number: _Span(events[0]["time_ms"], seen[number], events[-1]["time_ms"])
        for number, events in own.items()
        if events[-1]["key"] == "attempt_stop"
    }


def _number(event: Event) -> tuple[int, int]:
    return int(event["value"]["trial"]), int(event["value"]["attempt"])


def _passed(context: Context, journal: _Journal, heads: int, covered_ms: Mapping[int, int]) -> Finding:
    if context.submission.manifest.anonymised:
        last = journal.hashes[len(journal.events)]
        return warning(
            _HEADS,
            f"host names were replaced; the manifest says that the original journal ended in {last}, which is the "
            "received head: ask for that journal",
        )
    # Times of receipt are in whole seconds.
    longest_ms = max([1000, *(ms - journal.events[line - 1]["time_ms"] for line, ms in covered_ms.items())])
    agree = f"{count(heads, 'head')} of this campaign were received, and each is of its line in this journal"
    return note(_HEADS, f"{agree}; each line was covered within {duration(longest_ms / 1000)}")


# ----------------------------------------------------------------------------------------------------
# Slurm's accounting: the times and nodes of a job must contain those of its runs.


_ACCOUNTING = "accounting"
# Slurm rounds to whole seconds, and a job starts a moment before its first process.
_SKEW_SECONDS = SKEW_MS / 1000
# Slurm's elapsed time does not include times in which a job was suspended.
_SUSPENDED_SECONDS = 60.0
_GOOD_STATES = ("COMPLETED", "RUNNING", "COMPLETING")
# Longer host lists are not expanded.
_HOST_LIST = re.compile(r"[A-Za-z0-9_.,\[\]-]{1,100000}")
_BRACKET = re.compile(r"\[([\d,-]*)\]")
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_HOSTS = 100_000

Job = Mapping[str, Any]


def check_accounting(context: Context) -> Iterator[Finding]:
    """Compare each attempt with the jobs that the journal names for it."""
    # Each once: an untrusted journal may name one job a million times.
    numbers = dict.fromkeys(number for attempt in context.campaign.attempts for number in attempt.slurm_jobs)
    jobs = {number: _job(context, number) for number in numbers}
    found = [*_unnamed(context), *_missing(context, [number for number, job in jobs.items() if job is None])]
    found += [finding for number, job in jobs.items() if job for finding in _of_job(number, job)]
    compared = 0
    for name, record in context.records.items():
        attempt = context.attempts[name]
        found += _of_variables(name, attempt, record)
        own = [job for number in attempt.slurm_jobs if (job := jobs[number])]
        if own and len(own) == len(attempt.slurm_jobs):
            compared += 1
            found += _of_run(name, attempt, record, own)
    yield from found
    if not jobs:
        yield skipped(_ACCOUNTING, "the journal names no Slurm job, so that times and nodes cannot be compared")
    elif compared and not any(one.severity == "fail" for one in found):
        yield note(_ACCOUNTING, f"times and nodes of {compared} runs are within those of their Slurm jobs")


def _unnamed(context: Context) -> Iterator[Finding]:
    """Find attempts started by srun without a job in the journal: srun runs only in a job."""
    started = [
        event["value"] for event in context.campaign.events if event["key"] in ("attempt_start", "attempt_resume")
    ]
    odd = [value for value in started if value.get("launcher") == "srun" and value["slurm_job_id"] is None]
    if odd:
        attempts = ", ".join(f"trial {value['trial']}, attempt {value['attempt']}" for value in odd[:8])
        yield warning(_ACCOUNTING, f"{attempts}: started by srun, but the journal names no Slurm job")


def _path(number: str) -> str:
    return f"{ACCOUNTING}/{number}.json"


def _job(context: Context, number: str) -> Job | None:
    path = _path(number)
    return json_object(context.submission.folder / path) if path in context.submission.entries else None


def _missing(context: Context, numbers: Sequence[str]) -> Iterator[Finding]:
    """Report jobs of the journal whose accounting is missing, grouped by reason."""
    stated = {left.path: left.reason for left in context.submission.manifest.left_out}
    reasons: dict[str, list[str]] = {}
    for number in numbers:
        reasons.setdefault(stated.get(_path(number), "the manifest gives no reason"), []).append(number)
    for reason, jobs in reasons.items():
        yield warning(_ACCOUNTING, f"the accounting of the Slurm jobs {', '.join(jobs)} is missing: {reason}")


def _of_job(number: str, job: Job) -> Iterator[Finding]:
    """Check the accounting of one job by itself."""
    if job["job_id"] != number and "_" not in number and "+" not in number:
        yield fail(_ACCOUNTING, f"{number}.json is of the job {job['job_id']}")
    for run in (*job["earlier"], job):
        start, end, elapsed = _moment(run["start"]), _moment(run["end"]), run["elapsed_seconds"]
        if start is None or end is None or elapsed is None:
            continue
        if elapsed > end - start + _SKEW_SECONDS:
            yield fail(_ACCOUNTING, f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}")
        elif elapsed < end - start - _SUSPENDED_SECONDS:
            evidence = f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}"
            yield warning(_ACCOUNTING, f"{evidence}: the job and its run were suspended for the rest")


def _of_run(name: str, attempt: Attempt, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    """Check that the jobs of an attempt contain its run."""
    runs = [run for job in jobs for run in (*job["earlier"], job)]
    spans = [(_moment(run["start"]), _moment(run["end"])) for run in runs]
    known = [(start, end) for start, end in spans if start is not None]
    if len(known) < len(spans):
        yield warning(_ACCOUNTING, f"{name}: its accounting lacks the start of a job")
    seconds = 0.0
    for stretch in stretches_of(name, record):
        start, stop = stretch.start_ms / 1000, stretch.stop_ms / 1000
        seconds += stop - start
        within = any(
            first - _SKEW_SECONDS <= start and (last is None or stop <= last + _SKEW_SECONDS) for first, last in known
        )
        if known and not within:
            own = f"{in_words(stretch.start_ms)} to {in_words(stretch.stop_ms)}"
            theirs = "; ".join(f"{run['start']} to {run['end']}" for run in runs[:4])
            yield fail(_ACCOUNTING, f"{name}: ran from {own}, outside of its Slurm jobs: {theirs}")
    elapsed = [run["elapsed_seconds"] for run in runs]
    if None not in elapsed and seconds > sum(elapsed) + _SKEW_SECONDS:
        yield fail(_ACCOUNTING, f"{name}: ran for {seconds:.0f} s; its Slurm jobs took {sum(elapsed)} s in total")
    yield from _of_nodes(name, record, jobs)
    if attempt.status == "done" and str(jobs[-1]["state"]).partition(" ")[0] not in _GOOD_STATES:
        yield warning(_ACCOUNTING, f"{name}: done, but its Slurm job {jobs[-1]['job_id']} ended as {jobs[-1]['state']}")


def _of_nodes(name: str, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    worlds = [*values(record, "run_start"), *values(record, "run_resume")]
    most = max((job["nodes"] or 0 for job in jobs), default=0)
    for world in worlds:
        if most and world["nodes"] > most:
            yield fail(_ACCOUNTING, f"{name}: ran on {world['nodes']} nodes; its Slurm job had {most}")
    lists = [names_of_list(job["node_list"]) for job in jobs if job["node_list"] is not None]
    if not lists or None in lists:
        yield warning(_ACCOUNTING, f"{name}: its accounting has no usable list of nodes")
        return
    had = short_names(host for hosts in lists if hosts for host in hosts)
    others = sorted(short_names(host for world in worlds for host in world.get("hosts") or []) - had)
    if others:
        yield fail(_ACCOUNTING, f"{name}: ran on {', '.join(others[:8])}, which its Slurm job did not have")


def _of_variables(name: str, attempt: Attempt, record: Record) -> Iterator[Finding]:
    """Compare the job ID in the run's environment with the journal."""
    seen = {str((node.get("environment") or {}).get("SLURM_JOB_ID")) for node in nodes(record)} - {"None"}
    for number in sorted(seen - set(attempt.slurm_jobs)):
        if attempt.slurm_jobs:
            jobs = ", ".join(attempt.slurm_jobs)
            yield fail(_ACCOUNTING, f"{name}: ran in the Slurm job {number}; the journal says {jobs}")
        else:
            yield warning(_ACCOUNTING, f"{name}: ran in the Slurm job {number}, which the journal does not name")


def _moment(text: str | None) -> float | None:
    """UNIX seconds of `2026-11-22T03:00:00Z`."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def names_of_list(text: str) -> list[str] | None:
    """The hosts of Slurm's `n[01-03],login`; None if the list is malformed or too long to expand."""
    if not _HOST_LIST.fullmatch(text):
        return None
    total = 0
    for part in re.split(r",(?![^\[]*\])", text):
        counts = [_numbers_in(inside) for inside in _BRACKET.findall(part)]
        if None in counts or set("[]") & set(_BRACKET.sub("", part)) or part in ("", "-"):
            return None
        total += math.prod(many for many in counts if many is not None)
    return expand_hosts(text) if total <= _MOST_HOSTS else None


def short_names(hosts: Iterable[object]) -> set[str]:
    """First labels of host names: Slurm may call a node `n1` and the node itself `n1.cluster`."""
    return {str(host).partition(".")[0] for host in hosts}


def _numbers_in(inside: str) -> int | None:
    """How many numbers `01-03,7` stands for; None if it is malformed."""
    found = [_PIECE.fullmatch(piece) for piece in inside.split(",")]
    if None in found:
        return None
    ranges = [(int(piece.group(1)), int(piece.group(2) or piece.group(1))) for piece in found if piece]
    return sum(last - first + 1 for first, last in ranges) if all(first <= last for first, last in ranges) else None
