"""Who signed a submission, and who vouches for the key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission.signature import check_signature
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning

if TYPE_CHECKING:
    from hpcai500.results.submission.archive import Submission
    from hpcai500.results.submission.signature import Signer

_NAME = "signature"


def who_signed(submission: Submission, signers: Path | None) -> tuple[Signer | None, list[Finding]]:
    """The signer, None where there is no good signature; and what is to be said of it.

    Raises:
        EnvironmentLacksError: there is no ssh-keygen here.
        UsageError: `signers` is no file of keys.
    """
    if submission.signature is None:
        return None, [
            fail(_NAME, "manifest.json.sig is missing: nobody stands for what is in here; ask for a signed one")
        ]
    try:
        signer = check_signature(submission.manifest_bytes, submission.signature, signers)
    except WrongAnswerError as error:
        return None, [fail(_NAME, str(error))]
    if signer.trusted:
        return signer, [note(_NAME, f"manifest.json is signed by {signer.identity} with {signer.fingerprint}")]
    if signers is not None:
        why = signer.refused or f"a key that {signers} does not have"
        return signer, [fail(_NAME, f"signed with {signer.fingerprint}, {why}")]
    told = f"signed with {signer.fingerprint}, a key that nobody here vouches for"
    return signer, [warning(_NAME, f"{told}: compare it with the submitter's, or give --signers ALLOWED_SIGNERS")]
