"""The evidence of an acceptance: runs, scored again from their events, and the requirements for all of them.

Submissions are verified first; verification finds their level and whether they are rankable. For a bare record these
come from the recipe alone, and only if its code is the code installed here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcai500.campaign.journal import Campaign, is_campaign, read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.files import why_not
from hpcai500.machine import Origin, origin_of_run, other_machine
from hpcai500.methodology.passes import Better, goal, reaches
from hpcai500.methodology.result import Result
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import benchmark_rules, tables_hash
from hpcai500.record import Record, iterate, last_hash, read_record
from hpcai500.results.acceptance.contract import RequireTable
from hpcai500.results.given_files import GivenFile
from hpcai500.results.score import expand, score, why_no_mean
from hpcai500.results.submission.claim import LEVELS
from hpcai500.results.submission.manifest import ACCOUNTING
from hpcai500.results.verification.facts import other_code
from hpcai500.results.verification.finding import Finding, Severity, Verification
from hpcai500.system.software import package_code_hash
from hpcai500.text import UNKNOWN, count, short, table, tables

if TYPE_CHECKING:
    from hpcai500.results.verification.context import Context


# ----------------------------------------------------------------------------------------------------
# Submissions: each is verified first, and its campaign is read only if nothing failed.


_SEVERITIES: dict[Severity, str] = {
    "fail": "failed",
    "warning": "with a warning",
    "note": "passed",
    "skipped": "skipped",
}


@dataclass(frozen=True)
class Trust:
    """What a submission is checked against.

    Attributes:
        signers: OpenSSH file of trusted keys.
        registered: identity of the campaign, registered before its first run.
    """

    signers: Path | None = None
    registered: str | None = None


@dataclass(frozen=True)
class Verified:
    """A submission that verification did not refuse.

    Attributes:
        campaign: folder of its extracted campaign.
        manifest_sha256: hash of the manifest, which has the hashes of all other files.
        not_checked: what was not checked, a sentence each.
    """

    path: Path
    campaign: Path
    manifest_sha256: str
    verification: Verification
    not_checked: tuple[str, ...]

    @property
    def counts(self) -> dict[Severity, int]:
        found = Counter(finding.severity for finding in self.verification.findings)
        return {severity: found[severity] for severity in _SEVERITIES}

    @property
    def implausible(self) -> tuple[str, ...]:
        """Findings that no honest run has shown, a line each."""
        return tuple(f"{one.name}: {one.evidence}" for one in self.verification.doubts)

    @property
    def sentence(self) -> str:
        counts = ", ".join(f"{self.counts[severity]} {words}" for severity, words in _SEVERITIES.items())
        return f"{self.path}: {self.verification.verdict} ({counts}); signed by {self.verification.signer}"

    def document(self) -> dict[str, Any]:
        manifest = self.verification.manifest
        return {
            "path": str(self.path),
            "verdict": self.verification.verdict,
            "signer": self.verification.signer,
            "manifest_sha256": self.manifest_sha256,
            "campaign": manifest.campaign if manifest else None,
            "findings": dict(self.counts),
            "warnings": [one.evidence for one in self.verification.findings if one.severity == "warning"],
            "implausible": list(self.implausible),
            "not_checked": list(self.not_checked),
        }


def is_submission(path: Path) -> bool:
    """Whether `path` is a submission file, by its name or its content."""
    return path.is_file() and (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path))


def open_verified(path: Path, folder: Path, trust: Trust, tracker: Tracker = silent) -> Verified:
    """Verify the submission in the file `path`, and copy its campaign to the new folder `folder`.

    Raises:
        WrongAnswerError: it is refused; with the first failure.
        UsageError: the file of signers cannot be read.
        EnvironmentLacksError: ssh-keygen is not installed.
    """
    from hpcai500.results.verification.verify import verify_submission  # only submissions need it

    kept: list[tuple[str, bool]] = []

    def keep(context: Context) -> Iterable[Finding]:
        """Copy the campaign, so that later steps read the same bytes that were verified."""
        accounted = any(name.startswith(f"{ACCOUNTING}/") for name in context.submission.entries)
        kept.append((hashlib.sha256(context.submission.manifest_bytes).hexdigest(), accounted))
        shutil.copytree(context.submission.campaign, folder)
        return ()

    verification = verify_submission(
        path, signers=trust.signers, registered=trust.registered, more_checks=(keep,), tracker=tracker
    )
    failed = next((one for one in verification.findings if one.severity == "fail"), None)
    if failed:
        raise WrongAnswerError(f"{path}: refused: {failed.name}: {failed.evidence} (all of it: hpcai500 verify {path})")
    ((manifest_sha256, accounted),) = kept
    return Verified(path, folder, manifest_sha256, verification, tuple(_not_checked(trust, accounted)))


def _not_checked(trust: Trust, accounting: bool) -> Iterator[str]:
    if trust.signers is None:
        yield "no trusted keys were given, so anyone may have signed: give --signers ALLOWED_SIGNERS"
    if trust.registered is None:
        yield "no registration was compared, so the plan may have been made after its runs: give --registered HASH"
    yield "no heads were compared, so runs may have been left out: hpcai500 verify FILE --heads HEADS"
    yield "no checkpoint was evaluated again: hpcai500 verify FILE --replay DATA"
    if not accounting:
        yield "no Slurm accounting is included, so only the records say when and where the runs took place"


def with_submissions(text: object, submissions: Sequence[Verified]) -> str:
    """`text` with the temporary folder of each extracted campaign replaced by its submission file."""
    shown = str(text)
    for one in submissions:
        shown = shown.replace(str(one.campaign), str(one.path))
    return shown


# ----------------------------------------------------------------------------------------------------
# Runs: of records, series, campaigns and submissions.


_NONE = "no level"


@dataclass(frozen=True)
class Run:
    """One finished run, with its `result` computed from its events.

    Attributes:
        name: its path or its submission, as shown to users.
        campaign: of the run; None if it is in none.
        submission: the source of its campaign; None if there is none.
        head: hash of its last event, which covers all events.
        level: lowest level that allows its changes; None if none does, or if it is unknown.
        level_text: the level, with the command that explains it, or why it is unknown.
        reasons: why it is not rankable; empty if it is.
    """

    name: str
    record: Record
    campaign: Campaign | None
    submission: Verified | None
    result: Result
    head: str
    level: str | None
    level_text: str
    reasons: tuple[str, ...]

    @cached_property
    def origin(self) -> Origin:
        """Where it took place; without hosts if a submission gives them other names."""
        found = origin_of_run(self.record.system)
        manifest = self.submission.verification.manifest if self.submission else None
        return replace(found, hosts=frozenset()) if manifest and manifest.anonymised else found


def last_value(record: Record, key: str) -> Mapping[str, Any]:
    """The table of the last event `key`; empty if there is none."""
    last = next(iterate(reversed(record.events), key), None)
    return table(last["value"]) if last else {}


@dataclass(frozen=True)
class Fault:
    """A record or campaign that is changed, broken or incomplete, and so is not evidence."""

    path: Path
    problem: str


@dataclass(frozen=True)
class Evidence:
    """All given runs, their campaigns and submissions, and those that cannot be used."""

    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]
    campaigns: tuple[Campaign, ...]
    submissions: tuple[Verified, ...] = ()

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.result.benchmark for run in self.runs))

    def on_nodes(self, benchmark: str | None, nodes: int | None) -> tuple[Run, ...]:
        """Runs of `benchmark` on `nodes` nodes; None means any benchmark, and the largest number of nodes."""
        runs = [run for run in self.runs if benchmark in (None, run.result.benchmark)]
        chosen = nodes or max((run.result.nodes for run in runs), default=0)
        return tuple(run for run in runs if run.result.nodes == chosen)

    @cached_property
    def alone(self) -> tuple[Run, ...]:
        """Runs without a campaign."""
        return tuple(run for run in self.runs if run.campaign is None)

    @cached_property
    def unfinished(self) -> tuple[tuple[str, str], ...]:
        """For each campaign with planned runs that have not ended: a sentence, and the command to continue it."""
        from_submissions = {one.campaign for one in self.submissions}
        return tuple(
            (
                f"{self.with_submissions(campaign.path)} is not finished: {len(campaign.done())} of "
                f"{count(len(campaign.trials), 'planned run')} have ended",
                "" if campaign.path in from_submissions else f"hpcai500 campaign run {campaign.path}",
            )
            for campaign in self.campaigns
            if len(campaign.done()) < len(campaign.trials)
        )

    def with_submissions(self, text: object) -> str:
        return with_submissions(text, self.submissions)


def read_evidence(paths: Sequence[Path], submissions: Sequence[Verified] = ()) -> Evidence:
    """Read the runs in `paths`: records, folders of series, campaigns.

    `submissions` are those whose extracted campaigns are among `paths`. Broken records become faults.

    Raises:
        UsageError: a path is none of these, or a run is named twice.
    """
    campaigns: list[Campaign] = []
    records: list[Path] = []
    runs: list[Run] = []
    faults: list[Fault] = []

    def fault(path: Path, error: Exception) -> None:
        # The path is shown before the message.
        problem = str(error).removeprefix(f"{path}: ").replace(f"{path}/", "")
        faults.append(Fault(Path(with_submissions(path, submissions)), with_submissions(problem, submissions)))

    for path in paths:
        try:
            records += _records_of(path, campaigns)
        except (RecordError, WrongAnswerError) as error:
            fault(path, error)
    # Refuses copies of a record, which would count as further runs.
    expand(records)
    heads = {campaign.record(attempt): attempt.head for campaign in campaigns for attempt in campaign.done()}
    within = {campaign.path: campaign for campaign in campaigns}
    opened, installed = {one.campaign: one for one in submissions}, package_code_hash()
    for record in records:
        campaign, submission = within.get(record.parent), opened.get(record.parent)
        try:
            runs.append(_read_run(record, campaign, submission, heads.get(record), installed))
        except (RecordError, WrongAnswerError) as error:
            fault(record, error)
    return Evidence(tuple(runs), tuple(faults), tuple(campaigns), tuple(submissions))


def not_rankable(evidence: Evidence) -> tuple[str, ...]:
    """Return why the runs or their campaigns are not rankable, a sentence each; empty if they are.

    For a submission, the findings of verification count; for another campaign its standing, which includes its runs;
    for a run without a campaign its own result. Code that was not compared counts against all but submissions.
    """
    return tuple(dict.fromkeys([*_against_runs(evidence), *_against_campaigns(evidence)]))


def _against_runs(evidence: Evidence) -> Iterator[str]:
    """Reasons against runs without a campaign; a reason against all of them is given once."""
    against: dict[str, list[Run]] = {}
    for run in evidence.alone:
        for reason in run.reasons:
            against.setdefault(reason, []).append(run)
    for reason, runs in against.items():
        if len(runs) == len(evidence.alone) > 1:
            yield f"all {count(len(runs), 'run')}: {reason}"
        else:
            yield from (f"{run.name}: {reason}" for run in runs)


def _against_campaigns(evidence: Evidence) -> Iterator[str]:
    verified = {one.campaign: one.verification.reasons for one in evidence.submissions}
    for campaign in evidence.campaigns:
        reasons = verified.get(campaign.path)
        if reasons is None:
            runs = (run for run in evidence.runs if run.campaign is campaign)
            code = (reason for run in runs for reason in run.reasons if reason not in run.result.reasons)
            reasons = (*standing(campaign).reasons, *code)
        # Reasons against all runs come first.
        ordered = sorted(reasons, key=lambda reason: not reason.startswith("all "))
        yield from (f"{evidence.with_submissions(campaign.path)}: {reason}" for reason in ordered)


_GIVEN = "folders that `hpcai500 ic`, `ewa` or `campaign` wrote"


def _records_of(path: Path, campaigns: list[Campaign]) -> list[Path]:
    if path.is_file():
        raise UsageError(f"{path}: a file, but not a submission: records are folders, submissions are ZIP files")
    if why := why_not("file" if path.suffix == ".zip" else "folder", path):
        raise UsageError(f"{path}: {why}; give {_GIVEN}")
    if is_campaign(path):
        campaign = read_campaign(path)
        campaigns.append(campaign)
        return [campaign.record(attempt) for attempt in campaign.done()]
    found = expand([path])
    if found == [path] and not (path / "events.jsonl").is_file() and not (path / "recipe.toml").is_file():
        raise UsageError(f"{path}: neither a record nor a campaign; give {_GIVEN}")
    return found


def _read_run(
    path: Path, campaign: Campaign | None, submission: Verified | None, expected: str | None, installed: str
) -> Run:
    """The run in `path`; `expected` is its last hash in the campaign's journal, `installed` the code hash here."""
    record = read_record(path)
    if record.status != "done":
        raise RecordError(f"{path}: the run is not finished{_ending(path)}")
    result = score(record)
    if not (path / "result.json").is_file():
        raise RecordError(f"{path}: the record is not complete: result.json is missing")
    head = last_hash((path / "events.jsonl").read_bytes())
    if expected is not None and head != expected:
        raise RecordError(f"{path}: not the record in the campaign's journal: its last event differs")
    name, level, reasons, command = str(path), result.level, tuple(result.reasons), f"rules {path}"
    if submission:
        found = submission.verification
        name, level, reasons = with_submissions(path, [submission]), found.level, found.reasons
        command = f"verify {submission.path}"
    level_text = f"{level or _NONE} (hpcai500 {command} says why)"
    if not submission and (unknown := other_code(record, result.level, installed)):
        level, level_text, reasons = None, unknown, (*reasons, unknown)
    return Run(name, record, campaign, submission, result, head, level, level_text, reasons)


def _ending(path: Path) -> str:
    file = path / "ERROR"
    text = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    return f": {text}" if text else ""


# ----------------------------------------------------------------------------------------------------
# Subjects: the work, data and machine of the runs, so that the parties see what they sign.


_MOST_NAME = 80
_INPUTS = {"real": "real", "synthetic": "SYNTHETIC", "memory": "NO DATA: from memory"}


@dataclass(frozen=True)
class Subject:
    """Runs of the same work, data and machine. Unknown is None.

    Attributes:
        dataset: its name in the recipe.
        input: `real` or `synthetic` files, or `memory` if no file was read.
        recipe_hash: of the resolved recipe, with the seed of the first trial of a campaign, or of the first run.
        target: target quality of the recipe.
        edition_target: target quality of the edition.
        achieved: quality of each run.
        precision: of the recipe.
        accelerators: number by name, over all nodes.
        campaign: its identity, which can be registered before the first run; None without a campaign.
    """

    benchmark: str
    edition: str
    dataset: str
    input: str
    training_samples: int | None
    evaluation_samples: int | None
    fingerprint: str | None
    recipe_hash: str
    metric: str
    target: float
    edition_target: float | None
    achieved: tuple[float | None, ...]
    precision: str | None
    accelerators: tuple[tuple[str, int], ...]
    ranks: int
    nodes: int
    runs: int
    campaign: str | None
    path: str | None
    better: Better = "higher"

    @property
    def sentence(self) -> str:
        """The subject in one line, without the hashes."""
        samples = f"{_counted(self.training_samples)} + {_counted(self.evaluation_samples)} samples"
        devices = ", ".join(f"{number} x {name}" for name, number in self.accelerators) or "no accelerator"
        return (
            f"{self.benchmark}, edition {self.edition}, on {short(self.dataset, _MOST_NAME)} "
            f"({_INPUTS.get(self.input, self.input)}, {samples}); {self.quality}; "
            f"{self.precision or UNKNOWN}, {devices}, {count(self.ranks, 'rank')} on {count(self.nodes, 'node')}, "
            f"{count(self.runs, 'run')}"
        )

    @property
    def quality(self) -> str:
        """`top1 0.7631 to 0.7649, target 0.763`, with the edition's target if the recipe's differs."""
        known = [value for value in self.achieved if value is not None]
        ends = list(dict.fromkeys(f"{value:.4f}" for value in (min(known), max(known)))) if known else [UNKNOWN]
        other = self.edition_target not in (None, self.target)
        fixed = f" (edition {self.edition} fixes {self.edition_target:g})" if other else ""
        return f"{short(self.metric, 30)} {' to '.join(ends)}, target {goal(self.target, self.better)}{fixed}"

    def document(self) -> dict[str, Any]:
        """The JSON document; `better` is only in that of a loss."""
        fields = {**asdict(self), "achieved": list(self.achieved), "accelerators": dict(self.accelerators)}
        if self.better == "higher":
            del fields["better"]
        return fields


def edition_target(edition: str, benchmark: str) -> float | None:
    """The target quality of an edition; None for an unknown benchmark."""
    target = benchmark_rules(edition, benchmark).get("target_quality")
    return None if target is None else float(target)


def subjects(evidence: Evidence) -> tuple[Subject, ...]:
    """Group the runs: those of one subject differ only in seed and achieved quality."""
    found: dict[str, Subject] = {}
    for run in evidence.runs:
        one = _subject(run, evidence)
        key = json.dumps([_without_seed(run.record.tables), one.document() | {"achieved": 0, "recipe_hash": 0}])
        if first := found.get(key):
            one = replace(first, achieved=(*first.achieved, *one.achieved), runs=first.runs + 1)
        found[key] = one
    return tuple(found.values())


def _subject(run: Run, evidence: Evidence) -> Subject:
    result, recipe, campaign = run.result, run.record.tables, run.campaign
    data = last_value(run.record, "dataset")
    precision = table(recipe.get("accelerator")).get("precision")
    return Subject(
        benchmark=result.benchmark,
        edition=result.edition,
        dataset=str(table(recipe.get("problem")).get("dataset")),
        input=result.input,
        training_samples=_integer(data.get("training_samples")),
        evaluation_samples=_integer(data.get("evaluation_samples")),
        fingerprint=None if data.get("fingerprint") is None else str(data["fingerprint"]),
        recipe_hash=str(campaign.start["recipe_hash"]) if campaign else tables_hash(recipe),
        metric=result.quality.metric,
        target=result.quality.target,
        edition_target=edition_target(result.edition, result.benchmark),
        achieved=(result.quality.achieved,),
        precision=None if precision is None else short(precision, _MOST_NAME),
        accelerators=tuple(_accelerators(run.record.system)),
        ranks=result.world_size,
        nodes=result.nodes,
        runs=1,
        campaign=campaign.identity if campaign else None,
        path=evidence.with_submissions(campaign.path) if campaign else None,
        better=result.quality.better,
    )


def _accelerators(system: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    devices = (device for node in tables(system.get("nodes")) for device in tables(node.get("accelerators")))
    yield from sorted(Counter(short(device.get("name"), _MOST_NAME) for device in devices).items())


def _without_seed(recipe: Mapping[str, Any]) -> str:
    return tables_hash({**recipe, "hyperparameters": {**table(recipe.get("hyperparameters")), "seed": None}})


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _counted(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


# ----------------------------------------------------------------------------------------------------
# Requirements for every run, whatever its speed.


Verdict = Literal["pass", "fail", "missing", "undecided"]
_NO_RUN = "no finished run"


@dataclass(frozen=True)
class Requirement:
    """One requirement, what was found, and its verdict.

    Attributes:
        verdict: `missing` if more runs would help; it counts as a missed number, not as a wrong result.
        detail: the first violation, and what to do.
    """

    name: str
    required: str
    found: str
    verdict: Verdict
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "detail": self.detail or None}


def check_requirements(
    require: RequireTable,
    evidence: Evidence,
    reasons: Sequence[str] = (),
    trust: Trust | None = None,
    sources: Sequence[GivenFile] = (),
) -> list[Requirement]:
    """Check each requirement.

    Complete records, reached targets, runs that belong together and finished campaigns are always required.

    Args:
        require: the requirements of the contract.
        reasons: why the runs are not rankable (`not_rankable`).
        trust: what the submissions were checked against.
        sources: files of figures that were measured outside of the runs.
    """
    found = [_whole(evidence), _quality(evidence.runs, by_edition=require.rankable), _alike(evidence)]
    if evidence.campaigns:
        found.append(_planned(evidence))
    if require.verified:
        found.append(_verified(evidence.runs))
    if trust and trust.registered:
        found.append(_registered(trust.registered, evidence.runs))
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


def _requirement(name: str, required: str, found: str, *, met: bool, detail: str = "") -> Requirement:
    return Requirement(name, required, found, "pass" if met else "fail", short(detail))


def _of_all(name: str, required: str, broken: Sequence[str], runs: int) -> Requirement:
    """A requirement for each run; `broken` has a line for each run that violates it."""
    found = f"{runs - len(broken)} of {count(runs, 'run')}" if runs else _NO_RUN
    return _requirement(name, required, found, met=runs > 0 and not broken, detail=broken[0] if broken else "")


def _whole(evidence: Evidence) -> Requirement:
    whole, broken = len(evidence.runs), len(evidence.faults)
    detail = "; ".join(f"{fault.path}: {fault.problem}" for fault in evidence.faults[:3])
    return _requirement(
        "records", "complete, unchanged",
        f"{whole} of {count(whole + broken, 'record')}" if whole or broken else _NO_RUN,
        met=whole > 0 and not broken, detail=detail,
    )  # fmt: skip


def _quality(runs: Sequence[Run], *, by_edition: bool) -> Requirement:
    """A recipe's own target counts only if the contract does not require the rules, as anyone can choose it."""
    broken = []
    for run in runs:
        quality = run.result.quality
        fixed = edition_target(run.result.edition, run.result.benchmark) if by_edition else None
        target = quality.target if fixed is None else fixed
        whose = "target" if fixed is None else f"target of edition {run.result.edition}"
        if quality.achieved is None or not reaches(quality.achieved, target, quality.better):
            achieved = "unknown" if quality.achieved is None else f"{quality.achieved:.4f}"
            broken.append(f"{run.name}: {quality.metric} is {achieved}, the {whose} is {goal(target, quality.better)}")
    required = "target quality reached" if by_edition else "the recipe's own target quality reached"
    return _of_all("right answers", required, broken, len(runs))


def _verified(runs: Sequence[Run]) -> Requirement:
    """Runs outside of a submission are not signed."""
    broken = [
        f"{run.name}: not in a submission: give the file that `hpcai500 submit` wrote"
        for run in runs
        if run.submission is None
    ]
    return _of_all("verified", "submission files that are verified", broken, len(runs))


def _signed(sources: Sequence[GivenFile]) -> Requirement:
    broken = [one.sentence for one in sources if one.signer is None]
    found = f"{len(sources) - len(broken)} of {count(len(sources), 'file')}" if sources else "no such file"
    return _requirement("signed", "files of micro and scale", found, met=not broken, detail=broken[0] if broken else "")


def _registered(identity: str, runs: Sequence[Run]) -> Requirement:
    """Only folders are compared here: verification compares submissions, also anonymised ones."""
    broken = [
        f"{run.name}: in {f'campaign {run.campaign.identity}' if run.campaign else 'no campaign'}, "
        "not in the registered one"
        for run in runs
        if run.submission is None and not (run.campaign and run.campaign.identity == identity)
    ]
    return _of_all("registered", f"campaign {identity[:12]}…", broken, len(runs))


def _alike(evidence: Evidence) -> Requirement:
    """Runs of one benchmark on one number of ranks must be fit to be averaged, and all must be of one machine."""
    groups: dict[tuple[str, int], list[Path]] = {}
    for run in evidence.runs:
        groups.setdefault((run.result.benchmark, run.result.world_size), []).append(run.record.path)
    reasons = [reason for group in groups.values() if len(group) > 1 and (reason := why_no_mean(group))]
    found = "they differ in more, or two are the same" if reasons else "they do"
    if not reasons and (other := _other_machine(evidence.runs)):
        reasons, found = [other], "they are of two machines"
    return _requirement(
        "runs belong together", "one machine; they differ in the seed only", found, met=not reasons,
        detail=evidence.with_submissions(reasons[0]) if reasons else "",
    )  # fmt: skip


def _other_machine(runs: Sequence[Run]) -> str | None:
    for run in runs[1:]:
        if found := other_machine(run.origin, runs[0].origin):
            return f"{run.name} ran on another machine than {runs[0].name}: {found}"
    return None


def _planned(evidence: Evidence) -> Requirement:
    """Leaving out planned runs, such as failed or slow ones, would be a way to choose the mean."""
    planned = sum(len(campaign.trials) for campaign in evidence.campaigns)
    done = sum(len(campaign.done()) for campaign in evidence.campaigns)
    unfinished = evidence.unfinished
    return _requirement(
        "planned runs", "all of the campaign are done", f"{done} of {count(planned, 'run')}", met=not unfinished,
        detail=": ".join(filter(None, unfinished[0])) if unfinished else "",
    )  # fmt: skip


def _edition(edition: str, runs: Sequence[Run]) -> Requirement:
    broken = [f"{run.name}: edition {run.result.edition}" for run in runs if run.result.edition != edition]
    return _of_all("edition", edition, broken, len(runs))


def _level(level: str, runs: Sequence[Run]) -> Requirement:
    allowed = LEVELS[: LEVELS.index(level) + 1]
    broken = [f"{run.name}: {run.level_text}" for run in runs if run.level not in allowed]
    return _of_all("level", level if level == LEVELS[0] else f"{level}, or stricter", broken, len(runs))


def _rankable(evidence: Evidence, reasons: Sequence[str]) -> Requirement:
    broken = [f"{run.name}: {run.reasons[0]}" for run in evidence.runs if run.reasons]
    requirement = _of_all("rankable", "yes", broken, len(evidence.runs))
    if reasons and not broken:
        return _requirement(requirement.name, requirement.required, "the campaign is not", met=False, detail=reasons[0])
    return requirement


def _nodes(nodes: int, runs: Sequence[Run]) -> Requirement:
    there = [run for run in runs if run.result.nodes == nodes]
    others = sorted({run.result.nodes for run in runs} - {nodes})
    found = f"{count(len(there), 'run')}" + (f"; others on {', '.join(map(str, others))}" if others else "")
    if there:
        return Requirement("nodes", f"runs on {nodes}", found, "pass")
    return Requirement("nodes", f"runs on {nodes}", found, "missing", f"run on {count(nodes, 'node')}")


def _runs(least: int, nodes: int | None, evidence: Evidence) -> Requirement:
    found = {benchmark: len(evidence.on_nodes(benchmark, nodes)) for benchmark in evidence.benchmarks}
    fewest = min(found.values(), default=0)
    detail = ""
    if fewest < least:
        benchmark = next((name for name, runs in found.items() if runs == fewest), "ic")
        how = f"hpcai500 campaign init, or hpcai500 {benchmark} --trials {least}"
        detail = f"make {least - fewest} more, each with another seed: {how}"
    text = ", ".join(f"{runs} of {name}" for name, runs in found.items()) or "none"
    return Requirement("runs", f"{least} or more", text, "pass" if fewest >= least else "missing", detail)
