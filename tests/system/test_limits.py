"""Which limit an error stands for."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcai500.system.limits import exhausted


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "no further thread or process can be started"),
        (RuntimeError(os.strerror(errno.EAGAIN)), "no further thread or process can be started"),
        (MemoryError(), "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
            "out of memory",
        ),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "out of memory"),
        (OSError(errno.EMFILE, "Too many open files", "/data/x"), "no further file can be opened"),
    ],
)
def test_an_error_at_a_limit_names_it_and_what_to_do(error: Exception, words: str) -> None:
    found = exhausted(error)
    assert found is not None
    assert str(found).startswith(words)
    assert "raise " in str(found)
    assert found.exit_code == 69


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        # What is not ready is no limit: a pipe that is full, a socket whose time was over.
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("recv from peer: Resource temporarily unavailable"),
        OSError(errno.ENOSPC, "No space left on device"),
        ImportError("No module named 'x'"),
    ],
)
def test_other_errors_stand_for_no_limit(error: Exception) -> None:
    assert exhausted(error) is None


_AT_ONES_LIMIT = """
import resource, subprocess, sys
from hpcai500.system.limits import exhausted
if sys.argv[1] == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    act = lambda: [open("/dev/null") for _ in range(30)]
else:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    act = lambda: bytearray(2**31)
try:
    kept = act()
except (OSError, MemoryError) as error:
    print(exhausted(error))
"""


@pytest.mark.parametrize(
    ("kind", "limit"), [("files", "may have 20 (ulimit -n)"), ("memory", "1.07 GB of memory (ulimit -v)")]
)
def test_the_limit_is_told_with_its_value(kind: str, limit: str) -> None:
    done = subprocess.run([sys.executable, "-c", _AT_ONES_LIMIT, kind], capture_output=True, text=True, check=True)
    assert limit in done.stdout


def test_the_pids_of_all_control_groups_count(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/job_7/step_0\n")
    step = tmp_path / "sys" / "fs" / "cgroup" / "job_7" / "step_0"
    step.mkdir(parents=True)
    (step / "pids.max").write_text("max\n")
    (step.parent / "pids.max").write_text("64\n")
    assert "this job may have 64 (pids.max of its control group)" in str(
        exhausted(RuntimeError("can't start new thread"), tmp_path)
    )
