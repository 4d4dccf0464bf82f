"""What a run says of its nodes when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine import job
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import SilentJournal
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe


class Noted(SilentJournal):
    """Remembers what it is told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.events: dict[str, Any] = {}

    def event(self, key: str, value: Any = None) -> None:
        self.events[key] = value


def started(monkeypatch: pytest.MonkeyPatch, out: Path, torches: tuple[str, ...]) -> dict[str, Any]:
    nodes = [{"host": f"n{number}", "software": {"torch": torch}, "machine": {"bios_version": torch}}
             for number, torch in enumerate(torches)]  # fmt: skip
    monkeypatch.setattr(job, "capture_nodes", lambda *_, **__: nodes)
    journal = Noted(out)
    ranks = Ranks(find_placement({}), LocalCommunicator(), 1.0)
    job.announce_start(job.Job(load_recipe("ic/smoke", ()), Path("/data"), journal), ranks)
    return journal.events


def test_nodes_that_differ_are_told_on_stderr_and_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = started(monkeypatch, tmp_path, ("2.13.0", "2.12.0", "2.13.0"))
    told = capsys.readouterr()
    assert told.err == "hpcai500: warning: nodes differ: software.torch: 2.13.0 on n0, n2; 2.12.0 on n1\n"
    assert told.out == ""
    assert [(one["field"], one["matters"]) for one in events["system_differences"]["differences"]] == [
        ("software.torch", True), ("machine.bios_version", False),
    ]  # fmt: skip


def test_equal_nodes_are_on_record_as_equal_and_one_node_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started(monkeypatch, tmp_path, ("1", "1"))["system_differences"] == {"differences": []}
    assert "system_differences" not in started(monkeypatch, tmp_path, ("1",))
    assert capsys.readouterr().err == ""
