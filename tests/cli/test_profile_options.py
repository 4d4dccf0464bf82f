"""`hpcai500 profile` by its command line: what it refuses, and profiles that are there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcai500.errors import ExitCode
from hpcai500.methodology.kernel_classes import CLASSES

HPCAI500 = [str(Path(sys.executable).parent / "hpcai500"), "profile"]


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*HPCAI500, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["resnet"], "profile: expected one of ic, ewa, got 'resnet'"),
        (["ic", "ewa"], "expected one benchmark, got ic ewa; folders are drawn with --draw"),
        (["ic", "--steps", "0"], "--steps"),
        (["ewa", "--recipe", "ic/smoke"], "ic/smoke: a recipe of ic; run `hpcai500 profile ic …`"),
        (["--draw", *"abcdefg"], "at most 6 profiles fit a figure, got 7"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], reason: str) -> None:
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode == ExitCode.USAGE
    assert reason in ended.stderr
    assert ended.stdout == ""


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("years of work")
    ended = run("--draw", tmp_path, "--out", tmp_path / "there", cwd=tmp_path)
    assert ended.returncode == ExitCode.USAGE
    assert "profile.json: not there" in ended.stderr
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["thesis.txt"]


# A run takes its data from `data/`, or makes it there; of so few images a step is a few milliseconds.
SETTINGS = ["--set", "workload.width=8", "--set", "hyperparameters.batch_size=8", "--set", "os.threads=1"]


@pytest.fixture(scope="module")
def profiled(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder with a profile of two ranks and compression, and how the command ended."""
    folder = tmp_path_factory.mktemp("profiles")
    settings = [*SETTINGS, "--set", "communication.compression=fp16"]
    arguments = ["ic", "--recipe", "ic/smoke", "--data", images, "--procs", "2", "--steps", "4", *settings]
    return folder / "two", run(*arguments, "--out", folder / "two", cwd=folder)


def test_a_profile_of_two_ranks_ends_in_files_and_a_table(
    profiled: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, ended = profiled
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "profile.json", "profile.png", "profile.svg", "trace.json.gz",
    ]  # fmt: skip
    assert ended.stdout.splitlines()[-1] == "HPCAI500 RESULT PASS"
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    assert list(found["classes"]) == list(CLASSES)
    assert (found["ranks"], found["steps"], found["compression"]) == (2, 4, "fp16")
    assert "profiler_start" not in ended.stderr


def test_profiles_are_drawn_together_as_one_document(
    profiled: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = profiled[0]
    shutil.copytree(folder, tmp_path / "again")
    ended = run("--draw", folder, tmp_path / "again", "--out", tmp_path / "both", "--json", cwd=tmp_path)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    document = json.loads(ended.stdout)
    assert list(document["profiles"]) == [str(folder), str(tmp_path / "again")]
    assert [(one["path"], one["signer"]) for one in document["sources"]] == [
        (str(one / "profile.json"), None) for one in (folder, tmp_path / "again")
    ]
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["profile.png", "profile.svg"]
