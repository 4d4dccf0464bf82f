"""The ring of batches: order, equality for any number of threads, bounded memory, failures, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from builders.memory import room_for
from jpeg_files import jpeg, photograph

from hpcai500 import _core

COUNT = 23
SPEC = _core.DecodeSpec(size=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jpegs")
    for index in range(COUNT):
        (root / f"{index}.jpg").write_bytes(jpeg(photograph(60 + 3 * index, 50 + index, seed=index)))
    return root


def names() -> list[str]:
    return [f"{index}.jpg" for index in range(COUNT)]


def slots_for(spec: _core.DecodeSpec, slots: int, batch: int) -> list[np.ndarray]:
    return [np.zeros((batch, *spec.shape), np.float32) for _ in range(slots)]


def run_epoch(loader: _core.JpegLoader, slots: list[np.ndarray], epoch: int, batch: int = 5) -> np.ndarray:
    order = np.random.default_rng(epoch).permutation(COUNT)
    batches = [order[start : start + batch] for start in range(0, COUNT, batch)]
    for samples in batches:
        loader.submit(samples, seed=9, epoch=epoch)
    images = []
    for samples in batches:
        finished = loader.next()
        assert finished.count == len(samples)
        assert finished.failures == []
        assert finished.warnings == 0
        images.append(slots[finished.slot][: finished.count].copy())
        loader.release(finished.slot)
    return np.concatenate(images)


def test_batches_come_in_order_with_the_images_of_decode_crop(folder: Path) -> None:
    slots = slots_for(SPEC, 2, 5)
    with _core.JpegLoader(str(folder), names(), SPEC, slots=slots, threads=2) as loader:
        images = run_epoch(loader, slots, epoch=4)
    for image, sample in zip(images, np.random.default_rng(4).permutation(COUNT), strict=True):
        expected = np.empty(SPEC.shape, np.float32)
        data = (folder / f"{sample}.jpg").read_bytes()
        _core.decode_crop(data, SPEC, expected, seed=9, epoch=4, sample=int(sample))
        np.testing.assert_array_equal(image, expected)


def test_any_number_of_threads_and_slots_makes_the_same_bytes(folder: Path) -> None:
    results = []
    for threads, count in [(1, 1), (2, 3), (4, 2), (9, 5)]:
        slots = slots_for(SPEC, count, 5)
        with _core.JpegLoader(str(folder), names(), SPEC, slots=slots, threads=threads) as loader:
            results.append([run_epoch(loader, slots, epoch) for epoch in range(3)])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_a_held_slot_is_not_overwritten(folder: Path) -> None:
    slots = slots_for(SPEC, 2, 5)
    with _core.JpegLoader(str(folder), names(), SPEC, slots=slots, threads=3) as loader:
        loader.submit(np.arange(5), seed=0, epoch=0)
        held = loader.next()
        before = slots[held.slot].copy()
        for epoch in range(3):
            run_epoch(loader, slots, epoch)
        np.testing.assert_array_equal(slots[held.slot], before)


def test_only_the_slots_given_are_used_and_a_wait_for_ever_is_an_error(folder: Path) -> None:
    with _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 3, 5), threads=2) as loader:
        for _ in range(10):
            loader.submit(np.arange(5), seed=0, epoch=0)
        held = {loader.next().slot for _ in range(3)}
        assert held == {0, 1, 2}
        assert loader.pending == 7
        with pytest.raises(RuntimeError, match="all 3 slots are held: call release"):
            loader.next()
        loader.release(1)
        assert loader.next().slot == 1


def test_next_without_a_submitted_batch_is_an_error(folder: Path) -> None:
    with (
        _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 1, 5), threads=1) as loader,
        pytest.raises(RuntimeError, match="call submit"),
    ):
        loader.next()


def test_a_slot_is_released_once(folder: Path) -> None:
    with _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 2, 5), threads=1) as loader:
        loader.submit(np.arange(5), seed=0, epoch=0)
        slot = loader.next().slot
        loader.release(slot)
        with pytest.raises(ValueError, match=f"slot {slot} is not held"):
            loader.release(slot)
        with pytest.raises(ValueError, match=r"slot must be in \[0, 2\), got 2"):
            loader.release(2)


def test_failures_tell_position_sample_kind_and_reason(folder: Path, tmp_path: Path) -> None:
    good = (folder / "0.jpg").read_bytes()
    (tmp_path / "good.jpg").write_bytes(good)
    (tmp_path / "cut.jpg").write_bytes(good[: len(good) // 3])
    (tmp_path / "text.jpg").write_bytes(b"not an image")
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    paths = ["good.jpg", "cut.jpg", "text.jpg", "missing.jpg", "folder.jpg", "pipe.jpg"]
    slots = slots_for(SPEC, 1, 8)
    slots[0][:] = 7
    with _core.JpegLoader(str(tmp_path), paths, SPEC, slots=slots, threads=3) as loader:
        loader.submit(np.array([0, 1, 2, 3, 4, 5, 0]), seed=0, epoch=0)
        batch = loader.next()
    assert [failure[:3] for failure in batch.failures] == [
        (1, 1, "truncated"),
        (2, 2, "unsupported"),
        (3, 3, "unreadable"),
        (4, 4, "unreadable"),
        (5, 5, "unreadable"),
    ]
    reasons = [failure.reason for failure in batch.failures]
    assert "the data ends" in reasons[0]
    assert "Not a JPEG" in reasons[1]
    assert reasons[2:] == ["cannot open the file: No such file or directory"] + ["not a regular file"] * 2
    assert (slots[0][1:6] == 0).all()
    np.testing.assert_array_equal(slots[0][0], slots[0][6])
    assert (slots[0][7] == 7).all()


def test_warnings_of_a_batch_are_counted(tmp_path: Path) -> None:
    data = bytearray(jpeg(photograph(60, 60)))
    data[-200:-198] = b"\xff\xd9"
    (tmp_path / "damaged.jpg").write_bytes(data)
    spec = _core.DecodeSpec(size=24, mode="centre", resize_shorter=24)
    with _core.JpegLoader(str(tmp_path), ["damaged.jpg"], spec, slots=slots_for(spec, 1, 4), threads=2) as loader:
        loader.submit(np.zeros(4, np.int64), seed=0, epoch=0)
        batch = loader.next()
    assert batch.failures == []
    assert batch.warnings == 4 * _core.check_jpeg(bytes(data))[2]
    assert batch.warnings > 0


def test_names_need_not_be_text(tmp_path: Path) -> None:
    name = b"\xff\xfe.jpg"
    (tmp_path / os.fsdecode(name)).write_bytes(jpeg(photograph(60, 60)))
    for path in (name, os.fsdecode(name)):
        with _core.JpegLoader(os.fsencode(tmp_path), [path], SPEC, slots=slots_for(SPEC, 1, 1), threads=1) as loader:
            loader.submit(np.zeros(1, np.int64), seed=0, epoch=0)
            assert loader.next().failures == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "1 to 5 samples, got 0"),
        (range(6), "1 to 5 samples, got 6"),
        ([COUNT], rf"samples must be in \[0, {COUNT}\), got {COUNT}"),
        ([0, -1], "got -1"),
    ],
)
def test_a_batch_that_cannot_be_made_is_refused_when_submitted(folder: Path, samples: list[int], message: str) -> None:
    with _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 1, 5), threads=1) as loader:
        with pytest.raises(ValueError, match=message):
            loader.submit(np.array(samples, np.int64), seed=0, epoch=0)
        assert loader.pending == 0


def test_a_lack_of_memory_is_not_the_files_fault(tmp_path: Path) -> None:
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(400 << 20)
    with (
        _core.JpegLoader(str(tmp_path), ["large.jpg"], SPEC, slots=slots_for(SPEC, 1, 1), threads=1) as loader,
        room_for(256 << 20),
    ):
        loader.submit(np.zeros(1, np.int64), seed=0, epoch=0)
        assert [failure.kind for failure in loader.next().failures] == ["memory"]


def test_wrong_arguments_are_refused(folder: Path) -> None:
    good = slots_for(SPEC, 2, 5)
    for slots, message in [
        ([], "at least one buffer"),
        ([good[0], good[1][:3]], rf"slots\[1\] must have 5 x {SPEC.image_bytes} bytes"),
        ([good[0].astype(np.float64)], r"slots\[0\] must have the type f4, got f8"),
        ([good[0].ravel()[:-1]], r"slots\[0\] must have a multiple of"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.JpegLoader(str(folder), names(), SPEC, slots=slots, threads=1)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        _core.JpegLoader(str(folder), names(), SPEC, slots=good, threads=0)
    with pytest.raises(FileNotFoundError, match="cannot open the folder"):
        _core.JpegLoader(str(folder / "missing"), names(), SPEC, slots=good, threads=1)
    with pytest.raises(ValueError, match="path 1 has a zero byte"):
        _core.JpegLoader(str(folder), ["a", "b\0c"], SPEC, slots=good, threads=1)


def test_closing_a_busy_loader_ends_it(folder: Path) -> None:
    loader = _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 2, 5), threads=4)
    for epoch in range(50):
        loader.submit(np.arange(5), seed=0, epoch=epoch)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.next()
    with pytest.raises(RuntimeError, match="closed"):
        loader.submit(np.arange(5), seed=0, epoch=0)


def test_a_loader_that_is_dropped_ends_its_threads(folder: Path) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    loader = _core.JpegLoader(str(folder), names(), SPEC, slots=slots_for(SPEC, 1, 5), threads=3)
    loader.submit(np.arange(5), seed=0, epoch=0)
    assert threads() == before + 3
    del loader
    assert threads() == before


@pytest.fixture
def endless(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A folder and samples whose batch takes minutes: one large image, many times."""
    (tmp_path / "large.jpg").write_bytes(jpeg(photograph(1500, 1500), progressive=True))
    return tmp_path, np.zeros(5000, np.int64)


def test_ctrl_c_interrupts_a_waiting_consumer(endless: tuple[Path, np.ndarray]) -> None:
    root, samples = endless
    spec = _core.DecodeSpec(size=1)
    slots = slots_for(spec, 1, len(samples))
    with _core.JpegLoader(str(root), ["large.jpg"], spec, slots=slots, threads=1) as loader:
        loader.submit(samples, seed=0, epoch=0)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            loader.next()
        timer.join()
        assert loader.pending == 1


def test_waiting_leaves_other_python_threads_running(endless: tuple[Path, np.ndarray]) -> None:
    root, samples = endless
    spec = _core.DecodeSpec(size=1)
    slots = slots_for(spec, 1, len(samples))
    loader = _core.JpegLoader(str(root), ["large.jpg"], spec, slots=slots, threads=1)
    loader.submit(samples, seed=0, epoch=0)
    # Runs only while next() waits without the GIL, and then ends the wait.
    closer = threading.Timer(0.2, loader.close)
    closer.start()
    with pytest.raises(RuntimeError, match="closed"):
        loader.next()
    closer.join()


_FLAT_MEMORY = """
import sys
import numpy as np
from hpcai500 import _core
root, names = sys.argv[1], sys.argv[2:]
spec = _core.DecodeSpec(size=64)
slots = [np.zeros((5, *spec.shape), np.float32) for _ in range(3)]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
with _core.JpegLoader(root, names, spec, slots=slots, threads=3) as loader:
    for epoch in range(200):
        for _ in range(4):
            loader.submit(np.random.default_rng(epoch).integers(0, len(names), 5), seed=0, epoch=epoch)
        for _ in range(4):
            loader.release(loader.next().slot)
        if epoch == 40:
            warm = resident()
print(resident() - warm)
"""


def test_memory_is_flat_over_epochs(folder: Path) -> None:
    (folder / "progressive.jpg").write_bytes(jpeg(photograph(300, 200), progressive=True))
    (folder / "cut.jpg").write_bytes(jpeg(photograph(300, 200))[:3000])
    command = [sys.executable, "-c", _FLAT_MEMORY, str(folder), *names(), "progressive.jpg", "cut.jpg"]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # 160 epochs of 20 images: one leaked kilobyte an image would be 3 MB.
    assert grown < 1_000_000


_FORK = """
import os, sys
import numpy as np
from hpcai500 import _core
spec = _core.DecodeSpec(size=8)
slots = [np.zeros((5, *spec.shape), np.float32)]
loader = _core.JpegLoader(sys.argv[1], ["0.jpg"], spec, slots=slots, threads=2)
loader.submit(np.zeros(5, np.int64), seed=0, epoch=0)
child = os.fork()
if child == 0:
    try:
        loader.next()
    except RuntimeError as error:
        print(error)
    loader.close()
    del loader
    print("child ends")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent has", loader.next().count)
"""


def test_after_fork_the_child_is_told_and_the_parent_goes_on(folder: Path) -> None:
    command = [sys.executable, "-c", _FORK, str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "does not survive fork()" in output
    assert "child ends" in output
    assert "parent has 5" in output
