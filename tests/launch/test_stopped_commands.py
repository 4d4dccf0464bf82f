"""Commands end by the first signal, whatever they do, and leave no process, no file and no traceback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcai500.errors import OutOfTimeError
from hpcai500.launch.launcher import run_local_ranks
from hpcai500.launch.processes import Patience, run_to_end
from hpcai500.stopping import Stopped
from hpcai500.system import mounts

ROOT = Path(__file__).parents[2]
HPCAI500 = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
# In one call of a library, which no handler of Python's interrupts, and deaf to what asks it to end.
DEAF = "import ctypes, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); ctypes.CDLL(None).sleep(600)"
# Signals itself as a user would.
ASKED = "import os, signal; os.kill(os.getppid(), signal.SIGTERM);" + DEAF
# As a process that measures, in one call that lets other threads run, as torch's products do.
IN_A_LIBRARY = """
import hashlib, os
from pathlib import Path
from hpcai500.files import scratch_folder
from hpcai500.stopping import ending_by_signals
with ending_by_signals(), scratch_folder(os.environ, Path("/")):
    print("computing", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_children_that_do_not_hear_a_signal_are_killed() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run_to_end(python(ASKED), patience=Patience(600.0, grace_seconds=0.2))
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run_local_ranks(python(ASKED), 2, grace_seconds=600.0, patience=Patience(600.0, grace_seconds=0.2))


def test_what_takes_longer_than_it_may_is_ended() -> None:
    with pytest.raises(OutOfTimeError, match="did not end within 1 s"):
        run_to_end(python(DEAF), patience=Patience(1.0, grace_seconds=0.2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_process_ends_by_a_signal_while_it_is_in_a_library_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(python(IN_A_LIBRARY), stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == b"computing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(60) == -number
    assert not list(tmp_path.iterdir())


def test_temporary_files_of_a_killed_child_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "import os; from pathlib import Path; from hpcai500.files import scratch_folder\n"
    code += "folder = scratch_folder(os.environ, Path('/'))\nos.kill(os.getpid(), 9)"
    assert run_to_end(python(code)) == 1
    assert not list(tmp_path.iterdir())


def test_a_signal_that_comes_before_a_process_can_handle_it_is_not_lost() -> None:
    code = "from hpcai500.stopping import ending_by_signals\nimport time\nwith ending_by_signals(): time.sleep(600)"
    parent = f"""
import os, signal, sys, threading
from hpcai500.launch.processes import run_to_end
threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    run_to_end([sys.executable, "-c", {code!r}], hold=True)
except KeyboardInterrupt as error:
    print(error)
"""
    ended = subprocess.run(python(parent), capture_output=True, text=True, check=False, timeout=120)
    assert (ended.stdout, ended.stderr) == ("stopped by Ctrl-C\n", "")


def test_a_command_that_is_stopped_while_it_loads_says_so_in_one_line(tmp_path: Path) -> None:
    # The first module that is loaded after signals are handled waits for one.
    code = "import hpcai500.cli, signal, os, sys\n"
    code += "class Late:\n    def find_spec(self, name, path, target=None):\n"
    code += "        if name == 'hpcai500.cli.commands': os.kill(os.getpid(), signal.SIGINT)\n"
    code += "sys.meta_path.insert(0, Late())\nsys.exit(hpcai500.cli.main())"
    ended = subprocess.run(python(code), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "hpcai500: error: stopped by Ctrl-C\n")


def test_who_looks_at_paths_ends_when_whoever_asked_is_gone() -> None:
    asked = subprocess.Popen([*python(mounts._PROBE), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asked.stdin
    assert asked.stdout
    asked.stdout.close()
    asked.stdin.write(b"/")
    asked.stdin.close()
    assert asked.wait(60) == 1


def test_a_signal_while_a_class_is_made_is_told_in_one_line(tmp_path: Path) -> None:
    # Python 3.11 makes a RuntimeError of what is raised there.
    code = "import os, signal, sys, hpcai500.cli, hpcai500.cli.commands as commands\n"
    code += "class Field:\n    def __set_name__(self, owner, name): os.kill(os.getpid(), signal.SIGTERM)\n"
    code += "commands.run = lambda: type('Made', (), {'field': Field()})\nsys.exit(hpcai500.cli.main())"
    ended = subprocess.run(python(code), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "hpcai500: error: stopped by SIGTERM\n")


def test_measuring_leaves_nothing_in_the_working_directory(tmp_path: Path) -> None:
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    scratch.mkdir()
    work.mkdir()
    process = subprocess.Popen(
        [*HPCAI500, "micro", "input", "--seconds", "0.05"],
        cwd=work, env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    for line in process.stderr:
        if "makes synthetic data for measuring" in line:
            break
    assert any("ic-synthetic" in path.name for path in _within(scratch))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "hpcai500: error: stopped by SIGTERM" in said
    assert not list(scratch.iterdir())
    assert not list(work.iterdir())


def _within(folder: Path) -> list[Path]:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if found := [path for path in folder.rglob("*") if "ic-synthetic" in path.name]:
            return found
        time.sleep(0.01)
    return []


@pytest.mark.slow
def test_every_command_can_be_stopped_at_random_moments() -> None:
    """As `benchmarks/random_stops.py` does a hundred times on a loaded machine; its first line is the seed."""
    seed = random.SystemRandom().randrange(10**6)
    # A machine that is loaded four times over needs as much longer for its own part of an end.
    words = ["--stops", "9", "--seed", str(seed), "--longest", "10", "--limit", "20"]
    command = [sys.executable, ROOT / "benchmarks" / "random_stops.py", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
