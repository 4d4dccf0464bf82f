"""Each collective of a communicator against NumPy: called on every rank, raises on the first difference."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator

TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16)
LENGTHS = (1, 301)
GUARD = 3


def every_collective(communicator: Communicator) -> int:
    """Check all collectives on all types and lengths; returns how many results were compared."""
    compared = 0
    for dtype in TYPES:
        for length in LENGTHS:
            for check in (_all_reduce, _reduce, _broadcast, _reduce_scatter, _all_gather, _all_to_all):
                check(communicator, dtype, length)
                compared += 1
    return compared


def given(rank: int, dtype: torch.dtype, length: int) -> Tensor:
    """What `rank` brings: exact in every type, so large in uint8 that sums wrap round, signed where there are signs."""
    values = np.random.default_rng(1000 * rank + length).integers(0, 256, length)
    return torch.from_numpy(values - (128 if dtype is not torch.uint8 else 0)).to(dtype)


def _all_reduce(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    tensor = _guarded(given(communicator.rank, dtype, length))
    communicator.all_reduce(tensor)
    _same(tensor, _sum(communicator, dtype, length), communicator, "all_reduce")
    _unharmed(tensor)


def _reduce(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    root = communicator.size - 1
    tensor = _guarded(given(communicator.rank, dtype, length))
    communicator.reduce(tensor, root)
    if communicator.rank == root:
        _same(tensor, _sum(communicator, dtype, length), communicator, "reduce")
    _unharmed(tensor)


def _broadcast(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    root = communicator.size - 1
    tensor = _guarded(given(communicator.rank, dtype, length))
    communicator.broadcast(tensor, root)
    _same(tensor, _wide(given(root, dtype, length)), communicator, "broadcast")
    _unharmed(tensor)


def _reduce_scatter(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    source = given(communicator.rank, dtype, length * communicator.size)
    target = _guarded(torch.zeros(length, dtype=dtype))
    communicator.reduce_scatter(source, target)
    total = _sum(communicator, dtype, length * communicator.size)
    _same(target, np.split(total, communicator.size)[communicator.rank], communicator, "reduce_scatter")
    _unharmed(target)


def _all_gather(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    target = _guarded(torch.zeros(length * communicator.size, dtype=dtype))
    communicator.all_gather(given(communicator.rank, dtype, length), target)
    parts = [_wide(given(rank, dtype, length)) for rank in range(communicator.size)]
    _same(target, np.concatenate(parts), communicator, "all_gather")
    _unharmed(target)


def _all_to_all(communicator: Communicator, dtype: torch.dtype, length: int) -> None:
    size, whole = communicator.size, length * communicator.size
    target = _guarded(torch.zeros(whole, dtype=dtype))
    communicator.all_to_all(given(communicator.rank, dtype, whole), target)
    parts = [np.split(_wide(given(rank, dtype, whole)), size)[communicator.rank] for rank in range(size)]
    _same(target, np.concatenate(parts), communicator, "all_to_all")
    _unharmed(target)


def _wide(tensor: Tensor) -> np.ndarray:
    """The same numbers in a type of NumPy: it has no bfloat16."""
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _sum(communicator: Communicator, dtype: torch.dtype, length: int) -> np.ndarray:
    """Sums of small whole numbers are exact in any order, but for bfloat16 beyond 256 and what wraps round in uint8."""
    parts = np.stack([_wide(given(rank, dtype, length)) for rank in range(communicator.size)])
    return parts.sum(axis=0, dtype=parts.dtype)


def _same(got: Tensor, expected: np.ndarray, communicator: Communicator, what: str) -> None:
    # bfloat16 has 8 bits: each of at most size - 1 additions rounds by half a unit in the last place of up to 512.
    tolerance = 2.0 * (communicator.size - 1) if got.dtype is torch.bfloat16 and "reduce" in what else 0.0
    where = f"{what} of {expected.size} {got.dtype} on rank {communicator.rank} of {communicator.size}"
    np.testing.assert_allclose(_wide(got), expected, rtol=0, atol=tolerance, err_msg=where)


def _guarded(tensor: Tensor) -> Tensor:
    """The same numbers inside a larger piece of memory, as a bucket's part is."""
    room = torch.full((tensor.numel() + 2 * GUARD,), 99, dtype=tensor.dtype)
    room[GUARD:-GUARD] = tensor
    return room[GUARD:-GUARD]


def _unharmed(tensor: Tensor) -> None:
    room = tensor._base
    assert room is not None
    assert torch.equal(room[:GUARD], torch.full_like(room[:GUARD], 99))
    assert torch.equal(room[-GUARD:], torch.full_like(room[-GUARD:], 99))
