"""many_ranks itself: a test that hangs ends in time, tells what its ranks said, and leaves nothing behind."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

import pytest
from many_ranks import start

needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")


def running(word: str) -> list[str]:
    """Processes whose command line holds `word`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in words:
            found.append(process.name)
    return found


@pytest.mark.parametrize("launcher", ["processes", pytest.param("mpirun", marks=needs_mpi)])
def test_ranks_that_hang_are_killed_with_their_children(launcher: str) -> None:
    word = uuid.uuid4().hex
    child = f"[sys.executable, '-c', 'import time; time.sleep(100)', '{word}']"
    code = f"import subprocess, sys; print('here I am', flush=True); subprocess.run({child}, start_new_session=True)"
    with pytest.raises(AssertionError, match=r"not at an end after 5 s:(.|\n)*here I am"):
        start([sys.executable, "-c", code], 2, launcher, timeout=5)
    assert running(word) == []


def test_exit_codes_and_output_are_those_of_the_ranks() -> None:
    # One write each: unbuffered, `print` makes several, and both ranks share the pipe.
    code = "import os, sys; rank = os.environ['RANK']; sys.stdout.write(f'rank {rank}\\n'); sys.exit(int(rank) * 3)"
    ended = start([sys.executable, "-c", code], 2, "processes")
    assert ended.exit_codes == [0, 3]
    assert sorted(ended.output.split("\n")) == ["", "rank 0", "rank 1"]
