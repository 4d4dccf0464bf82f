"""Opens a submission, which is untrusted input: only files with the hashes in its manifest are extracted.

A strict ZIP reader, limits on the content of files, and the comparison of each file with its hash in the manifest.
Content that is damaged, hostile or not as `hpcai500 submit` writes it raises WrongAnswerError. `manifest` defines the
limits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any

from pydantic import ValidationError

from hpcai500.errors import RunError, UsageError, WrongAnswerError
from hpcai500.files import make_empty, why_not
from hpcai500.progress import Tracker, silent
from hpcai500.results.submission.manifest import (
    CAMPAIGN,
    CELL_BYTES,
    CODE,
    DEEPEST,
    HIGHEST_RATIO,
    KIB,
    LARGEST_INTEGER,
    LINE_BYTES,
    LONGEST_PATH,
    MANIFEST,
    MANIFEST_VALUES,
    MIB,
    MOST_ENTRIES,
    MOST_EVENTS,
    MOST_EXTRACTED_BYTES,
    MOST_VALUES,
    MOST_VALUES_IN_ALL,
    POWER_ROWS,
    RATIO_FREE_BYTES,
    RECORD_NAME,
    SIGNATURE,
    FileEntry,
    Form,
    Kind,
    Manifest,
    kind_of,
)
from hpcai500.toml_source import parse_toml

# ----------------------------------------------------------------------------------------------------
# ZIP: only the plain form that `hpcai500 submit` writes, without any other bytes.
#
# A ZIP has all facts twice: in a header before each file, and in a directory at its end. Tools use one or the other, so
# that one ZIP can show different content to different readers. Here both must agree, and there are no bytes before,
# between or after the files.


STORED, DEFLATED = 0, 8
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4sBBHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF
_ZIP64_ID = 1
# Bit 11: names are UTF-8 (ours are ASCII). All other bits mean encryption, patches or sizes that follow the data.
_HARMLESS_FLAGS = 0x800
_CHUNK = 1 << 20
_DOS_FOLDER = 0x10


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in the ZIP; sizes and offsets in bytes, `header_offset` of its local header, `offset` of its content."""

    path: str
    bytes: int
    packed_bytes: int
    crc: int
    method: int
    header_offset: int
    offset: int


class ZipReader:
    """An open ZIP file whose structure was checked. A context manager.

    Raises:
        UsageError: the file does not exist, or is a folder, a pipe or a device.
        WrongAnswerError: it is not a ZIP file as `submit` writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = _open(path)
        try:
            self._before = os.fstat(self._stream.fileno())
            self.size_bytes = self._before.st_size
            self.entries = self._read_directory()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> ZipReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """Yield the content of `entry`, never more bytes than its size in the directory.

        Raises:
            WrongAnswerError: it is damaged, or its size or checksum differs from the directory.
        """
        crc, left = 0, entry.bytes
        for chunk in self._stored(entry) if entry.method == STORED else self._inflated(entry):
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
            if left < 0:
                break
            yield chunk
        if left or crc != entry.crc:
            raise self._wrong(f"{entry.path}: damaged: its size or checksum differs from the ZIP's directory")

    def require_unchanged(self) -> None:
        """Raise WrongAnswerError if the file has changed since it was opened."""
        now, before = os.fstat(self._stream.fileno()), self._before
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise self._wrong("changed while it was read: copy it, and verify the copy")

    def _wrong(self, what: str) -> WrongAnswerError:
        return WrongAnswerError(f"{self.path}: {what}")

    def _not_ours(self, what: str) -> WrongAnswerError:
        return self._wrong(f"{what}: not written by `hpcai500 submit`")

    def _at(self, offset: int, size: int) -> bytes:
        if offset + size > self.size_bytes:
            raise self._wrong("cut off: copy it again")
        self._stream.seek(offset)
        content = self._stream.read(size)
        if len(content) != size:
            raise self._wrong("cut off: copy it again")
        return content

    def _stored(self, entry: Entry) -> Iterator[bytes]:
        done = 0
        while done < entry.packed_bytes:
            chunk = self._at(entry.offset + done, min(_CHUNK, entry.packed_bytes - done))
            done += len(chunk)
            yield chunk

    def _inflated(self, entry: Entry) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for packed in self._stored(entry):
                waiting = packed
                while waiting and not inflater.eof:
                    yield inflater.decompress(waiting, _CHUNK)
                    waiting = inflater.unconsumed_tail
                if inflater.unused_data or waiting:
                    raise self._wrong(f"{entry.path}: damaged: extra bytes after its compressed content")
            while not inflater.eof and (more := inflater.decompress(b"", _CHUNK)):
                yield more
        except zlib.error as error:
            raise self._wrong(f"{entry.path}: damaged: {error}") from error
        if not inflater.eof:
            raise self._wrong(f"{entry.path}: damaged: its compressed content is cut off")

    def _read_directory(self) -> tuple[Entry, ...]:
        """Return all entries; each byte of the ZIP must belong to one of them or to the directory."""
        count, size, offset = self._read_end()
        if count > MOST_ENTRIES:
            raise self._wrong(f"{count} files, expected at most {MOST_ENTRIES}")
        if size > count * (_CENTRAL.size + LONGEST_PATH + 32):
            raise self._not_ours(f"a directory of {size} bytes for {count} files")
        directory = self._at(offset, size)
        entries, place = [], 0
        position = 0
        for _ in range(count):
            entry, place = self._read_central(directory, place)
            if entry.header_offset != position:
                raise self._not_ours(f"{entry.path}: does not start at the end of the file before it")
            entry = self._read_local(entry)
            position = entry.offset + entry.packed_bytes
            if position > offset:
                raise self._not_ours(f"{entry.path}: overlaps the directory")
            entries.append(entry)
        if place != size or position != offset:
            raise self._not_ours("bytes that belong to no file")
        return tuple(entries)

    def _read_end(self) -> tuple[int, int, int]:
        """Return number of entries, size and offset of the directory."""
        if self.size_bytes < _END.size or self._at(0, 2) != b"PK":
            raise self._wrong("not a submission: not a ZIP file")
        end = self.size_bytes - _END.size
        mark, disk, first, here, count, size, offset, comment = _END.unpack(self._at(end, _END.size))
        if mark != b"PK\5\6" or comment:
            raise self._wrong("not a complete ZIP file: cut off, or with appended bytes")
        if disk or first or here != count:
            raise self._not_ours("one part of several")
        if offset + size == end:
            return count, size, offset
        # The same numbers in 64 bits precede it, followed by a record of their place.
        place = end - _LOCATOR.size - _END64.size
        if place < 0:
            raise self._not_ours("bytes that belong to no file")
        wide = _END64.unpack(self._at(place, _END64.size))
        narrow = zip((count, size, offset), wide[-3:], (_FULL16, _FULL32, _FULL32), strict=True)
        count, size, offset = wide[-3:]
        if (
            wide != (b"PK\6\6", _END64.size - 12, *wide[2:4], 0, 0, count, count, size, offset)
            or self._at(place + _END64.size, _LOCATOR.size) != _LOCATOR.pack(b"PK\6\7", 0, place, 1)
            or any(short not in (long, full) for short, long, full in narrow)
            or offset + size != place
        ):
            raise self._not_ours("bytes that belong to no file")
        return count, size, offset

    def _read_central(self, directory: bytes, place: int) -> tuple[Entry, int]:
        """Return the entry at `place` of the directory, and the place of the next one."""
        if place + _CENTRAL.size > len(directory):
            raise self._not_ours("a directory that is cut off")
        mark, _, _, _, flags, method, _, _, crc, packed, size, *rest = _CENTRAL.unpack_from(directory, place)
        named, extra, comment, disk, _, attributes, offset = rest
        after = place + _CENTRAL.size + named + extra + comment
        name = directory[place + _CENTRAL.size : place + _CENTRAL.size + named]
        if mark != b"PK\1\2" or after > len(directory) or comment or disk:
            raise self._not_ours("an invalid directory")
        path = self._path(name)
        self._check_form(path, flags, method, attributes)
        wide = directory[place + _CENTRAL.size + named : after]
        size, packed, offset = self._widened(path, wide, (size, packed, offset))
        return Entry(path, size, packed, crc, method, offset, 0), after

    def _path(self, name: bytes) -> str:
        if not name or len(name) > LONGEST_PATH or not name.isascii() or not name.decode().isprintable():
            raise self._wrong(f"{name[:60]!r}: not a valid file name in a submission")
        return name.decode()

    def _check_form(self, path: str, flags: int, method: int, attributes: int) -> None:
        mode = attributes >> 16
        if flags & 1:
            raise self._wrong(f"{path}: encrypted: a submission must not be encrypted")
        if method not in (STORED, DEFLATED):
            raise self._not_ours(f"{path}: compressed by the method {method}")
        if flags & ~_HARMLESS_FLAGS:
            raise self._not_ours(f"{path}: ZIP flags {flags:#x}")
        if (mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG)) or attributes & _DOS_FOLDER:
            raise self._wrong(f"{path}: a link, a folder or a device: expected files only")

    def _widened(self, path: str, extra: bytes, fields: tuple[int, ...]) -> tuple[int, ...]:
        """Return `fields`; those marked as too large for 32 bits come from the ZIP64 extra field."""
        wide = [position for position, field in enumerate(fields) if field == _FULL32]
        expected = struct.Struct(f"<HH{len(wide)}Q")
        if not wide and not extra:
            return fields
        if not wide or len(extra) != expected.size:
            raise self._not_ours(f"{path}: extra fields")
        number, size, *values = expected.unpack(extra)
        if number != _ZIP64_ID or size != 8 * len(wide):
            raise self._not_ours(f"{path}: extra fields")
        widened = list(fields)
        for position, value in zip(wide, values, strict=True):
            widened[position] = value
        return tuple(widened)

    def _read_local(self, entry: Entry) -> Entry:
        """Return `entry` with the offset of its content; its local header must agree with the directory."""
        header = self._at(entry.header_offset, _LOCAL.size)
        mark, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(header)
        if named + extra > LONGEST_PATH + 32:
            raise self._not_ours(f"{entry.path}: its header has {named + extra} bytes of names and extra fields")
        rest = self._at(entry.header_offset + _LOCAL.size, named + extra)
        size, packed = self._widened(entry.path, rest[named:], (size, packed))
        found = (mark, flags & ~_HARMLESS_FLAGS, method, crc, packed, size, rest[:named])
        expected = (b"PK\3\4", 0, entry.method, entry.crc, entry.packed_bytes, entry.bytes, entry.path.encode())
        if found != expected:
            raise self._not_ours(f"{entry.path}: its header differs from the directory")
        if entry.method == STORED and entry.bytes != entry.packed_bytes:
            raise self._not_ours(f"{entry.path}: not compressed, but its packed size differs from its size")
        return replace(entry, offset=entry.header_offset + _LOCAL.size + named + extra)


def _open(path: Path) -> IO[bytes]:
    """Open a regular file; a pipe or a device could block the reader."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: {why_not('file', path)}; give a submission (`hpcai500 submit CAMPAIGN -o FILE`)"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path}: a folder, a pipe or a device: give the file that `hpcai500 submit` wrote")
    return os.fdopen(descriptor, "rb")


# ----------------------------------------------------------------------------------------------------
# Limits on content, so that code that reads records need not handle them.
#
# Python's JSON accepts NaN, duplicate keys, integers of a thousand digits, unlimited nesting, and characters that no
# file can hold. An honest record has none of them.


_STRUCTURE = (b",", b"[", b"{", b":")


class Budget:
    """How many more JSON values all files together may have."""

    def __init__(self, values: int = MOST_VALUES_IN_ALL) -> None:
        self._left = values

    def take(self, values: int, name: str) -> None:
        """Count `values` of the file `name`.

        Raises:
            WrongAnswerError: the submission has too many.
        """
        self._left -= values
        if self._left < 0:
            raise WrongAnswerError(f"{name}: too many JSON values in this submission")


def parse_json(content: bytes, name: str, budget: Budget, most_values: int = MOST_VALUES) -> Any:
    """Parse the JSON document `content`; `name` is for messages.

    Raises:
        WrongAnswerError: it is not JSON, or breaks the limits above.
    """
    # Each value except the first follows one of these bytes, which gives an upper bound before parsing.
    values = 1 + sum(map(content.count, _STRUCTURE))
    if values > most_values:
        raise WrongAnswerError(f"{name}: about {values} JSON values, expected at most {most_values}")
    budget.take(values, name)
    try:
        document = _DECODER.decode(content.decode("utf-8"))
    except RecursionError as error:
        raise WrongAnswerError(f"{name}: JSON nested too deeply: expected at most {DEEPEST} levels") from error
    except ValueError as error:
        raise WrongAnswerError(f"{name}: not plain JSON: {_first_words(error)}") from error
    _require_plain(document, name)
    return document


def check_file(path: Path, form: Form, name: str, budget: Budget) -> None:
    """Check the extracted file `path`, which is `name` in the submission.

    Raises:
        WrongAnswerError: its content is not of this form.
    """
    match form:
        case "json":
            if not isinstance(parse_json(path.read_bytes(), name, budget), dict):
                raise WrongAnswerError(f"{name}: expected a JSON object")
        case "json lines":
            _check_lines(path, name, budget)
        case "toml":
            content = path.read_bytes()
            # The number of bytes is an upper bound of the values; a million recipes are refused after a few.
            budget.take(len(content), name)
            _require_plain(parse_toml(content, name, WrongAnswerError), name)
        case "csv":
            _check_rows(path, name)
        case "text":
            _check_text(path, name)


def _check_lines(path: Path, name: str, budget: Budget) -> None:
    values = 0
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LINE_BYTES + 1), b""), 1):
            place = f"{name}:{number}"
            if number > MOST_EVENTS:
                raise WrongAnswerError(f"{place}: more than {MOST_EVENTS} events, the limit of a submission")
            if len(line) > LINE_BYTES:
                raise WrongAnswerError(f"{place}: a line of more than {LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                # A crash cut this line off; readers ignore it.
                return
            values += sum(map(line.count, _STRUCTURE))
            if values > MOST_VALUES:
                raise WrongAnswerError(f"{place}: more than {MOST_VALUES} JSON values in one log")
            event = parse_json(line, place, budget)
            _check_journal(event, name, place)


def _check_journal(event: Any, name: str, place: str) -> None:
    """Refuse a record's name that is a path, as readers join it to the campaign's folder."""
    if not isinstance(event, dict) or not name.endswith(".jsonl") or event.get("key") != "attempt_start":
        return
    value = event.get("value")
    record = value.get("record") if isinstance(value, dict) else None
    if not isinstance(record, str) or not RECORD_NAME.fullmatch(record):
        raise WrongAnswerError(f"{place}: record: expected a name like trial-01, got {str(record)[:60]!r}")


def _check_rows(path: Path, name: str) -> None:
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(CELL_BYTES + 1), b""), 1):
            if number > POWER_ROWS or len(line) > CELL_BYTES:
                raise WrongAnswerError(f"{name}:{number}: too many samples, or a row that is too long")
            if not line.isascii() or b"\0" in line:
                raise WrongAnswerError(f"{name}:{number}: not a row of samples")


def _check_text(path: Path, name: str) -> None:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            clean = all("\0" not in block for block in iter(lambda: stream.read(MIB), ""))
    except UnicodeDecodeError as error:
        raise WrongAnswerError(f"{name}: not a text file in UTF-8") from error
    if not clean:
        raise WrongAnswerError(f"{name}: not a text file: it contains NUL")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)


def _require_plain(document: Any, name: str) -> None:
    """Refuse nesting, numbers and characters that later code does not expect."""
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        if not level:
            return
        inner: list[Any] = []
        for value in level:
            # Parsers give these types exactly. The order is by frequency: a large submission has millions of values.
            kind = type(value)
            if kind is str:
                if not value.isascii():
                    _require_characters(value, name)
            elif kind is float:
                if not math.isfinite(value):
                    raise WrongAnswerError(f"{name}: {value} is not a number")
            elif kind is int:
                if abs(value) > LARGEST_INTEGER:
                    raise WrongAnswerError(f"{name}: an integer of more than 64 bits")
            elif kind is dict:
                # Keys are strings, and are checked like values.
                inner += value
                inner += value.values()
            elif kind is list:
                inner += value
            elif not (kind is bool or value is None):
                raise WrongAnswerError(f"{name}: a {kind.__name__}, which a recipe must not contain")
        level = inner
    raise WrongAnswerError(f"{name}: nested too deeply: expected at most {DEEPEST} levels")


def _require_characters(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongAnswerError(f"{name}: a character that no file can hold (half of a surrogate pair)") from error


def require_one_line(text: str, what: str) -> None:
    """Refuse a text that could hide or overwrite other text on a terminal or a page.

    Raises:
        WrongAnswerError: it has control characters, characters that change the direction of writing, or blanks around
            it.
    """
    if not text.isprintable() or text != text.strip():
        raise WrongAnswerError(f"{what}: has unprintable characters or blanks around it: {text[:60]!r}")


def _first_words(error: ValueError) -> str:
    return str(error).splitlines()[0][:200]


# ----------------------------------------------------------------------------------------------------
# Opening: checks the layout, then the manifest, then the hash of each file.


_NEEDED = (MANIFEST, f"{CAMPAIGN}/recipe.toml", f"{CAMPAIGN}/campaign.jsonl")
_UNIT = "MB"


@dataclass(frozen=True)
class Submission:
    """An opened submission.

    Attributes:
        path: the ZIP file.
        folder: where its content was extracted, except checkpoints.
        manifest_bytes: the signed bytes of the manifest.
        signature: of `manifest_bytes`, in OpenSSH's armour; None if unsigned.
        entries: all files by path, as the manifest lists them.
    """

    path: Path
    folder: Path
    manifest: Manifest
    manifest_bytes: bytes = field(repr=False)
    signature: bytes | None = field(repr=False)
    entries: Mapping[str, FileEntry] = field(repr=False)

    @property
    def campaign(self) -> Path:
        return self.folder / CAMPAIGN

    @property
    def code(self) -> Path:
        """The folder of the sources that ran."""
        return self.folder / CODE

    def extract(self, path: str, target: Path) -> None:
        """Write the file `path` of the ZIP, such as a checkpoint, to `target`, which must not exist.

        Raises:
            UsageError: the ZIP has no such file, or the ZIP is gone.
            WrongAnswerError: the ZIP was changed since it was opened.
            RunError: `target` cannot be written.
        """
        expected = self.entries.get(path)
        if expected is None:
            raise UsageError(f"{self.path}: has no file {path}")
        with ZipReader(self.path) as reader:
            entry = next((one for one in reader.entries if one.path == path), None)
            if entry is None:
                raise WrongAnswerError(f"{self.path}: changed since it was opened: {path} is gone")
            if _copy(reader, entry, target) != expected.sha256:
                target.unlink(missing_ok=True)
                raise WrongAnswerError(f"{self.path}: {path}: its hash differs from the manifest")


def extracted_bytes(path: Path) -> int | None:
    """Space that `open_submission` fills at most for the file `path`; None if it refuses the file before it writes any.

    Each file fills whole pages of memory, or blocks of a disk.

    Raises:
        UsageError: as `open_submission`.
    """
    try:
        with ZipReader(path) as reader:
            kinds = _checked_layout(reader)
            extracted = [entry for entry in reader.entries if kinds[entry.path].form != "checkpoint"]
            return sum(entry.bytes + 4 * KIB for entry in extracted)
    except WrongAnswerError:
        return None


def open_submission(path: Path, folder: Path, tracker: Tracker = silent) -> Submission:
    """Check the submission `path`, and extract it without checkpoints into `folder`, which must be empty or absent.

    The hash of every file, including checkpoints, is compared with the manifest. The meaning of the content is not
    checked here.

    Raises:
        UsageError: the file does not exist, or `folder` is not empty.
        WrongAnswerError: the file is damaged, hostile, or differs from its manifest.
        RunError: `folder` cannot be written.
    """
    try:
        make_empty(folder, UsageError, "give a folder for this submission alone")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}") from error
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
                target = None if form == "checkpoint" else folder / entry.path
                if _copy(reader, entry, target) != named[entry.path].sha256:
                    raise WrongAnswerError(f"{path}: {entry.path}: its hash differs from the manifest")
                if target:
                    check_file(target, form, f"{path}: {entry.path}", budget)
                before, read = read, read + entry.bytes
                progress.advance(read // 10**6 - before // 10**6)
        reader.require_unchanged()
    return Submission(path, folder, manifest, manifest_bytes, signature, named)


def read_manifest(content: bytes, name: str, budget: Budget | None = None) -> Manifest:
    """Parse the manifest `content`; `name` is for messages.

    Raises:
        WrongAnswerError: it is not a manifest.
    """
    document = parse_json(content, name, budget or Budget(), MANIFEST_VALUES)
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
    """Refuse long lists before pydantic reads them: it would report an error for each of a million members."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        if len(inner) > MOST_ENTRIES:
            raise WrongAnswerError(f"{name}: a list of {len(inner)}, expected at most {MOST_ENTRIES}")
        waiting += inner


def _shown(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the texts that reports show, each with its name."""
    for what in ("created", "system", "organisation", "contact", "accelerators", "framework", "benchmark", "edition"):
        text = getattr(manifest, what)
        if text is not None:
            yield what, text
    yield "code.version", manifest.code.version
    yield from (("claim.reasons", reason) for reason in manifest.claim.reasons)
    yield from (("claim.metrics", name) for name in manifest.claim.metrics)
    for one in manifest.left_out:
        yield from (("left_out", text) for text in (one.path, one.reason))


def _checked_layout(reader: ZipReader) -> dict[str, Kind]:
    """Return the kind of each file, after a check of names, duplicates and sizes."""
    kinds: dict[str, Kind] = {}
    folded: set[str] = set()
    for entry in reader.entries:
        place = f"{reader.path}: {entry.path}"
        kind = kind_of(entry.path)
        if kind is None:
            raise WrongAnswerError(f"{place}: not a file of a submission: see docs/submission-format.md")
        # On a file system that ignores case, the second would replace the first.
        if entry.path.lower() in folded:
            raise WrongAnswerError(f"{place}: occurs twice")
        folded.add(entry.path.lower())
        kinds[entry.path] = kind
        _check_size(entry, kind, place)
    missing = next((name for name in _NEEDED if name not in kinds), None)
    if missing:
        raise WrongAnswerError(f"{reader.path}: not a submission: {missing} is missing")
    for path in kinds:
        if any(str(above).lower() in folded for above in PurePosixPath(path).parents):
            raise WrongAnswerError(f"{reader.path}: {path}: its folder is a file, too")
    _check_total(reader, kinds)
    return kinds


def _check_size(entry: Entry, kind: Kind, place: str) -> None:
    if kind.most_bytes is not None and entry.bytes > kind.most_bytes:
        raise WrongAnswerError(f"{place}: {entry.bytes} bytes, expected at most {kind.most_bytes}")
    if kind.most_bytes is None and entry.method != STORED:
        raise WrongAnswerError(f"{place}: compressed: checkpoints must be stored uncompressed")
    # Deflate adds five bytes to 16 KiB that it cannot compress.
    if entry.packed_bytes > entry.bytes + entry.bytes // 1000 + KIB:
        raise WrongAnswerError(f"{place}: larger packed than unpacked")


def _check_total(reader: ZipReader, kinds: Mapping[str, Kind]) -> None:
    text = [entry for entry in reader.entries if kinds[entry.path].most_bytes is not None]
    total, packed = sum(entry.bytes for entry in text), sum(entry.packed_bytes for entry in text)
    if total > MOST_EXTRACTED_BYTES:
        raise WrongAnswerError(
            f"{reader.path}: {total} bytes without checkpoints, expected at most {MOST_EXTRACTED_BYTES}"
        )
    if total > RATIO_FREE_BYTES + HIGHEST_RATIO * packed:
        raise WrongAnswerError(f"{reader.path}: {packed} bytes that would unpack to {total}: a ZIP bomb")


def _checked_list(path: Path, manifest: Manifest, entries: Mapping[str, Entry]) -> dict[str, FileEntry]:
    """Return the manifest's files by path; they must be those of the ZIP, in order, each once."""
    named = {file.path: file for file in manifest.files}
    if [*named] != sorted(file.path for file in manifest.files):
        raise WrongAnswerError(f"{path}: {MANIFEST}: files: expected each path once, in order")
    present = entries.keys() - {MANIFEST, SIGNATURE}
    for wrong, what in (
        (present - named.keys(), "not in the manifest"),
        (named.keys() - present, "missing from the ZIP"),
    ):
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WrongAnswerError(f"{path}: {min(wrong)}: {what}{more}")
    for name, file in named.items():
        if file.bytes != entries[name].bytes:
            raise WrongAnswerError(f"{path}: {name}: {entries[name].bytes} bytes, the manifest says {file.bytes}")
    return named


def _copy(reader: ZipReader, entry: Entry, target: Path | None) -> str:
    """Write the content of `entry` to the new file `target`, unless that is None; return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with _new_file(target) if target else nullcontext() as stream:
            for chunk in reader.chunks(entry):
                digest.update(chunk)
                if stream:
                    stream.write(chunk)
    except OSError as error:
        if target is None:
            raise
        with suppress(OSError):
            target.unlink()
        raise RunError(f"{target}: cannot be written: {error.strerror}; free some space") from error
    return digest.hexdigest()


def _new_file(path: Path) -> IO[bytes]:
    """Create a new file: existing files are not opened, and links are not followed."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb")
