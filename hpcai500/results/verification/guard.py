"""Runs what looks at strange data: no submission may end its verification, or do to a terminal what it likes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from hpcai500.errors import DataError, EnvironmentLacksError, RunError
from hpcai500.results.verification.finding import Finding, Severity
from hpcai500.streams import spelt_out

MALFORMED = "malformed"
_MOST_CHARACTERS = 600
# Of one name and severity, for one subject: what a hostile file could make a million of.
_MOST_OF_A_KIND = 100


def guarded(subject: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `look` finds; where it stumbles over the data, one finding that says so.

    Args:
        subject: what is looked at, for that finding.
        look: the check.

    Raises:
        EnvironmentLacksError, DataError, RunError: as `look`: this machine lacks something.
    """
    found: list[Finding] = []
    kinds: Counter[tuple[str, str]] = Counter()
    try:
        for finding in look():
            kinds[finding.name, finding.severity] += 1
            if kinds[finding.name, finding.severity] <= _MOST_OF_A_KIND:
                found.append(cleaned(finding))
        return found
    except (EnvironmentLacksError, DataError, RunError):
        # What this machine lacks is nothing that the submission has done.
        raise
    except Exception as error:  # noqa: BLE001 - the types of all that is looked at are the submitter's choice
        return [fail(MALFORMED, f"{subject}: not what hpcai500 writes: {type(error).__name__}: {error}")]


def cleaned(finding: Finding) -> Finding:
    """The finding with evidence of one line that moves no cursor and hides nothing."""
    return Finding(finding.name, finding.severity, one_line(finding.evidence))


def one_line(text: str) -> str:
    """`text` for a terminal: what cannot be printed is spelt out, what is endless is cut."""
    return spelt_out(text, _MOST_CHARACTERS)


def fail(name: str, evidence: str) -> Finding:
    """A finding that refuses the submission."""
    return _finding(name, "fail", evidence)


def warning(name: str, evidence: str) -> Finding:
    """A finding for people to judge."""
    return _finding(name, "warning", evidence)


def note(name: str, evidence: str) -> Finding:
    """What was looked at and holds."""
    return _finding(name, "note", evidence)


def skipped(name: str, evidence: str) -> Finding:
    """What was not looked at, and why."""
    return _finding(name, "skipped", evidence)


def _finding(name: str, severity: Severity, evidence: str) -> Finding:
    return cleaned(Finding(name, severity, evidence))
