"""Collecting where something is in the way: a changed or refused member, somebody else at it, a read-only folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from written_campaign import edit_record, values
from written_ensemble import Made, made_up_vote, write_ensemble

from hpcai500.cli.ensemble import report_collected
from hpcai500.ensemble.collect import Collected, CollectOrder, CollectReport, collect_ensemble, read_members
from hpcai500.ensemble.counting import Member, RefusedError, Voting
from hpcai500.ensemble.journal import Ensemble, append
from hpcai500.ensemble.members import Failure, begun_line, note_failure
from hpcai500.errors import RecordError, RunError
from hpcai500.recipe import rulebook

FILES = ("vote.json", "result.json", "DONE", "quality.svg", "training.png")


def collect(folder: Path, *, accept: bool = False) -> Collected:
    return collect_ensemble(CollectOrder(folder, accept), voting=made_up_vote)


def said(collected: Collected, *, accepted: bool = False) -> str:
    return "\n".join(CollectReport(collected, accepted).lines())


def test_a_member_whose_predictions_were_changed_is_missing_with_what_to_do(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made(), Made()])
    (ensemble.folder(1) / "trial-01/predictions/out-of-bag.npz").write_bytes(b"something else")
    report = CollectReport(collect(ensemble.path))
    assert (report.exit_code, report.verdict) == (1, "INVALID")
    (missing,) = collect(ensemble.path, accept=True).result.missing
    assert "out-of-bag.npz: was changed: its hash is not the one that its record names" in missing.reason
    assert missing.reason.endswith("00001 away, and it is run anew")
    assert collect(ensemble.path, accept=True).result.quality.achieved == pytest.approx(0.71)


def test_a_member_that_failed_before_it_began_is_missing_with_its_last_words(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), None])
    folder = ensemble.folder(1)
    folder.mkdir(parents=True, exist_ok=True)
    note_failure(folder, Failure("node7", 69), 0)
    (folder / "output.txt").write_text(f"{begun_line(1, '12_1', 'node7', 0)}hpcai500: error: /scratch: disk full\n")
    (missing,) = collect(ensemble.path).result.missing
    assert missing.reason == (
        f"has not begun; its job failed on node7 with exit code 69, see {folder}/output.txt; /scratch: disk full"
    )


def refusing(number: int) -> Voting:
    """A vote that refuses what one member says."""

    def vote(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
        if number in [one.number for one in members]:
            raise RefusedError(f"the vote failed: member {number}: it lies", number, "it lies")
        made_up_vote(ensemble, members, out)

    return vote


def test_a_member_that_the_vote_refuses_is_missing_and_the_others_vote_where_that_is_accepted(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made(), Made()])
    strict = collect_ensemble(CollectOrder(ensemble.path), voting=refusing(1))
    assert CollectReport(strict).exit_code == 1
    assert strict.result.missing[0].member == 1
    assert strict.result.missing[0].reason.startswith("members/00001/trial-01: it lies: move ")
    assert not (ensemble.path / "vote.json").exists()
    accepted = collect_ensemble(CollectOrder(ensemble.path, accept_incomplete=True), voting=refusing(1))
    assert [one.member for one in accepted.result.member_results] == [0, 2]
    assert accepted.result.quality.achieved == pytest.approx(0.71)


def test_who_refuses_nobody_that_has_voted_has_failed(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made()])

    def refuse(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
        raise RefusedError("the vote failed: member 9: it lies", 9, "it lies")

    with pytest.raises(RunError, match="member 9"):
        collect_ensemble(CollectOrder(ensemble.path), voting=refuse)


def test_a_member_that_was_collected_and_is_gone_is_told_as_gone(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made(), None])
    head = next(one.head for one in read_members(ensemble, rulebook("v3.0", "ic"))[0] if one.number == 1)
    collect(ensemble.path)
    ensemble.folder(1).rename(tmp_path / "aside")
    collected = collect(ensemble.path)
    reasons = {one.member: one.reason for one in collected.result.missing}
    assert reasons[1].startswith(f"was collected with the record {head[:12]}…, and its folder is gone: restore ")
    assert reasons[2] == "has not begun"
    text = said(collected)
    assert f"next        hpcai500 ensemble run {ensemble.path} (or submit {ensemble.path}), for member 2; then" in text
    assert "            member 1: what is said there; then collect again" in text


def test_advice_is_to_run_only_whom_that_helps(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e f", [Made(), Made(outcome="failed"), Made(predicts=False)])

    def diverge(events: list[Any]) -> None:
        told = {"what": "the loss", "epoch": 1, "step": 3, "rank": 0}
        events.insert(-1, {**events[-1], "key": "diverged", "value": told})

    edit_record(ensemble.folder(1) / "trial-01", diverge)
    text = said(collect(ensemble.path))
    assert "member 1: diverged: the loss at epoch 1, step 3: that is final: no other attempt takes it back" in text
    assert "member 1: diverged, which is final: this ensemble will not be complete" in text
    assert "next        member 2: what is said there" in text
    assert "ensemble run" not in text
    assert f"or without them, never rankable: hpcai500 ensemble collect '{ensemble.path}' --accept-incomplete" in text
    assert "--accept-incomplete" not in said(collect(ensemble.path, accept=True), accepted=True)


def test_every_document_tells_the_verdict_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made()])
    document = CollectReport(collect(ensemble.path)).document()
    assert (document["verdict"], document["exit_code"]) == ("FAIL", 2)
    on_disk = json.loads((ensemble.path / "result.json").read_text())
    assert not {"verdict", "exit_code"} & on_disk.keys()
    assert on_disk.items() <= document.items()


def test_who_collects_waits_for_who_collects_already(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made()])
    told: list[str] = []
    begun, waiting = threading.Event(), threading.Event()

    def slow(ensemble: Ensemble, members: Sequence[Member], out: Path) -> None:
        begun.set()
        assert waiting.wait(60)
        made_up_vote(ensemble, members, out)

    def say(line: str) -> None:
        told.append(line)
        waiting.set()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(collect_ensemble, CollectOrder(ensemble.path), voting=slow)
        assert begun.wait(60)
        second = collect_ensemble(CollectOrder(ensemble.path), voting=made_up_vote, say=say)
        assert first.result().result == second.result
    assert told == [f"{ensemble.path}: is being collected by another process: waiting for its end"]
    assert (ensemble.path / "DONE").read_text() == f"{second.ensemble.head}\n"
    assert [event["key"] for event in second.ensemble.events].count("collect") == 1
    assert not [path.name for path in ensemble.path.iterdir() if path.name.startswith(".")]


def nothing_can_be_written(folder: Path) -> None:
    """As on a file system that is read-only, also for root: no lock can be made."""
    (folder / ".collect.lock").mkdir()


def test_where_nothing_can_be_written_the_result_that_still_holds_is_shown(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made()])
    before = collect(ensemble.path)
    files = {name: (ensemble.path / name).read_bytes() for name in FILES}
    nothing_can_be_written(ensemble.path)
    told: list[str] = []
    again = collect_ensemble(CollectOrder(ensemble.path), voting=refusing(0), say=told.append)
    assert (again.result, again.figures) == (before.result, before.figures)
    assert {name: (ensemble.path / name).read_bytes() for name in FILES} == files
    assert "this is what was collected before, and it still holds" in told[0]
    append(before.ensemble, "cancel", {"jobs": []})
    with pytest.raises(RecordError, match="cannot be written: Is a directory; mend it, or copy the ensemble"):
        collect(ensemble.path)


def test_what_cannot_be_removed_is_told_in_one_line_and_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made()])
    (ensemble.path / "result.json").mkdir()
    assert report_collected(ensemble.path, as_json=False) == 64
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert f"{ensemble.path / 'result.json'}: cannot be written: Is a directory; mend it, or copy" in line
    assert output.out.endswith("HPCAI500 RESULT INVALID\n")


def test_a_record_that_no_member_writes_is_told_as_such(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(), Made()])

    def drop(told: list[Any]) -> None:
        for value in values(told, "predictions"):
            value["kind"] = ["evaluation"]

    edit_record(ensemble.folder(1) / "trial-01", drop)
    (missing,) = collect(ensemble.path).result.missing
    assert "cannot be read as a member's record (TypeError" in missing.reason
    assert missing.reason.endswith("00001 away, and it is run anew")
