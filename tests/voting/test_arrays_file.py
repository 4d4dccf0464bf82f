"""Files of predictions: whole, the same for the same arrays, and harmless whoever made them."""

from __future__ import annotations

import io
import pickle
import zipfile
from random import Random
from typing import Any

import numpy as np
import pytest

from hpcai500.errors import WrongAnswerError
from hpcai500.workloads.voting import read_arrays, write_arrays

FORM = {"samples": ("<i8", 1), "logits": ("<f4", 2)}
ARRAYS = {"samples": np.arange(3), "logits": np.arange(6, dtype=np.float32).reshape(3, 2)}


def written(arrays: dict[str, Any] = ARRAYS) -> bytes:
    stream = io.BytesIO()
    write_arrays(stream, arrays)
    return stream.getvalue()


def test_arrays_come_back_and_numpy_reads_them_too() -> None:
    found = read_arrays(io.BytesIO(written()), FORM)
    loaded = np.load(io.BytesIO(written()), allow_pickle=False)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert np.array_equal(loaded[name], array)


def test_empty_arrays_come_back() -> None:
    empty = {"samples": np.arange(0), "logits": np.empty((0, 2), np.float32)}
    assert read_arrays(io.BytesIO(written(empty)), FORM)["logits"].shape == (0, 2)


def test_equal_arrays_make_equal_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before = written()
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert written() == before


def zipped(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(text: str) -> bytes:
    line = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


SAMPLES = npy(ARRAYS["samples"])
HUGE = header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a file of predictions"),
        (b"PK\x03\x04 and no more", "not a file of predictions"),
        (written()[:-40], "not a file of predictions"),
        (zipped({"samples.npy": SAMPLES}), "holds samples.npy; expected samples.npy, logits.npy"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": SAMPLES, "more": b""}), "holds .*more"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": SAMPLES}), "logits: int64 in 1 dimensions, expected float32"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": npy(ARRAYS["logits"])}, zipfile.ZIP_DEFLATED), "is compressed"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": HUGE}), "has other bytes than those"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": npy(np.array([[None]], object))}), "expected float32"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": pickle.dumps(print)}), "not a file of predictions"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": npy(ARRAYS["logits"].T)}), "expected float32 in 2"),
        (zipped({"samples.npy": SAMPLES, "logits.npy": npy(ARRAYS["logits"].astype(">f4"))}), "logits: >f4"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_predictions_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(WrongAnswerError, match=reason):
        read_arrays(io.BytesIO(content), FORM)


def test_a_changed_byte_is_noticed() -> None:
    content = bytearray(written())
    content[content.index(np.float32(5).tobytes())] ^= 1
    with pytest.raises(WrongAnswerError, match="not a file of predictions: Bad CRC"):
        read_arrays(io.BytesIO(bytes(content)), FORM)


def test_whatever_bytes_are_changed_nothing_but_a_refusal_or_arrays_of_the_form_comes() -> None:
    random, refusals = Random(5), []
    for _ in range(1500):
        content = bytearray(written())
        for _ in range(random.randint(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        try:
            found = read_arrays(io.BytesIO(bytes(content)), FORM)
        except WrongAnswerError as error:
            refusals.append(str(error))
        else:
            assert {name: (array.dtype.str, array.ndim) for name, array in found.items()} == FORM
    assert len(refusals) > 500
    assert not [line for line in refusals if "\n" in line or len(line) > 300]
