"""From what was verified to what can be ranked: the numbers of one submission, or why it has no place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.ranking.cleaning import day, shown
from hpcai500.results.ranking.examined import Examined
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.verification.finding import Verification

Level = Literal["hardware", "system", "free"]
# From the strictest: whoever keeps the rules of one keeps those of all after it (V2.0 section 3.1).
LEVELS: tuple[Level, ...] = ("hardware", "system", "free")
Status = Literal["unverified", "not-rankable", "disputed", "duplicate"]
_MOST_REASON = 400
# In this order rankings show them; plug-ins come after them.
_TITLES = {"ic": "Image Classification", "ewa": "Extreme Weather Analytics"}


@dataclass(frozen=True)
class Quality:
    """Mean over the trials, with its metric's name and the target."""

    metric: str
    achieved: float | None
    target: float


@dataclass(frozen=True)
class Entry:
    """A submission that can be ranked. Numbers are computed from its events; names are its own words, cleaned.

    Attributes:
        examined: the file.
        manifest: what it says of itself.
        benchmark: of its runs.
        edition: of the rules that it was scored under.
        level: the lowest that allows what it changed.
        metrics: over the trials, by their names in result.json.
        quality: mean over the trials.
        trials: runs that count.
        world_size: ranks of each run.
        nodes: that they were on.
        submitted: the day that its manifest names; None where that is no date.
    """

    examined: Examined
    manifest: Manifest
    benchmark: str
    edition: str
    level: Level
    metrics: Mapping[str, TrialSummary]
    quality: Quality
    trials: int
    world_size: int
    nodes: int
    submitted: date | None

    @property
    def vflops(self) -> float:
        """What it is ranked by: the mean of the trials."""
        return self.metrics["vflops"].mean

    @property
    def system(self) -> str:
        """Name of the system."""
        return shown(self.manifest.system)

    @property
    def organisation(self) -> str:
        """Who submits."""
        return shown(self.manifest.organisation)

    @property
    def accelerators(self) -> str:
        """How many of what."""
        return shown(self.manifest.accelerators)

    @property
    def framework(self) -> str:
        """AI framework and version."""
        return shown(self.manifest.framework)

    @property
    def implementation(self) -> str:
        """Precision, and compression of gradients where there is one: what V2.0 Fig. 14 tells systems apart by."""
        facts = self.examined.facts
        parts = [facts.precision, f"{facts.compression} compression" if facts.compression else None] if facts else []
        return ", ".join(part for part in parts if part) or "unknown"

    def mean(self, metric: str) -> float | None:
        """Mean of a metric over the trials; None where a trial lacks it."""
        summary = self.metrics.get(metric)
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
    """The benchmark's full name; that of a plug-in is all that is known."""
    return _TITLES.get(name, shown(name))


def benchmark_order(name: str) -> tuple[int, str]:
    """To sort benchmarks by."""
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
    if verification.manifest is None or not verification.results or vflops is None or not _is_rate(vflops.mean):
        return _unranked(examined, "not-rankable", "its runs give no VFLOPS")
    return _entry(examined, verification, verification.manifest, verification.level)


def _entry(examined: Examined, verification: Verification, manifest: Manifest, level: Level) -> Entry:
    result = next(iter(verification.results.values()))
    metric = result.quality.metric
    quality = verification.metrics.get(metric)
    return Entry(
        examined=examined,
        manifest=manifest,
        benchmark=result.benchmark,
        edition=result.edition,
        level=level,
        metrics=verification.metrics,
        quality=Quality(metric, quality.mean if quality else None, result.quality.target),
        trials=verification.metrics["vflops"].runs,
        world_size=result.world_size,
        nodes=result.nodes,
        submitted=day(manifest.created),
    )


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _unranked(examined: Examined, status: Status, reason: str) -> Unranked:
    return Unranked(examined, status, shown(reason, _MOST_REASON))
