"""ZIP files that tell different readers different stories, or cost more than they weigh: each refused in one line."""

from __future__ import annotations

import io
import re
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from written_submission import (
    Member,
    central_directory,
    members_of,
    refusal,
    small_files,
    with_file,
    write_submission,
    write_zip,
)

CENTRAL, LOCAL, END = 46, 30, 22


def good(tmp_path: Path) -> bytearray:
    """The bytes of a good submission; `README.txt` is its first file."""
    return bytearray(write_submission(tmp_path / "good.zip").read_bytes())


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


def data_descriptor(content: bytearray) -> None:
    """Sizes that are told after the content, so that the header in front of it says none."""
    content[6] |= 8
    struct.pack_into("<III", content, 14, 0, 0, 0)
    content[central_directory(content) + 8] |= 8


def wide_size(content: bytearray) -> None:
    """A size of 64 bits in the directory, another one in front of the file."""

    def change(directory: bytearray) -> None:
        struct.pack_into("<I", directory, 24, 0xFFFFFFFF)
        insert_extra(directory, struct.pack("<HHQ", 1, 8, 2**62))

    with_directory(content, change)


def wide_offset(content: bytearray) -> None:
    """An offset of 64 bits far behind the end of the file."""

    def change(directory: bytearray) -> None:
        struct.pack_into("<I", directory, 42, 0xFFFFFFFF)
        insert_extra(directory, struct.pack("<HHQ", 1, 8, 2**63))

    with_directory(content, change)


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
        named = struct.unpack_from("<H", directory, 28)[0]
        hidden = bytes(directory)
        struct.pack_into("<H", directory, 32, len(hidden))
        directory[CENTRAL + named : CENTRAL + named] = hidden

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


def split_end(content: bytearray) -> None:
    """The last of three disks."""
    struct.pack_into("<HH", content, len(content) - 18, 2, 2)


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

    def change(directory: bytearray) -> None:
        named = struct.unpack_from("<H", directory, 28)[0]
        directory += directory[: CENTRAL + named]

    with_directory(content, change)
    count = struct.unpack_from("<H", content, len(content) - 12)[0]
    struct.pack_into("<HH", content, len(content) - 14, count + 1, count + 1)


def masked(content: bytearray) -> None:
    """Headers that strong encryption hides."""
    content[7] |= 0x20
    content[central_directory(content) + 9] |= 0x20


def empty_name(content: bytearray) -> None:
    """No name in the directory."""

    def change(directory: bytearray) -> None:
        named = struct.unpack_from("<H", directory, 28)[0]
        struct.pack_into("<H", directory, 28, 0)
        del directory[CENTRAL : CENTRAL + named]

    with_directory(content, change)


def other_name(content: bytearray) -> None:
    """In front of the file another name than in the directory."""
    content[LOCAL : LOCAL + 10] = b"README.tyt"


def hidden_by_length(content: bytearray) -> None:
    """An extra field in front of the file that swallows its content."""
    struct.pack_into("<H", content, 28, 0xFFFF)


def local_extra(content: bytearray) -> None:
    """An extra field that stands in front of the file alone."""
    struct.pack_into("<H", content, 28, 4)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (data_descriptor, "flags 0x8"), (wide_size, "told otherwise|bytes, expected"), (wide_offset, "does not begin"),
        (wide_end, "no file"), (unicode_path, "extra fields"), (entry_comment, "odd directory"),
        (two_ends, "does not|no file"), (comment_that_ends, "no file"),
        (split_end, "one part of several"), (split_entry, "odd directory"), (split_mark, "told otherwise"),
        (same_content_twice, "does not begin"), (masked, "flags 0x2000"), (empty_name, "file name"),
        (other_name, "told otherwise"), (hidden_by_length, "told otherwise"), (local_extra, "extra fields"),
    ],
)  # fmt: skip
def test_a_zip_that_another_reader_would_read_otherwise_is_refused(
    tmp_path: Path, edit: Callable[[bytearray], None], reason: str
) -> None:
    content = good(tmp_path)
    edit(content)
    path = tmp_path / "s.zip"
    path.write_bytes(content)
    assert re.search(reason, refusal(path, tmp_path / "out"))


@pytest.mark.parametrize(
    "name",
    [
        "README.txt ", " README.txt", "README.txt.", "readme.txt", "README.TXT", "logs/a ", "logs/a\u00e9",
        "logs/ae\u0301",
        "campaign/recipe.toml/", "campaign//recipe.toml", "Campaign/recipe.toml", "campaign/TRIAL-01/DONE",
        "campaign/trial-\u0661/DONE", "campaign/trial-01/DONE\u200b", "manifest.json/..", "~/x", "logs/a:stream",
        f"code/hpcai500/{'x' * 300}.py", f"code/hpcai500/{'x/' * 200}y.py",
        "logs/%2e%2e", "logs/\u202egnp.txt", "MANIFEST.JSON",
    ],
)  # fmt: skip
def test_a_name_that_a_file_system_may_take_for_another_is_refused(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "s.zip", [Member(name, b"x"), *members_of(small_files())])
    assert "file" in refusal(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["README.txt", "manifest.json"])
def test_a_bomb_that_says_it_is_small_costs_neither_memory_nor_time(tmp_path: Path, name: str) -> None:
    packer = zlib.compressobj(9, wbits=-15)
    packed = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(300)), packer.flush()])
    told = bytes(600_000)
    members = [
        Member(name, packed, zipfile.ZIP_STORED) if one.path == name else one
        for one in members_of(with_file("README.txt", told))
    ]
    path = write_zip(tmp_path / "s.zip", members)
    content = bytearray(path.read_bytes())
    # In front of the file and in the directory alike: deflated, and as long as the manifest says.
    entry = next(
        at.start()
        for at in re.finditer(re.escape(b"PK\1\2"), content)
        if content[at.start() + CENTRAL :].startswith(name.encode())
    )
    for header in (struct.unpack_from("<I", content, entry + 42)[0] + 6, entry + 8):
        struct.pack_into("<H", content, header + 2, 8)
        struct.pack_into("<III", content, header + 8, zlib.crc32(told), len(packed), len(told))
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"{name}: damaged" in refusal(path, tmp_path / "out")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (b".".join([b"a"] * 30_000) + b" = 1\n", "dots"),
        (b"# " + b"x" * 70_000, "65536"),
        (b"[" + b".".join([b"a"] * 201) + b"]\n", "nested"),
    ],
)
def test_a_recipe_that_takes_hours_to_read_is_not_read(tmp_path: Path, recipe: bytes, reason: str) -> None:
    path = write_submission(tmp_path / "s.zip", with_file("campaign/trial-01/recipe.toml", recipe))
    assert reason in refusal(path, tmp_path / "out")
