"""What a data set is cut into, whichever benchmark's it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hpcai500.data.staging.digests import Digests, Marks, Pieces
from hpcai500.layers import Recipe

Sizes = npt.NDArray[np.int64]


class Watch(Protocol):
    """Is told of work that is done, and says when to stop. Callable from any thread."""

    def count(self, count_bytes: int) -> None:
        """Count bytes that are done."""

    def stop(self) -> bool:
        """Whether to give up."""


class Staged(Protocol):
    """The pieces of a set in a staged folder; the source need not be there."""

    @property
    def sizes_bytes(self) -> Sizes:
        """What each piece has."""

    def new_files(self, pieces: Marks) -> int:
        """How many files copying these makes."""

    def batches(self, pieces: Pieces) -> Iterator[Sequence[int]]:
        """Cut `pieces`, ascending, into such as are best worked on together, by one thread."""

    def digest(self, batch: Sequence[int], watch: Watch) -> Iterator[tuple[int, bytes | None]]:
        """Read pieces that are here, from the disk where the system allows: each with its digest, None for a torn one.

        Raises:
            OSError: one cannot be read.
            Stopped: as asked for.
        """

    def remove(self, pieces: Pieces) -> None:
        """Give the space of pieces back, as far as the file system can. Raises OSError."""

    def remove_all(self, pieces: Pieces) -> None:
        """Remove all that staging may have put here of `pieces`, and what is derived from them. Raises OSError."""

    def with_dependents(self, pieces: Pieces) -> Pieces:
        """Those pieces, and all that cannot be right without them."""


class Source(Protocol):
    """A set as it lies at the source."""

    benchmark: str
    fingerprint: str

    @property
    def pieces(self) -> int:
        """How many there are."""

    def needed(self, recipes: Sequence[Recipe]) -> Marks:
        """Which pieces a run of any of `recipes` reads; all of them where there are none.

        Raises:
            DataError: the set is not what a recipe wants.
        """

    def describe_set(self) -> None:
        """Write what readers need to know of the set into the staged folder. Raises OSError."""

    def require_same(self) -> None:
        """Raise DataError where a staged folder was made from files that have changed since."""

    def staged(self) -> Staged:
        """The pieces in the staged folder, once the set is described there."""

    def order(self, pieces: Pieces) -> list[Pieces]:
        """What to copy one after the other: all of the first before any of the second."""

    def copy(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """Copy pieces, and note each once it was read back.

        Raises:
            DataError: the source cannot be read, or has changed.
            RunError: what was read back differs.
            OSError: the staged folder takes no more.
            Stopped: as asked for.
        """

    def changes(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """Raise DataError where one of these pieces, which are here, is no longer what it was at the source."""

    def finish(self, recipes: Sequence[Recipe]) -> None:
        """Bring what is known of the set, and make sure that it is read as the same one.

        Raises:
            DataError: it is not.
            OSError: the staged folder takes no more.
        """


Say = Callable[[str], None]
