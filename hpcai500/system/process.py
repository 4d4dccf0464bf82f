"""Tokens that identify a process uniquely, also later.

A token consists of host, boot of the host, namespace of the process id, process id and start time. No other process has
the same five. In doubt, a process counts as alive.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PROC = Path("/proc")
_WORDS = 5
# Field 22 of the file, counted from the end of the process's name, which is the last parenthesis.
_START_FIELD = 19


def boot() -> str:
    """Id of the node's current boot; "" if unknown."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def owner_of(process: int) -> str:
    """The token of a process of this node; "" if it is unknown, or the process has ended."""
    try:
        namespace = (_PROC / "self/ns/pid").readlink()
        start = (_PROC / str(process) / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        return ""
    return " ".join((socket.gethostname(), boot(), str(namespace), str(process), start))


def is_here(owner: str) -> bool:
    """Whether a token names a process of this node since its last boot."""
    words = owner.split(" ")
    return len(words) == _WORDS and words[1] == boot()


def is_gone(owner: str) -> bool:
    """Whether the process of a token has certainly ended."""
    words = owner.split(" ")
    if len(words) != _WORDS or words[0] != socket.gethostname() or not boot() or not words[3].isdecimal():
        return False
    if words[1] != boot():
        return True
    now = owner_of(os.getpid()).split(" ")
    if len(now) != _WORDS or now[2] != words[2]:
        return False
    found = owner_of(int(words[3]))
    return found != owner if found else _has_ended(int(words[3]))


def _has_ended(pid: int) -> bool:
    """Whether there is no such process; /proc may hide processes of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def is_alive(owner: str) -> bool:
    """Whether the process of a token certainly runs on this node, in this namespace of process ids."""
    words = owner.split(" ")
    return len(words) == _WORDS and words[3].isdecimal() and owner_of(int(words[3])) == owner
