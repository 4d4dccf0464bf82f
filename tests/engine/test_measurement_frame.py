"""What a measurement says when it ends: to people who measure, and who have no run to go on with."""

from __future__ import annotations

import pytest

from hpcai500.engine.measurement import tell_end
from hpcai500.errors import ExitCode


def test_whoever_measures_is_not_told_to_resume_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_end("rank 1 is gone; go on with --resume", ExitCode.RUN_FAILED) == ExitCode.RUN_FAILED
    assert capsys.readouterr().err == "hpcai500: error: rank 1 is gone\n"
