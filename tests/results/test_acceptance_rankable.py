"""A benchmark that somebody made easy is never accepted without a word."""

from __future__ import annotations

import html
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from written_campaign import SHORT, write_campaign
from written_record import write_record

from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.evidence import Requirement
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept, acceptance_lines, junit_xml

CRITERION = '[[criteria]]\nmetric = "flops"\nreference = 1\nunit = "kFLOPS"\nlower = 0.0\n'
LOUD = "these runs are not HPC AI500 results: "


@pytest.fixture(scope="module")
def gamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on 33 images, with a target that one class in a hundred reaches."""
    folder = tmp_path_factory.mktemp("gamed") / "gamed"
    made_up = {"training_samples": 33, "evaluation_samples": 1000, "synthetic": True}
    return write_campaign(folder, *SHORT, "problem.target_quality=0.01", trials=2, quality=0.05, dataset=made_up)


def judge(record: Path, demands: str = "") -> Acceptance:
    path = record.parent / "contract.toml"
    path.write_text(f'title = "t"\n{demands}{CRITERION}', encoding="utf-8")
    return accept(Request(load_contract(path), [record]))


def requirement(made: Acceptance, name: str) -> Requirement:
    return next(one for one in made.requirements if one.name == name)


def test_a_gamed_benchmark_is_not_accepted_by_a_contract_that_says_nothing_of_rules(gamed: Path) -> None:
    made = judge(gamed)
    assert (made.verdict, made.exit_code) == ("FAIL", 2)
    assert "problem.target_quality is 0.01; edition v2.0 fixes 0.763" in requirement(made, "rankable").detail
    assert "top1 is 0.0" in requirement(made, "right answers").detail
    assert "the target of edition v2.0 is 0.763" in requirement(made, "right answers").detail


def test_with_the_opt_out_every_output_says_loudly_that_it_is_no_result(gamed: Path) -> None:
    made = judge(gamed, "[require]\nrankable = false\n")
    assert made.exit_code == 0
    line = made.loud
    assert line.startswith(LOUD)
    assert line.endswith(f"(and {len(made.not_rankable) - 1} more)")
    assert [said for said in acceptance_lines(made) if LOUD in said] == [f"HPCAI500 NOTE {line}"]
    assert line[1:] in html.unescape(acceptance_page(made))
    properties = {one.get("name"): one.get("value") for one in ET.fromstring(junit_xml(made)).iter("property")}
    assert properties["not_rankable"] == line
    assert any("target_quality is 0.01" in reason for reason in made.document()["not_rankable"])


def test_a_comparison_without_a_contract_says_it_too(tmp_path: Path) -> None:
    old = write_record(tmp_path / "old", "hyperparameters.seed=1")
    new = write_record(tmp_path / "new", "hyperparameters.seed=2")
    made = accept(Request(None, [new], baseline=old, ratio=1e-6))
    assert made.exit_code == 0
    assert made.not_rankable[0].startswith(f"{new}: ")


def test_what_was_judged_is_named_with_data_recipe_targets_and_machine(gamed: Path) -> None:
    made = judge(gamed, "[require]\nrankable = false\n")
    (one,) = made.document()["judged"]
    campaign = made.evidence.campaigns[0]
    expected = {
        "benchmark": "ic", "edition": "v2.0", "dataset": "imagenet-1k", "input": "synthetic", "training_samples": 33,
        "evaluation_samples": 1000, "recipe_hash": campaign.start["recipe_hash"], "target": 0.01,
        "edition_target": 0.763, "precision": campaign.tables["accelerator"]["precision"], "ranks": 16, "nodes": 2,
        "runs": 2, "campaign": campaign.identity,
    }  # fmt: skip
    assert {key: one[key] for key in expected} == expected
    assert len(one["achieved"]) == 2
    assert sum(one["accelerators"].values()) == 16
    page = html.unescape(acceptance_page(made))
    for said in ("SYNTHETIC, 33 + 1,000 samples", "target 0.01 (edition v2.0 fixes 0.763)", one["recipe_hash"]):
        assert said in page
    assert campaign.identity in page
