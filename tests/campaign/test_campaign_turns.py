"""One process at a time runs a trial."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from hpcai500.campaign.journal import turn_at
from hpcai500.system.process import is_alive


def test_only_one_is_at_a_trial_and_others_are_free(tmp_path: Path) -> None:
    with turn_at(tmp_path, 1) as first:
        with turn_at(tmp_path, 1) as second, turn_at(tmp_path, 2) as third:
            assert (first, second, third) == ("alone", "taken", "alone")
        with turn_at(tmp_path, 1) as again:
            assert again == "taken"
    with turn_at(tmp_path, 1) as after:
        assert after == "alone"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with turn_at(tmp_path, 1):
        holder = (tmp_path / ".trial-01.lock").read_text(encoding="utf-8")
        assert is_alive(holder)
        assert not is_alive(holder.rpartition(" ")[0] + " 1")
        assert not is_alive("")


def test_whoever_is_killed_leaves_the_trial_to_others(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hpcai500.campaign.journal import turn_at\n"
        f"with turn_at(Path({str(tmp_path)!r}), 1) as turn: print(turn, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "alone\n"
        with turn_at(tmp_path, 1) as turn:
            assert turn == "taken"
        other.kill()
    with turn_at(tmp_path, 1) as turn:
        assert turn == "alone"


def test_a_file_that_its_owner_removed_while_we_opened_it_is_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / ".trial-01.lock").unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with turn_at(tmp_path, 1) as turn:
        assert turn == "taken"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The mock stands for such a mount, which this machine does not have."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with turn_at(tmp_path, 1) as turn:
        assert turn == "unknown"


def test_a_folder_that_cannot_be_written_tells_nothing(tmp_path: Path) -> None:
    with turn_at(tmp_path / "gone", 1) as turn:
        assert turn == "unknown"
