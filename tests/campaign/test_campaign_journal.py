"""A campaign on disk: what the plan fixes, how the journal grows, what is refused, and whose turn it is at a trial."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcai500.campaign.journal import (
    JOURNAL,
    NO_EVENTS,
    Campaign,
    append,
    create_campaign,
    is_campaign,
    read_campaign,
    turn_at,
)
from hpcai500.errors import RecordError
from hpcai500.recipe import load_recipe, recipe_hash, to_toml
from hpcai500.record import FIRST_PREVIOUS, event_line, line_hash
from hpcai500.system.process import is_alive

FIRST = {"trial": 1, "attempt": 1}
START = {**FIRST, "record": "trial-01", "command": ["hpcai500"], "launcher": "none", "slurm_job_id": "7"}
STOP = {**FIRST, "status": "done", "exit_code": 0, "head": "a" * 64, "reason": None}


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    recipe = load_recipe("ic/smoke", ["hyperparameters.seed=5"])
    return create_campaign(tmp_path / "c", recipe, 3, Path("images"))


def test_the_plan_fixes_recipe_runs_seeds_data_and_code_before_the_first_run(campaign: Campaign) -> None:
    assert [(one.trial, one.seed) for one in campaign.trials] == [(1, 5), (2, 6), (3, 7)]
    assert campaign.start["recipe_hash"] == recipe_hash(load_recipe("ic/smoke", ["hyperparameters.seed=5"]))
    assert Path(campaign.start["data"]) == Path.cwd() / "images"
    assert re.fullmatch("[0-9a-f]{64}", campaign.start["code_sha256"])
    first = (campaign.path / JOURNAL).read_bytes().splitlines()[0]
    assert campaign.identity == campaign.head == line_hash(first)
    assert (campaign.attempts, is_campaign(campaign.path)) == ((), True)


def test_the_identity_stays_and_the_head_moves_with_every_line(campaign: Campaign) -> None:
    begun = append(campaign.path, "attempt_start", START)
    ended = append(campaign.path, "attempt_stop", STOP)
    assert begun.identity == ended.identity == campaign.identity
    assert len({campaign.head, begun.head, ended.head}) == 3
    (attempt,) = begun.attempts
    assert (attempt.status, attempt.head, attempt.slurm_jobs) == ("running", None, ("7",))
    assert (attempt.name, attempt.start_hash) == ("trial 1, attempt 1", begun.head)
    (attempt,) = ended.attempts
    assert (attempt.status, attempt.head) == ("done", "a" * 64)
    assert ended.done() == (attempt,)


def test_what_went_on_runs_until_it_ends_again(campaign: Campaign) -> None:
    for key, value in (
        ("attempt_start", START),
        ("attempt_stop", {**STOP, "status": "stopped"}),
        ("attempt_resume", {**START, "command": ["hpcai500", "again"], "slurm_job_id": "8"}),
    ):
        campaign = append(campaign.path, key, value)
    (attempt,) = campaign.attempts
    assert (attempt.status, attempt.slurm_jobs) == ("running", ("7", "8"))
    assert attempt.commands == (("hpcai500",), ("hpcai500", "again"))
    assert append(campaign.path, "attempt_stop", STOP).attempts[0].status == "done"


def test_attempts_at_several_trials_are_told_apart(campaign: Campaign) -> None:
    for number, status in ((1, "failed"), (2, "done")):
        name = {"trial": 2, "attempt": number, "record": f"r{number}"}
        append(campaign.path, "attempt_start", {**START, **name})
        append(campaign.path, "attempt_start", {**START, "trial": 3, "attempt": number, "record": f"s{number}"})
        campaign = append(campaign.path, "attempt_stop", {**STOP, **name, "status": status})
    assert [(one.trial, one.attempt, one.status) for one in campaign.attempts] == [
        (2, 1, "failed"), (3, 1, "running"), (2, 2, "done"), (3, 2, "running"),
    ]  # fmt: skip
    assert [one.record for one in campaign.attempts_at(2)] == ["r1", "r2"]


def test_a_line_that_a_crash_cut_off_is_passed_over_and_then_overwritten(campaign: Campaign) -> None:
    with (campaign.path / JOURNAL).open("ab") as stream:
        stream.write(b'{"prev":"12')
    assert read_campaign(campaign.path).head == campaign.head
    assert len(append(campaign.path, "attempt_start", START).attempts) == 1


def test_a_folder_that_holds_something_is_no_place_for_a_plan(campaign: Campaign, tmp_path: Path) -> None:
    recipe = load_recipe("ic/smoke")
    with pytest.raises(RecordError, match="already holds a campaign: continue it with `hpcai500 campaign run"):
        create_campaign(campaign.path, recipe, 3, None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(RecordError, match="not empty; give an empty or new folder"):
        create_campaign(tmp_path / "full", recipe, 3, None)


def test_no_campaign_is_told_with_the_line_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"not a campaign: .* is missing; plan one with `hpcai500 campaign init"):
        read_campaign(tmp_path)


def test_another_recipe_is_not_the_campaign_s(campaign: Campaign) -> None:
    (campaign.path / "recipe.toml").write_text(to_toml(load_recipe("ic/smoke", ["problem.epochs=2"])))
    with pytest.raises(RecordError, match="not the recipe that the campaign was planned with"):
        read_campaign(campaign.path)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        *(
            ("attempt_start", {**START, "record": name}, "expected the name of a folder as record")
            for name in ("../elsewhere", "/tmp", "..", 7)
        ),
        ("attempt_start", {**START, "trial": "many"}, "an event is malformed: ValueError"),
        ("attempt_start", [1], "an event is malformed: TypeError"),
        ("attempt_start", {}, "an event is malformed: KeyError 'trial'"),
        ("attempt_stop", STOP, "an event is malformed: KeyError"),
    ],
)
def test_a_journal_that_somebody_made_up_is_one_line_of_error(
    campaign: Campaign, key: str, value: Any, reason: str
) -> None:
    with pytest.raises(RecordError, match=re.escape(reason)):
        append(campaign.path, key, value)


def test_an_end_that_is_none_is_refused(campaign: Campaign) -> None:
    append(campaign.path, "attempt_start", START)
    with pytest.raises(RecordError, match="expected one of done, stopped, failed as status, got 'best'"):
        append(campaign.path, "attempt_stop", {**STOP, "status": "best"})


@pytest.mark.parametrize(
    ("key", "old", "new", "reason"),
    [
        (None, b'"trial":1,', b'"trial":Infinity,', "an event is malformed: OverflowError"),
        ("attempt_start", b'"seed":5', b'"seed":9', "the chain is broken here"),
    ],
)
def test_a_first_line_that_was_changed_is_refused(
    campaign: Campaign, key: str | None, old: bytes, new: bytes, reason: str
) -> None:
    if key:
        append(campaign.path, key, START)
    path = campaign.path / JOURNAL
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(RecordError, match=reason):
        read_campaign(campaign.path)


def test_the_head_of_a_log_without_events_is_that_of_the_first_line_s_previous() -> None:
    assert NO_EVENTS == FIRST_PREVIOUS != line_hash(event_line({"key": "x"}))


def test_only_one_is_at_a_trial_and_others_are_free(tmp_path: Path) -> None:
    with turn_at(tmp_path, 1) as first:
        with turn_at(tmp_path, 1) as second, turn_at(tmp_path, 2) as third:
            assert (first, second, third) == ("alone", "taken", "alone")
        with turn_at(tmp_path, 1) as again:
            assert again == "taken"
    with turn_at(tmp_path, 1) as after:
        assert after == "alone"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with turn_at(tmp_path, 1):
        holder = (tmp_path / ".trial-01.lock").read_text(encoding="utf-8")
        assert is_alive(holder)
        assert not is_alive(holder.rpartition(" ")[0] + " 1")
        assert not is_alive("")


def test_whoever_is_killed_leaves_the_trial_to_others(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hpcai500.campaign.journal import turn_at\n"
        f"with turn_at(Path({str(tmp_path)!r}), 1) as turn: print(turn, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "alone\n"
        with turn_at(tmp_path, 1) as turn:
            assert turn == "taken"
        other.kill()
    with turn_at(tmp_path, 1) as turn:
        assert turn == "alone"


def test_a_folder_that_cannot_be_written_tells_nothing(tmp_path: Path) -> None:
    with turn_at(tmp_path / "gone", 1) as turn:
        assert turn == "unknown"
