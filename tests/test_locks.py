"""Locks of files: one process at a time, free when that process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import lock, locked, turn_of

HOLDER = """
import sys
from pathlib import Path
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


def test_a_file_system_without_locks_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        # A mock: no file system here is without locks.
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EnvironmentLacksError, match="files cannot be locked there"), locked(path, wait):
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


def test_only_a_file_system_without_locks_is_excused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(fcntl, "flock", flock)

    refuse(errno.EINVAL)
    with turn_of(tmp_path / "lock") as turn:
        assert turn == "unknown"
    refuse(errno.EIO)
    with pytest.raises(OSError, match="no"), turn_of(tmp_path / "lock"):
        pass
