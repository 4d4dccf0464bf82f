"""A submission comes from strangers: whatever is wrong with it is told in one line, and nothing of it is believed."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from written_submission import (
    CHECKPOINT,
    Member,
    central_directory,
    members_of,
    opened,
    refusal,
    small_files,
    with_file,
    write_submission,
    write_zip,
)

from hpcai500.errors import ExitCode, HpcAi500Error, UsageError, WrongAnswerError

LINK = 0o120777


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


def test_a_checkpoint_is_extracted_when_it_is_asked_for(tmp_path: Path) -> None:
    submission = opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")
    submission.extract(CHECKPOINT, tmp_path / "weights.pt")
    assert (tmp_path / "weights.pt").read_bytes() == small_files()[CHECKPOINT]
    with pytest.raises(UsageError, match="holds no campaign/trial-09"):
        submission.extract("campaign/trial-09/checkpoints/x.pt", tmp_path / "no.pt")


def test_a_zip_that_was_exchanged_since_gives_no_checkpoint(tmp_path: Path) -> None:
    submission = opened(write_submission(tmp_path / "s.zip"), tmp_path / "out")
    write_submission(tmp_path / "s.zip", with_file(CHECKPOINT, b"other weights"))
    with pytest.raises(WrongAnswerError, match="its hash differs"):
        submission.extract(CHECKPOINT, tmp_path / "weights.pt")
    assert not (tmp_path / "weights.pt").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt", "campaign/../../evil.txt", "/etc/evil", "C:/evil.txt", "campaign\\trial-01\\ERROR", "//evil",
        "campaign/./recipe.toml", "campaign/evil\n.txt", "evil\x1b[31m", "CON", "campaign/", "campaign/trial-01/..",
        "logs/" + "x" * 400, "logs/ä.txt", "campaign/trial-01/extra.bin", "code/hpcai500/evil.so", "code/setup.py",
        "campaign/trial-01/power/../../x.csv", "campaign/trial-01/checkpoints/a/b.pt", "logs/.bashrc", "logs/-rf",
    ],
)  # fmt: skip
def test_a_name_that_no_submission_has_is_refused(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "s.zip", [Member(name, b"x"), *members_of(small_files())])
    assert "file" in refusal(path, tmp_path / "out")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_name_longer_than_any_path_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "s.zip", [Member("logs/" + "x" * 60_000, b"x"), *members_of(small_files())])
    assert len(refusal(path, tmp_path / "out")) < 300


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip", with_file("logs/aXb.txt", b"x"))
    path.write_bytes(path.read_bytes().replace(b"logs/aXb.txt", b"logs/a\0b.txt"))
    refusal(path, tmp_path / "out")


@pytest.mark.parametrize("twin", ["campaign/recipe.toml", "logs/A.txt"])
def test_a_name_that_comes_twice_is_refused(tmp_path: Path, twin: str) -> None:
    files = with_file("logs/a.txt", b"x")
    members = [Member(twin, b"benchmark = 1"), *members_of(files)]
    with pytest.warns(UserWarning, match="Duplicate") if twin in files else _nothing():
        path = write_zip(tmp_path / "s.zip", members)
    assert "comes twice" in refusal(path, tmp_path / "out")


def test_a_file_in_what_is_a_file_is_refused(tmp_path: Path) -> None:
    files = {**with_file("code/hpcai500/a/b.py", b""), "code/hpcai500/a.py": b""}
    opened(write_submission(tmp_path / "fine.zip", files), tmp_path / "fine")
    files = {**with_file("logs/x.json", b"{}"), "accounting/1.json": b"{}"}
    members = [Member("README.txt/x", b""), *members_of(files)]
    assert "README.txt/x" in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


@pytest.mark.parametrize("mode", [LINK, 0o020666, 0o060666, 0o010666, 0o040755, 0o140777])
def test_links_and_devices_are_refused(tmp_path: Path, mode: int) -> None:
    members = [replace(one, mode=mode) if one.path == "README.txt" else one for one in members_of(small_files())]
    assert "a link, a folder or a device" in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unknown_compression_is_refused(tmp_path: Path, method: int) -> None:
    members = [replace(one, method=method) if one.path == "README.txt" else one for one in members_of(small_files())]
    assert "compressed by the method" in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    members = [replace(one, method=8) for one in members_of(small_files())]
    assert "checkpoints are stored" in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


def edited(tmp_path: Path, edit: Callable[[bytearray], None]) -> Path:
    """A good submission, its bytes changed by `edit`."""
    path = write_submission(tmp_path / "s.zip")
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)
    return path


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


def grow(content: bytearray) -> None:
    """Longer than it is."""
    resize(content, 1_000_000)


def shrink(content: bytearray) -> None:
    """Shorter than it is."""
    resize(content, 1500)


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


def count(content: bytearray) -> None:
    """Fewer files than there are."""
    struct.pack_into("<HH", content, len(content) - 14, 2, 2)


def many(content: bytearray) -> None:
    """More files than there are."""
    struct.pack_into("<HH", content, len(content) - 14, 60_000, 60_000)


def far(content: bytearray) -> None:
    """A directory behind the end."""
    struct.pack_into("<I", content, len(content) - 6, 0xFFFFFFF0)


def wide(content: bytearray) -> None:
    """A directory of 64 bits that is not there."""
    struct.pack_into("<I", content, len(content) - 6, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (encrypt, "encrypted"), (overlap, "does not begin where"),
        (grow, "size or checksum"), (shrink, "size or checksum"),
        (lie, "told otherwise"), (checksum, "size or checksum"), (hide, "does not|belong to no file"),
        (count, "no file"), (many, "cut off"), (far, "no file"), (wide, "no file|directory"),
        (lambda content: content.extend(b"appended"), "appended"),
        (lambda content: content.__delitem__(slice(-100, None)), "cut off"),
        (lambda content: content.__delitem__(slice(0, 10)), "no ZIP file"),
        (lambda content: content.__setitem__(slice(0, 0), b"#!/bin/sh\n"), "no ZIP file"),
        (lambda content: content.clear(), "no ZIP file"),
        (lambda content: content.__setitem__(slice(None), b"\x1f\x8b" + bytes(1000)), "no ZIP file"),
    ],
)  # fmt: skip
def test_a_zip_that_tells_two_stories_is_refused(
    tmp_path: Path, edit: Callable[[bytearray], None], reason: str
) -> None:
    assert re.search(reason, refusal(edited(tmp_path, edit), tmp_path / "out"))


def test_content_that_hides_in_its_own_packing_is_refused(tmp_path: Path) -> None:
    # Empty blocks: any number of them unpacks to nothing.
    packed = b"\0\0\0\xff\xff" * 1000 + zlib.compress(b"x", wbits=-15)
    members = members_of(with_file("README.txt", b"x"))
    members[0] = Member("README.txt", packed, zipfile.ZIP_STORED)
    path = write_zip(tmp_path / "s.zip", members)
    content = bytearray(path.read_bytes())
    for header in (6, central_directory(content) + 8):
        struct.pack_into("<H", content, header + 2, 8)
        struct.pack_into("<III", content, header + 8, zlib.crc32(b"x"), len(packed), 1)
    path.write_bytes(content)
    with zipfile.ZipFile(path) as other:
        assert other.read("README.txt") == b"x"
    assert "larger packed" in refusal(path, tmp_path / "out")


def test_files_and_manifest_must_name_each_other(tmp_path: Path) -> None:
    extra = [Member("logs/extra.txt", b"x"), *members_of(small_files())]
    assert "logs/extra.txt: not in the manifest" in refusal(write_zip(tmp_path / "1.zip", extra), tmp_path / "1")
    lacking = [one for one in members_of(small_files()) if one.path != "README.txt"]
    assert "README.txt: missing from the ZIP" in refusal(write_zip(tmp_path / "2.zip", lacking), tmp_path / "2")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("README.txt", b"a tost\n", "README.txt: not the file that the manifest names: its hash differs"),
        ("README.txt", b"longer", "README.txt: 6 bytes, the manifest says 7"),
        (CHECKPOINT, None, "its hash differs"),
    ],
)
def test_a_file_that_the_manifest_does_not_vouch_for_is_refused(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    content = bytes(len(small_files()[name])) if content is None else content
    members = [replace(one, content=content) if one.path == name else one for one in members_of(small_files())]
    assert reason in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


@pytest.mark.parametrize("missing", ["manifest.json", "campaign/recipe.toml", "campaign/campaign.jsonl"])
def test_a_zip_without_what_makes_a_submission_is_refused(tmp_path: Path, missing: str) -> None:
    files = {path: content for path, content in small_files().items() if path != missing}
    members = [one for one in members_of(files) if one.path != missing]
    assert f"{missing} is missing" in refusal(write_zip(tmp_path / "s.zip", members), tmp_path / "out")


def test_no_such_file_is_an_error_of_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        opened(tmp_path / "no.zip", tmp_path / "out")
    assert caught.value.exit_code == ExitCode.USAGE


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

    from hpcai500.results.submission.archive import open_submission

    with pytest.raises(WrongAnswerError, match="changed while it was read"):
        open_submission(path, tmp_path / "out", lambda *_: Meddler())


def test_more_files_than_a_submission_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcai500.results.submission.archive.MOST_ENTRIES", 3)
    assert "expected at most 3" in refusal(write_submission(tmp_path / "s.zip"), tmp_path / "out")


def test_a_zip_with_64_bit_sizes_and_offsets_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the standard library does from 2 GiB on, here from a few bytes on.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    path = write_zip(tmp_path / "s.zip", members_of(small_files()), wide=True)
    assert b"PK\6\6" in path.read_bytes()
    assert opened(path, tmp_path / "out").manifest.system == "A"


def test_every_refusal_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "s.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(HpcAi500Error) as caught:
        opened(path, tmp_path / "out")
    assert caught.value.exit_code == ExitCode.WRONG_ANSWER


class _nothing:  # noqa: N801 - reads as `with _nothing():`
    def __enter__(self) -> None:
        """Expect nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing came."""
