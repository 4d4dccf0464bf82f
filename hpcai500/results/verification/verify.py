"""Verifies a submission: opens it in a scratch folder, computes all of it again, and says what does not hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.progress import Progress, Tracker, silent
from hpcai500.results.submission.archive import open_submission
from hpcai500.results.submission.signature import require_signers
from hpcai500.results.verification.checks import CHECKS
from hpcai500.results.verification.checks.levels import level_of, not_compared
from hpcai500.results.verification.context import Check, Context, Question
from hpcai500.results.verification.finding import DOUBTS, WORST_FIRST, Finding, Verification
from hpcai500.results.verification.folding import folded
from hpcai500.results.verification.guard import fail, guarded, one_line
from hpcai500.results.verification.reading import read_context
from hpcai500.results.verification.records import RECORD_CHECKS
from hpcai500.results.verification.replay import replay_left_out
from hpcai500.results.verification.signed import who_signed
from hpcai500.rulebook import rulebook
from hpcai500.scratch import scratch_folder

if TYPE_CHECKING:
    from hpcai500.campaign.heads import GivenHeads
    from hpcai500.results.submission.archive import Submission
    from hpcai500.results.submission.signature import Signer


class _Stands(TypedDict):
    rankable: bool
    reasons: tuple[str, ...]


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
    """All that can be found out about the submission in the file `path`, from that file alone.

    Args:
        path: what `hpcai500 submit` wrote, or something that says so.
        signers: OpenSSH file of keys that are vouched for; without one, no key is trusted, and none refused.
        registered: identity of the campaign as it was registered before its first run.
        heads: of journals, as they were given while campaigns ran (`campaign.heads.read_heads`).
        edition: rules to score under; those that are claimed where it is None.
        more_checks: looked at while the submission is open, after those that need nothing but it.
        replay: evaluates weights of the submission; made last, and only if nothing failed before.
        tracker: shows how far it is.

    Raises:
        UsageError: there is no such file, no such edition, or `signers` is no list of signers.
    """
    _require_file(path)
    if signers is not None:
        require_signers(signers)
    if edition is not None:
        rulebook(edition, "ic")
    question = Question(signers, registered, edition, heads)
    with scratch_folder(os.environ, Path.cwd()) as folder:
        try:
            submission = open_submission(path, Path(folder, "submission"), tracker)
        except WrongAnswerError as error:
            return Verification(_told([fail("archive", str(error)), *replay_left_out(replay)], Path(folder)))
        return _verified(submission, question, more_checks, replay, tracker)


def _require_file(path: Path) -> None:
    if (path / "events.jsonl").is_file():
        raise UsageError(
            f"{path}: a record of one run: `hpcai500 score {path}` checks it; what is verified is made of a campaign "
            "(`hpcai500 campaign init DIR --recipe NAME`)"
        )
    if path.is_dir():
        raise UsageError(f"{path}: a folder: `hpcai500 submit {path} -o FILE …` makes the file that is verified")
    if not path.exists():
        raise UsageError(f"{path}: no such file; give what `hpcai500 submit CAMPAIGN -o FILE` wrote")
    if not path.is_file():
        raise UsageError(f"{path}: a device or a pipe; give the file that `hpcai500 submit CAMPAIGN -o FILE` wrote")


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
            return Verification(_told(found, submission.folder), manifest, signer=_named(signer))
        findings = [*signature, *_record_findings(context, progress)]
        for check in (*CHECKS, *more_checks):
            findings += guarded(_title(check), partial(check, context))
        if any(one.severity == "fail" for one in findings):
            findings += replay_left_out(replay)
        elif replay is not None:
            findings += guarded("replay", partial(replay, context))
    return Verification(
        findings=_told(findings, submission.folder),
        manifest=manifest,
        results=context.asked.results,
        metrics=context.asked.metrics or {},
        level=level_of(context),
        signer=_named(signer),
        **_standing(context),
    )


def _record_findings(context: Context, progress: Progress) -> Iterator[Finding]:
    """What the events of each done record say against themselves."""
    found: dict[str, list[Finding]] = {}
    for name, record in context.done.items():
        result, own = context.asked.results.get(name), found.setdefault(name, [])
        for check in RECORD_CHECKS:
            own += guarded(_title(check), partial(check, record, result, context.asked.rules))
        progress.advance()
    return folded(found)


def _standing(context: Context) -> _Stands:
    """Whether the campaign may be ranked, under the rules that were asked for."""
    standing = context.asked.standing
    reasons = list(standing.reasons) if standing else ["whether it may be ranked cannot be found out"]
    if uncompared := not_compared(context):
        reasons.append(uncompared)
    elif level_of(context) is None:
        reasons.append("no level allows what was changed")
    short = (one_line(reason.replace(f"{context.submission.folder}/", "")) for reason in reasons)
    return {"rankable": not reasons, "reasons": tuple(dict.fromkeys(short))}


def _told(findings: Iterable[Finding], folder: Path) -> tuple[Finding, ...]:
    """Worst first, each once, without the name of the scratch folder, which means nothing to anyone."""
    short = dict.fromkeys(replace(one, evidence=one.evidence.replace(f"{folder}/", "")) for one in findings)
    return tuple(sorted(short, key=lambda one: (WORST_FIRST.index(one.severity), one.name not in DOUBTS)))


def _named(signer: Signer | None) -> str | None:
    if signer is None:
        return None
    return f"{signer.fingerprint} ({signer.identity})" if signer.identity else signer.fingerprint


def _title(check: Callable[..., object]) -> str:
    """`check_dates` -> `dates`."""
    return getattr(check, "__name__", "check").removeprefix("check_").replace("_", " ")
