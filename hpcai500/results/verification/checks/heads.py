"""The campaign is no copy that was chosen by its results: the committee knew its journal, line by line, before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from hpcai500.campaign.heads import GivenHeads, heads_of
from hpcai500.campaign.reading import JOURNAL
from hpcai500.chain import Event, iterate
from hpcai500.results.report.words import count, duration
from hpcai500.results.submission.manifest import CAMPAIGN
from hpcai500.results.verification.checks.dates import SKEW_MS, in_words
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning

_NAME = "heads"
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
    """When an attempt was begun, when its qualities were known, and when it ended at last (UNIX time)."""

    begun_ms: int
    evaluated_ms: tuple[int, ...]
    ended_ms: int

    @property
    def latest_ms(self) -> int:
        """Until when its begin could be told by somebody who did not know its end, as far as clocks agree."""
        is_long = self.ended_ms - self.begun_ms > 2 * SKEW_MS
        return self.ended_ms - SKEW_MS if is_long else self.ended_ms + SKEW_MS

    def seen(self, from_ms: int, until_ms: int) -> int:
        """How many evaluations there were between two moments, as far as clocks agree."""
        return sum(from_ms < one < until_ms - SKEW_MS for one in self.evaluated_ms)


def check_heads(context: Context) -> Iterator[Finding]:
    """The heads that were given with the journal: each is of a line of it, and each line was told in time."""
    given = context.question.heads
    if given is None:
        yield skipped(
            _NAME,
            "not compared: this could be the better of two copies of the campaign. With the heads that were given "
            "while it ran: --heads FILE",
        )
        return
    journal = _journal(context)
    ours = {head: received_ms for head, received_ms in given.items() if head.campaign == journal.identity}
    told_ms = _told_ms(journal, ours)
    found = [*_foreign(journal, ours)] or [*_times(context, journal, told_ms)]
    yield from found
    if not any(one.severity == "fail" for one in found):
        yield _held(context, journal, len(ours), told_ms)
    others = sorted({head.campaign for head in given} - {journal.identity})
    if others:
        named = ", ".join(f"{one[:12]}…" for one in others[:_MOST_NAMED]) + (" …" if len(others) > _MOST_NAMED else "")
        told = count(len(others), "other campaign")
        check = "check whether one is of the same system and was never submitted"
        yield note(_NAME, f"the file also has heads of {told} ({named}): {check}")


def _journal(context: Context) -> _Journal:
    events, anonymised = context.campaign.events, context.submission.manifest.anonymised
    if anonymised is None:
        hashes = {head.line: head.hash for head in heads_of(context.campaign)}
        return _Journal(context.campaign.identity, {1: context.campaign.identity, **hashes}, events)
    # The last one stands for all lines between them.
    last = anonymised.original_heads[f"{CAMPAIGN}/{JOURNAL}"]
    return _Journal(anonymised.original_campaign, {len(events): last, 1: anonymised.original_campaign}, events)


def _foreign(journal: _Journal, ours: GivenHeads) -> Iterator[Finding]:
    """The first head of this campaign that is not of its journal: once two copies have parted, all lines differ."""
    if not ours:
        yield fail(_NAME, f"no head of the campaign {journal.identity} was given; expected those of all its lines")
    known = dict(journal.hashes)
    foreign = []
    for head in sorted(ours, key=lambda one: (one.line, ours[one])):
        # Of a line that is not known here, as names were replaced in it, the head that was given first counts.
        own = known.setdefault(head.line, head.hash) if head.line <= len(journal.events) else None
        if own != head.hash:
            foreign.append((head, own))
    if foreign:
        head, own = foreign[0]
        expected = f"expected {own}" if own else f"and this journal ends at line {len(journal.events)}"
        where = journal.line(head.line) if own else f"line {head.line}"
        told = f"{where}: {head.hash} was given at {in_words(ours[head])}, {expected}"
        more = f" (and so on: {len(foreign)} heads)" if foreign[1:] else ""
        yield fail(_NAME, f"{told}{more}: another copy of the campaign was run")


def _times(context: Context, journal: _Journal, told_ms: Mapping[int, int]) -> Iterator[Finding]:
    """Each line was told while it could not yet be chosen by its result."""
    untold = [number for number in range(2, len(journal.events) + 1) if number not in told_ms]
    if untold:
        lines = journal.line(untold[0]) + (f", and {count(len(untold) - 1, 'line')} after it" if untold[1:] else "")
        yield fail(_NAME, f"{lines}: no head was given; expected it as soon as the line was written")
    spans = _spans(context, journal)
    for number, received_ms in told_ms.items():
        event = journal.events[number - 1]
        if received_ms < event["time_ms"] - SKEW_MS:
            written = in_words(event["time_ms"])
            told = f"its head was given at {in_words(received_ms)}, and it was written at {written}"
            yield warning(_NAME, f"{journal.line(number)}: {told}: a clock is wrong, or times were changed")
        elif event["key"] in _DID and (span := spans.get(_number(event))):
            yield from _late(journal, number, received_ms, span)


def _told_ms(journal: _Journal, ours: GivenHeads) -> dict[int, int]:
    """By line, in their order, when it was told: its own head came, or that of a later line, which stands for it."""
    first_ms: dict[int, int] = {}
    for head, received_ms in ours.items():
        first_ms[head.line] = min(received_ms, first_ms.get(head.line, received_ms))
    lines = range(min(len(journal.events), max(first_ms, default=0)), 1, -1)
    never_ms = max(ours.values(), default=0)
    soonest_ms = accumulate((first_ms.get(line, never_ms) for line in lines), min)
    return dict(sorted(zip(lines, soonest_ms, strict=True)))


def _late(journal: _Journal, number: int, received_ms: int, span: _Span) -> Iterator[Finding]:
    """Whether a line was told when results were known, or so late that there was time for another run."""
    event = journal.events[number - 1]
    told = f"{journal.line(number)}: the first head that covers it arrived at {in_words(received_ms)}"
    if event["key"] != "attempt_stop":
        seen = span.seen(event["time_ms"], received_ms)
        if received_ms > span.latest_ms:
            yield fail(_NAME, f"{told}, and the attempt ended at {in_words(span.ended_ms)}: its result was known")
        elif seen:
            known = f"{seen} of its {len(span.evaluated_ms)} evaluations were known: it may have been chosen by them"
            yield warning(_NAME, f"{told}, when {known}")
    elif received_ms > event["time_ms"] + span.ended_ms - span.begun_ms + SKEW_MS:
        later, ran = ((received_ms - event["time_ms"]) / 1000, (span.ended_ms - span.begun_ms) / 1000)
        yield warning(_NAME, f"{told}, {duration(later)} after it: time for another run of {duration(ran)}")


def _spans(context: Context, journal: _Journal) -> dict[tuple[int, int], _Span]:
    """Of finished attempts that evaluated at least once: only these could be chosen by result."""
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
            _NAME,
            f"host names were replaced; it says that the original journal ended in {last}, which is the head that was "
            "given: ask for that journal",
        )
    # Receipts are in whole seconds.
    longest_ms = max([1000, *(ms - journal.events[line - 1]["time_ms"] for line, ms in told_ms.items())])
    told = f"{count(heads, 'head')} of this campaign were given, and each is of its line in this journal"
    return note(_NAME, f"{told}; each line was told within {duration(longest_ms / 1000)}")
