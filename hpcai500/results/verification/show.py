"""What verification found, for people: the verdict, what was computed, then each finding, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.results.verification.guard import one_line

_SEVERITIES = {"fail": "failed", "warning": "to be judged", "note": "found right, or not looked at"}
_MOST_TOLD = {"fail": 20, "warning": 10, "note": 2}
_SHOWN = ("vflops", "vflops_per_watt", "time_to_quality_seconds")
# Whatever is in a file, its makers could have written it so: this much is left to people.
_NOT_SHOWN = (
    "not shown by any file: that the runs were made at all (watch one, or --replay DATA), that no other campaign was "
    "thrown away (register its identity before the first run, then --registered HASH): docs/verification.md"
)


def verification_lines(path: Path, verification: Verification) -> Iterator[str]:
    """The verdict first; then a table of findings by severity."""
    counts = Counter[str](finding.severity for finding in verification.findings)
    told = ", ".join(f"{counts[severity]} {words}" for severity, words in _SEVERITIES.items() if counts[severity])
    yield f"{verification.verdict.upper()}  {path}: {told}"
    yield from _facts(verification)
    width = max((len(finding.name) for finding in verification.findings), default=0)
    for severity, words in _SEVERITIES.items():
        found = [finding for finding in verification.findings if finding.severity == severity]
        if found:
            yield ""
            yield f"{words}:"
            yield from _rows(found, width)
    yield ""
    yield _NOT_SHOWN


def _facts(verification: Verification) -> Iterator[str]:
    manifest = verification.manifest
    if manifest is None:
        return
    yield f"system      {one_line(manifest.system)} ({one_line(manifest.organisation)})"
    yield f"benchmark   {one_line(manifest.benchmark)}, edition {one_line(manifest.edition)}"
    yield f"level       {verification.level or 'none'}"
    yield f"rankable    {'yes' if verification.rankable else 'no'}"
    yield from (f"            {reason}" for reason in verification.reasons)
    yield f"signer      {verification.signer or 'nobody'}"
    for name in _SHOWN:
        if name in verification.metrics:
            yield f"{name:24}{_summary(verification.metrics[name])}"


def _summary(summary: TrialSummary) -> str:
    spread = f", variation {summary.variation:.2%}" if summary.variation is not None else ""
    return f"{summary.mean:.6g} (mean of {summary.runs} runs{spread})"


def _rows(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """One line each; of many by one name the first ones, as each record is looked at for itself."""
    names = dict.fromkeys(finding.name for finding in findings)
    for name in names:
        found = [finding for finding in findings if finding.name == name]
        most = _MOST_TOLD[found[0].severity]
        yield from (f"  {name:{width}}  {finding.evidence}" for finding in found[:most])
        if len(found) > most:
            yield f"  {'':{width}}  and {len(found) - most} more: --json has all of them"
