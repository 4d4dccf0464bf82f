"""A log that somebody else writes: what joined is read, no byte twice, and what was changed is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_members import MadeLog

from hpcai500.ensemble.members import LogTail, Meter
from hpcai500.errors import RecordError

NOW = 1_800_000_000.0


def keys(tail: LogTail, meter: Meter | None = None) -> list[str]:
    return [event["key"] for event in tail.read(meter or Meter(), bool)]


def test_only_what_joined_is_read(tmp_path: Path) -> None:
    log, meter = MadeLog(tmp_path / "log"), Meter()
    log.add(NOW, ("a", 1), ("b", 2))
    tail = LogTail(str(log.path))
    assert keys(tail, meter) == ["a", "b"]
    before = log.path.stat().st_size
    assert meter.read_bytes == before
    log.add(NOW, ("c", 3))
    assert keys(tail, meter) == ["c"]
    assert keys(tail, meter) == []
    assert (meter.files, meter.read_bytes) == (3, log.path.stat().st_size)
    assert (tail.identity, tail.head) == (log.first, log.previous)


def test_a_line_that_is_not_whole_is_left_for_the_next_look(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "log")
    log.add(NOW, ("a", 1))
    first = log.path.stat().st_size
    log.add(NOW, ("b", "x" * 100))
    whole = log.path.read_bytes()
    tail = LogTail(str(log.path))
    log.path.write_bytes(whole[: first + 40])
    assert keys(tail) == ["a"]
    log.path.write_bytes(whole)
    assert keys(tail) == ["b"]


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log, meter = MadeLog(tmp_path / "log"), Meter()
    log.add(NOW, *(("long", "x" * 1000) for _ in range(1000)))
    log.add(NOW, ("last", 1))
    tail = LogTail(str(log.path))
    found = keys(tail, meter)
    assert found[-1] == "last"
    assert set(found[:-1]) == {"long"}
    assert meter.read_bytes == 2**16
    assert (tail.head, tail.identity) == (log.previous, None)
    log.add(NOW, ("more", 1))
    assert keys(tail) == ["more"]


def test_more_of_the_end_is_read_until_it_tells_what_is_wanted(tmp_path: Path) -> None:
    log, meter = MadeLog(tmp_path / "log"), Meter()
    log.add(NOW, *(("long", "x" * 1000) for _ in range(1000)))
    log.add(NOW, ("wanted", 1), ("large", "x" * 100_000), ("last", 1))
    tail = LogTail(str(log.path))
    events = tail.read(meter, lambda events: any(event["key"] == "wanted" for event in events))
    assert [event["key"] for event in events][-3:] == ["wanted", "large", "last"]
    assert meter.read_bytes == 2**16 + 2**19


def test_a_line_too_long_to_be_read_is_passed_over_and_those_after_it_are_read(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "log")
    log.add(NOW, ("a", 1))
    tail = LogTail(str(log.path))
    assert keys(tail) == ["a"]
    log.add(NOW, ("huge", "x" * 3 * 2**20))
    found: list[str] = []
    while not found:
        found = keys(tail)
        log.add(NOW, ("b", 1))
    assert set(found) == {"b"}
    assert keys(tail) == ["b"]
    assert tail.head == log.previous


@pytest.mark.parametrize("where", [0, 1])
def test_a_broken_chain_is_told_wherever_it_breaks(tmp_path: Path, where: int) -> None:
    log = MadeLog(tmp_path / "log")
    log.add(NOW, ("a", 1), ("b", 2))
    lines = log.path.read_bytes().splitlines(keepends=True)
    tail = LogTail(str(log.path))
    if where:
        assert keys(tail) == ["a", "b"]
        log.path.write_bytes(b"".join([*lines, lines[1]]))
    else:
        log.path.write_bytes(lines[1])
    with pytest.raises(RecordError, match="the chain is broken here"):
        keys(tail)


@pytest.mark.parametrize(
    "line", [b"nothing", b"[1]", b'{"prev":1,"seq":0}', b"[" * 100_000, b"\xff\x00", b'{"prev":"0"}']
)
def test_lines_that_are_no_events_are_told(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "log").write_bytes(line + b"\n")
    with pytest.raises(RecordError, match=r"not an event|chain"):
        keys(LogTail(str(tmp_path / "log")))
    (tmp_path / "long").write_bytes(b"x" * 2**16 + b"\n" + line + b"\n")
    with pytest.raises(RecordError, match="not an event"):
        keys(LogTail(str(tmp_path / "long")))


def test_a_log_that_lost_lines_or_was_replaced_is_told(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "log")
    log.add(NOW, ("a", 1), ("b", 2))
    tail = LogTail(str(log.path))
    keys(tail)
    content = log.path.read_bytes()
    os.truncate(log.path, 20)
    with pytest.raises(RecordError, match="shorter than before: lines were removed"):
        keys(tail)
    log.path.rename(tmp_path / "old")
    log.path.write_bytes(content)
    with pytest.raises(RecordError, match="another file than before"):
        keys(tail)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(RecordError, match="not a file"):
        keys(LogTail(str(tmp_path / "log")))
