"""What must hold of every run before its speed is worth a word: whole records, right answers, the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hpcai500.results.acceptance.evidence import Evidence, Run
from hpcai500.results.acceptance.spec import RequireTable
from hpcai500.results.acceptance.subjects import edition_target
from hpcai500.results.acceptance.submissions import Trust
from hpcai500.results.given_files import GivenFile
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


def judge_requirements(
    require: RequireTable,
    evidence: Evidence,
    reasons: Sequence[str] = (),
    trust: Trust | None = None,
    sources: Sequence[GivenFile] = (),
) -> list[Requirement]:
    """Each demand of a contract; whole records, right answers and runs that belong together are always demanded.

    Args:
        require: what the contract demands.
        evidence: the runs.
        reasons: why they are not rankable (`not_rankable`).
        trust: what the submissions were held against.
        sources: files of figures that were measured outside of the runs.
    """
    found = [_whole(evidence), _quality(evidence.runs, by_edition=require.rankable), _alike(evidence)]
    if require.verified:
        found.append(_verified(evidence))
    if trust and trust.registered:
        found.append(_registered(trust.registered, evidence))
    if require.signed:
        found.append(_signed(sources))
    if require.edition:
        found.append(_edition(require.edition, evidence.runs))
    if require.level:
        found.append(_level(require.level, evidence.runs))
    if require.rankable:
        found.append(_rankable(evidence, reasons))
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


def _quality(runs: Sequence[Run], *, by_edition: bool) -> Requirement:
    """The recipe's own target is anybody's to choose, so it counts only where the contract goes without the rules."""
    broken = []
    for run in runs:
        quality = run.result.quality
        fixed = edition_target(run.result.edition, run.result.benchmark) if by_edition else None
        target = quality.target if fixed is None else fixed
        whose = "target" if fixed is None else f"target of edition {run.result.edition}"
        if quality.achieved is None or quality.achieved < target:
            achieved = "unknown" if quality.achieved is None else f"{quality.achieved:.4f}"
            broken.append(f"{run.name}: {quality.metric} is {achieved}, the {whose} is {target:g}")
    required = "target quality reached" if by_edition else "the recipe's own target quality reached"
    return _of_all("right answers", required, broken, len(runs))


def _verified(evidence: Evidence) -> Requirement:
    """Whatever is no submission was signed by nobody."""
    broken = [
        f"{run.name}: of no submission: give the file that `hpcai500 submit` wrote"
        for run in evidence.runs
        if not evidence.is_verified(run)
    ]
    return _of_all("verified", "submission files that are verified", broken, len(evidence.runs))


def _signed(sources: Sequence[GivenFile]) -> Requirement:
    broken = [one.sentence for one in sources if one.signer is None]
    found = f"{len(sources) - len(broken)} of {count(len(sources), 'file')}" if sources else "no such file"
    verdict: Literal["pass", "fail"] = "fail" if broken else "pass"
    return Requirement("signed", "files of micro and scale", found, verdict, short(broken[0]) if broken else "")


def _registered(identity: str, evidence: Evidence) -> Requirement:
    """Verification has compared those of submissions, also where names of hosts were replaced in them."""
    good = {one.campaign for one in evidence.submissions}
    good |= {campaign.path for campaign in evidence.campaigns if campaign.identity == identity}
    own = {campaign.path: campaign.identity for campaign in evidence.campaigns}
    broken = [
        f"{run.name}: of {'campaign ' + own[folder] if folder in own else 'no campaign'}, not of the registered one"
        for run in evidence.runs
        if (folder := run.record.path.parent) not in good
    ]
    return _of_all("registered", f"campaign {identity[:12]}…", broken, len(evidence.runs))


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
    broken = [f"{run.name}: {run.level_told}" for run in runs if run.level not in allowed]
    return _of_all("level", level if level == LEVELS[0] else f"{level}, or stricter", broken, len(runs))


def _rankable(evidence: Evidence, reasons: Sequence[str]) -> Requirement:
    broken = [f"{run.name}: {run.reasons[0]}" for run in evidence.runs if run.reasons]
    kept = _of_all("rankable", "yes", broken, len(evidence.runs))
    if reasons and not broken:
        return Requirement(kept.name, kept.required, "the campaign is not", "fail", short(reasons[0]))
    return kept


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
