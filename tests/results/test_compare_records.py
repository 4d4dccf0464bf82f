"""`hpcai500 compare A B`: what differs comes first, and what cannot be compared is said loudly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from reported import write_reported

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import compare, side
from hpcai500.results.compare import Comparison, compare_records, comparison_lines, comparison_page


def lines(comparison: Comparison) -> list[str]:
    return list(comparison_lines(comparison))


def number(comparison: Comparison, name: str) -> dict[str, object]:
    [found] = [one for one in comparison.document()["numbers"] if one["name"] == name]
    return found


def series(folder: Path, slower: float, spread: float) -> Path:
    for seed in (1, 2, 3):
        write_reported(folder / f"trial-{seed}", seed=seed, step_seconds=slower * (1 + spread * (seed - 2)))
    return folder


def test_numbers_come_with_their_ratio_and_which_way_is_better(tmp_path: Path) -> None:
    slow = write_reported(tmp_path / "slow", step_seconds=2)
    fast = write_reported(tmp_path / "fast", "communication.bucket_bytes=1000", seed=2)
    compared = compare_records(slow, fast)
    assert compared.comparable
    assert number(compared, "seconds")["ratio"] == pytest.approx(31.5 / 61.5)
    text = lines(compared)
    at = {line.split()[0]: line for line in text if line}
    assert at["seconds"].endswith("0.512  better")
    assert at["flops"].endswith("1.952  better")
    assert at["images"].endswith("1.000")
    assert text.index("recipes differ in") < text.index("systems are the same, as far as the records tell")
    assert "  3 communication.bucket_bytes           0                            1000" in text
    assert not any("seed" in line for line in text), "seeds always differ"


def test_what_ran_elsewhere_is_listed(tmp_path: Path) -> None:
    one = write_reported(tmp_path / "one", ranks=2, nodes=1)
    other = write_reported(tmp_path / "two", ranks=4, nodes=2)
    found = compare_records(one, other).document()["system"]
    assert {"field": "ranks", "a": "2", "b": "4"} in found
    assert {"field": "nodes", "a": "1", "b": "2"} in found
    assert {"field": "software.cuda", "a": "13.1", "b": "13.0"} in found


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("problem.target_quality=0.5", "layer 9 differs: problem.target_quality is 0.85 in A, 0.5 in B"),
        ("problem.dataset=other", "layer 9 differs: problem.dataset is synthetic-shapes in A, other in B"),
    ],
)
def test_another_problem_is_not_comparable(tmp_path: Path, setting: str, problem: str) -> None:
    compared = compare_records(write_reported(tmp_path / "a"), write_reported(tmp_path / "b", setting))
    text = lines(compared)
    assert not compared.comparable
    assert text.index("NOT COMPARABLE") < text.index(f"  ! {problem}") < text.index("recipes differ in")
    assert not any(line.endswith(("better", "worse")) for line in text), "what is not comparable is not judged"
    assert "NOT COMPARABLE" in comparison_page(compared)


def test_a_failed_run_is_not_comparable_and_still_shown(tmp_path: Path) -> None:
    compared = compare_records(write_reported(tmp_path / "a"), write_reported(tmp_path / "b", fail="<b>lost</b>"))
    assert compared.problems == [f"B has no result: {tmp_path / 'b'}: <b>lost</b>"]
    assert number(compared, "flops")["b"] is None
    assert number(compared, "flops")["ratio"] is None
    # The target of A is not the edition's.
    assert not any(metric.name == "vflops" for metric, _ in compared.numbers)
    assert any(line.strip().startswith("VFLOPS not shown: problem.target_quality is ") for line in lines(compared))
    assert "<b>" not in comparison_page(compared)


def test_a_changed_result_is_not_comparable(tmp_path: Path) -> None:
    one, other = write_reported(tmp_path / "a"), write_reported(tmp_path / "b", seed=2)
    result = json.loads((other / "result.json").read_text(encoding="utf-8"))
    (other / "result.json").write_text(json.dumps(result | {"flops": 1e18}), encoding="utf-8")
    [problem] = compare_records(one, other).problems
    assert problem.startswith("B does not hold together: ")
    assert number(compare_records(one, other), "flops")["ratio"] == pytest.approx(1)


def test_a_run_against_itself_is_refused(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "a")
    with pytest.raises(UsageError, match="the same run"):
        compare_records(record, Path(str(record)))


def test_series_are_compared_by_their_means_and_spreads(tmp_path: Path) -> None:
    base = series(tmp_path / "base", 1.0, 0.01)
    faster = compare_records(base, series(tmp_path / "faster", 0.8, 0.01))
    assert number(faster, "seconds")["exceeds_spread"] is True
    assert next(line for line in lines(faster) if line.startswith("seconds ")).endswith("better, beyond the spread")
    noisy = compare_records(base, series(tmp_path / "noisy", 1.02, 0.1))
    assert number(noisy, "seconds")["exceeds_spread"] is False
    assert next(line for line in lines(noisy) if line.startswith("seconds ")).endswith("within the spread")


def test_fewer_than_three_runs_say_nothing_of_a_spread() -> None:
    assert compare(side([1.0, 1.1]), side([9.0, 9.1])).exceeds_spread is None
    assert compare(side([1.0]), side([2.0])).ratio == 2
    assert compare(side([1.0, None]), side([2.0])).ratio is None
    assert compare(side([0.0]), side([2.0])).ratio is None


def test_the_mean_leaves_out_the_highest_and_the_lowest_run() -> None:
    found = side([1.0, 2.0, 3.0, 100.0])
    assert found is not None
    assert found.mean == 2.5
    assert found.deviation == pytest.approx(49.0, abs=0.1)


def test_the_command_prints_one_document_and_writes_a_page(tmp_path: Path) -> None:
    one, other = write_reported(tmp_path / "a"), write_reported(tmp_path / "b", seed=2)
    line = [Path(sys.executable).with_name("hpcai500"), "compare", one, other, "--json", "-o", tmp_path / "c.html"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["comparable"], document["a"][0]["verdict"]) == (True, "PASS")
    assert (tmp_path / "c.html").read_text(encoding="utf-8").startswith("<!doctype html>")
