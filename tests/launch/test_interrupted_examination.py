"""What `hpcai500 doctor` tells when Ctrl-C ends its job, however the job's process took it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from acted_runs import ActedLauncher

from hpcai500.job_options import PreflightOptions, read_options
from hpcai500.launch.examination import Findings, Patient, examine_command
from hpcai500.system.checks import RANKS, VERSIONS, Check, CheckLog


class InterruptedLauncher(ActedLauncher):
    """Its job tells of the first checks, and ends by Ctrl-C's signal; does it `write` that too?"""

    def __init__(self, *, write: bool) -> None:
        super().__init__()
        self._write = write

    def run(
        self, recipe: Any, arguments: Sequence[str | Path], module: str = "train", patience: Any = None
    ) -> NoReturn:
        """The job."""
        log = CheckLog(read_options(PreflightOptions, [str(word) for word in arguments]).log, 60, lambda: None)
        log.begin(RANKS)
        log.found([Check(RANKS, "pass", "one")])
        log.begin(VERSIONS)
        if self._write:
            log.stopped("Ctrl-C")
        log.close()
        raise KeyboardInterrupt


@pytest.mark.parametrize("write", [True, False], ids=["written", "too early to be written"])
def test_what_was_found_before_ctrl_c_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hpcai500", "doctor"])
    findings: Findings = examine_command(Patient(), InterruptedLauncher(write=write))
    assert findings.stopped == "Ctrl-C"
    found = {check.name: check for check in findings.checks}
    assert found[RANKS].status == "pass"
    assert (found[VERSIONS].status, found[VERSIONS].detail) == ("fail", "stopped by Ctrl-C before it ended")
