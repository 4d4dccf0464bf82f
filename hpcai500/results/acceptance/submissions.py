"""Submission files as what is judged: each is verified first, and its campaign is read only where that holds."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.errors import WrongAnswerError
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission.manifest import ACCOUNTING
from hpcai500.results.verification.finding import Finding, Severity, Verification

if TYPE_CHECKING:
    from hpcai500.results.verification.context import Context

_SEVERITIES: dict[Severity, str] = {
    "fail": "failed",
    "warning": "to be judged",
    "note": "hold",
    "skipped": "not looked at",
}


@dataclass(frozen=True)
class Trust:
    """What a submission is held against.

    Attributes:
        signers: OpenSSH file of keys that are vouched for.
        registered: identity of the campaign as it was registered before its first run.
    """

    signers: Path | None = None
    registered: str | None = None


@dataclass(frozen=True)
class Verified:
    """A submission that holds.

    Attributes:
        path: the ZIP file.
        campaign: folder where its campaign lies open.
        manifest_sha256: hash of the manifest, which holds those of all other files.
        verification: all that was found.
        not_checked: what nobody has looked at, a sentence each.
    """

    path: Path
    campaign: Path
    manifest_sha256: str
    verification: Verification
    not_checked: tuple[str, ...]

    @property
    def counts(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(finding.severity for finding in self.verification.findings)
        return {severity: found[severity] for severity in _SEVERITIES}

    @property
    def implausible(self) -> tuple[str, ...]:
        """Findings that no honest run has shown, each in a line."""
        return tuple(f"{one.name}: {one.evidence}" for one in self.verification.doubts)

    @property
    def sentence(self) -> str:
        """For people."""
        told = ", ".join(f"{self.counts[severity]} {words}" for severity, words in _SEVERITIES.items())
        return f"{self.path}: {self.verification.verdict} ({told}); signed by {self.verification.signer}"

    def document(self) -> dict[str, Any]:
        """For programs."""
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
    """Whether `path` is a file that says that it is a submission."""
    return path.is_file() and (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path))


def open_verified(path: Path, folder: Path, trust: Trust, tracker: Tracker = silent) -> Verified:
    """Verify the submission in the file `path`, and lay its campaign open in `folder`, which is made.

    Raises:
        WrongAnswerError: it is refused; with the first thing that does not hold.
        UsageError: the file of signers cannot be read.
        EnvironmentLacksError: there is no ssh-keygen here.
    """
    from hpcai500.results.verification.verify import verify_submission  # noqa: PLC0415 - only submissions need it

    collector = _Collector(folder)
    verification = verify_submission(
        path, signers=trust.signers, registered=trust.registered, more_checks=(collector,), tracker=tracker
    )
    failed = next((one for one in verification.findings if one.severity == "fail"), None)
    if failed:
        raise WrongAnswerError(f"{path}: refused: {failed.name}: {failed.evidence} (all of it: hpcai500 verify {path})")
    not_checked = tuple(_not_checked(trust, collector.accounting))
    return Verified(path, folder, collector.manifest_sha256, verification, not_checked)


class _Collector:
    """Goes along with the checks while the files lie open: what is judged is, byte for byte, what was verified."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.manifest_sha256 = ""
        self.accounting = False

    def __call__(self, context: Context) -> Iterable[Finding]:
        self.manifest_sha256 = hashlib.sha256(context.submission.manifest_bytes).hexdigest()
        self.accounting = any(name.startswith(f"{ACCOUNTING}/") for name in context.submission.entries)
        shutil.copytree(context.submission.campaign, self._folder)
        return ()


def _not_checked(trust: Trust, accounting: bool) -> Iterator[str]:
    if trust.signers is None:
        yield "whose the key is: give --signers ALLOWED_SIGNERS"
    if trust.registered is None:
        yield "no registration was compared, so the plan may have been made after its runs: give --registered HASH"
    yield "no heads were compared, so another copy may have been run and dropped: hpcai500 verify FILE --heads HEADS"
    yield "no checkpoint was evaluated again: hpcai500 verify FILE --replay DATA"
    if not accounting:
        yield "no Slurm accounting is in it: nobody but the records tells when and where they ran"


def paths_shown(submissions: Sequence[Verified]) -> dict[Path, Path]:
    """By the folder where a campaign lies open, the file that it is of: the folder is gone when anybody reads of it."""
    return {one.campaign: one.path for one in submissions}
