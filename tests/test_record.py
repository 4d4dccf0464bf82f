"""The record: chained, atomic, honest about crashes and full disks; and what its writer tells of a run as it goes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcai500 import streams
from hpcai500.errors import RecordError, RunError
from hpcai500.files import write_atomically
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import FIRST_PREVIOUS, Event, RecordWriter, cannot_write, read_record
from hpcai500.run_progress import PROGRESS, Progress, ProgressFile, parse_progress

RECIPE = load_recipe("ic/smoke")


def new_record(folder: Path) -> RecordWriter:
    writer = RecordWriter.create(folder / "record", RECIPE)
    writer.event("init_start", {"recipe_hash": recipe_hash(RECIPE)})
    return writer


def lines(record: Path) -> list[bytes]:
    return (record / "events.jsonl").read_bytes().splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record that was begun, and that nobody writes any more."""
    new_record(tmp_path).close()
    return tmp_path / "record"


@pytest.fixture
def epoch(tmp_path: Path) -> Path:
    """A record with three events."""
    with new_record(tmp_path) as writer:
        writer.event("epoch_start", {"epoch": 1})
        writer.event("epoch_stop", {"epoch": 1})
    return writer.path


# Writes events while Ctrl-C comes at 200 random moments, half of them while a line is being put on disk.
INTERRUPTED = """
import os, random, signal, sys, threading, time
from pathlib import Path
from hpcai500.record import RecordWriter, read_record

random.seed(int(sys.argv[2]))
path, real, done = Path(sys.argv[1]), os.fsync, threading.Event()

def slow(descriptor):
    real(descriptor)
    time.sleep(0.002)

def send():
    for _ in range(200):
        time.sleep(random.uniform(0, 0.008))
        os.kill(os.getpid(), signal.SIGINT)
    done.set()

def stop(number, frame):
    while frame and frame.f_code is not RecordWriter.event.__code__:
        frame = frame.f_back
    if frame:
        raise KeyboardInterrupt

os.fsync = slow
signal.signal(signal.SIGINT, stop)
writer = RecordWriter.reopen(read_record(path))
threading.Thread(target=send).start()
interrupts = 0
while not done.is_set():
    try:
        writer.event("step", {"step": interrupts})
    except KeyboardInterrupt:
        interrupts += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
writer.fail("stopped")
print(interrupts)
"""


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_any_moment_leaves_a_whole_chain_that_goes_on(path: Path, seed: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path, str(seed)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10  # of 200; a busy machine delivers several at once
    record = read_record(path)
    assert record.status == "error"
    assert record.events[-1]["value"] == {"reason": "stopped"}
    with RecordWriter.reopen(record) as writer:
        writer.event("run_resume")
    assert len(read_record(path).events) == len(record.events) + 1


def test_lost_output_is_noted_once_with_its_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RecordWriter.reopen(read_record(path)) as writer:
        writer.event("epoch_start", {"epoch": 1})
        monkeypatch.setattr(streams, "_losses", {"stderr": streams.Loss("stderr", "Broken pipe", 17, is_closed=True)})
        writer.event("epoch_stop", {"epoch": 1})
        writer.event("epoch_start", {"epoch": 2})
    found = [event["key"] for event in read_record(path).events]
    assert found == ["init_start", "epoch_start", "output_lost", "epoch_stop", "epoch_start"]
    assert read_record(path).events[2]["value"] == {"reason": "Broken pipe", "lost_ms": 17}


def test_a_stop_of_the_process_is_noted_before_the_next_event_but_not_before_the_first(path: Path) -> None:
    with RecordWriter.reopen(read_record(path)) as writer:
        stopped = iter([142.0, 142.0, 200.5])
        writer.stopped_seconds = lambda: next(stopped)
        writer.event("run_resume")
        for _ in range(3):
            writer.event("epoch_start", {"epoch": 1})
    events = read_record(path).events
    noted = [(event["seq"], event["value"]) for event in events if event["key"] == "suspended"]
    assert noted == [(2, {"seconds": 142.0}), (5, {"seconds": 58.5})]


def test_each_line_carries_the_hash_of_the_line_before(epoch: Path) -> None:
    first, *rest = lines(epoch)
    assert json.loads(first)["prev"] == FIRST_PREVIOUS
    for before, line in zip([first, *rest], rest, strict=False):
        assert json.loads(line)["prev"] == hashlib.sha256(before).hexdigest()
    assert [event["seq"] for event in read_record(epoch).events] == [0, 1, 2]


@pytest.mark.parametrize("forge", [
    lambda log: [log[0].replace(b"init_start", b"init_stop"), *log[1:]],
    lambda log: [log[0], log[2]],
    lambda log: [log[0], log[2], log[1]],
    lambda log: [log[0], log[1], log[1], log[2]],
    lambda log: [log[0], log[1].replace(b'"epoch":1', b'"epoch":2'), log[2]],
], ids=["change", "remove", "swap", "repeat", "change in the middle"])  # fmt: skip
def test_a_changed_log_is_refused(epoch: Path, forge: Any) -> None:
    (epoch / "events.jsonl").write_bytes(b"\n".join(forge(lines(epoch))) + b"\n")
    with pytest.raises(RecordError, match="the chain is broken here"):
        read_record(epoch)


def test_a_log_that_is_no_log_is_refused(path: Path) -> None:
    (path / "events.jsonl").write_bytes(b"[]\n")
    with pytest.raises(RecordError, match="not an event"):
        read_record(path)


def test_another_recipe_than_the_one_started_with_is_refused(path: Path) -> None:
    recipe = path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("\nepochs = ", "\nepochs = 1"))
    with pytest.raises(RecordError, match="not the recipe that the run started with"):
        read_record(path)


def test_a_line_cut_off_by_a_crash_is_dropped_and_the_chain_goes_on(path: Path) -> None:
    with (path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"prev":"abc","se')
    torn = read_record(path)
    assert (len(torn.events), torn.torn_bytes) == (1, 17)
    with RecordWriter.reopen(torn) as again:
        again.event("epoch_start", {"epoch": 1})
    healed = read_record(path)
    assert (len(healed.events), healed.torn_bytes) == (2, 0)


def test_a_record_that_another_process_went_on_with_since_it_was_read_is_refused(path: Path) -> None:
    read_before = read_record(path)
    with RecordWriter.reopen(read_before) as other:
        other.event("epoch_start", {"epoch": 1})
    with pytest.raises(RecordError, match="another process has just written this record: start again"):
        RecordWriter.reopen(read_before)
    with RecordWriter.reopen(read_record(path)) as third:
        third.event("epoch_stop", {"epoch": 1})
    assert [event["seq"] for event in read_record(path).events] == [0, 1, 2]


def test_of_several_runs_that_start_in_one_folder_one_gets_it(tmp_path: Path) -> None:
    for turn in range(20):
        together = threading.Barrier(4)
        refused: list[str] = []

        def start(folder: Path, together: threading.Barrier, refused: list[str]) -> None:
            together.wait()
            try:
                new_record(folder).close()
            except RecordError as error:
                refused.append(str(error))

        folder = tmp_path / str(turn)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(start, [folder] * 4, [together] * 4, [refused] * 4))
        assert len(read_record(folder / "record").events) == 1
        assert len(refused) == 3
        assert all("not empty; give another --out" in text or "another process is writing" in text for text in refused)


def test_status_is_written_last_and_a_resumed_record_loses_its_error(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        assert read_record(writer.path).status == "unfinished"
        writer.fail("the reason")
    failed = read_record(writer.path)
    assert (failed.status, (writer.path / "ERROR").read_text()) == ("error", "the reason\n")
    with RecordWriter.reopen(failed) as again:
        again.write_system({"nodes": []})
        again.finish({})
    assert read_record(writer.path).status == "done"
    with pytest.raises(RecordError, match="this run is complete"):
        RecordWriter.reopen(read_record(writer.path))


def test_a_folder_with_something_in_it_is_not_written_to(path: Path) -> None:
    with pytest.raises(RecordError, match="not empty; give another --out, or resume it: --resume"):
        new_record(path.parent)


def test_a_run_that_is_being_written_is_not_offered_to_resume(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        writer.event("run_start", {})
        with pytest.raises(RecordError, match=f"^{writer.path}: not empty; give another --out$"):
            new_record(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot write the record here: .*; give another --out"):
        RecordWriter.create(tmp_path / "file" / "record", RECIPE)


@pytest.mark.parametrize("missing", ["recipe.toml", "events.jsonl"])
def test_a_folder_that_is_no_record_is_refused(path: Path, missing: str) -> None:
    (path / missing).unlink()
    with pytest.raises(RecordError, match=f"not a record: {missing} is missing"):
        read_record(path)


def test_changed_line_endings_are_told_and_not_taken_for_tampering(path: Path) -> None:
    events = path / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(RecordError, match=r"l:1: ends with CR and LF, .* copy the folder again byte by byte"):
        read_record(path)


def fail_by(number: int, *, only_beside: Path | None = None) -> Any:
    """An fsync that fails, always or as long as a file is there."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if only_beside is None or only_beside.exists():
            raise OSError(number, os.strerror(number))
        real(descriptor)

    return fsync


def test_a_full_disk_leaves_whole_lines_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_record(tmp_path)
    before = lines(writer.path)
    monkeypatch.setattr(os, "fsync", fail_by(errno.ENOSPC))
    with pytest.raises(RunError, match=r"No space left on device: .* continue with --resume --out"):
        writer.event("epoch_start", {"epoch": 1})
    monkeypatch.undo()
    assert lines(writer.path) == before
    writer.close()


def test_the_ballast_is_given_back_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_record(tmp_path)
    ballast = writer.path / ".ballast"
    assert ballast.stat().st_blocks * 512 >= 256 * 1024
    monkeypatch.setattr(os, "fsync", fail_by(errno.ENOSPC, only_beside=ballast))
    writer.event("interrupted", {"epoch": 1})
    writer.close()
    assert [event["key"] for event in read_record(writer.path).events] == ["init_start", "interrupted"]


def test_a_number_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.event("loss", float("nan"))


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", fail_by(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_disk_that_is_full_from_the_start_leaves_nothing_to_go_on_with(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert str(cannot_write(tmp_path, full)) == (
        f"{tmp_path}: No space left on device: the run has not started: free some space, then start it again"
    )
    (tmp_path / "recipe.toml").touch()
    assert str(cannot_write(tmp_path, full)).endswith(f"then continue with --resume --out {tmp_path}")


def event(key: str, value: Mapping[str, Any], time_ms: int = 1000) -> Event:
    return {"seq": 0, "time_ms": time_ms, "key": key, "value": dict(value)}


def read(folder: Path) -> Progress:
    return parse_progress((folder / PROGRESS).read_bytes(), str(folder / PROGRESS))


def test_events_are_told_at_once_and_steps_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_seconds = 100.0
    monkeypatch.setattr("hpcai500.run_progress.time.monotonic", lambda: now_seconds)
    file = ProgressFile(tmp_path, "owner")
    file.take(event("epoch_start", {"epoch": 2, "step": 0}))
    assert (read(tmp_path).epoch, read(tmp_path).step, read(tmp_path).owner) == (2, 0, "owner")
    file.step(3)
    assert read(tmp_path).step == 0
    now_seconds += 30.0
    file.step(7)
    found = read(tmp_path)
    assert found.step == 7
    assert found.last_ms is not None
    assert found.last_ms > 1000
    assert list(tmp_path.iterdir()) == [tmp_path / PROGRESS]


def test_a_process_shows_that_it_lives_also_while_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("record", "run_progress"):
        monkeypatch.setattr(f"hpcai500.{module}.SHORTEST_SECONDS", 0.02)
    with RecordWriter.create(tmp_path / "r", RECIPE) as writer:
        writer.keep_progress("owner")
        time.sleep(0.1)
        assert not (tmp_path / "r" / PROGRESS).exists(), "before its first event, a record may be begun anew"
        told = writer.event("epoch_start", {"epoch": 1, "step": 0})
        while (found := read(tmp_path / "r")).alive_ms <= told["time_ms"] + 100:  # type: ignore[operator]
            time.sleep(0.01)
        assert (found.last_ms, found.beat_seconds) == (told["time_ms"], 0.02)
    ended = (tmp_path / "r" / PROGRESS).read_bytes()
    time.sleep(0.1)
    assert (tmp_path / "r" / PROGRESS).read_bytes() == ended


def test_a_file_that_cannot_be_written_ends_no_run_and_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ProgressFile(tmp_path / "nowhere", "owner")
    for epoch in (1, 2):
        file.take(event("epoch_start", {"epoch": epoch, "step": 0}))
    assert capsys.readouterr().err.count("progress.json: cannot be written: No such file or directory") == 1


def test_a_run_that_goes_on_tells_what_its_record_has_already(tmp_path: Path) -> None:
    with RecordWriter.create(tmp_path / "r", RECIPE) as writer:
        writer.step(1)
        writer.event("epoch_start", {"epoch": 3, "step": 0})
    assert not (tmp_path / "r" / PROGRESS).exists()
    again = RecordWriter(tmp_path / "r")
    again.keep_progress("owner", [event("epoch_start", {"epoch": 3, "step": 0})])
    with again:
        again.event("run_error", {"reason": "why" * 1000})
    found = read(tmp_path / "r")
    assert (found.epoch, found.epochs_done, found.phase, found.error) == (3, 2, "ended", "why" * 200)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("diverged", {"what": "x"}, "diverged: epoch: Field required"),
        ("epoch_start", {"epoch": 0, "step": 0}, "epoch_start: epoch: Input should be greater"),
        ("model", None, "model: value: Input should be"),
    ],
)
def test_an_event_that_is_none_is_named(key: str, value: Any, words: str) -> None:
    told = {"seq": 4, "time_ms": 1, "key": key, "value": value}
    with pytest.raises(RecordError, match=f"line 5 of its events, {words}"):
        Progress().fold([told])


def test_rates_and_paces_are_never_other_than_finite_and_positive() -> None:
    progress = Progress()
    done = {"epoch": 1, "steps": 1, "samples": 8, "padded_samples": 0, "loss": None, "data_wait_seconds": 0.0}
    saved = {"epoch": 2, "step": 0, "file": "epoch.pt", "sha256": "0"}
    progress.fold(
        [
            event("epoch_start", {"epoch": 1, "step": 0}, 5000),
            event("epoch_stop", {**done, "seconds": 0.0, "coverage": "0"}, 4000),
            event("checkpoint", saved, 4000),
        ]
    )
    assert (progress.images_per_second, progress.pace_seconds, progress.epoch) == (None, 0.0, 2)
