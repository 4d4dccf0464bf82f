"""Progress goes to stderr: plain lines where it is no terminal, a bar where it is."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading

import pytest

from hpcai500 import progress
from hpcai500.progress import PlainLines, silent, track


def test_a_short_task_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with track(3, "reading", "files") as bar:
        bar.advance(3)
    assert capsys.readouterr() == ("", "")


def test_a_line_says_how_far_it_is_and_the_last_one_how_it_ended() -> None:
    stream = io.StringIO()
    lines = PlainLines(8, "reading", "files", stream, interval_seconds=0.0)
    lines.advance(2)
    lines.advance(6)
    lines.close()
    first, second, last = stream.getvalue().splitlines()
    assert first.startswith("hpcai500: reading: 2/8 files (25 %), ")
    assert second.startswith("hpcai500: reading: 8/8 files (100 %), ")
    assert last.endswith("files/s, 0 s left")


def test_an_interval_limits_the_lines() -> None:
    stream = io.StringIO()
    lines = PlainLines(1000, "reading", "files", stream, interval_seconds=3600.0)
    for _ in range(1000):
        lines.advance()
    lines.close()
    assert stream.getvalue() == ""


def test_an_empty_task_divides_by_nothing() -> None:
    stream = io.StringIO()
    lines = PlainLines(0, "reading", "files", stream, interval_seconds=0.0)
    lines.advance(0)
    assert "0/0 files (100 %)" in stream.getvalue()


def test_threads_lose_no_count() -> None:
    stream = io.StringIO()
    lines = PlainLines(40_000, "reading", "files", stream, interval_seconds=0.0)
    threads = [threading.Thread(target=lambda: [lines.advance() for _ in range(10_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "40000/40000 files" in stream.getvalue().splitlines()[-1]


def test_silence_is_the_default_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    with silent(3, "reading", "files") as bar:
        bar.advance(3)
    assert capsys.readouterr() == ("", "")


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
    shown = os.read(controller, 1 << 16).decode()
    os.close(controller)
    assert "reading" in shown
    assert "5/5" in shown
    assert process.stdout == b""
