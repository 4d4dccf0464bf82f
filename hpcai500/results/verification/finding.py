"""What verification found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hpcai500.errors import ExitCode
from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.submission.manifest import Manifest

# `fail` refuses the submission; `warning` is for people to judge; `note` holds; `skipped` could not be looked at, or
# was not asked for: it says nothing for the submission and nothing against it.
Severity = Literal["fail", "warning", "note", "skipped"]
WORST_FIRST: tuple[Severity, ...] = ("fail", "warning", "note", "skipped")
# Warnings of these names say that nobody has seen such a run: they are shown wherever the verdict is.
IMPLAUSIBLE, SHORT_STARTS = "implausible", "short-starts"
DOUBTS = (IMPLAUSIBLE, SHORT_STARTS)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, or was not.

    Attributes:
        name: of the check, in words with hyphens (`hash-chain`): docs/verification.md has a row for each.
        severity: what it means for the submission.
        evidence: one line: where, what was expected, what is there.
    """

    name: str
    severity: Severity
    evidence: str


@dataclass(frozen=True)
class Verification:
    """All that was found in one submission.

    Attributes:
        findings: what was found, worst first.
        manifest: what the submission says of itself; None where it cannot be read.
        results: by record (its name in the campaign), computed from its events.
        metrics: over the trials, computed from the results.
        level: lowest level that allows what differs from the reference, in recipes and code; None where none does, or
            where the code could not be compared.
        rankable: whether the rules of the edition are kept.
        reasons: why it is not.
        signer: fingerprint of the key that signed it, and its owner where one is known.
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
    def verdict(self) -> Literal["verified", "refused"]:
        """`refused` if anything failed."""
        return "refused" if any(finding.severity == "fail" for finding in self.findings) else "verified"

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """Findings that no honest run has shown."""
        return tuple(one for one in self.findings if one.name in DOUBTS)

    @property
    def exit_code(self) -> int:
        """0, or 2 where it is refused."""
        return ExitCode.PASS if self.verdict == "verified" else ExitCode.WRONG_ANSWER

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "rankable": self.rankable,
            "reasons": list(self.reasons),
            "level": self.level,
            "signer": self.signer,
            "metrics": {name: asdict(summary) for name, summary in self.metrics.items()},
            "findings": [asdict(finding) for finding in self.findings],
        }
