"""Climate images out of HDF5 files."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Kind: TypeAlias = Literal["unsupported", "truncated", "unreadable", "corrupt"]

class ClimateError(ValueError):
    """A climate image that cannot be read; its text has all of the attributes.

    "truncated": the file ends before the data. "corrupt": a chunk's bytes do not decode, have another checksum, or are
    not as many as they should be. "unreadable": the system cannot open or read the file.
    """

    kind: _Kind
    file: int
    """In the order given to the reader."""
    image: int | None
    """In its file; None where the file cannot even be opened. Of a chunk that several images share, the first."""
    channel: int | None
    """In its file; of a chunk with several channels, the first that was wanted."""
    chunk: tuple[int, int, int, int] | None
    """Position in the grid of chunks; None where all values are in one piece."""
    reason: str

class _ClimateFile(Protocol):
    """Where the images of an HDF5 file are: `hpcai500.data.climate.years.Storage`, and a path."""

    @property
    def path(self) -> str | bytes: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """(images, channels, rows, columns)"""
    @property
    def dtype(self) -> str:
        """Must be "<f4"."""
    @property
    def offset(self) -> int | None:
        """Address of the first value; None for chunks, and where nothing was ever written (all zero)."""
    @property
    def chunk(self) -> tuple[int, ...] | None: ...
    @property
    def filters(self) -> Sequence[str]:
        """In the order of writing, among shuffle, deflate, lzf, fletcher32."""
    @property
    def addresses(self) -> NDArray[np.uint64]:
        """Of each chunk, in C order of the grid; 2**64 - 1 for one that was never written (all zero)."""
    @property
    def sizes(self) -> NDArray[np.uint64]: ...
    @property
    def masks(self) -> NDArray[np.uint32]:
        """Bit i: filter i was left out."""

@final
class ClimateReader:
    """Reads float32 images of HDF5 files by chunk address, in native threads, without HDF5, its lock and the GIL.

    Nothing that a file holds is trusted: damage is a ClimateError. Files are read and not mapped, so that one that
    shrinks meanwhile is an error too. In every method, images that share a chunk have it inflated once.

    Output arrays are C-contiguous of shape (images, channels, rows, columns) and type float32, float16, or uint16 that
    holds the bits of bfloat16. They need no alignment, but a multiple of 64 bytes is fastest.

    Calls from several Python threads follow one another. Ctrl-C ends a call within 0.1 s and the time of one chunk.
    Does not survive fork(): in the child every call raises RuntimeError. Make it in the process that uses it.
    """

    def __init__(
        self,
        files: Sequence[_ClimateFile],
        *,
        channels: Sequence[int],
        mean: Sequence[float] | NDArray[np.floating[Any]] | None,
        std: Sequence[float] | NDArray[np.floating[Any]] | None,
        dtype: Literal["float32", "float16", "bfloat16"],
        left: int,
        width: int,
        threads: int,
    ) -> None:
        """Opens all files, whose images must be of the same shape, and keeps them open.

        `channels` are taken in this order. With `mean` and `std`, one for each of them, output is (value - mean) /
        std: value * (1 / std) + (-mean / std) with a single rounding to float32. It is cast to `dtype`, to nearest even
        (beyond the largest float16: infinity; NaN stays NaN). Without both, float32 is bit for bit what is stored. Of
        each row the columns left..left + width are taken, after the roll.

        Raises ValueError on arguments, ClimateError (unreadable) for a file that cannot be opened.
        """

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, rows, width) of an image that read() makes."""
    @property
    def chunks_inflated(self) -> int:
        """Chunks whose filters were undone since the reader was made."""

    def read(
        self,
        files: NDArray[np.integer[Any]],
        images: NDArray[np.integer[Any]],
        out: NDArray[Any],
        *,
        places: NDArray[np.integer[Any]] | None = None,
        rolls: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Reads image images[i] of file files[i] into out[places[i]] (out[i] by default).

        rolls[i] turns the image around the globe first, as numpy.roll(image, rolls[i], axis=-1).
        """

    def read_window(
        self, file: int, first: int, count: int, out: NDArray[Any], *, part: tuple[int, int, int] = (0, 1, 1)
    ) -> None:
        """Reads images first..first + count of one file into `out` (count, channels, rows, all columns).

        With part = (begin, end, n), only shares begin..end of n equal shares of the work are done: after all n, `out`
        is full and each chunk was inflated once.
        """

    def take(
        self,
        window: NDArray[Any],
        positions: NDArray[np.integer[Any]],
        out: NDArray[Any],
        *,
        places: NDArray[np.integer[Any]] | None = None,
        rolls: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Copies window[positions[i]] into out[places[i]], rolled and cropped as by read()."""

    def close(self) -> None:
        """Ends the call of another thread (RuntimeError there), and the threads. May be called twice."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
