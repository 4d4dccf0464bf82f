"""What does not fit is refused by name before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcai500 import _core

F4 = np.float32
PACKING = {"wire": "float16", "scale": 1.0, "threads": 1}
INT8 = {"scale": 1.0, "threads": 1}


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def unaligned(count: int, item: Any) -> Any:
    size = np.dtype(item).itemsize
    return np.zeros(count * size + 1, np.uint8)[1:].view(item)


def pack(sources: Any = None, out: Any = None, **changes: Any) -> None:
    sources = [np.ones(3, F4), np.ones((2, 2), F4)] if sources is None else sources
    _core.pack(sources, np.empty(7, np.float16) if out is None else out, **(PACKING | changes))


def unpack(source: Any = None, targets: Any = None, **changes: Any) -> None:
    targets = [np.ones(3, F4)] if targets is None else targets
    _core.unpack(np.ones(3, np.float16) if source is None else source, targets, **(PACKING | changes))


def quantise(out: Any = None, **changes: Any) -> None:
    _core.quantise([np.ones(300, F4)], np.empty(4160, np.uint8) if out is None else out, **(INT8 | changes))


def dequantise(source: Any, targets: Any, **changes: Any) -> None:
    _core.dequantise(source, targets, **(INT8 | changes))


SHARED = np.zeros(64, F4)
CASES: list[tuple[Callable[[], None], str]] = [
    (lambda: pack([np.ones(3, F4), np.ones(3)]), r"sources\[1\] must be float32 \(f4\), got f8"),
    (lambda: pack([np.ones(3, ">f4")]), r"sources\[0\] must be float32 \(f4\), got >f4"),
    (lambda: pack([np.ones(6, F4)[::2]]), r"sources\[0\] must be dense"),
    (lambda: pack([np.ones((3, 4), F4)[:, :2]]), r"sources\[0\] must be dense"),
    (lambda: pack([np.ones(6, F4)[::-1]]), r"sources\[0\] must be dense"),
    (lambda: pack([np.broadcast_to(F4(1), (3, 2))]), r"sources\[0\] must be dense"),
    (lambda: pack([unaligned(3, F4)]), r"sources\[0\] must be aligned to its items"),
    (lambda: pack(out=np.empty(6, np.float16)), r"out must have shape \(n,\), n at least 7.* got \(6,\) and f2"),
    (lambda: pack(out=np.empty(7, F4)), r"and type f2, got \(7,\) and f4"),
    (lambda: pack(out=np.empty(7, np.float16), wire="bfloat16"), r"and type u2, got \(7,\) and f2"),
    (lambda: pack(out=np.empty((7, 1), np.float16)), r"out must have shape \(n,\).* got \(7, 1\)"),
    (lambda: pack(out=np.empty(14, np.float16)[::2]), r"out must have shape \(n,\), n at least 7, without gaps"),
    (lambda: pack(out=unaligned(7, np.float16)), "out must be aligned to its items"),
    (lambda: pack(out=read_only(np.empty(7, np.float16))), "out must be writable"),
    (lambda: pack(wire="int4"), "wire must be float32, float16 or bfloat16, got int4"),
    (lambda: pack(scale=float("nan")), "scale must be finite in float32, got nan"),
    (lambda: pack(scale=1e39), r"scale must be finite in float32, got 1e\+39"),
    (lambda: pack(threads=0), "threads must be at least 1, got 0"),
    (lambda: pack(norms=np.empty(3)), "norms must have one item for each of the 2 tensors, got 3"),
    (lambda: pack(norms=np.empty(1)), r"norms must have shape \(n,\), n at least 2"),
    (lambda: pack(norms=np.empty(2, F4)), r"and type f8, got \(2,\) and f4"),
    (lambda: pack([SHARED], SHARED, wire="float32"), r"sources\[0\] overlaps out|out overlaps sources\[0\]"),
    (lambda: pack([SHARED[:9], SHARED[:3]], SHARED.view("f2")[15:33]), r"overlaps"),
    (lambda: pack([SHARED[8:]], SHARED.view("f2")[:80]), r"sources\[0\] overlaps out in memory"),
    (lambda: unpack(targets=[SHARED[:2], SHARED[1:2]]), r"targets\[1\] overlaps targets\[0\] in memory"),
    (lambda: unpack(targets=[read_only(np.ones(3, F4))]), r"targets\[0\] must be writable"),
    (lambda: unpack(np.ones(2, np.float16)), r"source must have shape \(n,\), n at least 3"),
    (lambda: unpack(np.ones(3, F4)), r"source must have .* type f2"),
    (lambda: quantise(np.empty(4159, np.uint8)), r"out must have shape \(n,\), n at least 4160"),
    (lambda: quantise(np.empty(4160, np.int8)), r"and type u1, got \(4160,\) and i1"),
    (lambda: quantise(residual=np.zeros(299, F4)), r"residual must have shape \(n,\), n at least 300"),
    (lambda: quantise(residual=read_only(np.zeros(300, F4))), "residual must be writable"),
    (lambda: dequantise(np.empty(4160, np.uint8), [np.ones(5000, F4)]), r"source must have .* at least 8320"),
    (lambda: _core.layer_norms([SHARED], SHARED.view("f8")[:1], threads=1), r"overlaps"),
    (lambda: _core.layer_norms([SHARED], np.empty(2), threads=1), "norms must have one item for each of the 1"),
    (lambda: _core.stream_read(np.zeros(100, np.uint8), threads=1), "source must be whole lines of 64 bytes"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_what_does_not_fit_is_named(call: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("tensor", [None, [1.0], 3, "tensor"])
def test_what_is_no_array_is_named(tensor: Any) -> None:
    with pytest.raises(TypeError, match=r"sources\[1\] must be a NumPy array, got <class"):
        pack([np.ones(3, F4), tensor])


def test_a_refused_call_writes_nothing() -> None:
    out = np.full(8, 5, np.float16)
    with pytest.raises(ValueError, match=r"sources\[1\]"):
        pack([np.ones(3, F4), np.ones(3)], out)
    assert (out == 5).all()


def test_sources_may_be_read_only_shared_and_in_any_sequence() -> None:
    source = read_only(np.arange(4, dtype=F4))
    out = np.empty(8, np.float16)
    pack((source, source), out)
    assert out.tolist() == [0, 1, 2, 3] * 2


def test_axes_of_length_one_and_empty_tensors_are_dense_whatever_their_strides() -> None:
    odd = np.lib.stride_tricks.as_strided(np.ones(3, F4), (1, 3, 1), (4000, 4, 12))
    empty = np.ones((4, 6), F4)[::2, 3:3]
    out = np.empty(3, np.float16)
    pack([odd, empty], out)
    assert out.tolist() == [1, 1, 1]


def test_streams_copy_and_read_whole_lines() -> None:
    memory = np.zeros(64 * 40_000 + 64, np.uint8)
    lines = memory[-memory.ctypes.data % 64 :][: 64 * 40_000]
    lines[:] = np.random.default_rng(0).integers(0, 256, len(lines), np.uint8)
    room = np.zeros(len(lines) + 64, np.uint8)
    out = room[-room.ctypes.data % 64 :][: len(lines)]
    _core.stream_copy(lines, out, threads=2)
    assert np.array_equal(lines, out)
    assert _core.stream_read(lines, threads=2) == (lines.view(np.uint32) & 0x7FFFFFFF).max()


def test_it_works_in_a_forked_child() -> None:
    source = np.ones(1_000_000, F4)
    norms = np.empty(1)
    _core.layer_norms([source], norms, threads=3)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = np.empty(1)
            _core.layer_norms([source], own, threads=3)
            code = 0 if own[0] == norms[0] == 1000 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
