"""The same code on pictures that no one here made: scikit-learn's scans of handwritten digits, as JPEG files."""

from __future__ import annotations

from pathlib import Path

import pytest
from digits import write_digits

from hpcai500 import train
from hpcai500.results.score import score_record


@pytest.mark.slow
def test_scanned_digits_are_learnt_to_a_top1_above_0_9(tmp_path: Path) -> None:
    training, evaluation = write_digits(tmp_path / "digits")
    assert (training, evaluation) == (1438, 359)
    # A mirrored digit is another sign, so there is no flip; crops stay close to the whole scan.
    settings = [
        "problem.dataset=digits",
        "problem.epochs=10",
        "problem.target_quality=0.9",
        "hyperparameters.batch_size=32",
        "workload.flip_probability=0.0",
        "workload.crop_area=[0.7, 1.0]",
    ]
    changes = [token for text in settings for token in ("--set", text)]
    arguments = [
        "--recipe",
        "ic/smoke",
        "--data",
        str(tmp_path / "digits"),
        "--out",
        str(tmp_path / "record"),
        *changes,
    ]
    assert train.main(arguments) == 0
    result = score_record(tmp_path / "record")
    assert result.quality.achieved is not None
    assert result.quality.achieved > 0.9
    assert result.images == 10 * training
