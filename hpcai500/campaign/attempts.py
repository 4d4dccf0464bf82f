"""Writes into a campaign's journal that an attempt begins, is resumed, and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import Attempt, Campaign, append, turn_at
from hpcai500.campaign.standing import Ending, ending, read_outcome
from hpcai500.errors import RecordError
from hpcai500.files import sync_folder
from hpcai500.record import is_being_written


@dataclass(frozen=True)
class Invocation:
    """How an attempt was started, for the journal: the user's command, what launched the ranks, and the Slurm job."""

    command: Sequence[str]
    launcher: str
    slurm_job_id: str | None

    def value(self) -> dict[str, Any]:
        """Its part of a journal event's value."""
        return {"command": list(self.command), "launcher": self.launcher, "slurm_job_id": self.slurm_job_id}


def begin_attempt(campaign: Campaign, trial: int, how: Invocation) -> tuple[Campaign, Attempt]:
    """Write another attempt at `trial` into the journal, and create its folder. From now on, it counts.

    Raises:
        RecordError: its folder exists already or cannot be created, or the journal cannot be written.
    """
    number = len(campaign.attempts_at(trial)) + 1
    record = f"trial-{trial:02d}" + (f"-attempt-{number}" if number > 1 else "")
    folder = campaign.path / record
    try:
        # Only one process succeeds here, even without locks. A crash may have left an empty folder.
        folder.mkdir(exist_ok=folder.is_dir() and not any(folder.iterdir()))
        sync_folder(campaign.path)
    except FileExistsError as error:
        raise RecordError(
            f"{folder}: exists already, but is not in the campaign's journal: move it away, then run this again"
        ) from error
    except OSError as error:
        raise RecordError(f"{folder}: cannot be created: {error.strerror}; fix that, then run this again") from error
    value = {"trial": trial, "attempt": number, "record": record, **how.value()}
    campaign = append(campaign.path, "attempt_start", value)
    return campaign, campaign.attempts_at(trial)[-1]


def resume_attempt(campaign: Campaign, attempt: Attempt, how: Invocation) -> Campaign:
    """Write into the journal that a stopped attempt runs again.

    Raises:
        RecordError: the journal cannot be written.
    """
    return append(campaign.path, "attempt_resume", {**_number(attempt), **how.value()})


def stop_attempt(
    campaign: Campaign, attempt: Attempt, exit_code: int | None, rules: Mapping[str, Any]
) -> tuple[Campaign, Ending]:
    """Write into the journal how an attempt ended, according to its record.

    `exit_code` is that of its job, None if unknown; `rules` are those of the campaign's edition.

    Raises:
        RecordError: the journal cannot be written.
    """
    end = ending(read_outcome(campaign, attempt, rules))
    if end.status == "failed" and exit_code:
        end = replace(end, reason=f"{end.reason} (exit code {exit_code})")
    value = {
        **_number(attempt), "status": end.status, "exit_code": exit_code, "head": end.head, "reason": end.reason,
    }  # fmt: skip
    return append(campaign.path, "attempt_stop", value), end


def settle(campaign: Campaign, rules: Mapping[str, Any]) -> Campaign:
    """Write the end of attempts that were killed: the journal has no end of them, but no process runs them any more.

    If that is uncertain, because the file system has no locks or the folder is read-only, nothing is written.
    """
    for attempt in campaign.attempts:
        if attempt.status == "running":
            with turn_at(campaign.path, attempt.trial) as turn:
                if turn == "alone" and not is_written(campaign.record(attempt)):
                    campaign, _ = stop_attempt(campaign, attempt, None, rules)
    return campaign


def is_written(record: Path) -> bool:
    """Whether a process is writing the record in the folder `record` now, as far as known."""
    return (record / "events.jsonl").is_file() and is_being_written(record)


def _number(attempt: Attempt) -> dict[str, int]:
    return {"trial": attempt.trial, "attempt": attempt.attempt}
