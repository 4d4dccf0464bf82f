"""Cores and memory that are left to a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.hosts import LauncherName
from hpcai500.system.doctor import cores_check, memory_check
from hpcai500.system.looking import memory_limit


@pytest.mark.parametrize(
    ("launcher", "fix"),
    [("srun", "srun --cpus-per-task=N"), ("mpirun", "mpirun --bind-to none"), ("none", "ask the scheduler for more")],
)
def test_one_core_of_many_is_told_with_the_launchers_own_option(launcher: LauncherName, fix: str) -> None:
    check = cores_check(1, 64, 4, launcher)
    assert (check.status, check.detail.partition(" for")[0]) == ("warn", "1 of 64 cores")
    assert (check.fix or "").startswith(fix)


@pytest.mark.parametrize(("available", "total", "ranks"), [(2, 64, 4), (1, 2, 1), (1, 64, 64), (1, 1, 1), (64, 64, 1)])
def test_a_fair_share_of_the_cores_is_fine(available: int, total: int, ranks: int) -> None:
    assert cores_check(available, total, ranks, "mpirun").status == "pass"


def test_the_smallest_limit_of_the_control_groups_counts(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:cpu:/\n0::/job_7/step_0\n")
    step = tmp_path / "sys" / "fs" / "cgroup" / "job_7" / "step_0"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    (step.parent / "memory.max").write_text("64000000000\n")
    assert memory_limit(tmp_path) == 64_000_000_000


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/slurm/job_7\n3:cpuset:/\n")
    job = tmp_path / "sys" / "fs" / "cgroup" / "memory" / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text("8000000000\n")
    assert memory_limit(tmp_path) == 8_000_000_000


def test_memory_is_said_and_never_judged() -> None:
    assert memory_check(None, 10**11).detail == "100 GB"
    assert memory_check(2**63 - 4096, 10**11).detail == "100 GB"
    assert memory_check(8 * 10**9, 10**11).detail == "8 GB for this job, of 100 GB"
