"""Reading ahead: files come into memory without anyone having read them."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hpcai500.data.read_ahead import ReadAhead

PAGES = 8


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Forty files that are not in memory, except on a file system that is memory itself."""
    made = [tmp_path / f"{number}.jpg" for number in range(40)]
    for path in made:
        path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    os.sync()
    for path in made:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return made


def in_memory(path: Path) -> bool:
    """Whether all pages of a file are. (A read that must not wait would bring them in.)"""
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 0) as mapped:
        os.close(descriptor)
        start = ctypes.c_char.from_buffer(mapped)
        resident = (ctypes.c_ubyte * PAGES)()
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.byref(start), ctypes.c_size_t(PAGES * mmap.PAGESIZE), resident
        )
        del start
        assert not failed
    return all(page & 1 for page in resident)


def wait_until_in_memory(files: list[Path], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not all(map(in_memory, files)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_batch_that_is_not_in_memory_is_read(files: list[Path], tmp_path: Path) -> None:
    ahead = ReadAhead(tmp_path, [path.name for path in files], depth=2)
    ahead.submit(np.arange(30))
    wait_until_in_memory(files[:30])
    ahead.close()


def test_a_file_that_is_gone_stops_nothing(files: list[Path], tmp_path: Path) -> None:
    files[0].unlink()
    files[7].unlink()
    ahead = ReadAhead(tmp_path, [path.name for path in files], depth=2)
    ahead.submit(np.arange(20))
    wait_until_in_memory([path for path in files[:20] if path.exists()])
    ahead.close()


def test_a_closed_one_ends_its_thread(files: list[Path], tmp_path: Path) -> None:
    before = threading.active_count()
    ahead = ReadAhead(tmp_path, [path.name for path in files], depth=2)
    assert threading.active_count() == before + 1
    ahead.close()
    ahead.submit(np.arange(40))
    ahead.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
