"""Progress goes to stderr: plain lines where it is no terminal, a bar where it is."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from typing import Any

import pytest
from builders.terminals import drawn_on

from hpcai500 import progress
from hpcai500.progress import PlainLines, silent, track


def lines_of(total: int, *steps: int, interval_seconds: float = 0.0, threads: int = 1) -> list[str]:
    """What is printed while each thread advances by `steps`."""
    stream = io.StringIO()
    lines = PlainLines(total, "reading", "files", stream, interval_seconds=interval_seconds)
    workers = [threading.Thread(target=lambda: [lines.advance(step) for step in steps]) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines.close()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("tracker", [track, silent])
def test_a_short_task_and_silence_print_nothing(tracker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with tracker(3, "reading", "files") as bar:
        bar.advance(3)
    assert capsys.readouterr() == ("", "")


def test_a_line_says_how_far_it_is_and_the_last_one_how_it_ended() -> None:
    first, second, last = lines_of(8, 2, 6)
    assert first.startswith("hpcai500: reading: 2/8 files (25 %), ")
    assert second.startswith("hpcai500: reading: 8/8 files (100 %), ")
    assert last.endswith("files/s, 0 s left")
    assert "0/0 files (100 %)" in lines_of(0, 0)[0]


def test_an_interval_limits_the_lines_and_threads_lose_no_count() -> None:
    assert lines_of(1000, *[1] * 1000, interval_seconds=3600.0) == []
    assert "40000/40000 files" in lines_of(40_000, *[1] * 10_000, threads=4)[-1]


def test_plain_lines_go_to_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress.PlainLines.__init__, "__defaults__", (0.0, None))
    with track(1, "reading", "files") as bar:
        bar.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


def test_a_terminal_gets_a_bar() -> None:
    script = "from hpcai500.progress import track\nwith track(5, 'reading', 'files') as bar:\n    bar.advance(5)\n"
    controller, terminal = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", script],
        stderr=terminal,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    shown = drawn_on(controller)
    os.close(controller)
    assert "reading" in shown
    assert "5/5" in shown
    assert process.stdout == b""
