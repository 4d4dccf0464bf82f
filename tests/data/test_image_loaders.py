"""Batches of the native loader, and of DALI with our decoder on a CPU: the images asked for, the files' defects."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.data import encoded_picture, picture, settle, write_tree
from builders.memory import room_for
from builders.needs import needs_dali
from builders.runs import train_arguments

from hpcai500 import train
from hpcai500._core import DecodeSpec, crop_pixels, decode_crop
from hpcai500.data.imagenet import dali as dali_module
from hpcai500.data.imagenet.dali import DaliBatches, check_versions, first_line, load_operators
from hpcai500.data.imagenet.index import ImageIndex, load_index
from hpcai500.data.imagenet.loader import Batches, JpegBatches
from hpcai500.errors import DataError, EnvironmentLacksError, ExitCode, RunError
from hpcai500.system.software import DaliPlugin, find_plugin

SIZE = 16
CPU = torch.device("cpu")
RANDOM: dict[str, Any] = {"size": SIZE, "mode": "random", "area": (0.35, 1.0)}
CENTRE: dict[str, Any] = {"size": SIZE, "mode": "centre", "resize_shorter": 18}
LOADERS = [pytest.param("native"), pytest.param("dali", marks=needs_dali)]


@pytest.fixture
def index(tmp_path: Path) -> ImageIndex:
    return load_index(write_tree(tmp_path / "set", train=10))


@pytest.fixture
def build(index: ImageIndex) -> Iterator[Any]:
    """Makes the loader of a name: of the training images, or of those of another index."""
    made = []

    def build(loader: str, of: ImageIndex = index, **settings: Any) -> Batches:
        common = {"batch_size": 4, "threads": 2} | RANDOM | settings
        if loader == "dali":
            common["device"] = CPU
        made.append({"native": JpegBatches, "dali": DaliBatches}[loader](of.train, of.root, **common))
        return made[-1]

    yield build
    for batches in made:
        batches.close()


@pytest.fixture(params=LOADERS)
def make(request: pytest.FixtureRequest, build: Any) -> Any:
    """Makes loaders, each test for the native one and for DALI's."""
    return partial(build, request.param)


def ids(*batches: list[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.array(batch, dtype=np.int64) for batch in batches]


def compared(native: Batches, other: Batches, batches: list[Any], *, seed: int = 5, epoch: int = 2) -> int:
    """Asserts that an epoch of both is the same, and returns how many images that was."""
    seen = 0
    epochs = (source.epoch(batches, seed=seed, epoch=epoch) for source in (native, other))
    for ours, theirs in zip(*epochs, strict=True):
        assert theirs.images.dtype == ours.images.dtype
        assert theirs.images.stride() == ours.images.stride()
        assert torch.equal(theirs.images, ours.images)
        assert torch.equal(theirs.labels, ours.labels)
        assert theirs.samples.tolist() == ours.samples.tolist()
        assert theirs.warnings == ours.warnings
        assert theirs.wait_seconds > 0
        seen += len(ours.images)
    return seen


LONG = ids(*[[n, n + 1, n + 2] for n in range(9)])


def direct(index: ImageIndex, sample: int, *, seed: int, epoch: int, **settings: Any) -> np.ndarray[Any, Any]:
    spec = DecodeSpec(**(RANDOM | settings))
    out = np.zeros((3, SIZE, SIZE), dtype=np.float32)
    decode_crop((index.root / index.train.paths[sample]).read_bytes(), spec, out, seed=seed, epoch=epoch, sample=sample)
    return out


def test_batches_equal_direct_decoding(index: ImageIndex, make: Any) -> None:
    asked = ids([3, 1, 19, 7], [0, 0, 5, 12], [11])
    seen = 0
    for batch, wanted in zip(make().epoch(asked, seed=5, epoch=2), asked, strict=True):
        assert batch.samples.tolist() == wanted.tolist()
        assert batch.labels.dtype == torch.int64
        assert batch.labels.tolist() == [int(sample >= 10) for sample in wanted]
        assert batch.images.shape == (len(wanted), 3, SIZE, SIZE)
        assert batch.warnings == 0
        for image, sample in zip(batch.images, wanted, strict=True):
            assert np.array_equal(image.numpy(), direct(index, int(sample), seed=5, epoch=2))
            seen += 1
    assert seen == 9


def test_crops_depend_on_seed_epoch_and_sample_alone(make: Any) -> None:
    def first(threads: int, depth: int, seed: int, epoch: int, place: int) -> torch.Tensor:
        asked = ids(*([[1, 2, 3, 4]] * place), [8])
        batches = make(threads=threads, depth=depth)
        return [batch.images.clone() for batch in batches.epoch(asked, seed=seed, epoch=epoch)][-1]

    reference = first(1, 1, 3, 4, 0)
    assert torch.equal(first(3, 4, 3, 4, 5), reference)
    assert not torch.equal(first(1, 1, 4, 4, 0), reference)
    assert not torch.equal(first(1, 1, 3, 5, 0), reference)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_type_and_layout_shows_the_same_image(make: Any, dtype: str, layout: str) -> None:
    asked = ids([2, 13, 5])
    [reference] = [batch.images.clone() for batch in make(**CENTRE).epoch(asked, seed=0, epoch=0)]
    source = make(**CENTRE, dtype=dtype, layout=layout)
    [batch] = source.epoch(asked, seed=0, epoch=0)
    assert batch.images.shape == (3, 3, SIZE, SIZE)
    assert batch.images.dtype == getattr(torch, dtype)
    memory_format = torch.contiguous_format if layout == "nchw" else torch.channels_last
    assert batch.images.is_contiguous(memory_format=memory_format)
    images = batch.images.float()
    if dtype == "uint8":
        mean = torch.tensor([123.675, 116.28, 103.53])[:, None, None]
        deviation = torch.tensor([58.395, 57.12, 57.375])[:, None, None]
        assert (images - (reference * deviation + mean)).abs().max() <= 0.51
    else:
        # Half a unit in the last place of values up to 2.7: 8 bits of bfloat16, 11 of float16.
        assert (images - reference).abs().max() <= {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]


def test_a_batch_is_a_view_of_a_slot_that_is_reused_and_aligned_for_vector_stores(build: Any) -> None:
    source = build("native", depth=3)
    pointers = [batch.images.data_ptr() for batch in source.epoch(ids(*[[1]] * 12), seed=0, epoch=0)]
    # Which of the three free slots a batch takes depends on how fast the threads are; a fourth there must never be.
    assert len(pointers) == 12
    assert len(set(pointers)) <= 3
    assert not any(pointer % 64 for pointer in pointers)


def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(index: ImageIndex, make: Any) -> None:
    epoch = make(depth=2).epoch(ids(*[[n, n + 1] for n in range(12)]), seed=0, epoch=0)
    for n, batch in enumerate(epoch):
        # The other slot's batch gets every chance to be made meanwhile.
        os.sched_yield()
        gc.collect()
        assert np.array_equal(batch.images[1].numpy(), direct(index, n + 1, seed=0, epoch=0))


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_a_consumer_may_stop_early_fail_and_start_again(make: Any, depth: int) -> None:
    source = make(depth=depth)

    def fail() -> None:
        for _ in source.epoch(LONG, seed=1, epoch=1):
            raise KeyError("the consumer's own")

    for _ in range(3):
        epoch = source.epoch(LONG, seed=1, epoch=1)
        next(epoch)
        next(epoch)
        epoch.close()
        with pytest.raises(KeyError):
            fail()
        complete = [batch.samples.tolist() for batch in source.epoch(LONG, seed=1, epoch=1)]
        assert complete == [batch.tolist() for batch in LONG]


def test_an_epoch_that_is_left_open_ends_when_another_begins_or_the_source_is_closed(
    index: ImageIndex, make: Any
) -> None:
    source = make()
    old = source.epoch(LONG, seed=0, epoch=0)
    next(old)
    new = source.epoch(ids([3], [4]), seed=0, epoch=1)
    assert list(old) == []
    for batch, sample in zip(new, (3, 4), strict=True):
        assert np.array_equal(batch.images[0].numpy(), direct(index, sample, seed=0, epoch=1))
    assert list(source.epoch([], seed=0, epoch=0)) == []
    last = source.epoch(LONG, seed=0, epoch=0)
    next(last)
    source.close()
    source.close()
    assert list(last) == []
    with pytest.raises(ValueError, match="closed"):
        source.epoch(ids([1]), seed=0, epoch=0)


PNG = encoded_picture(picture(4, 40, 30), "PNG")


@pytest.mark.parametrize("settings", [RANDOM, CENTRE, {**RANDOM, "dtype": "bfloat16"}, {**CENTRE, "layout": "nhwc"}])
def test_a_png_is_cropped_as_its_pixels_would_be(index: ImageIndex, make: Any, settings: dict[str, Any]) -> None:
    (index.root / index.train.paths[6]).write_bytes(PNG)
    [batch] = make(**settings).epoch(ids([5, 6, 7, 6]), seed=9, epoch=3)
    spec = DecodeSpec(**settings)
    out = np.zeros(spec.shape, dtype={"float32": np.float32, "bfloat16": np.uint16}[spec.dtype])
    crop_pixels(np.array(picture(4, 40, 30)), spec, out, seed=9, epoch=3, sample=6)
    expected = torch.from_numpy(out)
    if spec.dtype == "bfloat16":
        expected = expected.view(torch.bfloat16)
    if spec.layout == "nhwc":
        expected = expected.permute(2, 0, 1)
    assert torch.equal(batch.images[1], expected)
    assert torch.equal(batch.images[3], expected)
    [beside] = make(**settings).epoch(ids([7]), seed=9, epoch=3)
    assert torch.equal(batch.images[2], beside.images[0])


DEFECTS = {
    "truncated": (encoded_picture(picture(1, 64, 64), quality=95)[:900], "the data ends"),
    "empty": (b"", "empty"),
    "text": (b"<html>", "not a JPEG or another image format"),
    "truncated png": (PNG[: len(PNG) // 2], "truncated"),
    "gone": (None, "No such file"),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("content", "reason"), DEFECTS.values(), ids=DEFECTS)
def test_a_file_that_cannot_be_decoded_ends_the_epoch_with_its_path_in_the_words_of_the_native_loader(
    index: ImageIndex, build: Any, loader: str, content: bytes | None, reason: str
) -> None:
    bad = index.root / index.train.paths[9]
    good = bad.read_bytes()
    bad.unlink()
    if content is not None:
        bad.write_bytes(content)
    asked, said, sources = ids([1, 2], [8, 9], [3, 4], [5, 6]), [], (build("native"), build(loader))
    for source in sources:
        epoch = source.epoch(asked, seed=0, epoch=0)
        next(epoch)
        with pytest.raises(DataError) as caught:
            next(epoch)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"cannot decode {bad}: ")
    assert reason in said[0]
    assert said[0].endswith(f"run `hpcai500 data check ic {index.root}` to find all such files")
    assert "\n" not in said[0]
    bad.write_bytes(good)
    assert compared(*sources, asked) == 8


def test_a_lack_of_memory_is_not_the_files_fault(index: ImageIndex, build: Any) -> None:
    with (index.root / index.train.paths[9]).open("r+b") as file:
        file.truncate(400 << 20)
    with room_for(256 << 20), pytest.raises(MemoryError):
        next(build("native").epoch(ids([8, 9]), seed=0, epoch=0))


@pytest.mark.parametrize("name", [b"caf\xe9.jpg", b"a b%20#?.jpg"])
def test_names_of_any_letters_are_read(index: ImageIndex, make: Any, name: bytes) -> None:
    (index.root / "train/cat" / os.fsdecode(name)).write_bytes(encoded_picture(picture(50)))
    settle(index.root)
    fresh = load_index(index.root)
    sample = fresh.train.paths.index(f"train/cat/{os.fsdecode(name)}")
    [batch] = make(fresh).epoch(ids([sample]), seed=0, epoch=0)
    assert np.array_equal(batch.images[0].numpy(), direct(fresh, sample, seed=0, epoch=0))


def test_warnings_are_counted(index: ImageIndex, make: Any) -> None:
    whole = encoded_picture(picture(1, 200, 200), quality=95)
    middle = len(whole) // 2
    (index.root / index.train.paths[2]).write_bytes(whole[:middle] + b"\xff\xd3" + whole[middle:])
    counts = [batch.warnings for batch in make(**CENTRE).epoch(ids([1, 2], [3]), seed=0, epoch=0)]
    assert counts == [1, 0]


WRONG = [{"batch_size": 0}, {"threads": 0}, {"depth": 0}, {"mode": "middle"}, {"size": 0}, {"area": (0.5, 0.1)}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_settings_that_make_no_sense_are_refused(make: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(**wrong)


def test_memory_stays_flat_over_epochs(index: ImageIndex) -> None:
    # In a fresh process, so that no other test's memory is counted. Of 40 epochs that leak one slot each, 60 MiB would
    # stay; what threads keep for themselves differs by some MiB on a busy machine.
    script = f"""
import numpy as np, resource
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import JpegBatches
index = load_index({str(index.root)!r})
source = JpegBatches(index.train, index.root, batch_size=32, threads=2, size=128, mode="random")
def rss_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def run(epochs, first):
    for epoch in range(first, first + epochs):
        asked = [np.arange(start, start + 32) % len(index.train) for start in range(0, 320, 32)]
        for number, batch in enumerate(source.epoch(asked, seed=0, epoch=epoch)):
            if epoch % 5 == 4 and number == 3:
                break
run(10, 0)
before = rss_bytes()
run(40, 10)
print(rss_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 16 << 20


# --- DALI gives the same bits as the native loader, in the same order


@pytest.fixture
def same(build: Any) -> Any:
    """Asserts that an epoch of both is the same, and returns how many images that was."""

    def compare(batches: list[Any], *, seed: int = 5, epoch: int = 2, **settings: Any) -> int:
        return compared(build("native", **settings), build("dali", **settings), batches, seed=seed, epoch=epoch)

    return compare


@needs_dali
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_images_are_those_of_the_native_loader(
    index: ImageIndex, same: Any, crop: dict[str, Any], dtype: str, layout: str
) -> None:
    assert same(ids([3, 1, 19, 7], [0, 0, 5, 12], [11]), **crop, dtype=dtype, layout=layout) == 9
    # Odd files are mended alike.
    for sample, content in (
        (6, PNG),
        (8, encoded_picture(picture(8).convert("CMYK"))),
        (9, encoded_picture(picture(9).convert("L"), progressive=True)),
    ):
        (index.root / index.train.paths[sample]).write_bytes(content)
    assert same(ids([5, 6, 7, 6], [8, 9], [6]), **crop, dtype=dtype, layout=layout) == 7


@needs_dali
@pytest.mark.parametrize(
    ("settings", "seed", "epoch"),
    [
        ({}, 0, 0),
        ({}, 2**64 - 1, 2**32 - 1),
        ({}, 2**63, 7),
        # Numbers without an end.
        ({"area": (0.05, 1 / 3), "ratio": (0.7499999999, 4 / 3), "flip_probability": 0.1 + 0.2}, 5, 2),
    ],
)
def test_every_seed_epoch_and_setting_draws_the_same_crops(
    same: Any, settings: dict[str, Any], seed: int, epoch: int
) -> None:
    assert same(LONG, seed=seed, epoch=epoch, **settings) == 27


@needs_dali
def test_large_images_are_decoded_at_half_their_size_where_the_recipe_says_so_and_many_odd_files_mended(
    index: ImageIndex, same: Any
) -> None:
    (index.root / index.train.paths[2]).write_bytes(encoded_picture(picture(3, 300, 400), quality=90))
    assert same(ids([1, 2, 3]), dct_scaling=True) == 3
    for path in index.train.paths:
        (index.root / path).write_bytes(PNG)
    assert same(ids(list(range(20))), batch_size=20) == 20


@needs_dali
def test_an_epoch_goes_on_in_its_middle_and_a_batch_stays_as_it_is_while_others_are_made(build: Any) -> None:
    source = build("dali", depth=2)
    whole = [batch.images for batch in source.epoch(LONG, seed=1, epoch=1)]
    rest = [batch.images.clone() for batch in source.epoch(LONG[5:], seed=1, epoch=1)]
    assert len(rest) == 4
    assert all(map(torch.equal, whole[5:], rest))
    for ours, theirs in zip(build("native").epoch(LONG, seed=1, epoch=1), whole, strict=True):
        assert torch.equal(ours.images, theirs)


@needs_dali
def test_a_bad_file_of_a_batch_that_nobody_asked_for_fails_nothing(index: ImageIndex, build: Any) -> None:
    (index.root / index.train.paths[9]).unlink()
    source = build("dali", depth=4)
    epoch = source.epoch(ids([1, 2], [3, 4], [5, 9]), seed=0, epoch=0)
    next(epoch)
    epoch.close()
    assert compared(build("native"), source, ids([1, 2], [3, 4])) == 4


@needs_dali
def test_what_dali_alone_fails_of_is_told(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build("dali")

    def fail() -> None:
        raise RuntimeError("\n  the reason\nStacktrace (17 entries)")

    monkeypatch.setattr(source._pipeline, "outputs", fail)
    with pytest.raises(RunError, match=r"could not make a batch: the reason; try .*native"):
        next(source.epoch(LONG, seed=0, epoch=0))
    assert compared(build("native"), source, LONG) == 27


@needs_dali
@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**32)])
def test_numbers_that_the_generator_does_not_take_are_refused(build: Any, seed: int, epoch: int) -> None:
    with pytest.raises(ValueError, match="seed must be"):
        list(build("dali").epoch(LONG, seed=seed, epoch=epoch))


# --- DALI that is missing, of another version, or without our operators: one line each, with what to type


def test_another_version_than_it_was_built_for_is_refused_in_one_line() -> None:
    plugin = DaliPlugin(Path("libhpcai500_dali-2.4.0.so"), "2.4.0")
    check_versions(plugin, "2.4.0")
    with pytest.raises(EnvironmentLacksError) as caught:
        check_versions(plugin, "2.5.0")
    assert str(caught.value) == (
        "accelerator.loader is dali, but our operators were built for DALI 2.4.0, not for the installed DALI 2.5.0: "
        "run `make dali` to rebuild them, or install nvidia-dali-cuda130==2.4.0, or set accelerator.loader=native"
    )


def test_of_what_dali_says_the_first_line_is_kept() -> None:
    assert first_line(RuntimeError("\n  the reason\nStacktrace (17 entries):\n[frame 0]: libdali.so")) == "the reason"
    assert first_line(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize("settings", ["accelerator.loader=dali", pytest.param("problem.epochs=1", marks=needs_dali)])
def test_a_run_without_dali_says_so_and_a_native_one_never_imports_it(
    images: Path, tmp_path: Path, settings: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    # Another test may have loaded them already.
    monkeypatch.setattr(dali_module, "load_operators", load_operators.__wrapped__)
    code = train.main(train_arguments(images, tmp_path / "record", settings))
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if settings == "problem.epochs=1":
        assert code in (ExitCode.PASS, ExitCode.WRONG_ANSWER), err
    else:
        assert code == ExitCode.ENVIRONMENT, err
        assert "DALI is not installed: run `make dali`" in err


@needs_dali
def test_operators_are_loaded_once() -> None:
    load_operators()
    load_operators()
    from nvidia.dali import fn

    assert "Decodes JPEG files to crops" in fn.hpcai500.decode_crop.__doc__
    assert "Draws the crop of each sample" in fn.hpcai500.draw_crop.__doc__


@needs_dali
def test_the_library_brings_no_path_of_the_machine_that_built_it_and_shows_no_decoder() -> None:
    plugin = find_plugin()
    assert plugin is not None
    dynamic = output_of("readelf", "--dynamic", plugin.path)
    assert "[libdali.so]" in dynamic
    assert "RUNPATH" not in dynamic
    assert "RPATH" not in dynamic
    names = [line.split()[-1] for line in output_of("nm", "--dynamic", "--defined-only", plugin.path).splitlines()]
    assert [name for name in names if "jpeg" in name.lower() or "hpcai500" in name.lower()] == []


def output_of(*command: str | Path) -> str:
    """What a program printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
