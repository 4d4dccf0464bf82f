"""Work shared by processes: in order, and never left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcai500.data.derived import map_in_order
from hpcai500.errors import RunError

_SLEEPING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from hpcai500.data.derived import map_in_order
import test_worker_pool
if __name__ == "__main__":
    list(map_in_order(test_worker_pool.tell_and_sleep, [sys.argv[2] + "/a", sys.argv[2] + "/b"], 2, what="sleeps"))
"""


def square(number: int) -> int:
    return number * number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def tell_and_sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(300)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    assert list(map_in_order(square, range(20), workers, what="squares")) == [n * n for n in range(20)]


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match="a process that squares was killed, perhaps for memory: run the command again"):
        list(map_in_order(die, range(4), 2, what="squares"))


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SLEEPING)
    parent = subprocess.Popen([sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)])
    files = [tmp_path / "a", tmp_path / "b"]
    _wait(lambda: all(file.exists() and file.read_text() for file in files))
    workers = [int(file.read_text()) for file in files]
    parent.kill()
    parent.wait()
    _wait(lambda: not any(_lives(worker) for worker in workers))


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def _wait(condition: object, seconds: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_semaphores_one_process_does_the_work_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(self: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", no_memory)
    assert list(map_in_order(abs, [-1, -2], workers=2, what="counts")) == [1, 2]
    assert "one process does the work of 2" in capsys.readouterr().err
