"""The core under the sanitizers: hostile files under address and undefined behaviour, the ring under threads.

The drivers are built incrementally in build/asan and build/tsan, with the presets of CMakePresets.json.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jpeg_writer import write_jpeg
from pictures import jpeg, photograph

ROOT = Path(__file__).resolve().parents[2]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _build(preset: str, tmp: Path) -> Path:
    """The folder of the preset's drivers; skips, with the reason, where they cannot be built."""
    for tool in ("cmake", "ninja", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    sanitizers = {"asan": "address,undefined", "tsan": "thread"}[preset]
    probe = tmp / "probe.cpp"
    probe.write_text("int main() {}\n")
    program = tmp / "probe"
    compiled = _run(["c++", f"-fsanitize={sanitizers}", str(probe), "-o", str(program)])
    if compiled.returncode != 0:
        pytest.skip(f"the compiler lacks -fsanitize={sanitizers}: {compiled.stderr.strip().splitlines()[-1]}")
    started = _run([str(program)])
    if started.returncode != 0:
        pytest.skip(f"this kernel does not run -fsanitize={sanitizers}: {started.stderr.strip()[:200]}")
    for command in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, "-j", "2"]):
        result = _run(command)
        assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "build" / preset / "csrc" / "drivers"


@pytest.fixture(scope="module")
def asan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("asan", tmp_path_factory.mktemp("asan"))


@pytest.fixture(scope="module")
def tsan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("tsan", tmp_path_factory.mktemp("tsan"))


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


def _inputs(driver: Path, *arguments: str) -> int:
    result = _run([str(driver / "decode_crop_corpus"), *arguments])
    assert result.returncode == 0, result.stderr[-4000:]
    return int(re.fullmatch(r"(\d+) inputs\n", result.stdout)[1])


def test_files_of_every_kind_are_clean_under_asan(asan: Path, corpus: Path) -> None:
    assert _inputs(asan, str(corpus)) == len(list(corpus.iterdir()))


def test_every_truncation_is_clean_under_asan(asan: Path, corpus: Path) -> None:
    files = [corpus / name for name in ("baseline", "progressive", "411", "cmyk")]
    expected = sum(file.stat().st_size + 1 for file in files)
    assert _inputs(asan, "--truncate", *map(str, files)) == expected


def test_seeded_mutations_are_clean_under_asan(asan: Path, corpus: Path) -> None:
    assert _inputs(asan, "--mutate", "300", str(corpus)) == 300 * len(list(corpus.iterdir()))


def test_a_missing_corpus_does_not_pass(asan: Path, tmp_path: Path) -> None:
    assert _run([str(asan / "decode_crop_corpus"), str(tmp_path)]).returncode != 0


def test_the_loader_is_free_of_races(tsan: Path, corpus: Path) -> None:
    files = ["baseline", "progressive", "grey", "text", "411"]
    result = _run([str(tsan / "loader_stress"), str(corpus), *files])
    assert result.returncode == 0, result.stderr[-4000:]
    assert "twice the same" in result.stdout


@pytest.mark.parametrize("isa", ["", "portable"])
def test_hostile_boxes_and_rois_are_clean_under_asan(asan: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_ISA", isa)
    result = _run([str(asan / "detection_stress"), "400", "3"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(re.fullmatch(r"(\d+) calls\n", result.stdout)[1]) > 1200


def test_detections_threads_are_free_of_races(tsan: Path) -> None:
    result = _run([str(tsan / "detection_stress"), "100", "4"])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.endswith(" calls\n")
