"""Arrays in an uncompressed ZIP file of NumPy's own format (.npz): written without a copy, read without trust.

Equal arrays give equal files, byte by byte: no time of writing is in them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hpcai500.errors import WrongAnswerError
from hpcai500.streams import spelt_out
from hpcai500.workloads.voting.base import Form

_SUFFIX = ".npy"
_MOST_LETTERS = 60
# An array of ours has a header of 128 bytes.
_HEADER_BYTES = 1024


def write_arrays(stream: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write `arrays` by name into `stream`, which can seek.

    Raises:
        OSError: the disk is full.
    """
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def read_arrays(stream: IO[bytes], form: Form) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `form` in a file that may come from anybody: exactly these, and never more than it has bytes.

    Raises:
        WrongAnswerError: it holds something else.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            _require_entries(archive, form)
            return {name: _array(archive, name, *form[name]) for name in form}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise WrongAnswerError(f"not a file of predictions: {_words(error)}") from error


def _require_entries(archive: zipfile.ZipFile, form: Form) -> None:
    entries = archive.infolist()
    found, expected = [entry.filename for entry in entries], [name + _SUFFIX for name in form]
    if sorted(found) != sorted(expected):
        named = ", ".join(spelt_out(name, _MOST_LETTERS) for name in found[:8])
        raise WrongAnswerError(f"holds {named or 'nothing'}; expected {', '.join(expected)}")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size for entry in entries):
        raise WrongAnswerError("is compressed; predictions are not")


def _array(archive: zipfile.ZipFile, name: str, dtype: str, dimensions: int) -> npt.NDArray[Any]:
    """What an entry says of itself is checked before any memory is taken for it."""
    size = archive.getinfo(name + _SUFFIX).file_size
    with archive.open(name + _SUFFIX) as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise WrongAnswerError(f"{name}: in version {version[0]}.{version[1]} of NumPy's format, expected 1.0")
        shape, is_fortran, found = np.lib.format.read_array_header_1_0(member, max_header_size=_HEADER_BYTES)
        if found != np.dtype(dtype) or len(shape) != dimensions or is_fortran:
            text = f"{found} in {len(shape)} dimensions"
            raise WrongAnswerError(
                f"{name}: {spelt_out(text, _MOST_LETTERS)}, expected {np.dtype(dtype)} in {dimensions}"
            )
        count = 1
        for length in shape:
            count *= int(length)
        if count * found.itemsize != size - member.tell():
            raise WrongAnswerError(f"{name}: claims {shape} numbers and has other bytes than those")
        array = np.empty(shape, found)
        _fill(member, array)
    return array


def _fill(member: IO[bytes], array: npt.NDArray[Any]) -> None:
    rest = memoryview(array.reshape(-1).view(np.uint8).data)
    while rest:
        block = member.read(min(len(rest), 1 << 24))
        if not block:
            raise WrongAnswerError("ends too early")
        rest[: len(block)] = block
        rest = rest[len(block) :]
    # The sum of an entry is checked where it ends.
    member.read(1)


def _words(error: Exception) -> str:
    return spelt_out((str(error).splitlines() or [type(error).__name__])[0], _MOST_LETTERS)
