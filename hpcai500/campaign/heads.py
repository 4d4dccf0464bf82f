"""Heads: the hash of each line of a campaign's journal, given to the committee as soon as the line is written.

A copy of a campaign has its identity, and journal lines of its own from its first attempt on. Whoever was given the
heads of one copy knows it from any other. A head is one line of text; who receives it adds when that was, in UTC:

    HPCAI500 HEAD IDENTITY LINE HASH                           as the campaign prints it
    HPCAI500 HEAD IDENTITY LINE HASH 2026-11-22T03:00:05Z      as the committee keeps it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcai500.campaign.reading import Attempt, Campaign
from hpcai500.errors import UsageError

# Of 80,000 heads: those of a thousand campaigns. They come from strangers, in letters.
_MOST_BYTES = 2**24
_MOST_SHOWN = 60
_LINE = re.compile(r"HPCAI500 HEAD ([0-9a-f]{64}) ([1-9]\d{0,8}) ([0-9a-f]{64})(?: (\S+))?", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_EXAMPLE = "2026-11-22T03:00:05Z"


@dataclass(frozen=True)
class Head:
    """The hash of one line of a campaign's journal.

    Attributes:
        campaign: the campaign's identity.
        line: number of the line in the journal (from 1).
        hash: of that line; it stands for all lines before it, too.
    """

    campaign: str
    line: int
    hash: str

    def __str__(self) -> str:
        return f"HPCAI500 HEAD {self.campaign} {self.line} {self.hash}"


# When the committee received each head (UNIX time in milliseconds): the first time, where it came more than once.
GivenHeads = Mapping[Head, int]


def heads_of(campaign: Campaign) -> tuple[Head, ...]:
    """The heads of all lines of the journal but the first, whose hash is the identity."""
    hashes = [*(event["prev"] for event in campaign.events[1:]), campaign.head]
    return tuple(Head(campaign.identity, line, one) for line, one in enumerate(hashes, 1))[1:]


def last_head(campaign: Campaign, attempt: Attempt) -> Head:
    """The head of the last line that is about `attempt`: other attempts may have written since."""
    number = (attempt.trial, attempt.attempt)
    lines = zip(heads_of(campaign), (event["value"] for event in campaign.events[1:]), strict=True)
    return [head for head, value in lines if (value["trial"], value["attempt"]) == number][-1]


def read_heads(path: Path) -> GivenHeads:
    """The heads of a committee's file, of whatever campaigns.

    Raises:
        UsageError: it cannot be read, is too long, has no head, or has a line that is none.
    """
    if not path.is_file():
        what = "no file" if path.exists() else "no such file"
        raise UsageError(f"--heads {path}: {what}; expected one of the lines that `hpcai500 campaign heads DIR` prints")
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--heads {path}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(
            f"--heads {path}: more than {_MOST_BYTES >> 20} MiB; keep the heads of each year in its own file"
        )
    heads: dict[Head, int] = {}
    for number, line in enumerate(content.decode("ascii", errors="replace").split("\n"), 1):
        if words := " ".join(line.split()):
            head, received_ms = _parse(words, f"--heads {path}:{number}")
            heads[head] = min(received_ms, heads.get(head, received_ms))
    if not heads:
        raise UsageError(f"--heads {path}: no head; expected lines that `hpcai500 campaign heads DIR` prints")
    return heads


def _parse(line: str, place: str) -> tuple[Head, int]:
    found = _LINE.fullmatch(line)
    if found is None:
        shown = line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
        raise UsageError(f"{place}: expected `HPCAI500 HEAD IDENTITY LINE HASH {_EXAMPLE}`, got {shown!r}")
    moment = found[4]
    if moment is None:
        raise UsageError(f"{place}: when was it received? Add that at the end of the line, in UTC: {_EXAMPLE}")
    try:
        if not _MOMENT.fullmatch(moment):
            raise ValueError
        received_ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
    except ValueError as error:
        raise UsageError(f"{place}: expected the time of receipt in UTC, as {_EXAMPLE}, got {moment[:40]!r}") from error
    return Head(found[1], int(found[2]), found[3]), received_ms
