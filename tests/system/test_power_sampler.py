"""The sampler: a file that is always whole, whatever the source, the disk or the end of the run do."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from power_places import ScriptedSource

from hpcai500.errors import RecordError
from hpcai500.methodology.energy import Window
from hpcai500.system.power import Reading
from hpcai500.system.power_samples import (
    Row,
    SampledNode,
    energy_of,
    file_name,
    format_samples,
    open_samples,
    parse_samples,
    read_samples,
)

STEADY = Reading({"": 250.0})


def sample(source: ScriptedSource, record: Path) -> SampledNode:
    sampler = SampledNode(source, record, "n1")
    sampler.begin()
    assert source.asked_enough.wait(30)
    sampler.stop()
    return sampler


def test_samples_are_written_as_they_come_with_both_clocks(tmp_path: Path) -> None:
    path = tmp_path / file_name("n1")
    readings = [Reading({"gpu0": 100.0 + number, "gpu1": None}, float(number)) for number in range(5)]
    sampler = sample(ScriptedSource(*readings, devices=("gpu0", "gpu1")), tmp_path)
    file = read_samples(path)
    assert file.devices == ("gpu0", "gpu1")
    assert [row.joules for row in file.rows[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert file.rows[2].devices == (102.0, None)
    assert file.rows[2].watts is None
    differences = {round(row.unix_s - row.time_s, 4) for row in file.rows}
    assert differences == {round(sampler.wall_zero_s, 4)}
    assert (sampler.failures, sampler.cpu_seconds > 0) == (0, True)


def test_a_source_that_fails_for_a_while_leaves_a_hole_and_is_told(tmp_path: Path) -> None:
    source = ScriptedSource(STEADY, "the controller is busy", "the controller is busy", STEADY)
    sampler = sample(source, tmp_path)
    assert (sampler.failures, sampler.failure) == (2, "the controller is busy")
    assert len(read_samples(tmp_path / file_name("n1")).rows) == source.asked - 2
    assert source.closed


def test_whatever_a_driver_raises_does_not_end_the_sampling(tmp_path: Path) -> None:
    def crash() -> Reading:
        raise ZeroDivisionError

    sampler = sample(ScriptedSource(crash, STEADY), tmp_path)
    assert (sampler.failures, sampler.failure) == (1, "ZeroDivisionError")
    assert read_samples(tmp_path / file_name("n1")).rows


@pytest.mark.parametrize("answers_before", [0, 1])
def test_a_source_that_hangs_neither_keeps_the_run_nor_writes_afterwards(tmp_path: Path, answers_before: int) -> None:
    release = threading.Event()
    path = tmp_path / file_name("n1")

    def hang() -> Reading:
        release.wait(60)
        return STEADY

    source = ScriptedSource(*[STEADY] * answers_before, hang)
    sampler = SampledNode(source, tmp_path, "n1")
    sampler.begin()
    assert source.asked_enough.wait(30)
    assert not sampler.stop()
    assert sampler.failure == "it does not answer any more"
    content = path.read_bytes() if path.exists() else None
    release.set()
    sampler._thread.join(30)
    assert (path.read_bytes() if path.exists() else None) == content
    assert (len(read_samples(path).rows) if content else 0) == answers_before


def test_a_disk_that_is_full_is_told_and_written_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcai500.system import power_samples as module

    answers = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])

    def full_at_first(path: Path, devices: tuple[str, ...]) -> object:
        for error in answers:
            raise error
        return open_samples(path, devices)

    monkeypatch.setattr(module, "open_samples", full_at_first)
    sampler = sample(ScriptedSource(STEADY, STEADY, STEADY), tmp_path)
    assert sampler.failures == 1
    assert "No space left on device" in str(sampler.failure)
    assert len(read_samples(tmp_path / file_name("n1")).rows) >= 2


def test_a_sampler_that_never_began_can_be_stopped(tmp_path: Path) -> None:
    source = ScriptedSource(STEADY)
    SampledNode(source, tmp_path, "n1").stop()
    assert source.closed
    assert not list(tmp_path.iterdir())


# --- the file


ROWS = (Row(1.0, 1001.0, 250.0, 0.0, (250.0,)), Row(2.0, 1002.0, None, 12.5, (None,)))


def test_what_is_written_is_read_again() -> None:
    file = parse_samples(format_samples(("gpu, 0",), ROWS), "x")
    assert (file.devices, file.rows) == (("gpu, 0",), ROWS)
    assert [sample.time_s for sample in file.samples(clock_offset_seconds=0.5)] == [1000.5, 1001.5]


def test_a_run_that_goes_on_appends_after_the_last_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "n1.csv"
    path.write_bytes(format_samples(("a",), ROWS) + b"3.0,10")
    assert parse_samples(path.read_bytes(), "x").rows == ROWS
    with open_samples(path, ("a",)) as stream:
        stream.write(b"4.0,1004.0,1,,1\n")
    assert [row.time_s for row in read_samples(path).rows] == [1.0, 2.0, 4.0]


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


def test_a_long_interval_that_an_entry_claims_hides_no_hole() -> None:
    file = parse_samples(format_samples((), [Row(t, 1000.0 + t, 100.0) for t in (0.0, 1.0, 2.0, 90.0, 100.0)]), "x")
    entry = {"clock_offset_seconds": 0.0, "interval_seconds": 1000.0}
    for source in ("rapl", "csv"):
        assert energy_of(file, entry | {"source": source}, Window(1000.0, 1100.0)).joules is None
