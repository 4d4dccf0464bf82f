"""Where a rank's events go: rank 0 writes the record, the others keep silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol


class Journal(Protocol):
    """What the engine asks of a record that it writes; `RecordWriter` is the one that writes."""

    path: Path

    def event(self, key: str, value: Any = None) -> Any:
        """Append one event."""

    def write_system(self, system: Mapping[str, Any]) -> None:
        """Keep what the nodes are."""

    def write_picture(self, name: str, content: bytes) -> None:
        """Keep a picture."""

    def write_trace(self, name: str, content: bytes) -> None:
        """Keep a trace."""

    def write_predictions(self, kind: str, samples: int, write: Callable[[IO[bytes]], None]) -> None:
        """Keep what a member of an ensemble says of so many samples."""


class SilentJournal:
    """The journal of every rank but the first: the record has one author."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, key: str, value: Any = None) -> None:
        """Say nothing."""

    def write_system(self, system: Mapping[str, Any]) -> None:
        """Write nothing."""

    def write_picture(self, name: str, content: bytes) -> None:
        """Write nothing."""

    def write_trace(self, name: str, content: bytes) -> None:
        """Write nothing."""

    def write_predictions(self, kind: str, samples: int, write: Callable[[IO[bytes]], None]) -> None:
        """Write nothing."""
