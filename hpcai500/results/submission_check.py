"""Packs a submission that holds: it gets its name only once the whole of `hpcai500 verify` has found nothing wrong."""

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
    """`hpcai500 verify` refuses what was packed; `verification` has all that it found."""

    def __init__(self, output: Path, verification: Verification) -> None:
        """`output` is the submission that was to be written, and is not there."""
        self.verification = verification
        count = len(verification.failures)
        kept = "; the file that was there stays" if output.is_file() else ""
        told = f"{count} {'finding' if count == 1 else 'findings'}"
        super().__init__(f"{output}: refused by verification ({told}), and so not kept{kept}")


@dataclass(frozen=True)
class Checked:
    """A submission that was written, and what verification says of it.

    Where nobody was to sign it, the finding that says so is left out.
    """

    packed: Packed
    verification: Verification


def pack_verified(request: SubmitRequest, tracker: Tracker = silent) -> Checked:
    """Write the submission of `request` if verification, without a file of signers, finds nothing wrong with it.

    A submission that is not to be signed may lack the signature, and nothing else.

    Raises:
        RefusedError: something else is wrong; no file is written, and one that was there before is as it was.
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
    """The findings with the name that the user gave instead of that of the temporary file."""
    told = (replace(one, evidence=one.evidence.replace(str(file), str(output))) for one in verification.findings)
    return replace(verification, findings=tuple(told))
