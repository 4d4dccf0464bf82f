"""Names of hosts in lists of strangers: expanded only where that takes little."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from hpcai500.hostlist import expand_hosts

_PLAIN = re.compile(r"[A-Za-z0-9_.,\[\]-]{1,100000}")
_BRACKET = re.compile(r"\[([\d,-]*)\]")
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_HOSTS = 100_000


def names_of_list(text: str) -> list[str] | None:
    """The hosts of Slurm's `n[01-03],login`; None where it is no list that can be expanded here."""
    if not _PLAIN.fullmatch(text):
        return None
    total = 0
    for part in re.split(r",(?![^\[]*\])", text):
        counts = [_count(inside) for inside in _BRACKET.findall(part)]
        if None in counts or set("[]") & set(_BRACKET.sub("", part)) or part in ("", "-"):
            return None
        total += math.prod(count for count in counts if count is not None)
    return expand_hosts(text) if total <= _MOST_HOSTS else None


def short_names(hosts: Iterable[object]) -> set[str]:
    """First labels: a node is `n1` to Slurm, and may call itself `n1.cluster`."""
    return {str(host).partition(".")[0] for host in hosts}


def _count(inside: str) -> int | None:
    """How many numbers `01-03,7` are."""
    found = [_PIECE.fullmatch(piece) for piece in inside.split(",")]
    if None in found:
        return None
    ranges = [(int(piece.group(1)), int(piece.group(2) or piece.group(1))) for piece in found if piece]
    return sum(last - first + 1 for first, last in ranges) if all(first <= last for first, last in ranges) else None
