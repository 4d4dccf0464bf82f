"""Looks at an ensemble from outside, once or again and again: one question to its scheduler, then a bounded look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcai500.ensemble.memory import Jobs, Memory
from hpcai500.ensemble.orders import orders_of
from hpcai500.ensemble.reading import JOURNAL, Ensemble, read_ensemble
from hpcai500.ensemble.scheduler import Scheduler
from hpcai500.ensemble.status import Source, Status, read_status, status_of
from hpcai500.errors import EnvironmentLacksError, RecordError, RunError
from hpcai500.progress import Tracker, silent

# A controller that takes long to answer has much to do: it is left alone for so many times as long.
_KINDNESS = 10.0


@dataclass(frozen=True)
class _Answer:
    """What the scheduler said last, and when (UNIX seconds)."""

    jobs: Jobs
    answered_s: float


class Watch:
    """Looks at the ensemble in one folder; whatever does not answer, what is known is shown.

    Args:
        folder: of the ensemble.
        schedulers: name: makes the scheduler that can be asked; called once, when it is needed.
        memory: what was read before.

    Attributes:
        pause_seconds: that the scheduler is left alone for after it has answered, at least.
    """

    def __init__(
        self, folder: Path, schedulers: Mapping[str, Callable[[], Scheduler]], memory: Memory | None = None
    ) -> None:
        self._folder, self._schedulers, self._memory = folder, schedulers, memory or Memory()
        self._ensemble = read_ensemble(folder)
        self._size = self._journal_bytes()
        self._made: dict[str, Scheduler] = {}
        self._answer: _Answer | None = None
        self.pause_seconds = 0.0

    @property
    def members(self) -> int:
        """How many it has."""
        return self._ensemble.shape.members

    def look(self) -> Status:
        """One poll.

        Raises:
            RecordError: the ensemble's journal cannot be read any more.
        """
        ensemble = self._now()
        jobs, source = self._ask(ensemble)
        return read_status(ensemble, jobs, self._memory, source)

    def look_at_all(self, tracker: Tracker = silent) -> Status:
        """As many polls as it takes to have read all that may tell something; the scheduler is asked once."""
        ensemble = self._now()
        jobs, source = self._ask(ensemble)
        polls = []
        with tracker(ensemble.shape.members, "reading records", "members") as progress:
            for poll in self._memory.catch_up(ensemble, jobs):
                progress.advance(poll.members)
                polls.append(poll)
        return status_of(ensemble, jobs, self._memory, polls, source)

    def _now(self) -> Ensemble:
        """The ensemble as it is now; its journal is read again when it has grown."""
        size = self._journal_bytes()
        if size != self._size:
            self._ensemble, self._size = read_ensemble(self._folder), size
        return self._ensemble

    def _journal_bytes(self) -> int:
        path = self._folder / JOURNAL
        try:
            return path.stat().st_size
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error

    def _ask(self, ensemble: Ensemble) -> tuple[Jobs | None, Source]:
        name = orders_of(ensemble).scheduler
        if name is None or name not in self._schedulers:
            return None, Source(name, "members are processes of one machine" if name else None)
        start = time.monotonic()
        try:
            scheduler = self._made.get(name) or self._schedulers[name]()
            self._made[name] = scheduler
            self._answer = _Answer(scheduler.jobs(ensemble), time.time())
        except (EnvironmentLacksError, RunError) as error:
            if self._answer is None:
                return None, Source(name, str(error))
            return self._answer.jobs, Source(name, str(error), self._answer.answered_s)
        finally:
            self.pause_seconds = _KINDNESS * (time.monotonic() - start)
        return self._answer.jobs, Source(name)


def follow(
    watch: Watch, show: Callable[[Status], None], interval_seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Status:
    """Look and show until no member runs or waits any more; returns how they stand then.

    Raises:
        RecordError: the ensemble's journal cannot be read any more.
    """
    while True:
        status = watch.look()
        show(status)
        if not status.is_going_on and not status.states["unread"]:
            return status
        sleep(max(interval_seconds, watch.pause_seconds))
