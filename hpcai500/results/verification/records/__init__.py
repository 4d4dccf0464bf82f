"""What the events of one run say for or against each other (docs/verification.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcai500.methodology.result import Result
from hpcai500.record import Record
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.records.events import check_events
from hpcai500.results.verification.records.files import check_files

RecordCheck = Callable[[Record, Result | None, Mapping[str, Any]], Iterable[Finding]]

# Each looks at a record that came to its end, and at what the rules make of it.
RECORD_CHECKS: tuple[RecordCheck, ...] = (check_events, check_files)
