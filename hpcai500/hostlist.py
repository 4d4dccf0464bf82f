"""Lists of hosts: Slurm's compressed ones, `n[01-03,7],login`, as names; lists of ranks, folded for people."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence

from hpcai500.errors import UsageError

_NUMBERS = re.compile(r"\[([\d,-]+)\]")
# A list is written by the scheduler; this only keeps a damaged one from filling the memory.
_MOST_HOSTS = 1_000_000
# Every other rank of a thousand would fill a screen.
_MOST_RUNS = 8


def expand_hosts(text: str) -> list[str]:
    """The hosts of `text`, in order: `n[1-2,07],a` is n1, n2, n07, a.

    Forms that this does not know are asked of `scontrol show hostnames`.

    Raises:
        UsageError: neither understands it.
    """
    try:
        return [host for part in _split(text) for host in _expand_one(part)]
    except ValueError:
        return _ask_slurm(text)


def _split(text: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise ValueError(text)
    return parts


def _expand_one(part: str) -> list[str]:
    found = _NUMBERS.search(part)
    if found is None:
        if re.search(r"[\[\]\s]", part):
            raise ValueError(part)
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    numbers = [number for piece in found.group(1).split(",") for number in _count(piece)]
    tails = _expand_one(after) if after else [""]
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]


def _count(piece: str) -> list[str]:
    """`08-10` as 08, 09, 10: as wide as its first number."""
    first, dash, last = piece.partition("-")
    numbers = range(int(first), int(last if dash else first) + 1)
    if not 0 < len(numbers) <= _MOST_HOSTS:
        raise ValueError(piece)
    return [f"{number:0{len(first)}d}" for number in numbers]


def _ask_slurm(text: str) -> list[str]:
    command = ["scontrol", "show", "hostnames", text]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{text!r}: neither hpcai500 nor `scontrol show hostnames` can read this list of hosts: write it as "
            "n[1-8],m3; inside a job, set MASTER_ADDR to the host of rank 0"
        ) from error
    return ended.stdout.split()


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 7`, `ranks 1, 2`, `ranks 0-72, 74-98`: runs of three and more are folded, after eight runs counted."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:_MOST_RUNS])
    rest = sum(map(len, runs[_MOST_RUNS:]))
    plural = "s" if sum(map(len, runs)) != 1 else ""
    return f"rank{plural} {', '.join(shown)}{f' and {rest} more' if rest else ''}"


def is_first_of_host(rank: int, hosts: Sequence[str]) -> bool:
    """Whether `rank` speaks for its host, as the first one there; `hosts` are those of all ranks, in order."""
    return hosts.index(hosts[rank]) == rank
