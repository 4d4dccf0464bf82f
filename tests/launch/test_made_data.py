"""Where a benchmark makes the data that nobody gave it; tests/site has a system that really is read-only."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import EnvironmentLacksError
from hpcai500.launch.made_data import place_of_made_data


def test_it_is_made_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of_made_data("ic-shapes", tmp_path / "runs" / "one") == Path("data/ic-shapes")


def test_where_that_cannot_be_written_it_is_made_beside_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr("hpcai500.launch.made_data.can_be_made", lambda path: tmp_path in path.parents)
    place = place_of_made_data("ic-shapes", tmp_path / "runs" / "one")
    assert place == tmp_path / "runs" / "data" / "ic-shapes"
    assert f"/: cannot be written: the synthetic data goes to {place}" in capsys.readouterr().err


def test_data_that_is_there_is_used_also_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "ic-shapes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcai500.launch.made_data.can_be_made", lambda path: False)
    assert place_of_made_data("ic-shapes", None) == Path("data/ic-shapes")


@pytest.mark.parametrize("out", [None, Path("/record")])
def test_where_neither_can_be_written_one_line_says_so(out: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr("hpcai500.launch.made_data.can_be_made", lambda path: False)
    with pytest.raises(EnvironmentLacksError, match=r"^synthetic data cannot be made: /: .*--bind DIR --pwd DIR"):
        place_of_made_data("ic-shapes", out)
