"""Several records on one page, and records of many ranks: a summary on top, and a page of bounded size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reported import write_reported
from test_report_of_a_record import BROKEN, words

from hpcai500.errors import UsageError
from hpcai500.results.report.drawing import Axis, compact, round_values, spanning, thinned
from hpcai500.results.report.page import make_report


def test_ten_thousand_ranks_are_the_worst_twenty_and_quantiles(tmp_path: Path) -> None:
    made = make_report([write_reported(tmp_path / "r", ranks=10_000, nodes=1250)]).html
    assert BROKEN not in made
    assert len(made) < 300_000
    text = words(made)
    assert "rank 9999 on n1249" in text, "the straggler is not shown"
    assert "Quantiles over 10,000 ranks" in text
    assert "9,980 more are left out" in text
    assert "1,250 nodes, which differ in 1 field" in text


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    made = make_report([write_reported(tmp_path / "r", epochs=200, ranks=1, nodes=1)]).html
    assert len(made) < 300_000
    assert "80 more are left out" in words(made)


def test_a_series_has_its_mean_and_variation_on_top(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_reported(tmp_path / "s" / f"trial-{seed}", seed=seed, step_seconds=1 + seed / 100)
    text = words(make_report([tmp_path / "s"]).html)
    assert text.index("One line a record") < text.index("Mean of 3 runs of one recipe") < text.index("NOT RANKABLE")
    assert "images per second 93.5 images/s 0.9 % 3" in text, "3000 images in 31.8, 32.1 and 32.4 s"
    assert text.count("Quality and loss Quality") == 3


def test_records_that_do_not_belong_together_have_no_mean(tmp_path: Path) -> None:
    one = write_reported(tmp_path / "one")
    other = write_reported(tmp_path / "two", "hyperparameters.batch_size=32")
    text = words(make_report([one, other]).html)
    assert "No mean: " in text
    assert "hyperparameters.batch_size" in text[: text.index("Score")]


def test_records_of_several_sizes_are_a_scaling(tmp_path: Path) -> None:
    settings = ("os.threads=1",)
    records = [write_reported(tmp_path / f"{n}", *settings, ranks=n, nodes=1, step_seconds=1 + n / 20) for n in (1, 2)]
    made = make_report(records).html
    assert "<h2>Scaling</h2>" in made
    assert "efficiency against the smallest" in made
    other = write_reported(tmp_path / "other", "os.threads=2", ranks=4, nodes=1)
    assert "do not belong into one table" in words(make_report([*records, other]).html)


def test_a_failed_run_among_others_has_its_line(tmp_path: Path) -> None:
    good = write_reported(tmp_path / "good")
    made = make_report([good, write_reported(tmp_path / "bad", fail="a rank is lost", seed=2)])
    assert [verdict.rpartition("/")[2] for verdict in made.verdicts] == [
        "good: PASS, not rankable",
        "bad: INVALID: a rank is lost",
    ]
    assert re.search(r"2\. bad INVALID no ic 4", words(made.html))


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    with pytest.raises(UsageError, match="the same run"):
        make_report([record, Path(str(record))])


def test_axes_end_at_round_values_and_name_them() -> None:
    axis = spanning("loss", [0.3, 2.9])
    assert (axis.low, axis.high) == (0, 3)
    assert [name for _, name in axis.marks()] == ["0", "1", "2", "3"]
    assert round_values(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert [name for _, name in Axis("FLOPS", 1e9, 1e12, log=True).marks()] == ["1G", "10G", "100G", "1T"]
    assert compact(2.5e6) == "2.5M"


def test_places_on_an_axis_never_leave_it() -> None:
    linear, logarithmic = Axis("", 0, 10), Axis("", 1, 100, log=True)
    assert [linear.place(value) for value in (-5, 0, 5, 10, 99)] == [0, 0, 0.5, 1, 1]
    assert [logarithmic.place(value) for value in (0.0, 1, 10, 100, 1e9)] == pytest.approx([0, 0, 0.5, 1, 1])


def test_a_line_of_many_points_keeps_its_peaks() -> None:
    points = [(float(index), 0.0) for index in range(100_000)]
    points[77_777] = (77_777.0, 5.0)
    few = thinned(points)
    assert len(few) <= 402
    assert (77_777.0, 5.0) in few
    assert (few[0], few[-1]) == (points[0], points[-1])
