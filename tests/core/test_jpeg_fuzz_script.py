"""scripts/fuzz, as far as it goes without libFuzzer: what it refuses, and what it makes of a run."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    assert "/no/clang++ is not here, or has no libFuzzer; run: apt-get install clang" in result.stderr


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
    assert f"again: {program} {fuzz.RUNS}/crashes/jpeg_crop/crash-1" in told
    assert "jpeg_crop: #2048" in told
