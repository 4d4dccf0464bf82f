"""Files of figures from `hpcai500 micro`, `scale`, `profile`, or written by hand, and their signers.

Unlike records, they have no hash chain. A file is signed like the manifest of a submission: `ssh-keygen -Y sign -n
hpcai500 -f KEY FILE` writes `FILE.sig`. All results computed from a file name its signer, or say that it is not signed.
A file is read once: the bytes whose signature is checked are the bytes that are parsed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.files import why_not
from hpcai500.machine import Machine, find_machine, load_machine, machine_of
from hpcai500.recipe import recipes_folder
from hpcai500.record import parse_object
from hpcai500.results.submission.manifest import SIGNATURE_BYTES
from hpcai500.results.submission.signature import Signer, check_signature, require_signers
from hpcai500.toml_source import source_of


@dataclass(frozen=True)
class GivenFile:
    """A file of figures: its path as given, its signer (None if it is not signed), and its bytes."""

    path: Path
    signer: Signer | None
    content: bytes = field(repr=False)

    @property
    def sentence(self) -> str:
        """Its signer, in one line."""
        if self.signer is None:
            return f"{self.path} is not signed: nobody vouches for its figures"
        if self.signer.trusted:
            return f"{self.path} is signed by {self.signer.identity} with {self.signer.fingerprint}"
        return f"{self.path} is signed with {self.signer.fingerprint}, which is not a trusted key"

    @property
    def doubt(self) -> str:
        """The sentence; empty if the signer is trusted."""
        return "" if self.signer and self.signer.trusted else self.sentence

    def tables(self) -> dict[str, Any]:
        """The JSON object in it.

        Raises:
            RecordError: it is not a JSON object.
        """
        return parse_object(self.content, self.path)

    def document(self) -> dict[str, Any]:
        known = self.signer
        return {
            "path": str(self.path),
            "signer": known and (known.identity or known.fingerprint),
            "vouched_for": known is not None and known.trusted,
        }


def given_file(path: Path, signers: Path | None = None) -> GivenFile:
    """Read the file `path`, and check its signature `PATH.sig` if there is one.

    `signers` is an OpenSSH file of trusted keys; None accepts every key.

    Raises:
        WrongAnswerError: the signature does not match the file, or `signers` lacks its key.
        UsageError: a file cannot be read, `path` is not a regular file, or `signers` is empty.
        EnvironmentLacksError: it is signed, and ssh-keygen is not installed.
    """
    if signers is not None:
        require_signers(signers)
    content = _content(path)
    signature_file = path.with_name(f"{path.name}.sig")
    if not signature_file.is_file():
        return GivenFile(path, None, content)
    try:
        with signature_file.open("rb") as stream:
            signature = stream.read(SIGNATURE_BYTES + 1)
        signer = check_signature(content, signature, signers, name=str(path))
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except WrongAnswerError as error:
        raise WrongAnswerError(
            f"{signature_file}: {error}: the file was changed after signing, or the signature is another file's: ask "
            "the signer for both files"
        ) from error
    if signers is not None and not signer.trusted:
        why = signer.refused or f"a key that is not in {signers}"
        raise WrongAnswerError(f"{signature_file}: signed with {signer.fingerprint}, {why}")
    return GivenFile(path, signer, content)


def given_machine(name_or_path: str | Path) -> tuple[Machine, tuple[GivenFile, ...]]:
    """The machine of a file or a name, as `load_machine` takes them, and its file; no file for a shipped machine.

    Raises:
        UsageError: as `load_machine`, or the signature cannot be read.
        WrongAnswerError: the signature does not match the file.
        EnvironmentLacksError: the file is signed, and ssh-keygen is not installed.
    """
    path = find_machine(name_or_path)
    place = path.resolve()
    if place.parent == (recipes_folder() / "sites").resolve():
        return load_machine(place), ()
    file = given_file(path)
    return machine_of(source_of(file.content, str(path), UsageError)), (file,)


def _content(path: Path) -> bytes:
    """All bytes of a regular file; a pipe may block, and pipes and devices may give each reader other bytes."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UsageError(f"{path}: not a regular file: write the figures to a file, and give that")
            return stream.read()
    except OSError as error:
        raise UsageError(f"{path}: {why_not('file', path) or f'cannot be read: {error.strerror}'}") from error
