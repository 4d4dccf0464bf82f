"""What the record of a run that is gone on with says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import RecordError
from hpcai500.record import Record


def has_reached_its_end(record: Record) -> bool:
    """Whether nothing is left to train: training again would make the run slower than it was."""
    ends = [event["key"] for event in record.events if event["key"] in ("run_start", "run_resume", "run_stop")]
    return bool(ends) and ends[-1] == "run_stop"


def campaign_of(record: Record) -> Mapping[str, Any] | None:
    """{id, trial, attempt, head} where it is a run of a campaign."""
    started = next(iterate(record.events, "init_start"), None)
    campaign: Mapping[str, Any] | None = started["value"].get("campaign") if started else None
    return campaign


def data_of(record: Record) -> Path:
    """Folder of the data that it was begun with.

    Raises:
        RecordError: it had found none.
    """
    dataset = next(iterate(record.events, "dataset"), None)
    if dataset is None:
        raise RecordError(
            f"{record.path}: the run stopped before it had found its data: give --data DIR, or remove it and start anew"
        )
    return Path(dataset["value"]["root"])


def how_it_ended(old: Record) -> str:
    """By which signal, or what else, in words."""
    last = old.events[-1]
    if last["key"] != "run_error":
        return "a kill or a crash"
    interrupted = [event for event in old.events[-4:] if event["key"] == "interrupted"]
    return interrupted[-1]["value"]["signal"] if interrupted else "an error"
