"""Whatever bytes are given as a submission: it opens, or one of our errors says why not."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_submission import EVENTS, members_of, opened, small_files, write_zip

from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission.archive import Budget, parse_json, read_manifest

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@cache
def bundle() -> bytes:
    """A small honest submission of real files; its log is cut to a few events, so that most bytes are structure."""
    with tempfile.TemporaryDirectory() as folder:
        short = b"".join(small_files()[EVENTS].splitlines(keepends=True)[:3])
        files = {path: content for path, content in small_files().items() if "/power/" not in path}
        return write_zip(Path(folder) / "s.zip", members_of({**files, EVENTS: short})).read_bytes()


def try_to_open(content: bytes) -> bool:
    """Whether it opens; raises what must not be."""
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "s.zip").write_bytes(content)
        opened(folder / "s.zip", folder / "out")
    except WrongAnswerError as error:
        require_one_line(error)
        return False
    else:
        return True
    finally:
        shutil.rmtree(folder)


def require_one_line(error: Exception) -> None:
    assert "\n" not in str(error)


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
    content = json.dumps(document).encode()
    try:
        read_manifest(content, "manifest.json")
    except WrongAnswerError as error:
        require_one_line(error)
    else:
        raise AssertionError(document)


@FUZZ
@given(st.binary(max_size=60) | st.text(alphabet='[]{}:,"0123456789.eE+-\\ud8NaInfity ', max_size=60).map(str.encode))
def test_any_bytes_are_json_or_are_told(content: bytes) -> None:
    try:
        parse_json(content, "x", Budget())
    except WrongAnswerError as error:
        require_one_line(error)
