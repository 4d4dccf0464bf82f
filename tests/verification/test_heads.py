"""Heads: who was given those of one copy of a campaign tells it from every other, and sees what was told too late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_journal, edit_record, heads_given, values, write_campaign, write_heads
from builders.submissions import all_findings, changed_submission, evidence_under, failed_checks, honest_submission

from hpcai500.campaign.journal import Head, heads_of, last_head, read_campaign, read_heads
from hpcai500.errors import UsageError
from hpcai500.record import Event, line_hash
from hpcai500.results.submission.archive import Submission, open_submission
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.context import Context, Question, read_context
from hpcai500.results.verification.dates import check_heads
from hpcai500.results.verification.finding import Finding, guarded

A_DAY_S = 86_400.0
Given = Mapping[Head, int]
Change = Callable[[Given], Given]


@dataclass(frozen=True)
class Case:
    """A submission that was opened, and the campaign that it was made of."""

    campaign: Path
    submission: Submission
    context: Context

    def found(self, heads: Given | None) -> list[Finding]:
        """What is found with these heads."""
        asked = replace(self.context, question=Question(heads=heads))
        return guarded("heads", lambda: check_heads(asked))

    def told(self, heads: Given, severity: str = "fail") -> str:
        """The same in words."""
        return evidence_under(self.found(heads), "heads", severity)

    def given(self, after_s: float = 5.0) -> dict[Head, int]:
        """The heads of the campaign, as if each was received so long after its line was written."""
        return heads_given(self.campaign, after_s)


def case(folder: Path, **story: Any) -> Case:
    submission = honest_submission(folder, failing=(2,), **story)
    return Case(folder / "campaign", submission, changed_submission(submission, folder / "changed"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three trials; the second one's first attempt lost a node after its first evaluation."""
    return case(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A copy of the same plan, which was run a day later."""
    return case(tmp_path_factory.mktemp("copy"), quality=0.77, idle_s=A_DAY_S)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Attempts of twenty minutes, three evaluations each."""
    return case(tmp_path_factory.mktemp("slow"), images_per_second=3200.0)


@pytest.fixture(scope="module")
def anonymous(base: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The base without names of hosts, and so with other hashes."""
    folder = tmp_path_factory.mktemp("anonymous")
    pack(SubmitRequest(base.campaign, folder / "s.zip", "System", "Us", anonymise=True))
    submission = open_submission(folder / "s.zip", folder / "opened")
    return Case(base.campaign, submission, read_context(submission, Question(), lambda: None))


def first_of(heads: Given) -> Head:
    return min(heads, key=lambda head: head.line)


def last_of(heads: Given) -> Head:
    return max(heads, key=lambda head: head.line)


def test_heads_are_the_hashes_of_the_lines(base: Case, tmp_path: Path) -> None:
    campaign = read_campaign(base.campaign)
    lines = (base.campaign / "campaign.jsonl").read_bytes().splitlines()
    hashes = [(number, line_hash(line)) for number, line in enumerate(lines, 1)]
    assert [(one.line, one.hash) for one in heads_of(campaign)] == hashes[1:]
    first, last = campaign.attempts[0], campaign.attempts[-1]
    assert (last_head(campaign, first).line, last_head(campaign, last).line) == (3, len(lines))
    assert heads_of(read_campaign(write_campaign(tmp_path / "c", *SHORT, trials=2, done=0))) == ()


def test_a_copy_has_the_registered_identity_and_other_heads(base: Case, copy: Case) -> None:
    registered = Question(registered=base.context.campaign.identity)
    for one in (base, copy):
        assert not failed_checks(all_findings(replace(one.context, question=registered)))
        assert "another copy" in one.told(base.given() | copy.given()), "heads of both copies refuse both"
    assert not failed_checks(base.found(base.given()))
    said = copy.told(base.given())
    assert "line 2 of the journal (trial 1, attempt 1 started): " in said
    assert "another copy of the campaign was run" in said


def test_what_holds_is_told_with_how_soon_lines_were_told(base: Case) -> None:
    said = base.told(base.given(12.0), "note")
    assert "8 heads of this campaign were received" in said
    assert "each line was covered within 12" in said
    assert "--heads FILE" in evidence_under(base.found(None), "heads", "skipped")


def strangers(heads: Given) -> Given:
    return {Head("0" * 64, head.line, head.hash): ms for head, ms in heads.items()}


def without(*lines: int) -> Change:
    return lambda heads: {head: ms for head, ms in heads.items() if head.line not in lines}


def moved(which: Callable[[Given], Head], ms: int) -> Change:
    return lambda heads: {**heads, which(heads): heads[which(heads)] + ms}


def one_too_many(heads: Given) -> Given:
    return {**heads, Head(first_of(heads).campaign, 12, "a" * 64): max(heads.values())}


@pytest.mark.parametrize(
    ("change", "after_s", "severity", "words"),
    [
        (strangers, 5.0, "fail", ["no head of the campaign IDENTITY was received"]),
        (without(8, 9), 5.0, "fail", [
            "line 8 of the journal (trial 3, attempt 1 started), and 1 line after it: no head was received"]),
        (one_too_many, 5.0, "fail", [f"line 12: {'a' * 64} was received"]),
        (dict, A_DAY_S, "fail", [
            "line 2 of the journal (trial 1, attempt 1 started): the first head that covers it arrived at",
            "and the attempt ended at"]),
        (moved(last_of, 3_600_000), 5.0, "warning", [
            "line 9 of the journal (trial 3, attempt 1 ended)", "time for another run"]),
        (dict, -3600.0, "warning", ["a clock is wrong, or times were changed"]),
    ],
    ids=["of strangers", "no last ones", "beyond the end", "begins too late", "an end too late", "before the line"],
)  # fmt: skip
def test_heads_that_are_wrong_are_told(
    base: Case, change: Change, after_s: float, severity: str, words: list[str]
) -> None:
    heads = change(base.given(after_s))
    said = base.told(heads, severity)
    assert [one for one in words if one.replace("IDENTITY", base.context.campaign.identity) not in said] == []
    assert severity == "fail" or not failed_checks(base.found(heads))


@pytest.mark.parametrize("lost", [3, 4])
def test_the_head_of_a_later_line_stands_for_one_that_was_lost(base: Case, lost: int) -> None:
    """An end, and the begin of an attempt that was over within two minutes."""
    assert not failed_checks(base.found(without(lost)(base.given())))


def test_other_campaigns_of_the_file_are_named(base: Case) -> None:
    said = base.found(base.given() | {Head(digit * 64, 2, "a" * 64): 0 for digit in "12"})
    assert not failed_checks(said)
    assert "also has heads of 2 other campaigns (111111111111…, 222222222222…)" in evidence_under(said, "heads", "note")


def test_a_begin_that_is_held_back_until_its_last_minute_is_refused(slow: Case) -> None:
    begun, ended = (event["time_ms"] / 1000 for event in slow.context.campaign.events[1:3])
    assert ended - begun > 600
    assert "its result was known" in slow.told(slow.given(ended - begun - 30))
    assert "(trial 1, attempt 1 started)" in slow.told(slow.given(ended - begun + 30))


def test_a_begin_that_was_told_when_qualities_were_known_is_for_people_to_judge(slow: Case) -> None:
    assert slow.told(slow.given(120.0), "warning") == ""
    heads = moved(first_of, 500_000)(slow.given())
    assert not failed_checks(slow.found(heads))
    told = slow.told(heads, "warning")
    assert "line 2 of the journal (trial 1, attempt 1 started): the first head that covers it arrived at" in told
    assert "1 of its 3 evaluations were known: it may have been chosen by them" in told


def test_an_attempt_that_was_made_again_after_its_begin_was_told_is_for_people_to_judge(tmp_path: Path) -> None:
    """The journal begins it ten hours before its first event, or ends it so long after its last."""
    submission = honest_submission(tmp_path / "idle", idle_s=A_DAY_S)

    def begin_early(events: list[Event]) -> None:
        events[1].update(time_ms=events[0]["time_ms"] + 60_000, clock_s=events[0]["clock_s"] + 60)

    def end_late(events: list[Event]) -> None:
        events[-1].update(time_ms=events[-1]["time_ms"] + 36_000_000)

    def told(name: str, change: Callable[[list[Event]], None]) -> str:
        forged = changed_submission(
            submission, tmp_path / name, lambda opened: edit_journal(opened / "campaign", change)
        )
        return evidence_under(all_findings(forged), "dates", "warning")

    assert "trial-01: started at" in told("early", begin_early)
    assert "trial-03: last event at" in told("late", end_late)
    assert told("as-it-is", lambda events: None) == ""


def test_an_attempt_without_a_quality_may_be_told_late(base: Case, tmp_path: Path) -> None:
    """The failed attempt at trial 2 and its end were told when the next one began: nothing was seen to choose by."""

    def forget(events: list[Event]) -> None:
        events[:] = [event for event in events if event["key"] != "eval_accuracy"]

    late = without(4, 5)
    assert "line 4 of the journal (trial 2, attempt 1 started)" in base.told(late(base.given()))
    context = changed_submission(
        base.submission, tmp_path, lambda opened: edit_record(opened / "campaign/trial-02", forget)
    )
    assert not failed_checks(
        check_heads(replace(context, question=Question(heads=late(heads_given(context.campaign.path)))))
    )


def test_a_journal_that_was_written_anew_is_refused(base: Case, tmp_path: Path) -> None:
    """The forger made all hashes fit each other again, but for those that the committee has."""

    def forge(opened: Path) -> None:
        edit_journal(opened / "campaign", lambda events: values(events, "attempt_start")[2].update(slurm_job_id="7"))

    said = check_heads(changed_submission(base.submission, tmp_path, forge, question=Question(heads=base.given())))
    assert "line 6 of the journal (trial 2, attempt 2 started)" in evidence_under(said, "heads")


def test_without_names_the_end_of_the_journal_is_compared(base: Case, copy: Case, anonymous: Case) -> None:
    said = anonymous.found(base.given())
    assert not failed_checks(said)
    assert "ask for that journal" in evidence_under(said, "heads", "warning")
    assert "line 9 of the journal (trial 3, attempt 1 ended)" in anonymous.told(copy.given())
    of_the_copy = {head: ms for head, ms in copy.given().items() if head.line == 4}
    assert "line 4 of the journal" in anonymous.told(base.given() | of_the_copy)


def test_a_file_is_read_with_the_first_receipt_of_each_head(base: Case, tmp_path: Path) -> None:
    """Whoever mails all heads each hour sends the early ones many times."""
    path = write_heads(tmp_path / "heads", base.given())
    first = path.read_text()
    late = write_heads(tmp_path / "late", base.given(A_DAY_S)).read_text()
    path.write_text(f"{late}\n\n{first}".replace("\n", "\r\n").replace(" ", "\t"))
    assert read_heads(path) == {head: ms // 1000 * 1000 for head, ms in base.given().items()}


START, MOMENT = f"HPCAI500 HEAD {'a' * 64}", "2026-11-22T03:00:05Z"
GOOD = f"{START} 2 {'b' * 64} {MOMENT}"
TIME, FORM = "expected the time of receipt in UTC", "expected `HPCAI500 HEAD IDENTITY LINE HASH"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{START} 2 {'b' * 64}", "no time of receipt: add it at the end of the line, in UTC"),
        (f"{START} 2 {'b' * 64} yesterday", TIME),
        (f"{START} 2 {'b' * 64} 2026-13-22T03:00:05Z", TIME),
        (f"{START} 2 {'b' * 64} 2026-11-22T03:00:05+01:00", TIME),
        (f"{GOOD} x", FORM),
        (f"{START} 0 {'b' * 64} {MOMENT}", FORM),
        (f"{START} 9999999999 {'b' * 64} {MOMENT}", FORM),
        (f"{START} \uff12 {'b' * 64} {MOMENT}", FORM),
        (f"{START} 2 {'B' * 64} {MOMENT}", FORM),
        (f"hpcai500: {GOOD}", FORM),
        ("\x1b[2J\u202eodd" + "x" * 100_000, "got "),
    ],
)
def test_a_line_that_is_no_head_is_told_with_its_number(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "heads"
    path.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_heads(path)
    said = str(caught.value)
    assert f"--heads {path}:2: " in said
    assert words in said
    assert said.isprintable()
    assert len(said) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no head; expected lines"),
        (b"\n \n", "no head; expected lines"),
        (b"\0" * (2**24 + 1), "more than 16 MiB"),
        (None, "no such file"),
    ],
)
def test_a_file_without_heads_or_without_end_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "heads"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_heads(path)
    with pytest.raises(UsageError, match="not a file"):
        read_heads(tmp_path)
