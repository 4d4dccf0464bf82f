"""`hpcai500 accept`: the verdict on a system, with all that it rests on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from hpcai500 import __version__
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.progress import Tracker, silent
from hpcai500.results.acceptance.baseline import judge_against
from hpcai500.results.acceptance.ceilings import read_ceilings
from hpcai500.results.acceptance.criteria import Judged, judge_criteria
from hpcai500.results.acceptance.evidence import Evidence, not_rankable, read_evidence
from hpcai500.results.acceptance.measuring import Sources
from hpcai500.results.acceptance.naming import renamed, renamed_text
from hpcai500.results.acceptance.requirements import Requirement, judge_requirements
from hpcai500.results.acceptance.spec import Contract, RequireTable
from hpcai500.results.acceptance.subjects import Subject, subjects
from hpcai500.results.acceptance.submissions import Trust, Verified, is_submission, open_verified, paths_shown
from hpcai500.results.acceptance.worst_node import WorstNode, worst_node
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.report.words import short
from hpcai500.scratch import scratch_folder


@dataclass(frozen=True)
class Request:
    """What is judged by what; one of `contract` and `baseline` at least.

    Attributes:
        contract: the contract, if there is one.
        records: of the system: records, folders of series, campaigns, submission files.
        micro: files of `hpcai500 micro`.
        scaling: a file of `hpcai500 scale --json`.
        baseline: older runs of the same work.
        ratio: of what the old runs reached, how much the new ones must.
        trust: what submission files, and files of figures, are held against, beyond what the contract says.
    """

    contract: Contract | None
    records: Sequence[Path]
    micro: Sequence[Path] = ()
    scaling: Path | None = None
    baseline: Path | None = None
    ratio: float = 0.9
    trust: Trust = field(default_factory=Trust)


@dataclass(frozen=True)
class Acceptance:
    """Requirements and criteria, each with its verdict, and the runs that they rest on.

    Attributes:
        request: what was judged by what.
        evidence: the runs.
        subjects: what they did, on what.
        sources: files of figures that were measured outside of the runs.
        not_rankable: why they are no results of HPC AI500; none if they are.
        requirements: what must hold of every run.
        criteria: what was contracted.
        worst: the slowest node.
        made: when it was judged.
    """

    request: Request
    evidence: Evidence
    subjects: tuple[Subject, ...]
    sources: tuple[GivenFile, ...]
    not_rankable: tuple[str, ...]
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
    def loud(self) -> str:
        """That these are no results of HPC AI500; empty where they are, or where that is a requirement anyway."""
        reasons = self.not_rankable
        if not reasons or any(one.name == "rankable" for one in self.requirements):
            return ""
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"these runs are not HPC AI500 results: {short(reasons[0], 300)}{more}"

    @property
    def sentence(self) -> str:
        """Why, in one line."""
        broken = [one.name for one in self.requirements if one.verdict != "pass"]
        counts = Counter(one.verdict for one in self.criteria)
        parts = [f"{counts['pass']} of {len(self.criteria)} criteria are kept"]
        parts += [f"{counts['fail']} missed"] if counts["fail"] else []
        parts += [f"{counts['missing']} not measured"] if counts["missing"] else []
        parts += [f"not kept: {', '.join(broken)}"] if broken else []
        doubted = ", BUT IMPLAUSIBLE" if any(one.implausible for one in self.evidence.submissions) else ""
        return f"{'Accepted' if self.verdict == 'PASS' else 'Not accepted'}{doubted}: {'; '.join(parts)}."

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
            "not_rankable": list(self.not_rankable),
            "judged": [one.document() for one in self.subjects],
            "submissions": [one.document() for one in self.evidence.submissions],
            "sources": [one.document() for one in self.sources],
            "requirements": [one.document() for one in self.requirements],
            "criteria": [one.document() for one in self.criteria],
            "worst_node": self.worst.document(),
            "records": [
                {
                    "record": run.name,
                    "last_event": run.head,
                    "benchmark": run.result.benchmark,
                    "edition": run.result.edition,
                    "level": run.level,
                    "rankable": not run.reasons,
                    "nodes": run.result.nodes,
                    "ranks": run.result.world_size,
                }
                for run in self.evidence.runs
            ],
            "faults": [{"path": str(fault.path), "problem": fault.problem} for fault in self.evidence.faults],
            "campaigns": [
                {
                    "path": str(campaign.path),
                    "identity": campaign.identity,
                    "journal_head": campaign.head,
                    "attempts": dict(Counter(attempt.status for attempt in campaign.attempts)),
                }
                for campaign in self.evidence.campaigns
            ],
            "made": self.made.isoformat(timespec="seconds"),
            "version": __version__,
        }


def accept(request: Request, now: datetime | None = None, tracker: Tracker = silent) -> Acceptance:
    """Hold the runs of `request` against its contract, its baseline, or both.

    Args:
        request: what is judged by what.
        now: when that is; by default, now.
        tracker: shows how far the verification of a submission is.

    Raises:
        UsageError: something is not what it should be: a path, a file, a run that is named twice.
        WrongAnswerError: a submission or a signature is refused; a file or an old record says something else than its
            evidence.
        EnvironmentLacksError: no submission can be verified here.
    """
    if request.contract is None and request.baseline is None:
        raise UsageError("accept: name a contract file first, or give --baseline OLD")
    now, trust = now or datetime.now(UTC), _trust(request)
    files = [path for path in request.records if is_submission(path)]
    if request.trust.signers and not (files or request.micro or request.scaling):
        raise UsageError(
            "--signers: says whose files are trusted, and none is given: a submission, --micro or --scaling"
        )
    if trust.registered and len(files) > 1:
        raise UsageError(f"--registered: one campaign has that identity, and {len(files)} submissions are judged")
    if not files:
        return _accept(request, request.records, (), trust, now)
    with scratch_folder(os.environ, Path.cwd()) as folder:
        opened = tuple(
            open_verified(path, Path(folder, f"submission-{number}"), trust, tracker)
            for number, path in enumerate(files, 1)
        )
        places = paths_shown(opened)
        campaigns = {file: campaign for campaign, file in places.items()}
        try:
            made = _accept(request, [campaigns.get(path, path) for path in request.records], opened, trust, now)
        except HpcAi500Error as error:
            raise type(error)(renamed_text(str(error), places)) from error
        return cast("Acceptance", renamed(made, places))


def _trust(request: Request) -> Trust:
    """What the command line adds to the contract; it never replaces what was agreed.

    Raises:
        UsageError: it says something else.
    """
    if request.contract is None:
        return request.trust
    require, trust = request.contract.spec.require, request.trust
    if require.registered and trust.registered not in (None, require.registered):
        raise UsageError(f"--registered {trust.registered}: the contract says {require.registered}")
    signers = request.contract.signers
    if signers and trust.signers and signers.resolve() != trust.signers.resolve():
        raise UsageError(f"--signers {trust.signers}: the contract says {signers}")
    return replace(trust, registered=require.registered or trust.registered, signers=signers or trust.signers)


def _accept(
    request: Request, records: Sequence[Path], submissions: tuple[Verified, ...], trust: Trust, now: datetime
) -> Acceptance:
    """The verdict on `records`, of which some may be campaigns of `submissions` that lie open."""
    evidence = read_evidence(records, submissions)
    spec = request.contract.spec if request.contract else None
    # Without a contract nobody has demanded the rules; that they are not kept is said all the same.
    require = spec.require if spec else RequireTable(rankable=False)
    reasons = not_rankable(evidence)
    files = read_ceilings(request.micro, trust.signers)
    scaling = given_file(request.scaling, trust.signers) if request.scaling else None
    sources = (*(file.source for file in files), *([scaling] if scaling else []))
    criteria: list[Judged] = []
    if spec:
        criteria += judge_criteria(spec.criteria, Sources(evidence, files, scaling, require.nodes, require.verified))
    if request.baseline:
        criteria += judge_against(request.baseline, evidence, request.ratio)
    judged = [evidence.on_nodes(name, require.nodes) or evidence.on_nodes(name, None) for name in evidence.benchmarks]
    return Acceptance(
        request=request,
        evidence=evidence,
        subjects=subjects(evidence),
        sources=sources,
        not_rankable=reasons,
        requirements=tuple(judge_requirements(require, evidence, reasons, trust, sources)),
        criteria=tuple(criteria),
        worst=worst_node([run for runs in judged for run in runs], files),
        made=now,
    )
