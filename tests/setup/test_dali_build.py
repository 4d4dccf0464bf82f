"""The build says whether it found DALI, and refuses to go on without where it was told to use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without_dali(tmp_path: Path) -> Path:
    """A Python that has no packages but the standard library's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


def configured(folder: Path, python: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """CMake's first step, of the core alone."""
    bin_folder = Path(sys.executable).parent
    command = [bin_folder / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}", f"-DPython_EXECUTABLE={python}"]
    command += ["-DHPCAI500_PYTHON=OFF", "-DHPCAI500_CUDA=OFF", *settings]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_build_that_must_have_dali_says_where_it_looked(tmp_path: Path, without_dali: Path) -> None:
    ended = configured(tmp_path / "build", without_dali, "-DHPCAI500_DALI=ON")
    assert ended.returncode != 0
    said = " ".join(ended.stderr.split())
    assert f"HPCAI500_DALI=ON, but DALI: none in {without_dali}" in said


@pytest.mark.parametrize("choice", ["AUTO", "OFF"])
def test_a_build_that_need_not_have_dali_does_not_look(tmp_path: Path, without_dali: Path, choice: str) -> None:
    ended = configured(tmp_path / "build", without_dali, f"-DHPCAI500_DALI={choice}")
    assert ended.returncode == 0, ended.stderr
    assert "DALI not looked for" in ended.stdout
