"""A bucket in device memory is checked as one in the processor's. No device is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hpcai500 import _core

built_with_cuda = bool(_core.cuda_architectures())
needs_cuda_build = pytest.mark.skipif(not built_with_cuda, reason="no CUDA device can be used by a build without CUDA")
CALL = {"wire": "float16", "scale": 1.0, "device": 0, "stream": 0}


class Described:
    """Something with a dictionary; its pointer leads nowhere and is never followed."""

    def __init__(self, at: int, shape: tuple[int, ...], typestr: str = "<f4", **changes: Any) -> None:
        interface = {"shape": shape, "typestr": typestr, "data": (at, False), "version": 3}
        self.__cuda_array_interface__ = interface | changes


SOURCES = [Described(1 << 20, (10, 10)), Described(2 << 20, (3, 4), strides=(4, 12))]
OUT = Described(3 << 20, (112,), "<f2")
WORKSPACE = Described(4 << 20, (32,), "|u1")


BUFFER = Described(3 << 20, (4160,), "|u1")
NORMS = Described(5 << 20, (2,), "<f8")
PLACE = {"device": 0, "stream": 0}
CALLS: dict[str, Callable[[], None]] = {
    "pack": lambda: _core.pack_cuda(SOURCES, OUT, WORKSPACE, **CALL),
    "unpack": lambda: _core.unpack_cuda(OUT, SOURCES, WORKSPACE, norms=NORMS, **CALL),
    "quantise": lambda: _core.quantise_cuda(SOURCES, BUFFER, WORKSPACE, scale=1.0, **PLACE),
    "dequantise": lambda: _core.dequantise_cuda(BUFFER, SOURCES, WORKSPACE, scale=1.0, **PLACE),
    "layer_norms": lambda: _core.layer_norms_cuda(SOURCES, NORMS, WORKSPACE, **PLACE),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_machine_without_a_device_says_so_in_one_line_with_the_fix(name: str) -> None:
    if _core.cuda_device_count() > 0:
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RuntimeError) as caught:
        CALLS[name]()
    without_cuda = "built without CUDA: put nvcc on PATH .*, or use CPU tensors"
    without_device = "no CUDA device: .* (NVIDIA driver|process none).*, or use CPU tensors"
    assert re.fullmatch(without_device if built_with_cuda else without_cuda, str(caught.value))


def test_a_build_without_cuda_refuses_and_one_with_it_tells_its_sizes() -> None:
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
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"sources": SOURCES, "out": OUT, "workspace": WORKSPACE} | CALL | changes
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
