"""torch computes with the threads that it believes to have, or the work is refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from builders.ranks import start
from builders.runs import train_arguments

from hpcai500.job_options import PreflightOptions, as_argument
from hpcai500.record import read_record
from hpcai500.system.checks import read_log

USE = """
import resource, sys
from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.threads import use_threads
if len(sys.argv) > 2:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
try:
    use_threads(int(sys.argv[1]))
except EnvironmentLacksError as error:
    sys.exit(str(error))
import torch
print("threads:", torch.get_num_threads())
"""
REFUSED = [
    ("OMP_THREAD_LIMIT", "2", "lets OpenMP start only 2 of the 3 threads", "--set os.threads=2"),
    ("OMP_MAX_ACTIVE_LEVELS", "0", "lets OpenMP start only 1 of the 3 threads", "--set os.threads=1"),
    ("OMP_DYNAMIC", "true", "lets OpenMP start fewer than the 3 threads", "unset it"),
]


def use(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a process that wants to use threads."""
    ended = start([sys.executable, "-c", USE, *arguments], 1, "processes", environment=environment)
    return ended.exit_codes[0], ended.output


@pytest.mark.parametrize(("variable", "value", "what", "fix"), REFUSED)
def test_a_limit_of_openmp_is_named_with_its_fix(variable: str, value: str, what: str, fix: str) -> None:
    code, output = use("3", environment={variable: value})
    assert code == 1
    (line,) = output.splitlines()
    assert line.startswith(f"{variable}={value} {what}")
    assert line.endswith(fix)


@pytest.mark.parametrize(
    ("count", "environment"),
    [
        ("3", {}),
        ("3", {"OMP_NUM_THREADS": "1"}),
        ("3", {"MKL_NUM_THREADS": "1", "MKL_DYNAMIC": "TRUE"}),
        ("3", {"OMP_THREAD_LIMIT": "3"}),
        ("1", {"OMP_THREAD_LIMIT": "1"}),
        ("1", {"OMP_DYNAMIC": "true"}),
    ],
)
def test_threads_that_no_limit_forbids_are_used(count: str, environment: dict[str, str]) -> None:
    assert use(count, environment=environment) == (0, f"threads: {count}\n")


def test_threads_that_cannot_be_started_are_one_line() -> None:
    """A stack for each of 500 threads does not fit into 100 MB, as it would not under `ulimit -u` or in a cgroup."""
    code, output = use("500", "100000000")
    assert code == 1
    (line,) = output.splitlines()
    assert "of the 500 threads of this process can be started: raise the limit of processes (ulimit -u," in line


@pytest.mark.parametrize(("variable", "value", "what", "fix"), REFUSED)
def test_a_run_without_its_threads_is_refused(
    images: Path, tmp_path: Path, variable: str, value: str, what: str, fix: str
) -> None:
    """In oneDNN it would wait for the others for ever."""
    command = [sys.executable, "-m", "hpcai500.train", *train_arguments(images, tmp_path / "record", "os.threads=3")]
    ended = start(command, 1, "processes", environment={variable: value})
    assert ended.exit_codes == [69], ended.output
    assert f"error: {variable}={value} {what}" in ended.output.splitlines()[-1]
    assert read_record(tmp_path / "record").status == "error"


def test_doctor_names_the_limit_of_threads(tmp_path: Path) -> None:
    options = PreflightOptions(
        "ic/smoke", ("os.threads=3",), tmp_path / "log", ("ranks", "devices", "GEMM"), None, Path("runs"), None, 60
    )
    command = [sys.executable, "-m", "hpcai500.measure.preflight_command", as_argument(options)]
    ended = start(command, 1, "processes", environment={"OMP_THREAD_LIMIT": "2"})
    assert ended.exit_codes == [0], ended.output
    _, devices, gemm = read_log(tmp_path / "log").checks
    assert (devices.name, devices.status, devices.fix) == ("devices", "fail", "unset it, or --set os.threads=2")
    assert "OMP_THREAD_LIMIT=2 lets OpenMP start only 2 of the 3 threads" in devices.detail
    assert gemm.status == "skip"
