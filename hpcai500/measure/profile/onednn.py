"""Layout changes that no operator shows: oneDNN reorders tensors inside its convolutions, and tells when it is asked.

A convolution on a processor wants its channels in blocks; what comes as NCHW is rearranged on the way in, and back on
the way out. For the profiler all of that is one convolution.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from hpcai500.methodology.kernel_classes import CONVOLUTION, GEMM, NORMALISATION, POOLING

_PREFIX = "onednn_verbose"
_REORDER = "reorder"
# Kinds of primitives and the class of the operator around them.
_OWNERS = {
    "convolution": CONVOLUTION,
    "deconvolution": CONVOLUTION,
    "matmul": GEMM,
    "inner_product": GEMM,
    "batch_normalization": NORMALISATION,
    "layer_normalization": NORMALISATION,
    "group_normalization": NORMALISATION,
    "pooling": POOLING,
}
_FORMATS = {"abcd": "NCHW", "acdb": "NHWC", "ab": "rows", "ba": "columns"}
_STDOUT = 1


@dataclass(frozen=True)
class Reorder:
    """One change of layout inside an operator.

    Attributes:
        owner: class of the operator.
        source: the format before, in oneDNN's letters, or its usual name.
        target: the format after.
        shape: as oneDNN writes it: `8x16x56x56`.
        seconds: how long it took.
    """

    owner: str
    source: str
    target: str
    shape: str
    seconds: float


@contextmanager
def listening() -> Iterator[list[str]]:
    """Inside, oneDNN tells what it does; afterwards the list holds its lines. Nothing else may print meanwhile.

    oneDNN knows no other way than this process's stdout, which goes to a file for that long.
    """
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), _STDOUT)
        try:
            # torch annotates its levels as plain numbers.
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                yield lines
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
        sink.seek(0)
        lines += sink.read().decode(errors="replace").splitlines()


def reorders(lines: Iterable[str]) -> list[Reorder]:
    """The layout changes in what oneDNN told; copies that keep the order are none.

    A reorder comes before the primitive that it is for, or right after it, when nothing comes any more.
    """
    primitives = [fields for fields in map(_fields, lines) if fields]
    owners = [_OWNERS.get(fields["kind"]) for fields in primitives]
    # Each reorder belongs to the next primitive that does something, the last ones to the one before.
    for index in range(len(owners) - 2, -1, -1):
        if primitives[index]["kind"] == _REORDER:
            owners[index] = owners[index + 1]
    for before, after in pairwise(range(len(owners))):
        if primitives[after]["kind"] == _REORDER and owners[after] is None:
            owners[after] = owners[before]
    found = []
    for fields, owner in zip(primitives, owners, strict=True):
        source, target = fields["source"], fields["target"]
        if fields["kind"] == _REORDER and owner and source != target:
            found.append(Reorder(owner, _named(source), _named(target), fields["shape"], float(fields["ms"]) / 1e3))
    return found


def typical(steps: Sequence[Sequence[Reorder]]) -> list[Reorder]:
    """The reorders of one step, from those of several: of each kind the median time, so that no hiccup counts."""
    times: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for one in (one for step in steps for one in step):
        times[one.owner, one.source, one.target, one.shape].append(one.seconds)
    found = []
    for kind, seconds in times.items():
        of_one_step = round(len(seconds) / len(steps))
        found += [Reorder(*kind, statistics.median(seconds))] * of_one_step
    return found


def _fields(line: str) -> dict[str, str] | None:
    """Kind, formats, shape and milliseconds of one executed primitive; None for any other line."""
    words = line.split(",")
    if not line.startswith(_PREFIX) or "exec" not in words or len(words) < words.index("exec") + 9:
        return None
    rest = words[words.index("exec") + 1 :]
    tensors = dict(word.split(":", 1) for word in rest[4].split() if ":" in word)
    return {
        "kind": rest[1],
        "source": _format(tensors.get("src", "")),
        "target": _format(tensors.get("dst", "")),
        "shape": rest[-2],
        "ms": rest[-1],
    }


def _format(descriptor: str) -> str:
    """`f32::blocked:aBcd16b::f0` and `f32:a:blocked:abcd::f0` -> the letters."""
    words = descriptor.split(":")
    return words[words.index("blocked") + 1] if "blocked" in words[:-1] else ""


def _named(letters: str) -> str:
    blocks = [letter for letter in letters if letter.isdigit() or letter.isupper()]
    return f"blocks {letters}" if blocks else _FORMATS.get(letters, letters)
