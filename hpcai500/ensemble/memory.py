"""What is known of all members between two looks, and which of them a poll looks at: never more than it may.

Who waits, or has ended and is known, costs nothing: the scheduler's answer, one for all, says who that is. Of the
others a poll looks at those whose job has ended, those whose job has begun, and those that nobody has looked at for
longest, one of each in turn: every one is seen within a bounded number of polls, whatever else happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hpcai500.ensemble.member_memory import MemberMemory
from hpcai500.ensemble.reading import Ensemble
from hpcai500.ensemble.record_tail import Meter
from hpcai500.ensemble.scheduler import MemberJob

# Of one poll.
MOST_FILES = 256
MOST_BYTES = 2**26
# That one look opens at most: record, journal and record again, twice in the worst case, failures and output.
_FILES_A_LOOK = 7

Jobs = Mapping[int, MemberJob]


@dataclass(frozen=True)
class Poll:
    """What one poll has cost.

    Attributes:
        number: which one, from 1.
        members: that were looked at.
        files: that were opened.
        read_bytes: that were read.
        seconds: that it took.
        cpu_seconds: of this process.
        left: members that it would have looked at, had it been allowed to.
    """

    number: int
    members: int
    files: int
    read_bytes: int
    seconds: float
    cpu_seconds: float
    left: int


class Memory:
    """The members of one ensemble, as they were seen last.

    Args:
        files: that one poll opens at most.
        read_bytes: that one poll reads at most, give or take one member's.
        clock: UNIX seconds.

    Attributes:
        last: what the last poll has cost; None before the first.
        now_s: when that was.
    """

    def __init__(
        self, files: int = MOST_FILES, read_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._files, self._bytes, self._clock = max(files, 2 * _FILES_A_LOOK), read_bytes, clock
        self._members: dict[int, MemberMemory] = {}
        self.last: Poll | None = None
        self.now_s = 0.0

    def member(self, member: int) -> MemberMemory | None:
        """What is known of a member; None where nobody has looked at it."""
        return self._members.get(member)

    def poll(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool = False) -> Poll:
        """Look at those who need it most.

        Args:
            ensemble: whose members.
            jobs: how its scheduler sees them; None where there is none to ask: then all may have changed.
            only_unread: whether to leave out those that were looked at since their job changed.
        """
        start, cpu = time.perf_counter(), time.process_time()
        self.now_s, number, meter, looked = self._clock(), self.last.number + 1 if self.last else 1, Meter(), 0
        queues = self._wanted(ensemble, jobs, only_unread=only_unread)
        for member in _in_turn(queues):
            if meter.files + _FILES_A_LOOK > self._files or meter.read_bytes >= self._bytes:
                break
            known = self._members.setdefault(member, MemberMemory())
            known.looked, looked = number, looked + 1
            plan = {"id": ensemble.identity, "member": member}
            known.look(str(ensemble.folder(member)), plan, _job(jobs, member), self.now_s, meter)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        left = sum(map(len, queues)) - looked
        self.last = Poll(number, looked, meter.files, meter.read_bytes, seconds, cpu_seconds, left)
        return self.last

    def catch_up(self, ensemble: Ensemble, jobs: Jobs | None) -> Iterator[Poll]:
        """Poll until every member that may tell something was looked at, and read to its end."""
        yield self.poll(ensemble, jobs, only_unread=True)
        while self.last and self.last.left + sum(known.is_behind for known in self._members.values()):
            yield self.poll(ensemble, jobs, only_unread=True)

    def _wanted(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool) -> Sequence[Sequence[int]]:
        """Who has ended, who has begun, and who else may tell something; the longest unseen first."""
        ended: list[tuple[int, int]] = []
        begun: list[tuple[int, int]] = []
        steady: list[tuple[int, int]] = []
        for member in ensemble.members:
            known, job = self._members.get(member), _job(jobs, member)
            looked = known.looked if known else 0
            if _is_idle(known, job, is_told=jobs is not None):
                continue
            if job is not None and (known is None or known.job != job):
                (begun if job.state == "running" else ended).append((looked, member))
            elif not only_unread or known is None or known.is_behind:
                steady.append((looked, member))
        return [[member for _, member in sorted(queue)] for queue in (ended, begun, steady)]


def _job(jobs: Jobs | None, member: int) -> MemberJob | None:
    return jobs.get(member) if jobs is not None else None


def _is_idle(known: MemberMemory | None, job: MemberJob | None, *, is_told: bool) -> bool:
    """Whether a look at a member could tell nothing new; `is_told`: by what its scheduler tells of all members."""
    if job is not None and job.state == "waiting":
        return True
    if known is None or known.job != job:
        return False
    if is_told and job is None and not known.is_behind:
        # Nobody was asked to run it; whoever runs it by hand has begun by now.
        return known.journal.status != "running"
    return known.has_settled


def _in_turn(queues: Sequence[Sequence[int]]) -> Iterator[int]:
    """One of each in turn, so that none keeps the others waiting for ever."""
    for members in zip_longest(*queues):
        yield from (member for member in members if member is not None)
