"""`hpcai500 rules`: of recipes, records and campaigns; what is drawn, told and counted; and the page that lists all."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_record, rewrite_recipe, values, write_campaign

from hpcai500.errors import RecipeError, RecordError, UsageError, WrongAnswerError
from hpcai500.recipe import tables_hash
from hpcai500.results.outcome import summary_lines
from hpcai500.results.rules import check_rules, page_with_table, report_lines, rules_lines
from hpcai500.results.score import score_record

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of one whole reference run that nobody made."""
    return write_campaign(tmp_path_factory.mktemp("rules") / "campaign", trials=1)


@pytest.fixture
def campaign(reference: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return copy_campaign(reference, tmp_path / "campaign")


@pytest.fixture
def record(campaign: Path) -> Path:
    return campaign / "trial-01"


def text(*arguments: Any, **options: Any) -> str:
    return "\n".join(report_lines(check_rules(*arguments, **options)))


def forget_digests(record: Path) -> None:
    """Ranks that drifted apart."""
    edit_record(record, lambda events: [value.update(digest=None) for value in values(events, "replicas")])


def test_a_recipe_is_drawn_layer_by_layer_and_every_change_stands_in_a_line() -> None:
    told = text("ic/reference", ["accelerator.precision=bf16", "framework.compile=true"])
    assert "level       system (forced by framework.compile)" in told
    assert "  5 framework        [## ]  system       1 change" in told
    assert "  9 problem          [   ]  untouched" in told
    assert "  4      accelerator.precision  fp32       bf16   hardware  V2.0 5.1.7" in told


def test_columns_are_aligned_and_long_values_are_cut() -> None:
    lines = text("ewa/smoke").splitlines()
    head = next(line for line in lines if line.startswith("  layer  field"))
    rows = lines[lines.index(head) + 1 :]
    assert all(row[head.index("section") :].startswith("V2.0 ") for row in rows)
    assert all(row[head.index("level") - 2 : head.index("level")] == "  " for row in rows)
    assert max(map(len, rows)) < 160
    assert "[XXX]  at no level  5 changes" in "\n".join(lines)


def test_a_level_that_is_missed_names_the_changes_that_are_in_the_way() -> None:
    report = check_rules("ic/lars-8192", level="system")
    assert report.exit_code == 2
    assert [obstacle.split()[0] for obstacle in report.obstacles] == [
        "hyperparameters.momentum", "hyperparameters.momentum_form",
        "hyperparameters.weight_decay", "hyperparameters.weight_decay_on",
    ]  # fmt: skip
    assert text("ic/lars-8192", level="system").split("qualifies for ")[1].startswith("system: no\n  hyperparameters")
    assert check_rules("ic/lars-8192", level="free").exit_code == 0
    reference = ["hyperparameters.momentum=0.875", "hyperparameters.momentum_form=outside"]
    decay = ["hyperparameters.weight_decay=3.0517578125e-5", "hyperparameters.weight_decay_on=all"]
    assert check_rules("ic/lars-8192", [*reference, *decay], level="hardware").exit_code == 0


def test_a_smoke_recipe_qualifies_for_no_level_and_cannot_be_ranked() -> None:
    document = check_rules("ic/smoke", level="free").document()
    assert (document["level"], document["rankable"], document["qualifies"]) == (None, False, False)
    assert document["forcing"] == ["problem.dataset", "problem.target_quality", "problem.epochs"]


def test_the_document_has_what_others_build_on() -> None:
    document = json.loads(json.dumps(check_rules("ic/reference", ["workload.crop_area=[0.1, 1.0]"]).document()))
    assert {"level", "rankable", "changes"} <= document.keys()
    (change,) = document["changes"]
    why = change.pop("why")
    assert change == {
        "layer": 7, "field": "workload.crop_area", "reference": [0.05, 1.0], "value": [0.1, 1.0], "level": "free",
        "section": "V2.0 5.1.3",
    }  # fmt: skip
    assert why
    assert document["conduct"] is None


def test_a_record_is_judged_by_its_events_too(record: Path) -> None:
    report = check_rules(str(record), level="hardware")
    assert (report.judgement.level, report.reasons, report.obstacles) == ("hardware", (), ())
    told = text(str(record))
    assert told.count(" pass ") == 6
    assert "6 synchronous SGD          pass           V2.0 5.1.4" in told


def test_a_record_of_other_code_qualifies_for_no_level_that_is_asked_for(tmp_path: Path) -> None:
    record = write_campaign(tmp_path / "campaign", trials=1, package_code="ef" * 32) / "trial-01"
    report, told = check_rules(str(record), level="free"), text(str(record))
    said = "its code differs from this installation (by its recipe alone, the level would be hardware)"
    assert report.exit_code == 2
    assert report.obstacles[0].startswith(said)
    assert "level       hardware (from the recipe)\n" in told
    assert said in told


def test_a_record_whose_ranks_drifted_apart_qualifies_for_no_level_that_is_asked_for(record: Path) -> None:
    forget_digests(record)
    report = check_rules(str(record), level="free")
    assert (report.exit_code, report.document()["rankable"]) == (2, False)
    said = "90 epochs from 1 to 90: the event replicas does not show equal weights on all 16 ranks"
    assert report.obstacles[0].startswith(said)
    assert "6 synchronous SGD          FAIL" in text(str(record))


def test_a_campaign_is_judged_by_its_recipe(campaign: Path) -> None:
    report = check_rules(str(campaign), level="hardware")
    assert (report.kind, report.judgement.level, report.conduct, report.exit_code) == ("campaign", "hardware", None, 0)


def test_another_edition_judges_the_same_record_without_what_made_it(record: Path) -> None:
    report = check_rules(str(record), edition="v3.0")
    assert (report.edition, report.judgement.level, report.reasons) == ("v3.0", "hardware", ())
    with pytest.raises(RecipeError, match="edition: expected one of"):
        check_rules(str(record), edition="v1.0")


def test_a_run_that_has_not_ended_cannot_be_ranked_and_qualifies_for_nothing(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path / "campaign", *SHORT, trials=1, failing=[1])
    report = check_rules(str(campaign / "trial-01"), level="hardware")
    assert report.conduct is None
    assert report.obstacles[-1] == "the run is not finished"
    assert report.reasons


def test_a_recipe_that_was_changed_after_the_run_is_refused(record: Path) -> None:
    path = record / "recipe.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("trace_steps = 20", "trace_steps = 0"), encoding="utf-8")
    with pytest.raises(RecordError, match="its hash differs"):
        check_rules(str(record))


def test_what_a_terminal_would_obey_is_not_printed(record: Path) -> None:
    path = record / "recipe.toml"
    layer = '["\\u001b[31mred"]\nx = "\\u001b[2J"\n'
    path.write_text(path.read_text(encoding="utf-8") + layer, encoding="utf-8")
    changed = tables_hash(tomllib.loads(path.read_text(encoding="utf-8")))
    edit_record(record, lambda events: events[0]["value"].update(recipe_hash=changed))
    told = text(str(record))
    assert ("\x1b" in told, r"\x1b[31mred" in told) == (False, True)


def test_a_record_cannot_be_changed_by_set_nor_asked_for_a_level_that_is_none(record: Path) -> None:
    with pytest.raises(UsageError, match=r"--set: .* is a folder of runs; give its recipe instead: .*recipe\.toml"):
        check_rules(str(record), ["os.threads=2"])
    with pytest.raises(UsageError, match="--level: expected one of hardware, system, free, got open"):
        check_rules("ic/reference", level="open")


def test_a_score_shows_the_level_and_what_forces_it(record: Path) -> None:
    assert "level       hardware (from the recipe)" in list(summary_lines(score_record(record)))
    rewrite_recipe(record, "hyperparameters.momentum=0.9", "hyperparameters.weight_decay=1e-4")
    told = list(summary_lines(score_record(record)))
    assert "level       free (the recipe changes hyperparameters.momentum, hyperparameters.weight_decay)" in told


def older(record: Path, **changes: object) -> None:
    """Make the record's result.json that of a version without levels."""
    path = record / "result.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    del written["level_changes"]
    path.write_text(json.dumps(written | {"level": None} | changes), encoding="utf-8")


def test_a_result_of_before_there_were_levels_is_not_a_changed_one(record: Path) -> None:
    older(record)
    assert score_record(record).level == "hardware"
    # Before conduct was judged, it may have had fewer reasons.
    forget_digests(record)
    older(record, rankable=True, reasons=[])
    result = score_record(record)
    assert (result.rankable, result.level) == (False, "hardware")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"flops": 1e18}, "flops"),
        ({"rankable": False, "reasons": ["it was Tuesday"]}, "rankable"),
        ({"rankable": False}, "rankable"),
        ({"level": "free"}, "level"),
    ],
)
def test_an_old_result_that_says_else_is_a_changed_one(record: Path, changes: dict[str, object], key: str) -> None:
    older(record, **changes)
    with pytest.raises(WrongAnswerError, match=f"{key} is "):
        score_record(record)


@pytest.mark.parametrize("changes", [{"level": None}, {"level_changes": ["os.threads"]}, {"reasons": ["none"]}])
def test_a_result_of_today_must_say_the_level_that_is_found(record: Path, changes: dict[str, object]) -> None:
    path = record / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(WrongAnswerError, match=f"{next(iter(changes))} is "):
        score_record(record)


def test_the_page_of_rules_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page, "run: python -m hpcai500.results.rules docs/rules.md"


@pytest.mark.parametrize("edition", ["v2.0", "v3.0"])
def test_the_page_names_every_layer_and_both_benchmarks_fields(edition: str) -> None:
    lines = list(rules_lines(edition))
    # The table of ensembles is of layer 6 too; edition v3.0 has it, and the page of v2.0 tells of it at its end.
    layers = [line.partition(",")[0] for line in lines if line.startswith("### Layer ")]
    assert sorted(line[10] for line in layers) == sorted("9876654321")
    assert layers.count("### Layer 6: ensemble") == 1
    for field in ("label_smoothing", "anchors", "trust_coefficient", "synchronous", "accelerators_per_node"):
        assert sum(line.startswith(f"| `{field}` |") for line in lines) == 1
