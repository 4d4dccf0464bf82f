"""Goodput: where the wall-clock time of a run went, over all its starts.

Every moment from the first start to the end of training belongs to exactly one part. Between two events of one process,
the events say which. From the last event of a process to the first of the next one, four moments divide the time:
the last sign of life, the submission to the queue, the start of the job and the start of the process. What they cannot
tell is `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hpcai500.methodology.passes import Event, Timeline, last_pass

# ----------------------------------------------------------------------------------------------------
# What the numbers are.


class Parts(BaseModel):
    """Seconds of wall-clock time; they add up to the whole. None for a part that the record cannot tell.

    Attributes:
        startup: from the start of the job or process until training begins: image, imports, rendezvous, compilation.
        input: steps that wait for data.
        steps: training steps, without the waits.
        communication: steps that wait for communication.
        evaluation: from the end of an epoch's training to the end of its evaluation.
        checkpoint: from there until the next epoch begins.
        lost: training, evaluations and checkpoints that were done again after a restart.
        downtime: no process of the run existed, and it was not in a queue.
        queue: the scheduler had the job, and had not started it again.
        suspended: the processes of the run were stopped, as by `scontrol suspend`, or their host was.
        unknown: the record cannot tell.
    """

    model_config = ConfigDict(frozen=True)

    startup: float = 0.0
    input: float | None = 0.0
    steps: float | None = 0.0
    communication: float | None = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    lost: float = 0.0
    downtime: float = 0.0
    queue: float = 0.0
    suspended: float = 0.0
    unknown: float = 0.0

    @property
    def without_machine(self) -> float:
        """Time in which the run did not have its machine."""
        return self.downtime + self.queue + self.suspended


PARTS = tuple(Parts.model_fields)


class Goodput(BaseModel):
    """Where the time of a run went.

    Attributes:
        fraction: time of the steps that count / wall-clock time.
        wall_seconds: from the first start of the run to its end.
        seconds: its parts.
        interruptions: how often a process of the run ended before the run did.
        mean_between_interruptions_seconds: time in which the run had its machine (not `Parts.without_machine`), for
            each interruption; None without one.
        recovery_seconds: mean time from an interruption to the end of the first training step after it.
        checkpoints: how many were written.
        checkpoint_seconds: mean time of one.
        began_s: when the run first started, and `submitted_s` when its first job came into the queue (UNIX seconds);
            None if unknown, as of a goodput that was read from a file.
    """

    model_config = ConfigDict(frozen=True)

    fraction: float | None
    wall_seconds: float
    seconds: Parts
    interruptions: int
    mean_between_interruptions_seconds: float | None
    recovery_seconds: float | None
    checkpoints: int
    checkpoint_seconds: float | None
    began_s: float | None = Field(default=None, exclude=True)
    submitted_s: float | None = Field(default=None, exclude=True)


_SHARE = "share of "
# Each number by the name that commands and contracts use: its unit, and whether higher or lower is better.
FIGURES: dict[str, tuple[str, Literal["higher", "lower"]]] = {
    "goodput": ("fraction", "higher"),
    **{f"{_SHARE}{part}": ("fraction", "lower") for part in PARTS if part != "steps"},
    "mean_between_interruptions_seconds": ("s", "higher"),
    "recovery_seconds": ("s", "lower"),
    "checkpoint_seconds": ("s", "lower"),
}


def figure(found: Goodput | None, name: str) -> float | None:
    """The number `name` of `FIGURES`; None if it is unknown."""
    if found is None:
        return None
    if name.startswith(_SHARE):
        seconds = getattr(found.seconds, name.removeprefix(_SHARE))
        return seconds / found.wall_seconds if seconds is not None and found.wall_seconds else None
    value: float | None = found.fraction if name == "goodput" else getattr(found, name)
    return value


def goodput(events: Sequence[Event], timeline: Timeline | None = None) -> Goodput | None:
    """Where the time of a run went, from the events of its record; None without events.

    For a run that has not ended, up to the last event. `timeline` is that of the events.
    """
    if not events:
        return None
    walk = _Walk(events, timeline or Timeline(events))
    parts = dict.fromkeys(PARTS, 0.0)
    for span in walk.spans:
        if span.part != _TRAINING:
            parts[span.part] += span.seconds
    untold = _add_training(parts, walk.spans, events)
    wall = math.fsum(parts.values())
    saving = math.fsum(span.seconds for span in walk.spans if span.did == "checkpoint" and not span.is_suspended)
    saved = sum(event["key"] == "checkpoint" for event in events)
    told = Parts.model_validate({name: None if name in untold else seconds for name, seconds in parts.items()})
    had_machine = wall - told.without_machine
    return Goodput(
        fraction=parts["steps"] / wall if wall and "steps" not in untold else None,
        wall_seconds=wall,
        seconds=told,
        interruptions=walk.interruptions,
        mean_between_interruptions_seconds=had_machine / walk.interruptions if walk.interruptions else None,
        recovery_seconds=math.fsum(walk.recoveries) / len(walk.recoveries) if walk.recoveries else None,
        checkpoints=saved,
        checkpoint_seconds=saving / saved if saved else None,
        began_s=walk.began_s,
        submitted_s=walk.submitted_s,
    )


def in_turn(runs: Iterable[Goodput | None]) -> Goodput | None:
    """The goodput of runs that were made one after the other: as `total`, and the time between two of them counts.

    From the end of one until the next was submitted, or began, nothing ran: downtime. None unless that of every run
    is known.
    """
    found = list(runs)
    summed = total(found)
    spans = [(run.began_s, run) for run in found if run is not None and run.began_s is not None]
    if summed is None or len(spans) < len(found):
        return summed
    spans.sort(key=lambda span: span[0])
    downtime = queue = 0.0
    ended = spans[0][0]
    for began, run in spans:
        # Runs of a campaign may also be made at the same time.
        if began > ended:
            submitted = began if run.submitted_s is None else min(max(run.submitted_s, ended), began)
            downtime += submitted - ended
            queue += began - submitted
        ended = max(ended, began + run.wall_seconds)
    parts = summed.seconds.model_copy(
        update={"downtime": summed.seconds.downtime + downtime, "queue": summed.seconds.queue + queue}
    )
    wall = summed.wall_seconds + downtime + queue
    fraction = parts.steps / wall if parts.steps is not None and wall else None
    return summed.model_copy(update={"fraction": fraction, "wall_seconds": wall, "seconds": parts})


def total(runs: Iterable[Goodput | None]) -> Goodput | None:
    """The goodput of several runs: times are summed, means are over all their interruptions and checkpoints.

    None unless that of every run is known.
    """
    found = list(runs)
    known = [run for run in found if run is not None]
    if not known or len(known) < len(found):
        return None
    values = {name: [getattr(run.seconds, name) for run in known] for name in PARTS}
    summed = {name: None if None in ones else math.fsum(ones) for name, ones in values.items()}
    # What one run cannot tell, no sum of runs can.
    rest = math.fsum(value for name, ones in values.items() if summed[name] is None for value in ones if value)
    parts = Parts.model_validate({**summed, "unknown": (summed["unknown"] or 0.0) + rest})
    wall = math.fsum(run.wall_seconds for run in known)
    interruptions = sum(run.interruptions for run in known)
    saved = sum(run.checkpoints for run in known)
    recovered = [(run.recovery_seconds, run.interruptions) for run in known if run.interruptions]
    return Goodput(
        fraction=parts.steps / wall if parts.steps is not None and wall else None,
        wall_seconds=wall,
        seconds=parts,
        interruptions=interruptions,
        mean_between_interruptions_seconds=(wall - parts.without_machine) / interruptions if interruptions else None,
        recovery_seconds=_mean(recovered),
        checkpoints=saved,
        checkpoint_seconds=_mean([(run.checkpoint_seconds, run.checkpoints) for run in known if run.checkpoints]),
    )


def _mean(ones: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean of values, each with how often it counts; None if there is none, or one is unknown."""
    if not ones or any(value is None for value, _ in ones):
        return None
    return math.fsum((value or 0.0) * count for value, count in ones) / sum(count for _, count in ones)


# ----------------------------------------------------------------------------------------------------
# The time of a run, cut into spans.


# Steps with their waits, until the totals of their epoch divide them.
_TRAINING = "training"
# What a restart does again unless a checkpoint has saved it.
_WORK = (_TRAINING, "evaluation", "checkpoint")
# What a process does after an event; any other event changes nothing.
_AFTER = {
    "init_start": "startup",
    "run_start": "startup",
    "run_resume": "startup",
    "epoch_start": _TRAINING,
    "epoch_stop": "evaluation",
    "eval_stop": "checkpoint",
    "interrupted": "checkpoint",
    "checkpoint": "checkpoint",
    "diverged": "downtime",
    "not_finite": "downtime",
    "run_error": "downtime",
}


@dataclass
class _Span:
    """A part of the time.

    Attributes:
        did: what the process did.
        epoch: in which it was done.
        is_saved: whether it followed its checkpoint, so that no restart does it again.
        is_lost: whether a restart did it again.
        is_suspended: whether the process was stopped while it did that.
    """

    did: str
    seconds: float
    epoch: int
    is_saved: bool = False
    is_lost: bool = False
    is_suspended: bool = False

    @property
    def part(self) -> str:
        return "suspended" if self.is_suspended else "lost" if self.is_lost else self.did


@dataclass
class _Walk:
    """The spans of a run, its interruptions, and how long it took to train again after each."""

    events: Sequence[Event]
    timeline: Timeline
    spans: list[_Span] = field(default_factory=list)
    interruptions: int = 0
    recoveries: list[float] = field(default_factory=list)
    # Where the run is: what the process does, in which epoch, and whether a checkpoint holds all that was done.
    did: str = "startup"
    epoch: int = 1
    is_saved: bool = False
    # (epoch, step) -> how many spans were done when its checkpoint was written.
    saved: dict[tuple[int, int], int] = field(default_factory=lambda: {(1, 0): 0})
    # When the process ended, if no step was done since.
    failed_s: float | None = None
    # When the first process started, and when its job came into the queue (UNIX seconds).
    began_s: float = 0.0
    submitted_s: float | None = None

    def __post_init__(self) -> None:
        before: Event | None = None
        for event in self.events:
            if before is None:
                self._first(event)
            elif event["key"] == "init_start":
                self._between(before, event)
            elif event["key"] == "suspended":
                self._suspend(self._at(before), self._at(event), event["value"]["seconds"])
            else:
                self._add(self.did, self._at(before), self._at(event))
            self._take(event)
            if event["key"] == "run_stop":
                return
            before = event
        if before is not None and self.did == "downtime":
            # The run ended with an error: what no checkpoint holds is lost.
            self._lose(max(self.saved.values()))

    def _at(self, event: Event) -> float:
        return self.timeline.between(self.events[0], event)

    def _add(self, did: str, start: float, stop: float, *, is_suspended: bool = False) -> None:
        if stop > start:
            self.spans.append(_Span(did, stop - start, self.epoch, self.is_saved, is_suspended=is_suspended))

    def _suspend(self, start: float, stop: float, seconds: float) -> None:
        """Divide the time before the event `suspended`, which is written with the next event after the stop."""
        resumed = max(start, stop - seconds)
        self._add(self.did, start, resumed)
        self._add(self.did, resumed, stop, is_suspended=True)

    def _take(self, event: Event) -> None:
        key, value = event["key"], event.get("value") or {}
        if key == "first_step" and self.failed_s is not None:
            self.recoveries.append(self._at(event) - self.failed_s)
            self.failed_s = None
        if key == "run_resume":
            place = (value["epoch"], value["step"])
            after = next((n for n, span in enumerate(self.spans) if span.epoch >= place[0]), len(self.spans))
            since = self.saved.get(place, after)
            self._lose(since)
            # A damaged checkpoint, and what came after it, is no place to resume from.
            self.saved = {one: count for one, count in self.saved.items() if count <= since}
        if key in ("epoch_start", "run_resume"):
            self.epoch = value["epoch"]
        if key == "checkpoint":
            self.saved[value["epoch"], value["step"]] = len(self.spans)
        self.is_saved = key == "checkpoint" or (self.is_saved and key not in _AFTER)
        self.did = _AFTER.get(key, self.did)

    def _lose(self, since: int) -> None:
        for span in self.spans[since:]:
            span.is_lost = span.did in _WORK and not span.is_saved

    def _first(self, event: Event) -> None:
        self.began_s = event["time_ms"] / 1000
        launch = _Launch.of(event)
        if launch is None:
            return
        known = [moment for moment in (launch.process_s, launch.job_s) if moment is not None]
        self.began_s = min([launch.init_s, *known])
        self.submitted_s = launch.submit_s
        self._add("startup", self.began_s - launch.init_s, 0.0)

    def _between(self, before: Event, event: Event) -> None:
        """Divide the time from the last event of a process to the first of the next."""
        self.interruptions += 1
        start, stop = self._at(before), self._at(event)
        launch = _Launch.of(event)
        is_told = self.did == "downtime"
        if launch is None or launch.process_s is None:
            self._fail(start)
            self._add("unknown", start, stop)
            return

        def at(wall_s: float, least: float, most: float) -> float:
            """A moment of the wall clock, between two others."""
            return min(max(stop - (launch.init_s - wall_s), least), most)

        alive = start if is_told or launch.alive_s is None else at(launch.alive_s, start, stop)
        # A process that waited for the end of the other one was of no use before.
        process = at(launch.process_s, alive, stop)
        # Until then the process may have lived on.
        dead = start if is_told else process if launch.alive_s is None else min(alive + launch.pause_s, process)
        self._fail(alive)
        self._add(self.did, start, alive)
        self._add("unknown", alive, dead)
        if launch.job_s is None:
            self._add("unknown" if launch.has_scheduler else "downtime", dead, process)
        else:
            job = at(launch.job_s, dead, process)
            if launch.submit_s is None:
                self._add("unknown", dead, job)
            else:
                submit = at(launch.submit_s, dead, job)
                self._add("downtime", dead, submit)
                self._add("queue", submit, job)
            # A job that started before the process ended did not wait in a queue again.
            same = launch.job_s <= before["time_ms"] / 1000
            self._add("downtime" if same else "startup", job, process)
        self._add("startup", process, stop)

    def _fail(self, moment_s: float) -> None:
        self.failed_s = moment_s if self.failed_s is None else self.failed_s


@dataclass(frozen=True)
class _Launch:
    """The moments before the first event of a process (UNIX seconds), from the event `init_start`; None if unknown."""

    init_s: float
    process_s: float | None
    job_s: float | None
    submit_s: float | None
    has_scheduler: bool
    alive_s: float | None
    pause_s: float

    @classmethod
    def of(cls, event: Event) -> _Launch | None:
        """None for a record of an older version."""
        value: Mapping[str, Any] | None = (event.get("value") or {}).get("launch")
        if value is None:
            return None
        now = event["time_ms"] / 1000
        process = value.get("process_seconds")
        alive = value.get("alive_ms")
        return cls(
            now,
            None if process is None else now - process,
            value.get("job_started_s"),
            value.get("job_submitted_s"),
            bool(value.get("scheduler")),
            None if alive is None else alive / 1000,
            value.get("pause_seconds") or 0.0,
        )


# ----------------------------------------------------------------------------------------------------
# Training, divided by the totals of each epoch.


def _add_training(parts: dict[str, float], spans: Iterable[_Span], events: Sequence[Event]) -> set[str]:
    """Add the time of training that counts to `parts`; returns those that the record cannot tell.

    An epoch's waits are means over ranks; its time is that of rank 0, which writes the events. A stop falls into waits
    and into the rest in proportion to how long they are, so each is reduced by the same factor.
    """
    seconds: dict[int, float] = {}
    with_stops: dict[int, float] = {}
    for span in spans:
        if span.did != _TRAINING or span.is_lost:
            continue
        with_stops[span.epoch] = with_stops.get(span.epoch, 0.0) + span.seconds
        if not span.is_suspended:
            seconds[span.epoch] = seconds.get(span.epoch, 0.0) + span.seconds
    stops = last_pass(events, "epoch_stop")
    ends = {**last_pass(events, "interrupted"), **stops}
    # One process does not communicate; an older record may lack that it did not.
    is_alone = all(event["value"].get("world_size") == 1 for event in events if event["key"] in _BEGIN)
    untold: set[str] = set()
    for epoch, whole in seconds.items():
        value = ends[epoch]["value"] if epoch in ends else {}
        data = value.get("data_wait_seconds")
        communication = value.get("communication_wait_seconds", 0.0 if is_alone else None)
        if data is None or communication is None:
            parts["unknown"] += whole
            # Of the epoch in which an unfinished run is, nothing is written yet.
            untold |= {"input", "steps", "communication"} if epoch in stops else set()
            continue
        running = whole / with_stops[epoch]
        waiting = min(data * running, whole)
        communicating = min(communication * running, whole - waiting)
        parts["input"] += waiting
        parts["communication"] += communicating
        parts["steps"] += whole - waiting - communicating
    if untold:
        # A sum without some of its epochs would be too small.
        parts["unknown"] += sum(parts[name] for name in untold)
        parts.update(dict.fromkeys(untold, 0.0))
    return untold


_BEGIN = ("run_start", "run_resume")


# ----------------------------------------------------------------------------------------------------
# Times that no run can have.


# Clocks of two hosts, and the whole seconds of a scheduler, differ by less.
_SKEW_SECONDS = 5.0


def contradictions(events: Sequence[Event]) -> Iterator[str]:
    """Yield a sentence, with the line in the log, for times that overlap or are negative."""
    before: Event | None = None
    begun: Event | None = None
    for event in events:
        line = f"line {event['seq'] + 1}: {event['key']}"
        if event["key"] == "init_start":
            yield from (f"{line}: {what}" for what in _of_launch(event, before))
        elif event["key"] == "epoch_start":
            begun = event
        elif event["key"] in ("epoch_stop", "interrupted") and begun is not None:
            yield from (f"{line}: {what}" for what in _of_waits(event))
            begun = None
        before = event


def _of_launch(event: Event, before: Event | None) -> Iterator[str]:
    launch = _Launch.of(event)
    if launch is None:
        return
    last = None if before is None else before["time_ms"] / 1000
    alive = "the last sign of life of the process before it"
    yield from _disordered(("the event before it", last), (alive, launch.alive_s), ("this event", launch.init_s))
    job = "the start of its job"
    yield from _disordered(
        ("the submission of its job", launch.submit_s),
        (job, launch.job_s),
        ("the start of its process", launch.process_s),
    )
    if launch.alive_s is not None and last is None:
        yield "a sign of life of a process before the first one"


def _disordered(*moments: tuple[str, float | None]) -> Iterator[str]:
    known = [(name, moment) for name, moment in moments if moment is not None]
    for (earlier, one), (later, other) in pairwise(known):
        if one > other + _SKEW_SECONDS:
            yield f"{earlier} was {one - other:.1f} s after {later}: they overlap"


def _of_waits(event: Event) -> Iterator[str]:
    value = event.get("value") or {}
    parts = [value.get(name) for name in ("data_wait_seconds", "communication_wait_seconds")]
    whole = value.get("seconds")
    known = [part for part in parts if part is not None]
    if whole is not None and sum(known) > whole * 1.01 + 0.1:
        yield f"{sum(known):.1f} s of waiting in {whole:.1f} s of training"
