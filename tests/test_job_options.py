"""What the login half tells a command of the job arrives as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcai500.engine import replay_command, vote_command
from hpcai500.job_options import (
    Measurement,
    MicroOptions,
    PreflightOptions,
    ReplayOptions,
    StepOptions,
    SystemOptions,
    as_argument,
    read_options,
)
from hpcai500.measure import preflight_command, step_command

# No text in any encoding: a path may hold such bytes.
ODD = os.fsdecode(b"a \xff'\"\n")


def measured(options: Any) -> Measurement[Any]:
    return Measurement(ODD, ("problem.epochs=1", f'a.b="{ODD}"'), Path(ODD), Path("doing"), options)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Measurement[StepOptions], measured(StepOptions(3, 0.1))),
        (Measurement[StepOptions], measured(StepOptions(classes=9))),
        (Measurement[MicroOptions], measured(MicroOptions(("gemm", "input"), 2.0, {"ic": Path(ODD)}))),
        (Measurement[SystemOptions], measured(SystemOptions({"data": None, "out": Path("runs")}))),
        (PreflightOptions, PreflightOptions("ic/smoke", (), Path("log"), ("ranks",), None, Path(ODD), None, 60.0)),
        (ReplayOptions, ReplayOptions(Path("r"), Path(ODD), Path("d"), Path("out"), held_back=Path("h"), device="cpu")),
    ],
)
def test_options_come_back_as_they_were(kind: type, told: Any) -> None:
    argument = as_argument(told)
    assert argument.isascii()
    assert read_options(kind, [argument]) == told


@pytest.mark.parametrize("main", [replay_command.main, vote_command.main, step_command.main, preflight_command.main])
@pytest.mark.parametrize("arguments", [[], ["--recipe", "x"], ["{}"], ["[1]"], ["{"], ['{"recipe": 3, "no": 4}']])
def test_a_command_that_is_started_by_hand_says_so_in_a_line(
    main: Callable[[Sequence[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hpcai500: error: expected one argument, ")
    assert line.endswith(" as JSON: other commands of hpcai500 start this one")
