"""DALI's pipeline for a device: its crops are exactly ours, and its pixels nearly.

Where no device is, the graph runs with DALI's CPU decoder in the place of the mixed one, which is only defined; the
last tests run on a device.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.data import encoded_picture, write_tree
from builders.data import picture as pixels
from builders.needs import needs_dali
from PIL import Image

from hpcai500._core import CropBox, DecodeSpec, crop_box, decode_crop
from hpcai500.data.imagenet.dali import DaliBatches, Engine, Feed, device_pipeline, load_operators
from hpcai500.data.imagenet.index import ImageIndex, Split, load_index, make_split
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.errors import DataError, EnvironmentLacksError

pytestmark = needs_dali

SEED, EPOCH, IMAGES = 3, 7, 12
IDS = np.arange(IMAGES, dtype=np.int64)
NO_SUCH_DEVICE = 0
CUDA = torch.device("cuda", 0)
OURS = pytest.mark.parametrize(("decoder", "levels"), [("libjpeg-turbo", 1), ("own", 3)])


def sizes() -> list[tuple[int, int]]:
    """Width and height of each image."""
    generator = np.random.default_rng(0)
    return [(int(generator.integers(60, 400)), int(generator.integers(60, 400))) for _ in range(IMAGES)]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, Path]:
    """Smooth pictures of many sizes, with and without chroma subsampling."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (width, height) in enumerate(sizes()):
        coarse = np.random.default_rng(number).integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        (root / f"{number}.jpg").write_bytes(encoded_picture(picture, quality=92, subsampling=2 * (number % 2)))
    paths = tuple(f"{number}.jpg" for number in range(IMAGES))
    return make_split("train", paths, np.ones(IMAGES, np.int64), np.zeros(IMAGES, np.int64)), root


def on_host(split: tuple[Split, Path], spec: DecodeSpec) -> tuple[torch.Tensor, Any]:
    """One batch of the graph, and the status of its headers."""
    feed = Feed(*split)
    feed.begin([IDS], SEED, EPOCH)
    pipeline = device_pipeline(feed, spec, Engine(IMAGES, 2, 1), decoder="cpu")
    pipeline.schedule_run()
    images, status = pipeline.outputs()
    return torch.from_numpy(np.array(images.as_tensor())), np.array(status.as_tensor())


def native(split: tuple[Split, Path], **settings: Any) -> torch.Tensor:
    """The same batch of the native loader."""
    loader = JpegBatches(*split, batch_size=IMAGES, threads=2, **settings)
    [batch] = loader.epoch([IDS], seed=SEED, epoch=EPOCH)
    images = batch.images.clone()
    loader.close()
    return images


def apart(decoder: Any, split: tuple[Split, Path], **settings: Any) -> torch.Tensor:
    """Levels between the batch of the graph and that of one of our decoders. DALI's on a CPU is libjpeg-turbo, too."""
    images, status = on_host(split, DecodeSpec(**settings, dtype="uint8"))
    assert not status.any()
    spec = DecodeSpec(**settings, dtype="uint8", decoder=decoder)
    ours = np.empty((IMAGES, *spec.shape), np.uint8)
    for place, (number, content) in enumerate(zip(IDS, contents_of(split), strict=True)):
        decode_crop(content, spec, ours[place], seed=SEED, epoch=EPOCH, sample=int(number))
    return (images.int() - torch.from_numpy(ours).int()).abs()


@OURS
@pytest.mark.parametrize("size", [32, 112])
def test_evaluation_differs_by_little(split: tuple[Split, Path], size: int, decoder: str, levels: int) -> None:
    assert apart(decoder, split, size=size, mode="centre", resize_shorter=size * 8 // 7).max() <= levels


@OURS
@pytest.mark.parametrize("size", [32, 112])
def test_training_differs_at_the_edges_of_crops_alone(
    split: tuple[Split, Path], size: int, decoder: str, levels: int
) -> None:
    # There, our filter leaves out what lies outside of the crop, and DALI's repeats the last pixel.
    off = apart(decoder, split, size=size, mode="random")
    assert off[:, :, 1:-1, 1:-1].max() <= levels
    assert off.max() <= 16
    assert off.float().mean() < 0.3


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalisation_and_layout_are_ours(split: tuple[Split, Path], dtype: Any, layout: Any) -> None:
    settings: dict[str, Any] = {"size": 64, "mode": "centre", "resize_shorter": 72, "dtype": dtype, "layout": layout}
    images, _ = on_host(split, DecodeSpec(**settings))
    wanted = native(split, **settings)
    if layout == "nhwc":
        images = images.permute(0, 3, 1, 2)
    assert images.dtype == wanted.dtype
    assert images.stride() == wanted.stride()
    # Three levels of 57; half a level on average.
    off = (images.float() - wanted.float()).abs()
    assert off.max() < 0.055
    assert off.mean() < 0.009


def drawn(files: list[bytes], seed: int = SEED, **settings: Any) -> list[Any]:
    """Outputs of draw_crop, as arrays."""
    load_operators()
    from nvidia.dali import Pipeline, fn

    contents = [np.frombuffer(content, np.uint8) for content in files]
    keys = np.array([[sample, EPOCH, seed] for sample in range(len(files))])
    pipeline = Pipeline(batch_size=len(files), num_threads=2, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        fed = fn.external_source(source=lambda: (contents, keys), num_outputs=2, ndim=1)
        pipeline.set_outputs(*fn.hpcai500.draw_crop(*fed, **settings))
    given, *rest = pipeline.run()
    return [[np.array(given.at(number)) for number in range(len(files))], *(np.array(one.as_tensor()) for one in rest)]


def contents_of(split: tuple[Split, Path]) -> list[bytes]:
    """The files of the split."""
    return [(split[1] / path).read_bytes() for path in split[0].paths]


@pytest.mark.parametrize("mode", ["random", "centre"])
def test_drawn_crops_are_those_of_the_core(split: tuple[Split, Path], mode: Any) -> None:
    spec = DecodeSpec(size=48, mode=mode, resize_shorter=64)
    files, anchor, shape, begin, end, flip, status = drawn(contents_of(split), size=48, mode=mode, resize_shorter=64)
    assert not status.any()
    for number, (width, height) in enumerate(sizes()):
        box = crop_box(spec, width, height, seed=SEED, epoch=EPOCH, sample=number)
        # 24 bits of a float, of coordinates below 400.
        assert (anchor + begin)[number] == pytest.approx([box.y, box.x], abs=1e-4)
        assert (end - begin)[number] == pytest.approx([box.height, box.width], abs=1e-4)
        assert bool(flip[number]) == box.flip
        assert (anchor[number] >= 0).all()
        assert (anchor[number] + shape[number] <= [height, width]).all()
        if mode == "random":
            assert anchor[number].tolist() == [box.y, box.x]
            assert shape[number].tolist() == [box.height, box.width]
    assert 0 < flip.sum() < IMAGES or mode == "centre"
    assert bytes(files[0]) == (split[1] / "0.jpg").read_bytes()


def test_numbers_of_a_recipe_are_not_rounded(split: tuple[Split, Path]) -> None:
    """As numbers of DALI's they would have 24 bits, which moves a crop by a pixel now and then."""
    width, height = 16000, 12000
    # The size of a picture is in its header, after the marker and three bytes.
    header = contents_of(split)[0]
    at = header.index(b"\xff\xc0") + 5
    large = header[:at] + struct.pack(">HH", height, width) + header[at + 4 :]

    def box(seed: int, kind: Any) -> CropBox:
        area, ratio = (kind(0.05), kind(1 / 3)), (kind(3 / 4), kind(4 / 3))
        spec = DecodeSpec(size=48, area=area, ratio=ratio)
        return crop_box(spec, width, height, seed=seed, epoch=EPOCH, sample=0)

    seed = next(seed for seed in range(10**6) if box(seed, float) != box(seed, lambda n: float(np.float32(n))))
    _, anchor, shape, *_ = drawn([large], seed, size=48, area=["0.05", repr(1 / 3)], ratio=["0.75", repr(4 / 3)])
    exact = box(seed, float)
    assert anchor[0].tolist() == [exact.y, exact.x]
    assert shape[0].tolist() == [exact.height, exact.width]


def test_a_file_without_a_header_leaves_the_rest_of_the_batch_alone(split: tuple[Split, Path], tmp_path: Path) -> None:
    for number, path in enumerate(split[0].paths):
        content = (split[1] / path).read_bytes()
        (tmp_path / path).write_bytes({2: b"", 5: b"\x89PNG" + bytes(5000)}.get(number, content))
    spec = DecodeSpec(size=32, mode="random", dtype="uint8")
    whole, _ = on_host(split, spec)
    images, status = on_host((split[0], tmp_path), spec)
    assert np.flatnonzero(status[:, 0]).tolist() == [2, 5]
    others = [number for number in range(IMAGES) if number not in (2, 5)]
    assert torch.equal(images[others], whole[others])
    assert len(images[[2, 5]].unique()) == 1


def test_numbers_that_are_none_are_refused(split: tuple[Split, Path]) -> None:
    for wrong, said in ({"area": ["0.1", "one"]}, "got 'one'"), ({"ratio": ["1"]}, "2 numbers"), ({"size": 0}, "size"):
        with pytest.raises(ValueError, match=said):
            drawn(contents_of(split), **wrong)


no_driver = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@no_driver
def test_the_graph_for_a_device_is_defined(split: tuple[Split, Path]) -> None:
    """As far as DALI goes without a driver: it checks operators, inputs and arguments, and builds nothing."""
    spec = DecodeSpec(size=32, dtype="float16", layout="nhwc")
    pipeline = device_pipeline(Feed(*split), spec, Engine(IMAGES, 2, 2, NO_SUCH_DEVICE))
    pipeline._build_graph()
    specs = [operator.spec for operator in pipeline._ops]
    placed = {re.sub(r"^_+|_\d.*", "", spec.OutputName(0)): spec.OutputDevice(0) for spec in specs}
    assert placed == {
        "ExternalSource": "cpu",
        "Read": "cpu",
        "DrawCrop": "cpu",
        "ImageSlice": "gpu",
        "Resize": "gpu",
        "CropMirrorNormalize": "gpu",
    }


@no_driver
def test_a_device_without_a_driver_is_told(split: tuple[Split, Path]) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"DALI cannot build its pipeline: .*CUDA.* or set accel"):
        DaliBatches(*split, batch_size=4, threads=1, device=torch.device("cuda", 0), size=32, mode="random")


# --- on a device: DALI's own decoder, with the crops that are ours, handed over there


def on_cuda(test: Any) -> Any:
    no_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    return pytest.mark.gpu(no_device(test))


RANDOM: dict[str, Any] = {"size": 32, "mode": "random", "area": (0.35, 1.0)}
CENTRE: dict[str, Any] = {"size": 32, "mode": "centre", "resize_shorter": 36}
BATCHES = [np.array(batch, dtype=np.int64) for batch in ([3, 1, 19, 7], [0, 0, 5, 12], [11])]
# Of levels: what nvJPEG's chroma upsampling and DALI's filter at the edges may make of a smooth picture.
MEAN_APART = 2.0


@pytest.fixture
def index(tmp_path: Path) -> ImageIndex:
    return load_index(write_tree(tmp_path / "set", train=10))


@pytest.fixture
def pair(index: ImageIndex) -> Iterator[Any]:
    """Makes the native loader and DALI's on the device, of one split and with the same settings."""
    made: list[Any] = []

    def build(**settings: Any) -> tuple[JpegBatches, DaliBatches]:
        common = {"batch_size": 4, "threads": 2} | settings
        ours = JpegBatches(index.train, index.root, **common)
        theirs = DaliBatches(index.train, index.root, depth=2, device=CUDA, **common)
        made.extend((ours, theirs))
        return ours, theirs

    yield build
    for loader in made:
        loader.close()


@on_cuda
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_images_show_what_the_native_loader_shows(pair: Any, crop: dict[str, Any], layout: Any) -> None:
    epochs = (loader.epoch(BATCHES, seed=5, epoch=2) for loader in pair(**crop, dtype="uint8", layout=layout))
    for ours, theirs in zip(*epochs, strict=True):
        assert theirs.images.is_cuda
        assert theirs.images.stride() == ours.images.stride()
        assert (theirs.images.cpu().float() - ours.images.float()).abs().mean() < MEAN_APART
        assert torch.equal(theirs.labels, ours.labels)


@on_cuda
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_images_are_normalised_on_the_device(pair: Any, dtype: Any) -> None:
    native, dali = pair(**CENTRE)[0], pair(**CENTRE, dtype=dtype)[1]
    [theirs], [ours] = (loader.epoch(BATCHES[:1], seed=5, epoch=2) for loader in (dali, native))
    assert theirs.images.dtype == getattr(torch, dtype)
    assert (theirs.images.cpu().float() - ours.images).abs().mean() < MEAN_APART / 57


@on_cuda
def test_a_batch_stays_as_it_is_while_others_are_made(pair: Any) -> None:
    _, source = pair(**RANDOM)
    kept = [batch.images for batch in source.epoch(BATCHES, seed=1, epoch=1)]
    again = [batch.images.clone() for batch in source.epoch(BATCHES, seed=1, epoch=1)]
    assert all(map(torch.equal, kept, again))


@on_cuda
def test_odd_files_are_mended_and_broken_ones_named(index: ImageIndex, pair: Any) -> None:
    (index.root / index.train.paths[6]).write_bytes(encoded_picture(pixels(4, 40, 30), "PNG"))
    asked = [np.array([5, 6, 7, 6])]
    native, source = pair(**CENTRE)
    [theirs], [ours] = (loader.epoch(asked, seed=9, epoch=3) for loader in (source, native))
    assert torch.equal(theirs.images[[1, 3]].cpu(), ours.images[[1, 3]])
    (index.root / index.train.paths[7]).write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"cannot decode .*: not a JPEG or another image format"):
        list(source.epoch(asked, seed=9, epoch=3))
