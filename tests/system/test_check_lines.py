"""What doctor prints: one line a check, its fix below, the verdict last."""

from __future__ import annotations

import json

import pytest

from hpcai500.system.checks import Check, Status, document, lines, verdict

FINE = Check("container", "pass", "none")
NARROW = Check("cores", "warn", "1 of 64 cores", "srun --cpus-per-task=N")
BROKEN = Check("data", "fail", "/scratch/x: not visible", "add --bind /scratch")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "pass"),
        (["pass", "skip"], "pass"),
        (["pass", "warn", "skip"], "warn"),
        (["warn", "fail", "pass"], "fail"),
    ],
)
def test_the_verdict_is_the_worst_and_what_is_skipped_hurts_nobody(statuses: list[Status], expected: str) -> None:
    assert verdict([Check(str(number), status, "") for number, status in enumerate(statuses)]) == expected


def test_people_see_columns_the_fix_below_and_the_verdict_last() -> None:
    assert list(lines([FINE, NARROW, BROKEN])) == [
        "pass  container  none",
        "warn  cores      1 of 64 cores",
        "                   fix: srun --cpus-per-task=N",
        "fail  data       /scratch/x: not visible",
        "                   fix: add --bind /scratch",
        "verdict fail",
    ]


def test_programs_get_every_field_of_every_check() -> None:
    found = json.loads(json.dumps(document([FINE, BROKEN])))
    assert found["verdict"] == "fail"
    assert found["checks"] == [
        {"name": "container", "status": "pass", "detail": "none", "fix": None},
        {"name": "data", "status": "fail", "detail": "/scratch/x: not visible", "fix": "add --bind /scratch"},
    ]


def test_an_error_is_one_sentence_with_its_fix() -> None:
    assert (FINE.sentence, BROKEN.sentence) == ("none", "/scratch/x: not visible; add --bind /scratch")
