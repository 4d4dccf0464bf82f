"""Batches are on the device one ahead: what is in them, what waits for what, errors, early stops and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from builders.data import SHAPE, fields, write_images, write_tree

from hpcai500 import _core
from hpcai500.data.climate.loader import ClimateBatch, ClimateBatches
from hpcai500.data.climate.years import Storage, storage_of
from hpcai500.data.device_batches import (
    DeviceBatches,
    DeviceForm,
    HeldSlots,
    HostCopyStream,
    MemoryBatches,
    convert_images,
    make_copy_stream,
)
from hpcai500.data.imagenet.index import ImageIndex, load_index
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.errors import DataError

IMAGES, CHANNELS, _, _ = SHAPE
SAMPLES = np.array([(0, image) for image in range(IMAGES)], np.int64)
MEAN, STD = np.linspace(-3, 4, CHANNELS), np.linspace(0.5, 9, CHANNELS)
CPU = torch.device("cpu")
RAW = DeviceForm(torch.float32, torch.contiguous_format)


def converted(dtype: torch.dtype, memory_format: torch.memory_format) -> DeviceForm:
    return DeviceForm(dtype, memory_format, converted=True, mean=tuple(MEAN), std=tuple(STD))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Storage]]:
    """One year."""
    path = write_images(tmp_path_factory.mktemp("years") / "year.h5", fields(seed=4))
    with h5py.File(path) as file:
        return [(path, storage_of(file["images"]))]


@pytest.fixture
def make(files: Any) -> Iterator[Any]:
    """Makes batches on the CPU as the device, of a real loader, with the loader's settings and the wrapper's."""
    made = []

    def build(form: DeviceForm, stream: Any = None, **settings: Any) -> DeviceBatches[ClimateBatch]:
        loader = ClimateBatches(files, SAMPLES, **{"batch_size": 2, "threads": 2, **settings})
        made.append(DeviceBatches(loader, device=CPU, batch_size=2, form=form, stream=stream or HostCopyStream()))
        return made[-1]

    yield build
    for batches in made:
        batches.close()


def cut(*batches: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    return [np.array(batch, np.int64) for batch in batches]


EPOCH = cut([3, 1], [0, 4], [2, 2], [5])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_raw_batches_become_what_the_host_would_have_made(
    make: Any, dtype: torch.dtype, name: str, memory_format: torch.memory_format, depth: int
) -> None:
    here = make(DeviceForm(dtype, torch.contiguous_format), mean=MEAN, std=STD, dtype=name, roll=True, depth=depth)
    there = make(converted(dtype, memory_format), roll=True, depth=depth)
    for epoch in (0, 1):
        seen = 0
        pairs = zip(here.epoch(EPOCH, seed=1, epoch=epoch), there.epoch(EPOCH, seed=1, epoch=epoch), strict=True)
        for (ours, theirs), ids in zip(pairs, EPOCH, strict=True):
            assert theirs.images.is_contiguous(memory_format=memory_format)
            assert ours.images.equal(theirs.images)
            assert ours.samples.tolist() == theirs.samples.tolist() == ids.tolist()
            assert ours.rolls.tolist() == theirs.rolls.tolist()
            seen += len(ids)
        assert seen == 7


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batches_that_the_host_converted_are_only_laid_out(make: Any, memory_format: torch.memory_format) -> None:
    batches = make(DeviceForm(torch.float32, memory_format))
    for batch in batches.epoch(EPOCH, seed=0, epoch=0):
        assert batch.images.is_contiguous(memory_format=memory_format)
        assert np.array_equal(batch.images.numpy(), fields(seed=4)[batch.samples])


def test_a_batch_stays_as_it_is_while_the_next_is_made(make: Any) -> None:
    epoch = make(RAW, depth=1).epoch(EPOCH, seed=0, epoch=0)
    for batch in epoch:
        held = batch.images.clone()
        assert batch.images.equal(held)
        assert np.array_equal(held.numpy(), fields(seed=4)[batch.samples])


class Recorder:
    """A stream that only writes down what it is told: streams cannot exist here. Events pass when they are asked to."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.inside = False
        self.marks = 0

    def mark(self) -> Any:
        self.marks += 1
        return self.Event(self, f"{'copies' if self.inside else 'steps'} {self.marks}")

    @contextmanager
    def beside(self, *marks: Any) -> Iterator[None]:
        assert not self.inside
        self.log += [f"copies wait for {mark.name}" for mark in marks]
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def follow(self, mark: Any) -> None:
        assert not self.inside
        self.log.append(f"steps wait for {mark.name}")

    class Event:
        def __init__(self, recorder: Recorder, name: str) -> None:
            self.recorder, self.name, self.waited = recorder, name, False

        def query(self) -> bool:
            return self.waited

        def synchronize(self) -> None:
            self.recorder.log.append(f"host waits for {self.name}")
            self.waited = True


class Numbers:
    """A loader of three batches of one number, whose slots are held as the real loaders hold theirs."""

    def __init__(self, stream: Recorder, fails_at: int | None = None) -> None:
        self.stream, self.fails_at, self.closed = stream, fails_at, 0

    def epoch(self, batches: Sequence[Any], *, seed: int, epoch: int) -> Iterator[ClimateBatch]:
        for number, ids in enumerate(batches):
            if number == self.fails_at:
                raise DataError(f"batch {number} is damaged")
            self.stream.log.append(f"batch {number} is read")
            try:
                yield ClimateBatch(torch.full((1, 1, 2, 2), float(number)), ids, ids, 10.0**-number)
            finally:
                self.stream.log.append(f"slot of batch {number} is free after {self.stream.mark().name}")

    def close(self) -> None:
        self.closed += 1


def recorded(fails_at: int | None = None) -> tuple[DeviceBatches[ClimateBatch], Recorder, Numbers]:
    stream = Recorder()
    source = Numbers(stream, fails_at)
    return DeviceBatches(source, device=CPU, batch_size=1, form=RAW, stream=stream), stream, source


def test_copies_run_one_batch_ahead_and_only_events_order_them() -> None:
    batches, stream, _ = recorded()
    for batch in batches.epoch(cut([0], [1], [2]), seed=0, epoch=0):
        stream.log.append(f"step {int(batch.images.mean())}")
    assert stream.log == [
        "batch 0 is read",
        "slot of batch 0 is free after copies 2",
        "batch 1 is read",
        "steps wait for copies 1",
        "step 0",
        "slot of batch 1 is free after copies 5",  # and after no step
        "batch 2 is read",
        "copies wait for steps 4",  # all that step 0 gave: its place is written again
        "steps wait for copies 3",
        "step 1",
        "slot of batch 2 is free after copies 8",
        "steps wait for copies 6",
        "step 2",
        "copies wait for steps 9",  # whoever gets the memory next
        "copies wait for steps 7",
    ]


def test_an_early_stop_gives_the_slot_back_behind_its_copy() -> None:
    batches, stream, source = recorded()
    epoch = batches.epoch(cut([0], [1], [2]), seed=0, epoch=0)
    assert int(next(epoch).images.mean()) == 0
    batches.epoch(cut([0]), seed=0, epoch=1)
    assert stream.log[-2:] == ["slot of batch 1 is free after copies 5", "copies wait for steps 4"]
    batches.close()
    batches.close()
    assert source.closed == 2
    assert list(epoch) == []


def test_what_the_loader_was_waited_for_is_told_with_the_batch_that_is_handed_out_then() -> None:
    batches, _, _ = recorded()
    waits = [batch.wait_seconds for batch in batches.epoch(cut([0], [1], [2]), seed=0, epoch=0)]
    assert waits == [1.1, 0.01, 0.0]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_error_comes_in_the_place_of_its_batch(fails_at: int) -> None:
    batches, _, _ = recorded(fails_at)
    epoch = batches.epoch(cut([0], [1], [2]), seed=0, epoch=0)
    assert [int(next(epoch).images.mean()) for _ in range(fails_at)] == list(range(fails_at))
    with pytest.raises(DataError, match=f"batch {fails_at} is damaged"):
        next(epoch)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_real_loaders_slot_is_refilled_only_behind_its_copy(make: Any, depth: int) -> None:
    stream = Recorder()
    batches = make(RAW, stream, mark=stream.mark, depth=depth)
    for batch in batches.epoch(EPOCH, seed=0, epoch=0):
        assert np.array_equal(batch.images.numpy(), fields(seed=4)[batch.samples])
    waits = [line for line in stream.log if line.startswith("host waits")]
    assert len(waits) == len(EPOCH)
    assert all("copies" in line for line in waits), "a slot is read by copies, never by steps"


def test_damage_and_closing_are_the_loaders(make: Any) -> None:
    batches = make(RAW)
    with pytest.raises(ValueError, match="1 to 2 samples"):
        batches.epoch(cut([0, 1, 2]), seed=0, epoch=0)
    epoch = batches.epoch(EPOCH, seed=0, epoch=0)
    next(epoch)
    batches.close()
    assert list(epoch) == []
    with pytest.raises(ValueError, match="closed"):
        batches.epoch(EPOCH, seed=0, epoch=0)


def test_an_epoch_goes_on_where_it_is_asked_to(make: Any) -> None:
    whole = [batch.images.clone() for batch in make(RAW, roll=True).epoch(EPOCH, seed=3, epoch=2)]
    rest = [batch.images.clone() for batch in make(RAW, roll=True).epoch(EPOCH[2:], seed=3, epoch=2)]
    assert all(one.equal(other) for one, other in zip(whole[2:], rest, strict=True))


# --- images of JPEG files


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageIndex:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return load_index(write_tree(tmp_path / "set", train=6))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_levels_of_jpegs_are_normalised_within_half_a_level(index: ImageIndex, layout: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "threads": 2, "size": 24, "mode": "random", "layout": layout}
    here = JpegBatches(index.train, index.root, **settings)
    levels = JpegBatches(index.train, index.root, dtype="uint8", **settings)
    mean, std = levels.normalisation
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    form = DeviceForm(torch.float32, memory_format, converted=True, mean=mean, std=std)
    there = DeviceBatches(levels, device=CPU, batch_size=4, form=form, stream=HostCopyStream())
    asked = cut([3, 1, 5, 7], [0, 2])
    for ours, theirs in zip(here.epoch(asked, seed=5, epoch=2), there.epoch(asked, seed=5, epoch=2), strict=True):
        half_a_level = 0.5 / torch.tensor(std).view(3, 1, 1)
        assert theirs.images.is_contiguous(memory_format=memory_format)
        assert ((ours.images - theirs.images).abs() <= half_a_level + 1e-5).all()
        assert not ours.images.equal(theirs.images)
        assert ours.labels.tolist() == theirs.labels.tolist()
    here.close()
    there.close()


# --- batches that are held in memory


def test_batches_that_are_held_are_those_that_were_converted(make: Any) -> None:
    batches = make(converted(torch.float16, torch.channels_last))
    held = MemoryBatches(batches.epoch(EPOCH[:2], seed=0, epoch=0))
    expected = convert_images(torch.from_numpy(fields(seed=4)), MEAN.tolist(), STD.tolist(), torch.float16)
    for batch, ids in zip(held.epoch(EPOCH[:3], seed=0, epoch=0), [*EPOCH[:2], EPOCH[0]], strict=True):
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.images.contiguous().equal(expected[ids])


def test_held_batches_repeat_with_all_that_belongs_to_their_images(files: Any, index: ImageIndex) -> None:
    settings: dict[str, Any] = {"batch_size": 2, "threads": 2}
    pictures = JpegBatches(index.train, index.root, size=16, mode="random", layout="nhwc", **settings)
    weather = ClimateBatches(files, SAMPLES, roll=True, **settings)
    wanted = cut([1, 6], [0, 2])
    asked, stored = [[5, 6], [3, 4], [4]], [[1, 6], [0, 2], [1]]
    for source, name, samples in ((pictures, "labels", asked), (weather, "rolls", stored)):
        first = [(one.images.clone(), getattr(one, name)) for one in source.epoch(wanted, seed=0, epoch=1)]
        held = MemoryBatches(source.epoch(wanted, seed=0, epoch=1))
        # The slots hold other images by then.
        list(source.epoch(cut(*[[3, 5]] * 8), seed=0, epoch=2))
        batches = list(held.epoch(cut(*asked), seed=3, epoch=3))
        assert [batch.samples.tolist() for batch in batches] == samples
        for batch, (images, beside) in zip(batches, [*first, first[0]], strict=True):
            assert torch.equal(batch.images, images[: len(batch.samples)])
            assert batch.images.stride() == images.stride()
            assert getattr(batch, name).tolist() == beside.tolist()[: len(batch.samples)]
        with pytest.raises(ValueError, match="3 was requested, but only 2 images"):
            list(held.epoch(cut([1, 2, 3]), seed=0, epoch=0))
        source.close()
    with pytest.raises(ValueError, match="at least one"):
        MemoryBatches([])


# --- a slot is not refilled while a device may still read it


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.passed = log, name, False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.log.append(f"waited for {self.name}")
        self.passed = True


@pytest.mark.parametrize(
    ("most_held", "passed", "expected"),
    [
        (2, [], ["waited for 0", "released 3"]),
        (2, [0], ["released 3"]),
        (1, [], ["waited for 0", "released 3", "waited for 1", "released 4"]),
        (0, [], ["waited for 0", "released 3", "waited for 1", "released 4", "waited for 2", "released 5"]),
    ],
    ids=["the oldest of too many", "one whose event has passed", "one may be held", "a ring without spare slots"],
)
def test_a_slot_waits_for_its_event_and_not_longer(most_held: int, passed: list[int], expected: list[str]) -> None:
    log: list[str] = []
    slots = HeldSlots(lambda slot: log.append(f"released {slot}"), most_held)
    events = [FakeEvent(log, str(number)) for number in range(3)]
    for number, event in enumerate(events):
        slots.add(number + 3, event)
        if number == 1:
            for one in passed:
                events[one].passed = True
    assert log == expected
    slots.flush()
    assert log[-2:] == ["waited for 2", "released 5"]
    length = len(log)
    slots.flush()
    assert len(log) == length


# --- on a CUDA device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("on_device", [True, False])
def test_batches_stay_whole_while_long_steps_compute(files: Any, depth: int, on_device: bool) -> None:
    device = torch.device("cuda", 0)
    moments_of: dict[str, Any] = {} if on_device else {"mean": MEAN, "std": STD}
    loader = ClimateBatches(files, SAMPLES, batch_size=2, threads=2, depth=depth, pin_memory=True, **moments_of)
    form = DeviceForm(torch.float32, torch.channels_last, converted=on_device, mean=tuple(MEAN), std=tuple(STD))
    batches = DeviceBatches(loader, device=device, batch_size=2, form=form, stream=make_copy_stream(device))
    order = [np.array([at % 7, (3 * at) % 7]) for at in range(40)]
    kept = []
    for batch in batches.epoch(order, seed=0, epoch=0):
        torch.cuda._sleep(3_000_000)
        kept.append(batch.images.clone())
    batches.close()
    expected = convert_images(torch.from_numpy(fields(seed=4)), MEAN.tolist(), STD.tolist())
    for images, ids in zip(kept, order, strict=True):
        assert images.cpu().contiguous().equal(expected[ids])
