"""What `--resume` goes on with where nothing is named: the newest run or campaign that can be gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcai500.campaign.attempts import is_written
from hpcai500.campaign.reading import Campaign, is_campaign, read_campaign
from hpcai500.campaign.turns import turn_at
from hpcai500.chain import iterate
from hpcai500.errors import HpcAi500Error, RecordError
from hpcai500.record import Record, read_record
from hpcai500.record_writer import is_being_written


def latest_unfinished(runs: Path, benchmark: str) -> Path:
    """The newest run or campaign in the folder `runs` that can be gone on with and that nobody is writing now.

    One that was stopped or killed comes before one that failed: that would most likely fail again.

    Raises:
        RecordError: there is none.
    """
    found = []
    for folder in (path for path in runs.glob("*") if path.is_dir()):
        try:
            failed = _campaign_failed(folder, benchmark) if is_campaign(folder) else _run_failed(folder, benchmark)
        except HpcAi500Error:
            continue  # no record, or a damaged one: not what is looked for
        if failed is not None:
            found.append((not failed, folder.stat().st_mtime, folder))
    if not found:
        raise RecordError(f"{runs}/: no unfinished {benchmark} run to resume; name its record: --resume --out DIR")
    return max(found)[2]


def _run_failed(folder: Path, benchmark: str) -> bool | None:
    """Whether the run has failed; None where there is nothing to go on with."""
    record = read_record(folder)
    begun = record.tables.get("benchmark") == benchmark and any(iterate(record.events, "run_start"))
    if not begun or record.status == "done" or is_being_written(folder):
        return None
    return _has_failed(record)


def _has_failed(record: Record) -> bool:
    return record.status == "error" and not any(iterate(record.events[-4:], "interrupted"))


def _campaign_failed(folder: Path, benchmark: str) -> bool | None:
    """Whether the last attempt at a run of the campaign has failed; None where there is nothing to go on with."""
    campaign = read_campaign(folder)
    left = {trial.trial for trial in campaign.trials} - {attempt.trial for attempt in campaign.done()}
    if campaign.benchmark != benchmark or not left or any(_is_run(campaign, trial) for trial in left):
        return None
    return any(attempts[-1].status == "failed" for trial in left if (attempts := campaign.attempts_at(trial)))


def _is_run(campaign: Campaign, trial: int) -> bool:
    with turn_at(campaign.path, trial) as turn:
        return turn == "taken" or any(map(is_written, _running(campaign, trial)))


def _running(campaign: Campaign, trial: int) -> Iterator[Path]:
    return (campaign.record(one) for one in campaign.attempts_at(trial) if one.status == "running")
