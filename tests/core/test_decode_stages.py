"""The driver that benchmarks/decode_stages.py runs, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pictures import jpeg, photograph
from sanitized import run

from hpcai500._core import SeekIndexWriter, seek_key, seek_points


@pytest.fixture
def driver(asan: Path) -> Path:
    return asan / "decode_stages"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photograph(320, 240), quality=90))
    return path


def index_of(image: Path) -> Path:
    path = image.with_name("index")
    writer = SeekIndexWriter(os.fsencode(path))
    writer.add(*seek_key(image.read_bytes()), seek_points(image.read_bytes()))
    writer.finish()
    return path


def test_each_pass_times_all_stages_with_and_without_the_index(driver: Path, image: Path) -> None:
    told = run([str(driver), "2", str(index_of(image)), str(image)])
    assert told.returncode == 0, told.stderr
    itself, *rows = told.stdout.splitlines()
    assert itself.startswith("built by ")
    lines = [row.split() for row in rows]
    assert [line[0] for line in lines] == ["whole", "index"] * 2
    for _, total, *stages in lines:
        assert len(stages) == 4
        assert int(total) > 0
        assert all(int(stage) >= 0 for stage in stages)
        assert int(stages[3]) > 0, "no block was decoded by our own decoder"


def test_an_image_that_the_index_does_not_know_is_not_timed_as_if_it_did(driver: Path, image: Path) -> None:
    index = index_of(image)
    image.write_bytes(jpeg(photograph(320, 240), quality=89))
    told = run([str(driver), "1", str(index), str(image)])
    assert told.returncode == 1
    assert "was not decoded as it was to be" in told.stderr
