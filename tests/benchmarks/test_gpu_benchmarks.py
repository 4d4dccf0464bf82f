"""`make bench-gpu`: every comparison runs, here with tiny shapes on a CPU; what is written down; what is promised.

Devices in the results are made up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import parts
import performance_page
import pytest
import run
import tables
import torch
from clock import turns
from contest import hold
from options import Options
from results_file import merge, read, write
from rows import Target, judged, ratio_row, value_row, without_rival
from tables import row_lines

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
    assert all(row["value"] > 0 and row["target"] == {"least": 1.3} for row in rows.values())


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


def test_a_cpu_at_full_size_and_a_part_that_nobody_knows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--device", "cpu"]) == 64
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
    words = ["make", "-n", "bench-gpu", "ARGS=--only smoke"]
    said = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, check=True).stdout
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


ROOT = Path(__file__).resolve().parents[2]
# No device is asked anything: it only tells that results count.
ON_GPU = Options(torch.device("cuda"), 3, False)
DEVICE = "Made-up Accelerator 9000"


def part(*ratios: dict[str, Any], error: str | None = None, quick: bool = False, date: str = "2026-11-22") -> Any:
    """A made-up part."""
    machine = {"device": DEVICE, "driver": "580.1", "torch": "2.13.0", "cuda": "13.0", "cudnn": 91000}
    machine |= {"max_sm_hz": 1.98e9, "power_limit_watts": 700.0, "cores": 16, "host_processor": "a processor"}
    result = None if error else {"tables": {"Speeds": [{"case": "a", "images_per_second": 12345.6}]}, "ratios": ratios}
    told = {"date": f"{date}T00:00:00+00:00", "commit": "0123456789ab", "machine": machine, "rounds": 3}
    return {**told, "quick": quick, "seconds": 12.0, "error": error, "result": result}


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [
        (1.2, Target(least=1.2), True),
        (1.1999, Target(least=1.2), False),
        (0.02, Target(most=0.02), True),
        (0.0201, Target(most=0.02), False),
        (float("nan"), Target(least=1.2), False),
        (5.0, None, None),
    ],
)
def test_a_target_is_met_or_missed_at_its_bound(value: float, target: Target | None, met: bool | None) -> None:
    assert judged(value, target, ON_GPU) is met
    for device in ("cpu", "cuda"):
        assert judged(value, target, Options(torch.device(device), 3, True)) is None, "tiny shapes are not judged"


def test_a_ratio_is_the_median_of_the_rounds_against_the_fastest_rival() -> None:
    seconds = {"ours": [1.0, 1.0, 2.0], "slow": [9.0, 9.0, 9.0], "fast": [1.5, 3.0, 2.0]}
    row = ratio_row("a case", seconds, "ours", ON_GPU, Target(least=1.4))
    assert (row["rival"], row["value"], row["least"], row["greatest"]) == ("fast", 1.5, 1.0, 3.0)
    assert (row["rounds"], row["met"]) == (3, True)
    assert ratio_row("a case", seconds, "ours", ON_GPU, rival="slow")["value"] == 9.0


def test_contestants_take_turns_and_each_round_begins_with_another_one() -> None:
    order: list[str] = []

    def contestant(name: str) -> Any:
        def run(calls: int) -> float:
            order.append(name)
            return float(calls)

        return run

    seconds = turns({name: contestant(name) for name in "abc"}, Options(torch.device("cpu"), 3, True))
    assert order == [*"abc", *"abc", *"bca", *"cab"]
    assert seconds == {name: [1.0, 1.0, 1.0] for name in "abc"}


def test_what_one_contestant_cannot_do_leaves_the_others_their_turns() -> None:
    def cannot() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    seconds, failed = hold({"large": cannot, "small": lambda: lambda calls: 2.0}, Options(torch.device("cpu"), 2, True))
    assert seconds == {"small": [2.0, 2.0]}
    assert failed == {"large": "does not fit into the device's memory"}


def test_contestants_that_only_fit_alone_are_told_so() -> None:
    made = []

    def run(calls: int) -> float:
        made.append(calls)
        if len(made) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0

    seconds, failed = hold({"one": lambda: run, "two": lambda: run}, Options(torch.device("cpu"), 1, True))
    assert seconds == {}
    assert set(failed.values()) == {"does not fit into the device's memory beside its rivals"}


def test_a_new_measurement_replaces_its_part_and_leaves_the_others_with_their_dates() -> None:
    first = merge(merge(None, DEVICE, "smoke", part(date="2026-01-01")), DEVICE, "ceilings", part(date="2026-01-01"))
    second = merge(first, DEVICE, "ceilings", part(date="2026-02-02"))
    assert {name: one["date"][:10] for name, one in second["parts"].items()} == {
        "ceilings": "2026-02-02",
        "smoke": "2026-01-01",
    }


def test_a_failure_does_not_replace_what_was_measured_but_is_told_beside_it() -> None:
    measured = merge(None, DEVICE, "ceilings", part(value_row("a", 1.0, ON_GPU, None, rival="b")))
    after = merge(measured, DEVICE, "ceilings", part(error="RuntimeError: broken", date="2026-02-02"))
    kept = after["parts"]["ceilings"]
    assert kept["result"] == measured["parts"]["ceilings"]["result"]
    assert kept["last_error"]["error"] == "RuntimeError: broken"
    again = merge(after, DEVICE, "ceilings", part(date="2026-03-03"))
    assert "last_error" not in again["parts"]["ceilings"]


def test_two_devices_do_not_go_into_one_file_nor_a_quick_look_over_a_measurement() -> None:
    measured = merge(None, DEVICE, "ceilings", part())
    with pytest.raises(UsageError, match="another one: -o FILE"):
        merge(measured, "Another device", "ceilings", part())
    with pytest.raises(UsageError, match="--quick measures nothing"):
        merge(measured, DEVICE, "ceilings", part(quick=True))


def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    other = tmp_path / "compression.json"
    other.write_text('{"machine": {}}')
    with pytest.raises(UsageError, match="no results of `make bench-gpu`"):
        read(other)
    other.write_text("{")
    with pytest.raises(UsageError, match="no JSON document"):
        read(other)
    assert read(tmp_path / "absent.json") is None
    document = merge(None, DEVICE, "smoke", part())
    assert document["schema"] == "hpcai500-gpu-benchmarks/1"
    write(tmp_path / "made-up.json", document)
    assert read(tmp_path / "made-up.json") == json.loads(json.dumps(document))


def test_a_row_s_columns_are_scaled_by_their_units_and_empty_ones_left_out() -> None:
    rows = [{"case": "a | b", "analytic_flops_per_second": 3.2e14, "bytes_per_second": 4.1e12, "reason": None}]
    assert list(row_lines(rows)) == [
        "| case | TFLOPS (analytic) | GB/s |",
        "|---|---|---|",
        "| a \\| b | 320 | 4,100 |",
    ]


def made_up(folder: Path) -> Path:
    """The results of a device that does not exist, some parts measured, one failed."""
    met = value_row("bf16, batch 256", 1.31, ON_GPU, Target(least=1.2), rival="eager torch", interval=(1.2, 1.4))
    missed = value_row("bf16, batch 64", 1.07, ON_GPU, Target(least=1.2), rival="eager torch", interval=(1.0, 1.1))
    no_rival = without_rival("bf16, batch 1", "torchvision", "it does not import", Target(least=1.5))
    document: Any = None
    for name, one in {
        "ic_mixed": part(met, missed),
        "ewa_step": part(no_rival),
        "smoke": part(error="TimeoutExpired: too long"),
    }.items():
        document = merge(document, DEVICE, name, one)
    write(folder / "made-up-accelerator-9000.json", document)
    return folder


def test_the_page_of_a_made_up_device_says_what_was_met_missed_and_not_run(tmp_path: Path) -> None:
    page = performance_page.page(made_up(tmp_path))
    assert "No GPU result is recorded" not in page
    assert f"| target | bound | {DEVICE} |" in page
    assert "at least 1.3 | 1 of 2 met, 1 of 2 **missed** |" in page
    assert "at least 1.5 | 1 of 1 not measured |" in page
    assert "at most 0.02 | not measured |" in page
    assert "not measured: it does not import" in page
    assert "Not measured: TimeoutExpired: too long" in page
    assert "driver 580.1; torch 2.13.0; CUDA 13.0" in page
    assert "power limit 700 W" in page
    assert "commit `0123456789ab`" in page
    assert "Not run on this device: ceilings," in page
    assert "12,346" in page


def test_without_a_device_s_file_the_page_says_that_nothing_ran_on_a_gpu(tmp_path: Path) -> None:
    document = merge(None, "a processor", "smoke", part(quick=True))
    write(tmp_path / "a-processor.json", document)
    page = performance_page.page(tmp_path)
    assert "No GPU result is recorded in this repository yet." in page
    assert "a processor" not in page
    assert "| ewa_step |" in page
    assert page.count("| not run |") == len(performance_page.PARTS)


def test_the_committed_page_is_what_the_results_say() -> None:
    committed = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert committed == performance_page.page(ROOT / "benchmarks" / "results"), (
        "write it anew: python benchmarks/gpu/performance_page.py docs/performance.md"
    )

    page = performance_page.page(ROOT / "benchmarks" / "results")
    for source in performance_page.SOURCES:
        assert f"`benchmarks/results/{source.document}.json`" in page
        assert source.page is None or (ROOT / "docs" / source.page).is_file()


def test_the_page_is_written_by_its_command(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "gpu" / "performance_page.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "page.md")], check=True)
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# Performance")
