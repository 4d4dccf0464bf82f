"""`hpcai500 watch`: how far a run is, from its files alone, while it goes on and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Typed, typed
from builders.records import COSTS

import hpcai500.results.watch
from hpcai500.errors import RecordError
from hpcai500.recipe import load_recipe
from hpcai500.record import RecordWriter
from hpcai500.results.watch import Look, RecordWatch, follow, watch_of, watch_page
from hpcai500.run_progress import SHORTEST_SECONDS
from hpcai500.system.power_samples import Row, format_samples

__all__ = ["typed"]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RecordWriter]:
    """A run of 4 epochs of 50 steps on two ranks that trains its first."""
    recipe = load_recipe("ic/smoke", ["problem.epochs=4"])
    with RecordWriter.create(tmp_path / "run", recipe) as writer:
        writer.keep_progress("owner")
        writer.event("dataset", {**DATASET})
        writer.event("model", {"parameters": 7, "steps_per_epoch": 50})
        writer.event("run_start", {"world_size": 2, "nodes": 1, "hosts": ["n0", "n0"]})
        writer.event("epoch_start", {"epoch": 1, "step": 0})
        yield writer


DATASET = {"fingerprint": "f", "training_samples": 1000, "evaluation_samples": 10, "coverage": "all"}
STOP = {
    "epoch": 1, "steps": 50, "samples": 1000, "padded_samples": 0, "loss": 1.5, "seconds": 4.0,
    "data_wait_seconds": 0.0, "coverage": "all",
}  # fmt: skip


def step(writer: RecordWriter, done: int, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the last step were longer ago than two writes of progress.json may follow each other."""
    later = time.monotonic() + 2 * SHORTEST_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr("hpcai500.run_progress.time.monotonic", lambda: later)
        writer.step(done, loss)


def test_steps_and_loss_are_seen_before_the_first_epoch_ends(
    writer: RecordWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(writer.path)
    assert watch.look().headline.startswith("training, epoch 1 of 4, step 0 of 50")
    step(writer, 25, 2.25, monkeypatch)
    found = watch.look()
    assert found.headline.startswith("training, epoch 1 of 4, step 25 of 50, loss 2.250")
    assert found.share == pytest.approx(0.125)
    assert "loss        2.2500" in found.lines
    assert "ranks       2 on n0" in found.lines
    assert any(" left" in line for line in found.lines if line.startswith("progress"))
    assert not found.is_over


def test_events_come_in_as_they_are_written_and_the_end_ends_it(writer: RecordWriter) -> None:
    watch = watch_of(writer.path)
    watch.look()
    writer.event("epoch_stop", STOP)
    writer.event("eval_start", {"epoch": 1})
    assert watch.look().headline == "evaluating, epoch 1 of 4, step 50 of 50, loss 1.500, 250 images/s"
    writer.event("eval_accuracy", {"epoch": 1, "metric": "top1", "value": 0.5, "samples": 10, "seconds": 1.0})
    assert "quality     top1 0.5000 (target 0.85)" in watch.look().lines
    writer.fail("the disk is full")
    found = watch.look()
    assert found.is_over
    assert found.headline.startswith("ended without a result, epoch 1 of 4")
    assert "error       the disk is full" in found.lines


def test_a_line_that_is_being_written_waits_for_its_end(writer: RecordWriter) -> None:
    watch = watch_of(writer.path)
    watch.look()
    log = writer.path / "events.jsonl"
    before = log.read_bytes()
    writer.event("eval_start", {"epoch": 1})
    (writer.path / "progress.json").unlink()
    whole = log.read_bytes()
    log.write_bytes(whole[: len(before) + 20])
    assert watch.look().headline.startswith("training")
    log.write_bytes(whole)
    assert watch.look().headline.startswith("evaluating")


def test_a_run_that_nothing_writes_any_more_is_over_after_a_while(writer: RecordWriter) -> None:
    writer.close()
    now_s = time.time()
    assert not RecordWatch(writer.path, lambda: now_s + 60).look().is_over
    found = RecordWatch(writer.path, lambda: now_s + 200).look()
    assert found.is_over
    assert found.headline.startswith("silent, epoch 1 of 4")


def test_ranks_that_lag_are_named(writer: RecordWriter) -> None:
    assert not any(line.startswith("lag") for line in watch_of(writer.path).look().lines)
    writer.event("communication", COSTS)
    assert "stragglers  rank 1 on n1" in watch_of(writer.path).look().lines


def test_the_power_of_all_nodes_is_added_while_it_is_fresh(writer: RecordWriter) -> None:
    folder = writer.path / "power"
    folder.mkdir()
    rows = [Row(0.0, 1000.0, None, 0.0), Row(2.0, 1002.0, None, 400.0)]
    (folder / "n0.csv").write_bytes(format_samples([], rows))
    (folder / "n1.csv").write_bytes(format_samples([], [Row(2.0, 1002.0, 100.0)]))
    # A source beside the one that counts measures the same nodes again.
    (folder / "n0+redfish.csv").write_bytes((folder / "n0.csv").read_bytes())
    assert "power       300 W" in RecordWatch(writer.path, lambda: 1003.0).look().lines
    assert not any(line.startswith("power") for line in RecordWatch(writer.path, lambda: 1103.0).look().lines)


def test_the_page_renews_itself_until_the_end_and_runs_no_script(writer: RecordWriter, tmp_path: Path) -> None:
    page, pages = tmp_path / "page.html", list[str]()

    def next_event(_: float) -> None:
        pages.append(page.read_text(encoding="utf-8"))
        writer.fail("stopped")

    looks = list[Look]()
    follow(watch_of(writer.path).look, looks.append, 3.0, page, next_event)
    assert [look.is_over for look in looks] == [False, True]
    assert '<meta http-equiv="refresh" content="3">' in pages[0]
    last = page.read_text(encoding="utf-8")
    assert "refresh" not in last
    assert "error       stopped" in last
    assert "<script" not in pages[0] + last


def test_names_in_a_page_are_text() -> None:
    page = watch_page("<b>", ["record <i>"], 0.5, None)
    assert "&lt;b&gt;" in page
    assert "record &lt;i&gt;" in page


def test_a_run_that_has_ended_is_shown_once(writer: RecordWriter, typed: Typed) -> None:
    writer.finish({})
    ended = typed("watch", writer.path)
    assert ended.returncode == 0
    assert "state       done" in ended.stdout.splitlines()
    assert ended.stdout.count("record  ") == 1


def test_ctrl_c_ends_the_watching_and_not_the_run(
    writer: RecordWriter, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hpcai500.results.watch, "follow", interrupted)
    ended = typed("watch", writer.path)
    assert ended.returncode == 0
    assert f"the run goes on. To watch again: hpcai500 watch {writer.path}" in ended.stderr


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not a record, campaign or ensemble; give a folder that a run writes"):
        watch_of(tmp_path)
