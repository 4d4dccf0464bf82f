"""Checks of time: clocks of journal and records, heads that were given while a campaign ran, and Slurm's accounting.

All times are UTC. Clocks of a cluster's nodes may differ by `SKEW_MS`.
"""

from __future__ import annotations

import math
import re
import time
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
# Dates: journal and records agree, nothing is in the future, no two runs had one node at once.


_DATES, _OVERLAP, _CLOCKS = "dates", "overlap", "clocks"
# Clocks of a cluster's nodes agree to milliseconds with a time server, and to seconds without one.
SKEW_MS = 60_000
# Another time zone is no excuse: all times are UTC.
_FUTURE_MS = 600_000
# The rendezvous of ranks takes up to five minutes, and a run exits within seconds of its end.
_GAP_MS = 600_000


@dataclass(frozen=True)
class Stretch:
    """A record's time from one start of its job to the last event before the next one.

    Attributes:
        name: of the record.
        hosts: all that the record ever ran on.
        devices: UUIDs of the accelerators; empty where there is none, or one has no UUID.
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
        first = min(_begun_ms(record) for record in context.records.values())
        last = max(_ended_ms(record) for record in context.records.values())
        told = f"runs from {in_words(first)} to {in_words(last)}"
        yield note(_DATES, f"{told}; journal and records agree within a minute")
    if _OVERLAP not in names:
        yield note(_OVERLAP, "no two runs had a node at the same time")
    if _CLOCKS not in names:
        yield note(_CLOCKS, "records of one start of a machine agree on when that was")


def _journal(context: Context) -> Iterator[Finding]:
    """Check that each record lies between the journal's lines that begin and end it."""
    events = context.campaign.events
    for before, event in pairwise(events):
        if event["time_ms"] < before["time_ms"] - SKEW_MS:
            told = f"the journal goes back in time at line {event['seq'] + 1}"
            yield fail(_DATES, f"{told}: {in_words(event['time_ms'])}")
    for name, attempt in context.attempts.items():
        record = context.records.get(name)
        if record is None or not record.events:
            continue
        own = [event for event in events if _is_of(event, attempt.trial, attempt.attempt)]
        begun, ended = own[0]["time_ms"], own[-1]["time_ms"]
        if _begun_ms(record) < begun - SKEW_MS:
            told = f"{name}: began at {in_words(_begun_ms(record))}"
            yield fail(_DATES, f"{told}, before the journal says so ({in_words(begun)})")
        if own[-1]["key"] == "attempt_stop" and _ended_ms(record) > ended + SKEW_MS:
            told = f"{name}: ended at {in_words(_ended_ms(record))}"
            yield fail(_DATES, f"{told}, after the journal says so ({in_words(ended)})")
        yield from (warning(_DATES, f"{name}: {gap}") for gap in _gaps(record, own))


def _gaps(record: Record, own: Sequence[Event]) -> Iterator[str]:
    """Find times between a line of the journal and what it tells of, in which another run could have been made."""
    starts = [event["time_ms"] for event in record.events if event["key"] == "init_start"]
    for event, after in zip(own, [*own[1:], None], strict=True):
        if event["key"] == "attempt_stop":
            continue
        until_ms = after["time_ms"] if after else math.inf
        began = next((one for one in starts if event["time_ms"] - SKEW_MS <= one <= until_ms), None)
        if began is not None and began > event["time_ms"] + _GAP_MS:
            yield f"the journal begins it at {in_words(event['time_ms'])}, its first event is of {in_words(began)}"
    if own[-1]["key"] == "attempt_stop" and own[-1]["time_ms"] > _ended_ms(record) + _GAP_MS:
        last, stop = in_words(_ended_ms(record)), in_words(own[-1]["time_ms"])
        yield f"its last event is of {last}, the journal ends it at {stop}"


def _future(context: Context) -> Iterator[Finding]:
    now_ms = time.time_ns() // 1_000_000 + _FUTURE_MS
    last_ms = 0
    for name, record in context.records.items():
        if not record.events:
            continue
        last_ms = max(last_ms, _ended_ms(record))
        if _ended_ms(record) > now_ms:
            yield fail(_DATES, f"{name}: ends in the future, at {in_words(_ended_ms(record))}")
    created = context.submission.manifest.created
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        yield fail(_DATES, f"manifest: created is {created!r}; expected a time in UTC, ISO 8601")
        return
    created_ms = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    if created_ms < last_ms - SKEW_MS or created_ms > now_ms:
        yield fail(_DATES, f"packed at {created}; the last event is of {in_words(last_ms)}")


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
                    _OVERLAP, f"{host}: {before.name} ran until {until}, {one.name} from {in_words(one.start_ms)} on"
                )
            if before is None or one.stop_ms > before.stop_ms:
                latest[host] = one


def stretches_of(name: str, record: Record) -> Iterator[Stretch]:
    """Yield when the job of a record ran: once for its first start, and once for each resumption."""
    starts = [place for place, event in enumerate(record.events) if event["key"] == "init_start"]
    where = frozenset(_hosts(record))
    told = [device.get("uuid") for node in nodes(record) for device in node.get("accelerators") or []]
    devices = frozenset(map(str, told)) if None not in told else frozenset()
    for start, stop in pairwise([*starts, len(record.events)]):
        begun, ended = record.events[start], record.events[stop - 1]
        boot = begun["value"].get("boot_id")
        yield Stretch(
            name=name,
            hosts=where,
            devices=devices,
            start_ms=begun["time_ms"],
            stop_ms=ended["time_ms"],
            boot=None if boot is None else str(boot),
            boot_start_ms=1000 * begun["clock_s"],
            boot_stop_ms=1000 * ended["clock_s"],
        )


def _hosts(record: Record) -> Iterator[str]:
    """All hosts that it ever ran on."""
    for key in ("run_start", "run_resume"):
        for value in values(record, key):
            yield from map(str, value.get("hosts") or [])
    yield from (str(node["host"]) for node in nodes(record) if node.get("host"))


def _begun_ms(record: Record) -> int:
    """Wall clock of its first event (UNIX time)."""
    return int(record.events[0]["time_ms"])


def _ended_ms(record: Record) -> int:
    """Wall clock of its last event (UNIX time)."""
    return int(record.events[-1]["time_ms"])


def are_apart(devices: Set[str], others: Set[str]) -> bool:
    """Whether two jobs on one node, with these accelerators, used different ones; false where that is unknown."""
    return bool(devices and others) and not devices & others


def _boots(context: Context) -> Iterator[Finding]:
    """A machine's own clock counts from its boot: records of one boot must give one moment for it."""
    starts: dict[str, tuple[str, float]] = {}
    for name, record in context.records.items():
        for event in record.events:
            boot = event["value"].get("boot_id") if event["key"] == "init_start" else None
            if boot is None:
                continue
            started_ms = event["time_ms"] - 1000 * event["clock_s"]
            other, other_ms = starts.setdefault(str(boot), (name, started_ms))
            if abs(started_ms - other_ms) > SKEW_MS:
                told = f"{in_words(started_ms)} by {name}, {in_words(other_ms)} by {other}"
                yield fail(_CLOCKS, f"the machine was started at {told}: one of them was moved in time")


def in_words(moment_ms: float) -> str:
    """`2026-11-22 03:00:00 UTC`."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _is_of(event: Event, trial: int, attempt: int) -> bool:
    value = event["value"]
    return event["key"].startswith("attempt_") and (int(value["trial"]), int(value["attempt"])) == (trial, attempt)


# ----------------------------------------------------------------------------------------------------
# Heads: the campaign is no copy that was chosen by its results.
#
# A head is the hash of a line of the journal, and covers all lines before it. Heads are given to the committee while
# the campaign runs.


_HEADS = "heads"
_DID = {"attempt_start": "begun", "attempt_resume": "gone on with", "attempt_stop": "ended"}
_MOST_NAMED = 5


@dataclass(frozen=True)
class _Journal:
    """The journal of the campaign that was registered.

    Attributes:
        identity: of the campaign, before host names were replaced in it.
        hashes: by number of a line (from 1), as far as they are known: of an anonymised journal, of its two ends.
        events: of all lines.
    """

    identity: str
    hashes: Mapping[int, str]
    events: tuple[Event, ...]

    def line(self, number: int) -> str:
        """For sentences: `line 4 of the journal (trial 2, attempt 1 ended)`."""
        event = self.events[number - 1]
        value = event["value"]
        did = _DID.get(event["key"])
        told = f" (trial {value['trial']}, attempt {value['attempt']} {did})" if did else ""
        return f"line {number} of the journal{told}"


@dataclass(frozen=True)
class _Span:
    """When an attempt was begun, evaluated, and ended at last (UNIX time)."""

    begun_ms: int
    evaluated_ms: tuple[int, ...]
    ended_ms: int

    @property
    def latest_ms(self) -> int:
        """Until when its start could be told without knowing its end, as far as clocks agree."""
        is_long = self.ended_ms - self.begun_ms > 2 * SKEW_MS
        return self.ended_ms - SKEW_MS if is_long else self.ended_ms + SKEW_MS

    def seen(self, from_ms: int, until_ms: int) -> int:
        """How many evaluations there were between two moments, as far as clocks agree."""
        return sum(from_ms < one < until_ms - SKEW_MS for one in self.evaluated_ms)


def check_heads(context: Context) -> Iterator[Finding]:
    """Compare the heads given with the journal: each is of one of its lines, and each line was told in time."""
    given = context.question.heads
    if given is None:
        yield skipped(
            _HEADS,
            "not compared: this could be the better of two copies of the campaign. With the heads that were given "
            "while it ran: --heads FILE",
        )
        return
    journal = _registered_journal(context)
    ours = {head: received_ms for head, received_ms in given.items() if head.campaign == journal.identity}
    told_ms = _told_ms(journal, ours)
    found = [*_other_copy(journal, ours)] or [*_told_in_time(context, journal, told_ms)]
    yield from found
    if not any(one.severity == "fail" for one in found):
        yield _held(context, journal, len(ours), told_ms)
    others = sorted({head.campaign for head in given} - {journal.identity})
    if others:
        named = ", ".join(f"{one[:12]}…" for one in others[:_MOST_NAMED]) + (" …" if len(others) > _MOST_NAMED else "")
        told = count(len(others), "other campaign")
        check = "check whether one is of the same system and was never submitted"
        yield note(_HEADS, f"the file also has heads of {told} ({named}): {check}")


def _registered_journal(context: Context) -> _Journal:
    events, anonymised = context.campaign.events, context.submission.manifest.anonymised
    if anonymised is None:
        hashes = {head.line: head.hash for head in heads_of(context.campaign)}
        return _Journal(context.campaign.identity, {1: context.campaign.identity, **hashes}, events)
    # The last one covers all lines between them.
    last = anonymised.original_heads[f"{CAMPAIGN}/{JOURNAL}"]
    return _Journal(anonymised.original_campaign, {len(events): last, 1: anonymised.original_campaign}, events)


def _other_copy(journal: _Journal, ours: GivenHeads) -> Iterator[Finding]:
    """Report the first head that is not of this journal: once two copies have parted, all lines differ."""
    if not ours:
        yield fail(_HEADS, f"no head of the campaign {journal.identity} was given; expected those of all its lines")
    known = dict(journal.hashes)
    foreign = []
    for head in sorted(ours, key=lambda one: (one.line, ours[one])):
        # Of a line whose hash is unknown, as names were replaced in it, the head that was given first counts.
        own = known.setdefault(head.line, head.hash) if head.line <= len(journal.events) else None
        if own != head.hash:
            foreign.append((head, own))
    if foreign:
        head, own = foreign[0]
        expected = f"expected {own}" if own else f"and this journal ends at line {len(journal.events)}"
        where = journal.line(head.line) if own else f"line {head.line}"
        told = f"{where}: {head.hash} was given at {in_words(ours[head])}, {expected}"
        more = f" (and so on: {len(foreign)} heads)" if foreign[1:] else ""
        yield fail(_HEADS, f"{told}{more}: another copy of the campaign was run")


def _told_in_time(context: Context, journal: _Journal, told_ms: Mapping[int, int]) -> Iterator[Finding]:
    """Check that each line was told while it could not yet be chosen by its result."""
    untold = [number for number in range(2, len(journal.events) + 1) if number not in told_ms]
    if untold:
        lines = journal.line(untold[0]) + (f", and {count(len(untold) - 1, 'line')} after it" if untold[1:] else "")
        yield fail(_HEADS, f"{lines}: no head was given; expected it as soon as the line was written")
    spans = _spans(context, journal)
    for number, received_ms in told_ms.items():
        event = journal.events[number - 1]
        if received_ms < event["time_ms"] - SKEW_MS:
            written = in_words(event["time_ms"])
            told = f"its head was given at {in_words(received_ms)}, and it was written at {written}"
            yield warning(_HEADS, f"{journal.line(number)}: {told}: a clock is wrong, or times were changed")
        elif event["key"] in _DID and (span := spans.get(_number(event))):
            yield from _late(journal, number, received_ms, span)


def _told_ms(journal: _Journal, ours: GivenHeads) -> dict[int, int]:
    """By line, in order, when it was told: when its own head came, or that of a later line, which covers it."""
    first_ms: dict[int, int] = {}
    for head, received_ms in ours.items():
        first_ms[head.line] = min(received_ms, first_ms.get(head.line, received_ms))
    lines = range(min(len(journal.events), max(first_ms, default=0)), 1, -1)
    never_ms = max(ours.values(), default=0)
    soonest_ms = accumulate((first_ms.get(line, never_ms) for line in lines), min)
    return dict(sorted(zip(lines, soonest_ms, strict=True)))


def _late(journal: _Journal, number: int, received_ms: int, span: _Span) -> Iterator[Finding]:
    """Report a line that was told when results were known, or so late that there was time for another run."""
    event = journal.events[number - 1]
    told = f"{journal.line(number)}: the first head that covers it arrived at {in_words(received_ms)}"
    if event["key"] != "attempt_stop":
        seen = span.seen(event["time_ms"], received_ms)
        if received_ms > span.latest_ms:
            yield fail(_HEADS, f"{told}, and the attempt ended at {in_words(span.ended_ms)}: its result was known")
        elif seen:
            known = f"{seen} of its {len(span.evaluated_ms)} evaluations were known: it may have been chosen by them"
            yield warning(_HEADS, f"{told}, when {known}")
    elif received_ms > event["time_ms"] + span.ended_ms - span.begun_ms + SKEW_MS:
        later, ran = ((received_ms - event["time_ms"]) / 1000, (span.ended_ms - span.begun_ms) / 1000)
        yield warning(_HEADS, f"{told}, {duration(later)} after it: time for another run of {duration(ran)}")


def _spans(context: Context, journal: _Journal) -> dict[tuple[int, int], _Span]:
    """Spans of ended attempts that are done or were evaluated: only these could be chosen by result."""
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


def _held(context: Context, journal: _Journal, heads: int, told_ms: Mapping[int, int]) -> Finding:
    if context.submission.manifest.anonymised:
        last = journal.hashes[len(journal.events)]
        return warning(
            _HEADS,
            f"host names were replaced; it says that the original journal ended in {last}, which is the head that was "
            "given: ask for that journal",
        )
    # Receipts are in whole seconds.
    longest_ms = max([1000, *(ms - journal.events[line - 1]["time_ms"] for line, ms in told_ms.items())])
    told = f"{count(heads, 'head')} of this campaign were given, and each is of its line in this journal"
    return note(_HEADS, f"{told}; each line was told within {duration(longest_ms / 1000)}")


# ----------------------------------------------------------------------------------------------------
# Slurm's accounting, a second witness: a job's times and nodes must contain the run that names it.


_ACCOUNTING = "accounting"
# Slurm rounds to whole seconds, and a job starts a moment before its first process.
_SKEW_SECONDS = SKEW_MS / 1000
# Slurm's elapsed time leaves out how long a job was suspended.
_SUSPENDED_SECONDS = 60.0
_GOOD_STATES = ("COMPLETED", "RUNNING", "COMPLETING")
# A host list is expanded only where that takes little.
_HOST_LIST = re.compile(r"[A-Za-z0-9_.,\[\]-]{1,100000}")
_BRACKET = re.compile(r"\[([\d,-]*)\]")
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_HOSTS = 100_000

Job = Mapping[str, Any]


def check_accounting(context: Context) -> Iterator[Finding]:
    """Compare each attempt with the jobs that the journal names for it."""
    # Each once: a stranger's journal may name one job a million times.
    numbers = dict.fromkeys(number for attempt in context.campaign.attempts for number in attempt.slurm_jobs)
    jobs = {number: _job(context, number) for number in numbers}
    found = [*_unnamed(context), *_not_here(context, [number for number, job in jobs.items() if job is None])]
    found += [finding for number, job in jobs.items() if job for finding in _of_job(number, job)]
    looked_at = 0
    for name, record in context.records.items():
        attempt = context.attempts[name]
        found += _of_variables(name, attempt, record)
        own = [job for number in attempt.slurm_jobs if (job := jobs[number])]
        if own and len(own) == len(attempt.slurm_jobs):
            looked_at += 1
            found += _of_run(name, attempt, record, own)
    yield from found
    if not jobs:
        yield skipped(_ACCOUNTING, "the journal names no Slurm job: nobody but the record tells when and where it ran")
    elif looked_at and not any(one.severity == "fail" for one in found):
        yield note(_ACCOUNTING, f"times and nodes of {looked_at} runs lie within those of their Slurm jobs")


def _unnamed(context: Context) -> Iterator[Finding]:
    """Find attempts started by srun without a job in the journal: srun starts nothing outside of a job."""
    begun = [event["value"] for event in context.campaign.events if event["key"] in ("attempt_start", "attempt_resume")]
    odd = [value for value in begun if value.get("launcher") == "srun" and value["slurm_job_id"] is None]
    if odd:
        told = ", ".join(f"trial {value['trial']}, attempt {value['attempt']}" for value in odd[:8])
        yield warning(_ACCOUNTING, f"{told}: started by srun, and the journal names no Slurm job")


def _path(number: str) -> str:
    return f"{ACCOUNTING}/{number}.json"


def _job(context: Context, number: str) -> Job | None:
    path = _path(number)
    return json_object(context.submission.folder / path) if path in context.submission.entries else None


def _not_here(context: Context, numbers: Sequence[str]) -> Iterator[Finding]:
    """Report, by the reason that is told, jobs of the journal whose accounting is not here."""
    told = {left.path: left.reason for left in context.submission.manifest.left_out}
    reasons: dict[str, list[str]] = {}
    for number in numbers:
        reasons.setdefault(told.get(_path(number), "no reason is told"), []).append(number)
    for reason, jobs in reasons.items():
        yield warning(_ACCOUNTING, f"not here is the accounting of the Slurm jobs {', '.join(jobs)}: {reason}")


def _of_job(number: str, job: Job) -> Iterator[Finding]:
    """Check the accounting of one job by itself."""
    if job["job_id"] != number and "_" not in number and "+" not in number:
        yield fail(_ACCOUNTING, f"{number}.json tells of the job {job['job_id']}")
    for run in (*job["earlier"], job):
        start, end, elapsed = _moment(run["start"]), _moment(run["end"]), run["elapsed_seconds"]
        if start is None or end is None or elapsed is None:
            continue
        if elapsed > end - start + _SKEW_SECONDS:
            yield fail(_ACCOUNTING, f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}")
        elif elapsed < end - start - _SUSPENDED_SECONDS:
            evidence = f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}"
            yield warning(_ACCOUNTING, f"{evidence}: it was suspended for the rest, and so was what ran in it")


def _of_run(name: str, attempt: Attempt, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    """Check that the jobs of an attempt contain its run."""
    runs = [run for job in jobs for run in (*job["earlier"], job)]
    spans = [(_moment(run["start"]), _moment(run["end"])) for run in runs]
    known = [(start, end) for start, end in spans if start is not None]
    if len(known) < len(spans):
        yield warning(_ACCOUNTING, f"{name}: its accounting does not tell when each of its jobs began")
    seconds = 0.0
    for stretch in stretches_of(name, record):
        start, stop = stretch.start_ms / 1000, stretch.stop_ms / 1000
        seconds += stop - start
        within = any(
            first - _SKEW_SECONDS <= start and (last is None or stop <= last + _SKEW_SECONDS) for first, last in known
        )
        if known and not within:
            told = f"{in_words(stretch.start_ms)} to {in_words(stretch.stop_ms)}"
            theirs = "; ".join(f"{run['start']} to {run['end']}" for run in runs[:4])
            yield fail(_ACCOUNTING, f"{name}: ran from {told}, and none of its Slurm jobs did: {theirs}")
    elapsed = [run["elapsed_seconds"] for run in runs]
    if None not in elapsed and seconds > sum(elapsed) + _SKEW_SECONDS:
        yield fail(_ACCOUNTING, f"{name}: ran for {seconds:.0f} s, in Slurm jobs of {sum(elapsed)} s together")
    yield from _of_nodes(name, record, jobs)
    if attempt.status == "done" and str(jobs[-1]["state"]).partition(" ")[0] not in _GOOD_STATES:
        yield warning(_ACCOUNTING, f"{name}: done, and its Slurm job {jobs[-1]['job_id']} ended as {jobs[-1]['state']}")


def _of_nodes(name: str, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    worlds = [*values(record, "run_start"), *values(record, "run_resume")]
    most = max((job["nodes"] or 0 for job in jobs), default=0)
    for world in worlds:
        if most and world["nodes"] > most:
            yield fail(_ACCOUNTING, f"{name}: ran on {world['nodes']} nodes, its Slurm job had {most}")
    lists = [names_of_list(job["node_list"]) for job in jobs if job["node_list"] is not None]
    if not lists or None in lists:
        yield warning(_ACCOUNTING, f"{name}: its accounting names no nodes that can be compared")
        return
    had = short_names(host for hosts in lists if hosts for host in hosts)
    strange = sorted(short_names(host for world in worlds for host in world.get("hosts") or []) - had)
    if strange:
        yield fail(_ACCOUNTING, f"{name}: ran on {', '.join(strange[:8])}, which its Slurm job did not have")


def _of_variables(name: str, attempt: Attempt, record: Record) -> Iterator[Finding]:
    """Compare the job's number that the run itself saw with the journal."""
    seen = {str((node.get("environment") or {}).get("SLURM_JOB_ID")) for node in nodes(record)} - {"None"}
    for number in sorted(seen - set(attempt.slurm_jobs)):
        if attempt.slurm_jobs:
            told = ", ".join(attempt.slurm_jobs)
            yield fail(_ACCOUNTING, f"{name}: ran in the Slurm job {number}; the journal says {told}")
        else:
            yield warning(_ACCOUNTING, f"{name}: ran in the Slurm job {number}, which the journal does not name")


def _moment(text: str | None) -> float | None:
    """UNIX seconds of `2026-11-22T03:00:00Z`."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def names_of_list(text: str) -> list[str] | None:
    """The hosts of Slurm's `n[01-03],login`; None where it is no list, or one that is too long to expand."""
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
    """First labels: a node that is `n1` to Slurm may call itself `n1.cluster`."""
    return {str(host).partition(".")[0] for host in hosts}


def _numbers_in(inside: str) -> int | None:
    """How many numbers `01-03,7` stands for; None where it is malformed."""
    found = [_PIECE.fullmatch(piece) for piece in inside.split(",")]
    if None in found:
        return None
    ranges = [(int(piece.group(1)), int(piece.group(2) or piece.group(1))) for piece in found if piece]
    return sum(last - first + 1 for first, last in ranges) if all(first <= last for first, last in ranges) else None
