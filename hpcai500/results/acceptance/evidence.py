"""The runs that a system is judged by: their records, scored again from their events, and what is wrong with others.

Level and rank of a submission are those that its verification found. Of a bare record the recipe alone tells them, and
only where its code is the one that is installed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcai500.campaign.reading import Campaign, is_campaign, read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.chain import last_hash
from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.methodology.result import Result
from hpcai500.record import Record, read_record
from hpcai500.results.acceptance.submissions import Verified
from hpcai500.results.report.words import count
from hpcai500.results.score import expand, score_record
from hpcai500.results.verification.software import other_code
from hpcai500.system.versions import package_code_hash

_NONE = "of no level"


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        record: its record.
        result: its numbers, from its events.
        head: hash of its last event, which stands for all of them.
        level: lowest level that allows what was changed; None where none does, or where nobody can tell.
        level_told: the same in words, with the command that says why, or why nobody can tell.
        reasons: why it may not be ranked; none if it may be.
    """

    record: Record
    result: Result
    head: str
    level: str | None
    level_told: str
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.record.path)


@dataclass(frozen=True)
class Fault:
    """A record or a campaign that is changed, broken or not complete: what it says is no evidence."""

    path: Path
    problem: str


@dataclass(frozen=True)
class Evidence:
    """All runs that were given, the campaigns and submissions that they are of, and what cannot be used."""

    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]
    campaigns: tuple[Campaign, ...]
    submissions: tuple[Verified, ...] = ()

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        """Names of the benchmarks of the runs."""
        return tuple(dict.fromkeys(run.result.benchmark for run in self.runs))

    def on_nodes(self, benchmark: str | None, nodes: int | None) -> tuple[Run, ...]:
        """Runs of `benchmark` on so many nodes; None stands for any benchmark, and for the largest number of nodes."""
        runs = [run for run in self.runs if benchmark in (None, run.result.benchmark)]
        wanted = nodes or max((run.result.nodes for run in runs), default=0)
        return tuple(run for run in runs if run.result.nodes == wanted)

    def is_verified(self, run: Run) -> bool:
        """Whether `run` is of a submission."""
        return any(run.record.path.parent == one.campaign for one in self.submissions)

    def alike(self) -> Iterator[tuple[Run, ...]]:
        """The runs by what they have in common: the benchmark and the number of ranks."""
        kinds = dict.fromkeys((run.result.benchmark, run.result.world_size) for run in self.runs)
        for kind in kinds:
            yield tuple(run for run in self.runs if (run.result.benchmark, run.result.world_size) == kind)


def read_evidence(paths: Sequence[Path], submissions: Sequence[Verified] = ()) -> Evidence:
    """The runs in `paths`: records, folders of series, campaigns.

    Args:
        paths: where they lie.
        submissions: those whose campaigns, laid open, are among `paths`.

    Raises:
        UsageError: a path is none of these, or a run is named twice.
    """
    campaigns: list[Campaign] = []
    records: list[Path] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            records += _records_of(path, campaigns)
        except (RecordError, WrongAnswerError) as error:
            faults.append(Fault(path, _told(path, error)))
    # Refuses copies, which would count as runs.
    expand(records)
    vouched = {campaign.record(attempt): attempt.head for campaign in campaigns for attempt in campaign.done()}
    opened, ours = {one.campaign: one for one in submissions}, package_code_hash()
    runs: list[Run] = []
    for record in records:
        try:
            runs.append(_read_run(record, vouched.get(record), opened.get(record.parent), ours))
        except (RecordError, WrongAnswerError) as error:
            faults.append(Fault(record, _told(record, error)))
    return Evidence(tuple(runs), tuple(faults), tuple(campaigns), tuple(submissions))


def not_rankable(evidence: Evidence) -> tuple[str, ...]:
    """Why the runs, or the campaigns that they are of, may not be ranked: a sentence each, none if they may be.

    Of a submission what verification found counts; of another campaign its standing, in which those of its runs are;
    of a run of no campaign its own result. Code that nobody has compared is against whatever is of no submission.
    """
    return tuple(dict.fromkeys([*_against_runs(evidence), *_against_campaigns(evidence)]))


def _against_runs(evidence: Evidence) -> Iterator[str]:
    """What is against runs of no campaign; what is against all of them is said once."""
    folders = {campaign.path for campaign in evidence.campaigns}
    alone = [run for run in evidence.runs if run.record.path.parent not in folders]
    told: dict[str, list[Run]] = {}
    for run in alone:
        for reason in run.reasons:
            told.setdefault(reason, []).append(run)
    for reason, runs in told.items():
        if len(runs) == len(alone) > 1:
            yield f"all {count(len(runs), 'run')}: {reason}"
        else:
            yield from (f"{run.name}: {reason}" for run in runs)


def _against_campaigns(evidence: Evidence) -> Iterator[str]:
    verified = {one.campaign: one.verification.reasons for one in evidence.submissions}
    for campaign in evidence.campaigns:
        reasons = verified.get(campaign.path)
        if reasons is None:
            runs = (run for run in evidence.runs if run.record.path.parent == campaign.path)
            code = (reason for run in runs for reason in run.reasons if reason not in run.result.reasons)
            reasons = (*standing(campaign).reasons, *code)
        # What is against all runs weighs more than that one is missing.
        ordered = sorted(reasons, key=lambda reason: not reason.startswith("all "))
        yield from (f"{campaign.path}: {reason}" for reason in ordered)


def _records_of(path: Path, campaigns: list[Campaign]) -> list[Path]:
    if path.is_file():
        raise UsageError(f"{path}: a file, and no submission: records are folders, submissions are ZIP files")
    if is_campaign(path):
        campaign = read_campaign(path)
        campaigns.append(campaign)
        return [campaign.record(attempt) for attempt in campaign.done()]
    found = expand([path])
    if found == [path] and not (path / "events.jsonl").is_file() and not (path / "recipe.toml").is_file():
        what = "does not exist" if not path.exists() else "neither a record nor a campaign"
        raise UsageError(f"{path}: {what}: give folders that `hpcai500 ic`, `ewa` or `campaign` wrote")
    return found


def _read_run(path: Path, vouched: str | None, submission: Verified | None, ours: str) -> Run:
    record = read_record(path)
    if record.status != "done":
        raise RecordError(f"{path}: the run has not come to its end{_ending(path)}")
    result = score_record(path)
    if not (path / "result.json").is_file():
        raise RecordError(f"{path}: the record is not complete: result.json is missing")
    head = last_hash((path / "events.jsonl").read_bytes())
    if vouched is not None and head != vouched:
        raise RecordError(f"{path}: not the record that the campaign's journal vouches for: its last event differs")
    if submission:
        found = submission.verification
        told = f"{found.level or _NONE} (hpcai500 verify {submission.path} says why)"
        return Run(record, result, head, found.level, told, found.reasons)
    if unknown := other_code(record, result.level, ours):
        return Run(record, result, head, None, unknown, (*result.reasons, unknown))
    told = f"{result.level or _NONE} (hpcai500 rules {path} says why)"
    return Run(record, result, head, result.level, told, tuple(result.reasons))


def _ending(path: Path) -> str:
    file = path / "ERROR"
    said = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    return f": {said}" if said else ""


def _told(path: Path, error: Exception) -> str:
    """The message without the name of what it is about, which stands before it."""
    return str(error).removeprefix(f"{path}: ").replace(f"{path}/", "")
