"""Packs a campaign into one signed file, and opens that file again before it is called done."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import hpcai500
from hpcai500.campaign.reading import Campaign, is_campaign, read_campaign
from hpcai500.errors import EnvironmentLacksError, RunError, UsageError, WrongAnswerError
from hpcai500.files import sync_folder
from hpcai500.progress import Progress, Tracker, silent
from hpcai500.record import Record
from hpcai500.results.submission import claim as facts
from hpcai500.results.submission.accounting import accounting_bytes, ask_accounting
from hpcai500.results.submission.archive import open_submission, read_manifest
from hpcai500.results.submission.gathering import Content, Gathered, gather_campaign, gather_code, gather_logs
from hpcai500.results.submission.manifest import (
    ACCOUNTING,
    CAMPAIGN,
    CODE,
    MANIFEST,
    README,
    SCHEMA,
    SIGNATURE,
    Anonymised,
    Claim,
    Code,
    FileEntry,
    Manifest,
)
from hpcai500.results.submission.readme import readme
from hpcai500.results.submission.signature import Signer, check_signature, sign
from hpcai500.results.submission.zip_writing import ZipWriter
from hpcai500.system.versions import code_hash

_PACKAGE = Path(hpcai500.__file__).parent
# A file that may not grow is as good as a disk that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Inspect = Callable[[Path], None]


@dataclass(frozen=True)
class SubmitRequest:
    """What is to be packed.

    Attributes:
        campaign: its folder.
        output: the file to write.
        system: name of the system, as a ranking shows it.
        organisation: who submits.
        contact: whom the committee asks.
        level: that is claimed; None is the one that the recipe needs.
        key: OpenSSH key that signs; None leaves the submission unsigned.
        anonymise: whether names of hosts and users are replaced.
        checkpoints: whether of each done run the last checkpoint and the first at its target go into it.
        logs: more files.
        created: when, UTC, ISO 8601; None is now.
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


@dataclass(frozen=True)
class Packed:
    """A submission that was written and opened again."""

    path: Path
    bytes: int
    manifest: Manifest
    signer: Signer | None


@dataclass(frozen=True)
class _Material:
    """All that goes into the file."""

    campaign: Campaign
    gathered: Gathered
    claim: Claim
    anonymised: Anonymised | None = None


def pack(request: SubmitRequest, tracker: Tracker = silent, inspect: Inspect = lambda _: None) -> Packed:
    """Write the submission of `request`.

    Args:
        request: what is to be packed.
        tracker: shows how far it is.
        inspect: looks at the whole file before it gets its name; what it raises keeps the file from it.

    Raises:
        UsageError: campaign, key, logs or names cannot be used, the file cannot be written there, or this is not the
            code that ran.
        RecordError: a journal or a record of a done run cannot be read.
        EnvironmentLacksError: it shall be signed, and ssh-keygen is missing.
        RunError: the disk is full.
        WrongAnswerError: what was written cannot be opened again; it is then not there.
    """
    _check_request(request)
    campaign = read_campaign(request.campaign)
    records = facts.done_records(campaign)
    claim = _claim(request, campaign)
    with _scratch() as scratch:
        sources = gather_code(_PACKAGE)
        ran = _code_hash(sources, scratch / "sources")
        facts.require_one_code(campaign, records, ran, _PACKAGE)
        gathered = gather_campaign(campaign, with_checkpoints=request.checkpoints)
        gathered.files |= gather_logs(request.logs)
        _add_accounting(gathered, campaign)
        material = _Material(campaign, gathered, claim)
        if request.anonymise:
            material = _anonymised(request, material, scratch / "anonymised")
            records = facts.done_records(material.campaign)
        gathered.files |= sources
        gathered.files[README] = readme(request.system, request.organisation, hpcai500.__version__)
        manifest = _manifest(request, material, records, ran)
        with _temporary(request.output) as temporary:
            packed = _write(request, manifest, material.gathered, temporary, scratch, tracker)
            inspect(temporary)
        return packed


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is gone in the end."""
    try:
        with tempfile.TemporaryDirectory(prefix="hpcai500-submit-") as folder:
            yield Path(folder)
    except OSError as error:
        place = Path(error.filename or tempfile.gettempdir())
        if Path(tempfile.gettempdir()) not in (place, *place.parents):
            raise UsageError(f"{place}: cannot be read: {error.strerror}") from error
        raise RunError(
            f"{place}: cannot be read or written: {error.strerror}; TMPDIR=FOLDER names another place for scratch"
        ) from error


def _claim(request: SubmitRequest, campaign: Campaign) -> Claim:
    return facts.with_level(facts.claim_of(campaign), request.level, str(request.campaign))


def _code_hash(sources: Mapping[str, Content], folder: Path) -> str:
    """The code hash of what is packed, computed as from the extracted submission."""
    for path, content in sources.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return code_hash(folder / CODE)


def _check_request(request: SubmitRequest) -> None:
    """What would otherwise be found out after an hour of packing."""
    for option, text in (("--system", request.system), ("--organisation", request.organisation)):
        if not text.strip():
            raise UsageError(f"{option}: expected a name, got nothing")
    for option, name in (
        ("--system", request.system),
        ("--organisation", request.organisation),
        ("--contact", request.contact),
    ):
        if name is not None and (name != facts.plain(name)):
            raise UsageError(f"{option}: expected one line of at most 1000 characters, got {name[:60]!r}")
    if request.key is not None:
        # Asks for a passphrase now, while somebody is there.
        with tempfile.NamedTemporaryFile() as probe:
            sign(Path(probe.name), request.key)
    require_file_or_nothing(request.output)
    folder = request.output.parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; make it: mkdir -p {shlex.quote(str(folder))}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{request.output}: the folder {folder} cannot be written; give another -o FILE")
    if is_campaign(request.campaign) and request.campaign.resolve() in request.output.resolve().parents:
        raise UsageError(f"-o {request.output}: lies in the campaign itself; write it beside it")


def require_file_or_nothing(output: Path) -> None:
    """Refuse to put a submission in the place of a device, a pipe, a link or a folder.

    Raises:
        UsageError: one of them is at `output`, or nothing can be.
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
        kind = "a link" if stat.S_ISLNK(mode) else "no file, but a device, pipe or socket"
        raise UsageError(f"{output}: {kind}, which would be replaced; give the name of a file: -o FILE")


def _add_accounting(gathered: Gathered, campaign: Campaign) -> None:
    jobs = dict.fromkeys(job for attempt in campaign.attempts for job in attempt.slurm_jobs)
    for job in jobs:
        path = f"{ACCOUNTING}/{facts.plain(str(job))}.json"
        try:
            gathered.files[path] = accounting_bytes(ask_accounting(str(job)))
        except EnvironmentLacksError as error:
            gathered.leave(path, facts.plain(str(error)))


def _anonymised(request: SubmitRequest, material: _Material, folder: Path) -> _Material:
    from hpcai500.results.submission.anonymising import anonymise  # noqa: PLC0415 - most submissions do without

    anonymised = anonymise(material.campaign, material.gathered, folder, here=socket.getfqdn())
    campaign = read_campaign(folder / CAMPAIGN)
    # Its reasons name hosts and folders.
    return _Material(campaign, material.gathered, _claim(request, campaign), anonymised)


def _manifest(request: SubmitRequest, material: _Material, records: Sequence[Record], code_hash: str) -> Manifest:
    """All but the list of files."""
    campaign, first = material.campaign, records[0]
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
        claim=material.claim,
        code=Code(
            version=str(package.get("version") or hpcai500.__version__),
            code_sha256=code_hash,
            core_sha256=package.get("core_sha256"),
            image_sha256=facts.image_of(first),
        ),
        anonymised=material.anonymised,
        left_out=sorted(material.gathered.left_out, key=lambda one: one.path),
        files=[],
    )


def _write(
    request: SubmitRequest, manifest: Manifest, gathered: Gathered, target: Path, scratch: Path, tracker: Tracker
) -> Packed:
    files = _write_files(target, manifest, gathered, request.key, scratch, tracker)
    whole = manifest.model_copy(update={"files": files})
    signer = _opened_again(target, whole, scratch, signed=request.key is not None, tracker=tracker)
    return Packed(request.output, target.stat().st_size, whole, signer)


@contextmanager
def _temporary(output: Path) -> Iterator[Path]:
    """A file beside `output`, which replaces it if all goes well."""
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
) -> list[FileEntry]:
    """Write the ZIP; returns what it holds besides the manifest and its signature."""
    total = sum(len(one) if isinstance(one, bytes) else one.stat().st_size for one in gathered.files.values())
    # What a killed process of this number left; never what a link leads to.
    target.unlink(missing_ok=True)
    with target.open("x+b") as stream:
        with ZipWriter(stream) as writer:
            with tracker(total // 10**6, "packing", "MB") as progress:
                told = _in_megabytes(progress)
                files = [writer.add(path, gathered.files[path], told) for path in sorted(gathered.files)]
            content = _manifest_bytes(manifest.model_copy(update={"files": files}))
            writer.add(MANIFEST, content)
            if key is not None:
                unsigned = scratch / MANIFEST
                unsigned.write_bytes(content)
                writer.add(SIGNATURE, sign(unsigned, key))
        stream.flush()
        os.fsync(stream.fileno())
    return files


def _manifest_bytes(manifest: Manifest) -> bytes:
    document = manifest.model_dump(mode="json", by_alias=True)
    content = (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    read_manifest(content, MANIFEST)
    return content


def _in_megabytes(progress: Progress) -> Callable[[int], None]:
    """Tells `progress` of bytes; it counts megabytes."""
    done = 0

    def told(size: int) -> None:
        nonlocal done
        before, done = done, done + size
        progress.advance(done // 10**6 - before // 10**6)

    return told


def _opened_again(path: Path, manifest: Manifest, scratch: Path, *, signed: bool, tracker: Tracker) -> Signer | None:
    """Whoever receives it does this first."""
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            opened = open_submission(path, Path(folder, "opened"), tracker)
        if opened.manifest != manifest:
            raise WrongAnswerError(f"{MANIFEST}: not what was written")
        if not signed or opened.signature is None:
            return None
        return check_signature(opened.manifest_bytes, opened.signature)
    except WrongAnswerError as error:
        raise WrongAnswerError(f"what was packed would be refused: {error}".replace(f"{path}: ", "")) from error
