"""When a process and its job began, and for how long its threads waited for a processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcai500.system.process import JOB_TIMES, ProcessorTimes, age_seconds, job_times, processor_times


def test_the_age_of_a_process_is_the_time_since_it_was_started() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = time.clock_gettime(time.CLOCK_BOOTTIME)
        age = age_seconds(process.pid)
        assert age is not None
        # /proc counts hundredths of a second.
        assert time.clock_gettime(time.CLOCK_BOOTTIME) - started - 0.02 <= age
        assert age <= time.clock_gettime(time.CLOCK_BOOTTIME) - before + 0.02
        process.communicate(b"\n")
    assert age_seconds(process.pid) is None
    assert age_seconds(os.getpid()) is not None


@pytest.mark.parametrize(
    ("environment", "known"),
    [
        ({}, (False, None, None)),
        ({"SLURM_JOB_ID": "7"}, (True, None, None)),
        ({"SLURM_JOB_ID": "7", JOB_TIMES: "1700000000 1700000060"}, (True, 1.7e9, 1.7e9 + 60)),
        # As squeue says it of a job that it does not know, or an older Slurm of a time.
        ({"SLURM_JOB_ID": "7", JOB_TIMES: ""}, (True, None, None)),
        ({"SLURM_JOB_ID": "7", JOB_TIMES: "N/A 1700000060"}, (True, None, 1.7e9 + 60)),
        ({"PBS_JOBID": "7.site", JOB_TIMES: "2026-11-27T12:00:00 Unknown"}, (True, None, None)),
    ],
)
def test_what_a_batch_script_tells_of_its_job(
    environment: dict[str, str], known: tuple[bool, float | None, float | None]
) -> None:
    assert tuple(job_times(environment).values()) == known


def _share_waited(of_others: int) -> float | None:
    """Share of its time that this process waited for its only core, with `of_others` busy processes on it."""
    (core, *_) = os.sched_getaffinity(0)
    code = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(1, flush=True)\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(of_others)]
    before_affinity = os.sched_getaffinity(0)
    try:
        for one in others:
            assert one.stdout
            one.stdout.read(1)
        os.sched_setaffinity(0, [core])
        before, limit = processor_times(), time.thread_time() + 0.2
        while time.thread_time() < limit:
            pass
        return before.share_waited(processor_times())
    finally:
        os.sched_setaffinity(0, before_affinity)
        for one in others:
            one.kill()
            one.communicate()


def test_threads_that_share_a_core_wait_for_it() -> None:
    share = _share_waited(of_others=3)
    assert share is not None
    assert share > 0.5


def test_a_kernel_that_does_not_count_waits_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("0 0 0\n")
    times = processor_times(tmp_path)
    assert times == ProcessorTimes(0, 0)
    assert times.share_waited(times) is None
