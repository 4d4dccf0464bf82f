"""Tools and looks that hang, fail or are not there hold up nobody, and are told."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from hpcai500.system.looking import LONGEST_RAW_BYTES, ask, bounded, run, together


def script(folder: Path, body: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def is_running(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_tool_speaks_the_c_locale_and_fails_by_its_last_words(tmp_path: Path) -> None:
    assert ask([script(tmp_path, 'echo "$LC_ALL $1"'), "word"]).text == "C word\n"
    answer = ask([script(tmp_path, "echo half; echo first >&2; echo 'no permission' >&2; exit 3")])
    assert (answer.text, answer.reason) == (None, "no permission")
    assert ask([script(tmp_path, "exit 3")]).reason == "exit code 3"


def test_a_tool_that_is_not_there_or_cannot_be_started_is_told(tmp_path: Path) -> None:
    assert ask(["hpcai500-no-such-tool"]).reason == "not installed"
    tool = script(tmp_path, "")
    Path(tool).write_text("of another machine")
    assert ask([tool]).reason == f"{tool} cannot be started: Exec format error"


def test_a_tool_that_hangs_is_left_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # Its child holds the output open, and would outlive it.
    answer = ask([script(tmp_path, f"sleep 600 & echo $! > {pid}; wait")], patience_seconds=2.0)
    assert answer.reason == "did not answer within 2 s"
    child = Path("/proc") / pid.read_text().strip() / "stat"
    deadline = time.monotonic() + 120
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_ctrl_c_leaves_no_tool_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(process: subprocess.Popen[bytes], **options: object) -> None:
        started.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([script(tmp_path, "exec sleep 600")], 60.0)
    assert not is_running(Path(f"/proc/{started[0]}/stat"))


def test_one_look_that_hangs_does_not_hold_up_the_others() -> None:
    release = threading.Event()
    found = together({"hangs": release.wait, "answers": lambda: 7, "fails": lambda: int("x")}, 2.0)
    release.set()
    assert (found["hangs"].found, found["hangs"].reason) == (None, "did not answer within 2 s")
    assert found["answers"].found == 7
    assert (found["fails"].reason or "").startswith("ValueError")


@pytest.mark.parametrize("line", ["x" * 99 + "\n", "ü" * 50])
def test_long_output_is_cut_where_it_says(line: str) -> None:
    text = line * 2000
    kept, mark, end = bounded(text).partition("[cut here: ")
    assert text.startswith(kept)
    assert mark
    assert len(kept.encode()) <= LONGEST_RAW_BYTES
    left_out, of, total = end.split()[0], end.split()[1], int(end.split()[2])
    assert (of, total) == ("of", len(text.encode()))
    assert abs(int(left_out) - (total - len(kept.encode()))) < 2
    assert bounded("short") == "short"
