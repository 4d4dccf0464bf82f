"""`make bench-gpu`: that every comparison runs, here with tiny shapes on a CPU; and what its command promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import parts
import pytest
import run
import tables
import torch
from options import Options

from hpcai500.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"
# Those that are told apart by their arguments alone take the same way through the code.
DIFFERENT = [part.name for part in parts.PARTS if part.name not in {"ic_fp32", "ic_tf32"}]


@pytest.mark.parametrize("part", DIFFERENT)
def test_each_part_measures_with_tiny_shapes_and_judges_nothing(part: str, measured: Any) -> None:
    result = measured(part)
    json.dumps(result, allow_nan=False)
    found = list(tables.ratios(result))
    assert found or list(tables.tables(result)), "nothing that the page could show"
    for row in found:
        assert row["met"] is None, row
        assert row.get("value") is not None or row.get("reason"), f"neither a number nor why there is none: {row}"


def test_ours_is_measured_in_every_step_with_a_rival_that_is_here(measured: Any) -> None:
    rows = {
        row["case"]: row for row in tables.ratios(measured("ic_mixed")) if row["rival"] == "eager torch, our ResNet"
    }
    assert rows.keys() == {"ResNet-50, bf16, batch 4", "ResNet-50, fp16, batch 4"}
    assert all(row["value"] > 0 and row["target"] == {"least": 1.2} for row in rows.values())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=ROOT, text=True, capture_output=True, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_in_one_line_what_to_do_and_exits_with_69() -> None:
    done = command()
    assert done.returncode == 69
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert 'make bench-gpu ARGS="--device cpu --quick"' in done.stderr


def test_a_quick_look_at_the_cpu_writes_only_where_it_is_told_to(tmp_path: Path) -> None:
    before = sorted((ROOT / "benchmarks" / "results").iterdir())
    told = tmp_path / "looked.json"
    done = command("--device", "cpu", "--quick", "--only", "ceilings", "-o", str(told))
    assert done.returncode == 0, done.stderr
    part = json.loads(told.read_text())["parts"]["ceilings"]
    assert part["quick"]
    assert part["machine"]["torch"] == torch.__version__
    assert "### ceilings" in done.stdout
    assert sorted((ROOT / "benchmarks" / "results").iterdir()) == before


def test_a_cpu_at_full_size_is_refused() -> None:
    assert run.main(["--device", "cpu"]) == 64


def test_a_part_that_nobody_knows_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--device", "cpu", "--quick", "--only", "gem"]) == 64
    said = capsys.readouterr().err
    assert "gem" in said
    assert "ceilings" in said


def test_a_part_that_fails_is_written_down_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(part: parts.Part, options: Options, data: Path | None) -> dict[str, Any]:
        if part.name == "ceilings":
            raise RuntimeError("CUDA error: an illegal memory access\nand what follows")
        return {"tables": {}, "ratios": []}

    monkeypatch.setattr(parts.Part, "measure", measure)
    told = tmp_path / "looked.json"
    chosen = ["--device", "cpu", "--quick", "--only", "ceilings", "detection", "-o", str(told)]
    assert run.main(chosen) == 1
    found = json.loads(told.read_text())["parts"]
    assert found["ceilings"]["error"] == "RuntimeError: CUDA error: an illegal memory access"
    assert found["detection"]["error"] is None


def test_on_a_device_each_part_has_a_process_of_its_own_and_all_are_tried() -> None:
    started = []

    def start(arguments: Any) -> int:
        started.append(arguments)
        return 1 if "ceilings" in arguments else 0

    assert run.each_alone(parts.PARTS[:2], ["--rounds", "3"], start) == 1
    assert started == [["--rounds", "3", "--only", part.name] for part in parts.PARTS[:2]]


def test_only_of_a_part_wins_over_the_only_of_the_command_line() -> None:
    asked = run._parser().parse_args(["--only", "ceilings", "smoke", "--only", "smoke"])
    assert asked.only == ["smoke"]


def test_make_measures_and_then_writes_the_page() -> None:
    inherited = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON", "ARGS"}
    environment = {key: value for key, value in os.environ.items() if key not in inherited}
    command = ["make", "-n", "bench-gpu", "ARGS=--only smoke"]
    said = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=True).stdout
    assert "benchmarks/gpu/run.py --only smoke" in said
    # Whether there is a device is known before DALI is downloaded.
    assert said.index("run.py --check --only smoke") < said.index("run.py --only smoke")
    assert said.index("run.py --only") < said.index("performance_page.py docs/performance.md")


def test_results_of_the_cpu_have_no_name_of_a_device() -> None:
    asked = run._parser().parse_args(["--device", "cpu", "--quick"])
    assert run._file(asked, "NVIDIA H200") is None
    asked = run._parser().parse_args([])
    assert run._file(asked, "NVIDIA H200") == ROOT / "benchmarks" / "results" / "nvidia-h200.json"
    with pytest.raises(UsageError, match="--quick"):
        run._file(run._parser().parse_args(["--device", "cpu"]), "a processor")
