"""Each way in which a device cannot be used is told with its own fix; the driver's library is a mock, built here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside

from hpcai500.system.accelerator import (
    Driver,
    Machine,
    Torch,
    Traces,
    accelerator_check,
    ask_driver,
    find_traces,
    why_not_served,
)
from hpcai500.system.container import Container

HERE = Traces(("/dev/nvidia0",), "535.129.03")
CUDA, CPU = Torch("2.13.0+cu130", "13.0"), Torch("2.13.0+cpu", None)
ROCM = Torch("2.13.0+rocm7.0", None, hip="7.0.1")
CUDA_IMAGE = {**IMAGE, "name": "hpcai500-cuda"}
GOOD = Driver(loaded=True, version=13000, code=0, devices=8)
Build = Callable[..., str]


def machine(
    driver: Driver | None = GOOD,
    *,
    torch: Torch | None = CUDA,
    traces: Traces = HERE,
    container: Container | None = None,
) -> Machine:
    """A machine whose driver answers so; None: it must not be asked."""

    def ask() -> Driver:
        assert driver is not None, "the driver was asked"
        return driver

    return Machine(torch, traces, ask, container, ("ic", "--data", "/data"))


# --- the driver


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


def test_a_mock_driver_is_asked_in_another_process_and_found_where_the_container_puts_it(mock_library: Build) -> None:
    library = mock_library(12040, 0, 4)
    assert ask_driver(os.environ, library) == Driver(True, 12040, 0, 4)
    assert ask_driver({**os.environ, "LD_LIBRARY_PATH": str(Path(library).parent)}) == Driver(True, 12040, 0, 4)
    assert ask_driver(os.environ, mock_library(12040, 100, 4)) == Driver(True, 12040, 100, None)


def test_a_mock_driver_that_crashes_ends_only_the_process_that_asks(mock_library: Build) -> None:
    driver = ask_driver(os.environ, mock_library(13000, -1))
    assert driver.reason == "SIGABRT ended the process that queried it"
    check = accelerator_check("cuda", machine(driver))
    assert check.status == "fail"
    assert "the NVIDIA driver does not work: SIGABRT" in check.detail


def test_a_mock_driver_that_is_slow_does_not_refuse_a_healthy_run(mock_library: Build) -> None:
    driver = ask_driver(os.environ, mock_library(), patience_seconds=0)
    assert driver.silent
    check = accelerator_check("cuda", machine(driver))
    assert check.status == "warn"
    assert check.detail == "the NVIDIA driver did not answer within 0 s: each rank will try again"
    assert "nvidia-persistenced" in (check.fix or "")


@pytest.mark.parametrize(
    ("library", "loaded", "reason"),
    [
        ("/nowhere-hpcai500/libcuda.so.1", False, "cannot open shared object file"),
        ("libc.so.6", True, "undefined symbol: cuDriverGetVersion"),
    ],
)
def test_a_library_that_is_no_drivers_says_so(library: str, loaded: bool, reason: str) -> None:
    driver = ask_driver(os.environ, library)
    assert driver.loaded is loaded
    assert reason in (driver.reason or "")


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
    assert find_traces(tmp_path).words == "/dev/nvidia0 and 1 more, kernel module 570.86.15"


# --- the check


def test_a_device_that_answers_is_fine_with_traces_or_without() -> None:
    check = accelerator_check("cuda", machine())
    assert (check.status, check.fix) == ("pass", None)
    assert check.detail == "8 devices, driver for CUDA 13.0, torch built for CUDA 13.0"
    assert accelerator_check("cuda", machine(traces=Traces())).status == "pass"


def test_a_container_without_the_driver_is_told_nv_and_the_whole_line() -> None:
    start = machine(Driver(loaded=False), container=inside(description=CUDA_IMAGE))
    check = accelerator_check("cuda", start)
    assert check.status == "fail"
    assert check.detail == (
        "accelerator.device is cuda, but the container was started without the driver: it has /dev/nvidia0, kernel "
        "module 535.129.03, but no libcuda.so.1"
    )
    line = "apptainer run --nv /apps/hpcai500.sif ic --data /data"
    assert check.fix == f"{line}, or run on the CPU: --set accelerator.device=cpu"
    # Without a recipe, nobody has asked for it.
    check = accelerator_check(None, start)
    assert (check.status, check.fix) == ("warn", line)


def test_outside_a_container_the_library_has_to_be_installed() -> None:
    fix = accelerator_check("cuda", machine(Driver(loaded=False, reason="no such file"))).fix or ""
    assert "LD_LIBRARY_PATH" in fix
    assert "--nv" not in fix


def test_a_host_without_a_device_is_told_so() -> None:
    check = accelerator_check("cuda", machine(Driver(loaded=False), traces=Traces()))
    assert check.status == "fail"
    assert "this host has no NVIDIA device" in check.detail


@pytest.mark.parametrize(
    ("driver", "torch", "branch"),
    [
        (12040, "13.0", "580"), (11080, "12.8", "525"), (10020, "11.8", "450"),
        (12000, "12.8", None), (13000, "12.8", None), (13000, "13.1", None),
    ],
)  # fmt: skip
def test_a_driver_of_an_older_major_version_than_torchs_cuda_is_told_the_oldest_that_will_do(
    driver: int, torch: str, branch: str | None
) -> None:
    found = Driver(loaded=True, version=driver, code=0, devices=1)
    check = accelerator_check("cuda", machine(found, torch=Torch("2.13.0", torch)))
    assert check.status == ("fail" if branch else "pass")
    if branch:
        assert f"too old for torch 2.13.0, built for CUDA {torch}" in check.detail
        assert f"install driver {branch} or later" in (check.fix or "")


def test_in_an_image_an_older_driver_is_told_the_image_for_it() -> None:
    found = Driver(loaded=True, version=12040, code=0, devices=1)
    check = accelerator_check("cuda", machine(found, container=inside(description=CUDA_IMAGE)))
    assert check.fix
    assert check.fix.startswith("install driver 580 or later, or use the image hpcai500-cuda12.sif, or run on the CPU")


@pytest.mark.parametrize(
    ("code", "detail", "fix"),
    [
        (0, "NO_DEVICE", "sbatch --gpus-per-node=N"),
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
    check = accelerator_check("cuda", machine(Driver(loaded=True, version=13000, code=code, devices=0)))
    assert check.status == "fail"
    assert detail in check.detail
    assert fix in (check.fix or "")


@pytest.mark.parametrize(
    ("torch", "container", "said"),
    [
        (CPU, inside(), "; use the image hpcai500-cuda.sif with --nv instead of hpcai500-cpu"),
        (CPU, None, "; use a CUDA build"),
        (None, None, "torch is not installed"),
        (ROCM, None, "torch 2.13.0+rocm7.0 is built for AMD devices (ROCm 7.0.1), which this version does not support"),
    ],
)
def test_a_torch_without_cuda_is_told_what_to_take_instead(
    torch: Torch | None, container: Container | None, said: str
) -> None:
    check = accelerator_check("cuda", machine(None, torch=torch, container=container))
    assert check.status == "fail"
    assert said in check.sentence


def test_a_run_on_the_cpu_beside_a_device_is_never_silent() -> None:
    check = accelerator_check("cpu", machine(None))
    assert check.status == "warn"
    assert "this run measures the CPU" in check.detail
    assert check.fix == "--set accelerator.device=cuda"
    fix = accelerator_check("cpu", machine(None, torch=CPU, container=inside())).fix or ""
    assert "with the image hpcai500-cuda.sif" in fix
    many = Traces(tuple(f"/dev/nvidia{index}" for index in range(8)), "535.129.03")
    sentence = accelerator_check("cpu", machine(None, torch=CPU, container=inside(), traces=many)).sentence
    assert "has /dev/nvidia0 and 7 more: this run measures the CPU; " in sentence
    assert len(sentence) <= 200
    check = accelerator_check(None, machine(None, torch=ROCM))
    assert check.status == "warn"
    assert "ROCm 7.0.1" in check.detail


@pytest.mark.parametrize("wanted", ["cpu", None])
def test_where_no_device_is_and_none_is_wanted_nobody_is_asked(wanted: str | None) -> None:
    assert accelerator_check(wanted, machine(None, torch=CPU, traces=Traces())).status == "pass"


# --- whether there is code for a GPU


CUDA_13 = (["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"], ["75-real", "80-real", "90-real", "120"])


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1), (13, 0)])
def test_code_serves_later_minor_versions_and_can_be_translated_for_later_ones(capability: tuple[int, int]) -> None:
    assert why_not_served("GPU", capability, *CUDA_13) is None
    assert why_not_served("GPU", capability, CUDA_13[0], []) is None


@pytest.mark.parametrize(
    ("capability", "by_torch", "by_us", "words"),
    [
        (
            (7, 0),
            *CUDA_13,
            "there is no code of torch and hpcai500 for this GPU (Tesla V100, compute capability 7.0; only for sm_75",
        ),
        ((7, 0), *CUDA_13, "sm_120, compute_120); use the image hpcai500-cuda12.sif, or build torch and hpcai500 for"),
        ((6, 1), *CUDA_13, "compute_120); build torch and hpcai500 for compute capability 6.1, or run on the CPU"),
        ((8, 6), ["sm_80"], ["90-real"], "cuda, but there is no code of hpcai500 for this GPU"),
        ((9, 0), ["sm_90"], ["80-real"], "only for 80-real); build hpcai500 for compute capability 9.0"),
        ((10, 0), ["sm_90a"], [], "there is no code of torch for"),
    ],
)
def test_a_gpu_without_code_is_refused_with_the_image_that_has_it(
    capability: tuple[int, int], by_torch: list[str], by_us: list[str], words: str
) -> None:
    assert words in str(why_not_served("Tesla V100", capability, by_torch, by_us))
