"""Pixels against Pillow and against the reference: rounding, layouts, tails, instruction sets."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import decoded, jpeg, photograph
from PIL import Image
from reference import Box, centre_box, late_clamp_bounds, normalise, pillow_resize, random_box, resize

from hpcai500 import _core

DECODERS = ["own", "libjpeg-turbo"]
# Pillow rounds to whole levels between its two passes and after them, we round once: two levels at worst. And our own
# decoder cuts levels at the output's size only, where Pillow averages what was cut: colours out of range differ.
WORST_LEVELS = {"own": 16, "libjpeg-turbo": 2}
MEAN_LEVELS = 1.0
ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}


def image_of(data: bytes, spec: _core.DecodeSpec, sample: int = 0) -> np.ndarray:
    out = np.full(spec.shape, 77, ITEMS[spec.dtype])
    _core.decode_crop(data, spec, out, seed=11, epoch=2, sample=sample)
    return out


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (180, 900), (120, 90)])
def test_a_random_crop_equals_pillows_crop_and_resize(width: int, height: int, decoder: str) -> None:
    data = jpeg(photograph(width, height), quality=92)
    image = decoded(data)
    spec = _core.DecodeSpec(size=224, dtype="uint8", layout="nhwc", decoder=decoder)
    for sample in range(12):
        box = random_box(width, height, seed=11, epoch=2, sample=sample)
        error = np.abs(image_of(data, spec, sample).astype(int) - pillow_resize(image, box, 224, crop_first=True))
        assert error.mean() <= MEAN_LEVELS
        assert error.max() <= WORST_LEVELS[decoder]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (256, 256), (180, 900), (1000, 700)])
def test_a_centre_crop_equals_pillows_resize_of_a_fractional_box(width: int, height: int, decoder: str) -> None:
    data = jpeg(photograph(width, height), quality=92)
    box = centre_box(width, height, size=224, resize_shorter=256)
    spec = _core.DecodeSpec(size=224, mode="centre", dtype="uint8", layout="nhwc", decoder=decoder)
    error = np.abs(image_of(data, spec).astype(int) - pillow_resize(decoded(data), box, 224, crop_first=False))
    assert error.mean() <= MEAN_LEVELS
    assert error.max() <= WORST_LEVELS[decoder]


@pytest.mark.parametrize("mode", ["random", "centre"])
def test_float32_is_the_references_to_rounding(mode: str) -> None:
    """Of Pillow's pixels, so libjpeg's; test_baseline_pixels.py has the same of our own decoder's."""
    data = jpeg(photograph(300, 200))
    pixels = np.asarray(decoded(data))
    spec = _core.DecodeSpec(size=64, mode=mode, resize_shorter=72, layout="nhwc", decoder="libjpeg-turbo")
    for sample in range(5):
        box = (
            random_box(300, 200, seed=11, epoch=2, sample=sample)
            if mode == "random"
            else centre_box(300, 200, size=64, resize_shorter=72)
        )
        expected = normalise(resize(pixels, box, 64, crop_first=mode == "random"), spec.mean, spec.std)
        np.testing.assert_allclose(image_of(data, spec, sample), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 15, 16, 17, 31, 33, 47, 100, 225])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_any_size_has_right_edges_and_writes_nothing_behind_them(size: int, layout: str) -> None:
    """Of Pillow's pixels, so libjpeg's; test_baseline_pixels.py has the same of our own decoder's."""
    data = jpeg(photograph(90, 70))
    for dtype, item in ITEMS.items():
        plain = {"mean": (0, 0, 0), "std": (1, 1, 1), "decoder": "libjpeg-turbo"}
        spec = _core.DecodeSpec(size=size, layout=layout, dtype=dtype, **plain)
        guarded = np.full(3 * size * size + 64, 77, item)
        _core.decode_crop(data, spec, guarded[: 3 * size * size], seed=11, epoch=2, sample=3)
        assert (guarded[3 * size * size :] == 77).all()
        image = guarded[: 3 * size * size].reshape(spec.shape)
        if dtype == "bfloat16":
            image = (image.astype(np.uint32) << 16).view(np.float32)
        box = random_box(90, 70, seed=11, epoch=2, sample=3)
        levels = resize(np.asarray(decoded(data)), box, size, crop_first=True)
        expected = levels if layout == "nhwc" else levels.transpose(2, 0, 1)
        # Half a unit in the last place of each type at 255, and float32's own error.
        tolerance = {"float32": 1e-4, "float16": 0.0626, "bfloat16": 0.501, "uint8": 0.5001}[dtype]
        np.testing.assert_allclose(image.astype(np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("std", [(58.395, 57.12, 57.375), (1e6, 1e7, 3e8), (1e-3, 1e-2, 1e-4)])
def test_half_precision_is_float32_rounded_to_nearest_even(
    layout: str, std: tuple[float, float, float], decoder: str
) -> None:
    data, settings = jpeg(photograph(120, 100)), {"size": 50, "layout": layout, "std": std, "decoder": decoder}
    for sample in range(4):
        exact = image_of(data, _core.DecodeSpec(**settings), sample)
        half = image_of(data, _core.DecodeSpec(**settings, dtype="float16"), sample)
        brain = image_of(data, _core.DecodeSpec(**settings, dtype="bfloat16"), sample)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(half, exact.astype(np.float16))
        np.testing.assert_array_equal(
            brain.view(np.int16), torch.from_numpy(exact).bfloat16().view(torch.int16).numpy()
        )


@pytest.mark.parametrize("decoder", DECODERS)
def test_uint8_is_the_level_rounded_half_to_even(decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    levels = image_of(data, _core.DecodeSpec(size=50, mean=(0, 0, 0), std=(1, 1, 1), decoder=decoder))
    rounded = image_of(data, _core.DecodeSpec(size=50, dtype="uint8", decoder=decoder))
    np.testing.assert_array_equal(rounded, np.rint(levels))


@pytest.mark.parametrize("decoder", DECODERS)
def test_layouts_hold_the_same_values(decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    planar, interleaved = (
        image_of(data, _core.DecodeSpec(size=37, layout=layout, decoder=decoder)) for layout in ("nchw", "nhwc")
    )
    np.testing.assert_array_equal(planar.transpose(1, 2, 0), interleaved)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("offset", [4, 16, 32, 60])
def test_an_output_may_start_anywhere(offset: int, decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    spec = _core.DecodeSpec(size=48, decoder=decoder)
    memory = np.zeros(spec.image_bytes + 192, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    unaligned = memory[start : start + spec.image_bytes].view(np.float32)
    _core.decode_crop(data, spec, unaligned, seed=11, epoch=2, sample=0)
    np.testing.assert_array_equal(unaligned.reshape(spec.shape), image_of(data, spec))


# libjpeg rounds chroma when it interpolates, and colours when it converts them; our own decoder does not.
ROUNDING = 2


def late_clamp_errors(planes: np.ndarray, size: int, subsampling: str = "4:4:4", quality: int = 100) -> np.ndarray:
    """Levels between our own decoder and libjpeg of a whole picture, whose JPEG has these Y, Cb and Cr."""
    buffer = io.BytesIO()
    Image.fromarray(planes, "YCbCr").save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    images = np.empty((2, size, size, 3), np.float32)
    for decoder, image in zip(DECODERS, images, strict=True):
        spec = _core.DecodeSpec(size=size, layout="nhwc", mean=(0, 0, 0), std=(1, 1, 1), decoder=decoder)
        whole = {"x": 0, "y": 0, "width": planes.shape[1], "height": planes.shape[0], "flip": False}
        _core.decode_box(buffer.getvalue(), spec, image, **whole)
    errors: np.ndarray = np.abs(images[0] - images[1])
    return errors


@pytest.mark.parametrize(
    ("channel", "beyond", "within", "share"),
    [(0, (0, 128, 0), (255, 128, 128), 10), (1, (255, 0, 0), (0, 128, 128), 11), (2, (0, 0, 128), (255, 128, 128), 9)],
)
def test_saturated_pictures_come_near_the_bound_of_the_late_cut(
    channel: int, beyond: tuple[int, ...], within: tuple[int, ...], share: int
) -> None:
    """Of 17 blocks in a row or column, `share` are as far out of range as a JPEG can be, the others at its end."""
    rows, columns = np.mgrid[0:17, 0:17]
    is_beyond = np.kron((5 * rows + 2 * columns) % 17 < share, np.ones((8, 8), bool))
    planes = np.where(is_beyond[..., None], np.uint8(beyond), np.uint8(within)).astype(np.uint8)
    bound = late_clamp_bounds()[channel]
    for size in (1, 3, 8):
        errors = late_clamp_errors(planes, size)[..., channel]
        assert 0.97 * bound < errors.max() <= bound + ROUNDING


def test_no_picture_is_beyond_the_bound_of_the_late_cut() -> None:
    rng, bounds = np.random.default_rng(15), late_clamp_bounds()
    assert bounds.max() == pytest.approx(120.04, abs=0.01)
    for _ in range(60):
        side, square = int(rng.integers(16, 130)), int(rng.choice([1, 2, 4, 8, 16]))
        levels = rng.choice([0, 128, 255], (side // square + 1, side // square + 1, 3)).astype(np.uint8)
        planes = np.kron(levels, np.ones((square, square, 1), np.uint8))[:side, :side]
        subsampling, quality = str(rng.choice(["4:4:4", "4:2:2", "4:2:0"])), int(rng.choice([5, 50, 92, 100]))
        errors = late_clamp_errors(planes, int(rng.integers(1, 40)), subsampling, quality)
        assert (errors.max(axis=(0, 1)) <= bounds + ROUNDING).all()


@pytest.mark.parametrize(("decoder", "levels"), [("own", 2), ("libjpeg-turbo", 0)])
def test_a_partly_decoded_crop_equals_the_crop_of_the_whole_image(decoder: str, levels: int) -> None:
    """Every place of a small window: the cuts meet every phase of blocks, chroma and interpolation.

    Our own decoder does not round where Pillow does: when it interpolates chroma and when it converts colours.
    """
    pixels = photograph(83, 61)
    spec = _core.DecodeSpec(size=16, dtype="uint8", layout="nhwc", decoder=decoder)
    for subsampling, progressive in [("4:2:0", False), ("4:2:2", False), ("4:4:4", False), ("4:2:0", True)]:
        data = jpeg(pixels, subsampling=subsampling, progressive=progressive)
        whole = np.asarray(decoded(data)).astype(int)
        out = np.empty(spec.shape, np.uint8)
        for x in range(83 - 16):
            for y in range(0, 61 - 16, 1 if x % 16 in (0, 7) else 9):
                _core.decode_box(data, spec, out, x=x, y=y, width=16, height=16, flip=False)
                assert np.abs(out - whole[y : y + 16, x : x + 16]).max() <= levels, (subsampling, x, y)


def test_pixels_of_another_decoder_get_the_same_crop() -> None:
    data = jpeg(photograph(150, 110))
    pixels = np.asarray(decoded(data))
    for settings in ({"mode": "random"}, {"mode": "centre", "resize_shorter": 60}):
        spec = _core.DecodeSpec(size=50, **settings, decoder="libjpeg-turbo")
        for sample in range(8):
            out = np.empty(spec.shape, np.float32)
            _core.crop_pixels(pixels, spec, out, seed=11, epoch=2, sample=sample)
            np.testing.assert_array_equal(out, image_of(data, spec, sample))


def test_an_image_of_one_colour_stays_that_colour() -> None:
    pixels = np.full((40, 60, 3), (10, 128, 250), np.uint8)
    out = np.empty((33, 33, 3), np.uint8)
    _core.crop_pixels(pixels, _core.DecodeSpec(size=33, dtype="uint8", layout="nhwc"), out, seed=0, epoch=0, sample=1)
    assert (out == (10, 128, 250)).all()


def test_dct_scaling_is_off_by_default_and_close_where_it_is_used() -> None:
    data = jpeg(photograph(1000, 800), quality=92)
    box = Box(100, 80, 800, 640, flip=False)
    place = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "flip": False}
    exact, scaled = np.empty((2, 224, 224, 3), np.uint8)
    _core.decode_box(data, _core.DecodeSpec(size=224, dtype="uint8", layout="nhwc"), exact, **place)
    fast = _core.DecodeSpec(size=224, dtype="uint8", layout="nhwc", dct_scaling=True)
    _core.decode_box(data, fast, scaled, **place)
    error = np.abs(exact.astype(int) - scaled)
    assert 0 < error.mean() < 2
    # A crop below twice the output's size is decoded in full: then nothing changes.
    small = {**place, "width": 300, "height": 300}
    _core.decode_box(data, _core.DecodeSpec(size=224, dtype="uint8", layout="nhwc"), exact, **small)
    _core.decode_box(data, fast, scaled, **small)
    np.testing.assert_array_equal(exact, scaled)


_MAKE_IMAGES = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from pictures import jpeg, photograph
from hpcai500 import _core
items = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
data, images = jpeg(photograph(200, 150)), {"isa": np.array(_core.cpu_isa())}
for size in (30, 64, 77):
    for dtype, item in items.items():
        for layout in ("nchw", "nhwc"):
            for decoder in ("own", "libjpeg-turbo"):
                spec = _core.DecodeSpec(size=size, dtype=dtype, layout=layout, decoder=decoder)
                out = images[f"{dtype}-{layout}-{size}-{decoder}"] = np.empty(spec.shape, item)
                _core.decode_crop(data, spec, out, seed=4, epoch=0, sample=size)
np.savez(sys.argv[2], **images)
"""


def test_all_instruction_sets_of_this_build_agree(tmp_path: Path) -> None:
    compiled = _core.build_info()["isa"]
    runnable = compiled[compiled.index(_core.cpu_isa()) :]
    results = []
    for isa in runnable:
        target = tmp_path / f"{isa}.npz"
        command = [sys.executable, "-c", _MAKE_IMAGES, str(Path(__file__).parent), str(target)]
        subprocess.run(command, check=True, env={**os.environ, "HPCAI500_ISA": isa})
        results.append(np.load(target))
        assert results[-1]["isa"] == isa
    for other in results[1:]:
        for name in set(other.files) - {"isa"}:
            first, second = results[0][name], other[name]
            if name.startswith("bfloat16"):
                first, second = ((values.astype(np.uint32) << 16).view(np.float32) for values in (first, second))
            # Fused multiply-add rounds once: the last bit of float32, so at most one step of a shorter type.
            step = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2, "uint8": 1}[name.split("-")[0]]
            np.testing.assert_allclose(first.astype(float), second.astype(float), rtol=0, atol=step)


@pytest.mark.parametrize("name", ["sse9", "AVX2"])
def test_an_unknown_instruction_set_is_an_import_error(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import hpcai500"],
        env={**os.environ, "HPCAI500_ISA": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "HPCAI500_ISA must be one of" in result.stderr


def test_pillow_agrees_with_the_reference() -> None:
    """The reference itself, so that the two are not wrong together."""
    pixels = photograph(130, 90)
    box = Box(7, 5, 100, 80, flip=True)
    levels = resize(pixels, box, 40, crop_first=True)
    assert np.abs(levels - pillow_resize(Image.fromarray(pixels), box, 40, crop_first=True)).max() <= 1.01
