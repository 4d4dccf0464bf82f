"""Journal and records vouch for each other: each names hashes of the other, so that none can be exchanged later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hpcai500.campaign.outcome import FOLDER_MISSING, FOLDER_WAS_GONE, Outcome
from hpcai500.campaign.reading import NO_EVENTS, Campaign
from hpcai500.chain import iterate


def binding_reasons(campaign: Campaign, outcome: Outcome) -> Iterator[str]:
    """Where the record of an attempt is not the one that the journal tells of."""
    attempt = outcome.attempt
    if attempt.status == "running":
        yield f"{attempt.name}: the journal tells no end of it: it runs still, or was killed (see `campaign status`)"
    elif attempt.head is None:
        yield f"{attempt.name}: {attempt.record}: {FOLDER_WAS_GONE}"
    elif outcome.is_missing:
        yield f"{attempt.name}: {attempt.record}: {FOLDER_MISSING}"
    elif (outcome.head or NO_EVENTS) != attempt.head:
        yield f"{attempt.name}: {attempt.record}: its last event is not the one that the journal vouches for"
    if outcome.record is None:
        return
    if (attempt.status == "done") != (outcome.record.status == "done") and attempt.status != "running":
        yield f"{attempt.name}: {attempt.status} by the journal, {outcome.record.status} by its record"
    expected = {
        "id": campaign.identity, "trial": attempt.trial, "attempt": attempt.attempt, "head": attempt.start_hash,
    }  # fmt: skip
    for number, started in enumerate(iterate(outcome.record.events, "init_start"), 1):
        value = started.get("value")
        named = value.get("campaign") if isinstance(value, dict) else None
        wrong = [key for key in expected if not isinstance(named, dict) or named.get(key) != expected[key]]
        if wrong:
            what = f"another {' and '.join(wrong)}" if isinstance(named, dict) else "no campaign"
            yield f"{attempt.name}: {attempt.record}: start {number} of its record names {what}"


def folder_reasons(campaign: Campaign) -> Iterator[str]:
    """Runs in the campaign's folder of which the journal tells nothing, and records of which it tells twice."""
    known = Counter(attempt.record for attempt in campaign.attempts)
    for attempt in campaign.attempts:
        if known[attempt.record] > 1:
            yield f"{attempt.name}: {attempt.record}: named by {known[attempt.record]} attempts"
    for folder in sorted(path for path in campaign.path.iterdir() if path.is_dir() and path.name not in known):
        if _is_run(folder):
            yield f"{folder.name}: a run in the campaign's folder that its journal does not know"


def _is_run(folder: Path) -> bool:
    return folder.name.startswith("trial-") or (folder / "events.jsonl").exists()
