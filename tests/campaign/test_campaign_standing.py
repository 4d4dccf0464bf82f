"""How an attempt has ended, as its record tells; whether a campaign may be ranked, and what is against it, by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_journal, edit_record, rewrite_recipe, values, write_campaign

from hpcai500.campaign.journal import JOURNAL, NO_EVENTS, read_campaign
from hpcai500.campaign.standing import Outcome, Standing, ending, read_outcome, record_head, standing
from hpcai500.errors import RecipeError
from hpcai500.recipe import rulebook
from hpcai500.record import Event

Change = Callable[[list[Event]], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs of the weather's reference recipe, where five are wanted; nobody ran them."""
    return write_campaign(tmp_path_factory.mktemp("honest") / "c", recipe="ewa/reference", trials=6)


@pytest.fixture
def campaign(honest: Path, tmp_path: Path) -> Path:
    return copy_campaign(honest, tmp_path / "c")


def judged(campaign: Path) -> Standing:
    return standing(read_campaign(campaign))


def reasons(campaign: Path) -> str:
    """The reasons, a line each, without the folder's own name."""
    found = judged(campaign)
    assert found.rankable == (not found.reasons)
    return "\n".join(found.reasons).replace(f"{campaign}/", "")


def test_an_honest_campaign_is_rankable_and_shows_all_its_runs(honest: Path) -> None:
    found = judged(honest)
    assert (found.rankable, found.reasons, found.least_runs) == (True, (), 5)
    assert [(row.attempt.trial, row.seed, row.epochs, row.target_epochs) for row in found.rows] == [
        (number, number, 50, 50) for number in range(1, 7)
    ]
    assert all(row.vflops and row.result and row.seconds == row.result.seconds for row in found.rows)
    assert [row.quality for row in found.rows] == [result.quality.achieved for result in found.results]


def test_fewer_runs_than_the_edition_requires_and_planned_runs_that_are_missing(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", recipe="ewa/reference", trials=5, done=3)
    assert reasons(folder).splitlines() == [
        "3 finished runs; edition v2.0 requires at least 5",
        "trials 4, 5 were planned but never attempted",
    ]


def test_under_another_edition_its_rules_count(honest: Path) -> None:
    with pytest.raises(RecipeError, match="edition"):
        standing(read_campaign(honest), "v0.1")


def test_a_run_that_the_journal_began_and_whose_folder_is_missing(campaign: Path) -> None:
    shutil.rmtree(campaign / "trial-02")
    shutil.rmtree(campaign / "trial-05")
    text = reasons(campaign)
    assert "trial 2, attempt 1: trial-02: its folder is missing: restore it; without it this campaign cannot be" in text
    # What cannot be shown any more is not counted in one sentence and left out of the next.
    assert "4 finished runs; edition v2.0 requires at least 5" in text
    assert [row.status for row in judged(campaign).rows] == ["done", "missing", "done", "done", "missing", "done"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda told: json.dumps(told | {"vflops": 1e18}),
            r"trial-02/result.json says vflops is 1e\+18; its events give",
        ),
        (lambda told: json.dumps(told | {"vflops": 1, "flops": 2}), r"flops is 2; .* \(2 keys differ\)"),
        (lambda told: "[1]", "result.json: expected a JSON object, got list"),
        (lambda told: "[" * 100_000, "result.json|recursion"),
    ],
)
def test_a_result_that_its_events_do_not_give(
    campaign: Path, change: Callable[[dict[str, Any]], str], reason: str
) -> None:
    path = campaign / "trial-02" / "result.json"
    path.write_text(change(json.loads(path.read_text())))
    (line,) = reasons(campaign).splitlines()
    assert re.match(f"trial 2, attempt 1: .*({reason})", line)


def test_a_result_that_was_taken_out(campaign: Path) -> None:
    (campaign / "trial-02" / "result.json").unlink()
    assert reasons(campaign) == "trial 2, attempt 1: trial-02/result.json is missing"


def test_a_run_that_the_journal_does_not_know(campaign: Path) -> None:
    shutil.copytree(campaign / "trial-02", campaign / "trial-02-better")
    shutil.copytree(campaign / "trial-03", campaign / "elsewhere")
    (campaign / "report").mkdir()
    assert reasons(campaign).splitlines() == [
        "elsewhere: a run in the campaign's folder that is not in its journal",
        "trial-02-better: a run in the campaign's folder that is not in its journal",
    ]


def test_a_run_of_another_campaign(campaign: Path, tmp_path: Path) -> None:
    other = write_campaign(tmp_path / "o", recipe="ewa/reference", trials=3, images_per_second=700.0)
    shutil.rmtree(campaign / "trial-03")
    shutil.copytree(other / "trial-03", campaign / "trial-03")
    text = reasons(campaign)
    assert "trial 3, attempt 1: trial-03: its last event is not the one in the journal" in text
    assert "trial 3, attempt 1: trial-03: start 1 of its record names another id and head" in text


def test_runs_that_were_exchanged(campaign: Path) -> None:
    (campaign / "trial-02").rename(campaign / "trial-x")
    (campaign / "trial-03").rename(campaign / "trial-02")
    (campaign / "trial-x").rename(campaign / "trial-03")
    text = reasons(campaign)
    assert "trial 2, attempt 1: trial-02: start 1 of its record names another trial and head" in text
    assert "trial 2, attempt 1: ran with the seed 3; the plan has 2" in text


def test_a_run_that_went_on_after_the_journal_s_last_word(campaign: Path) -> None:
    journal = (campaign / JOURNAL).read_bytes()
    edit_record(campaign / "trial-04", lambda events: events.append({**events[-1], "key": "trace", "value": None}))
    (campaign / JOURNAL).write_bytes(journal)
    text = reasons(campaign)
    assert "trial 4, attempt 1: trial-04: its last event is not the one in the journal" in text


def test_a_run_that_names_no_campaign(campaign: Path) -> None:
    edit_record(campaign / "trial-01", lambda events: values(events, "init_start")[0].pop("campaign"), rechain=False)
    text = reasons(campaign)
    assert "trial 1, attempt 1: trial-01/events.jsonl:2: the chain is broken here" in text


def test_a_recipe_that_is_not_the_plan_s(campaign: Path) -> None:
    rewrite_recipe(campaign / "trial-02", "os.threads=3")
    text = reasons(campaign)
    assert "trial 2, attempt 1: its recipe differs from the campaign's in os.threads" in text
    assert "trial 2, attempt 1: trial-02 differs from trial-01 in os.threads" in text


def test_a_seed_that_is_used_twice(campaign: Path) -> None:
    rewrite_recipe(campaign / "trial-02", "hyperparameters.seed=1")
    text = reasons(campaign)
    assert "trial 2, attempt 1: ran with the seed 1; the plan has 2" in text
    assert "trial 2, attempt 1: has hyperparameters.seed 1, like trial 1, attempt 1" in text


def _again(events: list[Event]) -> None:
    for event in events:
        if event["key"] != "campaign_start" and event["value"]["trial"] == 6:
            event["value"].update(trial=5, attempt=2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda events: events[0]["value"]["trials"][1].update(seed=1),
            ["seed 1 is planned 2 times: each run needs its own"],
        ),
        (lambda events: events[0]["value"]["trials"].pop(), ["trial 6, attempt 1: no such trial was planned"]),
        (
            lambda events: events.pop(),
            ["trial 6, attempt 1: the journal has no end of it: it is running, or was killed"],
        ),
        (
            lambda events: events[-1]["value"].update(status="failed"),
            [
                "trial 6, attempt 1: failed by the journal, done by its record",
                "trial 6, attempt 1: the last attempt at this trial is not complete",
            ],
        ),
        (
            _again,
            [
                "trial 5, attempt 2: started although attempt 1 was complete",
                "trial 6 was planned but never attempted",
            ],
        ),
        (
            lambda events: [event["value"].update(attempt=3) for event in events[-2:]],
            ["trial 6: its attempts are numbered 3"],
        ),
        (
            lambda events: events[-2]["value"].update(record="trial-05"),
            [
                "trial 6, attempt 1: trial-05: named by 2 attempts",
                "trial-06: a run in the campaign's folder that is not in its journal",
            ],
        ),
    ],
    ids=[
        "one seed for two runs", "a trial that nobody planned", "a run without an end",
        "a finished run that it calls failed", "a trial run again after it was done", "attempts counted wrongly",
        "two attempts with one record",
    ],
)  # fmt: skip
def test_a_journal_that_cannot_be(campaign: Path, change: Change, told: list[str]) -> None:
    edit_journal(campaign, change)
    text = reasons(campaign)
    assert [reason for reason in told if reason not in text] == []
    assert "5 finished runs" not in text


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [
        ("run_start", lambda value: value.update(world_size=8), "ran on 8 ranks, trial-01 on 16 ranks"),
        ("run_start", lambda value: value.update(library="Gloo"), "ran on Gloo, trial-01 on NCCL"),
        ("dataset", lambda value: value.update(fingerprint="0" * 64), "trained on other data than trial-01"),
        (
            "system",
            lambda value: value["nodes"][0]["accelerators"][0].update(name="NVIDIA B200"),
            "ran on another system than trial-01: accelerators differ",
        ),
    ],
    ids=["ranks", "library", "data", "system"],
)
def test_a_run_that_was_not_made_as_the_others(
    campaign: Path, key: str, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    edit_record(campaign / "trial-02", lambda events: change(values(events, key)[0]))
    assert f"trial 2, attempt 1: trial-02 {reason}" in reasons(campaign)


def test_code_that_is_not_the_plan_s_is_said_once_for_all(campaign: Path) -> None:
    edit_journal(campaign, lambda events: events[0]["value"].update(code_sha256="c0de" * 16))
    (line,) = reasons(campaign).splitlines()
    assert re.fullmatch("all 6 finished runs: ran other code of hpcai500 than planned .*not c0dec0dec0de….", line)


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """A campaign whose third trial lost a node after its first evaluation, and was begun anew."""
    return write_campaign(tmp_path / "c", recipe="ewa/reference", trials=5, failing=(3,))


def test_a_run_that_was_given_up_after_it_was_seen_how_good_it_is(repeated: Path) -> None:
    (line,) = reasons(repeated).splitlines()
    assert re.fullmatch(
        r"trial 3, attempt 1: given up after epoch 1 with map50 0\.\d{4} and started again instead of resumed: .*",
        line,
    )
    assert [(row.attempt.name, row.epochs) for row in judged(repeated).rows[2:4]] == [
        ("trial 3, attempt 1", 1), ("trial 3, attempt 2", 50),
    ]  # fmt: skip


def test_that_it_was_resumed_from_its_beginning_first_does_not_hide_it(repeated: Path) -> None:
    def forget(events: list[Event]) -> None:
        value = {**values(events, "init_start")[0]}
        events[-1:] = [{**events[-1], "key": "init_start", "value": value}]
        events.append({**events[-1], "key": "run_resume", "value": {"epoch": 1, "step": 0}})

    edit_record(repeated / "trial-03", forget)
    assert judged(repeated).rows[2].epochs == 0
    assert "trial 3, attempt 1: given up after epoch 1" in reasons(repeated)


def test_a_run_that_failed_before_its_first_evaluation_is_shown_and_allowed(repeated: Path) -> None:
    def earlier(events: list[Event]) -> None:
        first = next(place for place, event in enumerate(events) if event["key"] == "eval_start")
        events[first:-1] = []

    edit_record(repeated / "trial-03", earlier)
    found = judged(repeated)
    assert (found.rankable, found.reasons) == (True, ())
    assert [row.attempt.status for row in found.rows] == ["done", "done", "failed", "done", "done", "done"]


def test_a_run_that_diverged_is_a_result_of_the_recipe(repeated: Path) -> None:
    def diverge(events: list[Event]) -> None:
        value = {"epoch": 2, "step": 3, "rank": 0, "what": "the loss is nan"}
        events.insert(-1, {**events[-1], "key": "diverged", "value": value})

    edit_record(repeated / "trial-03", diverge)
    assert reasons(repeated) == (
        "trial 3, attempt 1: diverged (the loss is nan at epoch 2, step 3), which is a result of this recipe"
    )


def test_runs_that_no_rule_allows_are_said_once_for_all(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", *SHORT, recipe="ewa/reference", trials=5)
    assert reasons(folder).splitlines() == ["all 5 finished runs: problem.epochs is 3; edition v2.0 fixes 50"]


@pytest.mark.parametrize("odd", [None, 3, "text", [], {"epoch": []}, {"epoch": 1, "value": "high"}])
def test_events_of_any_shape_are_a_reason_and_no_crash(campaign: Path, odd: object) -> None:
    def spoil(events: list[Event]) -> None:
        next(event for event in reversed(events) if event["key"] == "eval_accuracy")["value"] = odd

    edit_record(campaign / "trial-02", spoil)
    assert re.search("trial 2, attempt 1: .*(malformed|there is no score)", reasons(campaign))


@pytest.mark.parametrize("key", ["init_start", "run_start", "dataset", "system", "flops", "run_stop"])
@pytest.mark.parametrize("odd", [None, [1], {"nodes": 7, "installation": 1}])
def test_no_event_of_any_shape_is_a_crash(campaign: Path, key: str, odd: object) -> None:
    def spoil(events: list[Event]) -> None:
        next(event for event in events if event["key"] == key)["value"] = odd

    edit_record(campaign / "trial-02", spoil, rechain=key != "init_start")
    assert "trial 2, attempt 1: " in reasons(campaign) or key == "run_stop"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign whose only attempt lost a node in its second epoch."""
    return write_campaign(tmp_path / "c", recipe="ewa/reference", trials=1, failing=(1,), done=1)


def outcome(folder: Path) -> Outcome:
    campaign = read_campaign(folder)
    return read_outcome(campaign, campaign.attempts[0], rulebook("v2.0", "ewa"))


def killed(folder: Path, *last: Event) -> None:
    """Take its last word from the record, as kill -9 does."""
    (folder / "trial-01" / "ERROR").unlink()

    def cut(events: list[Event]) -> None:
        events[-1:] = [{**events[-1], **event} for event in last]

    edit_record(folder / "trial-01", cut)
    for written in ("DONE", "result.json"):
        (folder / "trial-01" / written).unlink(missing_ok=True)


def test_a_failed_run_says_why_and_can_be_gone_on_with(folder: Path) -> None:
    read = outcome(folder)
    end = ending(read)
    assert (end.status, end.head, end.reason) == ("failed", read.attempt.head, "node-2 was lost")
    assert (read.epochs, read.latest and read.latest.epoch, read.can_go_on, read.result) == (1, 1, True, None)


def test_a_killed_run_has_stopped_if_it_can_be_gone_on_with(folder: Path) -> None:
    killed(folder)
    read = outcome(folder)
    assert (ending(read).status, read.can_go_on) == ("stopped", True)
    assert read.seconds
    assert read.seconds > 0


def test_a_run_that_was_killed_when_it_had_diverged_has_failed(folder: Path) -> None:
    killed(folder, {"key": "diverged", "value": {"epoch": 2, "step": 1, "what": "the loss is nan"}})
    read = outcome(folder)
    assert (ending(read).status, read.can_go_on) == ("failed", False)
    assert read.diverged == "the loss is nan at epoch 2, step 1"


def test_the_head_is_the_last_whole_line_of_a_log_that_a_crash_has_torn(folder: Path) -> None:
    whole = record_head(folder / "trial-01")
    with (folder / "trial-01" / "events.jsonl").open("ab") as stream:
        stream.write(b'{"prev":"12')
    assert record_head(folder / "trial-01") == whole == outcome(folder).head


def test_a_folder_without_events_has_the_head_of_none_and_no_folder_has_no_head(folder: Path) -> None:
    log = folder / "trial-01" / "events.jsonl"
    log.write_bytes(b"")
    assert record_head(folder / "trial-01") == NO_EVENTS
    log.unlink()
    assert ending(outcome(folder)).reason == "it ended before its first event"
    assert record_head(folder / "gone") is None


def test_a_log_that_cannot_be_read_is_an_error_of_the_attempt(folder: Path) -> None:
    log = folder / "trial-01" / "events.jsonl"
    log.unlink()
    log.mkdir()
    read = outcome(folder)
    assert read.record is None
    assert read.error is not None
    assert read.error.endswith("events.jsonl: cannot be read: Is a directory")
    assert ending(replace(read, head="a" * 64)).status == "failed"
