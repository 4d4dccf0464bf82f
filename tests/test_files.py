"""Files that several processes share: locks, turns, empty folders, and folders for what is temporary."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpcai500 import files as module
from hpcai500.errors import EnvironmentLacksError, RecordError, UsageError
from hpcai500.files import (
    HeldFolder,
    can_be_made,
    lock,
    locked,
    make_empty,
    remove_scratch,
    run_folder,
    scratch,
    scratch_folder,
    turn_of,
    with_temporary_folder,
)


class Still(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> Still:
        return cls(2026, 11, 23, 11, 5, 0, tzinfo=tz)


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcai500.files.datetime", Still)
    together = threading.Barrier(8)

    def begin(_: int) -> Path:
        together.wait()
        with run_folder(None, "ic") as folder:
            assert list(folder.iterdir()) == []
            (folder / "recipe.toml").touch()
            return folder

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(begin, range(8)))
    numbered = [Path("runs/ic-20261123-110500"), *(Path(f"runs/ic-20261123-110500-{k}") for k in range(2, 9))]
    assert sorted(made) == sorted(numbered)


def test_a_folder_of_a_run_that_did_not_begin_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError), run_folder(None, "ic"):
        raise ZeroDivisionError
    assert list(Path("runs").iterdir()) == []
    # A folder that the user names is neither made nor removed here.
    with run_folder(tmp_path / "mine", "ic") as folder:
        assert not folder.exists()
        folder.mkdir()
    assert folder.is_dir()


def test_a_folder_of_a_run_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("no folder")
    with (
        pytest.raises(RecordError, match=r"^runs/ic-.*: cannot be written: .*; give another --out$"),
        run_folder(None, "ic"),
    ):
        pass


HOLDER = """
import sys
from pathlib import Path
from typing import Any
from hpcai500.files import locked
with locked(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    input()
"""


class Waiting(Exception):  # noqa: N818 - no error: what a test sees of a lock that is held
    """Raised where another process holds the lock."""


def wait() -> None:
    raise Waiting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a lock, in a folder that is not there yet."""
    return tmp_path / "folder" / "lock"


def holder_of(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_holder_holds_nothing(path: Path) -> None:
    with holder_of(path) as process:
        process.kill()
    with locked(path, wait) as waited:
        assert not waited


def test_who_waits_is_called_until_the_holder_has_ended(path: Path) -> None:
    with holder_of(path) as process:
        calls = list[int]()

        def look() -> None:
            calls.append(1)
            if len(calls) == 2:
                process.communicate("\n")

        with locked(path, look) as waited:
            assert waited
    assert len(calls) >= 2


def test_a_lock_whose_file_the_holder_removes_is_taken_anew(path: Path) -> None:
    with holder_of(path) as process:

        def look() -> None:
            path.unlink()
            process.communicate("\n")

        with locked(path, look), pytest.raises(Waiting), locked(path, wait):
            raise AssertionError("it was held")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO])
def test_only_a_file_system_without_locks_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        # A mock: no file system here is without locks.
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"), turn_of(tmp_path / "lock"):
            raise AssertionError("it was locked")
        return
    with turn_of(tmp_path / "lock") as turn:
        assert turn == "unknown"
    with (
        pytest.raises(EnvironmentLacksError, match="this file system has no file locks"),
        locked(tmp_path / "lock", wait),
    ):
        raise AssertionError("it was locked")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError), locked(Path("/proc/nowhere/lock"), wait):
        raise AssertionError("it was locked")


def test_who_waits_gets_the_lock_when_it_is_given_up_and_says_so_once(tmp_path: Path) -> None:
    said, path = [], tmp_path / "lock"
    with ExitStack() as holder:
        assert holder.enter_context(turn_of(path)) == "alone"
        with turn_of(path) as other:
            assert other == "taken"

        def end() -> None:
            said.append("waiting")
            holder.close()

        # The holder removes its file: whoever waited for that one makes another.
        with turn_of(path, end) as waiting, turn_of(path) as third:
            assert (waiting, third) == ("alone", "taken")
    assert said == ["waiting"]
    assert list(tmp_path.iterdir()) == []


def test_a_shared_lock_keeps_out_only_who_wants_it_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as one, (tmp_path / "file").open("rb") as two:
        assert (lock(one.fileno(), shared=True), lock(two.fileno(), shared=True)) == ("alone", "alone")
        assert lock(one.fileno()) == "taken"


def test_a_file_that_its_owner_removed_while_we_opened_it_is_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / "lock").unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with turn_of(tmp_path / "lock") as turn:
        assert turn == "taken"


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """None of the usual folders can be written; a file stands where each would be, which stops root too."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(module, "_USUAL", (str(blocked), str(blocked / "below")))
    return tmp_path


def test_tmpdir_comes_first(tmp_path: Path) -> None:
    with scratch_folder({"TMPDIR": str(tmp_path)}, Path("/")) as folder:
        assert Path(folder).parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_little_lies_in_memory_unless_the_user_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(module, "_MEMORY", str(memory))
    monkeypatch.setattr(module, "_USUAL", (str(disk), str(memory)))

    def parent(environment: dict[str, str], most_bytes: int | None) -> Path:
        with scratch_folder(environment, tmp_path, most_bytes) as folder:
            return Path(folder).parent

    assert parent({}, 2**20) == memory
    assert parent({}, 2**30) == disk
    assert parent({}, None) == disk
    assert parent({"TMPDIR": str(tmp_path)}, 2**20) == tmp_path
    monkeypatch.setattr(module, "_SHARE_OF_FREE", 0)
    assert parent({}, 2**20) == disk
    memory.rmdir()
    assert parent({}, 2**20) == disk


def test_a_folder_of_the_user_comes_last_even_if_it_is_not_there_yet(only: Path) -> None:
    with scratch_folder({}, only / "not" / "yet") as folder:
        assert Path(folder).parent == only


def test_where_none_can_be_written_all_are_named_with_the_fix(only: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"file \(Not a directory\).*--bind DIR --env TMPDIR=DIR"):
        scratch_folder({"TMPDIR": str(only / "file")}, only / "file")


def test_caches_lie_in_the_folder_and_the_environment_is_as_before_afterwards(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path), "MPLCONFIGDIR": "/mine"}
    before = dict(environment)
    with scratch(environment, tmp_path) as folder:
        assert Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent == folder
        assert environment["MPLCONFIGDIR"] == "/mine"
        assert environment["TMPDIR"] == str(tmp_path)
        environment["SET_WITHIN"] = "stays"
    assert environment == before | {"SET_WITHIN": "stays"}
    assert not folder.exists()


_VERIFY = "import sys; from hpcai500.cli import main; sys.exit(main())"
# Opening takes long enough to be stopped in it, whatever the machine: it waits until it is.
_STOPPED = (
    "import sys, time; from hpcai500.results.verification import verify; from hpcai500.cli import main\n"
    "def opened(*_): print('open', flush=True); time.sleep(600)\n"
    "verify.open_submission = opened\n"
    "sys.exit(main())"
)


def test_a_refused_file_leaves_nothing(tmp_path: Path) -> None:
    place, file = tmp_path / "scratch", tmp_path / "file.zip"
    place.mkdir()
    file.write_bytes(b"no submission")
    command = [sys.executable, "-c", _VERIFY, "verify", str(file)]
    ended = subprocess.run(command, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGKILL, -9)]
)
def test_verify_leaves_nothing_when_it_is_stopped_unless_it_is_killed(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    place, file = tmp_path / "scratch", tmp_path / "file.zip"
    place.mkdir()
    file.write_bytes(b"no submission")
    command = [sys.executable, "-c", _STOPPED, "verify", str(file)]
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"open\n"
        assert len(list(place.iterdir())) == 1
        process.send_signal(number)
        assert process.wait() == code
    left = list(place.iterdir())
    assert bool(left) == (number == signal.SIGKILL)
    for folder in left:
        os.utime(folder, (0, 0))
    with scratch_folder(environment, tmp_path) as new:
        assert list(place.iterdir()) == [Path(new)], "what a killed process has left goes with the next"


def test_a_folder_in_use_is_never_taken_for_an_abandoned_one(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    with scratch_folder(environment, tmp_path) as used:
        os.utime(used, (0, 0))
        with scratch_folder(environment, tmp_path):
            assert Path(used).is_dir()


def test_a_folder_that_is_cleared_away_before_its_lock_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, seen = tempfile.mkdtemp, list[str]()

    def made(*words: Any, **options: Any) -> str:
        folder = make(*words, **options)
        seen.append(folder)
        if len(seen) == 1:
            # Another process looks for abandoned folders, and this one is not locked yet.
            HeldFolder(tmp_path).cleanup()
            assert not Path(folder).exists()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    with HeldFolder(tmp_path) as folder:
        assert folder == seen[-1] != seen[0]
        assert list(tmp_path.iterdir()) == [Path(folder)]
        HeldFolder(tmp_path).cleanup()
        assert list(tmp_path.iterdir()) == [Path(folder)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blind", ["kernel", "locks"])
def test_nothing_is_cleared_away_where_locks_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: str
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    if blind == "kernel":
        monkeypatch.setattr("hpcai500.files.boot", lambda: "")
    else:
        monkeypatch.setattr("fcntl.flock", no_locks)
    with HeldFolder(tmp_path) as folder:
        (left := Path(folder + "left")).mkdir()
        with HeldFolder(tmp_path):
            assert left.is_dir()
    assert list(tmp_path.iterdir()) == [left]


def test_who_ends_without_unwinding_can_remove_its_folders_first(tmp_path: Path) -> None:
    with scratch_folder({"TMPDIR": str(tmp_path)}, tmp_path):
        remove_scratch()
        assert not list(tmp_path.iterdir())


def test_sigterm_is_as_before_after_a_context(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with scratch({"TMPDIR": str(tmp_path)}, tmp_path):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_context_in_a_thread_leaves_the_signal_to_the_main_thread(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    entered, leave = threading.Event(), threading.Event()

    def in_thread() -> None:
        with scratch({"TMPDIR": str(tmp_path)}, tmp_path):
            entered.set()
            assert leave.wait(60)

    try:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(in_thread)
            assert entered.wait(60)
            with scratch({"TMPDIR": str(tmp_path)}, tmp_path):
                leave.set()
                work.result()
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_tmpdir_that_cannot_be_written_is_replaced(only: Path) -> None:
    environment = {"TMPDIR": str(only / "file" / "none")}
    with scratch(environment, only) as folder:
        assert environment["TMPDIR"] == str(folder)
    assert environment["TMPDIR"] == str(only / "file" / "none")


def test_a_launcher_gets_a_tmpdir_only_where_its_own_cannot_be_written(only: Path) -> None:
    assert with_temporary_folder({"TMPDIR": str(only)}, Path("/")) == {"TMPDIR": str(only)}
    assert with_temporary_folder({"A": "1"}, only) == {"A": "1", "TMPDIR": str(only)}
    assert with_temporary_folder({}, only / "file") == {}


def test_what_is_missing_of_a_folder_is_made_in_the_one_that_is_there(only: Path) -> None:
    assert can_be_made(only / "a" / "b")
    assert not can_be_made(only / "file" / "a")


def test_a_folder_that_holds_anything_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    make_empty(tmp_path / "a" / "b", UsageError, "give another")
    make_empty(tmp_path / "a" / "b", UsageError, "give another")
    with pytest.raises(UsageError, match=r"a: not empty; give another$"):
        make_empty(tmp_path / "a", UsageError, "give another")


# ----------------------------------------------------------------------------------------------------
# File systems without fsync for folders.


_FOLDER_SYNC = """
#include <errno.h>
#include <sys/stat.h>
int fsync(int descriptor) {
    struct stat found;
    if (fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode)) { errno = %s; return -1; }
    return 0;
}
"""


@pytest.mark.parametrize(("error", "code"), [("EINVAL", 0), ("ENOTSUP", 0), ("EIO", 1)])
def test_a_folder_without_fsync_is_no_error(error: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "sync.c").write_text(_FOLDER_SYNC % error)
    library = tmp_path / "sync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "sync.c"], check=True)
    line = "from pathlib import Path; from hpcai500.files import write_atomically; write_atomically(Path('new'), b'x')"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    ended = subprocess.run(
        [sys.executable, "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert (tmp_path / "new").read_bytes() == b"x"
