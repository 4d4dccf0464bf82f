"""Our CUDA kernels on a GPU, built by nvcc, under NVIDIA's compute-sanitizer, against their CPU twins."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["compression", "detection", "images", "norms"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no CUDA compiler: no compute-sanitizer"),
    pytest.mark.skipif(shutil.which(os.environ.get("CUDACXX", "nvcc")) is None, reason="no CUDA compiler"),
]


def succeed(command: list[str]) -> str:
    """Stdout of a command in the repository's folder that must succeed."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def cuda_stress() -> Path:
    """The driver for the device that is here, with the lines of the source in its reports."""
    folder = ROOT / "build" / "cuda-stress"
    settings = ["-DHPCAI500_PYTHON=OFF", "-DHPCAI500_CUDA_ARCHITECTURES=native", "-DCMAKE_CUDA_FLAGS=-lineinfo"]
    succeed(["cmake", "--preset", "cuda", "-B", str(folder), *settings])
    succeed(["cmake", "--build", str(folder), "--target", "cuda_stress", "-j", "4"])
    return folder / "csrc" / "drivers" / "cuda_stress"


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_give_what_the_cpu_gives(cuda_stress: Path, family: str) -> None:
    assert succeed([str(cuda_stress), family, "40"]) == f"{family}: 40 rounds\n"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_kernels_are_clean_under_compute_sanitizer(cuda_stress: Path, tool: str, family: str) -> None:
    output = succeed(["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", str(cuda_stress), family, "5"])
    assert f"{family}: 5 rounds\n" in output
