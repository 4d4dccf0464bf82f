"""TOML of strangers: what would take long is refused by file and line before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from hpcai500.campaign.journal import read_campaign
from hpcai500.errors import HpcAi500Error, RecipeError
from hpcai500.launch.slurm.site import load_site
from hpcai500.recipe import load_recipe
from hpcai500.record import read_record
from hpcai500.results.acceptance.contract import load_contract
from hpcai500.toml_source import MOST_BYTES, Source, explain, parse_toml, read_source

_DOTS = "# a comment\n" + ".".join("a" * 8000) + " = 1\n"


@pytest.mark.parametrize("read", [load_recipe, load_site, load_contract], ids=["recipe", "site", "contract"])
def test_a_key_of_thousands_of_parts_is_refused_by_file_and_line(tmp_path: Path, read: object) -> None:
    file = tmp_path / "file.toml"
    file.write_text(_DOTS)
    assert callable(read)
    with pytest.raises(HpcAi500Error, match=r"file\.toml:2: 7999 dots in a line, at most 200") as caught:
        read(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_campaign, read_record], ids=["campaign", "record"])
def test_so_is_that_of_a_campaign_and_a_record(tmp_path: Path, read: object) -> None:
    (tmp_path / "recipe.toml").write_text(_DOTS)
    for name in ("campaign.jsonl", "events.jsonl"):
        (tmp_path / name).write_text("")
    assert callable(read)
    with pytest.raises(HpcAi500Error, match=r"recipe\.toml:2: 7999 dots"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = 1 # " + b"x" * MOST_BYTES, "more than 262144 bytes"),
        (b"a = " + b"[" * 100_000, "TOML nested too deeply"),
        (b"a = " + b"1" * 10_000, "not valid TOML"),
        (b"a = \xff", r"not valid TOML: not a text file in UTF-8 \(invalid start byte at byte 4\)"),
        (b"a = \nb = 1", "not valid TOML: .*line 1"),
    ],
)
def test_what_cannot_be_read_is_one_line(content: bytes, said: str) -> None:
    with pytest.raises(RecipeError, match=f"^file.toml: {said}") as caught:
        parse_toml(content, "file.toml", RecipeError)
    assert "\n" not in str(caught.value)


def test_of_a_large_file_no_more_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(RecipeError, match="more than 262144 bytes"):
        read_source(file, RecipeError)


def test_a_line_is_found_by_table_key_and_number() -> None:
    text = """\
  [table]
  key = 1
"quoted name".inner = 2
[[ points ]]
x = 1
[[points]]
x = 2
"""
    source = Source("file", text)
    assert source.line_of(("table", "key")) == 2
    assert source.line_of(("table", "quoted name", "inner")) == 3
    assert source.line_of(("points", 1, "x")) == 7
    assert source.line_of(("none",)) is None


def test_blanks_without_end_take_no_time() -> None:
    blanks = " " * 200_000
    assert Source("file", f'[{blanks}\na{blanks}b\n"{blanks}').line_of(("a",)) is None


class _Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    nodes: int
    rate: float


class _Points(BaseModel):
    points: list[_Point]


def test_tables_of_an_array_are_told_by_number_and_a_misspelt_key_once() -> None:
    tables = {"points": [{"nodes": 1, "rate": 2.0}, {"nodse": 2, "rate": 2.0}, {"nodes": 4}, 5]}
    source = Source("file.toml", "[[points]]\nnodes = 1\nrate = 2.0\n[[points]]\nnodse = 2\nrate = 2.0\n[[points]]\n")
    with pytest.raises(ValidationError) as caught:
        _Points.model_validate(tables)
    assert explain(_Points, source, caught.value, tables, named_by="nodse") == [
        "file.toml:5: [[points]] 2.nodse: unknown key; did you mean nodes? allowed: nodes, rate",
        "file.toml:7: [[points]] 3.rate: is missing",
        "file.toml: [[points]] 4: expected a table, got 5",
    ]
