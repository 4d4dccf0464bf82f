"""Names a process for ever, so that it can be told later whether it still lives.

A token has its host, the boot of that, the namespace of its number, its number and the time of its start: nobody else
ever has all five. In doubt it lives.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from hpcai500.hosts import Launcher
from hpcai500.system.checks import Check

# ----------------------------------------------------------------------------------------------------
# What the scheduler and the container leave to this process: cores and memory.


# A smaller machine may well be one of one core.
_LEAST_NODE_CORES = 4
_FIXES: dict[Launcher, str] = {
    "srun": "srun --cpus-per-task=N --cpu-bind=cores …",
    "mpirun": "mpirun --bind-to none …, or --map-by ppr:RANKS:node:PE=N",
}


def cores_check(available: int, total: int, local_size: int, launcher: Launcher) -> Check:
    """Whether this process may run on more than a sliver of its node.

    Args:
        available: cores that it may run on.
        total: cores of the node.
        local_size: ranks on this node.
        launcher: who started it.
    """
    found = f"{available} of {total} cores"
    if available > 1 or total < _LEAST_NODE_CORES or local_size * 2 > total:
        return Check("cores", "pass", found)
    fix = _FIXES.get(launcher, "ask the scheduler for more (`sbatch --cpus-per-task=N`), or see `taskset -p $$`")
    return Check("cores", "warn", f"{found} for this rank: decoding and training share one core", fix)


def memory_check(limit_bytes: int | None, total_bytes: int) -> Check:
    """How much memory there is: for people, nothing is required."""
    if limit_bytes is None or limit_bytes >= total_bytes:
        return Check("memory", "pass", f"{total_bytes / 1e9:.3g} GB")
    return Check("memory", "pass", f"{limit_bytes / 1e9:.3g} GB for this job, of {total_bytes / 1e9:.3g} GB")


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest limit of the control groups of this process (bytes); None where there is none."""
    path = root / "proc" / "self" / "cgroup"
    groups = path.read_text() if path.is_file() else ""
    mounted = root / "sys" / "fs" / "cgroup"
    found: list[int] = []
    for line in groups.splitlines():
        _, kind, group = line.split(":", 2)
        if kind and "memory" not in kind.split(","):
            continue
        base, name = (mounted / "memory", "memory.limit_in_bytes") if kind else (mounted, "memory.max")
        folder = Path(group.lstrip("/"))
        for one in (folder, *folder.parents):
            limit = base / one / name
            if limit.is_file() and re.fullmatch(r"\d+\s*", text := limit.read_text()):
                found.append(int(text))
    return min(found, default=None)


# ----------------------------------------------------------------------------------------------------
# Names a process for ever, so that it can be told later whether it still lives.
#
# A token has its host, the boot of that, the namespace of its number, its number and the time of its start: nobody else
# ever has all five. In doubt it lives.


_PROC = Path("/proc")
_WORDS = 5
# Behind the process's name, which ends with the last parenthesis: field 22 of the file is number 19.
_START_FIELD = 19


def boot() -> str:
    """What names the time since this node was started; "" where the system does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def owner_of(process: int) -> str:
    """The token of a process of this node; "" where it cannot be told, or is gone."""
    try:
        namespace = (_PROC / "self/ns/pid").readlink()
        start = (_PROC / str(process) / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        return ""
    return " ".join((socket.gethostname(), boot(), str(namespace), str(process), start))


def is_here(owner: str) -> bool:
    """Whether a token is of a process that this node had or has."""
    words = owner.split(" ")
    return len(words) == _WORDS and words[1] == boot()


def is_gone(owner: str) -> bool:
    """Whether it is certain that the process of a token has ended."""
    words = owner.split(" ")
    if len(words) != _WORDS or words[0] != socket.gethostname() or not boot() or not words[3].isdecimal():
        return False
    if words[1] != boot():
        return True
    now = owner_of(os.getpid()).split(" ")
    if len(now) != _WORDS or now[2] != words[2]:
        return False
    return owner_of(int(words[3])) != owner
