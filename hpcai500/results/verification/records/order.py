"""The order of the events: each epoch trained, then evaluated, then saved, and nothing where it may not be."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.integrity.order import order_violations, unknown_keys
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged


def check_order(run: Run) -> Iterator[Finding]:
    """Each event with the one before it, and the numbers of its epoch and step with what was done before."""
    is_member = "ensemble" in run.record.tables
    wrong = order_violations(run.log.moments, run.field("problem", "epochs"), is_member=is_member)
    yield from judged("event-order", wrong, fail)
    unknown = unknown_keys(run.log.moments)
    if unknown:
        yield warning("unknown-events", f"events that this version does not know: {', '.join(unknown[:10])}")
