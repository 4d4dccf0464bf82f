"""How all members of an ensemble stand, from one answer of their scheduler and a bounded look at their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from hpcai500.ensemble.member_status import (
    GIVEN_UP,
    STATES,
    MemberState,
    MemberStatus,
    Setting,
    member_status,
)
from hpcai500.ensemble.memory import Jobs, Memory, Poll
from hpcai500.ensemble.orders import orders_of
from hpcai500.ensemble.presence import this_machine
from hpcai500.ensemble.reading import RECIPE, Ensemble
from hpcai500.ensemble.status_summary import Percentiles, eta_seconds, is_stuck, percentiles, usual_pace
from hpcai500.ensemble.status_text import status_lines
from hpcai500.errors import ExitCode, RecordError

SCHEMA = "hpcai500-ensemble-status-1"


@dataclass(frozen=True)
class Source:
    """Who says which members run.

    Attributes:
        name: of the scheduler that the members were given to last; None where they were given to none.
        problem: why it tells nothing; None where it does.
        answered_s: when it told what is shown (UNIX seconds); None: now, or never.
    """

    name: str | None = None
    problem: str | None = None
    answered_s: float | None = None


_NOBODY = Source()


@dataclass(frozen=True)
class Status:
    """An ensemble, as it was seen at one moment.

    Attributes:
        ensemble: which.
        rows: all members, in order.
        source: who says which of them run.
        polls: what the looks at the records have cost.
        now_s: the moment (UNIX seconds).
    """

    ensemble: Ensemble
    rows: Sequence[MemberStatus] = field(repr=False)
    source: Source
    polls: Sequence[Poll]
    now_s: float

    @cached_property
    def epochs(self) -> int:
        """Of each member."""
        return _epochs(self.ensemble)

    @cached_property
    def states(self) -> dict[MemberState, int]:
        """Members by state; all states are named."""
        found = Counter(row.state for row in self.rows)
        return {state: found[state] for state in STATES}

    @property
    def is_going_on(self) -> bool:
        """Whether members run or wait for their turn."""
        return bool(self.states["running"] or any(row.state == "waiting" and row.submitted for row in self.rows))

    @property
    def exit_code(self) -> ExitCode:
        """2 where a member will not come to its end by itself; 0 where all is well or goes on."""
        return ExitCode.WRONG_ANSWER if any(self.states[state] for state in GIVEN_UP) else ExitCode.PASS

    @cached_property
    def usual_pace(self) -> float | None:
        """Median seconds of an epoch, over all members that have told; None where none has."""
        return usual_pace(self.rows)

    @cached_property
    def stuck(self) -> frozenset[int]:
        """Members that run and have been silent for too long."""
        return frozenset(row.member for row in self.rows if is_stuck(row, self.usual_pace, self.now_s))

    @cached_property
    def progress(self) -> float:
        """Share of all epochs of all members that are done."""
        return sum(row.progress for row in self.rows) / (self.epochs * len(self.rows))

    @cached_property
    def told(self) -> Sequence[MemberStatus]:
        """Those that percentiles are over: who runs; where nobody does, who has."""
        running = [row for row in self.rows if row.state == "running" and row.epoch is not None]
        return running or [row for row in self.rows if row.epoch is not None]

    @cached_property
    def rates(self) -> list[float]:
        """Images a second of each of them that has told."""
        return [row.images_per_second for row in self.told if row.images_per_second is not None]

    @property
    def rate_percentiles(self) -> Percentiles | None:
        """Of images a second."""
        return percentiles(self.rates)

    @property
    def epoch_percentiles(self) -> Percentiles | None:
        """Of epochs done."""
        return percentiles([row.progress for row in self.told])

    @property
    def quality_percentiles(self) -> Percentiles | None:
        """Of the quality of members that are done."""
        return percentiles([row.quality for row in self.rows if row.state == "done" and row.quality is not None])

    @cached_property
    def eta_seconds(self) -> float | None:
        """About how long until the last member is done, if as many go on running as do now."""
        return eta_seconds(self.rows, self.epochs, self.usual_pace, self.now_s)

    def lines(
        self, width: int | None = None, rows: int | None = 20, *, ascii_only: bool = False, whole: bool = True
    ) -> Iterator[str]:
        """For people.

        Args:
            width: columns of the terminal; None: as many as it takes.
            rows: of the table, at most; None: one for each member.
            ascii_only: whether bars are drawn by letters that every terminal has.
            whole: whether what is wrong is told to its end, beneath the table if need be, or as far as it has room.
        """
        return status_lines(self, width, rows, ascii_only=ascii_only, whole=whole)

    def document(self) -> dict[str, Any]:
        """For programs."""
        ensemble = self.ensemble
        ranges = {
            "epochs_done": self.epoch_percentiles,
            "images_per_second": self.rate_percentiles,
            "quality_of_done": self.quality_percentiles,
        }
        return {
            "schema": SCHEMA,
            "path": str(ensemble.path),
            "identity": ensemble.identity,
            "benchmark": ensemble.start.get("benchmark"),
            "edition": ensemble.start.get("edition"),
            "members": ensemble.shape.members,
            "degree": ensemble.shape.degree,
            "epochs": self.epochs,
            "scheduler": asdict(self.source),
            "states": self.states,
            "stuck": sorted(self.stuck),
            "going_on": self.is_going_on,
            "progress": self.progress,
            "eta_seconds": self.eta_seconds,
            "percentiles": {name: found.document() if found else None for name, found in ranges.items()},
            "polls": [asdict(poll) for poll in self.polls],
            "rows": [row.document(self.now_s) for row in self.rows],
        }


def read_status(ensemble: Ensemble, jobs: Jobs | None, memory: Memory, source: Source = _NOBODY) -> Status:
    """How all members stand, after one poll of their records.

    Args:
        ensemble: which.
        jobs: how its scheduler sees the members; None where there is none to ask: the records alone tell.
        memory: what was read before; one for each ensemble.
        source: who said what `jobs` says.
    """
    return status_of(ensemble, jobs, memory, [memory.poll(ensemble, jobs)], source)


def status_of(
    ensemble: Ensemble, jobs: Jobs | None, memory: Memory, polls: Sequence[Poll], source: Source = _NOBODY
) -> Status:
    """How all members stood after `polls`, by what `memory` has of them: nothing is read."""
    orders = orders_of(ensemble)
    machine = this_machine() if jobs is None else None
    setting = Setting(_epochs(ensemble), orders, machine)
    known = {} if jobs is None else jobs
    rows = [member_status(number, known.get(number), memory.member(number), setting) for number in ensemble.members]
    return Status(ensemble, rows, source, polls, memory.now_s)


def _epochs(ensemble: Ensemble) -> int:
    """Of each member.

    Raises:
        RecordError: the recipe does not say.
    """
    problem = ensemble.tables.get("problem")
    epochs = problem.get("epochs") if isinstance(problem, Mapping) else None
    if not isinstance(epochs, int) or epochs < 1:
        raise RecordError(f"{ensemble.path / RECIPE}: problem.epochs: expected 1 or more, got {epochs!r}")
    return epochs
