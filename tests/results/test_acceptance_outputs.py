"""`hpcai500 accept` for harnesses, programs, Jenkins and signatories: the same numbers, and nothing that escapes.

On a record of a real run, and on written ones.
"""

from __future__ import annotations

import html
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.campaigns import SHORT, write_campaign
from builders.records import write_record
from builders.runs import train_arguments

from hpcai500 import train
from hpcai500.cli import main
from hpcai500.results.acceptance.contract import contracts_folder, load_contract
from hpcai500.results.acceptance.page import acceptance_page, title_of
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept, acceptance_lines, bar, junit_xml
from hpcai500.streams import show

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"

CONTRACT = """
title = {title}
contract = {title}
[system]
name = {title}
description = {title}
[require]
rankable = false
[[parties]]
role = {title}
name = {title}
signs = {title}
[[criteria]]
metric = "vflops"
reference = 900
unit = "TFLOPS"
lower = -0.05
clause = {title}
[[criteria]]
metric = "images_per_second"
reference = 99_000
unit = "images/s"
lower = 0.0
statistic = "every"
[[criteria]]
metric = "watts"
reference = 13
unit = "kW"
upper = 0.0
"""
TINY = """
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


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Acceptance:
    """One criterion kept, one missed, one missing; every word that people give is hostile."""
    folder = tmp_path_factory.mktemp("outputs")
    hosts = (f"n1{HOSTILE}", f"n2{HOSTILE}")
    runs = write_campaign(folder / f"c{HOSTILE.replace('/', '-')}", *SHORT, trials=3, quality=0.77, hosts=hosts)
    path = folder / "contract.toml"
    path.write_text(CONTRACT.format(title=json.dumps(HOSTILE)), encoding="utf-8")
    return accept(Request(load_contract(path), [runs]), datetime(2027, 5, 4, 12, 0, tzinfo=UTC))


def test_the_page_holds_verdict_numbers_hashes_and_a_line_for_each_signature(judged: Acceptance) -> None:
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", acceptance_page(judged), flags=re.S)
    text = " ".join(html.unescape(plain).split())
    order = (
        "NOT ACCEPTED",
        "1 of 3 criteria are met",
        "Criteria",
        "Requirements",
        "Worst node",
        "Signatures",
        "Appendix: records and hashes",
    )
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    contract, evidence = judged.request.contract, judged.evidence
    package = evidence.runs[0].record.system["installation"]["package"]
    heads = (evidence.campaigns[0].head, *(run.head for run in evidence.runs))
    for word in (*heads, contract.sha256, package["code_sha256"], "checked on 2027-05-04 12:00 UTC"):
        assert word in text
    assert text.count("Place, date") == len(contract.spec.parties)
    assert [title_of(one) for one in judged.criteria if title_of(one) not in text] == []


def test_people_who_sign_see_no_command_line_no_folder_and_no_hash_before_the_appendix(judged: Acceptance) -> None:
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", acceptance_page(judged), flags=re.S)
    text = " ".join(html.unescape(plain).split())
    assert "--power" in judged.criteria[2].note, "the terminal says what to type"
    assert not re.findall(r"(?<!\w)--\w+|hpcai500 (?:micro|submit|scale|rules)", text)
    assert str(judged.evidence.campaigns[0].path.parent) not in text
    before = text[: text.rindex("Appendix: records and hashes")]
    assert not re.findall(r"\b[0-9a-f]{64}\b", before)
    assert "Images per second (every run)" in before
    assert "images_per_second" not in text


def test_nothing_that_people_or_records_say_becomes_markup(judged: Acceptance) -> None:
    page = acceptance_page(judged)
    assert "&lt;script&gt;" in page
    assert not re.findall(r"<(?:script|img|link|iframe|object|embed|base|form)\b", page)
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)
    assert not re.findall(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page
    assert "@page { size: A4" in page


def test_a_page_of_a_comparison_without_a_contract_can_be_signed_too(judged: Acceptance, tmp_path: Path) -> None:
    old = write_campaign(tmp_path / "old", *SHORT, trials=3, quality=0.769)
    page = acceptance_page(accept(Request(None, [judged.evidence.campaigns[0].path], baseline=old)))
    assert page.count("Place, date") == 2
    assert "✓ ACCEPTED" in page


def test_junit_xml_is_well_formed_and_counts_what_failed(judged: Acceptance) -> None:
    content = junit_xml(judged)
    assert content.startswith(b"<?xml")
    root = ET.fromstring(content)
    suites = list(root)
    assert (root.tag, [suite.get("name") for suite in suites]) == ("testsuites", ["requirements", "criteria"])
    assert {one.tag for suite in suites for one in suite} == {"properties", "testcase"}
    for suite in (root, *suites):
        counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
        cases, failures = (str(len(list(suite.iter(tag)))) for tag in ("testcase", "failure"))
        assert counted == {"tests": cases, "failures": failures, "errors": "0", "skipped": "0"}
    assert all(case.get("classname") and case.get("time") is not None for case in root.iter("testcase"))
    found = {case.get("name"): case.find("failure") for case in suites[1].iter("testcase")}
    missed, missing = found["images_per_second (every run)"], found["watts (mean)"]
    assert found["vflops (mean)"] is None
    assert (missed.get("type"), missing.get("type")) == ("fail", "missing")
    assert "contracted ≥ 99,000 images/s" in missed.get("message")
    assert "--power" in missing.text
    assert suites[0].get("timestamp") == "2027-05-04T12:00:00"


def test_junit_xml_and_terminals_survive_what_they_cannot_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A path may hold what colours a terminal, turns the direction of writing, or has no width.
    runs = write_campaign(tmp_path / "c\x1b[31m\u202e\u200b", *SHORT, trials=2, quality=0.5)
    old = write_campaign(tmp_path / "old", *SHORT, trials=2, quality=0.51)
    made = accept(Request(None, [runs], baseline=old))
    root = ET.fromstring(junit_xml(made))
    said = " ".join(failure.text or "" for failure in root.iter("failure"))
    assert r"c\x1b[31m\u202e\u200b" in said
    for written in (junit_xml(made).decode(), acceptance_page(made)):
        assert not {letter for letter in written if not letter.isprintable()} - {"\n", "\N{NO-BREAK SPACE}"}
    show(acceptance_lines(made))
    shown = capsys.readouterr().out
    assert r"c\x1b[31m" in shown
    assert "\x1b" not in shown


def test_the_lines_for_harnesses_come_last_with_plain_numbers(judged: Acceptance) -> None:
    lines = list(acceptance_lines(judged))
    assert lines[-1] == "HPCAI500 RESULT FAIL"
    figures = [line for line in lines if line.startswith("HPCAI500 FOM ")]
    assert lines[-1 - len(figures) : -1] == figures
    for line in figures:
        assert re.fullmatch(r"HPCAI500 FOM [a-z0-9_]+=-?[0-9.e+-]+ \S+", line), line
    vflops = judged.criteria[0]
    assert f"HPCAI500 FOM accept_vflops_mean={vflops.measured:.6g} FLOPS" in figures
    assert f"HPCAI500 FOM accept_vflops_mean_margin={vflops.margin:.6g} fraction" in figures
    assert not any("watts" in line for line in figures), "what is unknown has no line"
    table = next(line for line in lines if line.startswith("images_per_second"))
    assert table.endswith("FAIL")
    assert "≥ 99,000 images/s" in table


def test_the_document_has_plain_numbers_in_the_metrics_own_units(judged: Acceptance) -> None:
    document = json.loads(json.dumps(judged.document(), allow_nan=False))
    assert (document["verdict"], document["exit_code"], document["error"]) == ("FAIL", 5, None)
    vflops, _, watts = document["criteria"]
    assert {key: vflops[key] for key in ("name", "reference", "unit", "verdict", "lower")} == {
        "name": "vflops (mean)", "reference": 9e14, "unit": "FLOPS", "verdict": "pass", "lower": -0.05,
    }  # fmt: skip
    assert len(vflops["values"]) == 3
    assert vflops["margin"] == pytest.approx(vflops["measured"] / 9e14 - 0.95)
    assert (watts["measured"], watts["margin"], watts["verdict"]) == (None, None, "missing")
    assert [record["last_event"] for record in document["records"]] == [run.head for run in judged.evidence.runs]
    assert document["campaigns"][0]["attempts"] == {"done": 3}
    assert document["worst_node"]["name"].startswith("n")
    assert {one["name"] for one in document["requirements"]} >= {"records", "right answers", "runs belong together"}


def test_a_bar_has_the_limit_in_the_middle_and_what_is_better_on_its_right(judged: Acceptance) -> None:
    kept, missed, missing = (bar(one) for one in judged.criteria)
    assert len(kept) == len(missed)
    assert kept.index("|") == len(kept) // 2
    assert next(place for place, cell in enumerate(kept) if cell in "●«»") > len(kept) // 2
    assert missed[0] == "«", "more than ten per cent below"
    assert missing == ""


# The command.


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> tuple[int, str]:
        """Exit code and last line."""
        return self.code, self.out.splitlines()[-1]


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command as it is typed."""

    def typed(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "accept", *map(str, arguments)])
        return Ended(main(), *capsys.readouterr())

    return typed


Accept = Callable[..., Ended]
PASS, FAIL, INVALID = (f"HPCAI500 RESULT {verdict}" for verdict in ("PASS", "FAIL", "INVALID"))


@pytest.fixture(scope="module")
def real(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run that was really made."""
    record = tmp_path_factory.mktemp("real") / "record"
    assert train.main(train_arguments(images, record)) == 0
    return record


def contract(folder: Path, rate: float) -> Path:
    path = folder / "contract.toml"
    path.write_text(TINY.format(rate=rate), encoding="utf-8")
    return path


def test_a_real_run_is_accepted_by_a_contract_that_it_keeps_alone(accepted: Accept, real: Path, tmp_path: Path) -> None:
    junit, page = tmp_path / "a.xml", tmp_path / "a.html"
    assert accepted(contract(tmp_path, 0.001), real, "--junit", junit, "--html", page).result == (0, PASS)
    assert ET.parse(junit).getroot().get("failures") == "0"
    assert "✓ ACCEPTED" in page.read_text(encoding="utf-8")
    missed = accepted(contract(tmp_path, 1e9), real)
    assert missed.result == (5, FAIL)
    assert "HPCAI500 FOM accept_images_per_second_mean=" in missed.out


def test_json_is_one_document_whatever_happens(accepted: Accept, real: Path, tmp_path: Path) -> None:
    good = accepted(contract(tmp_path, 0.001), real, "--json")
    assert (good.code, json.loads(good.out)["verdict"]) == (0, "PASS")
    bad = accepted(contract(tmp_path, 0.001), tmp_path / "nowhere", "--json")
    document = json.loads(bad.out)
    assert (bad.code, document["verdict"], document["criteria"]) == (64, "INVALID", [])
    assert "no such folder" in document["error"]


def test_the_contract_of_the_smoke_run_comes_along(accepted: Accept, tmp_path: Path) -> None:
    ended = accepted("smoke", write_record(tmp_path / "smoke"))
    assert ended.result == (0, PASS), ended.err
    assert "Accepted: 4 of 4 criteria are met." in ended.out


def test_without_a_contract_all_names_are_records_that_the_baseline_judges(accepted: Accept, tmp_path: Path) -> None:
    old, new, more = (write_record(tmp_path / f"{seed}", f"hyperparameters.seed={seed}") for seed in (1, 2, 3))
    # Written in no time, their clocks differ by chance: only that they are all judged is looked at.
    ended = accepted(new, more, "--baseline", old, "--min-ratio", "0.5", "--json")
    document = json.loads(ended.out)
    assert ended.code in (0, 5), ended.err
    assert [len(one["values"]) for one in document["criteria"]] == [2] * len(document["criteria"])
    assert (document["contract"], document["min_ratio"]) == (None, 0.5)


def test_the_example_is_printed_to_begin_with(accepted: Accept, tmp_path: Path) -> None:
    ended = accepted("--example")
    assert (ended.code, ended.out) == (0, (contracts_folder() / "example.toml").read_text(encoding="utf-8"))
    path = tmp_path / "contract.toml"
    path.write_text(ended.out, encoding="utf-8")
    assert accepted(path, write_record(tmp_path / "r")).result == (2, FAIL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{record}"], "a folder, but the contract file must come first"),
        (["smoke"], "accept smoke: give the records: hpcai500 accept smoke RECORD..."),
        (["smoke", "{record}", "--min-ratio", "0.9"], "--min-ratio needs a baseline: add --baseline OLD"),
        (["{record}", "--baseline", "{record}", "--min-ratio", "0"], "--min-ratio 0: expected a number from 0.5"),
        (["{record}", "--baseline", "{record}", "--min-ratio", "1e-6"], "expected a number from 0.5 to 100"),
        (["smoke", "{record}", "--micro", "{record}/nothing.json"], "nothing.json: no such file"),
        (["smoke", "{record}", "--html", "{record}/no/where.html"], "where.html: cannot be written"),
        (["smoke", "{record}", "--html", "."], ".: a folder; give a file: --html NAME"),
        (["smoke", "{record}", "--html", "{record}/a", "--junit", "{record}/../r/a"], "uses that file already"),
        (["smoke", "{record}", "--micro", "m.json", "--junit", "m.json"], "uses that file already"),
        (["smoke", "{record}", "--baseline", "{record}"], "which is one of the new runs"),
        (["smoke", "{record}/DONE"], "a file, but not a submission: records are folders, submissions are ZIP files"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(accepted: Accept, tmp_path: Path, arguments: list[str], said: str) -> None:
    record = write_record(tmp_path / "r")
    ended = accepted(*(word.format(record=record) for word in arguments))
    assert (ended.code, ended.out) == (64, f"{INVALID}\n")
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
