"""Builds the drivers under a sanitizer and runs them."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """The result of a command in the repository's folder."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def build(preset: str, tmp: Path) -> Path:
    """The folder of the preset's drivers; skips, with the reason, where they cannot be built."""
    for tool in ("cmake", "ninja", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    sanitizers = SANITIZERS[preset]
    probe = tmp / "probe.cpp"
    probe.write_text("int main() {}\n")
    program = tmp / "probe"
    compiled = run(["c++", f"-fsanitize={sanitizers}", str(probe), "-o", str(program)])
    if compiled.returncode != 0:
        pytest.skip(f"the compiler lacks -fsanitize={sanitizers}: {compiled.stderr.strip().splitlines()[-1]}")
    started = run([str(program)])
    if started.returncode != 0:
        pytest.skip(f"this kernel does not run -fsanitize={sanitizers}: {started.stderr.strip()[:200]}")
    return drivers(preset)


def drivers(preset: str) -> Path:
    """The folder of the drivers that a preset builds."""
    (ROOT / "build").mkdir(exist_ok=True)
    # Workers of one test run must not build in one folder at the same time.
    with (ROOT / "build" / f"{preset}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, "-j", "2"]):
            result = run(command)
            assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "build" / preset / "csrc" / "drivers"


def inputs(driver: Path, *arguments: str) -> int:
    """How many inputs a corpus driver has run; a defect fails the test."""
    result = run([str(driver), *arguments])
    assert result.returncode == 0, result.stderr[-4000:]
    return int(re.fullmatch(r"(\d+) inputs\n", result.stdout)[1])
