"""Findings of a verification, the verdict that follows from them, and guards against hostile data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

from hpcai500.errors import DataError, EnvironmentLacksError, ExitCode, RunError
from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.submission.manifest import Manifest
from hpcai500.streams import escaped

# ----------------------------------------------------------------------------------------------------
# Findings and the verdict.


# `fail` refuses the submission; a person must look at a `warning`; a `note` passed; `skipped` was not checked, and
# counts neither for nor against the submission.
Severity = Literal["fail", "warning", "note", "skipped"]
WORST_FIRST: tuple[Severity, ...] = ("fail", "warning", "note", "skipped")
# Warnings with these names report what no honest run has shown. They appear wherever the verdict does.
IMPLAUSIBLE, SHORT_STARTS = "implausible", "short-starts"
DOUBTS = (IMPLAUSIBLE, SHORT_STARTS)


@dataclass(frozen=True)
class Finding:
    """What one check found, or that it was skipped.

    Attributes:
        name: of the check, in words with hyphens (`hash-chain`): docs/verification.md has a row for each.
        evidence: one line: where, what was expected, what was found.
    """

    name: str
    severity: Severity
    evidence: str


@dataclass(frozen=True)
class Verification:
    """All that was found in one submission.

    Attributes:
        findings: worst first.
        manifest: None if it cannot be read.
        results: by record (its name in the campaign), computed from its events.
        metrics: over the trials, computed from the results.
        level: lowest level that allows all differences from the reference, in recipes and code; None if no level
            does, or if the code could not be compared.
        reasons: why it is not rankable.
        signer: fingerprint of the key that signed it, and the key's owner if known.
    """

    findings: tuple[Finding, ...]
    manifest: Manifest | None = None
    results: Mapping[str, Result] = field(default_factory=dict)
    metrics: Mapping[str, TrialSummary] = field(default_factory=dict)
    level: str | None = None
    rankable: bool = False
    reasons: tuple[str, ...] = ()
    signer: str | None = None

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that refuse the submission."""
        return tuple(one for one in self.findings if one.severity == "fail")

    @property
    def verdict(self) -> Literal["verified", "refused"]:
        return "refused" if self.failures else "verified"

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """Warnings of what no honest run has shown."""
        return tuple(one for one in self.findings if one.name in DOUBTS)

    @property
    def exit_code(self) -> int:
        """0, or 2 if it is refused."""
        return ExitCode.PASS if self.verdict == "verified" else ExitCode.WRONG_ANSWER

    def document(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "rankable": self.rankable,
            "reasons": list(self.reasons),
            "level": self.level,
            "signer": self.signer,
            "metrics": {name: asdict(summary) for name, summary in self.metrics.items()},
            "findings": [asdict(finding) for finding in self.findings],
        }


# ----------------------------------------------------------------------------------------------------
# Checks of untrusted data: no submission may end its verification early, or control a terminal.


MALFORMED = "malformed"
_MOST_CHARACTERS = 600
# Findings with one name and severity for one subject; a hostile file could cause a million.
_MOST_OF_A_KIND = 100


def guarded(subject: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of `check`; if it crashes on the data of `subject`, one finding that says so.

    Raises:
        EnvironmentLacksError, DataError, RunError: as `check`: this machine lacks something.
    """
    found: list[Finding] = []
    kinds: Counter[tuple[str, str]] = Counter()
    try:
        for finding in check():
            kinds[finding.name, finding.severity] += 1
            if kinds[finding.name, finding.severity] <= _MOST_OF_A_KIND:
                found.append(cleaned(finding))
        return found
    except (EnvironmentLacksError, DataError, RunError):
        # This machine lacks something, which is not the submission's fault.
        raise
    except Exception as error:  # noqa: BLE001 - a submitter can write any type anywhere
        return [fail(MALFORMED, f"{subject}: not what hpcai500 writes: {type(error).__name__}: {error}")]


def cleaned(finding: Finding) -> Finding:
    """Return the finding with its evidence as one line without control characters."""
    return Finding(finding.name, finding.severity, one_line(finding.evidence))


def one_line(text: str) -> str:
    """Return `text` for a terminal, with unprintable characters escaped and the end of a long text cut off."""
    return escaped(text, _MOST_CHARACTERS)


def fail(name: str, evidence: str) -> Finding:
    """A finding that refuses the submission."""
    return cleaned(Finding(name, "fail", evidence))


def warning(name: str, evidence: str) -> Finding:
    """A finding that a person must look at."""
    return cleaned(Finding(name, "warning", evidence))


def note(name: str, evidence: str) -> Finding:
    """A check that passed."""
    return cleaned(Finding(name, "note", evidence))


def skipped(name: str, evidence: str) -> Finding:
    """A check that was not made, and why."""
    return cleaned(Finding(name, "skipped", evidence))


# ----------------------------------------------------------------------------------------------------
# Folding: equal findings of many runs become one line.


_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")


def folded(found: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """Merge the findings of all runs, given by name of the run.

    Notes and skipped checks that differ only in numbers become one. Failures and warnings stay, each with the name of
    its run.
    """
    alike: dict[tuple[str, Severity, str], dict[str, str]] = {}
    for name, findings in found.items():
        for one in findings:
            if one.severity in ("note", "skipped"):
                alike.setdefault((one.name, one.severity, _NUMBER.sub("0", one.evidence)), {})[name] = one.evidence
            else:
                yield replace(one, evidence=f"{name}: {one.evidence}")
    for (kind, severity, _), evidence in alike.items():
        if len(evidence) == 1:
            merged = next(f"{name}: {text}" for name, text in evidence.items())
        else:
            merged = f"{len(evidence)} runs: {_ranged(list(evidence.values()))}"
        yield cleaned(Finding(kind, severity, merged))


def _ranged(texts: Sequence[str]) -> str:
    """Merge sentences that differ only in numbers; a number that differs becomes `lowest to highest`."""
    words = _NUMBER.split(texts[0])
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    return "".join(word + number for word, number in zip_longest(words, map(_range, numbers), fillvalue=""))


def _range(numbers: Iterable[str]) -> str:
    ordered = sorted(numbers, key=float)
    return ordered[0] if float(ordered[0]) == float(ordered[-1]) else f"{ordered[0]} to {ordered[-1]}"
