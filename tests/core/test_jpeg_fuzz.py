"""Our decoders under the sanitizers: the short run of what scripts/fuzz does for hours, that script, and decode_stages.

The targets (csrc/tests/drivers/jpeg_*_fuzz.cpp) hold the claims, and a broken one ends the driver. Here is what they
are fed, and that they have not looked away: each says what became of its inputs.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from jpeg_files import all_files, jpeg, our_files, photograph
from sanitized import run

from hpcai500._core import SeekIndexWriter, seek_key, seek_points

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


@pytest.mark.parametrize("target", [*TARGETS, "jpeg_check"])
def test_seeded_mutations_end_as_libjpeg_says(asan: Path, everything: Path, target: str) -> None:
    each = -(-MUTATIONS // (len(TARGETS) * len(all_files())))
    became = outcomes(asan / f"{target}_corpus", "--mutate", str(each), str(everything))
    assert sum(became.values()) == each * len(all_files())
    assert len(some(became)) >= 5


def test_mutated_indexes_change_no_image(asan: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no index at all")
    became = some(outcomes(asan / "seek_index_corpus", "--mutate", str(MUTATIONS // 4), str(tmp_path)))
    assert {"refused as an index", "without the file", "with false points", "used with the same pixels"} <= set(became)


# ----------------------------------------------------------------------------------------------------
# scripts/fuzz, as far as it goes without libFuzzer: what it refuses, and what it makes of a run.


ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "fuzz"
# As libFuzzer writes it, around the last line of a target's own.
LOG = """\
INFO: Loaded 1 modules   (6234 inline 8-bit counters): 6234 [0x55, 0x56),
#60	INITED cov: 794 ft: 2415 corp: 51/49Kb exec/s: 0 rss: 54Mb
#2048	pulse  cov: 871 ft: 3078 corp: 232/226Kb lim: 4096 exec/s: 1024 rss: 92Mb
#20000	DONE   cov: 878 ft: 3243 corp: 305/268Kb lim: 4096 exec/s: 1250 rss: 288Mb
Done 20000 runs in 16 second(s)
stat::number_of_executed_units: 20000
1621 without a header, 4431 refused by both, 13948 taken by both
"""


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("fuzz", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fuzz", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def call(*words: str, clang: str = "clang++") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *words]
    return subprocess.run(command, env={**os.environ, "CLANG": clang}, capture_output=True, text=True, check=False)


def test_without_clang_the_line_to_type_is_told() -> None:
    result = call(clang="/no/clang++")
    assert (result.returncode, result.stdout) == (69, "")
    assert "/no/clang++ is missing, or has no libFuzzer; run: apt-get install clang" in result.stderr


def test_a_compiler_without_libfuzzer_is_as_none(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'unrecognized argument: fuzzer' >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert call(clang=str(compiler)).returncode == 69


@pytest.mark.parametrize("words", [("jpeg",), ("--runs", "many")])
def test_what_is_not_understood_is_usage(words: tuple[str, ...]) -> None:
    result = call(*words)
    assert result.returncode == 64
    assert len(result.stderr.splitlines()) == 1


def test_every_target_has_its_source(fuzz: ModuleType) -> None:
    sources = {path.name.removesuffix("_fuzz.cpp") for path in (ROOT / "csrc" / "tests" / "drivers").glob("*_fuzz.cpp")}
    assert set(fuzz.TARGETS) == sources


def test_a_log_becomes_numbers(fuzz: ModuleType) -> None:
    assert fuzz.read_log(LOG) == {
        "executions": 20000,
        "edges_reached": 878,
        "edges": 6234,
        "features": 3243,
        "outcomes": {"without a header": 1621, "refused by both": 4431, "taken by both": 13948},
    }


def test_a_run_that_died_early_still_tells_how_far_it_came(fuzz: ModuleType) -> None:
    assert fuzz.read_log("\n".join(LOG.splitlines()[:3]))["executions"] == 2048
    assert fuzz.read_log("")["edges_reached"] is None


def test_a_defect_leaves_its_input_and_the_line_that_shows_it_again(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the target: it writes what libFuzzer writes when a claim is broken."""
    monkeypatch.chdir(tmp_path)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    program = fuzz.DRIVERS / "jpeg_crop_fuzz"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\nprintf '#2048\\tpulse  cov: 871 ft: 3078 corp: 2/2Kb\\n' >&2\n"
        'for word; do case "$word" in -artifact_prefix=*) echo x >"${word#*=}crash-1" ;; esac; done\nexit 77\n'
    )
    program.chmod(0o755)
    result = fuzz.run("jpeg_crop", seeds, argparse.Namespace(runs=10, seconds=0, seed=1))
    assert (result["crashes"], result["executions"], result["interrupted"]) == (["crash-1"], 2048, False)
    told = capsys.readouterr().err
    assert f"to reproduce: {program} {fuzz.RUNS}/crashes/jpeg_crop/crash-1" in told
    assert "jpeg_crop: #2048" in told


# ----------------------------------------------------------------------------------------------------
# The driver that benchmarks/decode_stages.py runs.


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


def test_each_pass_times_all_stages_with_and_without_the_index(asan: Path, image: Path) -> None:
    told = run([str(asan / "decode_stages"), "2", str(index_of(image)), str(image)])
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


def test_an_image_that_the_index_does_not_know_is_not_timed_as_if_it_did(asan: Path, image: Path) -> None:
    index = index_of(image)
    image.write_bytes(jpeg(photograph(320, 240), quality=89))
    told = run([str(asan / "decode_stages"), "1", str(index), str(image)])
    assert told.returncode == 1
    assert "was not decoded as it was to be" in told.stderr
