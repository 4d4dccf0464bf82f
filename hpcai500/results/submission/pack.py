"""Packs a campaign into one signed file, and opens that file again before it replaces the output.

The same content gives the same bytes, except for the time in the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shlex
import socket
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import hpcai500
from hpcai500.campaign.journal import Campaign, is_campaign, read_campaign
from hpcai500.errors import RunError, UsageError, WrongAnswerError
from hpcai500.files import sync_folder
from hpcai500.progress import Progress, Tracker, silent
from hpcai500.record import Record
from hpcai500.results.submission import claim as facts
from hpcai500.results.submission.anonymise import anonymise
from hpcai500.results.submission.archive import open_submission, read_manifest
from hpcai500.results.submission.claim import plain
from hpcai500.results.submission.gather import (
    Content,
    Gathered,
    add_accounting,
    content_bytes,
    content_of,
    gather_campaign,
    gather_code,
    gather_logs,
)
from hpcai500.results.submission.manifest import (
    CAMPAIGN,
    CODE,
    MANIFEST,
    NAMESPACE,
    README,
    SCHEMA,
    SIGNATURE,
    Anonymised,
    Claim,
    Code,
    FileEntry,
    Manifest,
    kind_of,
)
from hpcai500.results.submission.signature import Signer, check_signature, sign
from hpcai500.system.software import code_hash

# ----------------------------------------------------------------------------------------------------
# The ZIP writer: the same content gives the same bytes, and each file is hashed as it is written.


# The earliest time that ZIP can express.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_CHUNK = 1 << 20
# zipfile reserves room for 64-bit sizes only on request. For files that do not need it, Python before 3.11.4 would then
# write a header that contradicts itself.
_WIDE_BYTES = (1 << 31) - 1


def add_file(
    target: zipfile.ZipFile, path: str, source: Content, advance: Callable[[int], object] = lambda _: None
) -> FileEntry:
    """Add `source` to the ZIP as `path`; `advance` is called with the length of each piece, in bytes."""
    info = zipfile.ZipInfo(path, _TIME)
    info.create_system, info.external_attr = 3, _MODE << 16
    kind = kind_of(path)
    # Weights do not compress.
    is_text = kind is not None and kind.form != "checkpoint"
    info.compress_type = zipfile.ZIP_DEFLATED if is_text else zipfile.ZIP_STORED
    digest, length = hashlib.sha256(), 0
    with (
        io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream,
        target.open(info, "w", force_zip64=content_bytes(source) > _WIDE_BYTES) as packed,
    ):
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            length += len(chunk)
            packed.write(chunk)
            advance(len(chunk))
    return FileEntry(path=path, bytes=length, sha256=digest.hexdigest())


# ----------------------------------------------------------------------------------------------------
# README.txt: for a reader who does not have this program.


def readme(system: str, organisation: str, version: str) -> bytes:
    """Return the content of README.txt."""
    return f"""HPC AI500 submission
====================

System:        {system}
Organisation:  {organisation}
Written by:    hpcai500 {version}, `hpcai500 submit`

{MANIFEST} holds the claim, and length and SHA-256 of every other file. Its signature therefore covers all files.

To check everything, and to compute each number again from the events of the runs:

    hpcai500 verify SUBMISSION.zip

With standard tools alone:

    unzip SUBMISSION.zip -d submission && cd submission
    # compare each file with its hash in the manifest (prints only files that differ)
    python3 -I -c 'import json, hashlib; [print(f["path"], "DIFFERS") for f in json.load(open("{MANIFEST}"))["files"]
      if hashlib.sha256(open(f["path"], "rb").read()).hexdigest() != f["sha256"]]'
    # the signer: compare the fingerprint with the one that you received from the submitter
    ssh-keygen -Y check-novalidate -n {NAMESPACE} -s {SIGNATURE} < {MANIFEST}
    # or, with a file of keys that you trust (man ssh-keygen, ALLOWED SIGNERS)
    ssh-keygen -Y find-principals -s {SIGNATURE} -f ALLOWED_SIGNERS
    ssh-keygen -Y verify -n {NAMESPACE} -f ALLOWED_SIGNERS -I WHO -s {SIGNATURE} < {MANIFEST}

campaign/    the plan, its journal, and the record of every started run, including failed ones
code/        the Python sources that ran
accounting/  Slurm's accounting of the jobs
logs/        logs that the submitter added

docs/submission-format.md of hpcai500 explains every field.
""".encode()


# ----------------------------------------------------------------------------------------------------
# Packing: gather, write, sign, open again, rename.


_PACKAGE = Path(hpcai500.__file__).parent
# A quota or a limit of file sizes counts as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Inspect = Callable[[Path], None]


@dataclass(frozen=True)
class SubmitRequest:
    """What to pack.

    Attributes:
        system: its name in rankings.
        organisation: the submitter.
        contact: contact of the submitter.
        level: claimed level; None claims the one that the recipe needs.
        key: OpenSSH key that signs; None leaves the submission unsigned.
        anonymise: whether names of hosts and users are replaced.
        checkpoints: whether the last checkpoint of each done run, and the first at its target, are packed.
        logs: more files.
        created: UTC, ISO 8601; None is now.
        demonstration: whether sources that did not run may be packed; verification refuses such a submission.
    """

    campaign: Path
    output: Path
    system: str
    organisation: str
    contact: str | None = None
    level: facts.Level | None = None
    key: Path | None = None
    anonymise: bool = False
    checkpoints: bool = True
    logs: Sequence[Path] = ()
    created: str | None = None
    demonstration: bool = False


@dataclass(frozen=True)
class Packed:
    """A submission that was written and opened again."""

    path: Path
    bytes: int
    manifest: Manifest
    signer: Signer | None


def pack(request: SubmitRequest, tracker: Tracker = silent, inspect: Inspect = lambda _: None) -> Packed:
    """Write the submission of `request`.

    `inspect` checks the complete file before it replaces the output; if it raises, the file is deleted.

    Raises:
        UsageError: campaign, key, logs, names or output cannot be used, or this is not the code that ran.
        RecordError: a journal or a record of a done run cannot be read.
        EnvironmentLacksError: a signature was requested, but ssh-keygen is missing.
        RunError: the disk is full.
        WrongAnswerError: the written file cannot be opened again; it is then deleted.
    """
    _check_request(request)
    campaign = read_campaign(request.campaign)
    records = facts.done_records(campaign)
    claim = _claim(request, campaign)
    with _scratch() as scratch:
        sources = gather_code(_PACKAGE)
        ran = _code_hash(sources, scratch / "sources")
        if not request.demonstration:
            facts.require_one_code(campaign, records, ran, _PACKAGE)
        gathered = gather_campaign(campaign, with_checkpoints=request.checkpoints)
        gathered.files |= gather_logs(request.logs)
        add_accounting(gathered, campaign)
        anonymised = None
        if request.anonymise:
            anonymised = anonymise(campaign, gathered, scratch / "anonymised", here=socket.getfqdn())
            # The reasons in a claim name hosts and folders, so that it is computed again.
            campaign = read_campaign(scratch / "anonymised" / CAMPAIGN)
            records, claim = facts.done_records(campaign), _claim(request, campaign)
        gathered.files |= sources
        gathered.files[README] = readme(request.system, request.organisation, hpcai500.__version__)
        manifest = _manifest(request, campaign, records, gathered, claim, ran, anonymised)
        with _temporary(request.output) as temporary:
            manifest = _write_files(temporary, manifest, gathered, request.key, scratch, tracker)
            signer = _opened_again(temporary, manifest, scratch, signed=request.key is not None, tracker=tracker)
            packed = Packed(request.output, temporary.stat().st_size, manifest, signer)
            inspect(temporary)
        return packed


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder, deleted on exit."""
    try:
        with tempfile.TemporaryDirectory(prefix="hpcai500-submit-") as folder:
            yield Path(folder)
    except OSError as error:
        place = Path(error.filename or tempfile.gettempdir())
        if Path(tempfile.gettempdir()) not in (place, *place.parents):
            raise UsageError(f"{place}: cannot be read: {error.strerror}") from error
        raise RunError(
            f"{place}: cannot be read or written: {error.strerror}; set TMPDIR=FOLDER to use another scratch folder"
        ) from error


def _claim(request: SubmitRequest, campaign: Campaign) -> Claim:
    return facts.with_level(facts.claim_of(campaign), request.level, str(request.campaign))


def _code_hash(sources: Mapping[str, Content], folder: Path) -> str:
    """Compute the code hash of the packed sources, as from the extracted submission."""
    for path, content in sources.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content_of(content))
    return code_hash(folder / CODE)


def _check_request(request: SubmitRequest) -> None:
    """Check now what would otherwise fail after an hour of packing."""
    for option, name in (("--system", request.system), ("--organisation", request.organisation)):
        if not name.strip():
            raise UsageError(f"{option}: expected a name, got nothing")
    names = {"--system": request.system, "--organisation": request.organisation, "--contact": request.contact}
    for option, text in names.items():
        if text is not None and text != plain(text):
            raise UsageError(f"{option}: expected one line of at most 1000 characters, got {text[:60]!r}")
    if request.key is not None:
        # Ask for a passphrase now, while the user is present.
        with tempfile.NamedTemporaryFile() as probe:
            sign(Path(probe.name), request.key)
    require_file_or_nothing(request.output)
    folder = request.output.parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; make it: mkdir -p {shlex.quote(str(folder))}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{request.output}: the folder {folder} cannot be written; give another -o FILE")
    if is_campaign(request.campaign) and request.campaign.resolve() in request.output.resolve().parents:
        raise UsageError(f"-o {request.output}: is in the campaign's folder; write it elsewhere")


def require_file_or_nothing(output: Path) -> None:
    """Refuse to replace a device, a pipe, a link or a folder by a submission.

    Raises:
        UsageError: `output` is one of them, or cannot be written.
    """
    try:
        mode = output.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}; give another -o FILE") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{output}: a folder; give a file: -o {output}/submission.zip")
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "a device, pipe or socket"
        raise UsageError(f"{output}: {kind}, which would be replaced; give the name of a file: -o FILE")


def _manifest(
    request: SubmitRequest,
    campaign: Campaign,
    records: Sequence[Record],
    gathered: Gathered,
    claim: Claim,
    code_sha256: str,
    anonymised: Anonymised | None,
) -> Manifest:
    """Return the manifest without its files."""
    first = records[0]
    package = facts.package_of(first)
    return Manifest(
        schema=SCHEMA,
        created=request.created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        system=request.system,
        organisation=request.organisation,
        contact=request.contact,
        accelerators=facts.accelerators_of(first),
        framework=facts.framework_of(first),
        benchmark=campaign.benchmark,
        edition=campaign.edition,
        campaign=campaign.identity,
        trials=len(campaign.trials),
        attempts=len(campaign.attempts),
        claim=claim,
        code=Code(
            version=str(package.get("version") or hpcai500.__version__),
            code_sha256=code_sha256,
            core_sha256=package.get("core_sha256"),
            image_sha256=facts.image_of(first),
        ),
        anonymised=anonymised,
        left_out=sorted(gathered.left_out, key=lambda one: one.path),
        files=[],
    )


@contextmanager
def _temporary(output: Path) -> Iterator[Path]:
    """A path beside `output`; its file replaces `output`, or is deleted on an error."""
    temporary = output.absolute().with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        require_file_or_nothing(output)
        temporary.replace(output)
        sync_folder(temporary.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(f"{output}: {error.strerror}: free some space, or add --no-checkpoints") from error
        if error.errno == errno.EIO:
            raise RunError(f"{output}: {error.strerror}") from error
        if error.filename not in (None, str(temporary), str(temporary.parent)):
            raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
        raise UsageError(f"{output}: cannot be written: {error.strerror}; give another -o FILE") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_files(
    target: Path, manifest: Manifest, gathered: Gathered, key: Path | None, scratch: Path, tracker: Tracker
) -> Manifest:
    """Write the ZIP; return the manifest with the list of files."""
    total = sum(map(content_bytes, gathered.files.values()))
    # A killed process with this ID may have left a file; a link is removed, not followed.
    target.unlink(missing_ok=True)
    with target.open("x+b") as stream:
        with _zip(stream) as writer:
            with tracker(total // 10**6, "packing", "MB") as progress:
                advance = _in_megabytes(progress)
                files = [add_file(writer, path, gathered.files[path], advance) for path in sorted(gathered.files)]
            manifest = manifest.model_copy(update={"files": files})
            content = _manifest_bytes(manifest)
            add_file(writer, MANIFEST, content)
            if key is not None:
                unsigned = scratch / MANIFEST
                unsigned.write_bytes(content)
                add_file(writer, SIGNATURE, sign(unsigned, key))
        stream.flush()
        os.fsync(stream.fileno())
    return manifest


@contextmanager
def _zip(stream: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    archive = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True)
    try:
        yield archive
    except BaseException:
        # Close it now: an unclosed ZipFile would report another error when it is collected.
        with contextlib.suppress(OSError, ValueError):
            archive.close()
        raise
    archive.close()


def _manifest_bytes(manifest: Manifest) -> bytes:
    document = manifest.model_dump(mode="json", by_alias=True)
    content = (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    read_manifest(content, MANIFEST)
    return content


def _in_megabytes(progress: Progress) -> Callable[[int], None]:
    """Return a function that takes bytes, and advances `progress` in megabytes."""
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        before, done = done, done + size
        progress.advance(done // 10**6 - before // 10**6)

    return advance


def _opened_again(path: Path, manifest: Manifest, scratch: Path, *, signed: bool, tracker: Tracker) -> Signer | None:
    """Open the file as its receiver will, and return the signer."""
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            opened = open_submission(path, Path(folder, "opened"), tracker)
        if opened.manifest != manifest:
            raise WrongAnswerError(f"{MANIFEST}: differs from what was written")
        if not signed or opened.signature is None:
            return None
        return check_signature(opened.manifest_bytes, opened.signature)
    except WrongAnswerError as error:
        raise WrongAnswerError(f"the packed file would be refused: {error}".replace(f"{path}: ", "")) from error
