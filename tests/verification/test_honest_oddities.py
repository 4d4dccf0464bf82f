"""Honest runs that are odd: gone on with elsewhere, from memory, data looked at in between. They are not refused."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from opened import all_findings, changed, evidence, failed, honest
from written_campaign import edit_journal, edit_record, sum_steps, values

from hpcai500.campaign.journal import NO_EVENTS
from hpcai500.methodology.passes import lost_evaluations
from hpcai500.record import Event
from hpcai500.results.submission.archive import Submission
from hpcai500.results.submission.manifest import Anonymised
from hpcai500.results.verification.context import Context, Question
from hpcai500.results.verification.finding import Finding, fail, folded, note
from hpcai500.results.verification.verify import RECORD_CHECKS


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    return honest(tmp_path_factory.mktemp("odd"))


def of_record(context: Context, name: str) -> list[Finding]:
    """What its own events say against a record."""
    record, result = context.done[name], context.asked.results[name]
    found = [one for check in RECORD_CHECKS for one in check(record, result, context.asked.rules)]
    return [one for one in found if one.severity in ("fail", "warning")]


def halve(events: list[Event]) -> None:
    """The last epoch was trained by one node alone, after the other one was lost."""
    number = next(n for n, event in enumerate(events) if event["key"] == "epoch_start" and event["value"]["epoch"] == 3)
    before, rest = events[:number], events[number:]
    start = next(n for n, event in enumerate(before) if event["key"] == "run_start")
    head = [event for event in copy.deepcopy(before[: start + 1]) if event["key"] != "system_differences"]
    for value in values(head, "system"):
        value["nodes"] = value["nodes"][:1]
    for value in values(head, "ceilings"):
        value.update(ranks=8, flops=value["flops"] / 2, slowest_host="node-1")
    world = head[-1]["value"]
    world.update(world_size=8, nodes=1, hosts=["node-1"])
    world.update(epoch=3, step=0, after="a kill or a crash", torn_bytes=0)
    head[-1]["key"] = "run_resume"
    done = values(rest, "epoch_stop")[0]
    _move(head, before[-1]["clock_s"] + 20 - head[0]["clock_s"])
    _move(rest, head[-1]["clock_s"] + 0.001 - rest[0]["clock_s"])
    _move(rest[1:], done["seconds"])
    for name in [name for name in done if name.endswith("seconds")]:
        done[name] *= 2
    values(rest, "replicas")[0]["ranks"] = 8
    for told in (*values(rest, "steps"), *values(rest, "communication")):
        told["ranks"] = told["ranks"][:8]
        for part in (told, *told["ranks"]):
            part["steps"] = done["steps"]
    sum_steps(rest, rest)
    events[:] = [*before, *head, *rest]


def _move(events: list[Event], seconds: float) -> None:
    for event in events:
        event["clock_s"] = round(event["clock_s"] + seconds, 6)
        event["time_ms"] += round(1000 * seconds)


def test_a_run_that_went_on_with_half_its_ranks_is_not_ranked_and_not_refused(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path, lambda opened: edit_record(opened / "campaign/trial-03", halve))
    refusing = failed(all_findings(context))
    # The journal of this test tells of one process, and of an end before the run's.
    assert refusing <= {"dates"}, refusing
    assert of_record(context, "trial-03") == []
    standing = context.asked.standing
    assert standing
    assert "resumed in another configuration: ranks 16, then 8" in " ".join(standing.reasons)


def test_whoever_looked_at_the_content_of_the_data_in_between_changed_nothing(base: Submission, tmp_path: Path) -> None:
    def forget(opened: Path) -> None:
        edit_record(
            opened / "campaign/trial-01", lambda events: values(events, "dataset")[0].update(content_fingerprint=None)
        )

    assert not failed(all_findings(changed(base, tmp_path / "a", forget)))

    def other(opened: Path) -> None:
        edit_record(
            opened / "campaign/trial-01", lambda events: values(events, "dataset")[0].update(content_fingerprint="0")
        )

    assert "several fingerprints" in evidence(all_findings(changed(base, tmp_path / "b", other)), "same-data")


def test_batches_that_were_repeated_from_memory_are_no_fraud(tmp_path: Path) -> None:
    base = honest(tmp_path, "accelerator.loader=memory")

    def repeat(opened: Path) -> None:
        for record in (opened / "campaign").glob("trial-*"):
            edit_record(record, _repeat)

    context = changed(base, tmp_path / "changed", repeat)
    assert of_record(context, "trial-01") == []
    assert any("loader is memory" in reason for reason in context.asked.results["trial-01"].reasons)


def _repeat(events: list[Event]) -> None:
    for value in values(events, "epoch_stop"):
        value["coverage"] = f"{value['samples']}-{'0' * 32}"


def test_what_is_missing_at_the_very_end_may_be_a_kill(base: Submission, tmp_path: Path) -> None:
    def cut(opened: Path) -> None:
        edit_record(opened / "campaign/trial-01", lambda events: events.pop())

    found = of_record(changed(base, tmp_path, cut), "trial-01")
    assert [(one.severity, one.name) for one in found] == [("warning", "evidence")]


def test_an_anonymised_bundle_is_compared_by_what_it_was_before(base: Submission, tmp_path: Path) -> None:
    before = Anonymised(original_campaign="a" * 64, hosts=2, original_heads={})
    for registered, severity in (("a" * 64, "warning"), (base.manifest.campaign, "fail")):
        context = changed(base, tmp_path / severity, question=Question(registered=registered), anonymised=before)
        assert "a" * 64 in evidence(all_findings(context), "registered", severity)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["all right", "all right"], ["2 runs: all right"]),
        (["-0.001 s over 32 s", "+0.002 s over 30 s"], ["2 runs: -0.001 to +0.002 s over 30 to 32 s"]),
        (["1e+15 of 9.6e+15", "2e+15 of 9.6e+15"], ["2 runs: 1e+15 to 2e+15 of 9.6e+15"]),
        (["version 0.1.0", "version 0.2.0"], ["a: version 0.1.0", "b: version 0.2.0"]),
        (["one word", "another"], ["a: one word", "b: another"]),
    ],
)
def test_notes_of_many_runs_are_one(texts: list[str], told: list[str]) -> None:
    found = {name: [note("clock", text)] for name, text in zip("ab", texts, strict=True)}
    assert [one.evidence for one in folded(found)] == told


def test_what_is_against_a_run_stays_its_own() -> None:
    found: Mapping[str, list[Finding]] = {name: [fail("clock", "wrong"), note("clock", "right")] for name in "ab"}
    assert [one.evidence for one in folded(found)] == ["a: wrong", "b: wrong", "2 runs: right"]


def test_evaluations_that_a_restart_went_back_over_are_lost() -> None:
    told = [("eval_accuracy", 1), ("eval_accuracy", 2), ("run_resume", 2), ("eval_accuracy", 2), ("run_resume", 3)]
    events = [{"key": key, "seq": seq, "value": {"epoch": epoch}} for seq, (key, epoch) in enumerate(told)]
    assert [event["seq"] for event in lost_evaluations(events)] == [1]


def test_an_attempt_that_was_killed_before_its_first_event_is_not_missed(tmp_path: Path) -> None:
    """Its folder was empty, so that no bundle has it; the journal says that it had no event."""
    submission = honest(tmp_path, failing=(2,))

    def kill_early(opened: Path) -> None:
        shutil.rmtree(opened / "campaign" / "trial-02")
        why = "it ended before its first event"
        edit_journal(
            opened / "campaign", lambda events: values(events, "attempt_stop")[1].update(head=NO_EVENTS, reason=why)
        )

    found = all_findings(changed(submission, tmp_path / "killed", kill_early))
    assert failed(found) == failed(all_findings(changed(submission, tmp_path / "as-it-was")))
    assert f"trial-02: failed before it had a record: {'it ended before its first event'}" in evidence(
        found, "attempts", "warning"
    )
