"""The verdict for harnesses, programs, Jenkins and signatories: the same numbers, and nothing that escapes."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest
from written_campaign import SHORT, write_campaign

from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.page import acceptance_page
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
    text = " ".join(
        html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", acceptance_page(judged), flags=re.S)).split()
    )
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    order = [
        "NOT ACCEPTED",
        "1 of 3 criteria are kept",
        "Criteria",
        "Requirements",
        "Worst node",
        "Evidence",
        "Signatures",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    contract = judged.request.contract
    assert contract is not None
    heads = [run.head for run in judged.evidence.runs]
    for word in (*heads, judged.evidence.campaigns[0].head, contract.sha256, "judged on 2027-05-04 12:00 UTC"):
        assert word in text
    package = judged.evidence.runs[0].record.system["installation"]["package"]
    assert package["code_sha256"] in text
    assert text.count("Place, date") == len(contract.spec.parties)
    for one in judged.criteria:
        assert one.name in text


def test_nothing_that_people_or_records_say_becomes_markup(judged: Acceptance) -> None:
    page = acceptance_page(judged)
    assert "&lt;script&gt;" in page
    assert not re.findall(r"<(?:script|img|link|iframe|object|embed|base|form)\b", page)
    assert not re.findall(r"""(?:src|href)=["']""", page)
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
    assert root.tag == "testsuites"
    suites = list(root)
    assert [suite.get("name") for suite in suites] == ["requirements", "criteria"]
    assert {one.tag for suite in suites for one in suite} == {"properties", "testcase"}
    for suite in (root, *suites):
        cases = list(suite.iter("testcase"))
        assert suite.get("tests") == str(len(cases))
        assert suite.get("failures") == str(len(list(suite.iter("failure"))))
        assert (suite.get("errors"), suite.get("skipped")) == ("0", "0")
    for case in root.iter("testcase"):
        assert case.get("classname")
        assert case.get("time") is not None
    failures = {case.get("name"): case.find("failure") for case in suites[1].iter("testcase")}
    assert failures["vflops (mean)"] is None
    missed, missing = failures["images_per_second (every run)"], failures["watts (mean)"]
    assert missed is not None
    assert missing is not None
    assert (missed.get("type"), missing.get("type")) == ("fail", "missing")
    assert "contracted ≥ 99,000 images/s" in (missed.get("message") or "")
    assert "--power" in (missing.text or "")
    assert suites[0].get("timestamp") == "2027-05-04T12:00:00"


def test_junit_xml_and_terminals_survive_what_they_cannot_hold(
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
    kept, missed, missing = judged.criteria
    kept_bar, missed_bar = bar(kept), bar(missed)
    assert len(kept_bar) == len(missed_bar)
    assert kept_bar.index("|") == len(kept_bar) // 2
    marks = "●«»"
    assert next(place for place, cell in enumerate(kept_bar) if cell in marks) > len(kept_bar) // 2
    assert missed_bar[0] == "«", "more than ten per cent below"
    assert bar(missing) == ""
