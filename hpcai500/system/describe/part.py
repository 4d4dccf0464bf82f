"""What one look at a node found, what no tool told, and where it looked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.system.describe.tools import Answer, ask


@dataclass(frozen=True)
class Absent:
    """Something that stayed unknown.

    Attributes:
        what: in words.
        tool: who would tell it.
        reason: why it did not.
    """

    what: str
    tool: str
    reason: str

    def document(self) -> dict[str, str]:
        """For the record."""
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """What one look found.

    Attributes:
        values: keys of the node's document; None is unknown.
        raw: what tools printed, by their name.
        absent: what stayed unknown.
    """

    values: Mapping[str, Any]
    raw: Mapping[str, str] = field(default_factory=dict)
    absent: Sequence[Absent] = ()


@dataclass(frozen=True)
class Host:
    """Where looks go; a test gives the files and the tools' output of another machine.

    Attributes:
        root: `/`.
        environment: variables of this process.
        ask: runs a tool: its tokens, and how many seconds it may take.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Callable[..., Answer] = ask
