"""Whatever bytes are given as a submission: it opens, or one of our errors says why not.

It costs no more memory than docs/submission-format.md states, also in a process that may not have more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from builders.submissions import (
    CHECKPOINT,
    EVENTS,
    Member,
    members_of,
    opened,
    small_files,
    with_file,
    write_submission,
    write_zip,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission import manifest
from hpcai500.results.submission.archive import Budget, parse_json, read_manifest

# The stated bound, and what a Python that has loaded all this has mapped before it begins.
BOUND_BYTES = 1 << 30
_CODE = """
import resource, sys
from pathlib import Path
from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission.archive import open_submission
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    open_submission(Path(sys.argv[1]), Path(sys.argv[2]))
except WrongAnswerError as error:
    print(error)
"""


def told_within(bound_bytes: int, path: Path, folder: Path) -> str:
    """Why `path` is refused, by a process that may take so much memory and no more; empty if it is not."""
    ended = subprocess.run(
        [sys.executable, "-c", _CODE, str(path), str(folder), str(bound_bytes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.count("\n") <= 1
    return ended.stdout


def test_a_zip_bomb_costs_next_to_nothing(tmp_path: Path) -> None:
    members = [Member(f"logs/{number}.txt", bytes(64 * manifest.MIB)) for number in range(2)]
    path = write_zip(tmp_path / "bomb.zip", [*members, *members_of(small_files())])
    assert path.stat().st_size < manifest.MIB
    assert "a ZIP bomb" in told_within(64 * manifest.MIB, path, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.txt"))


def test_a_bomb_in_one_file_is_refused_by_its_size(tmp_path: Path) -> None:
    members = [Member("campaign/trial-01/ERROR", bytes(8 * manifest.MIB)), *members_of(small_files())]
    path = write_zip(tmp_path / "bomb.zip", members)
    assert "expected at most" in told_within(64 * manifest.MIB, path, tmp_path / "out")


def test_a_million_events_cost_one_event(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip", with_file(EVENTS, b'{"a":0}\n' * 1_000_000))
    told = told_within(64 * manifest.MIB, path, tmp_path / "out")
    assert f"more than {manifest.MOST_EVENTS} events" in told


@pytest.mark.parametrize(
    ("piece", "number", "bound"),
    [
        *((piece, None, BOUND_BYTES) for piece in (b"{},", b"[],", b'{"a":{}},', b"0,", b'"",')),
        (b"0,", 900_000, 512 * manifest.MIB),
    ],
)
def test_a_huge_manifest_stays_within_the_bound(tmp_path: Path, piece: bytes, number: int | None, bound: int) -> None:
    content = b'{"files": [' + piece * (number or (manifest.MANIFEST_BYTES - 30) // len(piece)) + b"0]}"
    members = [one for one in members_of(small_files()) if one.path != "manifest.json"]
    path = write_zip(tmp_path / "s.zip", [*members, Member("manifest.json", content)])
    assert "manifest.json" in told_within(bound, path, tmp_path / "out")


@pytest.mark.slow
def test_as_many_values_as_are_allowed_stay_within_the_bound(tmp_path: Path) -> None:
    # Of the forms that were tried, the one that takes most: objects of one key each, and one wide character.
    pieces = b"".join(b'{"%07d":{}},' % number for number in range(manifest.MOST_VALUES // 4 - 100))
    content = '{"😀":['.encode() + pieces + b'"' + b"x" * (32 * manifest.MIB) + b'"]}'
    path = write_submission(tmp_path / "s.zip", with_file("campaign/trial-01/system.json", content))
    assert told_within(BOUND_BYTES, path, tmp_path / "out") == ""


def test_a_checkpoint_is_hashed_in_pieces(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip", with_file(CHECKPOINT, bytes(200 * manifest.MIB)))
    assert zipfile.ZipFile(path).getinfo(CHECKPOINT).compress_type == zipfile.ZIP_STORED
    assert told_within(96 * manifest.MIB, path, tmp_path / "out") == ""


# Any bytes.


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@cache
def bundle() -> bytes:
    """A small honest submission of real files; its log is cut to a few events, so that most bytes are structure."""
    with tempfile.TemporaryDirectory() as folder:
        short = b"".join(small_files()[EVENTS].splitlines(keepends=True)[:3])
        files = {path: content for path, content in small_files().items() if "/power/" not in path}
        return write_zip(Path(folder) / "s.zip", members_of({**files, EVENTS: short})).read_bytes()


def require_one_line(error: Exception) -> None:
    assert "\n" not in str(error)


def told_in_one_line(read: Callable[[], object]) -> bool:
    """Whether it is refused; anything but one line of ours is raised."""
    try:
        read()
    except WrongAnswerError as error:
        require_one_line(error)
        return True
    return False


def try_to_open(content: bytes) -> bool:
    """Whether it opens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.zip"
        path.write_bytes(content)
        return not told_in_one_line(lambda: opened(path, Path(folder) / "out"))


def test_the_bundle_itself_opens() -> None:
    assert try_to_open(bundle())


@FUZZ
@given(st.data())
def test_flipped_bytes_are_told_or_harmless(data: st.DataObject) -> None:
    content = bytearray(bundle())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    try_to_open(bytes(content))


@FUZZ
@given(st.data())
def test_flipped_bytes_of_headers_are_told_or_harmless(data: st.DataObject) -> None:
    content = bytearray(bundle())
    marks = [place for place in range(len(content)) if content[place : place + 2] == b"PK"]
    mark = data.draw(st.sampled_from(marks))
    for _ in range(data.draw(st.integers(1, 3))):
        place = min(mark + data.draw(st.integers(0, 80)), len(content) - 1)
        content[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    try_to_open(bytes(content))


@FUZZ
@given(st.data())
def test_cut_doubled_and_moved_pieces_are_told(data: st.DataObject) -> None:
    content = bundle()
    one, other = sorted(data.draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
    piece = content[one:other]
    changed = data.draw(
        st.sampled_from([content[:one] + content[other:], content[:one] + piece + piece + content[other:], piece])
    )
    assert not try_to_open(changed) or changed == content


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_no_submission(content: bytes) -> None:
    assert not try_to_open(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(st.dictionaries(st.sampled_from(["schema", "files", "claim", "code", "left_out", "trials"]), JSON))
def test_any_json_is_no_manifest(document: dict[str, object]) -> None:
    assert told_in_one_line(lambda: read_manifest(json.dumps(document).encode(), "manifest.json"))


@FUZZ
@given(st.binary(max_size=60) | st.text(alphabet='[]{}:,"0123456789.eE+-\\ud8NaInfity ', max_size=60).map(str.encode))
def test_any_bytes_are_json_or_are_told(content: bytes) -> None:
    told_in_one_line(lambda: parse_json(content, "x", Budget()))
