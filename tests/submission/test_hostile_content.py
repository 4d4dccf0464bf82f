"""The content of a submission comes from strangers too: what later code would trip over is refused where it is read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from written_submission import (
    EVENTS,
    Member,
    manifest_of,
    members_of,
    opened,
    refusal,
    small_files,
    with_file,
    write_submission,
    write_zip,
)

from hpcai500.errors import WrongAnswerError
from hpcai500.record import FIRST_PREVIOUS
from hpcai500.results.submission import archive as content_module
from hpcai500.results.submission import manifest
from hpcai500.results.submission.archive import Budget, parse_json


def with_manifest(tmp_path: Path, content: bytes) -> Path:
    members = [one for one in members_of(small_files()) if one.path != "manifest.json"]
    return write_zip(tmp_path / "s.zip", [*members, Member("manifest.json", content)])


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
    assert "manifest.json" in refusal(with_manifest(tmp_path, content), tmp_path / "out")


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
    document = {**manifest_of(small_files()), key: value}
    assert "manifest.json" in refusal(with_manifest(tmp_path, json.dumps(document).encode()), tmp_path / "out")


def test_script_in_a_name_is_a_name(tmp_path: Path) -> None:
    name = "<script>alert('1')</script>"
    assert opened(write_submission(tmp_path / "s.zip", system=name), tmp_path / "out").manifest.system == name


def test_files_out_of_order_or_twice_in_the_manifest_are_refused(tmp_path: Path) -> None:
    files = manifest_of(small_files())["files"]
    for wrong in (files[::-1], [files[0], *files]):
        path = with_manifest(tmp_path, json.dumps({**manifest_of(small_files()), "files": wrong}).encode())
        assert "each path once, in order" in refusal(path, tmp_path / "out")


def line(key: str, value: object) -> bytes:
    return json.dumps(
        {"prev": FIRST_PREVIOUS, "seq": 0, "time_ms": 1, "clock_s": 1, "key": key, "value": value}
    ).encode()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (EVENTS, b"[" * 5000 + b"\n", "too deeply"),
        (EVENTS, b"[" * 100 + b"]" * 100 + b"\n", "too deeply"),
        (EVENTS, b"NaN\n", "NaN"),
        (EVENTS, b'{"a": 1e999}\n', "no number"),
        (EVENTS, b"\xff\n", "not plain JSON"),
        (EVENTS, b'{"a": "\\udc00"}\n', "character"),
        (EVENTS, b'{"\\udc00": 1}\n', "character"),
        (EVENTS, b'{"a": ' + b"9" * 30 + b"}\n", "64 bits"),
        (EVENTS, b"\n" * 3, "not plain JSON"),
        ("campaign/trial-01/system.json", b"[]", "expected a JSON object"),
        ("campaign/trial-01/result.json", b'{"vflops": NaN}', "NaN"),
        ("accounting/1.json", b"{" * 2000, "too deeply|not plain"),
        ("campaign/recipe.toml", b"a = " + b"[" * 2000, "too deeply|TOML"),
        ("campaign/recipe.toml", b"a = nan", "no number"),
        ("campaign/recipe.toml", b"a = 1979-05-27", "a date"),
        ("campaign/recipe.toml", b"\xff", "TOML"),
        ("campaign/trial-01/power/x.csv", b"time_s\0", "not a row"),
        ("campaign/trial-01/power/x.csv", b"1," * manifest.CELL_BYTES, "too long a row"),
        ("campaign/trial-01/DONE", b"\0", "NUL"),
        ("logs/a.txt", b"\xff\xff", "UTF-8"),
        ("campaign/campaign.jsonl", line("attempt_start", {"record": "../../etc"}) + b"\n", "a name like trial-01"),
        ("campaign/campaign.jsonl", line("attempt_start", {"record": 5}) + b"\n", "a name like trial-01"),
        ("campaign/campaign.jsonl", line("attempt_start", None) + b"\n", "a name like trial-01"),
    ],
)  # fmt: skip
def test_content_that_would_trip_its_readers_is_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    told = refusal(write_submission(tmp_path / "s.zip", with_file(name, content)), tmp_path / "out")
    assert re.search(reason, told), told
    assert name in told


def test_a_torn_last_line_is_no_event_and_no_reason_to_refuse(tmp_path: Path) -> None:
    torn = small_files()[EVENTS] + b'{"prev": "0'
    opened(write_submission(tmp_path / "s.zip", with_file(EVENTS, torn)), tmp_path / "out")


def test_a_log_of_more_events_than_any_run_has_is_refused(tmp_path: Path) -> None:
    content = b"{}\n" * (manifest.MOST_EVENTS + 1)
    told = refusal(write_submission(tmp_path / "s.zip", with_file(EVENTS, content)), tmp_path / "out")
    assert f"more than {manifest.MOST_EVENTS} events" in told


def test_a_line_that_is_longer_than_any_event_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_module, "LINE_BYTES", 1000)
    content = b'{"a": "' + b"x" * 2000 + b'"}\n'
    told = refusal(write_submission(tmp_path / "s.zip", with_file(EVENTS, content)), tmp_path / "out")
    assert "a line of more than 1000 bytes" in told


def test_values_are_counted_before_any_is_made() -> None:
    with pytest.raises(WrongAnswerError, match="about 5000002 JSON values"):
        parse_json(b"[" + b"0," * 5_000_000 + b"0]", "x", Budget())
    budget = Budget(100)
    parse_json(b"[1, 2]", "x", budget)
    with pytest.raises(WrongAnswerError, match="too many JSON values"):
        parse_json(b"[" + b"0," * 99 + b"0]", "y", budget)
