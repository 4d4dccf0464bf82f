"""Locks between processes, which end with the process that holds them."""

from __future__ import annotations

import errno
import fcntl
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpcai500.files import lock, turn_of


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
