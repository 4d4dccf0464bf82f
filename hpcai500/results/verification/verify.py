"""Verifies a submission: opens it in a scratch folder, computes all results again, and reports every difference.

The list of checks (docs/verification.md has a row for each finding), the verdict, and the text report.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.files import scratch_folder, why_not
from hpcai500.methodology.events import read_log
from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.progress import Progress, Tracker, silent
from hpcai500.recipe import rulebook
from hpcai500.record import Record
from hpcai500.results.submission.archive import extracted_bytes, open_submission
from hpcai500.results.submission.signature import check_signature, require_signers
from hpcai500.results.verification import archive, campaign, copies, dates, run_events, run_numbers, run_system
from hpcai500.results.verification.context import NO_STANDING, Check, Context, Question, Run, RunCheck, read_context
from hpcai500.results.verification.finding import (
    DOUBTS,
    WORST_FIRST,
    Finding,
    Verification,
    fail,
    folded,
    guarded,
    note,
    one_line,
    warning,
)
from hpcai500.results.verification.replay import replay_left_out
from hpcai500.text import scaled

if TYPE_CHECKING:
    from hpcai500.campaign.journal import GivenHeads
    from hpcai500.results.submission.archive import Submission
    from hpcai500.results.submission.signature import Signer


# ----------------------------------------------------------------------------------------------------
# The checks of a submission as a whole, in the order of its parts, and of each of its records.


CHECKS: tuple[Check, ...] = (
    archive.check_archive,
    archive.check_manifest,
    archive.check_chains,
    campaign.check_attempts,
    campaign.check_binding,
    campaign.check_registration,
    dates.check_heads,
    campaign.check_seeds,
    campaign.check_recipes,
    campaign.check_recipe_fields,
    archive.check_results,
    archive.check_power_samples,
    archive.check_claim,
    campaign.check_standing,
    campaign.check_levels,
    archive.check_code,
    archive.check_plugin,
    archive.check_core,
    archive.check_images,
    campaign.check_checkpoints,
    campaign.check_systems,
    campaign.check_ceilings,
    dates.check_accounting,
    dates.check_dates,
    copies.check_copies,
)

# Checks of the events of one run.
RUN_CHECKS: tuple[RunCheck, ...] = (
    run_events.check_order,
    run_events.check_evidence,
    run_events.check_sessions,
    run_events.check_clock,
    run_events.check_times,
    run_events.check_goodput,
    run_system.check_environment,
    run_numbers.check_speed,
    run_numbers.check_rates,
    run_events.check_draws,
    run_events.check_samples,
    run_numbers.check_model,
    run_system.check_ranks,
    run_system.check_replicas,
    run_numbers.check_losses,
    run_numbers.check_quality,
    run_events.check_predictions,
)


def check_events(record: Record, result: Result | None, rules: Mapping[str, Any]) -> Iterator[Finding]:
    """Make all checks of the events of one run; a note lists those without findings."""
    try:
        run = Run(record, read_log(record.events), rules, result)
    except RecordError as error:
        yield fail("event-values", str(error))
        return
    passed = []
    for check in RUN_CHECKS:
        title = check.__name__.removeprefix("check_")
        found = guarded(title, partial(check, run))
        yield from found
        if not any(one.severity in ("fail", "warning") for one in found):
            passed.append(title)
    yield note("events", f"{len(record.events)} events, {len(run.passes)} epochs; passed: {', '.join(passed)}")


RecordCheck = Callable[[Record, Result | None, Mapping[str, Any]], Iterable[Finding]]

# Each takes a finished record, its result, and the rules.
RECORD_CHECKS: tuple[RecordCheck, ...] = (check_events, run_events.check_files)


# ----------------------------------------------------------------------------------------------------
# Verifying a file.


def who_signed(submission: Submission, signers: Path | None) -> tuple[Signer | None, list[Finding]]:
    """Return the signer, None without a good signature, and the findings on the signature.

    Raises:
        EnvironmentLacksError: ssh-keygen is missing.
        UsageError: `signers` is not a file of keys.
    """
    if submission.signature is None:
        return None, [fail("signature", "manifest.json.sig is missing: ask for a signed submission")]
    try:
        signer = check_signature(submission.manifest_bytes, submission.signature, signers)
    except WrongAnswerError as error:
        return None, [fail("signature", str(error))]
    if signer.trusted:
        return signer, [note("signature", f"manifest.json is signed by {signer.identity} with {signer.fingerprint}")]
    if signers is not None:
        why = signer.refused or f"a key that is not in {signers}"
        return signer, [fail("signature", f"signed with {signer.fingerprint}, {why}")]
    text = f"signed with {signer.fingerprint}, an unverified key"
    return signer, [warning("signature", f"{text}: compare it with the submitter's, or give --signers ALLOWED_SIGNERS")]


def verify_submission(
    path: Path,
    *,
    signers: Path | None = None,
    registered: str | None = None,
    heads: GivenHeads | None = None,
    edition: str | None = None,
    more_checks: Sequence[Check] = (),
    replay: Check | None = None,
    tracker: Tracker = silent,
) -> Verification:
    """Verify the submission in the file `path`.

    Args:
        signers: OpenSSH file of trusted keys; without one, no key is trusted, and none refused.
        registered: identity of the campaign as it was registered before its first run.
        heads: of journals, received while campaigns ran (`campaign.journal.read_heads`).
        edition: rules to score under; None: the claimed edition.
        more_checks: made while the submission is open, after all other checks but the replay.
        replay: evaluates weights of the submission; made last, and only if nothing failed before.

    Raises:
        UsageError: the file or the edition does not exist, or `signers` is not a file of keys.
    """
    _require_file(path)
    if signers is not None:
        require_signers(signers)
    if edition is not None:
        rulebook(edition, "ic")
    question = Question(signers, registered, edition, heads)
    # A replay writes checkpoints as well.
    with scratch_folder(os.environ, Path.cwd(), None if replay else extracted_bytes(path)) as folder:
        try:
            submission = open_submission(path, Path(folder, "submission"), tracker)
        except WrongAnswerError as error:
            return Verification(_sorted([fail("archive", str(error)), *replay_left_out(replay)], Path(folder)))
        return _verified(submission, question, more_checks, replay, tracker)


def _require_file(path: Path) -> None:
    if (path / "events.jsonl").is_file():
        raise UsageError(
            f"{path}: the record of one run: check it with `hpcai500 score {path}`. A submission needs a campaign "
            "(`hpcai500 campaign init DIR --recipe NAME`)"
        )
    if path.is_dir():
        raise UsageError(f"{path}: a folder; make a submission of it first: `hpcai500 submit {path} -o FILE …`")
    if why := why_not("file", path):
        raise UsageError(f"{path}: {why}; give the file that `hpcai500 submit CAMPAIGN -o FILE` wrote")


def _verified(
    submission: Submission, question: Question, more_checks: Sequence[Check], replay: Check | None, tracker: Tracker
) -> Verification:
    signer, signature = who_signed(submission, question.signers)
    manifest = submission.manifest
    with tracker(2 * manifest.attempts, "verifying", "records") as progress:
        try:
            context = read_context(submission, question, progress.advance)
        except RecordError as error:
            found = [*signature, fail("campaign", str(error)), *replay_left_out(replay)]
            return Verification(_sorted(found, submission.folder), manifest, signer=_named(signer))
        findings = [*signature, *_record_findings(context, progress)]
        for check in (*CHECKS, *more_checks):
            findings += guarded(_title(check), partial(check, context))
        if any(one.severity == "fail" for one in findings):
            findings += replay_left_out(replay)
        elif replay is not None:
            findings += guarded("replay", partial(replay, context))
    reasons = _not_rankable(context)
    return Verification(
        findings=_sorted(findings, submission.folder),
        manifest=manifest,
        results=context.asked.results,
        metrics=context.asked.metrics or {},
        level=campaign.level_of(context),
        rankable=not reasons,
        reasons=reasons,
        signer=_named(signer),
    )


def _record_findings(context: Context, progress: Progress) -> Iterator[Finding]:
    found: dict[str, list[Finding]] = {}
    for name, record in context.done.items():
        result, own = context.asked.results.get(name), found.setdefault(name, [])
        for check in RECORD_CHECKS:
            own += guarded(_title(check), partial(check, record, result, context.asked.rules))
        progress.advance()
    return folded(found)


def _not_rankable(context: Context) -> tuple[str, ...]:
    """Why the campaign is not rankable, each reason once."""
    standing = context.asked.standing
    reasons = list(standing.reasons) if standing else [NO_STANDING]
    if uncompared := campaign.not_compared(context):
        reasons.append(uncompared)
    elif context.asked.rules and campaign.level_of(context) is None:
        reasons.append("no level allows what was changed")
    short = (one_line(reason.replace(f"{context.submission.folder}/", "")) for reason in reasons)
    return tuple(dict.fromkeys(short))


def _sorted(findings: Iterable[Finding], folder: Path) -> tuple[Finding, ...]:
    """Sort findings, worst first, without duplicates and without the name of the scratch folder."""
    short = dict.fromkeys(replace(one, evidence=one.evidence.replace(f"{folder}/", "")) for one in findings)
    return tuple(sorted(short, key=lambda one: (WORST_FIRST.index(one.severity), one.name not in DOUBTS)))


def _named(signer: Signer | None) -> str | None:
    if signer is None:
        return None
    return f"{signer.fingerprint} ({signer.identity})" if signer.identity else signer.fingerprint


def _title(check: Callable[..., object]) -> str:
    """`check_dates` -> `dates`."""
    return getattr(check, "__name__", "check").removeprefix("check_").replace("_", " ")


# ----------------------------------------------------------------------------------------------------
# The text report: the verdict, the results, then each finding, worst first.


# Singular; plural and heading.
_SEVERITIES = {
    "fail": ("failed", "failed"),
    "warning": ("warning", "warnings"),
    "note": ("passed", "passed"),
    "skipped": ("skipped", "skipped"),
}
_MOST_SHOWN = {"fail": 20, "warning": 10, "note": 2, "skipped": 5}
_SHOWN = ("vflops", "vflops_per_watt", "time_to_quality_seconds")
# In a narrower report, names and evidence would not fit beside each other.
_LEAST_WIDTH = 60
_INDENT = " " * 12


def verification_lines(
    path: Path,
    verification: Verification,
    *,
    replayed: bool = False,
    registered: bool = False,
    heads: bool = False,
    width: int = 100,
) -> Iterator[str]:
    """Yield the verdict, then the findings by severity.

    `replayed`, `registered` and `heads`: whether these options were given. `width` is in characters.
    """
    width = max(width, _LEAST_WIDTH)
    counts = Counter[str](finding.severity for finding in verification.findings)
    summary = ", ".join(
        f"{counts[severity]} {words[counts[severity] > 1]}"
        for severity, words in _SEVERITIES.items()
        if counts[severity]
    )
    doubts = ", BUT IMPLAUSIBLE" if verification.verdict == "verified" and verification.doubts else ""
    yield f"{verification.verdict.upper()}{doubts}  {path}: {summary}"
    yield from _computed(verification, width)
    names = max((len(finding.name) for finding in verification.findings), default=0)
    for severity, words in _SEVERITIES.items():
        found = [finding for finding in verification.findings if finding.severity == severity]
        if found:
            yield ""
            yield f"{words[1]}:"
            yield from _rows(found, names, width)
    if verification.verdict == "verified":
        yield ""
        yield from _wrapped("", _not_shown(replayed=replayed, registered=registered, heads=heads), width)


def _not_shown(*, replayed: bool, registered: bool, heads: bool) -> str:
    """What a file cannot prove, as its authors could have forged it."""
    made = "that the runs were made at all (watch one, or --replay DATA)"
    open_questions = ["that these weights come from these runs (watch one)" if replayed else made]
    if not registered:
        open_questions.append(
            "that the plan was made before the runs (register its identity before the first one, then "
            "--registered HASH)"
        )
    if not heads:
        open_questions.append(
            "that this copy of the campaign was not chosen by its results (collect heads while it runs, then "
            "--heads FILE)"
        )
    open_questions.append("that nothing was run outside of the campaign (ask the site for its accounting)")
    return f"A file cannot prove {'; '.join(open_questions)}: see docs/verification.md"


def _computed(verification: Verification, width: int) -> Iterator[str]:
    manifest = verification.manifest
    if manifest is None:
        return
    yield f"system      {one_line(manifest.system)} ({one_line(manifest.organisation)})"
    yield f"benchmark   {one_line(manifest.benchmark)}, edition {one_line(manifest.edition)}"
    yield f"level       {verification.level or 'none'}"
    yield f"rankable    {'yes' if verification.rankable else 'no'}"
    for reason in verification.reasons:
        yield from _wrapped(_INDENT, reason, width)
    yield f"signer      {verification.signer or 'nobody'}"
    for name in _SHOWN:
        if name in verification.metrics:
            yield f"{name:24}{_summary(name, verification.metrics[name])}"


def _summary(name: str, summary: TrialSummary) -> str:
    spread = f", variation {summary.variation:.2%}" if summary.variation is not None else ""
    return f"{_quantity(name, summary.mean)} (mean of {summary.runs} runs{spread})"


def _quantity(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return f"{value:.1f} s"
    return scaled(value, "FLOPS") + ("/W" if name.endswith("per_watt") else "")


def _rows(findings: Sequence[Finding], names: int, width: int) -> Iterator[str]:
    """Yield findings with their names; only the first of many with one name."""
    for name in dict.fromkeys(finding.name for finding in findings):
        found = [finding for finding in findings if finding.name == name]
        most = _MOST_SHOWN[found[0].severity]
        for finding in found[:most]:
            yield from _wrapped(f"  {name:{names}}  ", finding.evidence, width)
        if len(found) > most:
            yield f"  {'':{names}}  and {len(found) - most} more: --json has all of them"


def _wrapped(beginning: str, text: str, width: int) -> list[str]:
    """Wrap `text` after `beginning`, indented below its first word; hashes and paths stay in one piece."""
    indent = " " * len(beginning)
    lines = textwrap.wrap(
        text, width, initial_indent=beginning, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [beginning.rstrip()]
