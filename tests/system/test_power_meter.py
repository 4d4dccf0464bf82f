"""A meter's file: its columns, its times, what is no row, several files, and a meter that is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import DataError
from hpcai500.methodology.energy import Sample, Window, integrate
from hpcai500.system.power import Meter
from hpcai500.system.power_samples import await_meter, read_meter

# 2026-11-21T12:00:00Z
NOON = 1_795_262_400.0
WINDOW = Window(NOON, NOON + 10)


def write(path: Path, *rows: str, header: str = "time,watts") -> Meter:
    path.write_text("\n".join([header, *rows]) + "\n")
    return Meter(str(path))


def test_times_are_unix_seconds_or_iso_8601(tmp_path: Path) -> None:
    rows = [
        "1795262400.5,100",
        "2026-11-21T12:00:01Z,101",
        "2026-11-21T13:00:02+01:00,102",
        "2026-11-21 12:00:03+00,103",
    ]
    found = read_meter(write(tmp_path / "m.csv", *rows), "n1", WINDOW)
    assert found.samples == tuple(Sample(NOON + at, watts) for at, watts in ((0.5, 100), (1, 101), (2, 102), (3, 103)))


def test_a_time_without_a_zone_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "XXX-2")
    time.tzset()
    try:
        found = read_meter(write(tmp_path / "m.csv", "2026-11-21T14:00:01,5"), "n1", WINDOW)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.samples == (Sample(NOON + 1, 5.0),)


def test_the_clock_offset_is_added_to_the_meters_times(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    write(path, f"{NOON + 100},7")
    found = read_meter(Meter(str(path), offset_seconds=-98.5), "n1", WINDOW)
    assert found.samples == (Sample(NOON + 1.5, 7.0),)


def test_columns_may_be_anywhere_and_others_are_left_alone(tmp_path: Path) -> None:
    meter = write(tmp_path / "m.csv", f"a,12.5,x,{NOON}", header="\ufeffphase, Watts ,note,TIME")
    assert read_meter(meter, "n1", WINDOW).samples == (Sample(NOON, 12.5),)


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


def test_a_file_may_be_called_like_a_pattern(tmp_path: Path) -> None:
    assert read_meter(write(tmp_path / "m[1].csv", f"{NOON},5"), "n1", WINDOW).samples


def test_a_meter_that_writes_rarely_cannot_hide_a_hole(tmp_path: Path) -> None:
    found = read_meter(write(tmp_path / "m.csv", f"{NOON - 20},5", f"{NOON + 30},5"), "n1", WINDOW)
    assert found.interval_seconds == 10
    assert integrate(found.samples, WINDOW, found.interval_seconds).joules is None


def test_no_file_and_other_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"n1\.csv: no such file of a meter"):
        read_meter(Meter(str(tmp_path / "%h.csv")), "n1", WINDOW)
    with pytest.raises(DataError, match=r"m\.csv:1: expected a header with the columns time and watts, got 'a,b'"):
        read_meter(write(tmp_path / "m.csv", header="a,b"), "n1", WINDOW)
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(DataError, match="expected a header"):
        read_meter(Meter(str(tmp_path / "empty.csv")), "n1", WINDOW)


class Waiting:
    """A clock that only waiting moves; the meter writes a row at each pause."""

    def __init__(self, path: Path, second: int, writes: bool) -> None:
        self.path, self.second, self.writes, self.now = path, second, writes, 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.writes:
            self.second += 1
            with self.path.open("a") as stream:
                stream.write(f"{NOON + self.second},5\n")


@pytest.mark.parametrize(("writes", "waited"), [(True, 1.0), (False, 10.0)], ids=["late", "broken"])
def test_a_meter_that_is_late_is_waited_for(tmp_path: Path, writes: bool, waited: float) -> None:
    meter = write(tmp_path / "m.csv", *(f"{NOON + second},5" for second in range(9)))
    waiting = Waiting(tmp_path / "m.csv", 8, writes)
    found = await_meter(meter, "n1", WINDOW, waiting.pause, lambda: waiting.now)
    assert (waiting.now, found.ends >= WINDOW.stop_s) == (waited, writes)


def test_a_file_that_ended_long_ago_is_not_waited_for(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "m.csv", 0, writes=False)
    await_meter(write(tmp_path / "m.csv", f"{NOON - 100},5"), "n1", WINDOW, waiting.pause, lambda: waiting.now)
    assert waiting.now == 0
