"""The climate reader against h5py: `python benchmarks/climate_reader.py [--rounds N] [--folder DIR] [--json FILE]`.

Full-size images (16 x 768 x 1152 float32, 56.6 MB) become normalised float16. In each round all contestants run one
after the other, so that what else the machine does meets all alike; reported are the medians, and the median of the
ratios of each round, by wall time and by processor time. Files are in the page cache unless the table says "cold", as
an epoch's reading leaves them there: in large pieces. (In the small pieces that writing leaves, a read costs twice.)
They take 5 GB, and minutes to make: `--folder` keeps them.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import climate_years as years
import h5py
import numpy as np
import torch
from climate_years import CHANNELS, MEAN, SHIPPED_CHUNK, STD, WINDOW, make_plain, make_shipped
from decode_crop import write_results

from hpcai500 import _core
from hpcai500.data.climate.loader import ClimateBatches, windows_of
from hpcai500.data.climate.years import storage_of
from hpcai500.data.samplers import windowed_order

IMAGES = 24
BATCH = 4
OURS = "ours"
# The least ratio (its time / ours) that we hold ourselves to, per table.
TARGETS = {
    "contiguous": {"h5py + NumPy": 25.0, "h5py read_direct + torch": 5.0},
    "image chunks": {"h5py + NumPy": 25.0, "h5py read_direct + torch": 5.0},
    "shipped gzip": {"h5py, one image at a time": 30.0, "h5py, whole windows + torch": 4.0},
}


@dataclass(frozen=True)
class Contestant:
    """Makes images; `images` is how many in one run, `prepare` runs before it and is not timed."""

    name: str
    images: int
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None


class Rivals:
    """How one reads such a year with h5py."""

    def __init__(self, path: Path) -> None:
        self.dataset = h5py.File(path)["images"]
        self._mean, self._std = (values.astype(np.float32)[:, None, None] for values in (MEAN, STD))
        self._scale = torch.from_numpy(1 / self._std)
        self._bias = torch.from_numpy(-self._mean / self._std)
        self._raw = np.empty((CHANNELS, years.ROWS, years.COLUMNS), np.float32)
        self.out = torch.zeros((BATCH, CHANNELS, years.ROWS, years.COLUMNS), dtype=torch.float16)

    def plain(self, image: int) -> None:
        """What a tutorial says."""
        values = self.dataset[image]
        values -= self._mean
        values /= self._std
        self.out.numpy()[image % BATCH] = values.astype(np.float16)

    def direct(self, image: int) -> None:
        """No fresh memory, torch's threads, and no more passes than it needs."""
        self.dataset.read_direct(self._raw, np.s_[image])
        self.normalise(torch.from_numpy(self._raw), self.out[image % BATCH])

    def normalise(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """In place, by torch's threads."""
        out.copy_(values.mul_(self._scale).add_(self._bias))


def reader_of(path: Path, threads: int, dtype: str = "float16") -> _core.ClimateReader:
    """Ours, for one year."""

    class Year:
        def __init__(self) -> None:
            with h5py.File(path) as file:
                self.__dict__.update(vars(storage_of(file["images"])), path=str(path))

    mean, std = (MEAN, STD) if dtype == "float16" else (None, None)
    return _core.ClimateReader(
        [Year()],
        channels=range(CHANNELS),
        mean=mean,
        std=std,
        dtype=dtype,
        left=0,
        width=years.COLUMNS,
        threads=threads,
    )


def plain_contestants(path: Path, threads: int, prepare: Callable[[], Any] = lambda: None) -> list[Contestant]:
    """Images in order, in batches. All must make the same values."""
    reader, rivals = reader_of(path, threads), Rivals(path)
    ours = torch.zeros_like(rivals.out).numpy()

    def read_ours() -> None:
        for first in range(0, IMAGES, BATCH):
            reader.read(np.zeros(BATCH, np.int64), np.arange(first, first + BATCH), ours)

    def each(read: Callable[[int], None]) -> Callable[[], None]:
        return lambda: [read(image) for image in range(IMAGES)] and None

    check_equal(rivals, ours, read_ours)
    return [
        Contestant(OURS, IMAGES, read_ours, prepare),
        Contestant("h5py + NumPy", IMAGES, each(rivals.plain), prepare),
        Contestant("h5py read_direct + torch", IMAGES, each(rivals.direct), prepare),
        read_alone(path, threads, prepare),
    ]


def check_equal(rivals: Rivals, ours: np.ndarray[Any, Any], read_ours: Callable[[], Any]) -> None:
    """A contestant that makes something else is none."""
    read_ours()
    for read in (rivals.plain, rivals.direct):
        read(IMAGES - 1)
        difference = np.abs(rivals.out.numpy()[-1].astype(np.float32) - ours[-1].astype(np.float32))
        assert difference.max() <= 4e-3, difference.max()


WINDOWS = 6


def shipped_contestants(path: Path, threads: int) -> list[Contestant]:
    """A random epoch. Ours goes over one window under two names: at each epoch's end it gives its memory back."""
    rivals = Rivals(path)
    with h5py.File(path) as file:
        storage = storage_of(file["images"])
    samples = np.array([(year, image) for year in range(WINDOWS) for image in range(WINDOW)], np.int64)
    windows = windows_of([storage] * WINDOWS, samples)
    order = windowed_order(windows, 0, 0, 1)
    settings: dict[str, Any] = {"mean": MEAN, "std": STD, "dtype": "float16", "depth": 2}
    loader = ClimateBatches([(path, storage)] * WINDOWS, samples, batch_size=1, threads=threads, **settings)
    window = np.zeros((WINDOW, CHANNELS, years.ROWS, years.COLUMNS), np.float32)
    inflate = Inflate(path, threads)

    def ours() -> None:
        before = loader.chunks_inflated
        for _ in loader.epoch([order[at : at + 1] for at in range(order.size)], seed=0, epoch=0):
            pass
        assert loader.chunks_inflated - before == WINDOWS * storage.addresses.size

    def whole_windows() -> None:
        rivals.dataset.read_direct(window, np.s_[:WINDOW])
        for image in order[order < WINDOW]:
            rivals.normalise(torch.from_numpy(window[image]), rivals.out[0])

    return [
        Contestant(OURS, WINDOWS * WINDOW, ours),
        Contestant("h5py, one image at a time", 1, lambda: rivals.plain(int(order[0]) % WINDOW)),
        Contestant("h5py, whole windows + torch", WINDOW, whole_windows),
        Contestant(INFLATE, WINDOW, inflate.run),
    ]


INFLATE = "inflate of libdeflate on all threads"


class Inflate:
    """What no reader that inflates by libdeflate can beat: every chunk, inflated and thrown away."""

    def __init__(self, path: Path, threads: int) -> None:
        name = ctypes.util.find_library("deflate")
        assert name is not None, "libdeflate is what the core is linked with"
        self._library = ctypes.CDLL(name)
        self._library.libdeflate_alloc_decompressor.restype = ctypes.c_void_p
        self._threads = threads
        with h5py.File(path) as file:
            chunks = file["images"].id
            found = [chunks.get_chunk_info(number) for number in range(chunks.get_num_chunks())]
        self._places = [(one.byte_offset, one.size) for one in found]
        self._bytes = path.read_bytes()

    def run(self) -> None:
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(self._share, range(self._threads)))

    def _share(self, number: int) -> None:
        decompressor = ctypes.c_void_p(self._library.libdeflate_alloc_decompressor())
        out = ctypes.create_string_buffer(4 * int(np.prod(SHIPPED_CHUNK)))
        start = ctypes.cast(self._bytes, ctypes.c_void_p).value or 0
        for place, size in self._places[number :: self._threads]:
            failed = self._library.libdeflate_zlib_decompress(
                decompressor,
                ctypes.c_void_p(start + place),
                ctypes.c_size_t(size),
                out,
                ctypes.c_size_t(len(out)),
                None,
            )
            assert not failed


READ = "read() alone"
_READ_BYTES = 1 << 19


def read_alone(path: Path, threads: int, prepare: Callable[[], Any] = lambda: None) -> Contestant:
    """What no reader that does not map its file can beat: the same bytes by read(), into a buffer that stays cached."""
    starts = range(0, IMAGES * years.IMAGE_BYTES, _READ_BYTES)

    def share(number: int) -> None:
        descriptor, buffer = os.open(path, os.O_RDONLY), bytearray(_READ_BYTES)
        for start in starts[number::threads]:
            os.preadv(descriptor, [buffer], start)
        os.close(descriptor)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(share, range(threads)))

    return Contestant(READ, IMAGES, run, prepare)


def copy_contestants(path: Path, threads: int) -> list[Contestant]:
    """The reader beside what the same threads copy from memory to memory, past the cache."""
    reader, copier = reader_of(path, threads), reader_of(path, threads, "float32")
    ours = np.zeros((BATCH, CHANNELS, years.ROWS, years.COLUMNS), np.float16)
    source = np.ones((BATCH, CHANNELS, years.ROWS, years.COLUMNS), np.float32)
    target = np.zeros_like(source)
    images = np.arange(BATCH)

    def copy() -> None:
        for _ in range(IMAGES // BATCH):
            copier.take(source, images, target)

    def read() -> None:
        for first in range(0, IMAGES, BATCH):
            reader.read(np.zeros(BATCH, np.int64), images + first, ours)

    return [Contestant(OURS, IMAGES, read), Contestant("non-temporal copy", IMAGES, copy)]


def measure(contestants: list[Contestant], rounds: int) -> dict[str, Any]:
    """Milliseconds an image of every round, by wall and by processor time, and the medians of the ratios to ours."""
    times: dict[str, list[tuple[float, float]]] = {one.name: [] for one in contestants}
    for number in range(rounds + 1):
        for one in contestants:
            one.prepare()
            time.sleep(0.02)  # the threads that torch used wait for more by spinning
            wall, processor = time.perf_counter(), time.process_time()
            one.run()
            spent = time.perf_counter() - wall, time.process_time() - processor
            if number > 0:  # the first warms memory up
                times[one.name].append((spent[0] / one.images * 1e3, spent[1] / one.images * 1e3))
    return {
        name: {
            "median_milliseconds": statistics.median(wall for wall, _ in values),
            "best_milliseconds": min(wall for wall, _ in values),
            "to_ours": _ratio(values, times[OURS], 0),
            "to_ours_by_processor_time": _ratio(values, times[OURS], 1),
            "rounds": values,
        }
        for name, values in times.items()
    }


def _ratio(its: list[tuple[float, float]], ours: list[tuple[float, float]], clock: int) -> float:
    return statistics.median(a[clock] / b[clock] for a, b in zip(its, ours, strict=True))


def print_table(title: str, table: dict[str, Any]) -> None:
    """One table."""
    print(f"\n{title}")
    print(f"  {'':28s} {'ms/image':>9s} {'best':>9s} {'images/s':>9s} {'it/ours':>8s} {'by CPU':>7s}  target")
    for name, row in table.items():
        target = TARGETS.get(title, {}).get(name)
        verdict = "" if target is None else f"{target:.1f} {'reached' if row['to_ours'] >= target else 'MISSED'}"
        median = row["median_milliseconds"]
        print(
            f"  {name:28s} {median:9.2f} {row['best_milliseconds']:9.2f} {1e3 / median:9.1f} {row['to_ours']:8.2f} "
            f"{row['to_ours_by_processor_time']:7.2f}  {verdict}"
        )


def forget(path: Path) -> Callable[[], None]:
    """Throw a file out of the page cache."""

    def advise() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    return advise


def run_all(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All tables by name."""
    threads, rounds = options.threads, options.rounds
    contiguous = make_plain(folder / "contiguous.h5", IMAGES, None)
    image_chunks = make_plain(folder / "image-chunks.h5", IMAGES, (1, CHANNELS, years.ROWS, years.COLUMNS))
    shipped = make_shipped(folder / "shipped.h5", threads)
    for path in (contiguous, image_chunks, shipped):
        forget(path)()
        path.read_bytes()
    saved = 1 - shipped.stat().st_size / (WINDOW * years.IMAGE_BYTES)
    print(f"gzip level 4 in chunks of {SHIPPED_CHUNK} saves {100 * saved:.0f} %")
    tables: dict[str, Any] = {}

    def add(title: str, contestants: list[Contestant], times: int = rounds) -> None:
        tables[title] = measure(contestants, times)
        print_table(title, tables[title])

    add("contiguous", plain_contestants(contiguous, threads))
    add("image chunks", plain_contestants(image_chunks, threads))
    add("shipped gzip", shipped_contestants(shipped, threads), max(rounds // 3, 3))
    add("contiguous, cold", plain_contestants(contiguous, threads, forget(contiguous)), max(rounds // 3, 3))
    add("bandwidth", copy_contestants(contiguous, threads))
    read, copied = (tables["bandwidth"][name]["median_milliseconds"] for name in (OURS, "non-temporal copy"))
    bandwidth = {
        "reader_gigabytes_per_second": 1.5 * years.IMAGE_BYTES / read / 1e6,
        "copy_gigabytes_per_second": 2 * years.IMAGE_BYTES / copied / 1e6,
    }
    print("  bytes read and written: " + ", ".join(f"{name} {value:.1f}" for name, value in bandwidth.items()))
    return {"gzip_saves": saved, **bandwidth, "tables": tables}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s; a third of it for the slow tables")
    parser.add_argument("--threads", type=int, default=2, help="of each contestant; default: 2")
    parser.add_argument("--folder", type=Path, help="where the years are kept; default: a temporary folder")
    parser.add_argument("--scale", type=int, default=1, help="images of a SCALE-th of the rows and columns")
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    years.shrink(options.scale)
    print(f"climate_reader: float32 to normalised float16, {options.threads} threads, {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = run_all(folder, options)
    write_results(options, results)


if __name__ == "__main__":
    main()
