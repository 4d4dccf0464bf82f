"""What version 0.1.0 wrote is read, scored and verified as it was then. The samples are runs that it made."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from hpcai500.campaign.journal import read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.record import json_object
from hpcai500.results.score import score_record
from hpcai500.results.verification.verify import verify_submission

SAMPLES = Path(__file__).parent / "samples"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(SAMPLES / f"{name}-0.1.0.tar.xz") as archive:
        # Python before 3.11.4, such as that of Debian 12, has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder


def test_a_submission_is_verified_and_not_ranked_as_its_code_is_not_here(tmp_path: Path) -> None:
    files = unpacked("submission", tmp_path / "files")
    submission = tmp_path / "submission.zip"
    with zipfile.ZipFile(submission, "w") as archive:
        for path in sorted(files.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(files).as_posix())
    found = verify_submission(submission)
    assert [one for one in found.findings if one.severity == "fail"] == []
    assert found.verdict == "verified"
    assert not found.rankable
    assert "its code is of version 0.1.0" in found.reasons[-1]
    assert len(found.results) == 3


@pytest.mark.parametrize("trial", [1, 2, 3])
def test_records_have_the_score_that_they_had(tmp_path: Path, trial: int) -> None:
    campaign = read_campaign(unpacked("campaign", tmp_path / "campaign"))
    path = tmp_path / "campaign" / f"trial-{trial:02d}"
    scored, written = score_record(path).as_json(), json_object(path / "result.json")
    # Of one of them, the definition has changed: the share of waiting is that of the whole step.
    others = {key: value for key, value in written.items() if key != "communication_fraction"}
    numbers = {key: value for key, value in others.items() if isinstance(value, float)}
    assert {key: scored[key] for key in numbers} == pytest.approx(numbers)
    assert not [reason for reason in standing(campaign).reasons if "result.json" in reason]
