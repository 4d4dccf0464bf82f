"""Commands that answer without a scored run: `rules`, `scale --predict`, `ic --estimate`, `profile`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Ended, Typed, error_of, hpcai500, set_options

from hpcai500.methodology.kernel_classes import CLASSES

# A step that two cores do in a moment.
SMALL = ("workload.width=8", "workload.image_size=32", "workload.evaluation_resize=36", "hyperparameters.batch_size=4")
MACHINE = """
name = "made up"
source = "a test"
nodes = 2
accelerators_per_node = 4
watts_per_node = 1500.0
[node]
accelerators = 4
peak_flops.fp32 = 40e12
[network]
latency_seconds = 1e-5
bytes_per_second = 2e8
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "made-up.toml"
    path.write_text(MACHINE)
    return path


def test_the_level_of_a_recipe_is_told_and_may_be_asked_for(typed: Typed) -> None:
    smoke = typed("rules", "ic/smoke")
    assert (smoke.returncode, smoke.stderr) == (0, "")
    assert "level       none (forced by problem.dataset" in smoke.stdout
    large = typed("rules", "ic/lars-8192")
    assert "rankable    yes, with runs of this recipe" in large.stdout
    compiled = ("rules", "ic/reference", "--set", "framework.compile=true", "--level")
    missed = typed(*compiled, "hardware")
    assert missed.returncode == 2
    assert missed.stdout.endswith("framework.compile differs from the reference: level system (V2.0 5.2)\n")
    assert typed(*compiled, "system").returncode == 0
    free = typed("rules", "ic/lars-4096", "--json", "--level", "free")
    document = json.loads(free.stdout)
    assert (free.returncode, document["level"], document["qualifies"]) == (0, "free", True)


def test_without_a_subject_the_rules_themselves_are_printed(typed: Typed) -> None:
    ended = typed("rules", "--edition", "v3.0")
    lines = ended.stdout.splitlines()
    assert (ended.returncode, lines[0]) == (0, "Edition v3.0, which extends v2.0")
    assert lines[3].split()[:5] == ["9", "problem", "fixed", "fixed", "fixed"]
    assert len(lines) < 20
    assert max(map(len, lines)) <= 110
    assert "docs/rules.md" in ended.stdout
    assert "members x degree" in typed("rules", "--edition", "v3.0", "--json").stdout


def test_a_curve_to_ten_thousand_nodes_and_its_wall(typed: Typed, machine: Path, tmp_path: Path) -> None:
    ended = typed("scale", "--predict", "10000", "ewa", "--machine", machine, "-o", tmp_path / "out", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["scoring"] is False
    assert [point["nodes"] for point in document["points"]][-2:] == [8192, 10000]
    assert document["wall"]["binds"] == "network bandwidth"
    assert all(Path(path).stat().st_size > 10_000 for path in document["figures"])
    assert document["sources"] == [{"path": str(machine), "signer": None, "vouched_for": False}]
    assert f"{machine} is not signed" in (tmp_path / "out" / "prediction.svg").read_text(encoding="utf-8")


def test_an_estimate_for_a_machine_elsewhere(typed: Typed, machine: Path, tmp_path: Path) -> None:
    ended = typed("ic", "--estimate", "--machine", machine, *set_options("hardware.nodes=4"))
    assert ended.returncode == 0, ended.stderr
    signature = f"signature   {machine} is not signed: nobody vouches for its figures"
    for words in ("an estimate without a run", "4 nodes, 16 ranks", "kWh", signature):
        assert words in ended.stdout
    assert "RESULT" not in ended.stdout
    assert list(tmp_path.iterdir()) == [machine]


def test_an_estimate_from_steps_that_are_timed_here(typed: Typed) -> None:
    small = set_options(*SMALL, "accelerator.device=cpu", "os.threads=1")
    ended = typed("ic", "--estimate", *small, "--procs", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["scoring"], document["ranks"], document["energy_joules"]) == (False, 2, None)
    assert 0 < document["seconds"]["low"] <= document["seconds"]["expected"] <= document["seconds"]["high"]
    assert "Gloo" in document["machine"]


@pytest.fixture(scope="module")
def profiled(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A folder with a profile of two ranks and compression, and how the command ended."""
    folder = tmp_path_factory.mktemp("profiles")
    # Of so few images a step is a few milliseconds.
    settings = set_options(
        "workload.width=8", "hyperparameters.batch_size=8", "os.threads=1", "communication.compression=fp16"
    )
    arguments = ["--recipe", "ic/smoke", "--data", images, "--procs", "2", "--steps", "4", *settings]
    return folder / "two", hpcai500("profile", "ic", *arguments, "--out", folder / "two", cwd=folder)


def test_a_profile_of_two_ranks_ends_in_files_and_a_table(profiled: tuple[Path, Ended]) -> None:
    folder, ended = profiled
    assert ended.returncode == 0, ended.stderr
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["profile.json", "profile.png", "profile.svg", "trace.json.gz"]
    assert ended.stdout.splitlines()[-1] == "HPCAI500 RESULT PASS"
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    assert list(found["classes"]) == list(CLASSES)
    assert (found["ranks"], found["steps"], found["compression"]) == (2, 4, "fp16")
    assert "profiler_start" not in ended.stderr


def test_profiles_are_drawn_together_as_one_document(
    typed: Typed, profiled: tuple[Path, Ended], tmp_path: Path
) -> None:
    folder = profiled[0]
    shutil.copytree(folder, tmp_path / "again")
    ended = typed("profile", "--draw", folder, tmp_path / "again", "--out", tmp_path / "both", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert list(document["profiles"]) == [str(folder), str(tmp_path / "again")]
    assert [(one["path"], one["signer"]) for one in document["sources"]] == [
        (str(one / "profile.json"), None) for one in (folder, tmp_path / "again")
    ]
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["profile.png", "profile.svg"]


def test_a_folder_that_holds_something_is_left_alone(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("years of work")
    told = error_of(typed("profile", "--draw", tmp_path, "--out", tmp_path / "there"))
    assert "profile.json: not found" in told
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["thesis.txt"]
