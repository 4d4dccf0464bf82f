"""Temporary files go where they can be written, and libraries' caches with them, for as long as a command lasts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcai500 import files as module
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.files import can_be_made, make_empty, remove_scratch, scratch, scratch_folder, with_temporary_folder


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


def test_a_run_leaves_nothing_in_the_folder_for_temporary_files_and_in_no_home(images: Path, tmp_path: Path) -> None:
    from tiny_runs import train_arguments

    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "HOME": str(home)}
    arguments = train_arguments(images, tmp_path / "record", "problem.epochs=1")
    command = [sys.executable, "-m", "hpcai500.train", *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert not list(temporary.iterdir())
    assert not list(home.iterdir())


def test_a_folder_that_holds_anything_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    make_empty(tmp_path / "a" / "b", UsageError, "give another")
    make_empty(tmp_path / "a" / "b", UsageError, "give another")
    with pytest.raises(UsageError, match=r"a: not empty; give another$"):
        make_empty(tmp_path / "a", UsageError, "give another")
