"""`hpcai500 doctor` and `version` as people and programs use them, and the same checks before a run."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from recipes_of_tests import of_two, recipe

from hpcai500 import cli
from hpcai500.cli import commands
from hpcai500.errors import DataError, EnvironmentLacksError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of
from hpcai500.launch.runs import Request, run_benchmark
from hpcai500.system import doctor
from hpcai500.system.accelerator import Driver, Torch, Traces
from hpcai500.system.doctor import Subject, examine, require_healthy, why_no_device
from hpcai500.system.software import installed_torch

NAMES = ["container", "image", "python", "data", "out", "temporary", "backend", "loader", "launcher", "accelerator",
         "cores", "memory", "shared memory"]  # fmt: skip
ON_CPU = ("--set", "accelerator.device=cpu")


def hpcai500(*arguments: str, cwd: Path, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    code = "import sys; from hpcai500.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | (more or {})
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def without_devices() -> bool:
    return not Path("/proc/driver/nvidia/version").exists()


def test_a_machine_that_can_run_is_told_so_check_by_check(tmp_path: Path) -> None:
    ended = hpcai500("doctor", "ic", "--quick", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    lines = [line for line in ended.stdout.splitlines() if line[:1] != " "]
    assert [line[6:].partition("  ")[0].strip() for line in lines[:-1]] == NAMES
    assert lines[-1] in ("verdict pass", "verdict warn")
    assert ended.stderr == ""


def test_what_is_wrong_is_69_with_the_fix_in_one_document(tmp_path: Path) -> None:
    ended = hpcai500("doctor", "ic", "--data", "nowhere", *ON_CPU, "--quick", "--json", cwd=tmp_path)
    assert ended.returncode == 69
    found = json.loads(ended.stdout)
    assert found["verdict"] == "fail"
    assert {check["name"]: check["fix"] for check in found["checks"] if check["status"] == "fail"} == {
        "data": "give the folder of imagenet-1k with --data DIR"
    }


def test_without_a_benchmark_the_machine_alone_is_looked_at(tmp_path: Path) -> None:
    ended = hpcai500("doctor", "--quick", "--json", cwd=tmp_path)
    assert ended.returncode == 0
    assert [check["name"] for check in json.loads(ended.stdout)["checks"]] == NAMES


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["icc"], "icc/smoke: no such recipe file"),
        (["ewa", "--recipe", "ic/smoke"], "ic/smoke: a recipe of ic; run `hpcai500 doctor ic …`"),
        (["--set", "accelerator.device=cpu"], "name a benchmark too"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_a_mistake_of_the_user(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    ended = hpcai500("doctor", *arguments, cwd=tmp_path)
    assert ended.returncode == 64
    assert expected in ended.stderr


def test_a_launcher_that_tells_nonsense_is_a_finding_and_no_end(tmp_path: Path) -> None:
    ended = hpcai500("doctor", "ic", cwd=tmp_path, more={"RANK": "3", "WORLD_SIZE": "2"})
    assert ended.returncode == 69
    assert "fail  launcher" in ended.stdout
    assert "RANK=3: expected less than WORLD_SIZE=2" in ended.stdout


def test_inside_a_container_the_line_to_type_is_that_of_the_run(tmp_path: Path) -> None:
    started = {"APPTAINER_CONTAINER": "/apps/hpcai500.sif", "APPTAINER_COMMAND": "run", "PYTHONPATH": ""}
    of_doctor = ("--quick", "--machine", "m.toml", "--machine=m.toml")
    ended = hpcai500("doctor", "ic", "--data", "/nowhere-hpcai500/x", *ON_CPU, *of_doctor, cwd=tmp_path, more=started)
    assert ended.returncode == 69
    assert (
        "fix: add --bind /nowhere-hpcai500: apptainer run --bind /nowhere-hpcai500 /apps/hpcai500.sif ic --data "
        "/nowhere-hpcai500/x --set accelerator.device=cpu\n" in ended.stdout
    )


def test_a_run_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = hpcai500("ic", "--set", "accelerator.device=cuda", cwd=tmp_path)
    if not without_devices():
        pytest.skip("this machine has a CUDA device")
    assert ended.returncode == 69
    assert "accelerator.device is cuda, but " in ended.stderr
    assert "--set accelerator.device=cpu" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_data_set_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder; give the folder of synthetic-shapes with --data DIR"):
        require_healthy(Subject(recipe(), tmp_path / "none", tmp_path))


def test_of_several_errors_the_first_is_told_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"no such folder.* \(and 1 more: see `hpcai500 doctor ic …`"):
        require_healthy(Subject(recipe(), tmp_path / "none", tmp_path / "file" / "record", ["profile", "ic"]))


def test_a_healthy_machine_hears_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not without_devices():
        pytest.skip("this machine has a CUDA device")
    require_healthy(Subject(recipe(), None, tmp_path))
    assert capfd.readouterr() == ("", "")


def test_a_warning_is_one_line_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere-hpcai500/tmp")
    doctor._warn.cache_clear()
    for _ in range(2):
        require_healthy(Subject(recipe(), None, tmp_path))
    lines = [line for line in capfd.readouterr().err.splitlines() if "TMPDIR" in line]
    assert lines == [
        "hpcai500: warning: TMPDIR=/nowhere-hpcai500/tmp: it is not there: temporary files go to /tmp; set TMPDIR to a "
        "folder that exists on every node"
    ]


def test_a_library_that_is_not_installed_is_told_before_the_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    with pytest.raises(EnvironmentLacksError, match="Horovod is not installed; run `make horovod`"):
        require_healthy(Subject(of_two(), None, tmp_path))
    assert {check.name for check in examine(Subject(of_two("torch"), None, tmp_path))} == set(NAMES)


def test_a_rank_without_a_device_hears_the_same_as_doctor() -> None:
    torch = installed_torch()
    assert torch is not None
    if not without_devices():
        pytest.skip("this machine has a CUDA device")
    assert why_no_device(os.environ, torch, ["ic"]).startswith("accelerator.device is cuda, but torch")


def test_a_rank_whose_driver_is_silent_is_not_told_that_it_has_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Driver(loaded=True, reason="it did not answer within 60 s", silent=True)
    monkeypatch.setattr(doctor, "ask_driver", lambda environment: silent)  # a driver cannot exist here
    monkeypatch.setattr(doctor, "find_traces", lambda: Traces(("/dev/nvidia0",)))
    said = why_no_device(os.environ, Torch("2.13.0", "13.0"), ["ic"])
    assert "the NVIDIA driver did not answer within 60 s" in said
    assert "though the driver does" not in said


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/locked/a"), "/locked/a: Permission denied"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (OSError("no address"), "no address"),
    ],
)
def test_an_error_of_the_system_is_not_called_one_of_the_result(
    error: OSError, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: object) -> None:
        raise error

    # That of stdout itself is in tests/cli.
    monkeypatch.setattr(commands, "app", fail)
    assert cli.main() == 1
    assert capsys.readouterr().err == f"hpcai500: error: {told}\n"


def test_a_record_below_a_folder_that_may_not_be_searched_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("ic", out=tmp_path / "locked" / "a" / "run", overrides=["accelerator.device=cpu"])
    real = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        if tmp_path / "locked" in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **options)

    # Root may search every folder: a stat that refuses stands for another user's folder.
    (tmp_path / "locked").mkdir(mode=0o500)
    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "locked")
    with pytest.raises(EnvironmentLacksError, match="locked: you may not write there; give another folder with --out"):
        list(run_benchmark(request, launcher_of(find_placement({}), None)))


def test_version_prints_a_document_or_lines(tmp_path: Path) -> None:
    ended = hpcai500("version", "--json", cwd=tmp_path)
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["schema"]) == (0, "hpcai500-version-1")
    lines = hpcai500("version", cwd=tmp_path).stdout
    assert f"core      {document['package']['core_sha256']}" in lines
    assert f"code      {document['package']['code_sha256']}" in lines
    assert "image     none" in lines
