"""Rows that the ranks have computed, brought together on the rank that writes."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator

# Of one exchange, over all ranks: all that anyone holds beside its own rows and, on rank 0, the whole.
_BLOCK_BYTES = 32 << 20


def gather_rows(share: Tensor, ranks: Communicator) -> Tensor | None:
    """The rows of all ranks one below the other, by rank, on rank 0; None elsewhere.

    Args:
        share: this rank's rows (n, columns) on the host; ranks may have different numbers of them.
        ranks: all that have rows.
    """
    if ranks.size == 1:
        return share
    counts: list[int] = ranks.gather_objects(share.shape[0])
    columns = share.shape[1]
    rows = max(1, _BLOCK_BYTES // (columns * share.element_size() * ranks.size))
    mine = torch.zeros(rows, columns, dtype=share.dtype)
    block = torch.empty(ranks.size, rows, columns, dtype=share.dtype)
    whole = torch.empty(sum(counts), columns, dtype=share.dtype) if ranks.rank == 0 else None
    for at in range(0, max(counts), rows):
        part = share[at : at + rows]
        mine[: part.shape[0]] = part
        ranks.all_gather(mine.view(-1), block.view(-1))
        if whole is not None:
            _place(block, whole, counts, at)
    return whole


def _place(block: Tensor, whole: Tensor, counts: list[int], at: int) -> None:
    first = 0
    for rank, count in enumerate(counts):
        rows = min(block.shape[1], max(0, count - at))
        whole[first + at : first + at + rows] = block[rank, :rows]
        first += count
