"""progress.json: what a member's process tells of itself while it writes its record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcai500.errors import RecordError
from hpcai500.recipe import load_recipe
from hpcai500.record import Event, RecordWriter
from hpcai500.run_progress import PROGRESS, Progress, ProgressFile, parse_progress


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


def test_a_file_that_cannot_be_written_ends_no_run_and_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ProgressFile(tmp_path / "nowhere", "owner")
    for epoch in (1, 2):
        file.take(event("epoch_start", {"epoch": epoch, "step": 0}))
    assert capsys.readouterr().err.count("progress.json: cannot be written: No such file or directory") == 1


def test_a_run_that_goes_on_tells_what_its_record_has_already(tmp_path: Path) -> None:
    recipe = load_recipe("ic/smoke", [])
    with RecordWriter.create(tmp_path / "r", recipe) as writer:
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
