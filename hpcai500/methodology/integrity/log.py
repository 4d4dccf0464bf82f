"""The log of a run with typed values, cut into its starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from hpcai500.errors import RecordError
from hpcai500.methodology.integrity.values import VALUES, Company, Evaluation, InitStart, Value

Event = Mapping[str, Any]
# The clock runs from here on.
_BEGIN = ("run_start", "run_resume")
_Kind = TypeVar("_Kind", bound=Value)


@dataclass(frozen=True)
class Moment:
    """One event.

    Attributes:
        key: its name.
        line: its line in the log (from 1).
        wall_s: the wall clock (UNIX seconds).
        clock_s: the machine's clock, in seconds since its start.
        value: what it tells; None for a key whose value is not checked.
    """

    key: str
    line: int
    wall_s: float
    clock_s: float
    value: Value | None

    def told(self, kind: type[_Kind]) -> _Kind:
        """Its value, of the kind that its key has."""
        return cast(_Kind, self.value)


@dataclass(frozen=True)
class Log:
    """All events of a run, in order."""

    moments: tuple[Moment, ...]

    def named(self, *keys: str) -> Iterator[Moment]:
        """The events of these names, in order."""
        return (moment for moment in self.moments if moment.key in keys)

    def values(self, kind: type[_Kind], *keys: str) -> list[_Kind]:
        """What they tell."""
        return [moment.told(kind) for moment in self.named(*keys)]

    @cached_property
    def sessions(self) -> tuple[tuple[Moment, ...], ...]:
        """From each start of a process to the next one's."""
        starts = [number for number, moment in enumerate(self.moments) if moment.key == "init_start"]
        ends = [*starts[1:], len(self.moments)]
        return tuple(self.moments[start:end] for start, end in zip(starts, ends, strict=True))

    @cached_property
    def trained(self) -> tuple[tuple[Moment, ...], ...]:
        """Those of `sessions` that came to training, one for each of `companies`."""
        return tuple(one for one in self.sessions if any(moment.key in _BEGIN for moment in one))

    @cached_property
    def starts(self) -> list[InitStart]:
        """What each process said first."""
        return self.values(InitStart, "init_start")

    @cached_property
    def companies(self) -> list[Company]:
        """Who trained, at each start."""
        return self.values(Company, *_BEGIN)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations, those that a restart has lost as well."""
        return self.values(Evaluation, "eval_accuracy")

    @property
    def leaves_evidence(self) -> bool:
        """Whether the software that wrote it always tells ceilings and replicas: it tells of campaigns, too."""
        return all("campaign" in start.model_fields_set for start in self.starts)


def read_log(events: Sequence[Event]) -> Log:
    """The log of `events`.

    Raises:
        RecordError: an event does not have what it always has, or something else there.
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
