"""Looks at the events of a run from all sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from hpcai500.errors import RecordError
from hpcai500.methodology.integrity.log import read_log
from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, guarded, note
from hpcai500.results.verification.records.company import check_company, check_replicas
from hpcai500.results.verification.records.drawn import check_drawn
from hpcai500.results.verification.records.environment import check_environment
from hpcai500.results.verification.records.evidence import check_evidence
from hpcai500.results.verification.records.losses import check_losses
from hpcai500.results.verification.records.model import check_model
from hpcai500.results.verification.records.order import check_order
from hpcai500.results.verification.records.predictions import check_predictions
from hpcai500.results.verification.records.quality import check_quality
from hpcai500.results.verification.records.rates import check_rates
from hpcai500.results.verification.records.run import Run, RunCheck
from hpcai500.results.verification.records.samples import check_samples
from hpcai500.results.verification.records.sessions import check_sessions
from hpcai500.results.verification.records.speed import check_speed
from hpcai500.results.verification.records.times import check_clock, check_times

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
    """All that can be found in the events of one run."""
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
