"""What a type shows by DLPack is checked like a dictionary's words; torch's tensors are read without one.

Torch's own table is real, and so are its tensors of the processor. No device is needed: a CUDA tensor is faked by
tables made here, whose pointers lead nowhere and are never followed, as every such call is refused.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
import torch
from dlpack_fakes import (
    CUDA,
    CUDA_MANAGED,
    FakeTensor,
    capsule,
    fake_type,
    function,
    real_function,
    show_address,
    table,
)
from torch import Tensor

from hpcai500 import _core
from hpcai500.comm import kernels

built_with_cuda = bool(_core.cuda_architectures())
needs_cuda_build = pytest.mark.skipif(not built_with_cuda, reason="no CUDA device can be used by a build without CUDA")
PLACE: dict[str, Any] = {"device": 0, "stream": 0}
NORMS = FakeTensor(5 << 20, (1,), (2, 64))
WORKSPACE = FakeTensor(4 << 20, (4096,), (1, 8))
# Refused as the last argument: all before it was found good.
ODD_WORKSPACE = FakeTensor((4 << 20) + 4, (4096,), (1, 8))
ACCEPTED = "workspace must begin at a multiple of 8"


def norm(tensor: Any) -> float:
    """As the core reads a tensor of the processor."""
    out = np.empty(1)
    _core.layer_norms([tensor], out, threads=1)
    return float(out[0])


def norm_on_device(tensor: Any, **changes: Any) -> None:
    """Looks at `tensor`, then refuses the workspace."""
    arguments = {"out": NORMS, "workspace": ODD_WORKSPACE} | PLACE | changes
    _core.layer_norms_cuda([tensor], **arguments)


BASE = torch.arange(1.0, 121.0)
LAYOUTS = {
    "contiguous": BASE.view(2, 3, 4, 5),
    "channels_last": BASE.view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "transposed": BASE.view(10, 12).t(),
    "with an offset": BASE[7:],
    "without axes": BASE[5],
    "a view of one": BASE[3:4],
    "length 1 with an odd stride": BASE.as_strided((1, 4), (77, 1)),
    "empty": BASE[:0],
    "empty of three axes": torch.empty(3, 0, 5),
    "wants a gradient": torch.nn.Parameter(BASE.clone()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_is_read_where_it_lies(name: str) -> None:
    tensor = LAYOUTS[name]
    assert norm(tensor) == pytest.approx(float(tensor.detach().double().norm()), rel=1e-12)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_is_packed_in_the_order_of_its_memory(name: str) -> None:
    tensor = LAYOUTS[name].detach()
    out, expected = np.zeros(tensor.numel(), np.float32), np.zeros(tensor.numel(), np.float32)
    _core.pack([tensor], out, wire="float32", scale=2.0, threads=1)
    _core.pack([tensor.numpy()], expected, wire="float32", scale=2.0, threads=1)
    np.testing.assert_array_equal(out, expected)


def test_writing_to_a_lazy_copy_leaves_its_original() -> None:
    original = torch.ones(4)
    copy = torch._lazy_clone(original)
    _core.unpack(np.full(4, 7, np.float32), [copy], wire="float32", scale=1.0, threads=1)
    assert copy.tolist() == [7] * 4
    assert original.tolist() == [1] * 4


TYPES = {
    torch.float64: "f8",
    torch.float16: "f2",
    torch.bfloat16: "u2",
    torch.uint16: "u2",
    torch.uint8: "u1",
    torch.int8: "i1",
    torch.int16: "i2",
    torch.int32: "i4",
    torch.int64: "i8",
    torch.bool: "b1",
    torch.complex64: "c8",
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_another_type_is_named_as_numpy_names_it(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=re.escape(f"tensors[0] must be float32 (f4), got {TYPES[dtype]}")):
        norm(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float8_e4m3fn], ids=str)
def test_a_type_that_the_core_has_no_name_for_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"tensors\[0\]: DLPack must show items of 1, 2, 4 or 8 bytes, got type code"):
        norm(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize(
    "tensor", [BASE[::2], BASE.view(10, 12)[:, :6], BASE[:1].expand(3), BASE.view(10, 12)[::2]], ids=str
)
def test_a_tensor_with_gaps_is_refused(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match=r"tensors\[0\] must be dense"):
        norm(tensor)


def test_tensors_without_memory_are_refused_with_torchs_reason_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"^tensors\[0\] is a Tensor that cannot show its memory: .* meta$") as caught:
        norm(torch.empty(2, device="meta"))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(TypeError, match=r"tensors\[0\] is a Tensor that cannot show its memory"):
        norm(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="DLPack must show a pointer that is not null, got null"):
        norm(torch._efficientzerotensor(3))


def test_a_negated_view_is_refused_before_its_memory_is_read() -> None:
    with pytest.raises(ValueError, match=r"a tensor has its negative bit set: pass tensor\.resolve_neg\(\)"):
        kernels.layer_norms([torch._neg_view(BASE)], torch.empty(1, dtype=torch.float64))


def test_overlap_with_a_tensor_is_seen() -> None:
    with pytest.raises(ValueError, match=r"overlaps"):
        _core.pack([BASE[:8]], BASE[4:16].numpy(), wire="float32", scale=1.0, threads=1)


def test_a_tensor_of_a_device_is_not_the_processors_nor_the_other_way_round() -> None:
    with pytest.raises(TypeError, match=r"tensors\[0\] must be in the processor's memory, got one on CUDA device 0"):
        norm(FakeTensor(1 << 20, (4,)))
    with pytest.raises(TypeError, match=r"tensors\[0\] must be an array in CUDA memory, got one in the processor's"):
        norm_on_device(BASE)
    with pytest.raises(TypeError, match="workspace must be an array in CUDA memory, got one in the processor's memory"):
        norm_on_device(FakeTensor(1 << 20, (4,)), workspace=torch.empty(4096, dtype=torch.uint8))
    with pytest.raises(TypeError, match="must be an array in CUDA memory, got one on a device of DLPack's type 8"):
        norm_on_device(FakeTensor(1 << 20, (4,), device=(8, 0)))


def test_another_device_than_the_calls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tensors\[0\] must be on CUDA device 0, got one on CUDA device 1"):
        norm_on_device(FakeTensor(1 << 20, (4,), device=(CUDA, 1)))
    with pytest.raises(ValueError, match="out must be on CUDA device 3, got one on CUDA device 0"):
        norm_on_device(FakeTensor(1 << 20, (4,), device=(CUDA, 3)), device=3)
    images = FakeTensor(1 << 20, (1, 3, 4, 4), device=(CUDA, 1))
    with pytest.raises(ValueError, match="images must be on CUDA device 0, got one on CUDA device 1"):
        _core.convert_images_cuda(images, images, **PLACE)


GOOD: dict[str, FakeTensor] = {
    "contiguous": FakeTensor(1 << 20, (3, 4), strides=(4, 1)),
    "no strides": FakeTensor(1 << 20, (3, 4)),
    "any order": FakeTensor(1 << 20, (3, 4, 2), strides=(1, 6, 3)),
    "managed": FakeTensor(1 << 20, (3,), device=(CUDA_MANAGED, 0)),
    "empty, null": FakeTensor(None, (3, 0)),
    "no axes": FakeTensor(1 << 20, ()),
    "no axes, no shape": FakeTensor(1 << 20, (), shape_given=False),
    "aligned by its offset": FakeTensor((1 << 20) + 2, (3,), strides=(1,), byte_offset=2),
}


@needs_cuda_build
@pytest.mark.parametrize("name", GOOD)
def test_what_a_fake_cuda_tensor_shows_is_taken(name: str) -> None:
    with pytest.raises(ValueError, match=ACCEPTED):
        norm_on_device(GOOD[name])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (FakeTensor(1 << 20, (3,), (4, 16)), "must be float32 (f4), got u2"),
        (FakeTensor(1 << 20, (3,), (4, 32)), "got type code 4, 32 bits, 1 lanes"),
        (FakeTensor(1 << 20, (3,), (2, 16)), "must be float32 (f4), got f2"),
        (FakeTensor(1 << 20, (3,), (2, 4)), "got type code 2, 4 bits, 1 lanes"),
        (FakeTensor(1 << 20, (3,), lanes=4), "got type code 2, 32 bits, 4 lanes"),
        (FakeTensor(1 << 20, (3,), (99, 32)), "got type code 99"),
        (FakeTensor(1 << 20, (3,), axes=-1), "DLPack must show at most 64 axes, got -1"),
        (FakeTensor(1 << 20, (3,), axes=65), "DLPack must show at most 64 axes, got 65"),
        (FakeTensor(1 << 20, (3,), shape_given=False), "DLPack must show a shape, got none"),
        (FakeTensor(1 << 20, (3, -4)), "DLPack must show at most 2**48 elements, got (3, -4)"),
        (FakeTensor(1 << 20, (1 << 40, 1 << 40)), "at most 2**48 elements"),
        (FakeTensor(1 << 20, (1 << 40, 1 << 40), strides=(1 << 40, 1)), "at most 2**48 elements"),
        (FakeTensor(None, (3,)), "DLPack must show a pointer that is not null, got null"),
        (FakeTensor(None, (3,), strides=(1,), byte_offset=4), "a pointer that is not null"),
        (FakeTensor((1 << 20) + 1, (3,)), "DLPack must show a pointer aligned to its items, got 1048577"),
        (FakeTensor(1 << 20, (3,), strides=(1,), byte_offset=2), "aligned to its items, got 1048578"),
        (FakeTensor(1 << 20, (3,), strides=(2,)), "must be dense"),
        (FakeTensor(1 << 20, (3, 4), strides=(-4, 1)), "must be dense"),
        (FakeTensor(1 << 20, (3, 4), strides=(1, 1)), "must be dense"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(tensor: FakeTensor, message: str) -> None:
    with pytest.raises(ValueError, match=r"tensors\[0\].*" + re.escape(message)):
        norm_on_device(tensor)


@needs_cuda_build
def test_a_bucket_of_fake_cuda_tensors_is_checked_as_one_of_dictionaries() -> None:
    sources = [FakeTensor(1 << 20, (10, 10), strides=(10, 1)), FakeTensor(2 << 20, (3, 4), strides=(1, 3))]
    bfloat = FakeTensor(3 << 20, (112,), (4, 16))
    call: dict[str, Any] = {"wire": "bfloat16", "scale": 1.0, **PLACE}
    with pytest.raises(ValueError, match=ACCEPTED):
        _core.pack_cuda(sources, bfloat, ODD_WORKSPACE, **call)
    with pytest.raises(ValueError, match=ACCEPTED):
        _core.unpack_cuda(FakeTensor(3 << 20, (112,), (1, 16)), sources, ODD_WORKSPACE, **call)
    with pytest.raises(ValueError, match="and type f2, got \\(112,\\) and u2"):
        _core.pack_cuda(sources, bfloat, WORKSPACE, **call | {"wire": "float16"})
    with pytest.raises(ValueError, match=r"out overlaps sources\[1\] in memory"):
        _core.pack_cuda(sources, FakeTensor((2 << 20) + 46, (112,), (4, 16)), WORKSPACE, **call)
    with pytest.raises(ValueError, match=r"targets\[1\] overlaps targets\[0\] in memory"):
        _core.unpack_cuda(bfloat, [sources[1], sources[1]], WORKSPACE, **call)


class Described:
    """With a dictionary, for types whose table cannot be used; counts how often it is asked for."""

    asked = 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.asked += 1
        return {"shape": (3,), "typestr": "<f8", "data": (1 << 20, False), "version": 3}


BY_DICTIONARY = r"tensors\[0\] must be float32 \(f4\), got f8"
NEWER = table(0, major=2)
UNUSABLE = {
    "no such attribute": None,
    "no capsule": "a string",
    "a capsule of another name": capsule(table(1), b"something_else"),
    "a version that is not known": capsule(NEWER),
    "a version from before": capsule(table(1, major=0)),
    "no function": capsule(table(0)),
    "a chain without end": None,
}
NEWER_AND_ITSELF = table(1, major=2)
NEWER_AND_ITSELF.previous = ctypes.addressof(NEWER_AND_ITSELF)
UNUSABLE["a chain without end"] = capsule(NEWER_AND_ITSELF)


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_table_that_cannot_be_used_leaves_the_dictionary_which_is_asked_for_once(name: str) -> None:
    attributes = {} if UNUSABLE[name] is None else {"__dlpack_c_exchange_api__": UNUSABLE[name]}
    described = type("Fake", (Described,), attributes)()
    with pytest.raises(ValueError, match=BY_DICTIONARY):
        norm_on_device(described)
    assert described.asked == 1


def test_an_older_table_of_a_version_that_is_known_is_used() -> None:
    newest = table(1, major=3, previous=table(1, major=2, previous=table(show_address(FakeTensor))))
    tensor: Any = fake_type(capsule(newest))()
    tensor.shown = FakeTensor(1 << 20, (3,), (0, 64)).shown
    with pytest.raises(ValueError, match=r"tensors\[0\] must be float32 \(f4\), got i8"):
        norm_on_device(tensor)


def test_a_type_with_neither_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"must be an array in CUDA memory \(.*\), got <class '.*\.Fake'>"):
        norm_on_device(fake_type(capsule(NEWER))())


def test_a_function_that_fails_without_a_reason_is_told() -> None:
    tensor = fake_type(capsule(table(function(lambda _object, _shown: -1))))()
    for call in (norm, norm_on_device):
        with pytest.raises(TypeError, match=r"tensors\[0\] is a Fake that .*: its DLPack function does not say why"):
            call(tensor)
    with pytest.raises(TypeError, match="workspace is a Fake that cannot show its memory"):
        norm_on_device(FakeTensor(1 << 20, (3,)), workspace=tensor)


class Moody:
    """Raises what it is made with when a C function asks for its truth, which here stands for a table's function."""

    __dlpack_c_exchange_api__ = capsule(table(real_function("PyObject_IsTrue")))

    def __init__(self, mood: BaseException) -> None:
        self._mood = mood

    def __bool__(self) -> bool:
        raise self._mood


def test_a_function_that_fails_with_a_reason_is_told_with_it() -> None:
    reason = BufferError("first line\nsecond")
    with pytest.raises(TypeError, match=r"^tensors\[0\] is a Moody that cannot show its memory: first line$") as caught:
        norm_on_device(Moody(reason))
    assert caught.value.__cause__ is reason


def test_an_interrupt_within_a_function_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        norm_on_device(Moody(KeyboardInterrupt()))


def test_an_error_of_a_dictionary_stays_what_it_is() -> None:
    class Failing:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("wants a gradient")

    with pytest.raises(RuntimeError, match="wants a gradient"):
        norm_on_device(Failing())


def test_the_items_of_a_sequence_that_makes_them_live_until_the_call_is_done() -> None:
    class Made:
        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> Tensor:
            return torch.full((1000,), float(index))

    out = np.empty(50)
    _core.layer_norms(Made(), out, threads=1)  # type: ignore[arg-type]
    np.testing.assert_allclose(out, np.arange(50) * np.sqrt(1000))
