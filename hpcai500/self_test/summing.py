"""All ranks sum tensors whose total is a whole number that float32 holds: it must come out exactly, on every rank."""

from __future__ import annotations

import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.errors import RunError, WrongAnswerError

# More than one message of any library, and no multiple of any block size.
COUNT = 1_000_003
_PERIOD = 1009


def check_sum(communicator: Communicator, size: int) -> str:
    """All-reduce once.

    Raises:
        RunError: there are not `size` ranks.
        WrongAnswerError: raised on all ranks alike: it names those with another sum, and where it differs.
    """
    if communicator.size != size:
        raise RunError(f"{communicator.size} ranks came together instead of {size}")
    steps = torch.arange(COUNT, dtype=torch.float32) % _PERIOD + 1
    tensor = steps * (communicator.rank + 1)
    communicator.all_reduce(tensor)
    wrong = (tensor != steps * (size * (size + 1) // 2)).nonzero()
    first = int(wrong[0]) if len(wrong) else 0
    complaints = communicator.gather_objects((len(wrong), first, float(tensor[first])))
    for rank, (count, index, value) in enumerate(complaints):
        if count:
            raise WrongAnswerError(
                f"rank {rank} has {count} of {COUNT} sums wrong by {communicator.library}, the first at {index}: "
                f"{value}; do not measure with this library here: try another backend (communication.backend)"
            )
    return f"{size} ranks by {communicator.library}: {COUNT} float32 sums, exactly, on each rank"
