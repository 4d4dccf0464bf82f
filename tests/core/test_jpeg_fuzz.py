"""Our JPEG decoder against libjpeg-turbo under the sanitizers: the short run of what scripts/fuzz does for hours.

The targets (csrc/tests/drivers/jpeg_*_fuzz.cpp) hold the claims, and a broken one ends the driver. Here is what they
are fed, and that they have not looked away: each says what became of its inputs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jpeg_corpus import all_files, our_files
from sanitized import run

TARGETS = ("jpeg_planes", "jpeg_crop", "jpeg_seek")
# One of each sampling, with and without restart markers: each of their bits is flipped.
SMALL = ("444-8x8", "420-17x9", "422-17x9", "grey-restart")
TRUNCATED = (*SMALL, "420-33x40", "444-noise", "flat-codes-22-restart", "progressive", "411")
MUTATIONS = 20_000


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder with the files."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("jpeg") / "ours", our_files())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("jpeg") / "everything", all_files())


def outcomes(driver: Path, *arguments: str) -> dict[str, int]:
    """What became of the inputs of a driver; a broken claim fails the test."""
    result = run([str(driver), *arguments])
    assert result.returncode == 0, result.stderr[-4000:]
    became = {kind: int(count) for count, kind in re.findall(r"(\d+) ([a-z ]+)", result.stderr.splitlines()[-1])}
    # A file of no bytes is an input, too: each one becomes something.
    assert sum(became.values()) == int(re.fullmatch(r"(\d+) inputs\n", result.stdout)[1])
    return became


def some(became: dict[str, int]) -> dict[str, int]:
    """Without what nothing became."""
    return {kind: count for kind, count in became.items() if count > 0}


def test_sound_files_have_libjpegs_samples_in_every_kernel(asan: Path, ours: Path) -> None:
    assert some(outcomes(asan / "jpeg_planes_corpus", str(ours))) == {"taken whole": len(our_files())}


@pytest.mark.parametrize("isa", ["", "portable"])
def test_crops_of_sound_files_are_libjpegs(asan: Path, ours: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_ISA", isa)
    assert some(outcomes(asan / "jpeg_crop_corpus", str(ours))) == {"taken by both": len(our_files())}


def test_sound_files_have_the_same_samples_when_they_are_reached_by_seek_points(asan: Path, ours: Path) -> None:
    became = outcomes(asan / "jpeg_seek_corpus", str(ours))
    assert set(some(became)) <= {"with unsuited points", "refused points", "taken points"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_cut_anywhere_ends_as_libjpeg_says(asan: Path, everything: Path, target: str) -> None:
    files = [everything / name for name in TRUNCATED]
    became = outcomes(asan / f"{target}_corpus", "--truncate", *map(str, files))
    assert sum(became.values()) == sum(file.stat().st_size + 1 for file in files)
    assert len(some(became)) >= 4


@pytest.mark.parametrize("target", TARGETS)
def test_any_flipped_bit_ends_as_libjpeg_says(asan: Path, everything: Path, target: str) -> None:
    files = [everything / name for name in SMALL]
    became = outcomes(asan / f"{target}_corpus", "--flip", *map(str, files))
    assert sum(became.values()) == 8 * sum(file.stat().st_size for file in files)
    assert len(some(became)) >= 4


@pytest.mark.parametrize("target", TARGETS)
def test_seeded_mutations_end_as_libjpeg_says(asan: Path, everything: Path, target: str) -> None:
    each = -(-MUTATIONS // (len(TARGETS) * len(all_files())))
    became = outcomes(asan / f"{target}_corpus", "--mutate", str(each), str(everything))
    assert sum(became.values()) == each * len(all_files())
    assert len(some(became)) >= 5


def test_mutated_indexes_change_no_image(asan: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no index at all")
    became = some(outcomes(asan / "seek_index_corpus", "--mutate", str(MUTATIONS // 4), str(tmp_path)))
    assert {"refused as an index", "without the file", "with false points", "used with the same pixels"} <= set(became)
