"""`hpcai500 data anchors ewa`: a line for a recipe."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sample_years import write_year

from hpcai500.data.command import main
from hpcai500.recipe import load_recipe


def test_a_set_without_boxes_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_year(tmp_path, boxes=np.full((12, 15, 5), -1, np.int32))
    assert main(["anchors", "ewa", str(tmp_path)]) == 64
    assert capsys.readouterr().err == (
        "hpcai500: error: cannot fit 15 anchors to 0 different box shapes: take more years, or fewer anchors\n"
    )


def test_the_line_is_one_of_a_recipe(weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["anchors", "ewa", str(weather), "--levels", "4", "--per-level", "2"]) == 0
    line = capsys.readouterr().out
    anchors = tomllib.loads(line)["anchors"]
    assert [len(level) for level in anchors] == [2, 2, 2, 2]
    recipe = tmp_path / "mine.toml"
    smoke = 'benchmark = "ewa"\nedition = "v2.0"\n[workload]\ndepths = [1, 1, 1]\n'
    recipe.write_text(smoke + line)
    assert load_recipe(recipe).workload.model_dump()["anchors"] == tuple(
        tuple(tuple(map(float, shape)) for shape in level) for level in anchors
    )


def test_only_the_years_asked_for_are_fitted_to(weather: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes = {}
    for years in ("1979", "1980", "1979-1980"):
        assert main(["anchors", "ewa", str(weather), "--years", years, "--levels", "2", "--json"]) == 0
        boxes[years] = json.loads(capsys.readouterr().out)["boxes"]
    assert max(boxes["1979"], boxes["1980"]) < boxes["1979-1980"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--years", "1990"), "1990"),
        (("--levels", "0"), "at least 1"),
        (("--per-level", "9", "--levels", "90"), "cannot fit 810 anchors"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    weather: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    assert main(["anchors", "ewa", str(weather), *arguments]) == 64
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
