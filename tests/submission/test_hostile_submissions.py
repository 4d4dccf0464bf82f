"""A submission comes from strangers: whatever is wrong with it is told in one line, and nothing of it is believed.

ZIP files may tell different readers different stories, or cost more than they weigh; content may be what later code
would trip over.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders.submissions import (
    CHECKPOINT,
    EVENTS,
    Member,
    central_directory,
    manifest_of,
    members_of,
    opened,
    refusal,
    small_files,
    with_file,
    write_submission,
    write_zip,
)

from hpcai500.errors import ExitCode, HpcAi500Error, UsageError, WrongAnswerError
from hpcai500.record import FIRST_PREVIOUS
from hpcai500.results.submission import archive as content_module
from hpcai500.results.submission import manifest
from hpcai500.results.submission.archive import Budget, extracted_bytes, open_submission, parse_json

LINK = 0o120777
CENTRAL, LOCAL, END = 46, 30, 22
RECIPE, JOURNAL = "campaign/recipe.toml", "campaign/campaign.jsonl"
Edit = Callable[[bytearray], object]


def refused(tmp_path: Path, members: Sequence[Member]) -> str:
    """Why a ZIP of these is refused."""
    tmp_path.mkdir(exist_ok=True)
    return refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


def refused_with(tmp_path: Path, name: str, content: bytes) -> str:
    """Why a submission is refused whose manifest vouches for this file."""
    tmp_path.mkdir(exist_ok=True)
    return refusal(write_submission(tmp_path / "s.zip", with_file(name, content)), tmp_path / "out")


def readme_as(**changes: object) -> list[Member]:
    """The entries of a good submission, one of them otherwise."""
    return [replace(one, **changes) if one.path == "README.txt" else one for one in members_of(small_files())]


def with_manifest(content: bytes) -> list[Member]:
    members = [one for one in members_of(small_files()) if one.path != "manifest.json"]
    return [*members, Member("manifest.json", content)]


def said_otherwise(**changes: object) -> list[Member]:
    return with_manifest(json.dumps({**manifest_of(small_files()), **changes}).encode())


def test_an_honest_submission_opens_and_holds_what_was_packed(tmp_path: Path) -> None:
    submission = opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")
    for path, content in small_files().items():
        if path == CHECKPOINT:
            assert not (submission.folder / path).exists()
        else:
            assert (submission.folder / path).read_bytes() == content
    assert submission.manifest.system == "A"
    assert submission.signature is None
    assert [path for path in submission.entries if "/trial-01/checkpoints/" in path] == [CHECKPOINT]


def test_the_space_that_is_needed_is_known_before_unless_the_file_is_refused(tmp_path: Path) -> None:
    submission = opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")
    files = [path for path in submission.folder.rglob("*") if path.is_file()]
    needed = extracted_bytes(submission.path)
    assert needed is not None
    assert sum(path.stat().st_size + 4096 for path in files) <= needed <= 2**20
    (tmp_path / "other.zip").write_bytes(b"no submission")
    assert extracted_bytes(tmp_path / "other.zip") is None


def test_a_checkpoint_is_extracted_when_it_is_asked_for(tmp_path: Path) -> None:
    submission = opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")
    submission.extract(CHECKPOINT, tmp_path / "weights.pt")
    assert (tmp_path / "weights.pt").read_bytes() == small_files()[CHECKPOINT]
    with pytest.raises(UsageError, match="has no file campaign/trial-09"):
        submission.extract("campaign/trial-09/checkpoints/x.pt", tmp_path / "no.pt")
    write_submission(tmp_path / "s.zip", with_file(CHECKPOINT, b"other weights"))
    with pytest.raises(WrongAnswerError, match="its hash differs"):
        submission.extract(CHECKPOINT, tmp_path / "no.pt")
    assert not (tmp_path / "no.pt").exists()


# Names.


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt", "campaign/../../evil.txt", "/etc/evil", "C:/evil.txt", "campaign\\trial-01\\ERROR", "//evil",
        "campaign/./recipe.toml", "campaign/evil\n.txt", "evil\x1b[31m", "CON", "campaign/", "campaign/trial-01/..",
        "logs/" + "x" * 400, "logs/ä.txt", "campaign/trial-01/extra.bin", "code/hpcai500/evil.so", "code/setup.py",
        "campaign/trial-01/power/../../x.csv", "campaign/trial-01/checkpoints/a/b.pt", "logs/.bashrc", "logs/-rf",
        # Longer than any path.
        "logs/" + "x" * 60_000,
        # What a file system may take for another.
        "README.txt ", " README.txt", "README.txt.", "readme.txt", "README.TXT", "logs/a ", "logs/a\u00e9",
        "logs/ae\u0301",
        "campaign/recipe.toml/", "campaign//recipe.toml", "Campaign/recipe.toml", "campaign/TRIAL-01/DONE",
        "campaign/trial-\u0661/DONE", "campaign/trial-01/DONE\u200b", "manifest.json/..", "~/x", "logs/a:stream",
        f"code/hpcai500/{'x' * 300}.py", f"code/hpcai500/{'x/' * 200}y.py",
        "logs/%2e%2e", "logs/\u202egnp.txt", "MANIFEST.JSON",
        # A file in what is a file.
        "README.txt/x",
    ],
)  # fmt: skip
def test_a_name_that_no_submission_has_is_refused(tmp_path: Path, name: str) -> None:
    told = refused(tmp_path, [Member(name, b"x"), *members_of(small_files())])
    assert "file" in told
    assert len(told) < 300 or len(name) < 1000
    assert not list(tmp_path.rglob("*evil*"))


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip", with_file("logs/aXb.txt", b"x"))
    path.write_bytes(path.read_bytes().replace(b"logs/aXb.txt", b"logs/a\0b.txt"))
    refusal(path, tmp_path / "out")


@pytest.mark.parametrize("twin", [RECIPE, "logs/A.txt"])
def test_a_name_that_comes_twice_is_refused(tmp_path: Path, twin: str) -> None:
    files = with_file("logs/a.txt", b"x")
    with pytest.warns(UserWarning, match="Duplicate") if twin in files else contextlib.nullcontext():
        told = refused(tmp_path, [Member(twin, b"benchmark = 1"), *members_of(files)])
    assert "occurs twice" in told


def test_a_folder_may_be_called_like_a_file_of_code(tmp_path: Path) -> None:
    files = {**with_file("code/hpcai500/a/b.py", b""), "code/hpcai500/a.py": b""}
    opened(write_submission(tmp_path / "fine.zip", files), tmp_path / "fine")


# Kinds of entries.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"mode": mode}, "a link, a folder or a device") for mode in (
            LINK, 0o020666, 0o060666, 0o010666, 0o040755, 0o140777)),
        *(({"method": method}, "compressed by the method") for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
        ({"content": b"a tost\n"}, "README.txt: its hash differs from the manifest"),
        ({"content": b"longer"}, "README.txt: 6 bytes, the manifest says 7"),
        ({"path": "logs/extra.txt"}, "logs/extra.txt: not in the manifest"),
    ],
)  # fmt: skip
def test_an_entry_that_is_not_as_it_should_is_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    assert reason in refused(tmp_path, readme_as(**changes))


def test_checkpoints_are_stored_and_those_that_the_manifest_names(tmp_path: Path) -> None:
    members = members_of(small_files())
    told = refused(tmp_path / "1", [replace(one, method=8) for one in members])
    assert "checkpoints must be stored" in told
    zeros = [replace(one, content=bytes(len(one.content))) if one.path == CHECKPOINT else one for one in members]
    assert "its hash differs" in refused(tmp_path / "2", zeros)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("manifest.json", "manifest.json is missing"),
        (RECIPE, f"{RECIPE} is missing"),
        (JOURNAL, f"{JOURNAL} is missing"),
        (None, "README.txt: missing from the ZIP"),
    ],
)
def test_what_makes_a_submission_or_is_named_may_not_lack(tmp_path: Path, missing: str | None, reason: str) -> None:
    files = {path: content for path, content in small_files().items() if path != missing}
    assert reason in refused(tmp_path, [one for one in members_of(files) if one.path != (missing or "README.txt")])


# ZIP files that tell two stories.


def encrypt(content: bytearray) -> None:
    """Say of the first file that it is encrypted."""
    content[6] |= 1
    content[central_directory(content) + 8] |= 1


def overlap(content: bytearray) -> None:
    """Let the second file of the directory lie where the first one is."""
    first = central_directory(content)
    second = content.index(b"PK\1\2", first + 1)
    struct.pack_into("<I", content, second + 42, 0)


def resize(content: bytearray, size: int) -> None:
    """Say, in both places, that the manifest, which no manifest vouches for, is so long."""
    entry = content.rindex(b"PK\1\2")
    struct.pack_into("<I", content, struct.unpack_from("<I", content, entry + 42)[0] + 22, size)
    struct.pack_into("<I", content, entry + 24, size)


def lie(content: bytearray) -> None:
    """Say otherwise in front of the first file."""
    struct.pack_into("<I", content, 22, 3)


def checksum(content: bytearray) -> None:
    """Another checksum, in both places."""
    struct.pack_into("<I", content, 14, 1)
    struct.pack_into("<I", content, central_directory(content) + 16, 1)


def hide(content: bytearray) -> None:
    """Something before the directory."""
    place = central_directory(content)
    content[place:place] = b"hidden"
    struct.pack_into("<I", content, len(content) - 6, place + 6)


def at_end(form: str, place: int, *told: int) -> Edit:
    """Say otherwise in the record that ends the directory."""
    return lambda content: struct.pack_into(form, content, len(content) - place, *told)


def with_directory(content: bytearray, change: Callable[[bytearray], None]) -> None:
    """Change the directory, which may become longer; the end says so."""
    start = central_directory(content)
    directory = content[start:-END]
    change(directory)
    content[start:-END] = directory
    struct.pack_into("<I", content, len(content) - 10, len(directory))


def insert_extra(directory: bytearray, extra: bytes) -> None:
    """Give the first entry of the directory an extra field."""
    named = struct.unpack_from("<H", directory, 28)[0]
    struct.pack_into("<H", directory, 30, len(extra))
    directory[CENTRAL + named : CENTRAL + named] = extra


def named(directory: bytearray) -> int:
    """How long the first name of the directory is."""
    return int(struct.unpack_from("<H", directory, 28)[0])


def data_descriptor(content: bytearray) -> None:
    """Sizes that are told after the content, so that the header in front of it says none."""
    content[6] |= 8
    struct.pack_into("<III", content, 14, 0, 0, 0)
    content[central_directory(content) + 8] |= 8


def widened(field: int, value: int) -> Edit:
    """A size (24) or an offset (42) of 64 bits in the directory."""

    def change(directory: bytearray) -> None:
        struct.pack_into("<I", directory, field, 0xFFFFFFFF)
        insert_extra(directory, struct.pack("<HHQ", 1, 8, value))

    return lambda content: with_directory(content, change)


def wide_end(content: bytearray) -> None:
    """Two ends: that of 64 bits counts fewer files than the one that old readers believe."""
    count, size, offset = struct.unpack_from("<HII", content, len(content) - 12)
    place = len(content) - END
    wide = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, offset)
    content[place:place] = wide + struct.pack("<4sIQI", b"PK\6\7", 0, place, 1)
    assert count > 1


def unicode_path(content: bytearray) -> None:
    """Another name for readers that know Info-ZIP's extra field 0x7075."""
    extra = struct.pack("<HHBI", 0x7075, 5 + 8, 1, zlib.crc32(b"README.txt")) + b"evil.txt"
    with_directory(content, lambda directory: insert_extra(directory, extra))


def entry_comment(content: bytearray) -> None:
    """A second directory within the comment of an entry of the first."""

    def change(directory: bytearray) -> None:
        hidden, place = bytes(directory), CENTRAL + named(directory)
        struct.pack_into("<H", directory, 32, len(hidden))
        directory[place:place] = hidden

    with_directory(content, change)


def two_ends(content: bytearray) -> None:
    """A whole second ZIP in the comment of the first: who looks from the end and who looks from the start differ."""
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("README.txt", b"another")
    struct.pack_into("<H", content, len(content) - 2, len(other.getvalue()))
    content += other.getvalue()


def comment_that_ends(content: bytearray) -> None:
    """A comment that is itself an end without a comment, of no files."""
    struct.pack_into("<H", content, len(content) - 2, END)
    content += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0, 0, 0, len(content), 0)


def split_entry(content: bytearray) -> None:
    """A file that begins on another disk."""
    struct.pack_into("<H", content, central_directory(content) + 34, 1)


def split_mark(content: bytearray) -> None:
    """The mark of a split archive before the first file."""
    start = central_directory(content)
    content[0:0] = b"PK\7\x08"
    struct.pack_into("<I", content, len(content) - 6, start + 4)


def same_content_twice(content: bytearray) -> None:
    """A second entry of the directory for the content of the first file, under another name."""
    with_directory(content, lambda directory: directory.extend(directory[: CENTRAL + named(directory)]))
    count = struct.unpack_from("<H", content, len(content) - 12)[0]
    at_end("<HH", 14, count + 1, count + 1)(content)


def masked(content: bytearray) -> None:
    """Headers that strong encryption hides."""
    content[7] |= 0x20
    content[central_directory(content) + 9] |= 0x20


def empty_name(content: bytearray) -> None:
    """No name in the directory."""

    def change(directory: bytearray) -> None:
        length = named(directory)
        struct.pack_into("<H", directory, 28, 0)
        del directory[CENTRAL : CENTRAL + length]

    with_directory(content, change)


def other_name(content: bytearray) -> None:
    """In front of the file another name than in the directory."""
    content[LOCAL : LOCAL + 10] = b"README.tyt"


def local_extra(size: int) -> Edit:
    """An extra field that stands in front of the file alone, and may swallow its content."""
    return lambda content: struct.pack_into("<H", content, 28, size)


STORIES: dict[str, tuple[Edit, str]] = {
    "encrypted": (encrypt, "encrypted"),
    "two files at one place": (overlap, "does not start at the end of"),
    "a manifest that is longer than it is": (lambda content: resize(content, 1_000_000), "size or checksum"),
    "a manifest that is shorter than it is": (lambda content: resize(content, 1500), "size or checksum"),
    "another size in front of a file": (lie, "header differs"),
    "another checksum": (checksum, "size or checksum"),
    "something before the directory": (hide, "does not|belong to no file"),
    "fewer files than there are": (at_end("<HH", 14, 2, 2), "no file"),
    "more files than there are": (at_end("<HH", 14, 60_000, 60_000), "cut off"),
    "a directory behind the end": (at_end("<I", 6, 0xFFFFFFF0), "no file"),
    "a directory of 64 bits that is not there": (at_end("<I", 6, 0xFFFFFFFF), "no file|directory"),
    "something appended": (lambda content: content.extend(b"appended"), "appended"),
    "no end": (lambda content: content.__delitem__(slice(-100, None)), "cut off"),
    "no beginning": (lambda content: content.__delitem__(slice(0, 10)), "not a ZIP file"),
    "a script before it": (lambda content: content.__setitem__(slice(0, 0), b"#!/bin/sh\n"), "not a ZIP file"),
    "nothing": (lambda content: content.clear(), "not a ZIP file"),
    "gzip": (lambda content: content.__setitem__(slice(None), b"\x1f\x8b" + bytes(1000)), "not a ZIP file"),
    "sizes after the content": (data_descriptor, "flags 0x8"),
    "a size of 64 bits": (widened(24, 2**62), "header differs|bytes, expected"),
    "an offset of 64 bits": (widened(42, 2**63), "does not start at"),
    "two ends, one of 64 bits": (wide_end, "no file"),
    "another name in Unicode": (unicode_path, "extra fields"),
    "a directory in a comment": (entry_comment, "invalid directory"),
    "a second ZIP in the comment": (two_ends, "does not|no file"),
    "a comment that is an end": (comment_that_ends, "no file"),
    "the last of three disks": (at_end("<HH", 18, 2, 2), "one part of several"),
    "a file on another disk": (split_entry, "invalid directory"),
    "the mark of a split archive": (split_mark, "header differs"),
    "one content under two names": (same_content_twice, "does not start at"),
    "hidden headers": (masked, "flags 0x2000"),
    "no name": (empty_name, "file name"),
    "another name in front of a file": (other_name, "header differs"),
    "content that an extra field swallows": (local_extra(0xFFFF), "bytes of names"),
    "an extra field in front of a file": (local_extra(4), "extra fields"),
}


@pytest.mark.parametrize(("edit", "reason"), STORIES.values(), ids=STORIES)
def test_a_zip_that_tells_two_stories_is_refused(tmp_path: Path, edit: Edit, reason: str) -> None:
    path = write_submission(tmp_path / "s.zip")
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)
    assert re.search(reason, refusal(path, tmp_path / "out"))


def deflated(path: Path, name: str, packed: bytes, told: bytes) -> Path:
    """Let the stored entry `name` be a deflated one of the size and checksum of `told`, in both places."""
    content = bytearray(path.read_bytes())
    entries = (found.start() for found in re.finditer(re.escape(b"PK\1\2"), content))
    entry = next(at for at in entries if content[at + CENTRAL :].startswith(name.encode()))
    for header in (struct.unpack_from("<I", content, entry + 42)[0] + 6, entry + 8):
        struct.pack_into("<H", content, header + 2, 8)
        struct.pack_into("<III", content, header + 8, zlib.crc32(told), len(packed), len(told))
    path.write_bytes(content)
    return path


def test_content_that_hides_in_its_own_packing_is_refused(tmp_path: Path) -> None:
    # Empty blocks: any number of them unpacks to nothing.
    packed = b"\0\0\0\xff\xff" * 1000 + zlib.compress(b"x", wbits=-15)
    members = members_of(with_file("README.txt", b"x"))
    members[0] = Member("README.txt", packed, zipfile.ZIP_STORED)
    path = deflated(write_zip(tmp_path / "s.zip", members), "README.txt", packed, b"x")
    with zipfile.ZipFile(path) as other:
        assert other.read("README.txt") == b"x"
    assert "larger packed" in refusal(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["README.txt", "manifest.json"])
def test_a_bomb_that_says_it_is_small_costs_neither_memory_nor_time(tmp_path: Path, name: str) -> None:
    packer = zlib.compressobj(9, wbits=-15)
    packed = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(300)), packer.flush()])
    told = bytes(600_000)
    members = [
        Member(name, packed, zipfile.ZIP_STORED) if one.path == name else one
        for one in members_of(with_file("README.txt", told))
    ]
    path = deflated(write_zip(tmp_path / "s.zip", members), name, packed, told)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"{name}: damaged" in refusal(path, tmp_path / "out")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000


def test_a_zip_with_64_bit_sizes_and_offsets_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the standard library does from 2 GiB on, here from a few bytes on.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    path = write_zip(tmp_path / "s.zip", members_of(small_files()), wide_bytes=200)
    assert b"PK\6\6" in path.read_bytes()
    assert opened(path, tmp_path / "out").manifest.system == "A"


# Content.


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"schema": NaN}', b'{"schema": Infinity}', b'{"a":1,"a":2}',
        b"[" * 1_000_000, b'{"a":' * 100_000, b'{"trials": 1' + b"0" * 5000 + b"}", b'{"trials": 1e999}',
        b'{"trials": 99999999999999999999999}', b'{"system": "\\ud800"}', b'"' + b"x" * 100,
        b'{"files": [' + b"0," * 1000 + b"0]}",
    ],
)  # fmt: skip
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "manifest.json" in refused(tmp_path, with_manifest(content))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("system", 5), ("system", "a\u202eb"), ("system", "a\nb"), ("system", "x" * 1001), ("system", " "),
        ("organisation", None), ("trials", "1"), ("trials", 0), ("trials", True), ("campaign", "0" * 63),
        ("claim", []), ("schema", "hpcai500-submission-2"), ("files", {}), ("unknown", 1),
        ("left_out", [{"path": "a\x1b", "reason": "b"}]),
        ("files", [{"path": "README.txt", "bytes": -1, "sha256": "0" * 64}]),
    ],
)  # fmt: skip
def test_a_manifest_of_wrong_types_is_refused(tmp_path: Path, key: str, value: object) -> None:
    assert "manifest.json" in refused(tmp_path, said_otherwise(**{key: value}))


def test_script_in_a_name_is_a_name(tmp_path: Path) -> None:
    name = "<script>alert('1')</script>"
    assert opened(write_submission(tmp_path / "s.zip", system=name), tmp_path / "out").manifest.system == name


def test_files_out_of_order_or_twice_in_the_manifest_are_refused(tmp_path: Path) -> None:
    files = manifest_of(small_files())["files"]
    for wrong in (files[::-1], [files[0], *files]):
        assert "each path once, in order" in refused(tmp_path, said_otherwise(files=wrong))


def attempt(value: object) -> bytes:
    """The first line of a journal, which begins an attempt."""
    start = {"prev": FIRST_PREVIOUS, "seq": 0, "time_ms": 1, "clock_s": 1}
    return json.dumps({**start, "key": "attempt_start", "value": value}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (EVENTS, b"[" * 5000 + b"\n", "too deeply"),
        (EVENTS, b"[" * 100 + b"]" * 100 + b"\n", "too deeply"),
        (EVENTS, b"NaN\n", "NaN"),
        (EVENTS, b'{"a": 1e999}\n', "not a number"),
        (EVENTS, b"\xff\n", "not plain JSON"),
        (EVENTS, b'{"a": "\\udc00"}\n', "character"),
        (EVENTS, b'{"\\udc00": 1}\n', "character"),
        (EVENTS, b'{"a": ' + b"9" * 30 + b"}\n", "64 bits"),
        (EVENTS, b"\n" * 3, "not plain JSON"),
        ("campaign/trial-01/system.json", b"[]", "expected a JSON object"),
        ("campaign/trial-01/result.json", b'{"vflops": NaN}', "NaN"),
        ("accounting/1.json", b"{" * 2000, "too deeply|not plain"),
        (RECIPE, b"a = " + b"[" * 2000, "too deeply|TOML"),
        (RECIPE, b"a = nan", "not a number"),
        (RECIPE, b"a = 1979-05-27", "a date"),
        (RECIPE, b"\xff", "TOML"),
        # What takes hours to read.
        (RECIPE, b".".join([b"a"] * 30_000) + b" = 1\n", "dots"),
        (RECIPE, b"# " + b"x" * 70_000, "65536"),
        (RECIPE, b"[" + b".".join([b"a"] * 201) + b"]\n", "nested"),
        ("campaign/trial-01/power/x.csv", b"time_s\0", "not a row"),
        ("campaign/trial-01/power/x.csv", b"1," * manifest.CELL_BYTES, "row that is too long"),
        ("campaign/trial-01/DONE", b"\0", "NUL"),
        ("logs/a.txt", b"\xff\xff", "UTF-8"),
        (JOURNAL, attempt({"record": "../../etc"}), "a name like trial-01"),
        (JOURNAL, attempt({"record": 5}), "a name like trial-01"),
        (JOURNAL, attempt(None), "a name like trial-01"),
    ],
)  # fmt: skip
def test_content_that_would_trip_its_readers_is_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    told = refused_with(tmp_path, name, content)
    assert re.search(reason, told), told
    assert name in told


def test_a_torn_last_line_is_no_event_and_no_reason_to_refuse(tmp_path: Path) -> None:
    torn = small_files()[EVENTS] + b'{"prev": "0'
    opened(write_submission(tmp_path / "s.zip", with_file(EVENTS, torn)), tmp_path / "out")


def test_a_log_longer_than_any_run_or_event_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = refused_with(tmp_path, EVENTS, b"{}\n" * (manifest.MOST_EVENTS + 1))
    assert f"more than {manifest.MOST_EVENTS} events" in told
    monkeypatch.setattr(content_module, "LINE_BYTES", 1000)
    told = refused_with(tmp_path / "2", EVENTS, b'{"a": "' + b"x" * 2000 + b'"}\n')
    assert "a line of more than 1000 bytes" in told


def test_values_are_counted_before_any_is_made() -> None:
    with pytest.raises(WrongAnswerError, match="about 5000002 JSON values"):
        parse_json(b"[" + b"0," * 5_000_000 + b"0]", "x", Budget())
    budget = Budget(100)
    parse_json(b"[1, 2]", "x", budget)
    with pytest.raises(WrongAnswerError, match="too many JSON values"):
        parse_json(b"[" + b"0," * 99 + b"0]", "y", budget)


# Files that are no files.


def test_no_such_file_is_an_error_of_use_and_every_refusal_ends_with_2(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        opened(tmp_path / "s.zip", tmp_path / "out")
    assert caught.value.exit_code == ExitCode.USAGE
    (tmp_path / "s.zip").write_bytes(b"no zip")
    with pytest.raises(HpcAi500Error) as caught:
        opened(tmp_path / "s.zip", tmp_path / "out")
    assert caught.value.exit_code == ExitCode.WRONG_ANSWER


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "link to a device", "hidden"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.zip"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "hidden":
        path = Path("x\0.zip")
    else:
        path.symlink_to("/dev/zero")
        path = path if kind == "link to a device" else Path("/dev/zero")
    with pytest.raises(UsageError):
        opened(path, tmp_path / "out")


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip")

    class Meddler:
        """Writes to the file as soon as reading has begun."""

        def __enter__(self) -> Meddler:
            os.utime(path, (1, 1))
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

        def advance(self, n: int = 1) -> None:
            """Nothing to count."""

    with pytest.raises(WrongAnswerError, match="changed while it was read"):
        open_submission(path, tmp_path / "out", lambda *_: Meddler())


def test_more_files_than_a_submission_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcai500.results.submission.archive.MOST_ENTRIES", 3)
    assert "expected at most 3" in refusal(write_submission(tmp_path / "s.zip"), tmp_path / "out")
