"""Slurm's accounting, a second witness: a job's times and nodes must hold the run that says that it ran in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hpcai500.campaign.reading import Attempt
from hpcai500.record import Record, json_object
from hpcai500.results.submission.manifest import ACCOUNTING
from hpcai500.results.verification.checks.dates import SKEW_MS, in_words, stretches_of
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import nodes, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning
from hpcai500.results.verification.host_names import names_of_list, short_names

_NAME = "accounting"
# Rounded to whole seconds, and started a moment before the job's first process.
_SKEW_SECONDS = SKEW_MS / 1000
# Slurm counts a job that was suspended only while it ran.
_SUSPENDED_SECONDS = 60.0
_GOOD_STATES = ("COMPLETED", "RUNNING", "COMPLETING")

Job = Mapping[str, Any]


def check_accounting(context: Context) -> Iterator[Finding]:
    """Each attempt with the jobs that the journal names for it."""
    jobs = {number: _read(context, number) for number in _numbers(context)}
    found = [*_unnamed(context), *_missing(context, [number for number, job in jobs.items() if job is None])]
    found += [finding for number, job in jobs.items() if job for finding in _of_job(number, job)]
    looked_at = 0
    for name, record in context.records.items():
        attempt = context.attempts[name]
        found += _of_variables(name, attempt, record)
        own = [job for number in attempt.slurm_jobs if (job := jobs[number])]
        if own and len(own) == len(attempt.slurm_jobs):
            looked_at += 1
            found += _of_run(name, attempt, record, own)
    yield from found
    if not jobs:
        yield skipped(_NAME, "the journal names no Slurm job: nobody but the record tells when and where it ran")
    elif looked_at and not any(one.severity == "fail" for one in found):
        yield note(_NAME, f"times and nodes of {looked_at} runs lie within those of their Slurm jobs")


def _numbers(context: Context) -> list[str]:
    return list(dict.fromkeys(number for attempt in context.campaign.attempts for number in attempt.slurm_jobs))


def _unnamed(context: Context) -> Iterator[Finding]:
    """Slurm's launcher starts nothing outside of a job."""
    begun = [event["value"] for event in context.campaign.events if event["key"] in ("attempt_start", "attempt_resume")]
    odd = [value for value in begun if value.get("launcher") == "srun" and value["slurm_job_id"] is None]
    if odd:
        told = ", ".join(f"trial {value['trial']}, attempt {value['attempt']}" for value in odd[:8])
        yield warning(_NAME, f"{told}: started by srun, and the journal names no Slurm job")


def _path(number: str) -> str:
    return f"{ACCOUNTING}/{number}.json"


def _read(context: Context, number: str) -> Job | None:
    path = _path(number)
    return json_object(context.submission.folder / path) if path in context.submission.entries else None


def _missing(context: Context, numbers: Sequence[str]) -> Iterator[Finding]:
    """Jobs that the journal names, and whose accounting is not here, by the reason that is told."""
    told = {left.path: left.reason for left in context.submission.manifest.left_out}
    reasons: dict[str, list[str]] = {}
    for number in numbers:
        reasons.setdefault(told.get(_path(number), "no reason is told"), []).append(number)
    for reason, jobs in reasons.items():
        yield warning(_NAME, f"not here is the accounting of the Slurm jobs {', '.join(jobs)}: {reason}")


def _of_job(number: str, job: Job) -> Iterator[Finding]:
    """What the accounting of one job says of itself."""
    if job["job_id"] != number and "_" not in number and "+" not in number:
        yield fail(_NAME, f"{number}.json tells of the job {job['job_id']}")
    for run in (*job["earlier"], job):
        start, end, elapsed = _moment(run["start"]), _moment(run["end"]), run["elapsed_seconds"]
        if start is None or end is None or elapsed is None:
            continue
        if elapsed > end - start + _SKEW_SECONDS:
            yield fail(_NAME, f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}")
        elif elapsed < end - start - _SUSPENDED_SECONDS:
            evidence = f"job {number}: {elapsed} s elapsed between {run['start']} and {run['end']}"
            yield warning(_NAME, f"{evidence}: it was suspended for the rest, and so was what ran in it")


def _of_run(name: str, attempt: Attempt, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    """Whether the jobs of an attempt hold its run."""
    runs = [run for job in jobs for run in (*job["earlier"], job)]
    spans = [(_moment(run["start"]), _moment(run["end"])) for run in runs]
    known = [(start, end) for start, end in spans if start is not None]
    if len(known) < len(spans):
        yield warning(_NAME, f"{name}: its accounting does not tell when each of its jobs began")
    seconds = 0.0
    for stretch in stretches_of(name, record):
        start, stop = stretch.start_ms / 1000, stretch.stop_ms / 1000
        seconds += stop - start
        within = any(
            first - _SKEW_SECONDS <= start and (last is None or stop <= last + _SKEW_SECONDS) for first, last in known
        )
        if known and not within:
            told = f"{in_words(stretch.start_ms)} to {in_words(stretch.stop_ms)}"
            yield fail(_NAME, f"{name}: ran from {told}, and none of its Slurm jobs did: {_spans(runs)}")
    elapsed = [run["elapsed_seconds"] for run in runs]
    if None not in elapsed and seconds > sum(elapsed) + _SKEW_SECONDS:
        yield fail(_NAME, f"{name}: ran for {seconds:.0f} s, in Slurm jobs of {sum(elapsed)} s together")
    yield from _nodes(name, record, jobs)
    if attempt.status == "done" and str(jobs[-1]["state"]).partition(" ")[0] not in _GOOD_STATES:
        yield warning(_NAME, f"{name}: done, and its Slurm job {jobs[-1]['job_id']} ended as {jobs[-1]['state']}")


def _nodes(name: str, record: Record, jobs: Sequence[Job]) -> Iterator[Finding]:
    companies = [*values(record, "run_start"), *values(record, "run_resume")]
    most = max((job["nodes"] or 0 for job in jobs), default=0)
    for company in companies:
        if most and company["nodes"] > most:
            yield fail(_NAME, f"{name}: ran on {company['nodes']} nodes, its Slurm job had {most}")
    lists = [names_of_list(job["node_list"]) for job in jobs if job["node_list"] is not None]
    if not lists or None in lists:
        yield warning(_NAME, f"{name}: its accounting names no nodes that can be compared")
        return
    had = short_names(host for hosts in lists if hosts for host in hosts)
    strange = sorted(short_names(host for company in companies for host in company.get("hosts") or []) - had)
    if strange:
        yield fail(_NAME, f"{name}: ran on {', '.join(strange[:8])}, which its Slurm job did not have")


def _of_variables(name: str, attempt: Attempt, record: Record) -> Iterator[Finding]:
    """The job's number that the run itself saw."""
    seen = {str((node.get("environment") or {}).get("SLURM_JOB_ID")) for node in nodes(record)} - {"None"}
    for number in sorted(seen - set(attempt.slurm_jobs)):
        if attempt.slurm_jobs:
            told = ", ".join(attempt.slurm_jobs)
            yield fail(_NAME, f"{name}: ran in the Slurm job {number}; the journal says {told}")
        else:
            yield warning(_NAME, f"{name}: ran in the Slurm job {number}, which the journal does not name")


def _spans(runs: Sequence[Job]) -> str:
    return "; ".join(f"{run['start']} to {run['end']}" for run in runs[:4])


def _moment(text: str | None) -> float | None:
    """UNIX seconds of `2026-11-22T03:00:00Z`."""
    return None if text is None else datetime.fromisoformat(text).timestamp()
