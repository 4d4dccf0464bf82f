"""`hpcai500 accept` as people and harnesses type it, on a record of a real run and on written ones."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tiny_runs import train_arguments
from written_record import write_record

from hpcai500 import train
from hpcai500.results.acceptance.contract import contracts_folder

CONTRACT = """
title = "a tiny run"
[require]
rankable = false
[[criteria]]
metric = "images_per_second"
reference = {rate}
unit = "images/s"
lower = -0.1
[[criteria]]
metric = "quality"
reference = 1
unit = "%"
lower = 0.0
statistic = "every"
"""


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [Path(sys.executable).with_name("hpcai500"), "accept", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def real(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run that was really made."""
    record = tmp_path_factory.mktemp("real") / "record"
    assert train.main(train_arguments(images, record)) == 0
    return record


def contract(folder: Path, rate: float) -> Path:
    path = folder / "contract.toml"
    path.write_text(CONTRACT.format(rate=rate), encoding="utf-8")
    return path


def test_a_real_run_is_accepted_by_a_contract_that_it_keeps_and_not_by_another(real: Path, tmp_path: Path) -> None:
    junit, page = tmp_path / "a.xml", tmp_path / "a.html"
    kept = command(contract(tmp_path, 0.001), real, "--junit", junit, "--html", page)
    assert (kept.returncode, last_line(kept)) == (0, "HPCAI500 RESULT PASS")
    assert ET.parse(junit).getroot().get("failures") == "0"
    assert "✓ ACCEPTED" in page.read_text(encoding="utf-8")
    missed = command(contract(tmp_path, 1e9), real)
    assert (missed.returncode, last_line(missed)) == (5, "HPCAI500 RESULT FAIL")
    assert "HPCAI500 FOM accept_images_per_second_mean=" in missed.stdout


def test_json_is_one_document_whatever_happens(real: Path, tmp_path: Path) -> None:
    good = command(contract(tmp_path, 0.001), real, "--json")
    assert (good.returncode, json.loads(good.stdout)["verdict"]) == (0, "PASS")
    bad = command(contract(tmp_path, 0.001), tmp_path / "nowhere", "--json")
    document = json.loads(bad.stdout)
    assert (bad.returncode, document["verdict"], document["criteria"]) == (64, "INVALID", [])
    assert "does not exist" in document["error"]


def test_the_contract_of_the_smoke_run_comes_along(tmp_path: Path) -> None:
    record = write_record(tmp_path / "smoke")
    ended = command("smoke", record)
    assert (ended.returncode, last_line(ended)) == (0, "HPCAI500 RESULT PASS"), ended.stderr
    assert "Accepted: 4 of 4 criteria are kept." in ended.stdout


def test_without_a_contract_all_names_are_records_that_the_baseline_judges(tmp_path: Path) -> None:
    old = write_record(tmp_path / "old", "hyperparameters.seed=1")
    new = write_record(tmp_path / "new", "hyperparameters.seed=2")
    more = write_record(tmp_path / "more", "hyperparameters.seed=3")
    # Written in no time, their clocks differ by chance: only that they are all judged is looked at.
    ended = command(new, more, "--baseline", old, "--min-ratio", "0.5", "--json")
    document = json.loads(ended.stdout)
    assert ended.returncode in (0, 5), ended.stderr
    assert [len(one["values"]) for one in document["criteria"]] == [2] * len(document["criteria"])
    assert (document["contract"], document["min_ratio"]) == (None, 0.5)


def test_the_example_is_printed_to_begin_with(tmp_path: Path) -> None:
    ended = command("--example")
    assert ended.returncode == 0
    assert ended.stdout == (contracts_folder() / "example.toml").read_text(encoding="utf-8")
    path = tmp_path / "contract.toml"
    path.write_text(ended.stdout, encoding="utf-8")
    missed = command(path, write_record(tmp_path / "r"))
    assert (missed.returncode, last_line(missed)) == (2, "HPCAI500 RESULT FAIL")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{record}"], "a folder, where a contract file must be first"),
        (["smoke"], "accept smoke: which records? hpcai500 accept smoke RECORD..."),
        (["smoke", "{record}", "--min-ratio", "0.9"], "--min-ratio: of what? give --baseline OLD as well"),
        (["{record}", "--baseline", "{record}", "--min-ratio", "0"], "--min-ratio 0: expected a number from 0.5"),
        (["{record}", "--baseline", "{record}", "--min-ratio", "1e-6"], "below which nothing is ever missed"),
        (["smoke", "{record}", "--micro", "{record}/nothing.json"], "nothing.json: cannot be read"),
        (["smoke", "{record}", "--html", "{record}/no/where.html"], "where.html: cannot be written"),
        (["smoke", "{record}", "--html", "."], ".: a folder; give a file: --html NAME"),
        (["smoke", "{record}", "--html", "{record}/a", "--junit", "{record}/../r/a"], "another file of this command"),
        (["smoke", "{record}", "--micro", "m.json", "--junit", "m.json"], "another file of this command"),
        (["smoke", "{record}", "--baseline", "{record}"], "a run is always as good as itself"),
        (["smoke", "{record}/DONE"], "a file, and no submission: records are folders, submissions are ZIP files"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line_and_is_invalid(tmp_path: Path, arguments: list[str], said: str) -> None:
    record = write_record(tmp_path / "r")
    ended = command(*(word.format(record=record) for word in arguments))
    assert (ended.returncode, ended.stdout) == (64, "HPCAI500 RESULT INVALID\n")
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
