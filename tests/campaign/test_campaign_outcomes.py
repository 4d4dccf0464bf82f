"""How an attempt has ended, as its record tells whoever looks later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from written_campaign import edit_record, write_campaign

from hpcai500.campaign.journal import NO_EVENTS, read_campaign
from hpcai500.campaign.standing import Outcome, ending, read_outcome, record_head
from hpcai500.recipe import rulebook
from hpcai500.record import Event


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
