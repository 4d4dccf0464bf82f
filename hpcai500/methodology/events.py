"""The events of a run: the types and ranges of their values, the log cut into its starts, and their order.

A run alternates between training and evaluation. Its process may end at any moment (a kill leaves no event), and
another may resume from a checkpoint that the log names. A member of an ensemble then writes its predictions. They are
not timed, so another process may write them after the run has ended.

A value of an unexpected type is refused. An impossible order is described, with the line in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcai500.errors import RecordError
from hpcai500.methodology.samples import Unit

# ----------------------------------------------------------------------------------------------------
# The values of events.
#
# Other keys are allowed. Keys with a default are missing in records of older versions. A record of this version must
# have everything that this version writes in every run (`Value.untold`).


Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4096)]


class Value(BaseModel):
    """The value of an event: wrong types are refused, unknown keys are ignored.

    Attributes:
        sometimes: fields that this version does not write in every run.
        may_be_empty: lists, tables and texts that an honest run may leave empty.
    """

    # Built when first used: no command needs all of them.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)
    sometimes: ClassVar[frozenset[str]] = frozenset()
    may_be_empty: ClassVar[frozenset[str]] = frozenset()

    def missing_fields(self) -> Iterator[str]:
        """Missing or empty fields that this version writes in every run; `table.field` for one of a nested table."""
        for name in type(self).model_fields:
            if name not in self.model_fields_set:
                if name not in self.sometimes:
                    yield name
                continue
            value = getattr(self, name)
            if value in ([], {}, "") and name not in self.sometimes | self.may_be_empty:
                yield name
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Value):
                    yield from (f"{name}.{inner}" for inner in one.missing_fields())


class Launch(Value):
    """`init_start.launch`: the moments before a process began (methodology/goodput.py); null where unknown.

    Attributes:
        process_seconds: since the start of rank 0's process, as /proc shows it.
        scheduler: whether a scheduler started the job.
        job_submitted_s: when the job came into its queue for this start (UNIX seconds).
        job_started_s: when it started the job (UNIX seconds); only for the first run of a job.
        alive_ms: the last sign of life of the process before this one (UNIX milliseconds).
        pause_seconds: between two such signs.
    """

    process_seconds: Amount | None = None
    scheduler: bool = False
    job_submitted_s: Amount | None = None
    job_started_s: Amount | None = None
    alive_ms: Count | None = None
    pause_seconds: Amount | None = None


class InitStart(Value):
    """`init_start`: a process begins."""

    benchmark: Text
    edition: Text
    recipe_hash: Text
    version: Text
    process: Number | None = None
    boot_id: Text | None = None
    campaign: dict[str, Any] | None = None
    launch: Launch | None = None


class Drawn(Value):
    """`dataset.drawn`: the training samples that a member of an ensemble drew."""

    may_be_empty = frozenset({"strata"})

    sampling: Text
    strata: list[Number]
    draws: Number
    distinct: Number
    share: Amount


class Dataset(Value):
    """`dataset`: the data set."""

    # Plug-ins may omit these; `results/verification/run_events.py` checks what our own benchmarks write.
    sometimes = frozenset({"classes", "grid", "classes_not_evaluated", "ignored_files", "drawn", "unit"})

    root: Text | None = None
    fingerprint: Text
    content_fingerprint: Text | None = None
    synthetic: bool | None = None
    training_samples: Number
    evaluation_samples: Number
    coverage: Text
    classes: Count | None = None
    grid: list[Number] | None = None
    classes_not_evaluated: list[Text] | None = None
    ignored_files: Count | None = None
    drawn: Drawn | None = None
    unit: Unit | None = None

    @property
    def samples_of_an_epoch(self) -> int:
        """How many samples an epoch trains on: the whole training set, or a member's draws."""
        return self.training_samples if self.drawn is None else self.drawn.draws


class Model(Value):
    """`model`."""

    parameters: Number
    steps_per_epoch: Number


class Flops(Value):
    """`flops`: operations of one sample, `per_sample` forward and backward."""

    convention: Text
    per_sample: Amount
    forward: Amount


class Ceilings(Value):
    """`ceilings`: the highest rate that the run's devices reach, as measured in the run."""

    precision: Text
    flops: Amount
    slowest_flops: Amount
    slowest_host: Text | None = None
    side: Number | None = None
    ranks: Number
    spread: Amount | None = None
    waited: Amount | None = None
    seconds: Amount


class ParallelEfficiency(Value):
    """`parallel_efficiency`: steps with and without communication, timed before the clock starts."""

    step_seconds_alone: Amount
    step_seconds: Amount
    efficiencies: list[Amount] = []


class InitStop(Value):
    """`init_stop`: the time that a process needed before it trained."""

    seconds: Amount
    compile_seconds: Amount = 0.0


class World(Value):
    """`run_start`: the ranks that train."""

    world_size: Number
    nodes: Number
    hosts: list[Text] = []
    backend: Text | None = None
    library: Text | None = None


class Resume(World):
    """`run_resume`: the ranks that resume, and from where."""

    epoch: Number
    step: Count
    after: Text | None = None
    torn_bytes: Count = 0


class Place(Value):
    """`epoch_start`, `first_step`: an epoch (from 1), and how many of its updates are done."""

    epoch: Number
    step: Count


class Interrupted(Place):
    """`interrupted`: also the times of the epoch so far; means over ranks, in seconds."""

    seconds: Amount = 0.0
    data_wait_seconds: Amount = 0.0
    compute_seconds: Amount = 0.0
    communication_wait_seconds: Amount = 0.0


class Epoch(Value):
    """`eval_start`, `eval_stop`: an epoch (from 1)."""

    epoch: Number


class EpochStop(Value):
    """`epoch_stop`: what an epoch did; times are means over ranks, in seconds."""

    epoch: Number
    steps: Count
    samples: Count
    padded_samples: Count
    warnings: Count = 0
    indexed_samples: Count = 0
    loss: Annotated[float, Field(allow_inf_nan=False)] | None
    seconds: Amount
    data_wait_seconds: Amount
    compute_seconds: Amount = 0.0
    communication_wait_seconds: Amount = 0.0
    coverage: Text


class Replicas(Value):
    """`replicas`: the digest of the weights, equal on all ranks; None if there is one rank.

    Of a sharded model, it is a hash over the digests of all ranks' shards.
    """

    epoch: Number
    ranks: Number
    digest: Text | None


class Evaluation(Value):
    """`eval_accuracy`: the quality after an epoch (from 1)."""

    # Top-1 accuracy has no values per class.
    sometimes = frozenset({"per_class"})

    epoch: Number
    metric: Text
    value: Annotated[float, Field(allow_inf_nan=False)]
    samples: Number
    seconds: Amount
    per_class: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None] | None = None


class Checkpoint(Value):
    """`checkpoint`: its file, and the epoch and step from which it resumes."""

    epoch: Number
    step: Count
    file: Text
    sha256: Text
    bytes: Count = 0


class Throttling(Value):
    """How often, and for how many seconds in sum over its cores, a CPU quota stopped a rank while it trained."""

    quota_cores: Amount
    periods: Count
    throttled_periods: Count
    throttled_seconds: Amount


class StepsRow(Value):
    """One rank in `steps`; `throttling` if it has a CPU quota."""

    sometimes = frozenset({"throttling"})

    rank: Count
    host: Text
    steps: Count
    seconds: Amount
    data_wait_seconds: Amount = 0.0
    compute_seconds: Amount = 0.0
    communication_wait_seconds: Amount = 0.0
    other_seconds: Amount = 0.0
    throttling: Throttling | None = None


class Steps(Value):
    """`steps`: where each rank's time went since the last start."""

    ranks: list[StepsRow]


class CommunicationRow(Value):
    """One rank in `communication`."""

    rank: Count
    host: Text


class Communication(Value):
    """`communication`: what communication cost (methodology/communication.py)."""

    may_be_empty = frozenset({"bytes_per_step", "stragglers", "network"})

    steps: Count
    ranks: list[CommunicationRow]
    bytes_per_step: Any = None
    stragglers: Any = None
    network: Any = None


class File(Value):
    """`picture`, `trace`: a file in the record."""

    file: Text
    sha256: Text


class Predictions(File):
    """`predictions`: a file with a member's predictions for this many samples."""

    kind: Text
    samples: Count


class OutOfBag(Value):
    """`out_of_bag`: the quality of a member on samples that it did not draw; None if there were none."""

    sometimes = frozenset({"per_class"})

    metric: Text
    value: Annotated[float, Field(allow_inf_nan=False)] | None
    samples: Count
    per_class: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None] | None = None


class OutputLost(Value):
    """`output_lost`: rank 0 cannot write to stderr any more, since `lost_ms` (UNIX milliseconds); the run goes on."""

    reason: Text
    lost_ms: Count


class Suspended(Value):
    """`suspended`: seconds since the last event in which the process was stopped; written before the next event."""

    seconds: Amount


VALUES: dict[str, type[Value]] = {
    "init_start": InitStart,
    "dataset": Dataset,
    "model": Model,
    "flops": Flops,
    "ceilings": Ceilings,
    "parallel_efficiency": ParallelEfficiency,
    "init_stop": InitStop,
    "run_start": World,
    "run_resume": Resume,
    "epoch_start": Place,
    "first_step": Place,
    "interrupted": Interrupted,
    "epoch_stop": EpochStop,
    "replicas": Replicas,
    "eval_start": Epoch,
    "eval_accuracy": Evaluation,
    "eval_stop": Epoch,
    "checkpoint": Checkpoint,
    "steps": Steps,
    "communication": Communication,
    "picture": File,
    "trace": File,
    "prediction_start": World,
    "predictions": Predictions,
    "out_of_bag": OutOfBag,
    "output_lost": OutputLost,
    "suspended": Suspended,
}


# ----------------------------------------------------------------------------------------------------
# The log of a run: its events with typed values, cut into the starts of its process.


Event = Mapping[str, Any]
# Events that start the clock.
_BEGIN = ("run_start", "run_resume")
_Kind = TypeVar("_Kind", bound=Value)


@dataclass(frozen=True)
class Moment:
    """One event.

    Attributes:
        key: its name.
        line: its line in the log (from 1).
        wall_s: the wall clock (UNIX seconds).
        clock_s: the machine's clock, in seconds since it started.
        value: None for a key whose value is not checked.
    """

    key: str
    line: int
    wall_s: float
    clock_s: float
    value: Value | None

    def value_as(self, kind: type[_Kind]) -> _Kind:
        """The value, which must be of the type that `VALUES` has for the key; this is not checked."""
        return cast(_Kind, self.value)


@dataclass(frozen=True)
class Log:
    """All events of a run, in order."""

    moments: tuple[Moment, ...]

    def named(self, *keys: str) -> Iterator[Moment]:
        return (moment for moment in self.moments if moment.key in keys)

    def values(self, kind: type[_Kind], *keys: str) -> list[_Kind]:
        return [moment.value_as(kind) for moment in self.named(*keys)]

    @cached_property
    def sessions(self) -> tuple[tuple[Moment, ...], ...]:
        """The events of each process: from each `init_start` to the next."""
        starts = [number for number, moment in enumerate(self.moments) if moment.key == "init_start"]
        ends = [*starts[1:], len(self.moments)]
        return tuple(self.moments[start:end] for start, end in zip(starts, ends, strict=True))

    @cached_property
    def trained(self) -> tuple[tuple[Moment, ...], ...]:
        """Those of `sessions` that began to train; one for each of `worlds`."""
        return tuple(one for one in self.sessions if any(moment.key in _BEGIN for moment in one))

    @cached_property
    def starts(self) -> list[InitStart]:
        return self.values(InitStart, "init_start")

    @cached_property
    def worlds(self) -> list[World]:
        return self.values(World, *_BEGIN)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations, including those that a restart has lost."""
        return self.values(Evaluation, "eval_accuracy")

    @property
    def leaves_evidence(self) -> bool:
        """Whether the version that wrote the log always writes ceilings and replicas; such versions name campaigns."""
        return all("campaign" in start.model_fields_set for start in self.starts)


def read_log(events: Sequence[Event]) -> Log:
    """The log of `events`.

    Raises:
        RecordError: a value of an event is missing or has another type or range.
    """
    return Log(tuple(map(_moment, events)))


def _moment(event: Event) -> Moment:
    kind = VALUES.get(event["key"])
    try:
        value = kind.model_validate(event.get("value")) if kind else None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"line {event['seq'] + 1}, {event['key']}: {where or 'value'}: {first['msg']}") from error
    return Moment(event["key"], event["seq"] + 1, event["time_ms"] / 1000, float(event["clock_s"]), value)


# ----------------------------------------------------------------------------------------------------
# The order of events, and the sequence of epochs and steps.


# What may follow an event within one process. Any event may be followed by an error, or by the next start.
_FOLLOWERS: dict[str, set[str]] = {
    "init_start": {"system", "prediction_start"},
    "system": {"system_differences", "dataset"},
    "system_differences": {"dataset"},
    "dataset": {"model"},
    "model": {"flops"},
    "flops": {"ceilings", "rehearsal", "init_stop"},
    "ceilings": {"rehearsal", "init_stop"},
    "rehearsal": {"parallel_efficiency", "init_stop"},
    "parallel_efficiency": {"init_stop"},
    "init_stop": {"run_start", "run_resume"},
    "run_start": {"epoch_start"},
    "run_resume": {"epoch_start", "run_stop"},
    "epoch_start": {"first_step", "epoch_stop", "interrupted", "diverged", "not_finite"},
    "first_step": {"epoch_stop", "interrupted", "diverged", "not_finite"},
    "epoch_stop": {"replicas", "eval_start", "diverged", "not_finite"},
    "replicas": {"eval_start"},
    "eval_start": {"eval_accuracy", "interrupted"},
    "eval_accuracy": {"eval_stop"},
    "eval_stop": {"checkpoint"},
    "interrupted": {"checkpoint"},
    "checkpoint": {"epoch_start", "run_stop"},
    "diverged": set(),
    "not_finite": set(),
    "run_stop": {"steps", "communication", "trace", "power"},
    "steps": {"communication", "trace", "power"},
    "communication": {"trace", "power"},
    "trace": {"power"},
    "power": {"picture", "picture_error", "predictions"},
    "picture": {"picture", "picture_error", "predictions"},
    "picture_error": {"predictions"},
    "prediction_start": {"predictions"},
    "predictions": {"predictions", "out_of_bag"},
    "out_of_bag": set(),
    "run_error": set(),
}
# Notes, which may come between any two.
NOTES = {"output_lost", "suspended"}
_AFTER_THE_END = {"run_stop", "steps", "communication", "trace", "power", "picture", "picture_error"}
_AFTER_THE_END |= {"predictions", "out_of_bag"}


@dataclass
class _Position:
    """The position of the run.

    Attributes:
        epochs: number of epochs of the recipe.
        epoch: the current or next one.
        step: updates of it that are done.
        saved: all places from which the run may resume.
        is_interrupted: whether a signal ended this process.
        has_started: whether the clock runs.
        has_ended: whether training has ended.
        is_member: whether it must then write predictions.
    """

    epochs: int
    epoch: int = 1
    step: int = 0
    saved: set[tuple[int, int]] = field(default_factory=lambda: {(1, 0)})
    is_interrupted: bool = False
    has_started: bool = False
    has_ended: bool = False
    is_member: bool = False


def order_violations(moments: Iterable[Moment], epochs: int, *, is_member: bool = False) -> Iterator[str]:
    """Yield a sentence, with the line in the log, for each place where no run could have this order of events.

    `epochs` is their number in the recipe; `is_member` is whether the run is a member of an ensemble.
    """
    position, before = _Position(epochs, is_member=is_member), ""
    for moment in moments:
        if moment.key in NOTES and before:
            continue
        if not _may_follow(moment.key, before, position):
            yield f"line {moment.line}: {moment.key} after {before or 'nothing'}"
        step = _STEPS.get(moment.key)
        wrong = step(moment, position) if step else None
        if wrong:
            yield f"line {moment.line}: {moment.key} {wrong}"
        before = moment.key


def unknown_keys(moments: Iterable[Moment]) -> list[str]:
    return sorted({moment.key for moment in moments} - _FOLLOWERS.keys() - NOTES)


def _may_follow(key: str, before: str, position: _Position) -> bool:
    if key == "init_start":
        return position.is_member or before not in _AFTER_THE_END
    if not before:
        return False
    if key == "run_error":
        return before != "run_error"
    # A newer version may write more events; they are left to `unknown_keys`.
    return key in _FOLLOWERS.get(before, {key}) or key not in _FOLLOWERS


def _open(_: Moment, position: _Position) -> str | None:
    position.is_interrupted = False
    return "after the end of the run" if position.has_ended and not position.is_member else None


def _prepare(_: Moment, position: _Position) -> str | None:
    return "after the end of the run" if position.has_ended else None


def _predict(_: Moment, position: _Position) -> str | None:
    if not position.is_member:
        return "in a run of one model"
    return None if position.has_ended else "before the end of the run"


def _begin(_: Moment, position: _Position) -> str | None:
    started, position.has_started = position.has_started, True
    return "for the second time" if started else None


def _resume(moment: Moment, position: _Position) -> str | None:
    value = moment.value_as(Resume)
    position.epoch, position.step = place = value.epoch, value.step
    if not position.has_started:
        return "before run_start"
    return None if place in position.saved else f"at {_words(place)}, where no checkpoint was saved"


def _start_epoch(moment: Moment, position: _Position) -> str | None:
    value = moment.value_as(Place)
    if position.is_interrupted:
        return "in a process that a signal has interrupted"
    if value.epoch > position.epochs:
        return f"of epoch {value.epoch}, but the recipe has {position.epochs}"
    return _expect((value.epoch, value.step), (position.epoch, position.step))


def _first_step(moment: Moment, position: _Position) -> str | None:
    value = moment.value_as(Place)
    return _expect((value.epoch, value.step), (position.epoch, position.step + 1))


def _interrupt(moment: Moment, position: _Position) -> str | None:
    value, wrong = moment.value_as(Place), _same_epoch(moment, position)
    if value.step < position.step:
        wrong = f"at step {value.step} of an epoch that started at step {position.step}"
    position.step, position.is_interrupted = value.step, True
    return wrong


def _stop_epoch(moment: Moment, position: _Position) -> str | None:
    wrong = _same_epoch(moment, position)
    position.step = moment.value_as(EpochStop).steps
    return wrong


def _save(moment: Moment, position: _Position) -> str | None:
    value = moment.value_as(Checkpoint)
    expected = (position.epoch, position.step) if position.is_interrupted else (position.epoch + 1, 0)
    position.epoch, position.step = place = value.epoch, value.step
    position.saved.add(place)
    return _expect(place, expected)


def _stop(_: Moment, position: _Position) -> str | None:
    position.has_ended = True
    return _expect(position.epoch, position.epochs + 1, "where the next epoch is ")


def _same_epoch(moment: Moment, position: _Position) -> str | None:
    return _expect(getattr(moment.value, "epoch", None), position.epoch, "of epoch ")


def _expect(found: object, expected: object, what: str = "at ") -> str | None:
    if found == expected:
        return None
    words = [_words(one) if isinstance(one, tuple) else str(one) for one in (found, expected)]
    return f"{what}{words[0]}, expected {words[1]}"


def _words(place: tuple[int, int]) -> str:
    return f"epoch {place[0]}, step {place[1]}"


# How each event moves the position; each function returns what is wrong with the event's numbers, or None.
_STEPS: dict[str, Callable[[Moment, _Position], str | None]] = {
    "init_start": _open,
    "system": _prepare,
    "prediction_start": _predict,
    "predictions": _predict,
    "out_of_bag": _predict,
    "run_start": _begin,
    "run_resume": _resume,
    "epoch_start": _start_epoch,
    "first_step": _first_step,
    "interrupted": _interrupt,
    "epoch_stop": _stop_epoch,
    "replicas": _same_epoch,
    "eval_start": _same_epoch,
    "eval_accuracy": _same_epoch,
    "eval_stop": _same_epoch,
    "checkpoint": _save,
    "run_stop": _stop,
}
