"""Real processes that are ranks of a job, or measure, or are commands: how they end, and that none outlives the others.

What they run is a few lines of Python, so that each test says what its ranks do.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders.commands import HPCAI500

from hpcai500.errors import OutOfTimeError
from hpcai500.launch.launcher import run_local_ranks
from hpcai500.launch.processes import Patience, run_to_end
from hpcai500.stopping import TOGETHER_SECONDS, Stopped
from hpcai500.system import mounts

ROOT = Path(__file__).parents[2]
RANK = """
import json, os, signal, socket, sys, time
rank = int(os.environ["RANK"])

def here(rank):
    with open(f"here-{rank}.part", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename(f"here-{rank}.part", f"here-{rank}")

def wait_for(*ranks):
    while not all(os.path.exists(f"here-{rank}") for rank in ranks):
        time.sleep(0.01)

def wait_for_end(rank):
    wait_for(rank)
    try:
        while "State:\\tZ" not in open(f"/proc/{open(f'here-{rank}').read()}/status").read():
            time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):
        pass
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
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        try:
            # A zombie is gone too: its new parent may be slow to bury it.
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    raise AssertionError(f"process {process} is still there")


def wait_for_file(path: Path) -> str:
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def test_a_rank_with_its_own_reason_is_reported_though_another_that_heard_of_it_ended_first() -> None:
    code = "here(rank)\nif rank == 0:\n    sys.exit(1)\nwait_for_end(0)\ntime.sleep(0.5)\nsys.exit(69)"
    assert ranks(code) == 69


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
wait_for_end(1)
time.sleep(0.5)
open("last-words", "w").write("bye")
sys.exit(1)
"""
    assert ranks(code, grace_seconds=300) == 64
    assert (tmp_path / "last-words").read_text() == "bye"


# The kernel kills without a message where memory runs out.
MEMORY = (
    ", perhaps because the host ran out of memory (`dmesg`): use a smaller hyperparameters.batch_size, or more hosts"
)


@pytest.mark.parametrize(
    ("number", "first", "told"),
    [
        ("SIGKILL", True, f"rank 1 was lost\nhpcai500: error: rank 0 was killed by SIGKILL{MEMORY}\n"),
        ("SIGUSR1", True, "rank 1 was lost\nhpcai500: error: rank 0 was killed by SIGUSR1\n"),
        ("SIGALRM", True, "rank 1 was lost\n"),
        ("SIGALRM", False, "rank 1 was lost\n"),
    ],
)
def test_a_rank_that_is_killed_is_named_unless_its_own_alarm_has_ended_it(
    number: str, first: bool, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # By its alarm the monitor ends a rank that hangs after another one was lost: that one has the reason.
    code = f"""
if rank == 0:
    {"here(0)" if first else "wait_for_end(1)"}
    os.kill(os.getpid(), signal.{number})
{"wait_for_end(0)" if first else "here(1)"}
print("rank 1 was lost", file=sys.stderr)
sys.exit(1)
"""
    assert ranks(code) == 1
    assert capfd.readouterr().err == told


def test_ranks_that_do_not_end_are_asked_then_killed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcai500.launch.launcher._KILL_SECONDS", 2.0)
    code = """
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"asked\\n"))
here(rank)
if rank == 0:
    wait_for(1, 2)
    sys.exit(3)
while True:
    time.sleep(1)
"""
    assert ranks(code, 3, 0.5) == 3
    error = capfd.readouterr().err
    assert "rank 0 has ended, but ranks 1, 2 did not within 0.5 s: stopped (SIGTERM)" in error
    assert error.count("asked") == 2
    assert "ranks 1, 2 killed (SIGKILL)" in error


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)
LAUNCH = """
import sys
from hpcai500.launch.launcher import run_local_ranks
sys.exit(run_local_ranks([sys.executable, "-c", sys.argv[1]], 2, grace_seconds=300))
"""
# Each rank says that it is there, and what made it end.
LISTEN = f"""{RANK}
def end(number, frame):
    with open(f"end-{{rank}}", "w") as stream:
        stream.write(signal.Signals(number).name)
    sys.exit(1)
for number in {[int(number) for number in SIGNALS]}:
    signal.signal(number, end)
here(rank)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_reaches_every_rank_and_the_death_of_their_launcher_ends_them(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(python(LAUNCH, LISTEN))
    numbers = [int(wait_for_file(tmp_path / f"here-{rank}")) for rank in (0, 1)]
    process.send_signal(number)
    assert process.wait(300) == (-9 if number == signal.SIGKILL else 1)
    for rank, one in enumerate(numbers):
        wait_until_gone(one)
        assert (tmp_path / f"end-{rank}").read_text() == ("SIGTERM" if number == signal.SIGKILL else number.name)


def test_ctrl_c_before_a_rank_can_catch_it_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        ranks("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT); time.sleep(600)")


def test_a_single_job_ends_when_its_command_is_killed(tmp_path: Path) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    parent = "import sys; from hpcai500.launch.processes import run_to_end; run_to_end(sys.argv[1:])"
    process = subprocess.Popen(python(parent, *python(child, tmp_path / "pid")))
    number = int(wait_for_file(tmp_path / "pid"))
    process.kill()
    process.wait()
    wait_until_gone(number)


def test_a_job_that_two_ctrl_c_do_not_end_was_killed_by_us(tmp_path: Path) -> None:
    child = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: open(sys.argv[1], "a").write("asked "))
open(sys.argv[2], "w").write(str(os.getpid()))
while True:
    time.sleep(600)
"""
    parent = """
import sys
from hpcai500.launch import processes
processes._KILL_SECONDS = 0.1
try:
    processes.run_to_end(sys.argv[1:])
except KeyboardInterrupt as error:
    print(error)
"""
    asked, here = tmp_path / "asked", tmp_path / "here"
    process = subprocess.Popen(python(parent, *python(child, asked, here)), stdout=subprocess.PIPE, text=True)
    wait_for_file(here)
    process.send_signal(signal.SIGINT)
    wait_for_file(asked)
    time.sleep(2 * TOGETHER_SECONDS)  # or both would be one
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=300)[0]
    assert told.startswith("stopped by Ctrl-C: the run did not end within 0 s of the last Ctrl-C, so it was killed; ")
    assert "memory" not in told


def test_a_single_job_gives_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_to_end(python("import sys; sys.exit(5)")) == 5
    assert run_to_end(python("import os; os.kill(os.getpid(), 9)")) == 1
    assert capfd.readouterr().err == f"hpcai500: error: the job was killed by SIGKILL{MEMORY}\n"


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
    left = re.findall(r"process (\d+) is left behind: the kernel keeps its threads", told)
    assert len(left) == size
    for process in left:
        os.kill(int(process), signal.SIGKILL)


# --- commands end by the first signal, whatever they do, and leave no process, no file and no traceback


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


def test_children_that_do_not_hear_a_signal_are_killed() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run_to_end(python(ASKED), patience=Patience(600.0, grace_seconds=0.2))
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run_local_ranks(python(ASKED), 2, grace_seconds=600.0, patience=Patience(600.0, grace_seconds=0.2))


def test_what_takes_longer_than_it_may_is_ended() -> None:
    with pytest.raises(OutOfTimeError, match="did not end within 1 s"):
        run_to_end(python(DEAF), patience=Patience(1.0, grace_seconds=0.2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_process_ends_by_a_signal_while_it_is_in_a_library_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(python(IN_A_LIBRARY), stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == b"computing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(300) == -number
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
import os, signal, sys
from hpcai500.launch import processes
start = processes.start_child
def started(*words, **options):
    child = start(*words, **options)
    os.kill(os.getpid(), signal.SIGINT)  # its Python has hardly begun
    return child
processes.start_child = started
try:
    processes.run_to_end([sys.executable, "-c", {code!r}], hold=True)
except KeyboardInterrupt as error:
    print(error)
"""
    ended = subprocess.run(python(parent), capture_output=True, text=True, check=False, timeout=300)
    assert (ended.stdout, ended.stderr) == ("stopped by Ctrl-C\n", "")


@pytest.mark.parametrize(
    ("code", "signal_name"),
    [
        # The first module that is loaded after signals are handled waits for one.
        ("""
class Late:
    def find_spec(self, name, path, target=None):
        if name == 'hpcai500.cli.commands': os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Late())
""", "Ctrl-C"),
        # Python 3.11 makes a RuntimeError of what is raised while a class is made.
        ("""
import hpcai500.cli.commands as commands
class Field:
    def __set_name__(self, owner, name): os.kill(os.getpid(), signal.SIGTERM)
commands.run = lambda: type('Made', (), {'field': Field()})
""", "SIGTERM"),
    ],
    ids=["while it loads", "while a class is made"],
)  # fmt: skip
def test_a_command_that_is_stopped_says_so_in_one_line(code: str, signal_name: str, tmp_path: Path) -> None:
    whole = f"import os, signal, sys, hpcai500.cli\n{code}\nsys.exit(hpcai500.cli.main())"
    ended = subprocess.run(python(whole), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"hpcai500: error: stopped by {signal_name}\n"


def test_who_looks_at_paths_ends_when_whoever_asked_is_gone() -> None:
    asked = subprocess.Popen([*python(mounts._PROBE), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asked.stdin
    assert asked.stdout
    asked.stdout.close()
    asked.stdin.write(b"/")
    asked.stdin.close()
    assert asked.wait(300) == 1


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
        if "generates synthetic data for measuring" in line:
            break
    limit = time.monotonic() + 300
    while not any("ic-synthetic" in path.name for path in scratch.rglob("*")):
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "hpcai500: error: stopped by SIGTERM" in said
    assert not list(scratch.iterdir())
    assert not list(work.iterdir())


@pytest.mark.slow
def test_every_command_can_be_stopped_at_random_moments() -> None:
    """As `benchmarks/random_stops.py` does a hundred times on a loaded machine; its first line is the seed."""
    seed = random.SystemRandom().randrange(10**6)
    # A machine that is loaded four times over needs as much longer for its own part of an end.
    words = ["--stops", "5", "--seed", str(seed), "--longest", "10", "--limit", "20"]
    command = [sys.executable, ROOT / "benchmarks" / "random_stops.py", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
