"""Commands whose output nobody wants: `hpcai500 … >&-`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import weather_arguments

from hpcai500.record import read_record


def run(arguments: list[str], closed: str) -> subprocess.CompletedProcess[str]:
    command = shlex.join([sys.executable, "-m", *arguments])
    return subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_does_not_die_of_its_last_line(weather: Path, tmp_path: Path, closed: str) -> None:
    out = tmp_path / "record"
    result = run(["hpcai500.train", *weather_arguments(weather, out, "problem.epochs=1")], closed)
    assert result.returncode == 0, result.stderr
    assert read_record(out).status == "done"


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_command_keeps_its_exit_code(tmp_path: Path, closed: str) -> None:
    result = run(["hpcai500.data", "check", "ewa", str(tmp_path / "nowhere")], closed)
    assert result.returncode == 64
    assert "Traceback" not in result.stderr
