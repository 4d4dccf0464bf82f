"""Real processes that are ranks of a job: what they find, how they end, and that none outlives the others.

What they run is a few lines of Python, so that each test says what its ranks do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcai500.launch.launcher import run_local_ranks
from hpcai500.launch.processes import run_to_end

RANK = """
import json, os, signal, socket, sys, time
rank = int(os.environ["RANK"])

def here(rank):
    open(f"here-{rank}", "w").close()

def wait_for(*ranks):
    while not all(os.path.exists(f"here-{rank}") for rank in ranks):
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks leave word for each other."""
    monkeypatch.chdir(tmp_path)


def ranks(code: str, size: int = 2, grace_seconds: float = 30.0) -> int:
    return run_local_ranks([sys.executable, "-c", RANK + code], size, grace_seconds=grace_seconds)


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def wait_until_gone(process: int) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        try:
            # A zombie is gone too: its new parent may be slow to bury it.
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    raise AssertionError(f"process {process} is still there")


def wait_for_file(path: Path) -> str:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def test_ranks_find_their_places_and_meet_at_the_socket_that_rank_0_inherits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Left in the shell by something else.
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    monkeypatch.setenv("RANK", "7")
    code = f"""
from hpcai500.hosts import find_placement
place = find_placement(os.environ)
host, port = place.rendezvous.split(":")
if rank == 0:
    with socket.socket(fileno=place.listen_fd) as listener:
        others = [listener.accept()[0] for _ in range(2)]
        heard = sorted(connection.recv(9).decode() for connection in others)
else:
    heard = []
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(str(rank).encode())
about = {{"place": [place.rank, place.size, place.local_rank, place.local_size, place.launcher], "heard": heard,
         "cores": sorted(os.sched_getaffinity(0)), "listens": place.listen_fd is not None}}
open(f"{tmp_path}/{{rank}}", "w").write(json.dumps(about))
"""
    assert ranks(code, size=3) == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [it["place"] for it in told] == [[rank, 3, rank, 3, "hpcai500"] for rank in range(3)]
    assert [it["listens"] for it in told] == [True, False, False]
    assert told[0]["heard"] == ["1", "2"]
    assert {len(it["cores"]) for it in told} == {max(1, len(os.sched_getaffinity(0)) // 3)}


def test_stdout_stays_free_for_the_result(tmp_path: Path) -> None:
    code = "from hpcai500.launch.launcher import run_local_ranks as r; import sys; "
    code += "sys.exit(r([sys.executable, '-c', 'import os; os.write(1, b\"hello\\\\n\")'], 2, grace_seconds=9))"
    ended = subprocess.run(python(code), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "hello\nhello\n")


def test_the_first_that_fails_gives_the_exit_code_while_the_others_end_by_themselves(tmp_path: Path) -> None:
    code = """
if rank == 1:
    here(1)
    os._exit(64)
wait_for(1)
time.sleep(1)
open("last-words", "w").write("bye")
sys.exit(1)
"""
    assert ranks(code) == 64
    assert (tmp_path / "last-words").read_text() == "bye"


def test_a_rank_that_is_killed_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    code = """
if rank == 1:
    here(1)
    os.kill(os.getpid(), signal.SIGKILL)
wait_for(1)
time.sleep(0.5)
sys.exit(1)
"""
    assert ranks(code) == 1
    assert "hpcai500: error: rank 1 was killed by SIGKILL" in capfd.readouterr().err


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rank_that_its_own_alarm_ends_is_not_named_beside_the_reason(
    is_first: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    # As the monitor ends a rank that hangs after another one was lost.
    code = f"""
if rank == 0:
    {"" if is_first else "wait_for(1); time.sleep(0.5)"}
    here(0)
    os.kill(os.getpid(), signal.SIGALRM)
{"wait_for(0); time.sleep(0.5)" if is_first else "here(1)"}
print("rank 1 was lost", file=sys.stderr)
sys.exit(1)
"""
    assert ranks(code) == 1
    assert capfd.readouterr().err == "rank 1 was lost\n"


def test_ranks_that_do_not_end_are_asked_then_killed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcai500.launch.launcher._KILL_SECONDS", 0.2)
    code = """
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"asked\\n"))
here(rank)
if rank == 0:
    wait_for(1, 2)
    sys.exit(3)
for _ in range(60):
    time.sleep(1)
"""
    started = time.monotonic()
    assert ranks(code, 3, 0.5) == 3
    assert time.monotonic() - started < 30
    error = capfd.readouterr().err
    assert "rank 0 has ended, and ranks 1, 2 did not within 0.5 s: stopped (SIGTERM)" in error
    assert error.count("asked") == 2
    assert "ranks 1, 2 killed (SIGKILL)" in error


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)
LAUNCH = """
import sys
from hpcai500.launch.launcher import run_local_ranks
sys.exit(run_local_ranks([sys.executable, "-c", sys.argv[1]], 2, grace_seconds=20))
"""
# Each rank says that it is there, and what made it end.
LISTEN = (
    RANK
    + """
def end(number, frame):
    open(f"{folder}/end-{rank}", "w").write(signal.Signals(number).name)
    sys.exit(1)
folder = os.environ["FOLDER"]
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGURG):
    signal.signal(number, end)
open(f"{folder}/pid-{rank}", "w").write(str(os.getpid()))
time.sleep(60)
"""
)


@pytest.fixture
def running(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A launcher with two ranks that wait, and the ranks' process numbers."""
    process = subprocess.Popen(python(LAUNCH, LISTEN), env=os.environ | {"FOLDER": str(tmp_path)})
    return process, [int(wait_for_file(tmp_path / f"pid-{rank}")) for rank in (0, 1)]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_reaches_every_rank(
    running: tuple[subprocess.Popen[bytes], list[int]], tmp_path: Path, number: signal.Signals
) -> None:
    process, _ = running
    process.send_signal(number)
    assert process.wait(20) == 1
    assert [(tmp_path / f"end-{rank}").read_text() for rank in (0, 1)] == [number.name] * 2


def test_ranks_end_in_order_when_their_launcher_is_killed(
    running: tuple[subprocess.Popen[bytes], list[int]], tmp_path: Path
) -> None:
    process, numbers = running
    process.kill()
    process.wait()
    for rank, number in enumerate(numbers):
        wait_until_gone(number)
        assert wait_for_file(tmp_path / f"end-{rank}") == "SIGTERM"


def test_ctrl_c_before_a_rank_can_catch_it_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        ranks("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT); time.sleep(9)")


def test_a_single_job_ends_when_its_command_is_killed(tmp_path: Path) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    parent = "import sys; from hpcai500.launch.processes import run_to_end; run_to_end(sys.argv[1:])"
    process = subprocess.Popen(python(parent, *python(child, tmp_path / "pid")))
    number = int(wait_for_file(tmp_path / "pid"))
    process.kill()
    process.wait()
    wait_until_gone(number)


def test_a_single_job_gives_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_to_end(python("import sys; sys.exit(5)")) == 5
    assert run_to_end(python("import os; os.kill(os.getpid(), 9)")) == 1
    assert capfd.readouterr().err == "hpcai500: error: the job was killed by SIGKILL\n"


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_whose_threads_the_kernel_does_not_let_go_are_left(
    size: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a mount stands still. Here another thread goes on when the main one has ended."""
    monkeypatch.setattr("hpcai500.launch.processes._DYING_SECONDS", 0.5)
    code = """
import ctypes, platform, threading, time
threading.Thread(target=lambda: (time.sleep(600))).start()
exit_of_one_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_of_one_thread, 3)
"""
    command = python(code)
    assert (run_to_end(command) if size == 1 else run_local_ranks(command, size, grace_seconds=30)) == 3
    told = capfd.readouterr().err
    left = re.findall(r"process (\d+) is left behind: the kernel does not let go", told)
    assert len(left) == size
    for process in left:
        os.kill(int(process), signal.SIGKILL)
