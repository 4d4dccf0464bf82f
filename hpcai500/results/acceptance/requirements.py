"""What must hold of every run before its speed is worth a word: whole records, right answers, the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hpcai500.campaign.standing import standing
from hpcai500.results.acceptance.evidence import Evidence, Run
from hpcai500.results.acceptance.spec import RequireTable
from hpcai500.results.report.words import count, short
from hpcai500.results.score import why_no_mean

# The strictest first.
LEVELS = ("hardware", "system", "free")


@dataclass(frozen=True)
class Requirement:
    """One demand, what was found, and whether it is kept.

    Attributes:
        name: of the demand.
        required: what is demanded.
        found: what the records say.
        verdict: `missing` where more runs would do; it counts as a failure of speed, not of answers.
        detail: the first thing that breaks it, and what to do.
    """

    name: str
    required: str
    found: str
    verdict: Literal["pass", "fail", "missing"]
    detail: str = ""

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "detail": self.detail or None}


def judge_requirements(require: RequireTable, evidence: Evidence) -> list[Requirement]:
    """Each demand of a contract; whole records, right answers and runs that belong together are always demanded."""
    found = [_whole(evidence), _quality(evidence.runs), _alike(evidence)]
    if require.edition:
        found.append(_edition(require.edition, evidence.runs))
    if require.level:
        found.append(_level(require.level, evidence.runs))
    if require.rankable:
        found.append(_rankable(evidence))
    if require.nodes:
        found.append(_nodes(require.nodes, evidence.runs))
    if require.runs > 1:
        found.append(_runs(require.runs, require.nodes, evidence))
    return found


def _of_all(name: str, required: str, broken: Sequence[str], runs: int) -> Requirement:
    """A demand that each run keeps or breaks by itself."""
    kept = runs - len(broken)
    verdict: Literal["pass", "fail"] = "fail" if broken or not runs else "pass"
    return Requirement(name, required, f"{kept} of {count(runs, 'run')}", verdict, short(broken[0]) if broken else "")


def _whole(evidence: Evidence) -> Requirement:
    whole, broken = len(evidence.runs), len(evidence.faults)
    detail = "; ".join(f"{fault.path}: {fault.problem}" for fault in evidence.faults[:3])
    verdict: Literal["pass", "fail"] = "fail" if broken or not whole else "pass"
    return Requirement(
        "records", "complete, unchanged", f"{whole} of {count(whole + broken, 'record')}", verdict,
        short(detail) if whole or broken else "there is no finished run",
    )  # fmt: skip


def _quality(runs: Sequence[Run]) -> Requirement:
    broken = []
    for run in runs:
        quality = run.result.quality
        if quality.achieved is None or quality.achieved < quality.target:
            achieved = "unknown" if quality.achieved is None else f"{quality.achieved:.4f}"
            broken.append(f"{run.name}: {quality.metric} is {achieved}, the target is {quality.target:g}")
    return _of_all("right answers", "target quality reached", broken, len(runs))


def _alike(evidence: Evidence) -> Requirement:
    groups = [group for group in evidence.alike() if len(group) > 1]
    reasons = [reason for group in groups if (reason := why_no_mean([run.record.path for run in group]))]
    found = "they differ in more, or two are the same" if reasons else "so they do"
    return Requirement(
        "runs belong together", "they differ in the seed only", found, "fail" if reasons else "pass",
        short(reasons[0]) if reasons else "",
    )  # fmt: skip


def _edition(edition: str, runs: Sequence[Run]) -> Requirement:
    broken = [f"{run.name}: edition {run.result.edition}" for run in runs if run.result.edition != edition]
    return _of_all("edition", edition, broken, len(runs))


def _level(level: str, runs: Sequence[Run]) -> Requirement:
    allowed = LEVELS[: LEVELS.index(level) + 1]
    broken = [
        f"{run.name}: {run.result.level or 'of no level'} (hpcai500 rules {run.name} says why)"
        for run in runs
        if run.result.level not in allowed
    ]
    return _of_all("level", level if level == LEVELS[0] else f"{level}, or stricter", broken, len(runs))


def _rankable(evidence: Evidence) -> Requirement:
    broken = [f"{run.name}: {run.result.reasons[0]}" for run in evidence.runs if not run.result.rankable]
    reasons = [*broken, *_of_campaigns(evidence)]
    kept = _of_all("rankable", "yes", broken, len(evidence.runs))
    if reasons and not broken:
        return Requirement(kept.name, kept.required, "the campaign is not", "fail", short(reasons[0]))
    return kept


def _of_campaigns(evidence: Evidence) -> Iterator[str]:
    for campaign in evidence.campaigns:
        reasons = standing(campaign).reasons
        yield from (f"{campaign.path}: {reason}" for reason in reasons)


def _nodes(nodes: int, runs: Sequence[Run]) -> Requirement:
    there = [run for run in runs if run.result.nodes == nodes]
    others = sorted({run.result.nodes for run in runs} - {nodes})
    found = f"{count(len(there), 'run')}" + (f"; others on {', '.join(map(str, others))}" if others else "")
    verdict: Literal["pass", "missing"] = "pass" if there else "missing"
    return Requirement("nodes", f"runs on {nodes}", found, verdict, "" if there else f"run on {count(nodes, 'node')}")


def _runs(least: int, nodes: int | None, evidence: Evidence) -> Requirement:
    """So many runs of each benchmark on the nodes that are judged."""
    found = {benchmark: len(evidence.on_nodes(benchmark, nodes)) for benchmark in evidence.benchmarks}
    fewest = min(found.values(), default=0)
    detail = ""
    if fewest < least:
        benchmark = next((name for name, runs in found.items() if runs == fewest), "ic")
        how = f"hpcai500 campaign init, or hpcai500 {benchmark} --trials {least}"
        detail = f"make {least - fewest} more, each with a seed of its own: {how}"
    said = ", ".join(f"{runs} of {name}" for name, runs in found.items()) or "none"
    return Requirement("runs", f"{least} or more", said, "pass" if fewest >= least else "missing", detail)
