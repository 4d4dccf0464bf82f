"""Variables and limits that sites set: each run ends well, or is refused in one line that names what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.limits import require_refused, require_sound, run_under, shell_limit
from builders.ranks import clean_environment

from hpcai500.interpreter import NOT_HEEDED
from hpcai500.record import read_record
from hpcai500.system.doctor import threads_check
from hpcai500.system.software import binding

# All threads of a process that has loaded torch as a job does, with OpenMP's team and a thread of Python's.
_THREADS = """
import json, os, threading
from pathlib import Path
from hpcai500.engine.measurement import load_torch
load_torch()
import torch
torch.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
over = threading.Event()
threading.Thread(target=over.wait, daemon=True).start()
cores = {n: sorted(os.sched_getaffinity(int(n))) for n in os.listdir("/proc/self/task")}
print(json.dumps([len(cores), *{tuple(one) for one in cores.values()}]))
"""
BINDING = [
    {"OMP_PROC_BIND": "true"},
    {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    {"OMP_PLACES": "{0}"},
    {"GOMP_CPU_AFFINITY": "0"},
    {"KMP_AFFINITY": "granularity=fine,compact,1,0"},
]


def words_of(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


@pytest.mark.parametrize("variables", BINDING, ids=words_of)
def test_all_threads_of_a_job_may_use_all_its_cores(variables: dict[str, str]) -> None:
    environment = {**clean_environment(), **variables}
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, env=environment, check=True)
    threads, *cores = json.loads(done.stdout)
    assert threads >= 3
    assert cores == [sorted(os.sched_getaffinity(0))]


@pytest.mark.parametrize("variables", BINDING, ids=words_of)
def test_doctor_warns_of_variables_that_bind_threads(variables: dict[str, str]) -> None:
    found = threads_check(variables)
    assert found.status == "warn"
    assert words_of(variables).replace(" ", ", ") in found.detail
    assert (found.fix or "").startswith(f"unset {' '.join(variables)}")


@pytest.mark.parametrize(
    "variables",
    [{}, {"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}, {"KMP_AFFINITY": "disabled"}, {"OMP_NUM_THREADS": "1"}],
    ids=words_of,
)
def test_variables_that_bind_no_thread_are_fine(variables: dict[str, str]) -> None:
    assert threads_check(variables).status == "pass"


@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_PROC_BIND": "true", "GOMP_CPU_AFFINITY": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "64", "OMP_NESTED": "true", "MKL_DYNAMIC": "true", "MKL_DOMAIN_NUM_THREADS": "MKL_ALL=1"},
        {"OMP_WAIT_POLICY": "passive", "OMP_SCHEDULE": "dynamic,1"},
        {"KMP_AFFINITY": "compact", "KMP_BLOCKTIME": "1", "OMP_PLACES": "nonsense"},
    ],
    ids=words_of,
)
def test_a_sites_variables_change_no_run(images: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    ended = run_under([], images, tmp_path, environment=variables)
    require_sound(ended, tmp_path / "record")
    (node,) = read_record(tmp_path / "record").system["nodes"]
    assert node["cores_available"] == len(os.sched_getaffinity(0))
    ignored = binding(variables)
    assert node["environment"].get(NOT_HEEDED, "") == ", ".join(ignored)
    assert variables.keys() - node["environment"].keys() == {*ignored}
    assert ("ignored: " in ended.stderr) == bool(ignored)


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "true"), ("OMP_MAX_ACTIVE_LEVELS", "0")]
)
def test_fewer_threads_than_torch_believes_to_have_are_refused(
    images: Path, tmp_path: Path, name: str, value: str
) -> None:
    ended = run_under([], images, tmp_path, "--set", "os.threads=2", environment={name: value})
    require_refused(ended, name)
    assert ended.returncode == 69
    # One thread needs no other.
    alone = tmp_path / "alone"
    alone.mkdir()
    require_sound(run_under([], images, alone, "--set", "os.threads=1", environment={name: value}), alone / "record")


def test_a_run_keeps_to_the_cores_of_taskset(images: Path, tmp_path: Path) -> None:
    core = str(max(os.sched_getaffinity(0)))
    require_sound(run_under(["taskset", "-c", core], images, tmp_path), tmp_path / "record")
    assert read_record(tmp_path / "record").system["nodes"][0]["cores_available"] == 1


# The outcome between the two depends on the machine: its libraries, and its number of cores.
REFUSED, EITHER = "refused", "either"


@pytest.mark.parametrize(
    ("option", "value", "outcome"),
    [
        ("-v", 60_000, REFUSED),
        ("-v", 500_000, REFUSED),
        ("-v", 1_000_000, EITHER),
        ("-v", 4_000_000, EITHER),
        ("-n", 9, REFUSED),
        ("-n", 12, EITHER),
        ("-n", 64, EITHER),
    ],
)
def test_a_run_under_a_limit_ends_well_or_names_it(
    images: Path, tmp_path: Path, option: str, value: int, outcome: str
) -> None:
    ended = run_under(shell_limit(option, value), images, tmp_path)
    if outcome == EITHER and ended.returncode == 0:
        require_sound(ended, tmp_path / "record")
    else:
        require_refused(ended, f"(ulimit {option})")
