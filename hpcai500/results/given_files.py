"""Files of figures that carry no chain (of `hpcai500 micro`, `scale`, `profile`, or by hand), and who vouches for each.

A file is signed as the manifest of a submission is: `ssh-keygen -Y sign -n hpcai500 -f KEY FILE` writes `FILE.sig`
beside it. Whatever is computed from a file says who signed it, or that nobody did. A file is read once: the bytes whose
signature was checked are the bytes that are parsed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.machine import Machine, find_machine, load_machine, machine_of
from hpcai500.recipe import recipes_folder
from hpcai500.record import parse_object
from hpcai500.results.submission.manifest import SIGNATURE_BYTES
from hpcai500.results.submission.signature import Signer, check_signature, require_signers
from hpcai500.toml_source import source_of


@dataclass(frozen=True)
class GivenFile:
    """A file of figures, by the name that it was given, with its bytes; `signer` is None where it is not signed."""

    path: Path
    signer: Signer | None
    content: bytes = field(repr=False)

    @property
    def sentence(self) -> str:
        """Who vouches for it, in one line."""
        if self.signer is None:
            return f"{self.path} is not signed: nobody vouches for its figures"
        if self.signer.trusted:
            return f"{self.path} is signed by {self.signer.identity} with {self.signer.fingerprint}"
        return f"{self.path} is signed with {self.signer.fingerprint}, a key that nobody here vouches for"

    @property
    def doubt(self) -> str:
        """The sentence, unless a trusted signer vouches for it; then empty."""
        return "" if self.signer and self.signer.trusted else self.sentence

    def tables(self) -> dict[str, Any]:
        """The JSON object in it.

        Raises:
            RecordError: it holds something else.
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
    """The file `path` and its signer, by the signature `PATH.sig` beside it.

    `signers` is an OpenSSH file of keys that are vouched for; None accepts every key.

    Raises:
        WrongAnswerError: the signature is not one of this file, or `signers` lacks its key.
        UsageError: a file cannot be read, `path` is no regular file, or `signers` has no signer.
        EnvironmentLacksError: it is signed, and there is no ssh-keygen here.
    """
    if signers is not None:
        require_signers(signers)
    content = _content(path)
    beside = path.with_name(f"{path.name}.sig")
    if not beside.is_file():
        return GivenFile(path, None, content)
    try:
        with beside.open("rb") as stream:
            signature = stream.read(SIGNATURE_BYTES + 1)
        signer = check_signature(content, signature, signers, name=str(path))
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except WrongAnswerError as error:
        raise WrongAnswerError(
            f"{beside}: {error}: the file was changed after it was signed, or this is another file's signature: ask "
            "its signer for both"
        ) from error
    if signers is not None and not signer.trusted:
        why = signer.refused or f"a key that {signers} does not have"
        raise WrongAnswerError(f"{beside}: signed with {signer.fingerprint}, {why}")
    return GivenFile(path, signer, content)


def given_machine(name_or_path: str | Path) -> tuple[Machine, tuple[GivenFile, ...]]:
    """The machine of a file or a name, as `load_machine` takes them, and that file; no file where it is one of ours.

    Raises:
        UsageError: as `load_machine`, or the signature cannot be read.
        WrongAnswerError: the signature beside the file is not one of it.
        EnvironmentLacksError: the file is signed, and there is no ssh-keygen here.
    """
    path = find_machine(name_or_path)
    place = path.resolve()
    if place.parent == (recipes_folder() / "sites").resolve():
        return load_machine(place), ()
    file = given_file(path)
    return machine_of(source_of(file.content, str(path), UsageError)), (file,)


def _content(path: Path) -> bytes:
    """All bytes of a regular file: a pipe or a device may tell each reader something else, and a pipe may block."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UsageError(
                    f"{path}: no regular file, but a pipe or a device: write its figures into a file, and give that"
                )
            return stream.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
