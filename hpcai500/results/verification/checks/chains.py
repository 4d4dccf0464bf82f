"""The logs are whole: each line carries the hash of the one before it, and each file is that which the log names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hpcai500.campaign.reading import JOURNAL
from hpcai500.chain import event_line, parse_events
from hpcai500.errors import RecordError
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_CHAIN, _FILES = "hash-chain", "record-files"


def check_chains(context: Context) -> Iterator[Finding]:
    """Journal and records, also of attempts that failed."""
    broken = False
    for name, reason in context.unreadable.items():
        broken = True
        yield fail(_CHAIN if _is_chain(context.campaign.path / name) else _FILES, f"{name}: {reason}")
    logs = {JOURNAL: context.campaign.path / JOURNAL}
    logs.update({f"{name}/events.jsonl": record.path / "events.jsonl" for name, record in context.records.items()})
    events = 0
    for name, path in logs.items():
        content = path.read_bytes()
        lines = content.split(b"\n")[:-1]
        events += len(lines)
        foreign = next((n for n, line in enumerate(lines, 1) if not _is_ours(line)), None)
        if foreign:
            broken = True
            yield fail(_CHAIN, f"{name}:{foreign}: no line as hpcai500 writes it: it was edited")
    for name, record in context.done.items():
        if record.torn_bytes:
            broken = True
            yield fail(_CHAIN, f"{name}: done, and still {record.torn_bytes} bytes of a broken line are at its end")
    if not broken:
        yield note(_CHAIN, f"the journal and {len(context.records)} records: {events} events, in unbroken chains")
        yield note(_FILES, "recipes, systems, results' markers and power samples are those that the events name")


def _is_chain(record: Path) -> bool:
    """Whether it is the log itself that is broken."""
    try:
        parse_events((record / "events.jsonl").read_bytes(), "")
    except RecordError:
        return True
    except OSError:
        return False
    return False


def _is_ours(line: bytes) -> bool:
    """Whether reading and writing a line gives the same bytes: doubled keys and odd numbers do not survive that."""
    try:
        return event_line(json.loads(line)) == line
    except ValueError:
        return False
