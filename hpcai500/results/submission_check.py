"""Packs a submission and verifies it; the file is written only if `hpcai500 verify` finds no failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hpcai500.errors import WrongAnswerError
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission.pack import Packed, SubmitRequest, pack
from hpcai500.results.verification.finding import Verification
from hpcai500.results.verification.verify import verify_submission

_SIGNATURE = "signature"


class RefusedError(WrongAnswerError):
    """`hpcai500 verify` refused the packed submission; `verification` has all findings."""

    def __init__(self, output: Path, verification: Verification) -> None:
        """`output` is the file that was not written."""
        self.verification = verification
        count = len(verification.failures)
        kept = "; the existing file was kept" if output.is_file() else ""
        findings = f"{count} {'finding' if count == 1 else 'findings'}"
        super().__init__(f"{output}: refused by verification ({findings}), so not written{kept}")


@dataclass(frozen=True)
class Checked:
    """A submission that was written, and its verification; an unsigned one has no finding `signature`."""

    packed: Packed
    verification: Verification


def pack_verified(request: SubmitRequest, tracker: Tracker = silent) -> Checked:
    """Write the submission of `request` if verification finds no failure.

    There is no file of signers. If `request` has no key, a missing signature is not a failure.

    Raises:
        RefusedError: there is a failure; no file is written, and an existing one is kept.
        HpcAi500Error: as `pack`.
    """
    found: list[Verification] = []

    def inspect(file: Path) -> None:
        verification = _named(verify_submission(file, tracker=tracker), file, request.output)
        if request.key is None:
            others = tuple(one for one in verification.findings if one.name != _SIGNATURE)
            verification = replace(verification, findings=others)
        if verification.verdict == "refused":
            raise RefusedError(request.output, verification)
        found.append(verification)

    packed = pack(request, tracker, inspect)
    return Checked(packed, found[0])


def _named(verification: Verification, file: Path, output: Path) -> Verification:
    """The findings with the path that the user gave instead of the temporary file's."""
    findings = (replace(one, evidence=one.evidence.replace(str(file), str(output))) for one in verification.findings)
    return replace(verification, findings=tuple(findings))
