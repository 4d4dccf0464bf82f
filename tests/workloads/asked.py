"""Counts what a piece of torch code would ask a GPU: each such operator makes the host wait for all that is queued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Their result's shape, or a Python value, follows from the data. `lift_fresh` is a number that becomes a tensor on the
# host: where it is needed on a GPU, it is copied.
_ASKING = {
    "aten::nonzero",
    "aten::nonzero_static",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::bincount",
    "aten::histc",
    "aten::lift_fresh",
    "hpcai500::nms",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
# They start no kernel: what they give is another look at the same memory, or memory that is not filled.
_LOOKING = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "t", "transpose", "permute"),
    *("expand", "squeeze", "unsqueeze", "select", "slice", "split", "split_with_sizes", "unbind", "lift_fresh"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
}


class Asked(TorchDispatchMode):
    """Counts operators while it is entered.

    Attributes:
        questions: operators that would make the host wait for a GPU, by name.
        started: all others that compute something, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.questions: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = function._schema.name
        if name in _ASKING or _by_mask(name, arguments) or _repeats_by_data(name, named or {}):
            self.questions[name] += 1
        elif name.removeprefix("aten::") not in _LOOKING:
            self.started[name] += 1
        return function(*arguments, **(named or {}))


def _by_mask(name: str, arguments: tuple[Any, ...]) -> bool:
    """Indexing by a mask, whose number of rows only the device knows."""
    return name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in arguments[1])


def _repeats_by_data(name: str, named: Mapping[str, Any]) -> bool:
    return name == "aten::repeat_interleave" and named.get("output_size") is None


def asked(work: Callable[[], Any]) -> Asked:
    """What `work` asks and starts."""
    with Asked() as counts:
        work()
    return counts
