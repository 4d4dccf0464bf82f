"""Journal, attempts, seeds, recipes, dates: one of them was changed, and all hashes were made to fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opened import all_findings, changed, evidence, failed, honest
from written_campaign import edit_journal, edit_record, rewrite_recipe, values

from hpcai500.record import line_hash
from hpcai500.results.submission.archive import Submission
from hpcai500.results.verification.context import Question

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials; the second one's first attempt lost a node."""
    return honest(tmp_path_factory.mktemp("honest"), failing=(2,))


def _record(name: str, change: Callable[[Events], object]) -> Callable[[Path], None]:
    return lambda opened: edit_record(opened / "campaign" / name, change)


def _journal(change: Callable[[Events], object]) -> Callable[[Path], None]:
    return lambda opened: edit_journal(opened / "campaign", change)


def _shift(name: str, seconds: float, *, clock: bool = True) -> Callable[[Path], None]:
    def change(events: Events) -> None:
        for event in events:
            event["time_ms"] += round(1000 * seconds)
            event["clock_s"] += seconds if clock else 0

    return _record(name, change)


def test_an_honest_campaign_has_nothing_against_it(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path))
    assert not failed(found)
    noted = {finding.name for finding in found if finding.severity == "note"}
    assert noted >= {"hash-chain", "attempts", "journal-binding", "seeds", "recipes", "dates", "overlap", "clocks"}


def test_a_line_that_was_edited_breaks_the_chain(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        path = opened / "campaign/trial-01/events.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"epoch":2', b'"epoch":3', 1))

    found = all_findings(changed(base, tmp_path, change))
    assert "the chain is broken here" in evidence(found, "hash-chain")


def test_a_line_with_one_key_twice_is_no_line_of_ours(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        path = opened / "campaign/trial-01/events.jsonl"
        *lines, last = path.read_bytes().splitlines()
        doubled = last.replace(b'"value":', b'"value":null,"value":', 1)
        path.write_bytes(b"".join(line + b"\n" for line in (*lines, doubled)))
        (path.parent / "DONE").write_text(line_hash(doubled) + "\n")

    found = all_findings(changed(base, tmp_path, change))
    assert "no line as hpcai500 writes it" in evidence(found, "hash-chain")


def test_a_record_that_is_taken_out_is_missed(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, lambda opened: shutil.rmtree(opened / "campaign/trial-02")))
    assert "trial-02: the journal names it, and it is not here" in evidence(found, "attempts")


def test_an_attempt_that_is_taken_out_of_the_journal_leaves_its_number(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        shutil.rmtree(opened / "campaign/trial-02")

        def drop(events: Events) -> None:
            events[:] = [
                event for event in events if (event["value"].get("trial"), event["value"].get("attempt")) != (2, 1)
            ]

        edit_journal(opened / "campaign", drop)

    found = all_findings(changed(base, tmp_path, change))
    assert "trial 2 has the attempts [2]; expected 1, 2, 3 …: one was taken out" in evidence(found, "attempts")


def test_a_record_that_the_journal_does_not_know_is_foreign(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        shutil.copytree(opened / "campaign/trial-01", opened / "campaign/trial-09")

    assert "trial-09" in evidence(all_findings(changed(base, tmp_path, change)), "attempts")


def test_a_record_of_another_attempt_is_not_the_one_that_the_journal_vouches_for(
    base: Submission, tmp_path: Path
) -> None:
    def change(opened: Path) -> None:
        shutil.rmtree(opened / "campaign/trial-03")
        shutil.copytree(opened / "campaign/trial-01", opened / "campaign/trial-03")

    found = all_findings(changed(base, tmp_path, change))
    assert failed(found) >= {"journal-binding", "seeds", "copied-runs", "overlap"}


def test_a_failed_run_cannot_be_told_as_done(base: Submission, tmp_path: Path) -> None:
    def change(events: Events) -> None:
        stop = next(value for value in values(events, "attempt_stop") if value["status"] == "failed")
        stop["status"] = "done"

    found = all_findings(changed(base, tmp_path, _journal(change)))
    assert "done by the journal, error by its record" in evidence(found, "journal-binding")


def test_the_registered_identity_is_compared(base: Submission, tmp_path: Path) -> None:
    right = Question(registered=base.manifest.campaign)
    assert not failed(all_findings(changed(base, tmp_path / "a", question=right)))
    wrong = changed(base, tmp_path / "b", question=Question(registered="0" * 64))
    assert "was registered, and this campaign is" in evidence(all_findings(wrong), "registered")
    unasked = all_findings(changed(base, tmp_path / "c"))
    assert base.manifest.campaign in evidence(unasked, "registered", "skipped")


@pytest.mark.parametrize(
    ("seeds", "told"),
    [((1, 1, 3), "the seed 1 2 times"), ((1, 5, 9), "they were picked"), ((2, 3, 4), "they were picked")],
)
def test_seeds_that_are_not_those_of_a_plan_are_seen(
    base: Submission, tmp_path: Path, seeds: tuple[int, ...], told: str
) -> None:
    def change(events: Events) -> None:
        for trial, seed in zip(events[0]["value"]["trials"], seeds, strict=True):
            trial["seed"] = seed

    assert told in evidence(all_findings(changed(base, tmp_path, _journal(change))), "seeds")


def test_a_record_with_another_seed_than_planned_is_seen(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        rewrite_recipe(opened / "campaign/trial-03", "hyperparameters.seed=8")

    found = all_findings(changed(base, tmp_path, change))
    assert "trial-03: ran with the seed 8; planned was 3" in evidence(found, "seeds")
    assert "recipes" not in failed(found)


def test_a_record_of_another_recipe_is_seen(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        rewrite_recipe(opened / "campaign/trial-03", "hyperparameters.momentum=0.9")

    found = all_findings(changed(base, tmp_path, change))
    assert "hyperparameters.momentum is 0.9" in evidence(found, "recipes")


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_record_outside_of_its_journal_lines_is_seen(base: Submission, tmp_path: Path, seconds: float) -> None:
    assert "the journal says so" in evidence(
        all_findings(changed(base, tmp_path, _shift("trial-03", seconds))), "dates"
    )


def test_two_trials_at_once_on_one_node_are_seen(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        campaign = opened / "campaign"
        begun = {}
        for name in ("trial-01", "trial-03"):
            with (campaign / name / "events.jsonl").open() as stream:
                begun[name] = json.loads(stream.readline())["time_ms"]
        _shift("trial-03", (begun["trial-01"] - begun["trial-03"]) / 1000 + 10)(opened)

    found = all_findings(changed(base, tmp_path, change))
    assert "node-1: trial-01 ran until" in evidence(found, "overlap")


def test_the_future_is_seen(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, created="2024-01-01T00:00:00Z"))
    assert "packed at 2024-01-01T00:00:00Z; the last event is of" in evidence(found, "dates")
    later = all_findings(changed(base, tmp_path / "later", _shift("trial-03", 50 * 365 * 86400.0)))
    assert "trial-03: ends in the future" in evidence(later, "dates")
    odd = all_findings(changed(base, tmp_path / "odd", created="soon"))
    assert "expected a time in UTC" in evidence(odd, "dates")


def test_a_machine_cannot_have_been_started_twice_by_one_start(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, _shift("trial-03", 3600.0, clock=False)))
    assert "one of them was moved in time" in evidence(found, "clocks")


@pytest.mark.parametrize(
    ("key", "field", "what"),
    [("epoch_stop", "loss", "losses"), ("epoch_stop", "seconds", "times"), ("replicas", "digest", "weights")],
)
def test_a_log_that_was_pasted_as_another_trial_is_seen(
    base: Submission, tmp_path: Path, key: str, field: str, what: str
) -> None:
    told: list[object] = []

    def take(events: Events) -> None:
        told.extend(value[field] for value in values(events, key))

    def give(events: Events) -> None:
        for value, one in zip(values(events, key), told, strict=True):
            value[field] = one

    def change(opened: Path) -> None:
        _record("trial-01", take)(opened)
        _record("trial-03", give)(opened)

    found = all_findings(changed(base, tmp_path, change))
    assert f"trial-03 and trial-01: 3 of 3 {what} of epochs are the same" in evidence(found, "copied-runs")


def test_times_that_were_scaled_are_seen(tmp_path: Path) -> None:
    base = honest(tmp_path / "base", "problem.epochs=8", trials=2)
    told: list[float] = []

    def take(events: Events) -> None:
        told.extend(value["seconds"] for value in values(events, "epoch_stop"))

    def give(events: Events) -> None:
        for value, one in zip(values(events, "epoch_stop"), told, strict=True):
            value["seconds"] = round(1.01 * one + 0.2, 6)

    def change(opened: Path) -> None:
        _record("trial-01", take)(opened)
        _record("trial-02", give)(opened)

    assert not failed(all_findings(changed(base, tmp_path / "a")))
    found = all_findings(changed(base, tmp_path / "b", change))
    assert "the same but for a scale" in evidence(found, "copied-runs")
