"""A meter's file, and the sampler's: whole, whatever the source, the disk or the end of the run do."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes.power import ScriptedSource

from hpcai500.errors import DataError, RecordError
from hpcai500.methodology.energy import Sample, Window, integrate
from hpcai500.system import power_samples
from hpcai500.system.power import Meter, Reading
from hpcai500.system.power_samples import (
    Row,
    SampledNode,
    await_meter,
    energy_of,
    file_name,
    format_samples,
    open_samples,
    parse_samples,
    read_meter,
    read_samples,
)

# 2026-11-21T12:00:00Z
NOON = 1_795_262_400.0
WINDOW = Window(NOON, NOON + 10)
STEADY = Reading({"": 250.0})


# --- the file of a meter


def write(path: Path, *rows: str, header: str = "time,watts") -> Meter:
    path.write_text("\n".join([header, *rows]) + "\n")
    return Meter(str(path))


@pytest.mark.parametrize(
    ("header", "row", "at", "watts"),
    [
        ("time,watts", "1795262400.5,100", 0.5, 100),
        ("time,watts", "2026-11-21T12:00:01Z,101", 1, 101),
        ("time,watts", "2026-11-21T13:00:02+01:00,102", 2, 102),
        ("time,watts", "2026-11-21 12:00:03+00,103", 3, 103),
        ("time,watts", "2026-11-21T14:00:01,5", 1, 5),
        ("\ufeffphase, Watts ,note,TIME", f"a,12.5,x,{NOON}", 0, 12.5),
    ],
)
def test_times_are_unix_seconds_or_iso_8601_local_without_a_zone_and_columns_may_be_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, row: str, at: float, watts: float
) -> None:
    monkeypatch.setenv("TZ", "XXX-2")
    time.tzset()
    try:
        found = read_meter(write(tmp_path / "m[1].csv", row, header=header), "n1", WINDOW)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.samples == (Sample(NOON + at, watts),)


def test_the_clock_offset_is_added_to_the_meters_times(tmp_path: Path) -> None:
    write(tmp_path / "m.csv", f"{NOON + 100},7")
    found = read_meter(Meter(str(tmp_path / "m.csv"), offset_seconds=-98.5), "n1", WINDOW)
    assert found.samples == (Sample(NOON + 1.5, 7.0),)


def test_rows_that_hold_no_power_are_counted_and_passed_over(tmp_path: Path) -> None:
    bad = ["noon,5", f"{NOON},", f"{NOON},nan", f"{NOON},-3", f"{NOON}", "inf,5", "\x00,\xff"]
    found = read_meter(write(tmp_path / "m.csv", *bad, "", f"{NOON + 2},9"), "n1", WINDOW)
    assert (found.samples, found.bad_rows) == ((Sample(NOON + 2, 9.0),), len(bad))


def test_only_rows_near_the_window_are_kept(tmp_path: Path) -> None:
    rows = [f"{NOON + second},5" for second in range(-500, 500)]
    found = read_meter(write(tmp_path / "m.csv", *rows), "n1", WINDOW)
    assert (found.samples[0].time_s, found.samples[-1].time_s) == (NOON - 30, NOON + 40)
    assert (found.ends, found.interval_seconds) == (NOON + 499, 1.0)


def test_several_files_of_one_meter_are_one_trace(tmp_path: Path) -> None:
    for part, seconds in (("b", range(5, 12)), ("a", range(-2, 5))):
        write(tmp_path / f"n1-{part}.csv", *(f"{NOON + second},50" for second in seconds))
    write(tmp_path / "n2-a.csv", *(f"{NOON + second},9e9" for second in range(12)))
    found = read_meter(Meter(str(tmp_path / "%h-*.csv")), "n1", WINDOW)
    assert integrate(found.samples, WINDOW, found.interval_seconds).joules == pytest.approx(500)


def test_a_meter_that_writes_rarely_cannot_hide_a_hole(tmp_path: Path) -> None:
    found = read_meter(write(tmp_path / "m.csv", f"{NOON - 20},5", f"{NOON + 30},5"), "n1", WINDOW)
    assert found.interval_seconds == 10
    assert integrate(found.samples, WINDOW, found.interval_seconds).joules is None


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time of a zone whose clocks repeat the hour from 2:00 on 25 October 2026."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_the_hour_that_clocks_repeat_is_told_apart_by_the_rows_before(tmp_path: Path) -> None:
    change = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
    moments = [change + 600 * step for step in range(-9, 13)]
    rows = [f"{datetime.fromtimestamp(moment).isoformat()},{100 + step}" for step, moment in enumerate(moments)]
    found = read_meter(write(tmp_path / "m.csv", *rows), "n1", Window(change - 5400, change + 7200))
    assert [sample.time_s for sample in found.samples] == moments
    # Without a row before, it is unknown which of the two it is.
    begun_late = write(tmp_path / "late.csv", *rows[4:8])
    with pytest.raises(DataError, match=r"late.csv:2: '2026-10-25T02:10:00' is in the hour that clocks repeat .* UTC"):
        read_meter(begun_late, "n1", Window(change + 500, change + 900))
    assert not read_meter(begun_late, "n1", Window(change + 86400, change + 86460)).samples


def test_no_file_and_other_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"n1\.csv: no such meter file"):
        read_meter(Meter(str(tmp_path / "%h.csv")), "n1", WINDOW)
    with pytest.raises(DataError, match=r"m\.csv:1: expected a header with the columns time and watts, got 'a,b'"):
        read_meter(write(tmp_path / "m.csv", header="a,b"), "n1", WINDOW)
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(DataError, match="expected a header"):
        read_meter(Meter(str(tmp_path / "empty.csv")), "n1", WINDOW)


@pytest.mark.parametrize(
    ("last", "writes", "waited"),
    [(8, True, 1.0), (8, False, 10.0), (-100, False, 0.0)],
    ids=["late", "broken", "ended long ago"],
)
def test_a_meter_that_is_late_is_waited_for(tmp_path: Path, last: int, writes: bool, waited: float) -> None:
    """Only waiting moves the clock here, and the meter writes a row at each pause."""
    path, now, second = tmp_path / "m.csv", 0.0, last

    def pause(seconds: float) -> None:
        nonlocal now, second
        now += seconds
        if writes:
            second += 1
            with path.open("a") as stream:
                stream.write(f"{NOON + second},5\n")

    meter = write(path, *(f"{NOON + second},5" for second in range(last - 8, last + 1)))
    found = await_meter(meter, "n1", WINDOW, pause, lambda: now)
    assert (now, found.ends >= WINDOW.stop_s) == (waited, writes)


# --- the sampler


def sample(source: ScriptedSource, record: Path) -> SampledNode:
    sampler = SampledNode(source, record, "n1")
    sampler.begin()
    assert source.asked_enough.wait(300)
    sampler.stop()
    return sampler


def test_samples_are_written_as_they_come_with_both_clocks(tmp_path: Path) -> None:
    readings = [Reading({"gpu0": 100.0 + number, "gpu1": None}, float(number)) for number in range(5)]
    sampler = sample(ScriptedSource(*readings, devices=("gpu0", "gpu1")), tmp_path)
    file = read_samples(tmp_path / file_name("n1"))
    assert file.devices == ("gpu0", "gpu1")
    assert [row.joules for row in file.rows[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (file.rows[2].devices, file.rows[2].watts) == ((102.0, None), None)
    assert {round(row.unix_s - row.time_s, 4) for row in file.rows} == {round(sampler.wall_zero_s, 4)}
    assert (sampler.failures, sampler.cpu_seconds > 0) == (0, True)


def test_a_source_that_fails_for_a_while_leaves_a_hole_and_is_told(tmp_path: Path) -> None:
    def crash() -> Reading:
        raise ZeroDivisionError

    source = ScriptedSource(STEADY, crash, "the controller is busy", STEADY)
    sampler = sample(source, tmp_path)
    assert (sampler.failures, sampler.failure) == (2, "the controller is busy")
    assert len(read_samples(tmp_path / file_name("n1")).rows) == source.asked - 2
    assert source.closed
    crashed = sample(ScriptedSource(crash, STEADY), tmp_path)
    assert (crashed.failures, crashed.failure) == (1, "ZeroDivisionError")


@pytest.mark.parametrize("answers_before", [0, 1])
def test_a_source_that_hangs_neither_keeps_the_run_nor_writes_afterwards(tmp_path: Path, answers_before: int) -> None:
    release = threading.Event()
    path = tmp_path / file_name("n1")

    def hang() -> Reading:
        release.wait(600)
        return STEADY

    source = ScriptedSource(*[STEADY] * answers_before, hang)
    sampler = SampledNode(source, tmp_path, "n1")
    sampler.begin()
    assert source.asked_enough.wait(300)
    assert not sampler.stop()
    assert sampler.failure == "it does not respond any more"
    content = path.read_bytes() if path.exists() else None
    release.set()
    sampler._thread.join(300)
    assert (path.read_bytes() if path.exists() else None) == content
    assert (len(read_samples(path).rows) if content else 0) == answers_before


def test_a_disk_that_is_full_is_told_and_written_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])

    def full_at_first(path: Path, devices: tuple[str, ...]) -> object:
        for error in answers:
            raise error
        return open_samples(path, devices)

    monkeypatch.setattr(power_samples, "open_samples", full_at_first)
    sampler = sample(ScriptedSource(STEADY, STEADY, STEADY), tmp_path)
    assert sampler.failures == 1
    assert "No space left on device" in str(sampler.failure)
    assert len(read_samples(tmp_path / file_name("n1")).rows) >= 2


def test_a_sampler_that_never_began_can_be_stopped(tmp_path: Path) -> None:
    source = ScriptedSource(STEADY)
    SampledNode(source, tmp_path, "n1").stop()
    assert source.closed
    assert not list(tmp_path.iterdir())


# --- the file of samples


ROWS = (Row(1.0, 1001.0, 250.0, 0.0, (250.0,)), Row(2.0, 1002.0, None, 12.5, (None,)))


def test_what_is_written_is_read_again_and_a_run_that_goes_on_appends_after_the_last_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "n1.csv"
    path.write_bytes(format_samples(("gpu, 0",), ROWS) + b"3.0,10")
    file = parse_samples(path.read_bytes(), "x")
    assert (file.devices, file.rows) == (("gpu, 0",), ROWS)
    assert [sample.time_s for sample in file.samples(clock_offset_seconds=0.5)] == [1000.5, 1001.5]
    with open_samples(path, ("gpu, 0",)) as stream:
        stream.write(b"4.0,1004.0,1,,1\n")
    assert [row.time_s for row in read_samples(path).rows] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "row", ["2,1002", "2,1002,1,,9", "2,1002,-1,", "2,1002,nan,", "2,1e999,1,", ",1002,1,", "", "2,x,1,"]
)
def test_the_first_row_that_is_no_sample_is_named(row: str) -> None:
    whole = "time_s,unix_s,watts,joules\n1,1001,250,\n"
    with pytest.raises(RecordError, match=r"^x:3: not a power sample$"):
        parse_samples(f"{whole}{row}\n3,1003,inf,\n".encode(), "x")
    with pytest.raises(RecordError, match=r"^x:2: not a power sample$"):
        parse_samples(b"time_s,unix_s,watts,joules\n1,1001,250,,5\n2,1002,250,,5\n", "x")
    assert parse_samples(b"time_s,unix_s,watts,joules\n", "x").rows == ()


def test_what_another_source_has_left_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "n1.csv"
    for number, device in enumerate("abc"):
        open_samples(path, (device,)).close()
        assert len(list(tmp_path.iterdir())) == number + 1
    assert read_samples(path).devices == ("c",)
    assert read_samples(tmp_path / "n1.2.csv").devices == ("b",)


@pytest.mark.parametrize(
    "content",
    [b"", b"time,watts\n", b"time_s,unix_s,watts,joules\n1,2\n", b"time_s,unix_s,watts,joules\n1,2,nan,\n",
     b"time_s,unix_s,watts,joules\n,2,3,\n", b"time_s,unix_s,watts,joules,b\n"],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_with_its_line(content: bytes) -> None:
    with pytest.raises(RecordError, match=r"^x:[12]: "):
        parse_samples(content, "x")


def test_a_host_name_makes_a_file_name() -> None:
    assert file_name("n1.site") == "power/n1.site.csv"
    assert file_name("../a b") == "power/.._a_b.csv"
    # No host has a plus sign in its name.
    assert file_name("n1", "redfish") == "power/n1+redfish.csv"
    assert file_name("n1+redfish") == "power/n1_redfish.csv"


@pytest.mark.parametrize("source", ["rapl", "csv", "redfish"])
def test_a_long_interval_that_an_entry_claims_hides_no_hole(source: str) -> None:
    file = parse_samples(format_samples((), [Row(t, 1000.0 + t, 100.0) for t in (0.0, 1.0, 2.0, 90.0, 100.0)]), "x")
    entry = {"clock_offset_seconds": 0.0, "interval_seconds": 1000.0, "source": source}
    assert energy_of(file, entry, Window(1000.0, 1100.0)).joules is None


@pytest.mark.parametrize(("interval", "is_known"), [(1.0, False), (4.0, True)])
def test_a_controller_that_answers_rarely_is_known_between_its_answers(interval: float, is_known: bool) -> None:
    file = parse_samples(format_samples((), [Row(t, 1000.0 + t, 100.0) for t in range(0, 101, 4)]), "x")
    entry = {"clock_offset_seconds": 0.0, "interval_seconds": interval, "source": "redfish"}
    assert (energy_of(file, entry, Window(1000.0, 1100.0)).joules is not None) == is_known
