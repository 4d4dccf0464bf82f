"""When a process and its job began."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hpcai500.system.process import JOB_TIMES, age_seconds, job_times


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
