"""Journal and records name each other: a record cannot be exchanged for another one later."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.campaign.binding import binding_reasons
from hpcai500.campaign.outcome import Outcome, record_head
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "journal-binding"


def check_binding(context: Context) -> Iterator[Finding]:
    """Each record that could be read, with its attempt."""
    found = []
    for name, record in context.records.items():
        attempt = context.attempts[name]
        if attempt.status != "running":
            outcome = Outcome(attempt, record_head(record.path), record)
            found += [fail(_NAME, reason) for reason in binding_reasons(context.campaign, outcome)]
    yield from found
    if not found:
        told = f"{len(context.records)} records carry the hash of their line in the journal, and it carries theirs"
        yield note(_NAME, told)
