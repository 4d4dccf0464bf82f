"""The digits that end-to-end tests train on are the scans that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from digits import write_digits
from PIL import Image
from sklearn.datasets import load_digits

from hpcai500.data.imagenet.check import check_images


def test_each_scan_is_in_exactly_one_split_and_still_looks_like_itself(tmp_path: Path) -> None:
    assert write_digits(tmp_path, side=64) == (1438, 359)
    report = check_images(tmp_path)
    assert report.passed
    assert len(report.classes) == 10
    scans = load_digits()
    files = {int(path.stem): path for path in tmp_path.rglob("*.JPEG")}
    assert sorted(files) == list(range(1797))
    for number in range(0, 1797, 97):
        assert files[number].parent.name == f"digit-{scans.target[number]}"
        small = np.asarray(Image.open(files[number]).convert("L").resize((8, 8), Image.Resampling.BOX), dtype=float)
        assert np.corrcoef(small.ravel(), scans.images[number].ravel())[0, 1] > 0.98
