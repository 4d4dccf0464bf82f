"""Limits that a site sets for this process: by control groups (memory, CPU time, threads) and by `ulimit`.

A limit that is reached shows as an error of whatever needed more; `exhausted` says which limit it was.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.looking import read
from hpcai500.text import size

# ----------------------------------------------------------------------------------------------------
# Control groups.


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest memory limit of this process's control groups, in bytes; None if there is none."""
    files = _of_groups(root, "memory", "memory.limit_in_bytes", "memory.max")
    texts = (file.read_text() for file in files)
    return min((int(text) for text in texts if re.fullmatch(r"\d+\s*", text)), default=None)


@dataclass(frozen=True)
class CpuQuota:
    """CPU time that a control group may use: as much as `cores` cores give; in each period it stops when that is used.

    Attributes:
        file: `cpu.stat` of the group.
    """

    cores: float
    file: Path

    def throttling(self) -> dict[str, float]:
        """Since the group was made: periods, those in which it was stopped, and for how long, summed over cores."""
        found = dict.fromkeys(("periods", "throttled_periods", "throttled_seconds"), 0.0)
        for line in (read(self.file) or "").splitlines():
            name, _, value = line.partition(" ")
            if name in _THROTTLING and value.isdecimal():
                ours, unit = _THROTTLING[name]
                found[ours] = int(value) * unit
        return found


# Fields of cpu.stat; the first version of control groups counts nanoseconds, the second microseconds.
_THROTTLING = {
    "nr_periods": ("periods", 1),
    "nr_throttled": ("throttled_periods", 1),
    "throttled_time": ("throttled_seconds", 1e-9),
    "throttled_usec": ("throttled_seconds", 1e-6),
}


def cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The smallest CPU quota of this process's control groups; None if there is none."""
    found: list[CpuQuota] = []
    for file in _of_groups(root, "cpu", "cpu.cfs_quota_us", "cpu.max"):
        period = "" if file.name == "cpu.max" else read(file.with_name("cpu.cfs_period_us")) or ""
        if numbers := re.fullmatch(r"(\d+)\s+(\d+)\s*", f"{file.read_text()} {period}"):
            quota, period_us = map(int, numbers.groups())
            found.append(CpuQuota(quota / period_us, file.with_name("cpu.stat")))
    return min(found, key=lambda one: one.cores, default=None)


def _of_groups(root: Path, controller: str, first: str, second: str) -> Iterator[Path]:
    """The files that say how `controller` limits this process's control groups and those above them.

    They are named `first` or `second`, by the version of control groups. Where both are mounted, the second is in the
    folder `unified`. In a container, the groups above its own may not be visible.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    for line in (read(root / "proc" / "self" / "cgroup") or "").splitlines():
        _, kind, group = line.split(":", 2)
        if kind and controller not in kind.split(","):
            continue
        bases = [mounted / controller, mounted / kind] if kind else [mounted / "unified", mounted]
        base = next((one for one in bases if one.is_dir()), mounted)
        folder = Path(group.lstrip("/"))
        files = (base / one / (first if kind else second) for one in (folder, *folder.parents))
        yield from (file for file in files if file.is_file())


# ----------------------------------------------------------------------------------------------------
# A limit that was reached.


# Errors without a number: texts of Python and of C++ (std::system_error), of torch's allocator and the dynamic linker.
_NO_THREAD = ("can't start new thread", os.strerror(errno.EAGAIN))
_NO_MEMORY = ("std::bad_alloc", os.strerror(errno.ENOMEM))
_NO_MEMORY_FOR = ("DefaultCPUAllocator: can't allocate memory", "failed to map segment from shared object")
# Modules of Python that start processes; elsewhere, EAGAIN has other reasons.
_STARTING = ("subprocess.py", "popen_fork.py", "util.py")


def exhausted(error: BaseException, root: Path = Path("/")) -> EnvironmentLacksError | None:
    """The error that names the limit which caused `error`, if a limit of threads, memory or open files did."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error) if isinstance(error, RuntimeError | ImportError | OSError) and number is None else ""
    if text in _NO_THREAD or (number == errno.EAGAIN and _starts_processes(error)):
        return EnvironmentLacksError(
            f"no further thread or process can be started{_listed(_of_threads(root))}; raise the limit, or lower "
            "os.threads and os.input_threads (--set os.threads=1), or --procs"
        )
    if (
        number == errno.ENOMEM
        or isinstance(error, MemoryError)
        or text in _NO_MEMORY
        or any(words in text for words in _NO_MEMORY_FOR)
    ):
        return EnvironmentLacksError(
            f"out of memory{memory_limits(root)}; raise the limit, or lower hyperparameters.batch_size"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        most = _soft(resource.RLIMIT_NOFILE)
        return EnvironmentLacksError(f"no further file can be opened: a process may have {most} (ulimit -n); raise it")
    return None


def memory_limits(root: Path = Path("/")) -> str:
    """`: a process may have 500 MB of memory (ulimit -v)`; empty if nothing limits it."""
    return _listed(_of_memory(root))


def _starts_processes(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).name in _STARTING


def _listed(found: Iterator[str]) -> str:
    limits = ", ".join(found)
    return f": {limits}" if limits else ""


def _of_threads(root: Path) -> Iterator[str]:
    # The kernel exempts root.
    if os.geteuid() != 0 and (most := _soft(resource.RLIMIT_NPROC)) is not None:
        yield f"this user may have {most} (ulimit -u)"
    numbers = (read(file) or "" for file in _of_groups(root, "pids", "pids.max", "pids.max"))
    if known := [int(text) for text in numbers if text.isdecimal()]:
        yield f"this job may have {min(known)} (pids.max of its control group)"
    # Each thread reserves memory for its stack.
    yield from _of_address_space()


def _of_memory(root: Path) -> Iterator[str]:
    yield from _of_address_space()
    if (most := memory_limit(root)) is not None and most < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        yield f"this job may have {size(most)} (memory limit of its control group)"


def _of_address_space() -> Iterator[str]:
    for number, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        if (most := _soft(number)) is not None:
            yield f"a process may have {size(most)} of memory (ulimit {option})"


def _soft(limit: int) -> int | None:
    soft = resource.getrlimit(limit)[0]
    return None if soft == resource.RLIM_INFINITY else soft
