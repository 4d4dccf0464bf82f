"""How a ClimateReader may be used: arguments, closing, interruption, fork, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from climate_files import LAYOUTS, SHAPE, Year, fields, write_year, year_of

from hpcai500 import _core

IMAGES, CHANNELS, ROWS, COLUMNS = SHAPE


@pytest.fixture
def year(tmp_path: Path) -> Year:
    return year_of(write_year(tmp_path / "year.h5", fields(), **LAYOUTS["shipped"]))


def settings(**changes: Any) -> dict[str, Any]:
    whole = {"channels": range(CHANNELS), "mean": None, "std": None, "dtype": "float32", "left": 0, "width": COLUMNS}
    return {**whole, "threads": 2, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": []}, "at least one channel"),
        ({"channels": [0, 5]}, r"channels must be in \[0, 5\), got 5"),
        ({"channels": [-1]}, "got -1"),
        ({"left": 1}, "left and width must lie in the 36 columns"),
        ({"left": -1}, "left -1"),
        ({"width": 0}, "width 0"),
        ({"left": 2**62, "width": 2**62}, "must lie in the 36 columns"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"dtype": "uint8"}, "dtype must be one of float32, float16, bfloat16; got 'uint8'"),
        ({"mean": np.zeros(5)}, "mean and std must both have a value for each of the 5 channels, got 5 and 0"),
        ({"mean": np.zeros(4), "std": np.ones(4)}, "got 4 and 4"),
        ({"mean": np.zeros(5), "std": np.zeros(5)}, "std above 0"),
        ({"mean": np.zeros(5), "std": np.full(5, -1.0)}, "std above 0"),
        ({"mean": np.full(5, np.nan), "std": np.ones(5)}, "mean must be finite"),
        ({"mean": np.zeros(5), "std": np.full(5, 1e-300)}, "within float32"),
        ({"mean": np.zeros(5), "std": np.full(5, np.inf)}, "within float32"),
    ],
)
def test_settings_that_make_no_sense_are_refused(year: Year, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.ClimateReader([year], **settings(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (7, 5, 24)}, r"shape must be \(images, channels, rows, columns\)"),
        ({"shape": (0, 5, 24, 36)}, "shape must have extents of at least 1"),
        ({"shape": (2**40, 2**40, 24, 36)}, "shape must have extents of at least 1 and at most"),
        ({"chunk": (4, 0, 6, 9)}, "chunk must have extents of at least 1"),
        ({"chunk": (4, 1, 2**20, 2**20)}, "chunk must have extents of at least 1 and at most"),
        ({"chunk": (4, 1, 6, 12)}, "addresses must have an entry for each of 120 chunks, got 160"),
        ({"sizes": np.zeros(3, np.uint64)}, "sizes must have an entry for each of 160 chunks, got 3"),
        ({"masks": np.zeros((2, 80), np.uint32)}, "masks must be a one-dimensional array"),
        ({"filters": ("deflate", "szip")}, "filters must be among deflate, shuffle, fletcher32, lzf; got 'szip'"),
        ({"filters": ("shuffle",) * 33}, "33 filters"),
        ({"dtype": ">f4"}, "values of type >f4 are not read"),
        ({"path": "a\0b"}, "zero byte"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(year: Year, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.ClimateReader([replace(year, **changes)], **settings())


def test_years_of_different_shapes_are_refused(year: Year, tmp_path: Path) -> None:
    other = year_of(write_year(tmp_path / "other.h5", fields((3, 5, 24, 30))))
    with pytest.raises(ValueError, match=r"other\.h5: its images differ in channels, rows or columns from those of"):
        _core.ClimateReader([year, other], **settings())
    with pytest.raises(ValueError, match="at least one file"):
        _core.ClimateReader([], **settings())


def test_requests_outside_the_data_are_refused(year: Year) -> None:
    out = np.full((2, *SHAPE[1:]), 77, np.float32)
    one, zero = np.array([1, 1]), np.array([0, 0])
    with _core.ClimateReader([year], **settings()) as reader:
        for files, images, changes, message in [
            (one, zero, {}, r"files must be in \[0, 1\), got 1"),
            (zero, np.array([0, 7]), {}, r"images must be in \[0, 7\), got 7"),
            (zero, np.array([-1, 0]), {}, "got -1"),
            (zero, one, {"places": np.array([0, 2])}, r"places must be in \[0, 2\), got 2"),
            (zero, one, {"places": one}, "places must differ, got 1 twice"),
            (zero, one, {"places": np.array([0])}, "places must be one-dimensional and have one entry for each of 2"),
            (zero, one, {"rolls": np.zeros((2, 1), int)}, "rolls must be one-dimensional"),
            (zero[:1], one[:1], {}, "out must have room for exactly 1 images, got 2; or say which in places"),
        ]:
            with pytest.raises(ValueError, match=message):
                reader.read(files, images, out, **changes)
        with pytest.raises(TypeError):
            reader.read(zero, np.array([0.0, 1.0]), out)
        for first, count in [(6, 2), (-1, 2), (0, 0), (2**62, 2)]:
            with pytest.raises(ValueError, match=r"a window must lie in the 7 images|out must have room"):
                reader.read_window(0, first, count, out)
        for part in [(3, 3, 3), (2, 4, 3), (2, 1, 3)]:
            with pytest.raises(ValueError, match=r"part must be \(begin, end, total\) with begin < end <= total, got"):
                reader.read_window(0, 0, 2, out, part=part)
        with pytest.raises(ValueError, match=r"positions must be in \[0, 2\), got 2"):
            reader.take(out, np.array([2]), np.empty((1, *SHAPE[1:]), np.float32))
    assert (out == 77).all()


def test_outputs_of_another_kind_are_refused(year: Year) -> None:
    good = np.zeros((1, *SHAPE[1:]), np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    with _core.ClimateReader([year], **settings()) as reader:
        for out, message in [
            (good[0], "must have the shape"),
            (np.empty((1, CHANNELS, ROWS, COLUMNS + 1), np.float32), "must have the shape"),
            (np.empty((1, CHANNELS, ROWS, 2 * COLUMNS), np.float32)[..., ::2], "C-contiguous"),
            (good.astype(np.float16), "must have the type <f4, got float16"),
            (good.astype(">f4"), "must have the type <f4"),
            (frozen, "must be writable"),
        ]:
            with pytest.raises(ValueError, match=message):
                reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_a_closed_reader_is_closed(year: Year) -> None:
    reader = _core.ClimateReader([year], **settings())
    out = np.empty((1, *SHAPE[1:]), np.float32)
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_a_reader_that_is_dropped_ends_its_threads_and_closes_its_files(year: Year) -> None:
    def count(folder: str) -> int:
        return len(list(Path("/proc/self", folder).iterdir()))

    before = count("task"), count("fd")
    reader = _core.ClimateReader([year, year], **settings(threads=3))
    assert (count("task"), count("fd")) == (before[0] + 3, before[1] + 2)
    del reader
    assert (count("task"), count("fd")) == before


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Year:
    """A year whose images take a while: 64 of them share chunks, and reading one inflates all."""
    images = np.random.default_rng(0).integers(0, 50, (64, 1, 96, 256)).astype(np.float32)
    path = tmp_path_factory.mktemp("slow") / "year.h5"
    return year_of(write_year(path, images, chunks=(64, 1, 8, 64), compression="gzip"))


def read_for_minutes(reader: _core.ClimateReader) -> None:
    out = np.empty((1, *reader.image_shape), np.float32)
    for _ in range(100_000):
        reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_ctrl_c_interrupts_a_long_read(slow: Year) -> None:
    # One call with the same file a thousand times: each of its windows is inflated for one image.
    files = 1000
    few = {"channels": [0], "width": 256}
    with _core.ClimateReader([slow] * files, **settings(**few)) as reader:
        out = np.empty((files, *reader.image_shape), np.float32)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            reader.read(np.arange(files), np.zeros(files, int), out)
        assert reader.chunks_inflated < files * 48
        timer.join()
        assert time.monotonic() - started < 5
        reader.read(np.zeros(1, int), np.zeros(1, int), out[:1])


def test_closing_from_another_thread_ends_a_read(slow: Year) -> None:
    reader = _core.ClimateReader([slow], **settings(channels=[0], width=256))
    # Runs only while the read waits without the GIL, and then ends it.
    closer = threading.Timer(0.2, reader.close)
    closer.start()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        read_for_minutes(reader)
    closer.join()


def test_several_python_threads_may_read(year: Year) -> None:
    expected, wrong = fields(), []
    with _core.ClimateReader([year], **settings(threads=3)) as reader:

        def use(image: int) -> None:
            out = np.empty((1, *SHAPE[1:]), np.float32)
            for _ in range(30):
                reader.read(np.zeros(1, int), np.array([image]), out)
                if not np.array_equal(out[0], expected[image]):
                    wrong.append(image)

        users = [threading.Thread(target=use, args=(image,)) for image in range(IMAGES)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    assert wrong == []


_FLAT_MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from climate_files import year_of
from hpcai500 import _core
years = [year_of(Path(path)) for path in sys.argv[2:]]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
settings = dict(channels=range(5), mean=np.zeros(5), std=np.ones(5), dtype="float16", left=0, width=36, threads=3)
with _core.ClimateReader(years, **settings) as reader:
    out = np.empty((7, *reader.image_shape), np.float16)
    for epoch in range(400):
        for file in range(len(years)):
            try:
                reader.read(np.full(7, file), np.arange(7), out, rolls=np.arange(7) * epoch)
                reader.read_window(file, 0, 7, out)
                reader.take(out, np.arange(7), out.copy())
            except _core.ClimateError:
                pass
        if epoch == 100:
            warm = resident()
print(resident() - warm)
"""


def test_memory_is_flat_over_epochs(tmp_path: Path) -> None:
    layouts = ("contiguous", "shipped", "shuffle-lzf-fletcher", "partial")
    paths = [write_year(tmp_path / f"{name}.h5", fields(), **LAYOUTS[name]) for name in layouts]
    year = year_of(paths[3])
    data = bytearray(paths[3].read_bytes())
    data[int(year.addresses[5]) + 9] ^= 0xFF
    paths[3].write_bytes(data)
    command = [sys.executable, "-c", _FLAT_MEMORY, str(Path(__file__).parents[1]), *map(str, paths)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # 300 epochs of 12 calls: one leaked kilobyte a call would be 3.6 MB.
    assert grown < 1_000_000


_FORK = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from climate_files import year_of
from hpcai500 import _core
reader = _core.ClimateReader([year_of(Path(sys.argv[2]))], channels=[0], mean=None, std=None, dtype="float32", left=0,
                             width=36, threads=2)
out, zero = np.empty((1, *reader.image_shape), np.float32), np.zeros(1, int)
child = os.fork()
if child == 0:
    try:
        reader.read(zero, zero, out)
    except RuntimeError as error:
        print(error)
    reader.close()
    del reader
    print("child ends")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
reader.read(zero, zero, out)
print("parent reads")
"""


def test_after_fork_the_child_is_told_and_the_parent_goes_on(year: Year) -> None:
    command = [sys.executable, "-c", _FORK, str(Path(__file__).parents[1]), year.path]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "does not survive fork()" in output
    assert "child ends" in output
    assert "parent reads" in output
