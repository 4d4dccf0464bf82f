"""A ranking for programs: numbers never scaled, what is unknown null."""

from __future__ import annotations

from typing import Any

from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import LEVELS, Level, Unranked
from hpcai500.results.ranking.ranking import Group, Ranked, Ranking

_MOST_PATH = 1000


def ranking_document(ranking: Ranking, level: Level | None = None, benchmark: str | None = None) -> dict[str, Any]:
    """`{entries, unverified}`: an entry for each ranked submission, in order.

    Args:
        ranking: all of it.
        level: only what stands in its lists; `rank` is then the place there, else that at the submission's own level.
        benchmark: only of this one.
    """
    return {
        "entries": [
            _entry_document(one, group, level or one.entry.level)
            for group in ranking.groups
            if benchmark in (None, group.benchmark)
            for one in (group.standing_in(level) if level else group.entries)
        ],
        "unverified": [_unranked_document(one) for one in ranking.unranked],
    }


def _entry_document(ranked: Ranked, group: Group, level: Level) -> dict[str, Any]:
    entry, facts = ranked.entry, ranked.entry.examined.facts
    verification = entry.examined.verification
    summary = entry.metrics["vflops"]
    return {
        "rank": ranked.ranks[level],
        "list": level,
        "benchmark": group.benchmark,
        "edition": group.edition,
        "level": entry.level,
        "ranks": {name: ranked.ranks.get(name) for name in LEVELS},
        "system": entry.system,
        "organisation": entry.organisation,
        "accelerators": entry.accelerators,
        "framework": entry.framework,
        "date": entry.submitted.isoformat() if entry.submitted else None,
        "vflops": summary.mean,
        "vflops_variation": summary.variation,
        "vflops_per_watt": entry.mean("vflops_per_watt"),
        "flops": entry.mean("flops"),
        "seconds": entry.mean("seconds"),
        "time_to_quality_seconds": entry.mean("time_to_quality_seconds"),
        "quality": {
            "metric": entry.quality.metric,
            "achieved": entry.quality.achieved,
            "target": entry.quality.target,
        },
        "trials": entry.trials,
        "world_size": entry.world_size,
        "nodes": entry.nodes,
        "precision": facts.precision if facts else None,
        "compression": facts.compression if facts else None,
        "campaign": entry.manifest.campaign,
        "manifest_sha256": facts.manifest_sha256 if facts else None,
        "signer": verification.signer if verification else None,
        "claimed_by": list(ranked.claimed_by),
        "warnings": sum(one.severity == "warning" for one in verification.findings) if verification else 0,
        "file": shown(entry.examined.file, _MOST_PATH),
    }


def _unranked_document(one: Unranked) -> dict[str, Any]:
    verification = one.examined.verification
    return {
        "file": shown(one.examined.file, _MOST_PATH),
        "system": one.system,
        "status": one.status,
        "reason": one.reason,
        "verdict": verification.verdict if verification else None,
    }
