"""Folders of half-written files: gone after the call, and after the next one when it was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcai500.data.derived import part_folder


def test_the_folder_goes_with_the_block(tmp_path: Path) -> None:
    with part_folder(tmp_path) as folder:
        (folder / "half").write_text("written")
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_folder_goes_when_the_block_is_interrupted(tmp_path: Path) -> None:
    def write_half() -> None:
        with part_folder(tmp_path) as folder:
            (folder / "half").write_text("written")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_of_this_host_go_and_no_others(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname()
    names = {
        "dead": f".hpcai500-part-{host}-{dead.pid}-a1b2",
        "alive": f".hpcai500-part-{host}-{os.getpid()}-a1b2",
        "init": f".hpcai500-part-{host}-1-a1b2",
        "elsewhere": f".hpcai500-part-another-{dead.pid}-a1b2",
        "of another kind": ".hpcai500-part-a1b2",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("written")
    with part_folder(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == set(names.values()) - {names["dead"]}
