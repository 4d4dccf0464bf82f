"""`make bench`: every comparison of a CPU, in visits, and how cost grows.

Documents stand in for the comparisons, which take minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cpu_ratios import SOURCES, rows_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import cpu  # noqa: E402
import growth  # noqa: E402
import large_scale  # noqa: E402
import performance_page  # noqa: E402

COMPRESSION = next(source for source in SOURCES if source.document == "compression")


def document(ratio: float, share: float = 0.9) -> dict[str, Any]:
    """What compression.py writes, cut down to a row."""
    comparison = {
        "comparison": "fp16 pack against _foreach_copy_ into the bucket's views",
        "median_ratio": ratio,
        "ratios": [ratio - 0.1, ratio, ratio + 0.1],
        "required": 1.4,
    }
    memory = {"kernel": "pack fp16", "stream": "non-temporal copy", "median_share": share}
    return {"machine": {"machine": "x86_64"}, "results": {"comparisons": [comparison], "memory": [memory]}}


def test_several_visits_make_one_row_of_their_medians() -> None:
    (row,) = rows_of(COMPRESSION, {"visits": [document(1.2, 0.8), document(1.6, 1.0), document(1.3, 0.9)]})
    assert (row.ratio, row.ratios) == (1.3, [1.2, 1.6, 1.3])
    assert (row.limit, row.share) == ("non-temporal copy", 0.9)


def test_one_document_keeps_the_ratios_of_its_rounds() -> None:
    (row,) = rows_of(COMPRESSION, document(1.5))
    assert (row.ratio, row.ratios, row.required) == (1.5, [1.4, 1.5, 1.6], 1.4)


@pytest.mark.parametrize(("ratio", "slower"), [(1.35, True), (1.45, False), (1.9, False)])
def test_a_row_is_called_slower_below_the_range_that_was_recorded(
    ratio: float, slower: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compression.json").write_text(json.dumps(document(1.5)))
    monkeypatch.setattr(cpu, "RESULTS", tmp_path)
    monkeypatch.setattr(cpu, "visit", lambda *_: document(ratio))
    assert cpu.main(["--only", "compression", "--visits", "2"]) == int(slower)
    printed = capsys.readouterr().out
    assert ("recorded 1.50, slower" in printed) == slower
    assert ("wanted 1.4, missed" in printed) == (ratio < 1.4)


def test_a_quick_run_is_never_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["--quick", "--record"])
    assert "too little to be recorded" in capsys.readouterr().err


def test_every_benchmark_has_a_short_run() -> None:
    assert cpu.QUICK.keys() == {source.document for source in SOURCES}


@pytest.mark.slow
def test_the_loaders_of_files_run_and_are_compared(tmp_path: Path) -> None:
    """Ours must run; rivals that are not installed are named."""
    target = tmp_path / "loaders.json"
    options = ["--rounds", "1", "--seconds", "0", "--sets", "plain", "--copies", "1", "--workers", "2", "--no-cold"]
    command = [sys.executable, str(ROOT / "benchmarks" / "input_loaders.py"), *options, "--json", str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    source = next(source for source in SOURCES if source.document == "input_loaders")
    document = json.loads(target.read_text())
    found = {row.key: row for row in rows_of(source, document)}
    skipped = document["skipped"]
    for kind, rival in (("DALI", "DALI"), ("records, threads", "records and threads, as FFCV")):
        for what in ("JPEG files, `plain`", "JPEG files, `plain`, index"):
            assert kind in skipped or (found[what, rival].ratio > 0 and found[what, rival].required == 3.0)


def test_the_limit_of_a_loader_is_the_slower_of_reading_and_decoding() -> None:
    source = next(source for source in SOURCES if source.document == "input_loaders")

    def contestant(rate: float) -> dict[str, Any]:
        ratio = {"median": 6000 / rate, "rounds": [6000 / rate]}
        return {"median": rate, "ours_to_it": ratio, "index_to_it": ratio}

    rates = {
        "torchvision v2, DataLoader": 800.0,
        "reading alone": 20000.0,
        "decoding alone": 7500.0,
    }
    tables = {"cold": {kind: contestant(rate) for kind, rate in rates.items()}}
    plain, index = rows_of(source, {"sets": {"plain": {"tables": tables}}})
    assert (plain.what, plain.ratio, plain.required) == ("JPEG files, `plain`, cold", 7.5, 3.0)
    assert (plain.limit, plain.share) == ("decoding alone", 0.8)
    assert (index.what, index.limit) == ("JPEG files, `plain`, cold, index", None)


def test_the_exponent_of_growth_is_a_slope() -> None:
    assert growth.exponent([1, 2, 4], [8.0, 4.0, 2.0]) == pytest.approx(-1)
    assert growth.exponent([2, 4, 8], [3.0, 3.0, 3.0]) == pytest.approx(0)
    assert growth.exponent([1], [3.0]) is None


@pytest.mark.slow
def test_growth_is_measured_at_each_size(tmp_path: Path) -> None:
    target = tmp_path / "growth.json"
    chosen = ["--only", "jpeg"]
    command = [sys.executable, str(ROOT / "benchmarks" / "growth.py"), "--rounds", "1", "--json", str(target), *chosen]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (row,) = json.loads(target.read_text())["rows"]
    assert (row["unit"], row["sizes"][0]) == ("threads", 1)
    assert len(row["seconds"]) == len(row["sizes"])
    assert min(row["seconds"]) > 0


@pytest.mark.parametrize(
    ("sizes", "seconds", "expected"),
    [
        ([10, 100, 1000], [1.0, 1.5, 6.5], 1.041),  # 0.5 and 5.5 beyond the start
        ([1, 2, 4, 8], [0.0, 1.0, 4.0, 16.0], 2.0),
        ([8, 64, 512], [0.4, 0.41, 0.39], None),
        ([10, 100], [1.0, 5.0], None),
    ],
)
def test_the_exponent_leaves_out_what_starting_takes(
    sizes: list[int], seconds: list[float], expected: float | None
) -> None:
    found = large_scale.exponent(sizes, seconds)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.001))


def test_a_command_that_takes_too_long_or_too_much_memory_is_said() -> None:
    row = large_scale.Row("score", "ranks", [8, 64], [0.1, 61.0], [1, 1], None)
    assert row.is_too_much
    assert large_scale.line(row).endswith("exponent unknown  TOO MUCH")
    assert large_scale.Row("score", "ranks", [8], [0.1], [2**30 + 1], None).is_too_much
    assert not large_scale.Row("score", "ranks", [8], [60.0], [2**30], None).is_too_much


def test_every_command_runs_at_small_sizes_and_the_page_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert large_scale.main(["--quick", "--json", str(tmp_path / "large_scale.json")]) == 0
    rows = json.loads((tmp_path / "large_scale.json").read_text())["rows"]
    committed = json.loads((ROOT / "benchmarks" / "results" / "large_scale.json").read_text())["rows"]
    assert [(row["what"], row["unit"]) for row in rows] == [(row["what"], row["unit"]) for row in committed]
    assert all(len(row["sizes"]) == len(row["seconds"]) == len(row["peak_bytes"]) for row in rows)
    assert all(min(row["seconds"]) > 0 and min(row["peak_bytes"]) >= 0 for row in rows)
    assert "ensemble collect" in capsys.readouterr().out
    (tmp_path / "growth.json").write_text(
        json.dumps(
            {"rows": [{"what": "all-reduce", "unit": "ranks", "sizes": [2, 4], "seconds": [1, 2.0], "exponent": 1}]}
        )
    )
    page = performance_page.page(tmp_path)
    assert "| all-reduce | 2, 4 ranks | 1, 2 |  | 1.00 |" in page
    assert "| ensemble plan | 10, 100 members |" in page
    assert "How cost grows" not in performance_page.page(tmp_path / "nothing")
