"""Opened submissions of campaigns that nobody ran, changed by whoever knows how to make a manifest fit again."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from written_campaign import SHORT, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.results.submission import claim as facts
from hpcai500.results.submission.archive import Submission, open_submission
from hpcai500.results.submission.manifest import FileEntry
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.context import Context, Question, read_context
from hpcai500.results.verification.finding import Finding, guarded
from hpcai500.results.verification.verify import CHECKS
from hpcai500.system.software import package_code_hash

Change = Callable[[Path], object]


def honest(folder: Path, *settings: str, short: bool = True, **story: Any) -> Submission:
    """A campaign of three trials, packed unsigned and opened again.

    Args:
        folder: an empty one.
        settings: as given to --set.
        short: three epochs, which no level allows, instead of ninety.
        story: as `write_campaign` has it.
    """
    # Computed now: sources may be edited while tests run.
    story = {"trials": 3, "package_code": package_code_hash(), **story}
    campaign = write_campaign(folder / "campaign", *(SHORT if short else ()), *settings, **story)
    pack(SubmitRequest(campaign, folder / "submission.zip", "System", "Organisation"))
    return open_submission(folder / "submission.zip", folder / "opened")


def changed(
    base: Submission,
    folder: Path,
    change: Change = lambda opened: None,
    *,
    question: Question | None = None,
    claim: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Context:
    """What a check sees of `base` after `change`, which is given the folder of the opened submission.

    The manifest claims what the changed campaign gives, as long as `claim` and `manifest` do not say otherwise.
    """
    opened = folder / "opened"
    shutil.copytree(base.folder, opened)
    change(opened)
    told: dict[str, Any] = {}
    try:
        campaign = read_campaign(opened / "campaign")
        told = {"campaign": campaign.identity, "claim": facts.claim_of(campaign)}
    except Exception:  # noqa: BLE001 - then the old claim stays
        told = {"claim": base.manifest.claim}
    told["claim"] = told["claim"].model_copy(update=dict(claim or {}))
    files = {**{path: entry for path, entry in base.entries.items() if "/checkpoints/" in path}, **_listed(opened)}
    entries = dict(sorted(files.items()))
    whole = base.manifest.model_copy(update={**told, "files": list(entries.values()), **manifest})
    submission = Submission(base.path, opened, whole, b"", None, entries)
    return read_context(submission, question or Question(), lambda: None)


def all_findings(context: Context) -> list[Finding]:
    """What the checks of the submission as a whole say; records are not looked into."""
    return [finding for check in CHECKS for finding in guarded(check.__name__, partial(check, context))]


def failed(findings: Iterable[Finding]) -> set[str]:
    """Names of those that refuse."""
    return {finding.name for finding in findings if finding.severity == "fail"}


def evidence(findings: Iterable[Finding], name: str, severity: str = "fail") -> str:
    """All that is told under one name."""
    return "\n".join(one.evidence for one in findings if (one.name, one.severity) == (name, severity))


def _listed(folder: Path) -> dict[str, FileEntry]:
    return {
        path.relative_to(folder).as_posix(): FileEntry(
            path=path.relative_to(folder).as_posix(),
            bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }
