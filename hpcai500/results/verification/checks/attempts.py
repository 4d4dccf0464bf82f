"""Every run that was begun is here, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpcai500.campaign.binding import folder_reasons
from hpcai500.campaign.reading import NO_EVENTS
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import SHORT_STARTS, Finding
from hpcai500.results.verification.guard import fail, note, warning
from hpcai500.results.verification.software import is_campaign_of_our_version

_NAME = "attempts"
# So many starts that ended before so much of their epochs was over can have been looked at, and thrown away.
_MANY, _SHARE = 3, 0.1
_TELL_SPEED = ("ceilings", "rehearsal", "parallel_efficiency", "run_start", "epoch_start")


def check_attempts(context: Context) -> Iterator[Finding]:
    """The journal's attempts, one by one, and the folders of the campaign."""
    found = [
        *_untold(context),
        *_numbers(context),
        *_missing(context),
        *_foreign(context),
        *_ends(context),
        *_short(context),
    ]
    yield from found
    if not any(one.severity == "fail" for one in found):
        attempts = context.campaign.attempts
        counted = Counter(attempt.status for attempt in attempts)
        told = ", ".join(f"{count} {status}" for status, count in counted.items()) or "none"
        yield note(
            _NAME, f"{len(attempts)} attempts at {len(context.campaign.trials)} planned runs: {told}; all are here"
        )


# What this version writes into the journal, event by event.
_FIELDS = {
    "campaign_start": ("data", "version", "code_sha256"),
    "attempt_start": ("command", "launcher", "slurm_job_id"),
    "attempt_resume": ("command", "launcher", "slurm_job_id"),
    "attempt_stop": ("exit_code", "head", "reason"),
}


def _untold(context: Context) -> Iterator[Finding]:
    if not is_campaign_of_our_version(context):
        return
    for event in context.campaign.events:
        if missing := [name for name in _FIELDS.get(event["key"], ()) if name not in event["value"]]:
            yield fail(_NAME, f"line {event['seq'] + 1} of the journal: {event['key']} lacks {', '.join(missing)}")


def _numbers(context: Context) -> Iterator[Finding]:
    planned = [trial.trial for trial in context.campaign.trials]
    if planned != list(range(1, len(planned) + 1)):
        yield fail(_NAME, f"the plan numbers its trials {planned}; expected 1, 2, 3 …")
    for trial in sorted({attempt.trial for attempt in context.campaign.attempts}):
        numbers = [attempt.attempt for attempt in context.campaign.attempts_at(trial)]
        if trial not in planned:
            yield fail(_NAME, f"trial {trial} was run and is not in the plan")
        if numbers != list(range(1, len(numbers) + 1)):
            yield fail(_NAME, f"trial {trial} has the attempts {numbers}; expected 1, 2, 3 …: one was taken out")


def _missing(context: Context) -> Iterator[Finding]:
    for name, attempt in context.attempts.items():
        if name in context.records or name in context.unreadable:
            continue
        # A folder in which nothing was written yet is in no bundle.
        if attempt.status == "done" or attempt.head not in (None, NO_EVENTS):
            yield fail(_NAME, f"{name}: the journal names it, and it is not here")
        else:
            yield warning(_NAME, f"{name}: {attempt.status} before it had a record: {attempt.reason or 'no reason'}")


def _foreign(context: Context) -> Iterator[Finding]:
    for reason in folder_reasons(context.campaign):
        yield fail(_NAME, reason)


def _ends(context: Context) -> Iterator[Finding]:
    done = Counter(attempt.trial for attempt in context.campaign.done())
    for trial in sorted(trial for trial, times in done.items() if times > 1):
        yield warning(
            _NAME, f"trial {trial} came to its end {done[trial]} times: the better one may have been wished for"
        )
    for name, attempt in context.attempts.items():
        starts = (
            sum(event["key"] == "init_start" for event in context.records[name].events)
            if name in context.records
            else 0
        )
        if starts > len(attempt.commands):
            yield warning(
                _NAME, f"{name}: {starts} processes worked on it, and the journal tells of {len(attempt.commands)}"
            )
        if attempt.status == "running":
            yield warning(_NAME, f"{name}: the journal tells no end of it: it was killed, or runs still")


def _short(context: Context) -> Iterator[Finding]:
    """Attempts that told how fast they are and ended early: whoever knows that can wish for another start."""
    short = [
        name
        for name, record in context.records.items()
        if context.attempts[name].status != "done"
        and any(event["key"] in _TELL_SPEED for event in record.events)
        and sum(event["key"] == "eval_stop" for event in record.events)
        <= max(1, int(_SHARE * int(record.tables["problem"]["epochs"])))
    ]
    if len(short) >= _MANY:
        what = (
            f"{len(short)} of {len(context.attempts)} attempts ended in their first epochs, when their speed was known"
        )
        yield warning(SHORT_STARTS, f"{what}: starts may have been thrown away: {', '.join(short[:8])}")
