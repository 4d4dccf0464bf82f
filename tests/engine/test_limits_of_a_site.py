"""Variables and limits that sites set: each run ends well, or is refused in one line that names what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import Ended, hpcai500
from builders.ranks import clean_environment
from builders.runs import TINY

from hpcai500.interpreter import NOT_HEEDED
from hpcai500.record import iterate, read_record
from hpcai500.system.doctor import threads_check

# All threads of a process that has loaded torch as a job does, with OpenMP's team and a thread of Python's.
_THREADS = """
import json, os, threading
from pathlib import Path
from hpcai500.engine.measurement import prepare_openmp
prepare_openmp()
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


def trained(images: Path, folder: Path, *words: str, environment: dict[str, str]) -> Ended:
    """A small run of real training by the command line, whose record is `record` in `folder`."""
    settings = [word for text in TINY if not text.startswith("os.") for word in ("--set", text)]
    line = ("ic", "--recipe", "ic/smoke", "--data", images, "--out", "record", "--set", "problem.epochs=1")
    return hpcai500(*line, *settings, *words, cwd=folder, environment=environment)


def test_a_site_that_binds_threads_changes_no_run(images: Path, tmp_path: Path) -> None:
    variables = {"OMP_PROC_BIND": "true", "GOMP_CPU_AFFINITY": "0"}
    ended = trained(images, tmp_path, environment=variables)
    assert ended.returncode == 0, ended.stderr
    assert "warning: OMP_PROC_BIND=true, GOMP_CPU_AFFINITY=0 are ignored: " in ended.stderr
    record = read_record(tmp_path / "record")
    (node,) = record.system["nodes"]
    assert node["cores_available"] == len(os.sched_getaffinity(0))
    assert node["environment"][NOT_HEEDED] == ", ".join(variables)
    assert not variables.keys() & node["environment"].keys()
    assert list(iterate(record.events, "run_stop"))
