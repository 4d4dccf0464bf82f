"""`hpcai500 accept`: the verdict on a system, with all that it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hpcai500 import __version__
from hpcai500.errors import ExitCode, UsageError
from hpcai500.results.acceptance.baseline import judge_against
from hpcai500.results.acceptance.ceilings import read_ceilings
from hpcai500.results.acceptance.criteria import Judged, judge_criteria
from hpcai500.results.acceptance.evidence import Evidence, read_evidence
from hpcai500.results.acceptance.measuring import Sources
from hpcai500.results.acceptance.requirements import Requirement, judge_requirements
from hpcai500.results.acceptance.spec import Contract, RequireTable
from hpcai500.results.acceptance.worst_node import WorstNode, worst_node


@dataclass(frozen=True)
class Request:
    """What is judged by what; one of `contract` and `baseline` at least.

    Attributes:
        contract: the contract, if there is one.
        records: of the system: records, folders of series, campaigns.
        micro: files of `hpcai500 micro`.
        scaling: a file of `hpcai500 scale --json`.
        baseline: older runs of the same work.
        ratio: of what the old runs reached, how much the new ones must.
    """

    contract: Contract | None
    records: Sequence[Path]
    micro: Sequence[Path] = ()
    scaling: Path | None = None
    baseline: Path | None = None
    ratio: float = 0.9


@dataclass(frozen=True)
class Acceptance:
    """Requirements and criteria, each with its verdict, and the runs that they rest on."""

    request: Request
    evidence: Evidence
    requirements: tuple[Requirement, ...]
    criteria: tuple[Judged, ...]
    worst: WorstNode
    made: datetime

    @property
    def exit_code(self) -> int:
        """2 where an answer or a rule is wrong; 5 where only a number is missed or missing; else 0."""
        rules = [requirement.verdict for requirement in self.requirements]
        answers = [judged.verdict for judged in self.criteria if judged.is_of_answers]
        if "fail" in (*rules, *answers):
            return ExitCode.WRONG_ANSWER
        verdicts = {*rules, *(judged.verdict for judged in self.criteria)}
        return ExitCode.PASS if verdicts == {"pass"} else ExitCode.TOO_SLOW

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        """For harnesses."""
        return "PASS" if self.exit_code == ExitCode.PASS else "FAIL"

    @property
    def sentence(self) -> str:
        """Why, in one line."""
        broken = [one.name for one in self.requirements if one.verdict != "pass"]
        counts = Counter(one.verdict for one in self.criteria)
        parts = [f"{counts['pass']} of {len(self.criteria)} criteria are kept"]
        parts += [f"{counts['fail']} missed"] if counts["fail"] else []
        parts += [f"{counts['missing']} not measured"] if counts["missing"] else []
        parts += [f"not kept: {', '.join(broken)}"] if broken else []
        return f"{'Accepted' if self.verdict == 'PASS' else 'Not accepted'}: {'; '.join(parts)}."

    @property
    def title(self) -> str:
        """Of the contract, or what was done."""
        return self.request.contract.spec.title if self.request.contract else "Comparison with older runs"

    def document(self) -> dict[str, Any]:
        """For programs."""
        contract = self.request.contract
        spec = contract.spec if contract else None
        return {
            "verdict": self.verdict,
            "exit_code": int(self.exit_code),
            "error": None,
            "title": self.title,
            "contract": {
                "file": str(contract.path),
                "sha256": contract.sha256,
                "number": contract.spec.contract or None,
            }
            if contract
            else None,
            "parties": [party.model_dump() for party in spec.parties] if spec else [],
            "system": spec.system.model_dump() if spec else None,
            "baseline": str(self.request.baseline) if self.request.baseline else None,
            "min_ratio": self.request.ratio if self.request.baseline else None,
            "requirements": [one.document() for one in self.requirements],
            "criteria": [one.document() for one in self.criteria],
            "worst_node": self.worst.document(),
            "records": [
                {
                    "record": run.name,
                    "last_event": run.head,
                    "benchmark": run.result.benchmark,
                    "edition": run.result.edition,
                    "level": run.result.level,
                    "rankable": run.result.rankable,
                    "nodes": run.result.nodes,
                    "ranks": run.result.world_size,
                }
                for run in self.evidence.runs
            ],
            "faults": [{"path": str(fault.path), "problem": fault.problem} for fault in self.evidence.faults],
            "campaigns": [
                {
                    "path": str(campaign.path),
                    "journal_head": campaign.head,
                    "attempts": dict(Counter(attempt.status for attempt in campaign.attempts)),
                }
                for campaign in self.evidence.campaigns
            ],
            "made": self.made.isoformat(timespec="seconds"),
            "version": __version__,
        }


def accept(request: Request, now: datetime | None = None) -> Acceptance:
    """Hold the runs of `request` against its contract, its baseline, or both.

    Args:
        request: what is judged by what.
        now: when that is; by default, now.

    Raises:
        UsageError: something is not what it should be: a path, a file, a run that is named twice.
        WrongAnswerError: a file or an old record says something else than its evidence.
    """
    if request.contract is None and request.baseline is None:
        raise UsageError("accept: name a contract file first, or give --baseline OLD")
    evidence = read_evidence(request.records)
    spec = request.contract.spec if request.contract else None
    require = spec.require if spec else RequireTable()
    files = read_ceilings(request.micro)
    criteria: list[Judged] = []
    if spec:
        criteria += judge_criteria(spec.criteria, Sources(evidence, files, request.scaling, require.nodes))
    if request.baseline:
        criteria += judge_against(request.baseline, evidence, request.ratio)
    judged = [evidence.on_nodes(name, require.nodes) or evidence.on_nodes(name, None) for name in evidence.benchmarks]
    return Acceptance(
        request=request,
        evidence=evidence,
        requirements=tuple(judge_requirements(require, evidence)),
        criteria=tuple(criteria),
        worst=worst_node([run for runs in judged for run in runs], files),
        made=now or datetime.now(UTC),
    )
