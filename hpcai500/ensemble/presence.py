"""Whether the process that writes a record is still there: a question for where no scheduler answers.

Nothing is locked to find out: who starts a run and finds its log locked, if only for a moment, would give up.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from hpcai500.ensemble.member_facts import RecordFacts

_LOCKS = Path("/proc/locks")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Machine:
    """This machine, at one moment.

    Attributes:
        host: its name.
        boot: id of its start; None where the system has none.
        locked: inodes of files that some process here holds a lock on; None where that cannot be told.
    """

    host: str
    boot: str | None
    locked: frozenset[int] | None = field(repr=False)

    def holds(self, inode: int | None) -> bool:
        """Whether some process here is known to hold a lock on the file with this inode."""
        return inode is not None and self.locked is not None and inode in self.locked

    def has_lost(self, facts: RecordFacts, inode: int | None) -> bool:
        """Whether the writer of the record with these facts ran here and is gone, for all that can be seen.

        That of another machine, or of a container with processes of its own, is nothing that we could know of.
        """
        if facts.phase == "ended" or facts.boot is None or self.boot is None:
            return False
        if facts.boot != self.boot:
            # The machine has started again since, and it is this one.
            return facts.hosts == (self.host,)
        unlocked = self.locked is not None and inode not in self.locked
        return unlocked and facts.process is not None and facts.process > 0 and not _runs(facts.process)


def this_machine() -> Machine:
    """What is known of this machine now: two small files of the system, however many members there are."""
    return Machine(socket.gethostname(), _text(_BOOT), _locked())


def _locked() -> frozenset[int] | None:
    """The inodes in `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 18340 fe:00:2195594 0 EOF`."""
    text = _text(_LOCKS)
    if text is None:
        return None
    places = [word for line in text.splitlines() for word in line.split() if word.count(":") == 2]
    inodes = [place.rpartition(":")[2] for place in places]
    return frozenset(int(inode) for inode in inodes if inode.isdecimal())


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
