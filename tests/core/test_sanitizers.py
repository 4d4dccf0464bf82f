"""The core under the sanitizers: hostile files under address and undefined behaviour, what has threads under thread.

The drivers are built incrementally in build/asan and build/tsan, with the presets of CMakePresets.json.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from climate_twin import cases
from jpeg_files import jpeg, photograph, write_jpeg
from sanitized import inputs, run

from hpcai500 import _core

KERNELS = _core.build_info()["isa"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of every kind."""
    root = tmp_path_factory.mktemp("corpus")
    picture = photograph(45, 37)
    files = {
        "baseline": jpeg(picture, quality=60),
        "444": jpeg(picture, subsampling="4:4:4", quality=60),
        "422": jpeg(picture, subsampling="4:2:2", quality=60),
        "grey": jpeg(picture, mode="L", quality=60),
        "cmyk": jpeg(picture, mode="CMYK", quality=60),
        "progressive": jpeg(picture, progressive=True, quality=60),
        "progressive-grey": jpeg(picture, mode="L", progressive=True, quality=60),
        "restarts": jpeg(picture, restart_marker_blocks=1, quality=60),
        "optimised": jpeg(picture, optimize=True, quality=20),
        "wide": jpeg(picture[:1]),
        "high": jpeg(picture[:, :1]),
        "411": write_jpeg(picture, [(4, 1), (1, 1), (1, 1)], quantiser=20),
        "440": write_jpeg(picture, [(1, 2), (1, 1), (1, 1)], quantiser=20, restart_interval=2),
        "uneven": write_jpeg(picture, [(2, 2), (2, 1), (1, 2)], quantiser=20),
        "rgb": write_jpeg(picture, [(1, 1)] * 3, quantiser=20, adobe_transform=0),
        "garbage-behind": jpeg(picture, quality=60) + bytes(range(256)) * 4,
        "text": b"no image at all",
        "empty": b"",
    }
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def test_files_of_every_kind_are_clean_under_asan(asan: Path, corpus: Path) -> None:
    assert inputs(asan / "decode_crop_corpus", str(corpus)) == len(list(corpus.iterdir()))


def test_every_truncation_is_clean_under_asan(asan: Path, corpus: Path) -> None:
    files = [corpus / name for name in ("baseline", "progressive", "411", "cmyk")]
    expected = sum(file.stat().st_size + 1 for file in files)
    assert inputs(asan / "decode_crop_corpus", "--truncate", *map(str, files)) == expected


def test_seeded_mutations_are_clean_under_asan(asan: Path, corpus: Path) -> None:
    assert inputs(asan / "decode_crop_corpus", "--mutate", "300", str(corpus)) == 300 * len(list(corpus.iterdir()))


def test_a_missing_corpus_does_not_pass(asan: Path, tmp_path: Path) -> None:
    assert run([str(asan / "decode_crop_corpus"), str(tmp_path)]).returncode != 0


def test_the_loader_is_free_of_races(tsan: Path, corpus: Path) -> None:
    files = ["baseline", "progressive", "grey", "text", "411"]
    result = run([str(tsan / "loader_stress"), str(corpus), *files])
    assert result.returncode == 0, result.stderr[-4000:]
    assert "twice the same" in result.stdout


@pytest.fixture(scope="module")
def climate_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small climate files of every kind."""
    root = tmp_path_factory.mktemp("climate")
    for name, data in cases().items():
        (root / name).write_bytes(data)
    return root


def test_climate_files_of_every_kind_are_clean_under_asan(asan: Path, climate_corpus: Path) -> None:
    assert inputs(asan / "climate_corpus", str(climate_corpus)) == len(list(climate_corpus.iterdir()))


def test_every_truncation_of_climate_files_is_clean_under_asan(asan: Path, climate_corpus: Path) -> None:
    files = [climate_corpus / name for name in ("deflate", "shuffle-lzf-fletcher32", "contiguous", "masks")]
    expected = sum(file.stat().st_size + 1 for file in files)
    assert inputs(asan / "climate_corpus", "--truncate", *map(str, files)) == expected


def test_seeded_mutations_of_climate_files_are_clean_under_asan(asan: Path, climate_corpus: Path) -> None:
    count = 1000 * len(list(climate_corpus.iterdir()))
    assert inputs(asan / "climate_corpus", "--mutate", "1000", str(climate_corpus)) == count


def test_the_climate_reader_is_free_of_races(tsan: Path, tmp_path: Path) -> None:
    result = run([str(tsan / "climate_stress"), str(tmp_path / "year")])
    assert result.returncode == 0, result.stderr[-4000:]
    assert "windows equal images" in result.stdout


@pytest.mark.parametrize("isa", ["", "portable"])
def test_hostile_boxes_and_rois_are_clean_under_asan(asan: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_ISA", isa)
    result = run([str(asan / "detection_stress"), "50", "3"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(re.fullmatch(r"(\d+) calls\n", result.stdout)[1]) > 150


def test_detections_threads_are_free_of_races(tsan: Path) -> None:
    result = run([str(tsan / "detection_stress"), "100", "4"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.endswith(" calls\n")


@pytest.mark.parametrize("isa", KERNELS[KERNELS.index(_core.cpu_isa()) :])
def test_buckets_of_any_bits_are_clean_under_asan(asan: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_ISA", isa)
    result = run([str(asan / "compression_stress"), "20", "3"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "20 rounds\n"


def test_buckets_threads_are_free_of_races(tsan: Path) -> None:
    result = run([str(tsan / "compression_stress"), "8", "4"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "8 rounds\n"


def test_shared_sums_are_right_in_every_interleaving_of_three_ranks(asan: Path) -> None:
    result = run([str(asan / "sums_stress")])
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(re.fullmatch(r"(\d+) states\n", result.stdout)[1]) > 100_000
