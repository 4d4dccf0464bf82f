"""Each way in which a device cannot be used is told with its own fix; the driver's library is a mock, built here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside

from hpcai500.system.accelerator import Driver, Machine, Torch, Traces, accelerator_check, ask_driver, find_traces
from hpcai500.system.container import Container

HERE = Traces(("/dev/nvidia0",), "535.129.03")
CUDA = Torch("2.13.0+cu130", "13.0")
CPU = Torch("2.13.0+cpu", None)
CUDA_IMAGE = {**IMAGE, "name": "hpcai500-cuda"}
GOOD = Driver(loaded=True, version=13000, code=0, devices=8)
Build = Callable[..., str]


@pytest.fixture
def mock_library(tmp_path: Path) -> Build:
    """Builds a mock of libcuda.so.1 that answers as told; returns its path."""

    def build(version: int = 13000, code: int = 0, devices: int = 1) -> str:
        path = tmp_path / "libcuda.so.1"
        source = Path(__file__).with_name("mock_driver.c")
        answers = [f"-DMOCK_VERSION={version}", f"-DMOCK_CODE={code}", f"-DMOCK_DEVICES={devices}"]
        subprocess.run(["cc", "-shared", "-fPIC", *answers, "-o", str(path), str(source)], check=True)
        return str(path)

    return build


def machine(
    driver: Driver = GOOD,
    *,
    torch: Torch | None = CUDA,
    traces: Traces = HERE,
    container: Container | None = None,
) -> Machine:
    return Machine(torch, traces, lambda: driver, container, ("ic", "--data", "/data"))


def not_to_be_asked() -> Driver:
    raise AssertionError("the driver was asked")


def test_a_mock_driver_is_asked_in_another_process(mock_library: Build) -> None:
    assert ask_driver(os.environ, mock_library(12040, 0, 4)) == Driver(True, 12040, 0, 4)
    assert ask_driver(os.environ, mock_library(12040, 100, 4)) == Driver(True, 12040, 100, None)


def test_a_mock_driver_is_found_where_the_container_puts_it(mock_library: Build) -> None:
    folder = Path(mock_library(13010, 0, 2)).parent
    assert ask_driver({**os.environ, "LD_LIBRARY_PATH": str(folder)}) == Driver(True, 13010, 0, 2)


def test_a_mock_driver_that_crashes_ends_only_the_process_that_asks(mock_library: Build) -> None:
    driver = ask_driver(os.environ, mock_library(13000, -1))
    assert driver.reason == "SIGABRT ended the process that asked it"
    check = accelerator_check("cuda", machine(driver))
    assert check.status == "fail"
    assert "the NVIDIA driver does not work: SIGABRT" in check.detail


def test_a_library_that_is_not_there_says_so(tmp_path: Path) -> None:
    driver = ask_driver(os.environ, str(tmp_path / "libcuda.so.1"))
    assert not driver.loaded
    assert "cannot open shared object file" in (driver.reason or "")


def test_a_library_that_is_none_of_a_driver_says_so() -> None:
    driver = ask_driver(os.environ, "libc.so.6")
    assert driver.loaded
    assert "undefined symbol: cuDriverGetVersion" in (driver.reason or "")


def test_traces_of_a_device_are_its_files_and_the_kernel_module(tmp_path: Path) -> None:
    assert not find_traces(tmp_path).any
    (tmp_path / "dev").mkdir()
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert find_traces(tmp_path) == Traces(("/dev/nvidia0", "/dev/nvidia1"), None)
    version = tmp_path / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC 12.2.0\n"
    )
    assert find_traces(tmp_path).words == "/dev/nvidia0, /dev/nvidia1, kernel module 570.86.15"


def test_a_device_that_answers_is_fine() -> None:
    check = accelerator_check("cuda", machine())
    assert (check.status, check.fix) == ("pass", None)
    assert check.detail == "8 devices, driver for CUDA 13.0, torch built for CUDA 13.0"


def test_a_container_without_the_driver_is_told_nv_and_the_whole_line() -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=False), container=inside(description=CUDA_IMAGE)))
    assert check.status == "fail"
    assert check.detail == (
        "accelerator.device is cuda, but the container was started without the driver: /dev/nvidia0, kernel module "
        "535.129.03 is here, libcuda.so.1 is not"
    )
    assert check.fix == (
        "apptainer run --nv /apps/hpcai500.sif ic --data /data, or run on the CPU: --set accelerator.device=cpu"
    )


def test_outside_a_container_the_library_has_to_be_installed() -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=False, reason="no such file")))
    assert check.fix is not None
    assert "--nv" not in check.fix
    assert "LD_LIBRARY_PATH" in check.fix


def test_a_host_without_a_device_is_told_so() -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=False), traces=Traces()))
    assert check.status == "fail"
    assert "this host has no NVIDIA device" in check.detail


def test_a_device_without_traces_is_used_where_its_driver_answers() -> None:
    assert accelerator_check("cuda", machine(traces=Traces())).status == "pass"


@pytest.mark.parametrize(
    ("driver", "torch", "branch"), [(12040, "13.0", "580"), (11080, "12.8", "525"), (10020, "11.8", "450")]
)
def test_a_driver_older_than_torchs_cuda_is_told_the_oldest_that_will_do(driver: int, torch: str, branch: str) -> None:
    found = Driver(loaded=True, version=driver, code=0, devices=1)
    check = accelerator_check("cuda", machine(found, torch=Torch("2.13.0", torch)))
    assert check.status == "fail"
    assert f"too old for torch 2.13.0, built for CUDA {torch}" in check.detail
    assert check.fix is not None
    assert f"have driver {branch} or later installed" in check.fix


@pytest.mark.parametrize(("driver", "torch"), [(12000, "12.8"), (13000, "12.8"), (13000, "13.1")])
def test_a_driver_of_the_same_or_a_later_major_version_will_do(driver: int, torch: str) -> None:
    found = Driver(loaded=True, version=driver, code=0, devices=1)
    assert accelerator_check("cuda", machine(found, torch=Torch("2.13.0", torch))).status == "pass"


@pytest.mark.parametrize(
    ("code", "detail", "fix"),
    [
        (100, "NO_DEVICE", "sbatch --gpus-per-node=N"),
        (46, "DEVICE_UNAVAILABLE", "nvidia-smi"),
        (802, "SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        (803, "SYSTEM_DRIVER_MISMATCH", "reboot"),
        (804, "COMPAT_NOT_SUPPORTED", "LD_LIBRARY_PATH"),
        (999, "CUDA_ERROR_UNKNOWN", "nvidia-uvm"),
        (7777, "error 7777 of cuInit", "dmesg"),
    ],
)
def test_a_driver_that_gives_no_device_says_why(code: int, detail: str, fix: str) -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=True, version=13000, code=code)))
    assert check.status == "fail"
    assert detail in check.detail
    assert fix in (check.fix or "")


def test_no_device_although_the_driver_starts_is_no_device() -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=True, version=13000, code=0, devices=0)))
    assert "NO_DEVICE" in check.detail


def test_a_torch_without_cuda_is_told_the_other_image() -> None:
    check = accelerator_check("cuda", Machine(CPU, HERE, not_to_be_asked, inside()))
    assert check.status == "fail"
    assert (check.fix or "").startswith("use the image hpcai500-cuda.sif with --nv instead of hpcai500-cpu")
    assert (accelerator_check("cuda", Machine(CPU, HERE, not_to_be_asked)).fix or "").startswith("use a CUDA build")
    assert "torch is not installed" in accelerator_check("cuda", Machine(None, HERE, not_to_be_asked)).detail


def test_a_run_on_the_cpu_beside_a_device_is_never_silent() -> None:
    check = accelerator_check("cpu", Machine(CUDA, HERE, not_to_be_asked))
    assert check.status == "warn"
    assert "this run measures the CPU" in check.detail
    assert check.fix == "--set accelerator.device=cuda (and a precision that it is fast in)"
    fix = accelerator_check("cpu", Machine(CPU, HERE, not_to_be_asked, inside())).fix or ""
    assert "with the image hpcai500-cuda.sif" in fix


@pytest.mark.parametrize("wanted", ["cpu", None])
def test_where_no_device_is_and_none_is_wanted_nobody_is_asked(wanted: str | None) -> None:
    assert accelerator_check(wanted, Machine(CPU, Traces(), not_to_be_asked)).status == "pass"


def test_without_a_recipe_a_device_that_cannot_be_used_is_a_warning() -> None:
    check = accelerator_check(None, machine(Driver(loaded=False), container=inside(description=CUDA_IMAGE)))
    assert check.status == "warn"
    assert check.fix == "apptainer run --nv /apps/hpcai500.sif ic --data /data"


def test_a_mock_driver_that_is_slow_does_not_refuse_a_healthy_run(mock_library: Build) -> None:
    driver = ask_driver(os.environ, mock_library(), patience_seconds=0)
    assert driver.silent
    check = accelerator_check("cuda", machine(driver))
    assert check.status == "warn"
    assert check.detail == "the NVIDIA driver did not answer within 0 s: each rank asks it again"
    assert "nvidia-persistenced" in (check.fix or "")


@pytest.mark.parametrize(("wanted", "status"), [("cuda", "fail"), (None, "warn")])
def test_a_torch_for_amd_devices_is_said_to_be_none_that_this_version_supports(wanted: str | None, status: str) -> None:
    rocm = Torch("2.13.0+rocm7.0", None, hip="7.0.1")
    check = accelerator_check(wanted, Machine(rocm, HERE, not_to_be_asked))
    assert check.status == status
    assert "torch 2.13.0+rocm7.0 is built for AMD devices (ROCm 7.0.1), which this version does not support" in (
        check.detail
    )
