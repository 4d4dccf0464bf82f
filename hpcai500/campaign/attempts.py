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

    def told(self) -> dict[str, Any]:
        return {"command": list(self.command), "launcher": self.launcher, "slurm_job_id": self.slurm_job_id}


def begin_attempt(campaign: Campaign, trial: int, how: Invocation) -> tuple[Campaign, Attempt]:
    """Write down another attempt at `trial`, and make its folder. From now on, it counts.

    Raises:
        RecordError: its folder is there already or cannot be made, or the journal cannot be written.
    """
    number = len(campaign.attempts_at(trial)) + 1
    record = f"trial-{trial:02d}" + (f"-attempt-{number}" if number > 1 else "")
    folder = campaign.path / record
    try:
        # Only one process succeeds here, even without locks. An empty folder is what a crash has left.
        folder.mkdir(exist_ok=folder.is_dir() and not any(folder.iterdir()))
        sync_folder(campaign.path)
    except FileExistsError as error:
        raise RecordError(
            f"{folder}: is there already, and the campaign's journal does not know it: move it away, then go on"
        ) from error
    except OSError as error:
        raise RecordError(f"{folder}: cannot be made: {error.strerror}; mend it, then go on") from error
    value = {"trial": trial, "attempt": number, "record": record, **how.told()}
    campaign = append(campaign.path, "attempt_start", value)
    return campaign, campaign.attempts_at(trial)[-1]


def resume_attempt(campaign: Campaign, attempt: Attempt, how: Invocation) -> Campaign:
    """Write down that an attempt which has stopped runs again.

    Raises:
        RecordError: the journal cannot be written.
    """
    return append(campaign.path, "attempt_resume", {**_number(attempt), **how.told()})


def stop_attempt(
    campaign: Campaign, attempt: Attempt, exit_code: int | None, rules: Mapping[str, Any]
) -> tuple[Campaign, Ending]:
    """Write down how an attempt ended, as its record tells.

    `exit_code` is that of its job, None where nobody saw it end; `rules` are those of the campaign's edition.

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
    """Write down the end of attempts that were killed: the journal tells of no end, but no process runs them any more.

    Where that cannot be told, because the file system has no locks or the folder is read-only, nothing is written.
    """
    for attempt in campaign.attempts:
        if attempt.status == "running":
            with turn_at(campaign.path, attempt.trial) as turn:
                if turn == "alone" and not is_written(campaign.record(attempt)):
                    campaign, _ = stop_attempt(campaign, attempt, None, rules)
    return campaign


def is_written(record: Path) -> bool:
    """Whether a process is writing the record in the folder `record` now, as far as that can be told."""
    return (record / "events.jsonl").is_file() and is_being_written(record)


def _number(attempt: Attempt) -> dict[str, int]:
    return {"trial": attempt.trial, "attempt": attempt.attempt}
