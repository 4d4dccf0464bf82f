"""The threads that torch computes with: as many as it believes to have, or none of the work begins.

OpenMP may start fewer threads than a program asks for. oneDNN's kernels then wait for ever, at full CPU use, for the
others: in the first backward pass of a convolution, for example.
"""

from __future__ import annotations

import ctypes
import os
import threading

import torch

from hpcai500.errors import EnvironmentLacksError


def use_threads(count: int) -> None:
    """Let torch's operations use `count` threads.

    Raises:
        EnvironmentLacksError: a limit of the environment allows fewer.
    """
    torch.set_num_threads(count)
    if count == 1:
        return
    # OpenMP ends the process if it cannot start a thread.
    _require_room(count)
    library = _openmp()
    if library is None:  # torch is built with threads of its own
        return
    if library.omp_get_dynamic():
        raise EnvironmentLacksError(
            f"{_named('OMP_DYNAMIC')} lets OpenMP start fewer than the {count} threads that this process computes "
            "with while the host is busy, and torch would wait for the others for ever; unset it"
        )
    if (given := _started(library, count)) < count:
        names = ("OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS")
        limits = [_named(name) for name in names if name in os.environ] or ["a limit"]
        raise EnvironmentLacksError(
            f"{', '.join(limits)} lets OpenMP start only {given} of the {count} threads that this process computes "
            f"with, and torch would wait for the others for ever; unset it, or --set os.threads={given}"
        )


def _require_room(count: int) -> None:
    over = threading.Event()
    others = [threading.Thread(target=over.wait, daemon=True) for _ in range(count - 1)]
    started: list[threading.Thread] = []
    try:
        for thread in others:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"only {len(started) + 1} of the {count} threads of this process can be started: raise the limit of "
            "processes (ulimit -u, pids.max of the job's cgroup) or of memory (ulimit -v), or --set os.threads=1"
        ) from error
    finally:
        over.set()
        for thread in started:
            thread.join()


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library of torch's operations, found in the linker's order: one that is preloaded comes first."""
    for library in (ctypes.CDLL(None), ctypes.CDLL(torch._C.__file__)):
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


def _started(library: ctypes.CDLL, count: int) -> int:
    """Number of threads that a parallel region for `count` has; LLVM's and Intel's OpenMP have GNU's entry, too."""
    runs: list[None] = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: runs.append(None))
    library.GOMP_parallel(body, None, count, 0)
    return len(runs)


def _named(variable: str) -> str:
    return f"{variable}={os.environ.get(variable, '')}"
