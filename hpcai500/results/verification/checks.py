"""Which checks are made: of a submission as a whole, and of each of its records (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from hpcai500.errors import RecordError
from hpcai500.methodology.events import read_log
from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.archive import (
    check_archive,
    check_chains,
    check_claim,
    check_code,
    check_core,
    check_images,
    check_manifest,
    check_power_samples,
    check_results,
)
from hpcai500.results.verification.campaign import (
    check_attempts,
    check_binding,
    check_ceilings,
    check_checkpoints,
    check_levels,
    check_recipe_fields,
    check_recipes,
    check_registration,
    check_seeds,
    check_standing,
    check_systems,
)
from hpcai500.results.verification.context import Check, Run, RunCheck
from hpcai500.results.verification.copies import check_copies
from hpcai500.results.verification.dates import check_accounting, check_dates, check_heads
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

# ----------------------------------------------------------------------------------------------------
# Of a submission as a whole, in the order of its parts.


CHECKS: tuple[Check, ...] = (
    check_archive,
    check_manifest,
    check_chains,
    check_attempts,
    check_binding,
    check_registration,
    check_heads,
    check_seeds,
    check_recipes,
    check_recipe_fields,
    check_results,
    check_power_samples,
    check_claim,
    check_standing,
    check_levels,
    check_code,
    check_core,
    check_images,
    check_checkpoints,
    check_systems,
    check_ceilings,
    check_accounting,
    check_dates,
    check_copies,
)


# ----------------------------------------------------------------------------------------------------
# Of one record: its events from all sides, and the files that they name.


RUN_CHECKS: tuple[RunCheck, ...] = (
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
    for check in RUN_CHECKS:
        title = check.__name__.removeprefix("check_")
        found = guarded(title, partial(check, run))
        yield from found
        if not any(one.severity in ("fail", "warning") for one in found):
            right.append(title)
    yield note("events", f"{len(record.events)} events, {len(run.passes)} epochs; they agree in {', '.join(right)}")


RecordCheck = Callable[[Record, Result | None, Mapping[str, Any]], Iterable[Finding]]

# Each takes a record that came to its end, its result, and the rules.
RECORD_CHECKS: tuple[RecordCheck, ...] = (check_events, check_files)
