"""What verification found, for people: the verdict, what was computed, then each finding, worst first."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.show import scaled
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.results.verification.guard import one_line

_SEVERITIES = {"fail": "failed", "warning": "to be judged", "note": "hold", "skipped": "not checked"}
_MOST_TOLD = {"fail": 20, "warning": 10, "note": 2, "skipped": 5}
_SHOWN = ("vflops", "vflops_per_watt", "time_to_quality_seconds")
# Narrower, names and their evidence would not fit beside each other.
_LEAST_WIDTH = 60
_INDENT = " " * 12


def verification_lines(
    path: Path,
    verification: Verification,
    *,
    replayed: bool = False,
    registered: bool = False,
    heads: bool = False,
    width: int = 100,
) -> Iterator[str]:
    """The verdict first; then a table of findings by severity.

    Args:
        path: the submission.
        verification: what was found in it.
        replayed: whether a replay was asked for.
        registered: whether it was compared with a registered identity.
        heads: whether its journal was compared with heads that were given while it was written.
        width: of a line, in characters.
    """
    width = max(width, _LEAST_WIDTH)
    counts = Counter[str](finding.severity for finding in verification.findings)
    told = ", ".join(f"{counts[severity]} {words}" for severity, words in _SEVERITIES.items() if counts[severity])
    doubts = ", BUT IMPLAUSIBLE" if verification.verdict == "verified" and verification.doubts else ""
    yield f"{verification.verdict.upper()}{doubts}  {path}: {told}"
    yield from _facts(verification, width)
    names = max((len(finding.name) for finding in verification.findings), default=0)
    for severity, words in _SEVERITIES.items():
        found = [finding for finding in verification.findings if finding.severity == severity]
        if found:
            yield ""
            yield f"{words}:"
            yield from _rows(found, names, width)
    if verification.verdict == "verified":
        yield ""
        yield from _wrapped("", _not_shown(replayed=replayed, registered=registered, heads=heads), width)


def _not_shown(*, replayed: bool, registered: bool, heads: bool) -> str:
    """Whatever is in a file, its makers could have written it so: this much is left to people."""
    made = "that the runs were made at all (watch one, or --replay DATA)"
    open_questions = ["that these weights come from these runs (watch one)" if replayed else made]
    if not registered:
        open_questions.append(
            "that the plan was made before the runs (register its identity before the first one, then "
            "--registered HASH)"
        )
    if not heads:
        open_questions.append(
            "that no better copy of the campaign was chosen (collect heads while it runs, then --heads FILE)"
        )
    open_questions.append("that nothing was run outside of the campaign (ask the site for its accounting)")
    return f"not shown by any file: {', '.join(open_questions)}: docs/verification.md"


def _facts(verification: Verification, width: int) -> Iterator[str]:
    manifest = verification.manifest
    if manifest is None:
        return
    yield f"system      {one_line(manifest.system)} ({one_line(manifest.organisation)})"
    yield f"benchmark   {one_line(manifest.benchmark)}, edition {one_line(manifest.edition)}"
    yield f"level       {verification.level or 'none'}"
    yield f"rankable    {'yes' if verification.rankable else 'no'}"
    for reason in verification.reasons:
        yield from _wrapped(_INDENT, reason, width)
    yield f"signer      {verification.signer or 'nobody'}"
    for name in _SHOWN:
        if name in verification.metrics:
            yield f"{name:24}{_summary(name, verification.metrics[name])}"


def _summary(name: str, summary: TrialSummary) -> str:
    spread = f", variation {summary.variation:.2%}" if summary.variation is not None else ""
    return f"{_quantity(name, summary.mean)} (mean of {summary.runs} runs{spread})"


def _quantity(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return f"{value:.1f} s"
    return scaled(value, "FLOPS") + ("/W" if name.endswith("per_watt") else "")


def _rows(findings: Sequence[Finding], names: int, width: int) -> Iterator[str]:
    """Each with its name; of many by one name the first ones, as each record is looked at for itself."""
    for name in dict.fromkeys(finding.name for finding in findings):
        found = [finding for finding in findings if finding.name == name]
        most = _MOST_TOLD[found[0].severity]
        for finding in found[:most]:
            yield from _wrapped(f"  {name:{names}}  ", finding.evidence, width)
        if len(found) > most:
            yield f"  {'':{names}}  and {len(found) - most} more: --json has all of them"


def _wrapped(beginning: str, text: str, width: int) -> list[str]:
    """`text` after `beginning`, in lines that hang below its first word; hashes and paths stay in one piece."""
    indent = " " * len(beginning)
    lines = textwrap.wrap(
        text, width, initial_indent=beginning, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [beginning.rstrip()]
