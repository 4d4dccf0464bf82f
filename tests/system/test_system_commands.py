"""`hpcai500 doctor`, `system` and `version` as people and programs use them, and the same checks before a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.commands import Ended, Typed, python_with
from builders.runs import train_arguments
from recipes_of_tests import of_two, recipe

from hpcai500 import train
from hpcai500.cli import commands
from hpcai500.errors import DataError, EnvironmentLacksError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of
from hpcai500.launch.runs import Request, run_benchmark
from hpcai500.record import iterate, read_record
from hpcai500.system import doctor
from hpcai500.system.accelerator import Driver, Torch, Traces
from hpcai500.system.checks import MEASURED
from hpcai500.system.doctor import Subject, examine, require_healthy, why_no_device
from hpcai500.system.software import installed_torch

LOOKED_AT = ["container", "image", "python", "data", "out", "temporary", "backend", "loader", "launcher",
             "accelerator", "cores", "threads", "affinity", "gpudirect", "memory", "shared memory"]  # fmt: skip
KEYS = {"cpu", "processor", "caches", "numa", "memory", "machine", "devices", "accelerators", "device_links", "driver",
        "network", "infiniband", "file_systems", "disks", "kernel_settings", "limits", "container", "software", "host",
        "operating_system", "kernel", "environment", "command", "absent", "slow_seconds", "raw"}  # fmt: skip
MAIN = "import sys; from hpcai500.cli import main; code = main(); "
ON_CPU = ("--set", "accelerator.device=cpu")
without_devices = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has a CUDA device"
)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def checks_of(ended: Ended) -> dict[str, dict[str, Any]]:
    """Those of a document of doctor, by name."""
    return {check["name"]: check for check in json.loads(ended.stdout)["checks"]}


def in_a_process(folder: Path, *arguments: str, python: Path = Path(sys.executable), **environment: str) -> Ended:
    """The command line in a process of its own, which must not have imported torch at its end."""
    code = f"{MAIN}sys.exit(99 if {{'torch', 'numpy', 'mpi4py'}} & sys.modules.keys() else code)"
    done = subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, cwd=folder, env=os.environ | environment,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


# --- doctor, as it looks


def test_a_machine_that_can_run_is_told_so_check_by_check(typed: Typed) -> None:
    ended = typed("doctor", "ic", "--quick")
    assert ended.returncode == 0, ended.stdout
    lines = [line for line in ended.stdout.splitlines() if line[:1] != " "]
    assert [line[6:].partition("  ")[0].strip() for line in lines[:-1]] == LOOKED_AT
    assert lines[-1] in ("verdict pass", "verdict warn")
    assert ended.stderr == ""
    # Without a benchmark, the machine alone is looked at.
    ended = typed("doctor", "--quick", "--json")
    assert (ended.returncode, list(checks_of(ended))) == (0, LOOKED_AT)


def test_what_is_wrong_is_69_with_the_fix_in_one_document(typed: Typed) -> None:
    ended = typed("doctor", "ic", "--data", "nowhere", *ON_CPU, "--quick", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["verdict"]) == (69, "fail")
    assert {name: check["fix"] for name, check in checks_of(ended).items() if check["status"] == "fail"} == {
        "data": "give the folder of imagenet-1k with --data DIR"
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["doctor", "icc"], "icc/smoke: no such recipe file"),
        (["doctor", "ewa", "--recipe", "ic/smoke"], "ic/smoke: a recipe of ic; run `hpcai500 doctor ic …`"),
        (["doctor", *ON_CPU], "name a benchmark too"),
        (["doctor", "ic", *ON_CPU, "--machine", "nowhere.toml"], "nowhere.toml"),
        (["system", "--format", "xml"], "expected text or mlperf, got xml"),
        (["system", "nowhere"], "nowhere: no such folder"),
        (["system", "nowhere", "--procs", "2"], "leave them out"),
    ],
)
def test_a_mistake_of_the_user_is_64_and_prints_nothing(typed: Typed, arguments: list[str], expected: str) -> None:
    ended = typed(*arguments)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert expected in ended.stderr


def test_inside_a_container_the_line_to_type_is_that_of_the_run(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    started = {"APPTAINER_CONTAINER": "/apps/hpcai500.sif", "APPTAINER_COMMAND": "run", "PYTHONPATH": ""}
    of_doctor = ("--quick", "--machine", "m.toml", "--machine=m.toml")
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    ended = typed("doctor", "ic", "--data", "/nowhere-hpcai500/x", *ON_CPU, *of_doctor)
    assert ended.returncode == 69
    assert (
        "fix: add --bind /nowhere-hpcai500: apptainer run --bind /nowhere-hpcai500 /apps/hpcai500.sif ic --data "
        "/nowhere-hpcai500/x --set accelerator.device=cpu\n" in ended.stdout
    )


# --- doctor, as it measures: a document whatever comes, and nothing started where nothing can run


def test_where_the_launcher_tells_nonsense_no_rank_is_started(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = typed("doctor", "ic", "--json")
    assert (ended.returncode, ended.stderr) == (69, "")
    assert checks_of(ended)["launcher"]["status"] == "fail"
    assert "RANK=3: expected less than WORLD_SIZE=2" in checks_of(ended)["launcher"]["detail"]
    assert {checks_of(ended)[name]["status"] for name in MEASURED} == {"skip"}
    assert "RANK=3" in checks_of(ended)["GEMM"]["detail"]


@pytest.mark.parametrize(
    ("ranks", "detail", "fix"),
    [
        ("nodes=2", "hardware.nodes is 2: start the command on all of them with srun", ""),
        ("accelerators_per_node=1000", "1000 ranks share ", "--set hardware.accelerators_per_node="),
    ],
)
def test_ranks_that_a_run_refuses_fail_once_and_nothing_is_measured(
    typed: Typed, ranks: str, detail: str, fix: str
) -> None:
    settings = ["--set", f"hardware.{ranks}", "--set", "communication.backend=torch"]
    ended = typed("doctor", "ic", *ON_CPU, *settings, "--json")
    assert (ended.returncode, ended.stderr) == (69, "")
    checks = checks_of(ended)
    assert [name for name, check in checks.items() if check["status"] == "fail"] == ["ranks"]
    assert checks["ranks"]["detail"].startswith(detail)
    assert (checks["ranks"]["fix"] or "").startswith(fix)
    assert {checks[name]["detail"] for name in MEASURED[1:]} == {"not measured: first fix `ranks`"}
    quick = checks_of(typed("doctor", "ic", *ON_CPU, *settings, "--json", "--quick"))
    assert quick["ranks"] == checks["ranks"]


def test_a_broken_environment_or_torch_is_told_without_importing_it(tmp_path: Path) -> None:
    module = tmp_path / "packages" / "torch.py"
    module.parent.mkdir()
    python = python_with(tmp_path / "python", module.parent)
    module.write_text("raise SystemExit('torch was imported')")
    ended = in_a_process(tmp_path, "doctor", "ic", "--set", "accelerator.device=cuda", "--json", python=python)
    assert (ended.returncode, ended.stderr, checks_of(ended)["accelerator"]["status"]) == (69, "", "fail")
    assert checks_of(ended)["ranks"] == {
        "name": "ranks", "status": "skip", "detail": "not measured: first fix `accelerator`", "fix": None,
    }  # fmt: skip
    module.write_text("raise ImportError('libtorch.so: cannot open shared object file')")
    ended = in_a_process(tmp_path, "doctor", "ic", *ON_CPU, "--json", python=python)
    assert (ended.returncode, checks_of(ended)["ranks"]["status"]) == (69, "fail")
    assert "libtorch.so: cannot open shared object file" in checks_of(ended)["ranks"]["detail"]
    assert checks_of(ended)["GEMM"]["detail"] == "not measured: `ranks` did not finish"


def test_a_data_set_is_read_and_what_is_broken_in_it_fails_the_command(images: Path, tmp_path: Path) -> None:
    files = shutil.copytree(images, tmp_path / "set", ignore=lambda folder, names: {".hpcai500"} & {*names})
    broken = sorted(files.glob("train/*/*"))[0]
    broken.write_bytes(b"no image")
    arguments = ("ic", "--recipe", "ic/smoke", "--data", str(files), "--out", "record", "--json")
    ended = in_a_process(tmp_path, "doctor", *arguments)
    checks = checks_of(ended)
    assert ended.returncode == 69
    assert {name for name, check in checks.items() if check["status"] == "fail"} == {"reading"}
    assert f"1 of 33 files broken: {broken.relative_to(files)}: " in checks["reading"]["detail"]
    assert checks["reading"]["fix"] == f"copy them again; `hpcai500 data check ic {files}` finds all of them"
    assert [name for name in checks if name in MEASURED] == list(MEASURED)
    assert checks["GEMM"]["detail"].startswith("right; ")
    assert checks["disk"]["detail"].startswith(f"{tmp_path} has ")
    assert checks["model memory"]["status"] == "pass"
    assert "hpcai500: doctor: GEMM (6 of 12)" in ended.stderr
    # Nothing is left behind: neither record nor cache.
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="this processor has no AVX2")
def test_convolutions_that_this_machine_gets_wrong_fail_the_command(tmp_path: Path) -> None:
    narrow = ("--recipe", "ic/smoke", "--set", "workload.width=4", *ON_CPU, "--json")
    ended = in_a_process(tmp_path, "doctor", "ic", *narrow, ONEDNN_MAX_CPU_ISA="AVX2")
    assert (ended.returncode, checks_of(ended)["convolutions"]["status"]) == (69, "fail")
    detail = checks_of(ended)["convolutions"]["detail"]
    assert "fp32, NHWC: the convolution of 4 to 8 channels, 1x1, stride 2" in detail
    assert "--set framework.channels_last=false" in checks_of(ended)["convolutions"]["fix"]


def test_ctrl_c_prints_what_was_found_so_far(tmp_path: Path) -> None:
    # A pipe that nobody writes to: reading it takes until the end of patience.
    for part in ("train", "val"):
        (tmp_path / "set" / part / "a").mkdir(parents=True)
    os.mkfifo(tmp_path / "set" / "train" / "a" / "1.JPEG")
    command = [sys.executable, "-c", f"{MAIN}sys.exit(code)", "doctor", "ic", "--recipe", "ic/smoke", "--data", "set"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=tmp_path)
        limit = time.monotonic() + 600
        while "doctor: reading" not in (tmp_path / "said").read_text():
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "pass  GEMM" in shown
    assert "fail  reading        stopped by Ctrl-C before it ended" in shown
    assert shown.splitlines()[-1] == "verdict fail"
    assert (
        (tmp_path / "said").read_text().endswith("hpcai500: error: stopped by Ctrl-C: some checks were not measured\n")
    )


# --- the same checks before a run


@without_devices
def test_a_run_that_cannot_be_is_refused_before_anything_is_made(typed: Typed, tmp_path: Path) -> None:
    ended = typed("ic", "--set", "accelerator.device=cuda")
    assert ended.returncode == 69
    assert "accelerator.device is cuda, but " in ended.stderr
    assert "--set accelerator.device=cpu" in ended.stderr
    assert not list(tmp_path.iterdir())


@without_devices
@pytest.mark.parametrize("command", ["ic", "profile ic"])
def test_a_missing_device_is_told_before_what_would_not_help(typed: Typed, command: str) -> None:
    settings = ("accelerator.device=cuda", "communication.backend=torch", "hardware.accelerators_per_node=1000")
    words = [*command.split(), *(word for text in settings for word in ("--set", text))]
    ended = typed(*words)
    assert ended.returncode == 69
    assert "error: accelerator.device is cuda, but " in ended.stderr
    assert "error: nowhere: no such folder" in typed(*words, "--data", "nowhere").stderr


def test_of_several_errors_the_first_is_told_and_the_others_counted(tmp_path: Path) -> None:
    """A missing data set is a mistake of the user."""
    with pytest.raises(DataError, match=r"no such folder; give the folder of synthetic-shapes with --data DIR$"):
        require_healthy(Subject(recipe(), tmp_path / "none", tmp_path))
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "record"
    typed = ["profile", "ic", "--data", "no data", f"--out={out}", "--steps", "5", "--set", "os.threads=2"]
    with pytest.raises(DataError, match=r"no such folder") as raised:
        require_healthy(Subject(recipe(), tmp_path / "none", out, typed))
    line = f"hpcai500 doctor ic --data 'no data' --out={out} --set os.threads=2"
    assert str(raised.value).endswith(f" (and 1 more: see `{line}`)")


@without_devices
def test_a_healthy_machine_hears_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
        "hpcai500: warning: TMPDIR=/nowhere-hpcai500/tmp: it does not exist: temporary files go to /tmp; set TMPDIR to "
        "a folder that exists on every node"
    ]


def test_a_library_that_is_not_installed_is_told_before_the_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed", lambda *names: None)
    with pytest.raises(EnvironmentLacksError, match="Horovod is not installed; run `make horovod`"):
        require_healthy(Subject(of_two(), None, tmp_path))
    assert {check.name for check in examine(Subject(of_two("torch"), None, tmp_path))} == set(LOOKED_AT)


@without_devices
def test_a_rank_without_a_device_hears_the_same_as_doctor() -> None:
    torch = installed_torch()
    assert torch is not None
    assert why_no_device(os.environ, torch, ["ic"]).startswith("accelerator.device is cuda, but torch")


def test_a_rank_whose_driver_is_silent_is_not_told_that_it_has_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Driver(loaded=True, reason="it did not answer within 60 s", silent=True)
    monkeypatch.setattr(doctor, "ask_driver", lambda environment: silent)  # a driver cannot exist here
    monkeypatch.setattr(doctor, "find_traces", lambda: Traces(("/dev/nvidia0",)))
    said = why_no_device(os.environ, Torch("2.13.0", "13.0"), ["ic"])
    assert "the NVIDIA driver did not answer within 60 s" in said
    assert "though the driver does" not in said


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
    with pytest.raises(
        EnvironmentLacksError, match="locked: no permission to write there; give another folder with --out"
    ):
        list(run_benchmark(request, launcher_of(find_placement({}), None)))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/locked/a"), "/locked/a: Permission denied"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (OSError("no address"), "no address"),
    ],
)
def test_an_error_of_the_system_is_not_called_one_of_the_result(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, error: OSError, told: str
) -> None:
    def fail(**options: object) -> None:
        raise error

    # That of stdout itself is in tests/cli.
    monkeypatch.setattr(commands, "parser", lambda: fail)
    ended = typed()
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"hpcai500: error: {told}\n")


# --- version and system


def test_version_prints_a_document_or_lines(typed: Typed) -> None:
    ended = typed("version", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["schema"]) == (0, "hpcai500-version-1")
    lines = typed("version").stdout
    assert f"core      {document['package']['core_sha256']}" in lines
    assert f"code      {document['package']['code_sha256']}" in lines
    assert "image     none" in lines


def test_one_node_is_described_in_one_document_without_torch(tmp_path: Path) -> None:
    ended = in_a_process(tmp_path, "system", "--json", "--data", "nowhere")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found.keys() == {"nodes", "installation", "differences"}
    (node,) = found["nodes"]
    assert node.keys() >= KEYS
    assert node["cores_available"] == len(os.sched_getaffinity(0))
    assert node["file_systems"]["out"]["path"] == str(tmp_path)
    assert node["file_systems"]["data"]["total_bytes"] > 0
    assert found["installation"]["package"]["version"]


def test_the_text_has_six_parts_and_the_other_format_mlperfs_names(typed: Typed) -> None:
    ended = typed("system")
    assert ended.returncode == 0, ended.stderr
    assert [line[:2] for line in ended.stdout.splitlines() if line[:1].isdigit()][1:] == [f"{n}." for n in range(1, 7)]
    assert json.loads(typed("system", "--format", "mlperf").stdout)["number_of_nodes"] == "1"


def test_ranks_of_one_host_are_one_node_that_torch_knows_more_of(typed: Typed, tmp_path: Path) -> None:
    ended = typed("system", "--procs", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (node,) = found["nodes"]
    assert node.keys() >= KEYS
    assert node["software"]["torch_build"]
    assert node["file_systems"]["out"]["path"] == str(tmp_path)
    assert found["differences"] == []


def test_a_tiny_run_keeps_it_and_the_command_shows_it(typed: Typed, images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert train.main(train_arguments(images, record, "problem.epochs=1")) == 0
    system = json.loads((record / "system.json").read_text())
    (node,) = system["nodes"]
    assert node.keys() >= KEYS
    assert node["raw"].keys() >= {"lscpu"}
    assert node["file_systems"]["out"]["path"] == str(record)
    assert not list(iterate(read_record(record).events, "system_differences"))
    assert json.loads(typed("system", str(record), "--json").stdout) == {**system, "differences": []}
    assert typed("system", str(record)).stdout.startswith(f"1 node; this is {node['host']}\n")
