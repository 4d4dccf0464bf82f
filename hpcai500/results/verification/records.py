"""Checks of one record: its events from all sides, and the files that they name (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from hpcai500.errors import RecordError
from hpcai500.methodology.events import read_log
from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.context import Run, RunCheck
from hpcai500.results.verification.finding import Finding, fail, guarded, note
from hpcai500.results.verification.run_events import (
    check_clock,
    check_drawn,
    check_evidence,
    check_files,
    check_order,
    check_predictions,
    check_samples,
    check_sessions,
    check_times,
)
from hpcai500.results.verification.run_numbers import check_losses, check_model, check_quality, check_rates, check_speed
from hpcai500.results.verification.run_system import check_company, check_environment, check_replicas

CHECKS: tuple[RunCheck, ...] = (
    check_order,
    check_evidence,
    check_sessions,
    check_clock,
    check_times,
    check_environment,
    check_speed,
    check_rates,
    check_drawn,
    check_samples,
    check_model,
    check_company,
    check_replicas,
    check_losses,
    check_quality,
    check_predictions,
)


def check_events(record: Record, result: Result | None, rules: Mapping[str, Any]) -> Iterator[Finding]:
    """Make all checks of the events of one run; a note says in what they agree."""
    try:
        run = Run(record, read_log(record.events), rules, result)
    except RecordError as error:
        yield fail("event-values", str(error))
        return
    right = []
    for check in CHECKS:
        title = check.__name__.removeprefix("check_")
        found = guarded(title, partial(check, run))
        yield from found
        if not any(one.severity in ("fail", "warning") for one in found):
            right.append(title)
    yield note("events", f"{len(record.events)} events, {len(run.passes)} epochs; they agree in {', '.join(right)}")


RecordCheck = Callable[[Record, Result | None, Mapping[str, Any]], Iterable[Finding]]

# Each takes a record that came to its end, its result, and the rules.
RECORD_CHECKS: tuple[RecordCheck, ...] = (check_events, check_files)
