"""The compiled core: JPEG bytes and chunks of climate years to training images, without the GIL.

A decoded image has shape (3, size, size) in layout "nchw" and (size, size, 3) in layout "nhwc", channels R, G, B. Boxes
are in source pixels, origin at the upper left corner. Levels are 0-255. EXIF orientation is ignored, as in ImageNet
training.

Every choice at random is a pure function of (seed, epoch, sample): seed in [0, 2**64), epoch in [0, 2**32), sample in
[0, 2**63). A number outside raises ValueError.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from hpcai500._core._seek_index import SeekIndex

_Kind: TypeAlias = Literal["unsupported", "truncated", "unreadable", "corrupt"]

class JpegError(ValueError):
    """An image that cannot be decoded; its text starts with the kind.

    "unsupported": no JPEG, or one that libjpeg-turbo does not read (12 bits, lossless) - another decoder may.
    "truncated": the data ends before the last row that is needed. "corrupt": damaged beyond decoding, or of an absurd
    size.
    "unreadable": the file cannot be read (JpegLoader only).
    """

    kind: _Kind

@final
class DecodeSpec:
    """What an image becomes. Immutable; a value outside its range raises ValueError with what is allowed."""

    def __init__(
        self,
        *,
        size: int,
        mode: Literal["random", "centre"] = "random",
        area: tuple[float, float] = (0.05, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip_probability: float = 0.5,
        resize_shorter: int = 256,
        mean: tuple[float, float, float] = (123.675, 116.28, 103.53),
        std: tuple[float, float, float] = (58.395, 57.12, 57.375),
        dtype: Literal["float32", "float16", "bfloat16", "uint8"] = "float32",
        layout: Literal["nchw", "nhwc"] = "nchw",
        dct_scaling: bool = False,
        decoder: Literal["own", "libjpeg-turbo"] = "own",
    ) -> None:
        """`mode` "random" is a random-resized crop (`area`: share of the image, `ratio`: width / height) with a flip;
        "centre" is the middle size x size of the image resized to `resize_shorter` (at least size), never flipped.

        Output is (level - mean) / std per channel. "uint8" keeps levels, rounded half to even, and ignores both.
        `dct_scaling` decodes at 1/2 or 1/4 of the size where the crop stays at least as large as the output: faster on
        large images, and not equal (its error is measured by benchmarks/decode_accuracy.py). `decoder` "own" decodes
        undamaged baseline images of the usual kinds itself and leaves the rest to libjpeg-turbo, whose pixels differ in
        how chroma is rounded and levels are cut (docs/input.md).
        """

    @property
    def size(self) -> int: ...
    @property
    def mode(self) -> Literal["random", "centre"]: ...
    @property
    def area(self) -> tuple[float, float]: ...
    @property
    def ratio(self) -> tuple[float, float]: ...
    @property
    def flip_probability(self) -> float: ...
    @property
    def resize_shorter(self) -> int: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...
    @property
    def dtype(self) -> Literal["float32", "float16", "bfloat16", "uint8"]: ...
    @property
    def layout(self) -> Literal["nchw", "nhwc"]: ...
    @property
    def dct_scaling(self) -> bool: ...
    @property
    def decoder(self) -> Literal["own", "libjpeg-turbo"]: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
    @property
    def itemsize(self) -> int:
        """Bytes of one value: 4, 2 or 1."""
    @property
    def image_bytes(self) -> int:
        """Bytes of one image."""

class CropBox(NamedTuple):
    """Whole numbers for a random crop, fractions for a centre crop."""

    x: float
    y: float
    width: float
    height: float
    flip: bool

def crop_box(spec: DecodeSpec, width: int, height: int, *, seed: int, epoch: int, sample: int) -> CropBox:
    """The crop that a sample of width x height pixels gets."""

class JpegInfo(NamedTuple):
    """A JPEG's header. `sampling` lists the components' factors: "2x2,1x1,1x1" is 4:2:0."""

    width: int
    height: int
    components: int
    colour_space: Literal["grey", "RGB", "YCbCr", "CMYK", "YCCK", "unknown"]
    progressive: bool
    sampling: str

def probe_jpeg(data: Buffer) -> JpegInfo:
    """Reads the header. Raises JpegError."""

def check_jpeg(data: Buffer) -> tuple[int, int, int]:
    """Decodes the whole image at full size and drops it: (width, height, warnings). Raises JpegError.

    Warnings count damage that libjpeg worked around, as Pillow tolerates it, up to the end marker. There are none if
    libjpeg-turbo's strict mode takes the file.
    """

def decode_crop(
    data: Buffer,
    spec: DecodeSpec,
    out: NDArray[Any],
    *,
    seed: int,
    epoch: int,
    sample: int,
    index: SeekIndex | None = None,
) -> int:
    """Makes one sample's image in `out` and returns the number of warnings. Raises JpegError.

    With an `index` it jumps over what the crop does not show, to the same pixels, whatever the index says.

    `out` is writable and C-contiguous, has items of spec.itemsize bytes and spec.image_bytes bytes in all (ValueError
    otherwise); its shape and type are the caller's, so that bfloat16 may be an array of uint16.
    """

def decode_box(
    data: Buffer,
    spec: DecodeSpec,
    out: NDArray[Any],
    *,
    x: float,
    y: float,
    width: float,
    height: float,
    flip: bool,
    index: SeekIndex | None = None,
) -> int:
    """decode_crop for a box of the caller's; raises ValueError when it leaves the image or is empty (x + width == x).

    `spec.mode` says what surrounds the box: nothing ("random", whole pixels), or the image ("centre").
    """

def last_seek() -> Literal["used", "without", "unknown", "false"]:
    """What became of the index of this thread's last decode_crop or decode_box that returned.

    "without": there was none, or it knows that the image has no points, or no use for them. "false": what it says of
    the image is not so, and the image was decoded without it.
    """

def crop_pixels(
    pixels: NDArray[np.uint8], spec: DecodeSpec, out: NDArray[Any], *, seed: int, epoch: int, sample: int
) -> None:
    """decode_crop for pixels (height, width, 3), C-contiguous, that another decoder made."""

class Failure(NamedTuple):
    """An image that could not be made; its place in the slot holds zeros."""

    position: int
    """In the batch."""
    sample: int
    """Index of its path."""
    kind: _Kind | Literal["memory"]
    reason: str

class Batch(NamedTuple):
    """A finished batch: images 0..count of slot `slot`, which is the caller's until release(slot)."""

    slot: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a batch
    warnings: int
    failures: list[Failure]
    seek_used: int
    """Images that were decoded by points of the index."""
    seek_unknown: int
    """Images that the index does not know."""
    seek_false: int
    """Images of which the index says what is not so."""

@final
class JpegLoader:
    """Bounded ring of batches that native threads read and decode ahead, without the GIL.

    The threads take single images, so that all of them finish a batch together; the next batches are made while the
    caller holds a slot, as long as another slot is free. Calls from several Python threads are safe.

    Does not survive fork(): in the child every call raises RuntimeError. Make it in the process that uses it.
    """

    def __init__(
        self,
        root: str | bytes,
        paths: Sequence[str | bytes],
        spec: DecodeSpec,
        *,
        slots: Sequence[NDArray[Any]],
        threads: int,
        index: SeekIndex | None = None,
    ) -> None:
        """`paths` are relative to the folder `root`; text is encoded as os.fsencode does.

        Every slot is a C-contiguous writable array of batch_size * spec.image_bytes bytes, all of the same size; the
        loader keeps a reference to it and writes into it.

        Raises ValueError on arguments, OSError when `root` cannot be opened.
        """

    def submit(self, samples: NDArray[np.int64], *, seed: int, epoch: int) -> None:
        """Queues one batch of 1..batch_size samples (indices of `paths`); never waits.

        Batches finish in the order of submission. Raises ValueError, or RuntimeError after close().
        """

    def next(self) -> Batch:
        """Waits for the oldest batch (Ctrl-C interrupts within 0.1 s).

        Raises RuntimeError when it would wait for ever: nothing submitted, all slots held, or closed.
        """

    def release(self, slot: int) -> None:
        """The slot may be overwritten from now on. Raises ValueError when it is not held."""

    @property
    def pending(self) -> int:
        """Batches submitted and not yet handed out."""

    def close(self) -> None:
        """Stops the threads after the images they are working on. May be called twice."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
