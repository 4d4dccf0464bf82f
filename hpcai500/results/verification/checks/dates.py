"""When things happened: journal and records agree, nothing is in the future, no two runs had one node at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from hpcai500.chain import Event
from hpcai500.record import Record
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import begun_ms, ended_ms, hosts, nodes
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning

_DATES, _OVERLAP, _CLOCKS = "dates", "overlap", "clocks"
# Clocks of a cluster's nodes agree to milliseconds where a time server is heard, to seconds where none is.
SKEW_MS = 60_000
# Another time zone is no excuse: all times are UTC.
_FUTURE_MS = 600_000
# Ranks have five minutes to meet, and a run that has come to its end is gone in seconds.
_GAP_MS = 600_000


@dataclass(frozen=True)
class Stretch:
    """A record's time from one start of its job to the last event before the next one.

    Attributes:
        name: of the record.
        hosts: all that the record ever ran on.
        devices: UUIDs of the accelerators; empty where there is none, or one has no UUID.
        start_ms: wall clock of the first event.
        stop_ms: wall clock of the last one.
        boot: names the start of the machine that the first rank ran on.
        boot_start_ms: time since then, at the first event.
        boot_stop_ms: the same at the last one.
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
    """Wall clocks of journal, records and manifest; clocks of machines between records."""
    found = [*_journal(context), *_future(context), *_overlaps(context), *_boots(context)]
    yield from found
    names = {one.name for one in found}
    if _DATES not in names and context.records:
        first = min(begun_ms(record) for record in context.records.values())
        last = max(ended_ms(record) for record in context.records.values())
        told = f"runs from {in_words(first)} to {in_words(last)}"
        yield note(_DATES, f"{told}; journal and records agree within a minute")
    if _OVERLAP not in names:
        yield note(_OVERLAP, "no two runs had a node at the same time")
    if _CLOCKS not in names:
        yield note(_CLOCKS, "records of one start of a machine agree on when that was")


def _journal(context: Context) -> Iterator[Finding]:
    """Each record lies between the journal's lines that begin and end it."""
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
        if begun_ms(record) < begun - SKEW_MS:
            told = f"{name}: began at {in_words(begun_ms(record))}"
            yield fail(_DATES, f"{told}, before the journal says so ({in_words(begun)})")
        if own[-1]["key"] == "attempt_stop" and ended_ms(record) > ended + SKEW_MS:
            told = f"{name}: ended at {in_words(ended_ms(record))}"
            yield fail(_DATES, f"{told}, after the journal says so ({in_words(ended)})")
        yield from (warning(_DATES, f"{name}: {gap}") for gap in _gaps(record, own))


def _gaps(record: Record, own: Sequence[Event]) -> Iterator[str]:
    """Time between a line of the journal and what it tells of, in which another run could have been made and kept."""
    starts = [event["time_ms"] for event in record.events if event["key"] == "init_start"]
    for event, after in zip(own, [*own[1:], None], strict=True):
        if event["key"] == "attempt_stop":
            continue
        until_ms = after["time_ms"] if after else math.inf
        began = next((one for one in starts if event["time_ms"] - SKEW_MS <= one <= until_ms), None)
        if began is not None and began > event["time_ms"] + _GAP_MS:
            yield f"the journal begins it at {in_words(event['time_ms'])}, its first event is of {in_words(began)}"
    if own[-1]["key"] == "attempt_stop" and own[-1]["time_ms"] > ended_ms(record) + _GAP_MS:
        last, stop = in_words(ended_ms(record)), in_words(own[-1]["time_ms"])
        yield f"its last event is of {last}, the journal ends it at {stop}"


def _future(context: Context) -> Iterator[Finding]:
    now_ms = time.time_ns() // 1_000_000 + _FUTURE_MS
    last_ms = 0
    for name, record in context.records.items():
        if not record.events:
            continue
        last_ms = max(last_ms, ended_ms(record))
        if ended_ms(record) > now_ms:
            yield fail(_DATES, f"{name}: ends in the future, at {in_words(ended_ms(record))}")
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
    """When the job of a record ran: once, and once more for each time that it was gone on with."""
    starts = [place for place, event in enumerate(record.events) if event["key"] == "init_start"]
    where = hosts(record)
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


def are_apart(devices: Set[str], others: Set[str]) -> bool:
    """Whether two jobs on one node, with these accelerators, had each its own."""
    return bool(devices and others) and not devices & others


def _boots(context: Context) -> Iterator[Finding]:
    """A machine's own clock counts from its start: records of one start must give one moment for it."""
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
