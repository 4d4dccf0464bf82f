"""`hpcai500 accept`: the verdict on a system, with its evidence.

The system is compared with a contract, with older runs, or both; output is text, lines for harnesses, and JUnit XML.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hpcai500 import __version__
from hpcai500.campaign.journal import Campaign
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.files import scratch_folder
from hpcai500.methodology.statistics import CONFIDENCE
from hpcai500.progress import Tracker, silent
from hpcai500.results.acceptance.contract import QUALITY, Contract, RequireTable, shown
from hpcai500.results.acceptance.evidence import (
    Evidence,
    Requirement,
    Subject,
    Trust,
    Verified,
    check_requirements,
    is_submission,
    not_rankable,
    open_verified,
    read_evidence,
    subjects,
    with_submissions,
)
from hpcai500.results.acceptance.measured import (
    CriterionResult,
    Sources,
    WorstNode,
    check_against_baseline,
    check_criteria,
    read_ceilings,
    require_own_machine,
    worst_node,
)
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.text import UNKNOWN, aligned, count, legible, short


@dataclass(frozen=True)
class Request:
    """What is compared with what: with `contract`, `baseline` or both.

    Attributes:
        records: of the system: records, folders of series, campaigns, submission files.
        micro: files of `hpcai500 micro`.
        scaling: a file of `hpcai500 scale --json`.
        baseline: older runs of the same work.
        ratio: the least ratio of new to old results.
        trust: trusted keys and registration, in addition to those of the contract.
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
    """Requirements and criteria, each with its verdict, and their evidence.

    Attributes:
        sources: files of figures that were measured outside of the runs.
        not_rankable: why the runs are not results of HPC AI500; empty if they are.
    """

    request: Request
    evidence: Evidence
    subjects: tuple[Subject, ...]
    sources: tuple[GivenFile, ...]
    not_rankable: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    criteria: tuple[CriterionResult, ...]
    worst: WorstNode
    made: datetime

    @property
    def exit_code(self) -> int:
        """2 if a quality or a rule is wrong; 5 if a number is missed or missing; 6 if one is undecided; else 0."""
        rules = [requirement.verdict for requirement in self.requirements]
        qualities = [criterion.verdict for criterion in self.criteria if criterion.metric.name == QUALITY]
        if "fail" in (*rules, *qualities):
            return ExitCode.WRONG_ANSWER
        verdicts = {*rules, *(criterion.verdict for criterion in self.criteria)}
        if verdicts - {"pass", "undecided"}:
            return ExitCode.TOO_SLOW
        return ExitCode.UNDECIDED if "undecided" in verdicts else ExitCode.PASS

    @property
    def verdict(self) -> Literal["PASS", "UNDECIDED", "FAIL"]:
        match self.exit_code:
            case ExitCode.PASS:
                return "PASS"
            case ExitCode.UNDECIDED:
                return "UNDECIDED"
        return "FAIL"

    @property
    def word(self) -> str:
        return {"PASS": "Accepted", "UNDECIDED": "Undecided", "FAIL": "Not accepted"}[self.verdict]

    @property
    def confidence(self) -> float:
        """That of the intervals of runs."""
        required = self.request.contract.spec.require.confidence if self.request.contract else None
        return required or CONFIDENCE

    @property
    def warning(self) -> str:
        """That the runs are not results of HPC AI500; empty if they are, or if `rankable` is a requirement anyway."""
        reasons = self.not_rankable
        if not reasons or any(one.name == "rankable" for one in self.requirements):
            return ""
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"these runs are not HPC AI500 results: {short(reasons[0], 300)}{more}"

    @property
    def sentence(self) -> str:
        """The verdict and its reasons in one line."""
        broken = [one.name for one in self.requirements if one.verdict != "pass"]
        counts = Counter(one.verdict for one in self.criteria)
        parts = [text for text, _ in self.evidence.unfinished]
        parts += [f"{counts['pass']} of {len(self.criteria)} criteria are met"]
        parts += [f"{counts['fail']} missed"] if counts["fail"] else []
        parts += [f"{counts['missing']} not measured"] if counts["missing"] else []
        parts += [f"{counts['undecided']} undecided"] if counts["undecided"] else []
        parts += [f"requirements not met: {', '.join(broken)}"] if broken else []
        doubted = ", BUT IMPLAUSIBLE" if any(one.implausible for one in self.evidence.submissions) else ""
        return f"{self.word}{doubted}: {'; '.join(parts)}."

    @property
    def title(self) -> str:
        return self.request.contract.spec.title if self.request.contract else "Comparison with older runs"

    def document(self) -> dict[str, Any]:
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
            "confidence": self.confidence,
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
                    "path": self.evidence.with_submissions(campaign.path),
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
    """Compare the runs of `request` with its contract, its baseline, or both; `now` is the time of the verdict.

    Raises:
        UsageError: a path, a file or an option is wrong, or a run is named twice.
        WrongAnswerError: a submission or a signature is refused; a file or an old record contradicts its evidence.
        EnvironmentLacksError: submissions cannot be verified on this machine.
    """
    if request.contract is None and request.baseline is None:
        raise UsageError("accept: name a contract file first, or give --baseline OLD")
    now, trust = now or datetime.now(UTC), _trust(request)
    files = [path for path in request.records if is_submission(path)]
    if request.trust.signers and not (files or request.micro or request.scaling):
        raise UsageError("--signers: needs a file whose signer can be checked: give a submission, --micro or --scaling")
    if trust.registered and len(files) > 1:
        raise UsageError(f"--registered: is the identity of one campaign, but {len(files)} submissions are given")
    if not files:
        return _accept(request, request.records, (), trust, now)
    with scratch_folder(os.environ, Path.cwd()) as folder:
        opened = tuple(
            open_verified(path, Path(folder, f"submission-{number:06}"), trust, tracker)
            for number, path in enumerate(files, 1)
        )
        campaigns = {one.path: one.campaign for one in opened}
        try:
            return _accept(request, [campaigns.get(path, path) for path in request.records], opened, trust, now)
        except HpcAi500Error as error:
            raise type(error)(with_submissions(error, opened)) from error


def _trust(request: Request) -> Trust:
    """Add the options of the command line to the contract; they never replace what was agreed.

    Raises:
        UsageError: the two contradict each other.
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
    """Check `records`, some of which may be extracted campaigns of `submissions`."""
    evidence = read_evidence(records, submissions)
    spec = request.contract.spec if request.contract else None
    # Without a contract the rules are not required; `warning` still says if they are violated.
    require = spec.require if spec else RequireTable(rankable=False)
    reasons = not_rankable(evidence)
    files = tuple(read_ceilings(path, trust.signers) for path in request.micro)
    require_own_machine(files, evidence)
    scaling = given_file(request.scaling, trust.signers) if request.scaling else None
    sources = (*(file.source for file in files), *([scaling] if scaling else []))
    criteria: list[CriterionResult] = []
    if spec:
        criteria += check_criteria(spec.criteria, Sources(evidence, files, scaling, require))
    if request.baseline:
        criteria += check_against_baseline(request.baseline, evidence, request.ratio)
    compared = [evidence.on_nodes(name, require.nodes) or evidence.on_nodes(name, None) for name in evidence.benchmarks]
    return Acceptance(
        request=request,
        evidence=evidence,
        subjects=subjects(evidence),
        sources=sources,
        not_rankable=reasons,
        requirements=tuple(check_requirements(require, evidence, reasons, trust, sources)),
        criteria=tuple(criteria),
        worst=worst_node([run for runs in compared for run in runs], files),
        made=now,
    )


# ----------------------------------------------------------------------------------------------------
# The verdict for a terminal, and the stable lines for test harnesses.


_HALF = 6
# Margin at either end of a bar: the same on every page, so that bars can be compared.
_WIDEST = 0.10
_WORDS = {"pass": "pass", "fail": "FAIL", "missing": "MISSING", "undecided": "UNDECIDED"}
_HEADINGS = ("criterion", "contracted", "measured", "margin", "interval", "worse | better", "verdict")
# Values of single runs, shown for the statistic `every`.
_MOST_VALUES = 12
_MOST_RECORDS = 20


def acceptance_lines(acceptance: Acceptance) -> Iterator[str]:
    """Yield the whole verdict; the last line is the result for harnesses."""
    yield from _head(acceptance)
    yield ""
    yield "requirements"
    names = max(len(one.name) for one in acceptance.requirements)
    required = max(len(one.required) for one in acceptance.requirements)
    for one in acceptance.requirements:
        yield f"  {one.name:{names}}  {one.required:{required}}  {one.found:24}  {_WORDS[one.verdict]}".rstrip()
        if one.detail:
            yield f"    {one.detail}"
    yield ""
    yield from _table(acceptance.criteria, acceptance.confidence)
    yield ""
    yield f"worst {acceptance.worst.of:6} {acceptance.worst.sentence}"
    yield from (f"  {detail}" for detail in (*acceptance.worst.differences, *acceptance.worst.ceilings))
    yield ""
    if acceptance.warning:
        yield f"HPCAI500 NOTE {acceptance.warning}"
    yield acceptance.sentence
    yield from figure_of_merit_lines(acceptance.criteria)
    yield f"HPCAI500 RESULT {acceptance.verdict}"


def figure_of_merit_lines(criteria: Sequence[CriterionResult]) -> Iterator[str]:
    """Yield `HPCAI500 FOM accept_<criterion>=<measured> <unit>` and the margin of each measured criterion."""
    for one in criteria:
        if one.measured is not None and one.margin is not None:
            name = f"accept_{re.sub(r'[^a-z0-9]+', '_', one.name.lower()).strip('_')}"
            yield f"HPCAI500 FOM {name}={one.measured:.6g} {one.metric.unit}"
            yield f"HPCAI500 FOM {name}_margin={one.margin:.6g} fraction"


def contracted(one: CriterionResult) -> str:
    """The accepted values: `≥ 950 TFLOPS`, or `9.5 to 10.5 s`."""
    lowest, highest = one.limits.lowest, one.limits.highest
    if lowest is not None and highest is not None:
        return _span(one, lowest, highest)
    if lowest is not None:
        return f"≥ {shown(lowest, one.metric.unit, one.unit)}"
    return "any" if highest is None else f"≤ {shown(highest, one.metric.unit, one.unit)}"


def interval_text(one: CriterionResult) -> str:
    """`9.8 to 10.1 s`; a dash if there is none."""
    if one.interval is None:
        return "-"
    return _span(one, *one.interval)


def _span(one: CriterionResult, low: float, high: float) -> str:
    """Both ends, with the unit only once if it is the same."""
    first, last = (shown(end, one.metric.unit, one.unit) for end in (low, high))
    number, _, unit = first.partition(" ")
    return f"{number} to {last}" if unit == last.partition(" ")[2] else f"{first} to {last}"


def margin_text(one: CriterionResult) -> str:
    """`+5.3 %`, always with a sign."""
    if one.margin is None:
        return "-"
    percent = one.margin * 100
    # Two digits always show on which side of the limit the value is.
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.2g} %"


def reference_text(one: CriterionResult) -> str:
    """`950 TFLOPS, -5 %`: the value and the tolerance of the contract."""
    tolerances = [f"{part * 100:+.4g} %" for part in (one.limits.lower, one.limits.upper) if part]
    return ", ".join([shown(one.limits.reference, one.metric.unit, one.unit), *tolerances])


def measured_text(one: CriterionResult) -> str:
    """The measured value in the contract's unit: `≥ 3 h` if it is a lower bound."""
    if one.measured is None:
        return UNKNOWN
    return f"{'≥ ' if one.is_bound else ''}{shown(one.measured, one.metric.unit, one.unit)}"


def bar(one: CriterionResult) -> str:
    """A bar with the limit in the middle; the measured value is right of it if better, left if worse."""
    if one.margin is None:
        return ""
    cells = ["·"] * (2 * _HALF + 1)
    cells[_HALF] = "|"
    place = round(min(1.0, max(-1.0, one.margin / _WIDEST)) * _HALF)
    beyond = abs(one.margin) > _WIDEST
    sign = ("»" if one.margin > 0 else "«") if beyond else "●"
    # A narrow miss is still shown as a miss.
    if place == 0 and one.margin < 0:
        place = -1
    cells[_HALF + place] = sign
    return "".join(cells)


def _head(acceptance: Acceptance) -> Iterator[str]:
    request = acceptance.request
    yield acceptance.title
    if request.contract:
        spec = request.contract.spec
        yield f"contract    {request.contract.path} (SHA-256 {request.contract.sha256[:12]}…)" + (
            f", {spec.contract}" if spec.contract else ""
        )
        yield f"system      {spec.system.name}"
        for party in spec.parties:
            yield f"{short(party.role, 11):11} {party.name}"
    if request.baseline:
        yield f"baseline    {request.baseline}, at least {request.ratio:g} times as good"
    for one in acceptance.subjects:
        yield f"checked     {one.sentence}"
        yield f"            recipe {one.recipe_hash}" + (f", campaign {one.campaign}" if one.campaign else "")
    for submission in acceptance.evidence.submissions:
        yield f"submission  {submission.sentence}"
        yield from (f"            IMPLAUSIBLE: {finding}" for finding in submission.implausible)
        yield from (f"            not checked: {reason}" for reason in submission.not_checked)
    for source in acceptance.sources:
        yield f"figures     {source.sentence}"
    evidence = acceptance.evidence
    for campaign in evidence.campaigns:
        path = evidence.with_submissions(campaign.path)
        yield f"campaign    {path}: {attempts_text(campaign)} (journal {campaign.head[:12]}…)"
    alone = evidence.alone
    for run in alone[:_MOST_RECORDS]:
        yield f"record      {run.name} (last event {run.head[:12]}…)"
    if len(alone) > _MOST_RECORDS:
        yield f"            and {len(alone) - _MOST_RECORDS} more"


def attempts_text(campaign: Campaign) -> str:
    """`13 attempts: 10 done, 3 failed`: every started attempt counts."""
    states = Counter(attempt.status for attempt in campaign.attempts)
    text = ", ".join(f"{number} {status}" for status, number in states.most_common())
    return f"{count(len(campaign.attempts), 'attempt')}: {text}" if text else "no attempt"


def _table(criteria: Sequence[CriterionResult], confidence: float) -> Iterator[str]:
    rows = [
        (
            one.name,
            contracted(one),
            measured_text(one),
            margin_text(one),
            interval_text(one),
            bar(one),
            _WORDS[one.verdict],
        )
        for one in criteria
    ]
    headings = [f"{confidence * 100:g} % {name}" if name == "interval" else name for name in _HEADINGS]
    heading, *lines = aligned([headings, *rows], right=range(1, 5))
    yield heading
    for one, line in zip(criteria, lines, strict=True):
        yield line
        if one.note:
            yield f"  {one.note}"
        if one.statistic == "every" and len(one.values) > 1:
            yield f"  each: {', '.join(_values(one))}"
    width = f"{_WIDEST * 100:.0f} % of the contracted value"
    yield f"(bars: | is the limit, the dot the measured value; either end is {width} from the limit)"


def _values(one: CriterionResult) -> Iterator[str]:
    worst = min(one.values, key=one.limits.margin)
    for value in one.values[:_MOST_VALUES]:
        yield shown(value, one.metric.unit, one.unit) + (" (worst)" if value == worst else "")
    if len(one.values) > _MOST_VALUES:
        yield f"and {len(one.values) - _MOST_VALUES} more"


# ----------------------------------------------------------------------------------------------------
# JUnit XML for Jenkins and GitLab: a test case for each requirement and each criterion.


def junit_xml(acceptance: Acceptance) -> bytes:
    """Return the document in UTF-8; `legible` removes characters that XML 1.0 does not allow.

    A test case fails if a criterion is missed, and also if it is missing: a skipped test would count as passed.
    """
    requirements, criteria = acceptance.requirements, acceptance.criteria
    made = acceptance.made.strftime("%Y-%m-%dT%H:%M:%S")
    root = ET.Element("testsuites", _counts("hpcai500 accept", [*requirements, *criteria]))
    for name, ones in (("requirements", requirements), ("criteria", criteria)):
        suite = ET.SubElement(root, "testsuite", {**_counts(name, ones), "timestamp": made})
        properties = ET.SubElement(suite, "properties")
        for key, value in _properties(acceptance).items():
            ET.SubElement(properties, "property", {"name": key, "value": legible(value)})
        for one in ones:
            _case(suite, f"hpcai500.accept.{name}", one)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _counts(name: str, ones: Sequence[Requirement | CriterionResult]) -> dict[str, str]:
    failures = sum(one.verdict != "pass" for one in ones)
    return {
        "name": legible(name), "tests": str(len(ones)), "failures": str(failures), "errors": "0", "skipped": "0",
        "time": "0",
    }  # fmt: skip


def _properties(acceptance: Acceptance) -> dict[str, str]:
    contract = acceptance.request.contract
    return {
        "title": acceptance.title,
        "verdict": acceptance.verdict,
        "contract_sha256": contract.sha256 if contract else "",
        "system": contract.spec.system.name if contract else "",
        "judged": "; ".join(one.sentence for one in acceptance.subjects),
        "not_rankable": acceptance.warning,
        "implausible": "; ".join(text for one in acceptance.evidence.submissions for text in one.implausible),
        "hpcai500": __version__,
    }


def _case(suite: ET.Element, group: str, one: Requirement | CriterionResult) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": group, "name": legible(one.name), "time": "0"})
    if isinstance(one, Requirement):
        facts = {"required": one.required, "found": one.found, "detail": one.detail}
    else:
        facts = _of_criterion(one)
    text = "\n".join(f"{key}: {value}" for key, value in facts.items() if value)
    if one.verdict == "pass":
        ET.SubElement(case, "system-out").text = legible(text)
        return
    brief = ", ".join(f"{key} {value}" for key, value in list(facts.items())[:3] if value and value != "-")
    failure = ET.SubElement(case, "failure", {"message": legible(brief), "type": one.verdict})
    failure.text = legible(text)


def _of_criterion(one: CriterionResult) -> dict[str, str]:
    values = ", ".join(f"{value:.6g}" for value in one.values)
    return {
        "contracted": contracted(one),
        "measured": measured_text(one),
        "margin": margin_text(one),
        "interval": interval_text(one),
        "statistic": one.statistic or "",
        f"values in {one.metric.unit}": values,
        "clause": one.clause,
        "note": one.note,
    }
