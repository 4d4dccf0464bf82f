"""The record: chained, atomic, honest about crashes and full disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hpcai500.errors import RecordError, RunError
from hpcai500.files import write_atomically
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import FIRST_PREVIOUS, RecordWriter, cannot_write, read_record

RECIPE = load_recipe("ic/smoke")


def new_record(folder: Path) -> RecordWriter:
    writer = RecordWriter.create(folder / "record", RECIPE)
    writer.event("init_start", {"recipe_hash": recipe_hash(RECIPE)})
    return writer


def lines(record: Path) -> list[bytes]:
    return (record / "events.jsonl").read_bytes().splitlines()


def test_each_line_carries_the_hash_of_the_line_before(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        writer.event("epoch_start", {"epoch": 1})
        writer.event("epoch_stop", {"epoch": 1})
    first, *rest = lines(writer.path)
    assert json.loads(first)["prev"] == FIRST_PREVIOUS
    for before, line in zip([first, *rest], rest, strict=False):
        assert json.loads(line)["prev"] == hashlib.sha256(before).hexdigest()
    assert [event["seq"] for event in read_record(writer.path).events] == [0, 1, 2]


@pytest.mark.parametrize("forge", [
    lambda log: [log[0].replace(b"init_start", b"init_stop"), *log[1:]],
    lambda log: [log[0], log[2]],
    lambda log: [log[0], log[2], log[1]],
    lambda log: [log[0], log[1], log[1], log[2]],
    lambda log: [log[0], log[1].replace(b'"epoch":1', b'"epoch":2'), log[2]],
], ids=["change", "remove", "swap", "repeat", "change in the middle"])  # fmt: skip
def test_a_changed_log_is_refused(tmp_path: Path, forge: Any) -> None:
    with new_record(tmp_path) as writer:
        writer.event("epoch_start", {"epoch": 1})
        writer.event("epoch_stop", {"epoch": 1})
    (writer.path / "events.jsonl").write_bytes(b"\n".join(forge(lines(writer.path))) + b"\n")
    with pytest.raises(RecordError, match="the chain is broken here"):
        read_record(writer.path)


def test_a_log_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        pass
    (writer.path / "events.jsonl").write_bytes(b"[]\n")
    with pytest.raises(RecordError, match="not an event"):
        read_record(writer.path)


def test_another_recipe_than_the_one_started_with_is_refused(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        pass
    path = writer.path / "recipe.toml"
    path.write_text(path.read_text().replace("\nepochs = ", "\nepochs = 1"))
    with pytest.raises(RecordError, match="not the recipe that the run was started with"):
        read_record(writer.path)


def test_a_line_cut_off_by_a_crash_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        pass
    with (writer.path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"prev":"abc","se')
    torn = read_record(writer.path)
    assert (len(torn.events), torn.torn_bytes) == (1, 17)
    with RecordWriter.reopen(torn) as again:
        again.event("epoch_start", {"epoch": 1})
    healed = read_record(writer.path)
    assert (len(healed.events), healed.torn_bytes) == (2, 0)


def test_a_record_that_another_process_went_on_with_since_it_was_read_is_refused(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer:
        pass
    read_before = read_record(writer.path)
    with RecordWriter.reopen(read_before) as other:
        other.event("epoch_start", {"epoch": 1})
    with pytest.raises(RecordError, match="another process has written this record just now: start again"):
        RecordWriter.reopen(read_before)
    with RecordWriter.reopen(read_record(writer.path)) as third:
        third.event("epoch_stop", {"epoch": 1})
    assert [event["seq"] for event in read_record(writer.path).events] == [0, 1, 2]


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
        threads = [threading.Thread(target=start, args=(folder, together, refused)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    new_record(tmp_path).close()
    with pytest.raises(RecordError, match="not empty; give another --out, or go on with it: --resume"):
        new_record(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot be written here: .*; give another --out"):
        RecordWriter.create(tmp_path / "file" / "record", RECIPE)


@pytest.mark.parametrize("missing", ["recipe.toml", "events.jsonl"])
def test_a_folder_that_is_no_record_is_refused(tmp_path: Path, missing: str) -> None:
    with new_record(tmp_path) as writer:
        pass
    (writer.path / missing).unlink()
    with pytest.raises(RecordError, match=f"not a record: {missing} is missing"):
        read_record(writer.path)


def test_a_full_disk_leaves_whole_lines_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_record(tmp_path)
    before = lines(writer.path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device: .* go on with --resume --out"):
        writer.event("epoch_start", {"epoch": 1})
    monkeypatch.undo()
    assert lines(writer.path) == before
    writer.close()


def test_the_ballast_is_given_back_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_record(tmp_path)
    real, ballast = os.fsync, writer.path / ".ballast"
    assert ballast.stat().st_blocks * 512 >= 256 * 1024

    def full_while_ballasted(descriptor: int) -> None:
        if ballast.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_while_ballasted)
    writer.event("interrupted", {"epoch": 1})
    writer.close()
    assert [event["key"] for event in read_record(writer.path).events] == ["init_start", "interrupted"]


def test_a_number_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with new_record(tmp_path) as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.event("loss", float("nan"))


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_disk_that_is_full_from_the_start_leaves_nothing_to_go_on_with(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert str(cannot_write(tmp_path, full)) == (
        f"{tmp_path}: No space left on device, and nothing is begun: free some space, then start it again"
    )
    (tmp_path / "recipe.toml").touch()
    assert str(cannot_write(tmp_path, full)).endswith(f"then go on with --resume --out {tmp_path}")
