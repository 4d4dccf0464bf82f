"""Commands as people type them, in a process or in this one; and installations of their own for them."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import venv
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from builders.ranks import clean_environment
from hpcai500.cli import main

_SCRIPT = """#!{python}
import sys
from hpcai500.cli import main
sys.exit(main())
"""


def python_with(folder: Path, *packages: Path) -> Path:
    """The interpreter of a new environment in `folder`, with `hpcai500` beside it as pip writes it.

    Modules in the folders `packages` come before all others, also before the sitecustomize.py that Debian's Python has.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (found,) = folder.glob("lib/python3.*/site-packages")
    ours = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    first = f"import sys; sys.path[:0] = {[*map(str, packages)]!r}"
    (found / "packages.pth").write_text("\n".join([first, *ours]))
    script = python.with_name("hpcai500")
    script.write_text(_SCRIPT.format(python=python))
    script.chmod(0o755)
    return python


# ----------------------------------------------------------------------------------------------------
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


def started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, a command that becomes another program of ours runs that program in this process."""

    def become(command: list[str], *, hold: bool = False) -> NoReturn:
        module, *words = command[command.index("-m") + 1 :]
        program = import_module(f"{module}.command" if module == "hpcai500.data" else module)
        raise typer.Exit(program.main(words))

    for place in ("data", "understand"):
        monkeypatch.setattr(f"hpcai500.cli.{place}.become", become)


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


# ----------------------------------------------------------------------------------------------------
# Handlers are called last come, first served: this one comes before any other, and sees what they leave.
_SITECUSTOMIZE = """
import atexit, os, sys
from pathlib import Path

def name_of(task):
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended since it was listed
        return None

def tell():
    names = [name_of(task) for task in Path("/proc/self/task").iterdir()]
    if "torch" in sys.modules:
        Path(FOLDER, str(os.getpid())).write_text(str(names.count("pt_gloo_runloop")))

atexit.register(tell)
"""


class ThreadsAtExit:
    """Counts in processes that are started with `environment`; `folder` is made for it."""

    def __init__(self, folder: Path) -> None:
        (folder / "counts").mkdir(parents=True)
        self._folder = folder
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.replace("FOLDER", repr(str(folder / "counts"))))

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the processes that count."""
        return {"PYTHONPATH": str(self._folder)}

    @property
    def counts(self) -> list[int]:
        """Of each process that had torch and came to its end."""
        return [int(file.read_text()) for file in (self._folder / "counts").iterdir()]
