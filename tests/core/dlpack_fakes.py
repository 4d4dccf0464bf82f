"""Fake arrays in device memory: with a dictionary, or with a DLPack table of their own, which ctypes makes: what a
framework's C code would show of a CUDA tensor.

The pointers lead nowhere: only for calls that are refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

CPU, CUDA, CUDA_MANAGED = 1, 2, 13
# Everything that a table needs for as long as the process lives.
_KEPT: list[Any] = []
_CAPSULE_NAME = b"dlpack_exchange_api"


class Shown(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Table(ctypes.Structure):
    """DLPackExchangeAPI, of whose functions only `show` is asked."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("show", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


_SHOW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Shown))


def function(show: Callable[[Any, Any], int]) -> int:
    """The address of a C function that calls `show(object, pointer to Shown)`."""
    made = _SHOW(show)
    _KEPT.append(made)
    return ctypes.cast(made, ctypes.c_void_p).value or 0


def real_function(name: str) -> int:
    """The address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def table(show: int, major: int = 1, minor: int = 3, previous: Table | None = None) -> Table:
    """A table whose `show` is at that address; 0 is none."""
    made = Table(major, minor, ctypes.addressof(previous) if previous is not None else None)
    made.show = show
    _KEPT.append(made)
    return made


def capsule(content: Table, name: bytes = _CAPSULE_NAME) -> Any:
    """The attribute of a type."""
    _KEPT.append(name)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(content), name, None)


def fake_type(attribute: Any, **attributes: Any) -> type:
    """A type with `attribute` as its capsule."""
    return type("Fake", (), {"__dlpack_c_exchange_api__": attribute, **attributes})


def show_address(fake: type) -> int:
    """The address of the function in a fake type's table."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    attribute: Any = fake.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    return int(Table.from_address(get(attribute, _CAPSULE_NAME)).show)


def _copy(fake: Any, shown: Any) -> int:
    ctypes.memmove(shown, ctypes.byref(fake.shown), ctypes.sizeof(Shown))
    return 0


class FakeTensor:
    """What is shown of it is what it is made with; float32 on CUDA device 0 by default."""

    __dlpack_c_exchange_api__ = capsule(table(function(_copy)))

    def __init__(
        self,
        at: int | None,
        shape: tuple[int, ...],
        item: tuple[int, int] = (2, 32),
        strides: tuple[int, ...] | None = None,
        device: tuple[int, int] = (CUDA, 0),
        shape_given: bool = True,
        **changes: int,
    ) -> None:
        self.shown = Shown(at, *device, len(shape), *item, 1)
        if shape_given:
            self.shown.shape = (ctypes.c_int64 * len(shape))(*shape)
        if strides is not None:
            self.shown.strides = (ctypes.c_int64 * len(strides))(*strides)
        for field, value in changes.items():
            setattr(self.shown, field, value)


class Described:
    """What its dictionary says is what it is made with; a value of "absent" leaves a key out."""

    def __init__(
        self, at: int = 4096, shape: tuple[int, ...] = (1, 2, 3, 4), typestr: Any = "<f4", **changes: Any
    ) -> None:
        interface = {"shape": shape, "typestr": typestr, "data": (at, False), "version": 3} | changes
        self.__cuda_array_interface__ = {key: value for key, value in interface.items() if value != "absent"}
