"""One member, as it was found when it was looked at last, and how it is looked at again.

A look opens the record, and the journal of the member's campaign only when that may have grown: at the beginning, after
its job has changed, and at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import JOURNAL, NO_EVENTS
from hpcai500.campaign.turns import ALL_TRIALS, lock_path
from hpcai500.ensemble.failures import Failure, read_failures, read_last_error
from hpcai500.ensemble.member_facts import JournalFacts, RecordFacts, tells_place
from hpcai500.ensemble.record_tail import LogTail, Meter
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.errors import RecordError

# Without a scheduler that tells of new jobs, the journal of a record that is silent is asked now and then.
_JOURNAL_AFTER_SECONDS = 60.0
# What a job has left behind may reach a shared file system late: so many looks, then it is taken for what it is.
_LOOKS_AFTER_THE_END = 3


@dataclass(slots=True)
class MemberMemory:
    """What is remembered of one member.

    Attributes:
        looked: number of the poll that looked at it last; 0: none has.
        looked_s: when that was (UNIX seconds).
        job: as the scheduler saw it then.
        looks: since its job changed.
        journal: what the journal of its campaign has told.
        record: what the record of its last attempt has told.
        failures: of its own, as its batch script or the runner of this machine told.
        last_error: that its last job printed; None where its logs say why it failed, or it did not.
        turn: inode of the lock that who runs it holds, from before its first attempt on; None where there is none.
        broken: what is wrong with its files, for good; None: nothing.
        unreadable: why its files could not be read just now; None: they could.
        is_behind: whether there is more to be read than one look reads.
        inode: of its record's log.
    """

    looked: int = 0
    looked_s: float = 0.0
    job: MemberJob | None = None
    looks: int = 0
    journal: JournalFacts = field(default_factory=JournalFacts)
    record: RecordFacts = field(default_factory=RecordFacts)
    failures: tuple[Failure, ...] = ()
    last_error: str | None = None
    turn: int | None = None
    broken: str | None = None
    unreadable: str | None = None
    is_behind: bool = False
    _journal: LogTail | None = None
    _record: LogTail | None = None
    _journal_read_s: float = 0.0

    @property
    def inode(self) -> int | None:
        """Of the log of its record."""
        return self._record.inode if self._record else None

    @property
    def has_settled(self) -> bool:
        """Whether nothing more will come of it unless its job changes, as far as its scheduler knows."""
        if self.looked == 0 or self.is_behind:
            return False
        if self.job is None:
            return self.journal.status == "done"
        if self.job.state in ("waiting", "running", "unknown"):
            return False
        return self.journal.status != "running" or self.looks >= _LOOKS_AFTER_THE_END

    def look(self, folder: str, plan: Any, job: MemberJob | None, now_s: float, meter: Meter) -> None:
        """Read what has joined since the last look.

        Args:
            folder: of the member.
            plan: what its journal must carry as `campaign_start.ensemble`.
            job: how its scheduler sees it; None where there is none to ask.
            now_s: UNIX seconds.
            meter: is told what it costs.
        """
        has_changed = job != self.job
        self.job, self.looked_s, self.looks = job, now_s, 1 if has_changed else self.looks + 1
        broken, self.broken, self.unreadable, self.is_behind = self.broken, None, None, False
        try:
            heard = self._read_record(folder, meter)
            is_open = self.journal.status == "running" and self.record.phase != "ended"
            is_due = job is None and not heard and now_s - self._journal_read_s >= _JOURNAL_AFTER_SECONDS
            if self._journal is None or has_changed or not is_open or is_due:
                self._read_both(folder, plan, now_s, meter)
            if self._contradicts():
                # Somebody may have gone on with the attempt since the journal was read.
                self._read_both(folder, plan, now_s, meter)
                if self._contradicts():
                    raise RecordError(
                        f"{folder}/{self.journal.record}: not the record that the campaign's journal vouches for: its "
                        "last line differs"
                    )
            self._read_failures(folder, meter, has_changed=has_changed)
            if self._journal is None or (self.journal.record is not None and self._record is None):
                # What was broken and is gone is not as if it had never been.
                self.broken = broken
        except RecordError as error:
            self._forget(str(error))
        except OSError as error:
            self.unreadable = f"{error.filename}: cannot be read: {error.strerror}"

    def _read_failures(self, folder: str, meter: Meter, *, has_changed: bool) -> None:
        """Read what is told of a member beside its logs, where these do not tell all."""
        job, status = self.job, self.journal.status
        self.turn = None
        if job is None:
            if status in ("running", "done"):
                return
            self.turn = _inode(lock_path(Path(folder), ALL_TRIALS))
        elif not has_changed or not (job.restarts or job.state in ("failed", "ended")) or status == "done":
            return
        self.failures = read_failures(folder, meter)
        has_failed = bool(self.failures) or status == "failed" or (job is not None and job.state == "failed")
        is_told = self.record.error is not None or self.record.diverged is not None
        self.last_error = read_last_error(folder, meter) if has_failed and not is_told else None

    def _forget(self, why: str) -> None:
        """What is broken is read from its beginning at the next look: somebody may have mended it."""
        self.broken = why
        self._journal = self._record = None
        self.journal, self.record = JournalFacts(), RecordFacts()

    def _read_both(self, folder: str, plan: Any, now_s: float, meter: Meter) -> None:
        """Read the journal, and the record again where the journal tells anything new of it."""
        self._journal_read_s = now_s
        if self._read_journal(f"{folder}/{JOURNAL}", plan, meter):
            self._read_record(folder, meter)

    def _read_journal(self, path: str, plan: Any, meter: Meter) -> bool:
        """Read the journal of the member's campaign; returns whether it told anything new."""
        tail = self._journal or LogTail(path)
        try:
            events = tail.read(meter)
        except FileNotFoundError:
            if self._journal is not None:
                raise RecordError(f"{path}: it was there, and is gone") from None
            return False
        self._journal = tail
        name = self.journal.record
        self.journal.fold(events)
        if tail.identity is not None and self.journal.plan != plan:
            raise RecordError(f"{path}: not of this member of this ensemble: it names another plan")
        if self.journal.record != name:
            self._record, self.record = None, RecordFacts()
        self.is_behind = self.is_behind or tail.is_behind
        return bool(events)

    def _read_record(self, folder: str, meter: Meter) -> bool:
        """Read the log of the last attempt's record; returns whether it told anything new."""
        if self.journal.record is None:
            return False
        path = f"{folder}/{self.journal.record}/events.jsonl"
        tail = self._record or LogTail(path)
        try:
            events = tail.read(meter, tells_place)
        except FileNotFoundError:
            # One that has just begun has no log yet; the end of one whose log is gone names its last line.
            if self._record is not None or self.journal.head not in (None, NO_EVENTS):
                raise RecordError(f"{path}: it was there, and is gone") from None
            return False
        self._record = tail
        self.record.fold(events)
        named, own = self.record.campaign, self._journal.identity if self._journal else None
        if named is not None and own is not None and named.get("id") != own:
            raise RecordError(f"{path}: the record of another campaign")
        self.is_behind = self.is_behind or tail.is_behind
        return bool(events)

    def _contradicts(self) -> bool:
        """Whether the journal knows another end of the record than the record has."""
        head = self._record.head if self._record and not self._record.is_behind else None
        return None not in (head, self.journal.head) and head != self.journal.head


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
