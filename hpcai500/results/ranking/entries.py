"""Verifies untrusted files and turns each into an entry of the ranking, or the reason why it has none.

An error in one file does not stop the others. Untrusted names become one line, with unprintable characters escaped.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from hpcai500.campaign.journal import Campaign, GivenHeads
from hpcai500.errors import EnvironmentLacksError, HpcAi500Error, RunError, UsageError
from hpcai500.files import why_not
from hpcai500.methodology.result import Quality
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.submission.signature import require_signers
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.copies import Runs, run_facts
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.streams import escaped
from hpcai500.text import short, table

# ----------------------------------------------------------------------------------------------------
# Untrusted names: one line, nothing hidden, no overflow.
#
# Unprintable characters, such as those that change the direction of writing, are escaped, so that a committee sees
# them.


# More combining marks on one letter would cover the lines above and below.
_MOST_MARKS = 2
_MOST_LETTERS = 120
_MOST_READ = 2000


def shown(text: object, letters: int = _MOST_LETTERS) -> str:
    """`text` as one line of at most `letters` characters."""
    return short(_without_stacked_marks(escaped(short(text, _MOST_READ))), letters) or "unnamed"


def day(text: object) -> date | None:
    """The day (UTC) of a time in ISO 8601; None if it is invalid."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        return (moment.astimezone(UTC) if moment.tzinfo else moment).date()
    except (ValueError, OverflowError):
        return None


def _without_stacked_marks(text: str) -> str:
    kept, marks = [], 0
    for letter in text:
        marks = marks + 1 if unicodedata.combining(letter) else 0
        if marks <= _MOST_MARKS:
            kept.append(letter)
    return "".join(kept)


# ----------------------------------------------------------------------------------------------------
# Verification of each file.


_MOST_NAME = 40
_MOST_PROBLEM = 400


@dataclass(frozen=True)
class Facts:
    """Facts of a submission in a ranking, besides its verification.

    Attributes:
        manifest_sha256: identifies the submission, as the manifest holds the hashes of all other files.
        precision: of the recipe (layer 4).
        compression: of gradients between ranks (layer 3); None without compression.
        report: the report of its runs; None if not requested, or if it failed (`report_problem`).
        runs: for each done run, by name, the facts that identify it.
    """

    manifest_sha256: str
    precision: str | None = None
    compression: str | None = None
    report: str | None = None
    report_problem: str | None = None
    runs: Runs = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """One file: `verification` is None if it could not be verified, for the reason `problem`.

    `facts` is None if the file could not be read.
    """

    file: Path
    verification: Verification | None = None
    problem: str | None = None
    facts: Facts | None = None


ReportMaker = Callable[[Campaign], str]


def examine(
    files: Sequence[Path],
    *,
    signers: Path | None = None,
    heads: GivenHeads | None = None,
    make_report: ReportMaker | None = None,
    tracker: Tracker = silent,
    report: Callable[[Examined], None] = lambda _: None,
) -> list[Examined]:
    """Verify each of `files`, which may be anything.

    Args:
        signers: OpenSSH file of trusted keys.
        heads: of journals, received while campaigns ran.
        make_report: makes the report of a campaign while its submission is open.
        report: called with each file after its verification.

    Raises:
        UsageError: none of the files exists, or `signers` is not a file of keys.
        EnvironmentLacksError, RunError: this machine cannot verify anything, or its disk is full.
    """
    if signers is not None:
        # Checked before the loop, in which an error of one file does not stop the others.
        require_signers(signers)
    if files and not any(path.is_file() for path in files):
        raise UsageError(
            f"{files[0]}: {why_not('file', files[0])}; give a file that `hpcai500 submit CAMPAIGN -o FILE` wrote"
        )
    found = []
    for path in files:
        found.append(_examined(path, signers, heads, make_report, tracker))
        report(found[-1])
    return found


def facts_of(manifest: bytes, tables: Mapping[str, Any]) -> Facts:
    """The facts from the manifest's bytes and the campaign's recipe, whose fields may have any type."""
    accelerator, communication = table(tables.get("accelerator")), table(tables.get("communication"))
    compression = communication.get("compression")
    return Facts(
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
        precision=shown(accelerator["precision"], _MOST_NAME) if "precision" in accelerator else None,
        compression=shown(compression, _MOST_NAME) if compression not in (None, "none") else None,
    )


def _examined(
    path: Path, signers: Path | None, heads: GivenHeads | None, make_report: ReportMaker | None, tracker: Tracker
) -> Examined:
    from hpcai500.results.verification.verify import verify_submission  # --published needs none of it

    collected: list[Facts] = []

    def collect(context: Context) -> Iterable[Finding]:
        """A check without findings, which collects facts while the submission is open."""
        runs = {name: run_facts(record) for name, record in context.done.items()}
        facts = replace(facts_of(context.submission.manifest_bytes, context.campaign.tables), runs=runs)
        collected.append(_reported(facts, context.campaign, make_report) if make_report else facts)
        return ()

    try:
        verification = verify_submission(path, signers=signers, heads=heads, more_checks=(collect,), tracker=tracker)
    except (EnvironmentLacksError, RunError):
        # A full disk, for instance, which is not the submitter's fault and would affect all files.
        raise
    except HpcAi500Error as error:
        return Examined(path, problem=shown(error, _MOST_PROBLEM))
    except OSError as error:
        return Examined(path, problem=shown(f"cannot be read: {error.strerror or error}", _MOST_PROBLEM))
    except Exception as error:  # noqa: BLE001 - no file may stop the ranking of the others
        return Examined(path, problem=shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM))
    facts = collected[0] if collected else None
    if facts and verification.verdict == "refused":
        # The report of a refused submission could say PASS.
        facts = replace(facts, report=None)
    return Examined(path, verification, facts=facts)


def _reported(facts: Facts, campaign: Campaign, make_report: ReportMaker) -> Facts:
    try:
        return replace(facts, report=make_report(campaign))
    except Exception as error:  # noqa: BLE001 - a missing report is not a reason against a submission
        return replace(facts, report_problem=shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM))


# ----------------------------------------------------------------------------------------------------
# Entries: the numbers of one submission, or why it is not ranked.


Level = Literal["hardware", "system", "free"]
# Strictest first: a result that keeps the rules of one keeps those of all after it (V2.0 section 3.1).
LEVELS: tuple[Level, ...] = ("hardware", "system", "free")
Status = Literal["unverified", "not-rankable", "disputed", "duplicate"]
_MOST_REASON = 400
# Order of benchmarks in rankings; plug-ins follow.
_TITLES = {"ic": "Image Classification", "ewa": "Extreme Weather Analytics"}


@dataclass(frozen=True)
class Entry:
    """A submission that can be ranked. Numbers are computed from its events; names are from its manifest, cleaned.

    Attributes:
        edition: of the rules that it was scored under.
        level: the lowest that allows its changes.
        quality: the mean over the trials.
        trials: number of runs that count.
        world_size: ranks of each run, on `nodes` nodes.
        submitted: the day in its manifest; None if that is not a date.
    """

    examined: Examined
    verification: Verification
    facts: Facts
    manifest: Manifest
    benchmark: str
    edition: str
    level: Level
    quality: Quality
    trials: int
    world_size: int
    nodes: int
    submitted: date | None

    @property
    def vflops(self) -> float:
        """The mean of the trials, which decides the rank."""
        return self.verification.metrics["vflops"].mean

    @property
    def system(self) -> str:
        return shown(self.manifest.system)

    @property
    def organisation(self) -> str:
        """The submitter."""
        return shown(self.manifest.organisation)

    @property
    def accelerators(self) -> str:
        """Number and type."""
        return shown(self.manifest.accelerators_in_words)

    @property
    def framework(self) -> str:
        """AI framework and version."""
        return shown(self.manifest.framework)

    @property
    def implementation(self) -> str:
        """Precision, and compression of gradients if any: V2.0 Fig. 14 distinguishes systems by both."""
        compression = self.facts.compression
        parts = (self.facts.precision, f"{compression} compression" if compression else None)
        return ", ".join(part for part in parts if part) or "unknown"

    def mean(self, metric: str) -> float | None:
        """Mean of a metric over the trials; None if a trial lacks it."""
        summary = self.verification.metrics.get(metric)
        return summary.mean if summary else None


@dataclass(frozen=True)
class Unranked:
    """A file that is not ranked, and why."""

    examined: Examined
    status: Status
    reason: str

    @property
    def system(self) -> str | None:
        """Name in its manifest; None if that cannot be read."""
        verification = self.examined.verification
        return shown(verification.manifest.system) if verification and verification.manifest else None


def benchmark_title(name: str) -> str:
    """The benchmark's full name; for a plug-in, its name in recipes."""
    return _TITLES.get(name, shown(name))


def benchmark_order(name: str) -> tuple[int, str]:
    """Sort key of benchmarks."""
    known = list(_TITLES)
    return (known.index(name) if name in known else len(known)), name


def entry_of(examined: Examined) -> Entry | Unranked:
    """The entry of one file, or why it has none."""
    verification = examined.verification
    if verification is None:
        return _unranked(examined, "unverified", examined.problem or "it could not be verified")
    failed = next((one for one in verification.findings if one.severity == "fail"), None)
    if failed:
        return _unranked(examined, "unverified", f"{failed.name}: {failed.evidence}")
    if not verification.rankable or verification.level not in LEVELS:
        reason = next(iter(verification.reasons), "no level allows what its recipe changes")
        return _unranked(examined, "not-rankable", reason)
    vflops = verification.metrics.get("vflops")
    has_rate = vflops is not None and math.isfinite(vflops.mean) and vflops.mean > 0
    if verification.manifest is None or not verification.results or not has_rate:
        return _unranked(examined, "not-rankable", "its runs have no VFLOPS")
    return _entry(examined, verification, verification.manifest, verification.level)


def _entry(examined: Examined, verification: Verification, manifest: Manifest, level: Level) -> Entry:
    # Set by `collect`, as no check failed.
    assert examined.facts is not None
    result = next(iter(verification.results.values()))
    metric = result.quality.metric
    quality = verification.metrics.get(metric)
    return Entry(
        examined=examined,
        verification=verification,
        facts=examined.facts,
        manifest=manifest,
        benchmark=result.benchmark,
        edition=result.edition,
        level=level,
        quality=Quality(metric=metric, achieved=quality.mean if quality else None, target=result.quality.target),
        trials=verification.metrics["vflops"].runs,
        world_size=result.world_size,
        nodes=result.nodes,
        submitted=day(manifest.created),
    )


def _unranked(examined: Examined, status: Status, reason: str) -> Unranked:
    return Unranked(examined, status, shown(reason, _MOST_REASON))
