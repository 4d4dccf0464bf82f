"""Opens a submission: a file of strangers, from which only what its manifest vouches for comes out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from hpcai500.errors import RunError, UsageError, WrongAnswerError
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission import limits
from hpcai500.results.submission.content import Budget, check_file, parse_json, require_one_line
from hpcai500.results.submission.layout import Kind, kind_of
from hpcai500.results.submission.manifest import CAMPAIGN, CODE, MANIFEST, SIGNATURE, FileEntry, Manifest
from hpcai500.results.submission.zip_reading import STORED, Entry, ZipReader

_NEEDED = (MANIFEST, f"{CAMPAIGN}/recipe.toml", f"{CAMPAIGN}/campaign.jsonl")
_UNIT = "MB"


@dataclass(frozen=True)
class Submission:
    """An opened submission.

    Attributes:
        path: the ZIP file.
        folder: where its content lies, checkpoints aside.
        manifest: what it says of itself.
        manifest_bytes: the same, as it is signed.
        signature: of these bytes, in OpenSSH's armour; None where nobody signed.
        entries: all files by their paths, as the manifest lists them.
    """

    path: Path
    folder: Path
    manifest: Manifest
    manifest_bytes: bytes = field(repr=False)
    signature: bytes | None = field(repr=False)
    entries: Mapping[str, FileEntry] = field(repr=False)

    @property
    def campaign(self) -> Path:
        """The campaign's folder."""
        return self.folder / CAMPAIGN

    @property
    def code(self) -> Path:
        """The folder of the sources that ran."""
        return self.folder / CODE

    def below(self, folder: str) -> list[str]:
        """Paths of the files below `folder` (`campaign/trial-01/checkpoints`), in their order."""
        return sorted(path for path in self.entries if path.startswith(f"{folder}/"))

    def extract(self, path: str, target: Path) -> None:
        """Write the file `path` of the ZIP, a checkpoint for instance, to `target`, which must not exist.

        Raises:
            UsageError: there is no such file in it, or the ZIP is gone.
            WrongAnswerError: the ZIP was changed since it was opened.
            RunError: `target` cannot be written.
        """
        expected = self.entries.get(path)
        if expected is None:
            raise UsageError(f"{self.path}: holds no {path}")
        with ZipReader(self.path) as reader:
            entry = next((one for one in reader.entries if one.path == path), None)
            if entry is None:
                raise WrongAnswerError(f"{self.path}: changed since it was opened: {path} is gone")
            if _copy(reader, entry, target) != expected.sha256:
                target.unlink(missing_ok=True)
                raise WrongAnswerError(f"{self.path}: {path}: not the file that the manifest names: its hash differs")


def open_submission(path: Path, folder: Path, tracker: Tracker = silent) -> Submission:
    """Check the submission `path`, and extract all of it but checkpoints into `folder`, which is empty or absent.

    Every byte, those of checkpoints too, is hashed and held against the manifest. What the hashes and numbers mean is
    not looked at here.

    Args:
        path: a file from anywhere.
        folder: for this alone.
        tracker: shows how much of it was read.

    Raises:
        UsageError: there is no such file, or `folder` is not empty.
        WrongAnswerError: it is damaged, hostile, or not what its manifest says.
        RunError: `folder` cannot be written.
    """
    _require_empty(folder)
    with ZipReader(path) as reader:
        kinds = _checked_layout(reader)
        entries = {entry.path: entry for entry in reader.entries}
        manifest_bytes = b"".join(reader.chunks(entries[MANIFEST]))
        budget = Budget()
        manifest = read_manifest(manifest_bytes, f"{path}: {MANIFEST}", budget)
        named = _checked_list(path, manifest, entries)
        signature = b"".join(reader.chunks(entries[SIGNATURE])) if SIGNATURE in entries else None
        total = sum(entry.bytes for entry in entries.values())
        with tracker(total // 10**6, f"reading {path.name}", _UNIT) as progress:
            read = 0
            for entry in (entries[name] for name in named):
                form = kinds[entry.path].form
                target = None if form == "checkpoint" else _target(folder, entry.path)
                if _copy(reader, entry, target) != named[entry.path].sha256:
                    raise WrongAnswerError(
                        f"{path}: {entry.path}: not the file that the manifest names: its hash differs"
                    )
                if target:
                    check_file(target, form, f"{path}: {entry.path}", budget)
                before, read = read, read + entry.bytes
                progress.advance(read // 10**6 - before // 10**6)
        reader.require_unchanged()
    return Submission(path, folder, manifest, manifest_bytes, signature, named)


def read_manifest(content: bytes, name: str, budget: Budget | None = None) -> Manifest:
    """The manifest `content`, found at `name`.

    Raises:
        WrongAnswerError: it is none.
    """
    document = parse_json(content, name, budget or Budget(), limits.MANIFEST_VALUES)
    _require_few(document, name)
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"]) or "document"
        raise WrongAnswerError(f"{name}: {place}: {first['msg']}, got {repr(first['input'])[:60]}") from error
    for what, text in _shown(manifest):
        require_one_line(text, f"{name}: {what}")
    return manifest


def _require_few(document: Any, name: str) -> None:
    """What is wrong with each of a million members would be told of each."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        if len(inner) > limits.MOST_ENTRIES:
            raise WrongAnswerError(f"{name}: a list of {len(inner)}, expected at most {limits.MOST_ENTRIES}")
        waiting += inner


def _shown(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What people will read of it."""
    for what in ("created", "system", "organisation", "contact", "accelerators", "framework", "benchmark", "edition"):
        text = getattr(manifest, what)
        if text is not None:
            yield what, text
    yield "code.version", manifest.code.version
    yield from (("claim.reasons", reason) for reason in manifest.claim.reasons)
    yield from (("claim.metrics", name) for name in manifest.claim.metrics)
    for one in manifest.left_out:
        yield from (("left_out", text) for text in (one.path, one.reason))


def _require_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: not empty; give a folder for this submission alone")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}") from error


def _checked_layout(reader: ZipReader) -> dict[str, Kind]:
    """The kind of each file, all of which a submission may hold, in sizes that it may have."""
    kinds: dict[str, Kind] = {}
    folded: set[str] = set()
    for entry in reader.entries:
        place = f"{reader.path}: {entry.path}"
        kind = kind_of(entry.path)
        if kind is None:
            raise WrongAnswerError(f"{place}: no file that a submission holds: see docs/submission-format.md")
        # On some file systems the second would replace the first.
        if entry.path.lower() in folded:
            raise WrongAnswerError(f"{place}: comes twice")
        folded.add(entry.path.lower())
        kinds[entry.path] = kind
        _check_size(entry, kind, place)
    missing = next((name for name in _NEEDED if name not in kinds), None)
    if missing:
        raise WrongAnswerError(f"{reader.path}: not a submission: {missing} is missing")
    inside = next((path for path in kinds for above in _above(path) if above.lower() in folded), None)
    if inside:
        raise WrongAnswerError(f"{reader.path}: {inside}: lies in what is a file")
    _check_total(reader, kinds)
    return kinds


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _check_size(entry: Entry, kind: Kind, place: str) -> None:
    if kind.most_bytes is not None and entry.bytes > kind.most_bytes:
        raise WrongAnswerError(f"{place}: {entry.bytes} bytes, expected at most {kind.most_bytes}")
    if kind.most_bytes is None and entry.method != STORED:
        raise WrongAnswerError(f"{place}: compressed: checkpoints are stored as they are")
    # Deflate adds five bytes to 16 KiB that it cannot make smaller.
    if entry.packed_bytes > entry.bytes + entry.bytes // 1000 + limits.KIB:
        raise WrongAnswerError(f"{place}: larger packed than unpacked")


def _check_total(reader: ZipReader, kinds: Mapping[str, Kind]) -> None:
    text = [entry for entry in reader.entries if kinds[entry.path].most_bytes is not None]
    total, packed = sum(entry.bytes for entry in text), sum(entry.packed_bytes for entry in text)
    if total > limits.MOST_EXTRACTED_BYTES:
        raise WrongAnswerError(
            f"{reader.path}: {total} bytes without its checkpoints, expected at most {limits.MOST_EXTRACTED_BYTES}"
        )
    if total > limits.RATIO_FREE_BYTES + limits.HIGHEST_RATIO * packed:
        raise WrongAnswerError(f"{reader.path}: {packed} bytes that would become {total}: a ZIP bomb")


def _checked_list(path: Path, manifest: Manifest, entries: Mapping[str, Entry]) -> dict[str, FileEntry]:
    """The files of the manifest by path: those of the ZIP, in order, each once."""
    named = {file.path: file for file in manifest.files}
    if [*named] != sorted(file.path for file in manifest.files):
        raise WrongAnswerError(f"{path}: {MANIFEST}: files: expected each path once, in order")
    there = entries.keys() - {MANIFEST, SIGNATURE}
    for wrong, what in ((there - named.keys(), "not in the manifest"), (named.keys() - there, "missing from the ZIP")):
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WrongAnswerError(f"{path}: {min(wrong)}: {what}{more}")
    for name, file in named.items():
        if file.bytes != entries[name].bytes:
            raise WrongAnswerError(f"{path}: {name}: {entries[name].bytes} bytes, the manifest says {file.bytes}")
    return named


def _target(folder: Path, name: str) -> Path:
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{target.parent}: cannot be written: {error.strerror}") from error
    return target


def _copy(reader: ZipReader, entry: Entry, target: Path | None) -> str:
    """Write the content of `entry` to the new file `target`, if there is one; returns its SHA-256."""
    digest = hashlib.sha256()
    if target is None:
        for chunk in reader.chunks(entry):
            digest.update(chunk)
        return digest.hexdigest()
    try:
        with _new_file(target) as stream:
            for chunk in reader.chunks(entry):
                digest.update(chunk)
                stream.write(chunk)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise RunError(f"{target}: cannot be written: {error.strerror}; free some space") from error
    return digest.hexdigest()


def _new_file(path: Path) -> IO[bytes]:
    """Never one that is there already, nor what a link leads to."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb")
