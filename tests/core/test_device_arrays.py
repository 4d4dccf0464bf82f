"""Arrays in device memory are taken at their dictionary's word, so every word of it is checked. No device is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from dlpack_fakes import Described

from hpcai500 import _core

SAMPLING = {"spatial_scale": 1.0, "sampling_ratio": 2, "aligned": False, "device": 0, "stream": 0}
built_with_cuda = bool(_core.cuda_architectures())
needs_cuda_build = pytest.mark.skipif(not built_with_cuda, reason="no CUDA device can be used by a build without CUDA")
ROIS = Described(shape=(1, 5))
POOLED = Described(shape=(1, 2, 7, 7))


def test_a_machine_without_a_device_says_so_in_one_line() -> None:
    if _core.cuda_device_count() > 0:
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RuntimeError) as caught:
        _core.roi_align_cuda(Described(), ROIS, POOLED, **SAMPLING)
    assert re.search("built without CUDA: put nvcc|driver|no CUDA-capable device", str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_build_names_its_architectures_or_refuses_device_memory() -> None:
    if built_with_cuda:
        assert all(
            re.fullmatch(r"\d+(-real|-virtual)?|native|all|all-major", name) for name in _core.cuda_architectures()
        )
        assert 0 < _core.nms_cuda_workspace(8000) <= 8000 * 520
        assert _core.nms_cuda_workspace(1_000_000) <= 1_000_000 * 520
        return
    assert _core.build_info()["cuda_compiler"] is None
    with pytest.raises(RuntimeError, match="built without CUDA: put nvcc on PATH"):
        _core.nms_cuda_workspace(8000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "absent"}, "must have the key 'typestr'"),
        ({"typestr": ">f4"}, "a typestr such as '<f4', little-endian, got '>f4'"),
        ({"typestr": "<f3"}, "a typestr such as"),
        ({"typestr": 7}, "a typestr such as"),
        ({"shape": "absent"}, "must have the key 'shape'"),
        ({"shape": [1, 2, 3, 4]}, "a tuple as shape"),
        ({"shape": (1, 2, 3, 4.0)}, "whole numbers in shape"),
        ({"shape": (1, 2, 3, -4)}, "a shape of at most 2**48 elements"),
        ({"shape": (2**40, 2**40, 3, 4)}, "a shape of at most 2**48 elements"),
        ({"shape": (2, 3, 4)}, "features must have shape (images, channels, height, width), got (2, 3, 4)"),
        ({"strides": (96, 48, 16)}, "as many strides as axes"),
        ({"strides": (96, 48, 16, 6)}, "features must be contiguous with channels first or last"),
        ({"strides": (96, 48, 4, 16)}, "features must be contiguous with channels first or last"),
        ({"data": "absent"}, "must have the key 'data'"),
        ({"data": 4096}, "data (pointer, read-only)"),
        ({"data": (0, False)}, "a pointer that is not null"),
        ({"data": (4097, False)}, "a pointer aligned to its items"),
        ({"typestr": "<i4"}, "features must be float32 (f4), float16 (f2), bfloat16 as its bits (u2) or float64 (f8)"),
        ({"typestr": "<f8"}, "rois must have shape (k, 5) and type f8, got (1, 5) and f4"),
    ],
)
def test_a_wrong_dictionary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        _core.roi_align_cuda(Described(**changes), ROIS, POOLED, **SAMPLING)


def test_read_only_memory_and_host_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="out must be writable"):
        _core.roi_align_cuda(Described(), ROIS, Described(shape=(1, 2, 7, 7), data=(4096, True)), **SAMPLING)
    with pytest.raises(TypeError, match=r"features must be an array in CUDA memory .* got <class 'list'>"):
        _core.roi_align_cuda([1.0], ROIS, POOLED, **SAMPLING)  # type: ignore[arg-type]


def test_the_gradient_is_summed_in_float32() -> None:
    half = Described(shape=(1, 2, 7, 7), typestr="<f2")
    with pytest.raises(ValueError, match="out must have type f4, in which the gradient is summed, got f2"):
        _core.roi_align_backward_cuda(half, ROIS, Described(typestr="<f2"), **SAMPLING)


@needs_cuda_build
def test_the_workspace_of_nms_must_be_large_enough() -> None:
    boxes, keep = Described(shape=(100, 4)), Described(shape=(100,), typestr="|u1")
    workspace = Described(shape=(_core.nms_cuda_workspace(100) - 1,), typestr="|u1")
    with pytest.raises(ValueError, match=r"workspace must have shape \(n,\), n at least"):
        _core.nms_cuda(boxes, None, keep, workspace, iou_threshold=0.5, device=0, stream=0)


def test_segments_must_be_all_boxes() -> None:
    boxes, keep = Described(shape=(100, 4)), Described(shape=(100,), typestr="|u1")
    for segments in ([], [99], [60, 41], [101, -1], [2**62, 2**62]):
        with pytest.raises(ValueError, match="segments must be lengths of 0 or more that add up to the 100 boxes"):
            _core.nms_segments_cuda(boxes, segments, keep, keep, iou_threshold=0.5, device=0, stream=0)


@needs_cuda_build
def test_the_workspace_of_many_segments_is_bounded() -> None:
    one = _core.nms_segments_cuda_workspace([2000])
    assert _core.nms_segments_cuda_workspace([2000] * 40) == 40 * one < 2**25
    assert _core.nms_segments_cuda_workspace([4000] * 1000) <= 2**28
    assert _core.nms_segments_cuda_workspace([9, 2**20, 9]) == _core.nms_cuda_workspace(2**20) > 2**28
    assert _core.nms_segments_cuda_workspace([]) == 0
    boxes, keep = Described(shape=(4000, 4)), Described(shape=(4000,), typestr="|u1")
    short = Described(shape=(2 * one - 1,), typestr="|u1")
    with pytest.raises(ValueError, match=f"workspace must have .* n at least {2 * one}"):
        _core.nms_segments_cuda(boxes, [2000, 2000], keep, short, iou_threshold=0.5, device=0, stream=0)
    with pytest.raises(ValueError, match="keep must have shape"):
        _core.nms_segments_cuda(boxes, [4000], boxes, short, iou_threshold=0.5, device=0, stream=0)
    with pytest.raises(ValueError, match="a segment has at least 0 boxes, got -1"):
        _core.nms_segments_cuda_workspace([1, -1])


LEVEL_OF = Described(shape=(1,), typestr="<i8")
LEVEL_SAMPLING = {"sampling_ratio": 2, "aligned": False, "device": 0, "stream": 0}


def pool_levels(*levels: Described, level_of: Described = LEVEL_OF, scales: list[float] | None = None) -> None:
    scales = [1.0] * len(levels) if scales is None else scales
    _core.roi_align_levels_cuda(levels, ROIS, level_of, POOLED, spatial_scales=scales, **LEVEL_SAMPLING)


def test_levels_must_be_one_pyramid() -> None:
    last = {"strides": (96, 4, 32, 8)}
    refused: list[tuple[list[Described], str]] = [
        ([], "levels must be 1 to 8, got 0"),
        ([Described()] * 9, "levels must be 1 to 8, got 9"),
        ([Described(), Described(shape=(2, 3, 4))], "levels[1] must have shape (images, channels, height, width)"),
        ([Described(), Described(shape=(2, 2, 3, 4))], "levels must be alike but for their height, width and"),
        ([Described(), Described(shape=(1, 3, 3, 4))], "must have shape (1, 3, pooled_height, pooled_width)"),
        ([Described(**last), Described()], "levels[1] must be contiguous with channels last, as other levels are"),
        ([Described(), Described(**last)], "levels[0] must be contiguous with channels last, as other levels are"),
        ([Described(), Described(data=(0, False))], "levels[1]: __cuda_array_interface__ must have a pointer"),
    ]
    for levels, message in refused:
        with pytest.raises(ValueError, match=re.escape(message)):
            pool_levels(*levels)
    with pytest.raises(ValueError, match="spatial_scales must be one for each of the 2 levels, got 1"):
        pool_levels(Described(), Described(), scales=[1.0])
    with pytest.raises(ValueError, match="spatial_scale must be finite and above 0"):
        pool_levels(Described(), Described(), scales=[1.0, 0.0])
    for level_of in (Described(shape=(2,), typestr="<i8"), Described(shape=(1,))):
        with pytest.raises(ValueError, match=r"level_of must have shape \(1,\) and type i8, one for each roi"):
            pool_levels(Described(), level_of=level_of)


def test_levels_of_one_pixel_have_the_layout_of_the_others() -> None:
    """What is right but for the device, which is not there."""
    if _core.cuda_device_count() > 0:
        pytest.skip("this machine has a CUDA device")
    pixel = Described(shape=(1, 2, 1, 1))
    for strides in (None, (96, 4, 32, 8)):
        with pytest.raises(RuntimeError, match=r"built without CUDA: put nvcc|driver|no CUDA-capable device"):
            pool_levels(pixel, Described(strides=strides), pixel)


def test_the_gradients_of_levels_are_summed_in_float32_and_written() -> None:
    def spread(*out: Described) -> None:
        half = Described(shape=(1, 2, 7, 7), typestr="<f2")
        scales = [1.0] * len(out)
        _core.roi_align_levels_backward_cuda(half, ROIS, LEVEL_OF, out, spatial_scales=scales, **LEVEL_SAMPLING)

    with pytest.raises(ValueError, match=r"out\[1\] must have type f4, in which the gradient is summed, got f2"):
        spread(Described(), Described(typestr="<f2"))
    with pytest.raises(ValueError, match=r"out\[1\] must be writable"):
        spread(Described(), Described(data=(4096, True)))


PLACE = {"device": 0, "stream": 0}
PACKING = {"wire": "float16", "scale": 1.0} | PLACE
SOURCES = [Described(1 << 20, (10, 10)), Described(2 << 20, (3, 4), strides=(4, 12))]
OUT = Described(3 << 20, (112,), "<f2")
WORKSPACE = Described(4 << 20, (32,), "|u1")
BUFFER = Described(3 << 20, (4160,), "|u1")
NORMS = Described(5 << 20, (2,), "<f8")
CALLS: dict[str, Callable[[], None]] = {
    "pack": lambda: _core.pack_cuda(SOURCES, OUT, WORKSPACE, **PACKING),
    "unpack": lambda: _core.unpack_cuda(OUT, SOURCES, WORKSPACE, norms=NORMS, **PACKING),
    "quantise": lambda: _core.quantise_cuda(SOURCES, BUFFER, WORKSPACE, scale=1.0, **PLACE),
    "dequantise": lambda: _core.dequantise_cuda(BUFFER, SOURCES, WORKSPACE, scale=1.0, **PLACE),
    "layer_norms": lambda: _core.layer_norms_cuda(SOURCES, NORMS, WORKSPACE, **PLACE),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bucket_without_a_device_says_so_in_one_line_with_the_fix(name: str) -> None:
    if _core.cuda_device_count() > 0:
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RuntimeError) as caught:
        CALLS[name]()
    without_cuda = "built without CUDA: put nvcc on PATH .*, or use CPU tensors"
    without_device = "no CUDA device: .* (NVIDIA driver|process none).*, or use CPU tensors"
    assert re.fullmatch(without_device if built_with_cuda else without_cuda, str(caught.value))


def test_a_build_without_cuda_refuses_buckets_and_one_with_it_tells_its_sizes() -> None:
    if built_with_cuda:
        assert _core.compression_cuda_workspace(161, 25_557_032) == 8 * (81 + 1 + 161 + 25_557_515 // 4096)
        assert _core.compression_cuda_most_tensors() >= 192
        return
    with pytest.raises(RuntimeError, match="built without CUDA: put nvcc on PATH"):
        _core.compression_cuda_workspace(1, 1)


@needs_cuda_build
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": [Described(1 << 20, (4,), "<f8")]}, "sources[0] must be float32 (f4), got f8"),
        ({"sources": [Described(1 << 20, (4,), strides=(8,))]}, "sources[0] must be dense"),
        ({"out": Described(3 << 20, (111,), "<f2")}, "out must have shape (n,), n at least 112"),
        ({"out": Described(3 << 20, (112,), "<f4")}, "and type f2, got (112,) and f4"),
        ({"out": Described(1 << 20, (112,), "<f2")}, "out overlaps sources[0] in memory"),
        ({"out": Described(3 << 20, (112,), "<f2", data=(3 << 20, True))}, "out must be writable"),
        ({"workspace": Described(4 << 20, (31,), "|u1")}, "workspace must have shape (n,), n at least 32"),
        ({"workspace": Described((4 << 20) + 4, (32,), "|u1")}, "workspace must begin at a multiple of 8"),
        ({"norms": Described(5 << 20, (1,), "<f8")}, "norms must have shape (n,), n at least 2"),
        ({"wire": "int8"}, "wire must be float32, float16 or bfloat16, got int8"),
        ({"scale": float("inf")}, "scale must be finite in float32, got inf"),
    ],
)
def test_what_does_not_fit_a_bucket_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"sources": SOURCES, "out": OUT, "workspace": WORKSPACE} | PACKING | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        _core.pack_cuda(**arguments)


@needs_cuda_build
def test_scales_in_a_buffer_are_aligned() -> None:
    buffer = Described((3 << 20) + 2, (4160,), "|u1")
    for call in (
        lambda: _core.quantise_cuda(SOURCES, buffer, WORKSPACE, scale=1.0, device=0, stream=0),
        lambda: _core.dequantise_cuda(buffer, SOURCES, WORKSPACE, scale=1.0, device=0, stream=0),
    ):
        with pytest.raises(ValueError, match=r"(out|source) must begin at a multiple of 4"):
            call()


# --- group norm


def images_of_norm(**changes: Any) -> Described:
    """(2, 16, 3, 4) in half precision, channels last."""
    return Described(**{"shape": (2, 16, 3, 4), "strides": (384, 2, 128, 32), "typestr": "<f2", **changes})


def norm_arguments() -> dict[str, Any]:
    size = _core.group_norm_cuda_workspace(2, 12, 16, 4, False) if built_with_cuda else 1
    per_channel = Described(shape=(16,))
    return {
        "images": images_of_norm(),
        "weight": per_channel,
        "bias": per_channel,
        "out": images_of_norm(),
        "moments": Described(shape=(16,)),
        "workspace": Described(shape=(size,), typestr="|u1"),
        "groups": 4,
    }


@needs_cuda_build
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": images_of_norm(strides=None)}, "images must be contiguous with its channels last"),
        ({"images": images_of_norm(typestr="<i2")}, "images must be float32 (f4), float16 (f2) or bfloat16"),
        ({"images": images_of_norm(data=(4104, False))}, "images must begin at a multiple of 16 bytes"),
        ({"images": Described(shape=(2, 12, 3, 4))}, "images must have a multiple of 8 channels"),
        ({"groups": 3}, "groups must divide the channels, got 3"),
        ({"groups": 0}, "groups must divide the channels, got 0"),
        ({"weight": Described(shape=(15,))}, "weight must have shape (16,) and type f4, one for each channel"),
        ({"bias": Described(shape=(16,), typestr="<f2")}, "bias must have shape (16,) and type f4"),
        ({"moments": Described(shape=(15,))}, "moments must have shape (n,), n at least 16"),
        ({"workspace": Described(shape=(1,), typestr="|u1")}, "workspace must have shape (n,), n at least"),
        ({"out": images_of_norm(typestr="<u2")}, "out must have the type and shape of images"),
        ({"out": images_of_norm(data=(4096, True))}, "out must be writable"),
    ],
)
def test_what_group_norm_cannot_take_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        _core.group_norm_cuda(**{**norm_arguments(), **changes}, epsilon=1e-5, device=0, stream=0)


@needs_cuda_build
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient": images_of_norm(typestr="<u2")}, "gradient must have the type and shape of images"),
        ({"sums": Described(shape=(63,))}, "sums must have shape (n,), n at least 64"),
        ({}, "driver"),
    ],
)
def test_what_the_gradient_of_group_norm_cannot_take_is_named(changes: dict[str, Any], message: str) -> None:
    if not changes and _core.cuda_device_count() > 0:
        pytest.skip("this machine has a CUDA device")
    arguments = {**norm_arguments(), "gradient": images_of_norm(), "sums": Described(shape=(64,)), **changes}
    del arguments["bias"]
    with pytest.raises((ValueError, RuntimeError), match=re.escape(message)):
        _core.group_norm_backward_cuda(**arguments, device=0, stream=0)
