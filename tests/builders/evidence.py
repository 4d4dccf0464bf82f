"""What verification has against a record that a test really made."""

from __future__ import annotations

from pathlib import Path

from hpcai500.methodology.result import derive
from hpcai500.recipe import rulebook
from hpcai500.record import read_record
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.verify import RECORD_CHECKS


def findings(path: Path) -> list[Finding]:
    """All findings about the record at `path`, those that a loaded machine alone can cause left out."""
    record = read_record(path)
    rules = rulebook(record.tables["edition"], record.tables["benchmark"])
    result = derive(record.tables, rules, record.events)
    found = [one for check in RECORD_CHECKS for one in check(record, result, rules)]
    return [one for one in found if not _is_of_load(one)]


def against(found: list[Finding]) -> list[Finding]:
    """Those that refuse the record or warn of it."""
    return [one for one in found if one.severity in ("fail", "warning")]


def _is_of_load(finding: Finding) -> bool:
    # An epoch, or a step of one rank, that other work on the machine slowed.
    slowed = finding.name == "implausible" and finding.evidence.endswith("the one-rank step may have been slowed")
    return finding.severity == "warning" and (slowed or finding.name == "usual-speed")
