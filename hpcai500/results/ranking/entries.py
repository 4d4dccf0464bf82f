"""From files that claim to be submissions to what can be ranked: the numbers of each, or why it has no place.

Each file is verified; whatever one of them does, the next one is looked at. Names that strangers chose are shown in one
line, with everything that cannot be printed spelt out.
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
from hpcai500.methodology.result import Quality
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.submission.signature import require_signers
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.copies import Runs, run_facts
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.streams import spelt_out
from hpcai500.text import short, table

# ----------------------------------------------------------------------------------------------------
# Names that strangers chose: one line, nothing hidden, nothing that overflows.
#
# Characters that cannot be printed, such as those that turn the direction of writing, are spelt out: a committee shall
# see that they are there.


# More combining marks on one letter serve to paint over the lines above and below.
_MOST_MARKS = 2
_MOST_LETTERS = 120
_MOST_READ = 2000


def shown(text: object, letters: int = _MOST_LETTERS) -> str:
    """`text` in one line of at most `letters`."""
    return short(_without_towers(spelt_out(short(text, _MOST_READ))), letters) or "unnamed"


def day(text: object) -> date | None:
    """The day (UTC) of a time in ISO 8601; None where it is none."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        return (moment.astimezone(UTC) if moment.tzinfo else moment).date()
    except (ValueError, OverflowError):
        return None


def _without_towers(text: str) -> str:
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
    """What a ranking shows of a submission beyond its verification.

    Attributes:
        manifest_sha256: names the submission, as the manifest holds the hashes of all other files.
        precision: of the recipe (layer 4).
        compression: of gradients between ranks (layer 3); None where there is none.
        report: the page about its runs; None where none was asked for, or none could be made (`report_problem`).
        runs: for each done run, by its name, the facts that identify it.
    """

    manifest_sha256: str
    precision: str | None = None
    compression: str | None = None
    report: str | None = None
    report_problem: str | None = None
    runs: Runs = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """One file: `verification` is None where it could not be verified, for the reason `problem`.

    `facts` is None where the file could not be read that far.
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
    told: Callable[[Examined], None] = lambda _: None,
) -> list[Examined]:
    """Verify each of `files`: what `hpcai500 submit` wrote, or something that claims to be.

    Args:
        signers: OpenSSH file of keys that are vouched for.
        heads: heads of journals, as they were given while campaigns ran.
        make_report: writes the page about a campaign while its submission is open.
        told: is called with each file after it was looked at.

    Raises:
        UsageError: none of them exists, or `signers` is no list of signers.
        EnvironmentLacksError, RunError: this machine cannot verify anything, or its disk is full.
    """
    if signers is not None:
        # Checked before the loop: an error of one file does not keep the others from being looked at.
        require_signers(signers)
    if files and not any(path.is_file() for path in files):
        raise UsageError(f"{files[0]}: no such file; give what `hpcai500 submit CAMPAIGN -o FILE` wrote")
    found = []
    for path in files:
        found.append(_examined(path, signers, heads, make_report, tracker))
        told(found[-1])
    return found


def facts_of(manifest: bytes, tables: Mapping[str, Any]) -> Facts:
    """The facts from the manifest's bytes and the campaign's recipe, in which anything may stand."""
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
        """A check that finds nothing: it collects facts while the submission's files lie open."""
        runs = {name: run_facts(record) for name, record in context.done.items()}
        facts = replace(facts_of(context.submission.manifest_bytes, context.campaign.tables), runs=runs)
        collected.append(_reported(facts, context.campaign, make_report) if make_report else facts)
        return ()

    try:
        verification = verify_submission(path, signers=signers, heads=heads, more_checks=(collect,), tracker=tracker)
    except (EnvironmentLacksError, RunError):
        # A full disk here, for instance: all other files would meet it too, and no submitter is to blame.
        raise
    except HpcAi500Error as error:
        return Examined(path, problem=shown(error, _MOST_PROBLEM))
    except OSError as error:
        return Examined(path, problem=shown(f"cannot be read: {error.strerror or error}", _MOST_PROBLEM))
    except Exception as error:  # noqa: BLE001 - no file may keep the others from being ranked
        return Examined(path, problem=shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM))
    facts = collected[0] if collected else None
    if facts and verification.verdict == "refused":
        # The page of a refused submission would say PASS of runs that do not hold.
        facts = replace(facts, report=None)
    return Examined(path, verification, facts=facts)


def _reported(facts: Facts, campaign: Campaign, make_report: ReportMaker) -> Facts:
    try:
        return replace(facts, report=make_report(campaign))
    except Exception as error:  # noqa: BLE001 - a page that cannot be made is no finding against a submission
        return replace(facts, report_problem=shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM))


# ----------------------------------------------------------------------------------------------------
# Entries: the numbers of one submission, or why it has no place.


Level = Literal["hardware", "system", "free"]
# From the strictest: who keeps the rules of one keeps those of all after it (V2.0 section 3.1).
LEVELS: tuple[Level, ...] = ("hardware", "system", "free")
Status = Literal["unverified", "not-rankable", "disputed", "duplicate"]
_MOST_REASON = 400
# Rankings show benchmarks in this order; plug-ins come after them.
_TITLES = {"ic": "Image Classification", "ewa": "Extreme Weather Analytics"}


@dataclass(frozen=True)
class Entry:
    """A submission that can be ranked. Numbers are computed from its events; names are its own words, cleaned.

    Attributes:
        edition: whose rules it was scored under.
        level: the lowest that allows what it changed.
        quality: the mean over the trials.
        trials: number of runs that count.
        world_size: ranks of each run, on `nodes` nodes.
        submitted: the day that its manifest names; None where that is no date.
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
        """What it is ranked by: the mean of the trials."""
        return self.verification.metrics["vflops"].mean

    @property
    def system(self) -> str:
        return shown(self.manifest.system)

    @property
    def organisation(self) -> str:
        """Who submits it."""
        return shown(self.manifest.organisation)

    @property
    def accelerators(self) -> str:
        """How many of which."""
        return shown(self.manifest.accelerators_in_words)

    @property
    def framework(self) -> str:
        """AI framework and version."""
        return shown(self.manifest.framework)

    @property
    def implementation(self) -> str:
        """Precision, and compression of gradients where there is one: V2.0 Fig. 14 distinguishes systems by both."""
        compression = self.facts.compression
        parts = (self.facts.precision, f"{compression} compression" if compression else None)
        return ", ".join(part for part in parts if part) or "unknown"

    def mean(self, metric: str) -> float | None:
        """Mean of a metric over the trials; None where a trial lacks it."""
        summary = self.verification.metrics.get(metric)
        return summary.mean if summary else None


@dataclass(frozen=True)
class Unranked:
    """A file without a place, and why."""

    examined: Examined
    status: Status
    reason: str

    @property
    def system(self) -> str | None:
        """What it calls itself; None where that cannot be read."""
        verification = self.examined.verification
        return shown(verification.manifest.system) if verification and verification.manifest else None


def benchmark_title(name: str) -> str:
    """The benchmark's full name; of a plug-in, the name that it has in recipes."""
    return _TITLES.get(name, shown(name))


def benchmark_order(name: str) -> tuple[int, str]:
    """Sort key of benchmarks."""
    known = list(_TITLES)
    return (known.index(name) if name in known else len(known)), name


def judged(examined: Examined) -> Entry | Unranked:
    """The numbers of one file, or why it has none."""
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
        return _unranked(examined, "not-rankable", "its runs give no VFLOPS")
    return _entry(examined, verification, verification.manifest, verification.level)


def _entry(examined: Examined, verification: Verification, manifest: Manifest, level: Level) -> Entry:
    # What could be verified to the end could be read to the end.
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
