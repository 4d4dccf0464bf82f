"""The rates and times of an ensemble as a whole (V3.0 sections 2.2 and 3.5), and its members' predictions for the vote.

    APC   = sum over members of (samples of an update x operations of a sample)              Equations 3 and 4
    FLOPS = sum over members of the operations of an epoch / time of an epoch                Equation 6

Members are not synchronised, so an ensemble has finished an epoch when its slowest member has: the time of an epoch is
the longest of the members' mean times. It includes evaluations, checkpoints and restarts, as a single run's clock does
(V2.0 section 5.3.2), so that an ensemble of one has the FLOPS of its member.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.methodology.passes import Event, Timeline

# ----------------------------------------------------------------------------------------------------
# Predictions of a member: the files in its record, and the events with their hashes.


EVALUATION, OUT_OF_BAG = "evaluation", "out-of-bag"
FOLDER = "predictions"
# With this sampling a member draws every sample, so none is out of bag.
_WHOLE = "all"


def file_of(kind: str) -> str:
    """Path of the predictions of this kind in a record."""
    return f"{FOLDER}/{kind}.npz"


def expected_kinds(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Kinds of predictions that a run of the recipe (as plain tables) writes; none for a run of a single model."""
    options = recipe.get("ensemble")
    if options is None:
        return ()
    has_out_of_bag = options["out_of_bag_samples"] > 0 and options["sampling"] != _WHOLE
    return (EVALUATION, OUT_OF_BAG) if has_out_of_bag else (EVALUATION,)


def vouched(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The value of the last event `predictions` of each kind: a damaged file may have been written again."""
    return {event["value"]["kind"]: event["value"] for event in events if event["key"] == "predictions"}


# ----------------------------------------------------------------------------------------------------
# An ensemble's numbers.


# Equation 6 assumes members that train side by side. The slowest one must fill this part of the time from the first
# start to the last stop; then the sustained rate is no less than this part of the reported one.
LEAST_OVERLAP = 0.9

Interval = tuple[float, float]


@dataclass(frozen=True)
class MemberTimes:
    """What one member did, and when.

    Attributes:
        member: number of the member.
        host: where most of its epochs were trained; that of rank 0, if it has several nodes.
        accelerators: their number (P_degree).
        epochs: number of trained epochs.
        images: trained on in all epochs.
        operations: in all epochs.
        training_seconds: time in training steps only.
        start: when its clock began (UNIX seconds).
        intervals: when it ran, in seconds after `start`; more than one if it was down in between.
    """

    member: int
    host: str
    accelerators: int
    epochs: int
    images: int
    operations: float
    training_seconds: float
    start: float
    intervals: tuple[Interval, ...]

    @property
    def seconds(self) -> float:
        """From start to stop, including the time in which it was down."""
        return self.intervals[-1][1]

    @property
    def down_seconds(self) -> float:
        """Time between the last event before each interruption and the step at which training resumed."""
        return self.seconds - self.running_seconds

    @property
    def running_seconds(self) -> float:
        return math.fsum(end - begin for begin, end in self.intervals)


@dataclass(frozen=True)
class SlowestMember:
    """The member that the others waited for.

    Attributes:
        host: where most of its epochs were trained.
        seconds: its time from start to stop.
        slowdown: `seconds` over the median of the others, less 1; None if there are no others.
        down_seconds: the part of `seconds` in which it was down.
        running_slowdown: as `slowdown`, but without downtime; a slow host shows here.
    """

    member: int
    host: str
    seconds: float
    slowdown: float | None
    down_seconds: float = 0.0
    running_slowdown: float | None = None


@dataclass(frozen=True)
class EnsembleNumbers:
    """An ensemble's rates and times.

    Attributes:
        flops: by Equation 6.
        flops_of_members: sum of the members' own rates, each by its own clock; at least `flops`.
        sustained_flops: all operations by the time from the first start to the last stop; at most `flops`.
        images_per_second: images of an epoch by `epoch_seconds`.
        epoch_seconds: time of an epoch, the slowest member's mean.
        seconds: from the first start to the last stop.
        start_skew_seconds: from the first start to the last start.
        at_once: the largest number of members that ran at the same moment.
        overlap: the slowest member's time as a part of `seconds`; 1 where all began together.
        utilisation: part of the accelerators' time within `seconds` that was spent in training steps.
        slowest: the member that took longest.
    """

    flops: float
    flops_of_members: float
    sustained_flops: float
    images_per_second: float
    epoch_seconds: float
    seconds: float
    start_skew_seconds: float
    at_once: int
    overlap: float
    utilisation: float
    slowest: SlowestMember


def parallel_computation(batches: Iterable[int], flops_per_sample: float) -> float:
    """APC: the operations of one update of all members side by side (Equations 3 and 4).

    `batches` are the samples of one update of each member, over all of its accelerators; `flops_per_sample` are the
    operations of one training sample, forward and backward.
    """
    return math.fsum(batch * flops_per_sample for batch in batches)


def epoch_rate(work: Sequence[float], seconds: Sequence[float]) -> float:
    """Equation 6 with Equation 4: the work of an epoch of all members by the time of an epoch, that of the slowest.

    `work` is what each member does in an epoch: operations for FLOPS, images for images a second. `seconds` are the
    members' mean times of an epoch.

    Raises:
        UsageError: there is no member, or one took no time.
    """
    if not work or len(work) != len(seconds) or not all(math.isfinite(one) and one > 0 for one in seconds):
        raise UsageError(f"an epoch of an ensemble: expected work and times above 0 of each member, got {seconds}")
    return math.fsum(work) / max(seconds)


def member_intervals(events: Sequence[Event]) -> tuple[Interval, ...]:
    """When a complete run was up, in seconds of its own clock after its start.

    Each interval goes from the start or a resumption to the stop or the last event before an interruption.

    Raises:
        StopIteration: the run did not finish.
    """
    timeline = Timeline(events)
    start = next(event for event in events if event["key"] == "run_start")
    stop = next(event for event in reversed(events) if event["key"] == "run_stop")
    return tuple(
        (timeline.between(start, first), timeline.between(start, last)) for first, last in _stretches(events, stop)
    )


def epochs_by_host(events: Sequence[Event]) -> dict[str, int]:
    """How many epochs of a run ended on each host, by the host of rank 0; a restart may change the host."""
    found: dict[str, int] = {}
    host = "unknown"
    for event in events:
        if event["key"] in ("run_start", "run_resume"):
            host = str((event["value"].get("hosts") or [host])[0])
        elif event["key"] == "epoch_stop":
            found[host] = found.get(host, 0) + 1
    return found


def ensemble_numbers(members: Sequence[MemberTimes]) -> EnsembleNumbers:
    """The numbers of all members together.

    Raises:
        UsageError: there are no members, or one took no time.
    """
    epochs = [one.seconds / one.epochs for one in members]
    flops = epoch_rate([one.operations / one.epochs for one in members], epochs)
    first = min(one.start for one in members)
    span = max(one.start - first + one.seconds for one in members)
    accelerators = sum(one.accelerators for one in members)
    trained = math.fsum(one.accelerators * one.training_seconds for one in members)
    slowest = slowest_member(members)
    return EnsembleNumbers(
        flops=flops,
        flops_of_members=math.fsum(one.operations / one.seconds for one in members),
        sustained_flops=math.fsum(one.operations for one in members) / span,
        images_per_second=epoch_rate([one.images / one.epochs for one in members], epochs),
        epoch_seconds=max(epochs),
        seconds=span,
        start_skew_seconds=max(one.start for one in members) - first,
        at_once=most_at_once(
            (one.start - first + begin, one.start - first + end) for one in members for begin, end in one.intervals
        ),
        overlap=min(1.0, slowest.seconds / span),
        utilisation=min(1.0, trained / (accelerators * span)),
        slowest=slowest,
    )


def slowest_member(members: Sequence[MemberTimes]) -> SlowestMember:
    """The member that took longest; of equals, the first."""
    slowest = max(members, key=lambda one: one.seconds)
    others = [one for one in members if one is not slowest]
    slowdown = running_slowdown = None
    if others:
        slowdown = slowest.seconds / statistics.median(one.seconds for one in others) - 1
        running = statistics.median(one.running_seconds for one in others)
        running_slowdown = slowest.running_seconds / running - 1 if running > 0 else None
    return SlowestMember(
        slowest.member, slowest.host, slowest.seconds, slowdown, slowest.down_seconds, running_slowdown
    )


def most_at_once(intervals: Iterable[Interval]) -> int:
    """The most intervals that share a moment; one that begins where another ends does not overlap it."""
    changes = sorted(change for begin, end in intervals for change in ((begin, 1), (end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def overlap_reasons(members: int, at_once: int, overlap: float) -> Iterator[str]:
    """Why the members never reached the rate of Equation 6 together; nothing if they did.

    `at_once` and `overlap` are as in `EnsembleNumbers`.
    """
    if at_once < members:
        yield (
            f"the members did not run at the same time: at most {at_once} of {members} did, so V3.0 Eq. 6 "
            "gives a rate that was never there"
        )
    elif overlap < LEAST_OVERLAP:
        yield (
            f"the members overlapped too little for V3.0 Eq. 6: the slowest ran for {overlap:.0%} of the time from the "
            f"first start to the last stop, and {LEAST_OVERLAP:.0%} is required"
        )


def _stretches(events: Sequence[Event], stop: Event) -> Iterator[tuple[Event, Event]]:
    """First and last event of each uninterrupted piece of a run."""
    first: Event | None = None
    last: Event = stop
    for event in events:
        if event["key"] == "init_start" and first is not None:
            yield first, last
            first = None
        if event["key"] in ("run_start", "run_resume") and first is None:
            first = event
        last = event
        if event is stop:
            break
    if first is not None:
        yield first, stop
