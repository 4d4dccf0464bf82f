"""`hpcai500 …` as people type it: in a process of its own, or in this one, where no process is the point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from many_ranks import clean_environment
from pythons import python_with

from hpcai500.cli import main

HPCAI500 = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
INVALID = "HPCAI500 RESULT INVALID"

Ended = subprocess.CompletedProcess[str]
# Runs one command: `typed("score", record)`.
Typed = Callable[..., Ended]


def hpcai500(*words: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command in a process, to its end; no launcher above this one is seen by it."""
    variables = {**clean_environment(), "OMP_NUM_THREADS": "1", **(environment or {})}
    line = [*HPCAI500, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=variables, check=False)


# A hook of Python's own: a run is stopped where it is wanted, however fast it is and however busy the machine.
_STOPS = """
import os, sys
left = [1]
def look(event, words):
    if event == "os.rename" and {place!r} in str(words[1]) and left and left.pop():
        {send}(os.getsid(0), {number})
sys.addaudithook(look)
"""


def stopped_at(folder: Path, place: str, number: signal.Signals, *words: str | Path, cwd: Path) -> Ended:
    """Run a command that gets a signal when one of its processes gives a file its name, which has `place` in it.

    SIGKILL goes to all of them, any other to the command alone. `folder` is made for its installation.
    """
    (folder / "packages").mkdir(parents=True)
    send = "os.killpg" if number == signal.SIGKILL else "os.kill"
    code = _STOPS.format(place=place, number=int(number), send=send)
    (folder / "packages" / "sitecustomize.py").write_text(code)
    line = [python_with(folder / "python", folder / "packages").with_name("hpcai500"), *map(str, words)]
    variables = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        line, capture_output=True, text=True, cwd=cwd, env=variables, start_new_session=True, check=False
    )


def set_options(*settings: str) -> list[str]:
    """`--set` for each of them."""
    return [word for setting in settings for word in ("--set", setting)]


def error_of(ended: Ended) -> str:
    """The only error that a command has told, which ended as one of usage and shows no traceback."""
    assert ended.returncode == 64, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "error: " in line]
    return line


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    """Runs a command in this process, in an empty folder; the streams are as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    for place, names in ((sys, ("stdout", "stderr", "excepthook")), (warnings, ("formatwarning",))):
        for name in names:
            monkeypatch.setattr(place, name, getattr(place, name))

    def run(*words: str | Path) -> Ended:
        line = ["hpcai500", *map(str, words)]
        monkeypatch.setattr(sys, "argv", line)
        code = main()
        sys.stdout.flush()
        streams = capfd.readouterr()
        return Ended(line, int(code), streams.out, streams.err)

    return run
