"""`hpcai500 scale --predict` and `ic|ewa --estimate` as people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machines") / "made-up.toml"
    path.write_text(MACHINE)
    return path


def hpcai500(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)


def settings(*texts: str) -> list[str]:
    return [token for text in texts for token in ("--set", text)]


def test_a_curve_to_ten_thousand_nodes_and_its_wall(machine: Path, tmp_path: Path) -> None:
    arguments = ["scale", "--predict", "10000", "ewa", "--machine", machine, "-o", tmp_path / "out", "--json"]
    ended = hpcai500(*arguments, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["scoring"] is False
    assert [point["nodes"] for point in document["points"]][-2:] == [8192, 10000]
    assert document["wall"]["binds"] == "network bandwidth"
    assert all(Path(path).stat().st_size > 10_000 for path in document["figures"])
    assert document["sources"] == [{"path": str(machine), "signer": None, "vouched_for": False}]
    assert f"{machine} is not signed" in (tmp_path / "out" / "prediction.svg").read_text(encoding="utf-8")


def test_an_estimate_for_a_machine_elsewhere(machine: Path, tmp_path: Path) -> None:
    ended = hpcai500("ic", "--estimate", "--machine", machine, *settings("hardware.nodes=4"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "quick look" in ended.stdout
    assert "4 node(s), 16 rank(s)" in ended.stdout
    assert "kWh" in ended.stdout
    assert f"signature   {machine} is not signed: nobody vouches for its figures" in ended.stdout
    assert "RESULT" not in ended.stdout
    assert not list(tmp_path.iterdir())


def test_an_estimate_from_steps_that_are_timed_here(tmp_path: Path) -> None:
    small = settings(*SMALL, "accelerator.device=cpu", "os.threads=1")
    ended = hpcai500("ic", "--estimate", *small, "--procs", "2", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["scoring"] is False
    assert document["ranks"] == 2
    assert document["energy_joules"] is None
    assert 0 < document["seconds"]["low"] <= document["seconds"]["expected"] <= document["seconds"]["high"]
    assert "Gloo" in document["machine"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ic", "--machine", "v100-64"], "add --estimate"),
        (["ewa", "--estimate", "--data", "somewhere", "--resume"], "leave out --data, --resume"),
        (["ic", "--estimate", "--machine", "no-such"], "no such machine file"),
        (["ic", "--estimate", "--recipe", "ewa/reference", "--machine", "v100-64"], "hpcai500 ewa --estimate"),
        (["ic", "--estimate", "--machine", "v100-64", "--set", "hardware.nodes=99999"], "more than imagenet-1k has"),
        (["ic", "--estimate", "--recipe", "ic/smoke"], "how many samples it has is not known"),
        (["scale", "--predict", "64", "ic"], "which machine?"),
        (["scale", "--predict", "64", "ic", "--machine", "v100-64", "--procs", "1,2"], "leave out --procs"),
        (["scale", "--predict", "64", "ic", "ewa", "--machine", "v100-64"], "expected one benchmark"),
        (["scale", "ic", "--machine", "v100-64"], "add --predict"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_computed(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    ended = hpcai500(*arguments, cwd=tmp_path)
    assert ended.returncode == 64
    assert words in " ".join(ended.stderr.split())
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""


def test_the_help_says_that_an_estimate_is_not_scored(tmp_path: Path) -> None:
    told = " ".join(hpcai500("ic", "--help", cwd=tmp_path).stdout.split())
    assert "never scored" in told
    assert "no RESULT line" in told
