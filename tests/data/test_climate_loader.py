"""Batches of climate images: what is in them, when chunks are inflated, how damage is told."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from builders.data import LAYOUTS_OF_IMAGES, SHAPE, fields, write_images
from builders.philox import philox
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.climate.loader import ClimateBatches, epoch_rolls, windows_of
from hpcai500.data.climate.years import Storage, storage_of
from hpcai500.data.samplers import Sharding, epoch_order, windowed_order
from hpcai500.errors import DataError

IMAGES, CHANNELS, ROWS, COLUMNS = SHAPE
CHUNKS_OF_A_SHIPPED_YEAR = 2 * CHANNELS * 4 * 4
SAMPLES = np.array([(file, image) for file in (0, 1) for image in range(IMAGES)], np.int64)
TRUTH = np.concatenate([fields(seed=0), fields(seed=1)])
NAMES = ("contiguous", "shipped", "image-chunks", "partial-raw")


def located(path: Path) -> tuple[Path, Storage]:
    with h5py.File(path) as file:
        return path, storage_of(file["images"])


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Path, Storage]]]:
    """Two years in each layout."""
    root = tmp_path_factory.mktemp("years")
    return {
        name: [
            located(write_images(root / f"{name}-{year}.h5", fields(seed=year), **LAYOUTS_OF_IMAGES[name]))
            for year in (0, 1)
        ]
        for name in NAMES
    }


@pytest.fixture
def make() -> Iterator[Any]:
    made = []

    def build(files: Sequence[tuple[Path, Storage]], **settings: Any) -> ClimateBatches:
        made.append(ClimateBatches(files, SAMPLES, **{"batch_size": 3, "threads": 2, **settings}))
        return made[-1]

    yield build
    for batches in made:
        batches.close()


def cut(order: np.ndarray[Any, Any], size: int = 3) -> list[np.ndarray[Any, Any]]:
    return [order[at : at + size] for at in range(0, len(order), size)]


def collect(loader: ClimateBatches, batches: Sequence[np.ndarray[Any, Any]], epoch: int = 0) -> torch.Tensor:
    return torch.cat([batch.images.clone() for batch in loader.epoch(batches, seed=1, epoch=epoch)])


def windows_of_layout(files: Sequence[tuple[Path, Storage]]) -> np.ndarray[Any, Any]:
    return windows_of([storage for _, storage in files], SAMPLES)


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_hold_the_images_that_were_asked_for(years: Any, make: Any, layout: str, depth: int) -> None:
    loader = make(years[layout], depth=depth)
    for epoch in range(3):
        for order in (epoch_order(14, 1, epoch), windowed_order(windows_of_layout(years[layout]), 1, epoch, 1)):
            np.testing.assert_array_equal(collect(loader, cut(order), epoch).numpy(), TRUTH[order])


def test_years_of_different_layouts_are_one_set(years: Any, make: Any) -> None:
    loader = make([years["shipped"][0], years["contiguous"][1]])
    order = epoch_order(14, 5, 0)
    np.testing.assert_array_equal(collect(loader, cut(order)).numpy(), TRUTH[order])


def test_windows_are_numbered_through_the_files(years: Any) -> None:
    shipped, raw = years["shipped"][0][1], years["partial-raw"][0][1]
    files = np.array([(file, image) for file in (0, 1, 2) for image in (0, 3, 4, 6)])
    assert windows_of([shipped, raw, shipped], files).tolist() == [0, 0, 1, 1, 2, 5, 6, 8, 9, 9, 10, 10]


def test_a_windowed_epoch_inflates_each_chunk_once(years: Any, make: Any) -> None:
    loader = make(years["shipped"])
    order = windowed_order(windows_of_layout(years["shipped"]), 7, 0, 1)
    collect(loader, cut(order))
    assert loader.chunks_inflated == 2 * CHUNKS_OF_A_SHIPPED_YEAR


def test_the_next_window_is_inflated_while_the_consumer_works(years: Any, make: Any) -> None:
    loader = make(years["shipped"], depth=2, batch_size=1)
    batches = loader.epoch(cut(np.arange(14), 1), seed=0, epoch=0)
    next(batches)
    # Two slots: the second holds an image of the first window (of four), and the third image waits for a slot.
    wait_for(lambda: loader.chunks_inflated == CHUNKS_OF_A_SHIPPED_YEAR)


def wait_for(condition: Callable[[], bool]) -> None:
    """The limit is for what never comes."""
    limit = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_settings_reach_the_images(years: Any, make: Any) -> None:
    mean, std = np.array([2.0, 0.1]), np.array([3.0, 0.2])
    for layout in ("contiguous", "shipped"):
        loader = make(years[layout], channels=[4, 1], mean=mean, std=std, dtype="bfloat16", width=20)
        [batch] = loader.epoch([np.array([9, 2])], seed=0, epoch=0)
        assert batch.images.dtype == torch.bfloat16
        assert batch.samples.tolist() == [9, 2]
        exact = (TRUTH[[9, 2]][:, [4, 1], :, :20] - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_allclose(batch.images.float().numpy(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("layout", ["contiguous", "shipped"])
def test_rolls_depend_on_seed_epoch_and_sample_alone(years: Any, make: Any, layout: str) -> None:
    loader = make(years[layout], roll=True)
    seen = []
    for epoch in (0, 1, 0):
        order = epoch_order(14, 3, epoch)
        for batch in loader.epoch(cut(order), seed=3, epoch=epoch):
            for image, sample, roll in zip(batch.images, batch.samples, batch.rolls, strict=True):
                np.testing.assert_array_equal(image.numpy(), np.roll(TRUTH[sample], roll, axis=-1))
                seen.append((epoch, int(sample), int(roll)))
    assert set(seen[:14]) == set(seen[28:])
    assert {roll for _, _, roll in seen[:14]} != {roll for _, _, roll in seen[14:28]}


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 2000))
def test_rolls_are_words_of_the_generators_stream_scaled_to_the_globe(seed: int, epoch: int, columns: int) -> None:
    words = philox((seed, epoch), 9, highest=1)
    assert epoch_rolls(9, columns, seed, epoch).tolist() == [(word >> 32) * columns >> 32 for word in words]


def test_rolls_cover_the_globe_and_have_nothing_to_do_with_the_order() -> None:
    rolls = epoch_rolls(20_000, 10, seed=0, epoch=0)
    # 2000 expected in each; six standard deviations are 255.
    assert abs(np.bincount(rolls, minlength=10) - 2000).max() < 255
    order, rolls = epoch_order(20_000, 0, 0), epoch_rolls(20_000, 1152, 0, 0)
    assert abs(np.corrcoef(rolls, np.argsort(order))[0, 1]) < 0.05


def damaged(source: tuple[Path, Storage], target: Path, chunk: int) -> tuple[Path, Storage]:
    """A copy whose chunk number `chunk` has other bytes in its middle."""
    _, storage = source
    data = bytearray(source[0].read_bytes())
    middle = int(storage.addresses[chunk] + storage.sizes[chunk] // 2)
    data[middle : middle + 8] = b"\xff" * 8
    target.write_bytes(data)
    return target, storage


def test_damage_is_told_in_the_place_of_its_batch(years: Any, make: Any, tmp_path: Path) -> None:
    # Chunk (1, 2, 3, 0) of the second year: images 4-6.
    bad = damaged(years["shipped"][1], tmp_path / "climo_1980.h5", ((1 * CHANNELS + 2) * 4 + 3) * 4)
    loader = make([years["shipped"][0], bad], depth=4)
    order = np.array([0, 1, 2, 3, 7, 8, 9, 10, 12, 11, 4, 5])
    batches = loader.epoch(cut(order, 2), seed=0, epoch=0)
    good = [next(batches).samples.tolist() for _ in range(4)]
    assert good == [[0, 1], [2, 3], [7, 8], [9, 10]]
    with pytest.raises(DataError) as caught:
        next(batches)
    message = str(caught.value)
    assert message.startswith(f"{bad[0]}: dataset images, image 4, channel 2, chunk (1, 2, 3, 0): corrupt: inflate")
    assert message.endswith(f"run `hpcai500 data check ewa {tmp_path}` to find all such files")
    assert "\n" not in message
    np.testing.assert_array_equal(collect(loader, [np.array([0, 7])]).numpy(), TRUTH[[0, 7]])


def test_a_year_that_is_cut_or_missing_is_named(years: Any, make: Any, tmp_path: Path) -> None:
    path, storage = years["contiguous"][0]
    short = tmp_path / "climo_1979.h5"
    short.write_bytes(path.read_bytes()[:-5000])
    loader = make([(short, storage), years["contiguous"][1]])
    with pytest.raises(
        DataError, match=r"climo_1979\.h5: dataset images, image 6, channel 3: truncated: the file ends"
    ):
        collect(loader, [np.array([2, 9]), np.array([6])])
    with pytest.raises(DataError, match=r"climo_1981\.h5: dataset images: unreadable: cannot open the file"):
        make([(tmp_path / "climo_1981.h5", storage)])


def test_an_epoch_may_be_left_and_begun_again(years: Any, make: Any) -> None:
    for layout in ("contiguous", "shipped"):
        loader = make(years[layout], depth=3)
        for _ in range(5):
            next(loader.epoch(cut(np.arange(14)), seed=0, epoch=0))
        np.testing.assert_array_equal(collect(loader, cut(np.arange(14))).numpy(), TRUTH)


def test_windows_are_in_memory_only_while_an_epoch_runs(years: Any, make: Any) -> None:
    loader = make(years["shipped"], depth=2, batch_size=1)
    batches = loader.epoch(cut(np.arange(14), 1), seed=0, epoch=0)
    next(batches)
    assert any(buffer is not None for buffer in loader._filler._windows._memory)
    batches.close()
    assert loader._filler._windows._memory == [None, None]
    collect(loader, cut(np.arange(14), 1))
    assert loader._filler._windows._memory == [None, None]


def test_the_filling_thread_may_end_itself(years: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    # As garbage collection on that thread does, when it finds a loader that nobody holds.
    filler = make(years["shipped"])._filler

    class Collected(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            filler.end()
            return super().__iter__()

    filler.begin(Collected([[]]))
    for thread in threading.enumerate():
        if thread.name == "climate-filler":
            thread.join(timeout=600)
    assert (raised, list(filler._finished)) == ([], [])
    filler.end()


def test_a_closed_loader_yields_no_more(years: Any, make: Any) -> None:
    loader = make(years["shipped"])
    batches = loader.epoch(cut(np.arange(14)), seed=0, epoch=0)
    next(batches)
    loader.close()
    loader.close()
    assert list(batches) == []
    with pytest.raises(ValueError, match="closed"):
        loader.epoch(cut(np.arange(14)), seed=0, epoch=0)


def test_waiting_is_measured(years: Any, make: Any) -> None:
    loader = make(years["shipped"])
    waits = [batch.wait_seconds for batch in loader.epoch(cut(np.arange(14)), seed=0, epoch=0)]
    assert all(wait >= 0 for wait in waits)
    # Nothing was read before the first batch was asked for.
    assert waits[0] > 0


def test_a_batch_of_a_wrong_size_is_refused_at_once(years: Any, make: Any) -> None:
    loader = make(years["contiguous"])
    for ids in (np.arange(4), np.arange(0)):
        with pytest.raises(ValueError, match="1 to 3 samples"):
            loader.epoch([np.arange(2), ids], seed=0, epoch=0)


def test_ranks_together_see_each_sample_once_and_share_few_windows(years: Any) -> None:
    windows = windows_of_layout(years["shipped"])
    order = windowed_order(windows, 0, 0, streams=2)
    ranks = [np.concatenate(list(Sharding(14, 1, 2, rank, "drop").batches(order))) for rank in (0, 1)]
    assert sorted(np.concatenate(ranks).tolist()) == list(range(14))
    assert len(set(windows[ranks[0]]) & set(windows[ranks[1]])) <= 1


def test_a_dropped_loader_ends_its_threads(years: Any) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    loader = ClimateBatches(years["shipped"], SAMPLES, batch_size=3, threads=3)
    batches = loader.epoch(cut(np.arange(14)), seed=0, epoch=0)
    next(batches)
    del loader, batches
    gc.collect()
    # A thread that was joined may be seen for a moment more.
    wait_for(lambda: threads() == before)


_LEFT_OPEN = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/data"]
from pathlib import Path
import numpy as np
import test_climate_loader as t
loader = t.ClimateBatches([t.located(Path(sys.argv[2]))] * 2, t.SAMPLES, batch_size=3, threads=2)
batches = loader.epoch(t.cut(np.arange(14)) * 1000, seed=0, epoch=0)
next(batches)
print("leaving")
"""


def test_an_interpreter_that_ends_in_mid_epoch_ends(years: Any) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, str(Path(__file__).parents[1]), str(years["shipped"][0][0])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stdout) == (0, "leaving\n"), result.stderr
