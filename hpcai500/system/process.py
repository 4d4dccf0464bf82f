"""What this process may use of its node, and tokens by which a process can be recognised later.

A token names a process for ever: host, boot of the host, namespace of the process id, process id and start time. No
other process has the same five. In doubt, a process counts as alive.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from hpcai500.hosts import Launcher
from hpcai500.system.checks import Check

# ----------------------------------------------------------------------------------------------------
# Cores and memory that scheduler and container leave to this process.


# A smaller machine may be meant to have a single core.
_LEAST_NODE_CORES = 4
_FIXES: dict[Launcher, str] = {
    "srun": "srun --cpus-per-task=N --cpu-bind=cores …",
    "mpirun": "mpirun --bind-to none …, or --map-by ppr:RANKS:node:PE=N",
}


def cores_check(available: int, total: int, local_size: int, launcher: Launcher) -> Check:
    """Whether this process may run on more than a sliver of its node.

    `available` of the node's `total` cores are usable; `local_size` ranks are on the node.
    """
    found = f"{available} of {total} cores"
    if available > 1 or total < _LEAST_NODE_CORES or local_size * 2 > total:
        return Check("cores", "pass", found)
    fix = _FIXES.get(launcher, "ask the scheduler for more (`sbatch --cpus-per-task=N`), or see `taskset -p $$`")
    return Check("cores", "warn", f"{found} for this rank: decoding and training share one core", fix)


def memory_check(limit_bytes: int | None, total_bytes: int) -> Check:
    """How much memory there is; it never fails, because no amount is required."""
    if limit_bytes is None or limit_bytes >= total_bytes:
        return Check("memory", "pass", f"{total_bytes / 1e9:.3g} GB")
    return Check("memory", "pass", f"{limit_bytes / 1e9:.3g} GB for this job, of {total_bytes / 1e9:.3g} GB")


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest memory limit of this process's control groups, in bytes; None where there is none."""
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
# Tokens of processes.


_PROC = Path("/proc")
_WORDS = 5
# Field 22 of the file, counted from behind the process's name, which ends with the last parenthesis.
_START_FIELD = 19


def boot() -> str:
    """Id of the node's current boot; "" where the system does not say."""
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
    """Whether a token names a process of this node since its last boot."""
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
