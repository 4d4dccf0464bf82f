"""Files of ExtremeWeather: their format, their boxes, the variants in circulation, and where their values are on disk.

Errors are one line that says what is wrong with the file, not what failed in the library.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, get_args

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500._core import ClimateError
from hpcai500.data.derived import map_in_threads
from hpcai500.errors import DataError
from hpcai500.layers import ClimateChannel

# ----------------------------------------------------------------------------------------------------
# The format of ExtremeWeather (Racah et al., 2017; V2.0 section 4.2.1): an HDF5 file `climo_YYYY.h5` for each year.
#
#     images  (images, 16, height, width) float32     1460 images a year (every 6 hours) of 768 x 1152 as shipped
#     boxes   (images, 15, 5) int32                   rows ymin xmin ymax xmax class; unused rows are -1
#
# y runs over `height` (latitude), x over `width` (longitude, periodic).


IMAGES, BOXES = "images", "boxes"

CHANNELS: tuple[str, ...] = get_args(ClimateChannel)
CLASSES = ("tropical depression", "tropical cyclone", "extratropical cyclone", "atmospheric river")
MOST_BOXES = 15
BOX_COLUMNS = ("ymin", "xmin", "ymax", "xmax", "class")

_FILE = re.compile(r"climo_(\d{4})\.h5")


def file_name(year: int) -> str:
    return f"climo_{year:04d}.h5"


def year_of(name: str) -> int | None:
    """The year in a file's name; None for other files."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else None


# ----------------------------------------------------------------------------------------------------
# HDF5 files and their errors.


# What h5py has been seen to raise on damaged metadata.
DAMAGED = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError)
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")
_MOST_CHARACTERS = 160


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open the file at `path` for reading. Raises DataError when it is missing, unreadable, truncated, or not HDF5."""
    try:
        # Locks fail on many read-only and parallel file systems, and nobody writes into a set.
        file = h5py.File(path, "r", locking=False)
    except DAMAGED as error:
        raise DataError(f"{path}: {_reason(path, error)}") from error
    with file:
        yield file


def is_dangling(file: h5py.File, name: str) -> bool:
    """Whether `name` is a soft or an external link without a target."""
    link = file.get(name, getlink=True)
    return isinstance(link, h5py.SoftLink | h5py.ExternalLink) and file.get(name) is None


def plain(error: BaseException) -> str:
    """The message of an h5py exception, in one short line."""
    text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    inner = re.search(r"\((.*)\)", text)
    return (inner[1] if inner else text or type(error).__name__)[:_MOST_CHARACTERS]


def _reason(path: Path, error: BaseException) -> str:
    if truncated := _TRUNCATED.search(str(error)):
        found, expected = truncated.groups()
        return f"truncated: {found} bytes of the {expected} that its HDF5 header states; copy it again"
    if isinstance(error, OSError) and error.errno:
        return f"unreadable: {os.strerror(error.errno)}"
    if "file signature not found" in str(error):
        return "empty file; copy it again" if path.stat().st_size == 0 else "not an HDF5 file (no HDF5 signature)"
    return f"not readable as HDF5: {plain(error)}"


# ----------------------------------------------------------------------------------------------------
# The rows of `boxes`: which are boxes, which cannot be used, and how many and how large they are.


Boxes = npt.NDArray[np.int32]
_QUANTILES = (0.05, 0.5, 0.95)


class RowKind(IntEnum):
    """What a row of `boxes` is; the first that applies. GOOD and CLIPPED rows can be trained on."""

    UNUSED = 0
    GOOD = 1
    CLIPPED = 2
    OUTSIDE = 3
    EMPTY = 4
    UNKNOWN_CLASS = 5
    PARTLY_UNUSED = 6


MEANING = {
    RowKind.CLIPPED: "over the image's edge (cut there when used)",
    RowKind.OUTSIDE: "wholly outside the image (not used)",
    RowKind.EMPTY: "empty or inverted (not used)",
    RowKind.UNKNOWN_CLASS: f"of a class other than 0 to {len(CLASSES) - 1}",
    RowKind.PARTLY_UNUSED: "with some values of -1 (not used)",
}


def row_kinds(boxes: Boxes, height: int, width: int) -> npt.NDArray[np.int8]:
    """The RowKind of each row of `boxes` (images, rows, 5) on a grid of height x width, as (images, rows).

    Edges are pixel borders: a box that fills the image is 0 0 height width.
    """
    ymin, xmin, ymax, xmax, label = np.moveaxis(boxes, -1, 0)
    minus = (boxes == -1).sum(axis=-1)
    conditions = {
        RowKind.UNUSED: minus == boxes.shape[-1],
        RowKind.PARTLY_UNUSED: minus > 0,
        RowKind.UNKNOWN_CLASS: (label < 0) | (label >= len(CLASSES)),
        RowKind.EMPTY: (ymax <= ymin) | (xmax <= xmin),
        RowKind.OUTSIDE: (ymax <= 0) | (xmax <= 0) | (ymin >= height) | (xmin >= width),
        RowKind.CLIPPED: (ymin < 0) | (xmin < 0) | (ymax > height) | (xmax > width),
    }
    return np.select(list(conditions.values()), [int(kind) for kind in conditions], int(RowKind.GOOD)).astype(np.int8)


def usable(boxes: Boxes, height: int, width: int) -> npt.NDArray[np.bool_]:
    """Which rows of `boxes` (images, rows, 5) can be trained on, once cut at the image's edges."""
    kinds = row_kinds(boxes, height, width)
    return np.isin(kinds, (RowKind.GOOD, RowKind.CLIPPED))


def class_counts(boxes: Boxes, kinds: npt.NDArray[np.int8]) -> tuple[int, ...]:
    """How many rows name each class, whether or not their coordinates can be used, as publications count."""
    named = ~np.isin(kinds, (RowKind.UNUSED, RowKind.PARTLY_UNUSED, RowKind.UNKNOWN_CLASS))
    return tuple(np.bincount(boxes[named][:, 4], minlength=len(CLASSES)).tolist())


@dataclass(frozen=True)
class OddRows:
    """Suspicious rows of one kind: how many, and where the first one is."""

    kind: RowKind
    rows: int
    first_image: int
    first_row: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        place = f"image {self.first_image}, row {self.first_row}: {' '.join(map(str, self.first))}"
        return f"boxes {MEANING[self.kind]}: {self.rows}; the first: {place}"


def odd_rows(boxes: Boxes, kinds: npt.NDArray[np.int8]) -> tuple[OddRows, ...]:
    """The rows of each kind but UNUSED and GOOD."""
    found = []
    for kind in MEANING:
        places = np.argwhere(kinds == kind)
        if len(places):
            image, row = places[0].tolist()
            found.append(OddRows(kind, len(places), image, row, tuple(boxes[image, row].tolist())))
    return tuple(found)


@dataclass(frozen=True)
class BoxSizes:
    """5 %, 50 % and 95 % quantiles of the extent of a class's boxes in pixels; None where the class has no box."""

    height: tuple[float, ...] | None
    width: tuple[float, ...] | None


def box_sizes(rows: Boxes) -> tuple[BoxSizes, ...]:
    """The sizes of each class's boxes among `rows` (boxes, 5), which must all be used."""
    return tuple(_sizes(rows[rows[:, 4] == label]) for label in range(len(CLASSES)))


def _sizes(rows: Boxes) -> BoxSizes:
    if not len(rows):
        return BoxSizes(None, None)
    extents = rows[:, 2:4].astype(np.int64) - rows[:, 0:2]
    heights, widths = np.quantile(extents, _QUANTILES, axis=0).T.tolist()
    return BoxSizes(tuple(heights), tuple(widths))


# ----------------------------------------------------------------------------------------------------
# The two variants of ExtremeWeather in circulation, distinguished by their boxes.
#
#     shipped   ymin xmin ymax xmax class, classes 0 to 3
#     swapped   xmin ymin xmax ymax class, classes 1 to 4
#
# Nothing in a file names its variant. The evidence is coordinates that fit one axis only, and the classes that occur.
# A file whose two pieces of evidence contradict each other is ambiguous: it is neither used nor converted.


Name = Literal["shipped", "swapped", "ambiguous"]
_Side = Literal["shipped", "swapped"] | None

# A third of the boxes of a real year end beyond 768 of 1152 columns; a few rows may be mistakes.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Variant:
    """The variant of the boxes of a file, and the evidence in a sentence."""

    name: Name
    evidence: str


def variant_of(boxes: npt.NDArray[np.int32], height: int, width: int) -> Variant:
    """Find the variant of `boxes` (images, rows, 5) on a grid of height x width.

    Boxes without any evidence are taken as shipped.
    """
    rows = boxes[(boxes != -1).all(axis=-1)]
    axes, of_axes = _by_coordinates(rows, height, width)
    classes, of_classes = _by_classes(rows)
    evidence = f"{of_axes}; {of_classes}"
    if classes == "swapped" or axes == "swapped":
        return Variant("swapped" if axes == classes else "ambiguous", evidence)
    return Variant("shipped", evidence)


def _by_coordinates(rows: npt.NDArray[np.int32], height: int, width: int) -> tuple[_Side, str]:
    if height >= width:
        return None, f"a grid of {height} x {width} cannot distinguish x from y"
    as_y, as_x = rows[:, [0, 2]].max(axis=1), rows[:, [1, 3]].max(axis=1)
    beyond = {
        "swapped": int(((as_y > height) & (as_y <= width)).sum()),
        "shipped": int(((as_x > height) & (as_x <= width)).sum()),
    }
    needed = max(1.0, _LEAST_SHARE * len(rows))
    swapped, shipped = (beyond[side] >= needed for side in ("swapped", "shipped"))
    text = f"of {len(rows)} boxes, {{}} go beyond {height} in {{}} column, where only x can"
    if swapped and not shipped:
        return "swapped", text.format(beyond["swapped"], "the first or third")
    if shipped and not swapped:
        return "shipped", text.format(beyond["shipped"], "the second or fourth")
    return None, f"the coordinates of {len(rows)} boxes do not show which is x and which is y"


def _by_classes(rows: npt.NDArray[np.int32]) -> tuple[_Side, str]:
    labels = set(np.unique(rows[:, 4]).tolist())
    listed = ", ".join(map(str, sorted(labels)[:8])) or "none"
    if 0 in labels:
        return "shipped", f"classes {listed} count from 0"
    if labels and labels <= set(range(1, len(CLASSES) + 1)) and len(CLASSES) in labels:
        return "swapped", f"classes {listed} count from 1"
    return None, f"classes {listed} do not show whether they count from 0 or 1"


def as_shipped(boxes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Convert swapped `boxes` (images, rows, 5): y before x, classes from 0; unused rows stay."""
    converted = boxes[..., [1, 0, 3, 2, 4]]
    converted[..., 4] -= 1
    converted[(boxes == -1).all(axis=-1)] = -1
    return converted


# ----------------------------------------------------------------------------------------------------
# Which values of a dataset are none, as the conventions of netCDF say: those that attributes declare as missing, those
# outside the valid range, and the fill value of values that were never written.


# The fill value of float32 in netCDF (NC_FILL_FLOAT), where a variable declares none.
DEFAULT_FILL = 9.969209968386869e36
_FILLS = ("_FillValue", "missing_value")
_RANGE, _LEAST, _MOST = "valid_range", "valid_min", "valid_max"
# Values are packed where one of these is not what changes nothing.
_PACKED = {"scale_factor": 1.0, "add_offset": 0.0}


@dataclass(frozen=True)
class Missing:
    """Which values of a file are missing: `fills`, and what is below `least` or above `most`; all in float32."""

    fills: tuple[float, ...] = ()
    least: float = -math.inf
    most: float = math.inf

    def among(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of `values`, all finite, are missing."""
        low, high = values.min(initial=math.inf), values.max(initial=-math.inf)
        missing = np.zeros(values.shape, np.bool_)
        if low < self.least or high > self.most:
            missing |= (values < self.least) | (values > self.most)
        for fill in self.fills:
            if low <= fill <= high:
                missing |= values == fill
        return missing

    def __str__(self) -> str:
        ends = [f"below {self.least:g}"] * (self.least > -math.inf) + [f"above {self.most:g}"] * (self.most < math.inf)
        return ", ".join((*(f"{fill:g}" for fill in self.fills), *ends))


def missing_of(dataset: h5py.Dataset) -> Missing:
    """Read which values of `dataset` are missing.

    Raises DataError for attributes that are no numbers, and for packed values.
    """
    name = f"{dataset.file.filename}: dataset {dataset.name.lstrip('/')}"
    found = {one: _numbers(dataset, name, one) for one in (*_FILLS, _RANGE, _LEAST, _MOST, *_PACKED)}
    for packed, neutral in _PACKED.items():
        if any(value != neutral for value in found[packed]):
            raise DataError(
                f"{name}: packed: its attribute {packed} is {found[packed][0]:g}, which hpcai500 does not apply; write "
                "the unpacked values into a new file, without the attribute"
            )
    for bound, count in ((_RANGE, 2), (_LEAST, 1), (_MOST, 1)):
        if len(found[bound]) not in (0, count):
            raise DataError(
                f"{name}: its attribute {bound} has {len(found[bound])} values, expected {count}; correct it"
            )
    fills = [value for fill in _FILLS for value in found[fill]] + ([] if found["_FillValue"] else [DEFAULT_FILL])
    if dataset.fillvalue != 0:
        # HDF5's own, in the parts of chunks that were never written; 0 where nobody chose one.
        fills.append(float(dataset.fillvalue))
    return Missing(
        # NaN and infinity are no values anyway.
        fills=tuple(dict.fromkeys(fill for fill in fills if math.isfinite(fill))),
        least=max((-math.inf, *found[_RANGE][:1], *found[_LEAST])),
        most=min((math.inf, *found[_RANGE][1:], *found[_MOST])),
    )


def _numbers(dataset: h5py.Dataset, name: str, attribute: str) -> list[float]:
    """The values of an attribute, rounded to float32 as the values of the dataset were; none without it."""
    if attribute not in dataset.attrs:
        return []
    numbers = np.asarray(dataset.attrs[attribute])
    if numbers.dtype.kind not in "iuf":
        raise DataError(f"{name}: its attribute {attribute} is no number; correct or remove it")
    # What float32 cannot hold becomes infinite.
    with np.errstate(over="ignore"):
        return [float(value) for value in numbers.ravel().astype(np.float32)]


# ----------------------------------------------------------------------------------------------------
# Where a dataset is in its HDF5 file: the addresses used to read it without HDF5 and its global lock.


# HDF5's registered numbers of the filters that the reader supports (H5Z_FILTER_*; LZF is h5py's own).
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
ABSENT = 2**64 - 1
# Chunks at the edge of the grid are stored without filters (H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS).
_PARTIAL_UNFILTERED = 2
_ALL_SKIPPED = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Storage:
    """Where the values of a dataset are.

    Attributes:
        dtype: as NumPy names it.
        kind: one piece, or chunks of equal shape.
        offset: address of the first value; None for chunks, and for a dataset that was never written.
        chunk: shape of a chunk; None for one piece.
        filters: those applied to a chunk, in the order of writing: shuffle, deflate, lzf, fletcher32.
        addresses, sizes, masks: of each chunk in C order of the grid of chunks: byte address in the file (ABSENT for
            one that was never written), stored bytes, and the bits of skipped filters.
        stored_bytes: size of all values in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["contiguous", "chunked"]
    offset: int | None
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]
    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    masks: npt.NDArray[np.uint32]
    stored_bytes: int

    @property
    def chunks_per_image(self) -> int:
        """Pieces of the file that hold one image (first dimension)."""
        if self.chunk is None:
            return 1
        cells = [-(-extent // side) for extent, side in zip(self.shape[1:], self.chunk[1:], strict=True)]
        return int(np.prod(cells))

    @property
    def window(self) -> int:
        """Images that share chunks, and should be read together."""
        return 1 if self.chunk is None else self.chunk[0]


class Located:
    """A Storage and the path of its file, in the form that the core's reader takes."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self.path = str(path)
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def storage_of(dataset: h5py.Dataset) -> Storage:
    """Find where the values of `dataset` are.

    Raises:
        DataError: its storage has no addresses (compact, external, virtual) or an unknown filter, or parts that were
            never written have a fill value other than 0.
    """
    properties = dataset.id.get_create_plist()
    name = f"{dataset.file.filename}: dataset {dataset.name.lstrip('/')}"
    layout = properties.get_layout()
    empty = np.zeros(0, np.uint64)
    common: dict[str, Any] = {"shape": dataset.shape, "dtype": dataset.dtype.str, "filters": _filters(properties, name)}
    if layout == h5py.h5d.CONTIGUOUS and properties.get_external_count() == 0:
        offset = dataset.id.get_offset()
        if offset is None:
            _require_zero_fill(dataset, name)
        return Storage(
            **common,
            kind="contiguous",
            offset=offset,
            chunk=None,
            addresses=empty,
            sizes=empty,
            masks=empty.astype(np.uint32),
            stored_bytes=dataset.id.get_storage_size(),
        )
    if layout != h5py.h5d.CHUNKED:
        raise DataError(
            f"{name}: stored as a compact, external or virtual dataset, which has no addresses to read from; "
            "rewrite it with h5repack, contiguous or chunked"
        )
    addresses, sizes, masks = _chunk_table(dataset)
    if (addresses == ABSENT).any():
        _require_zero_fill(dataset, name)
    return Storage(
        **common,
        kind="chunked",
        offset=None,
        chunk=dataset.chunks,
        addresses=addresses,
        sizes=sizes,
        masks=masks,
        stored_bytes=int(sizes.sum()),
    )


def may_be_of(storage: Storage, dataset: h5py.Dataset) -> bool:
    """Whether `storage`, found earlier, agrees with the properties of `dataset`, whose chunks are not walked.

    Raises DataError for an unknown filter.
    """
    name = f"{dataset.file.filename}: dataset {dataset.name.lstrip('/')}"
    filters = _filters(dataset.id.get_create_plist(), name)
    expected = (dataset.shape, dataset.dtype.str, dataset.chunks, filters)
    if (storage.shape, storage.dtype, storage.chunk, storage.filters) != expected:
        return False
    chunks = math.prod(_grid(dataset)) if dataset.chunks else 0
    return all(array.shape == (chunks,) for array in (storage.addresses, storage.sizes, storage.masks))


def _grid(dataset: h5py.Dataset) -> tuple[int, ...]:
    return tuple(-(-extent // side) for extent, side in zip(dataset.shape, dataset.chunks, strict=True))


def _require_zero_fill(dataset: h5py.Dataset, name: str) -> None:
    if dataset.fillvalue != 0:
        raise DataError(
            f"{name}: unwritten parts have the fill value {dataset.fillvalue}, but hpcai500 reads 0 there; "
            "write them, or copy the values into a new file"
        )


def _filters(properties: Any, name: str) -> tuple[str, ...]:
    numbers = _filter_numbers(properties)
    unknown = [number for number in numbers if number not in _FILTERS]
    if unknown:
        raise DataError(
            f"{name}: written with the HDF5 filter {unknown[0]}, which hpcai500 cannot read: it supports "
            f"{', '.join(_FILTERS.values())}; rewrite the file with h5repack -f NONE"
        )
    return tuple(_FILTERS[number] for number in numbers)


def _filter_numbers(properties: Any) -> list[int]:
    return [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]


def _chunk_table(
    dataset: h5py.Dataset,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    grid = _grid(dataset)
    addresses = np.full(grid, ABSENT, np.uint64)
    sizes = np.zeros(grid, np.uint64)
    masks = np.zeros(grid, np.uint32)

    found: list[tuple[int, ...]] = []
    # One walk over the index: get_chunk_info(i) would start again for each of 131,072 chunks.
    dataset.id.chunk_iter(lambda c: found.append((*c.chunk_offset, c.byte_offset, c.size, c.filter_mask)))
    if found:
        table = np.array(found, np.uint64)
        cells = tuple((table[:, : len(grid)] // np.array(dataset.chunks, np.uint64)).T.astype(np.intp))
        addresses[cells], sizes[cells], masks[cells] = table[:, -3], table[:, -2], table[:, -1]
    if _chunk_options(dataset) & _PARTIAL_UNFILTERED:
        for axis, (extent, side) in enumerate(zip(dataset.shape, dataset.chunks, strict=True)):
            if extent % side:
                masks[(slice(None),) * axis + (-1,)] = _ALL_SKIPPED
    return addresses.ravel(), sizes.ravel(), masks.ravel()


def _chunk_options(dataset: h5py.Dataset) -> int:
    """H5Pget_chunk_opts, which h5py does not wrap: found in the HDF5 library that h5py has loaded."""
    options = ctypes.c_uint()
    of_list = ctypes.CDLL(h5py.h5p.__file__).H5Pget_chunk_opts
    of_list.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)]
    properties = dataset.id.get_create_plist()
    if of_list(properties.id, ctypes.byref(options)) < 0:
        raise OSError("no options of chunks")
    return options.value


# ----------------------------------------------------------------------------------------------------
# One file of ExtremeWeather, opened and checked against the format; its images stay on disk.


_CHANNELS = len(CHANNELS)
_SHAPES = {IMAGES: f"(images, {_CHANNELS}, height, width)", BOXES: f"(images, {MOST_BOXES}, {len(BOX_COLUMNS)})"}
_TYPES = {IMAGES: np.dtype("<f4"), BOXES: np.dtype("<i4")}
# HDF5 has more types than NumPy, which calls a float of 4 bytes with other fields <f4, too.
_STORED_TYPES = {IMAGES: h5py.h5t.IEEE_F32LE, BOXES: h5py.h5t.STD_I32LE}


# Bytes by which a file is known again: all of a small one, else blocks spread over it. Times are not enough: two
# versions of a set may have the same (tar, SquashFS), and the same size where values are not compressed.
_WHOLE_BYTES = 2**20
_DRAWN_BLOCKS, _BLOCK_BYTES = 64, 4096
# Reading waits for the file system, not for a core.
_THREADS = 16


@dataclass(frozen=True)
class FileIdentity:
    """A cheap test of whether a file is the one that was seen before: size, times, and SHA-256 (hex) of drawn bytes.

    Where it was copied, the time of change differs.
    """

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    drawn: str

    def of_copy(self) -> dict[str, Any]:
        """What a copy that keeps the time of modification has in common with the file."""
        return {"size_bytes": self.size_bytes, "mtime_ns": self.mtime_ns, "drawn": self.drawn}


@dataclass(frozen=True, eq=False)
class YearFile:
    """A year of images and boxes.

    Attributes:
        images: how many there are.
        height, width: of the grid, in pixels.
        storage: where the values of `images` are in the file.
        missing: which values of `images` are none.
        boxes: (images, 15, 5) int32, read-only, as the file holds them.
        variant: shipped or swapped, and the evidence.
        identity: of the file when it was opened.
    """

    path: Path
    year: int
    images: int
    height: int
    width: int
    storage: Storage
    missing: Missing
    boxes: npt.NDArray[np.int32]
    variant: Variant
    identity: FileIdentity

    @property
    def grid(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def plane_bytes(self) -> int:
        """Bytes of one channel of one image, in memory."""
        return self.height * self.width * _TYPES[IMAGES].itemsize

    @property
    def image_bytes(self) -> int:
        """Bytes of one image, in memory."""
        return _CHANNELS * self.plane_bytes


def open_year(path: Path, known: tuple[FileIdentity, Storage] | None = None) -> YearFile:
    """Open the file at `path`, named climo_YYYY.h5, and check it against the format; no image is read.

    Any number of images on any grid is accepted, and any variant of the boxes. `known` is the storage that an
    earlier call found, and the identity of its file; it is ignored if that is another, or if it contradicts the file.

    Raises:
        DataError: the file is missing, damaged or misnamed, or a dataset is missing, of another shape or type, packed,
            or a link into another file.
    """
    year = year_of(path.name)
    if year is None:
        raise DataError(f"{path}: not the name of a year's file; rename it to climo_YYYY.h5, like {file_name(1979)}")
    identity = identity_of(path)
    with open_hdf5(path) as file:
        try:
            images, boxes = (_dataset(file, path, name) for name in (IMAGES, BOXES))
            if images.shape[0] != boxes.shape[0]:
                raise DataError(
                    f"{path}: dataset boxes: has {boxes.shape[0]} images, but dataset images has {images.shape[0]}"
                )
            rows = boxes[()]
            is_known = known is not None and known[0] == identity and may_be_of(known[1], images)
            storage = known[1] if known and is_known else storage_of(images)
            missing = missing_of(images)
        except DAMAGED as error:
            raise DataError(f"{path}: damaged: {plain(error)}; copy it again") from error
    height, width = storage.shape[2:]
    rows.setflags(write=False)
    variant = variant_of(rows, height, width)
    return YearFile(path, year, storage.shape[0], height, width, storage, missing, rows, variant, identity)


def identity_of(path: Path) -> FileIdentity:
    """The identity of the file at `path`. Raises DataError when it cannot be read."""
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            return FileIdentity(
                status.st_size, status.st_mtime_ns, status.st_ctime_ns, _drawn(descriptor, status.st_size)
            )
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"{path}: unreadable: {error.strerror}") from error


def _drawn(descriptor: int, size_bytes: int) -> str:
    if size_bytes <= _WHOLE_BYTES:
        return hashlib.sha256(os.pread(descriptor, _WHOLE_BYTES, 0)).hexdigest()
    last = size_bytes - _BLOCK_BYTES
    places = [number * last // (_DRAWN_BLOCKS - 1) for number in range(_DRAWN_BLOCKS)]
    # The kernel would read more around each block.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    blocks = map_in_threads(lambda place: os.pread(descriptor, _BLOCK_BYTES, place), places, _THREADS, name="draw")
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def _dataset(file: h5py.File, path: Path, name: str) -> Any:
    if is_dangling(file, name):
        raise DataError(f"{path}: dataset {name}: a link without a target; replace it by the dataset")
    if name not in file:
        raise DataError(f"{path}: dataset {name}: missing; the file holds {', '.join(sorted(file)) or 'nothing'}")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{path}: {name} is a group, expected a dataset")
    if dataset.file.filename != file.filename:
        # Its addresses are those in the other file: in this one they would lead to other values.
        raise DataError(
            f"{path}: dataset {name}: a link into another file, {dataset.file.filename}; copy both datasets into one "
            f"new file, each by `h5copy -i {path} -o NEW.h5 -s {name} -d {name}`, and replace this file by it"
        )
    expected, found = _TYPES[name], dataset.dtype
    if found != expected:
        raise DataError(f"{path}: dataset {name}: type {found} ({found.str}), expected {expected} ({expected.str})")
    if not dataset.id.get_type().equal(_STORED_TYPES[name]):
        raise DataError(
            f"{path}: dataset {name}: a number of 4 bytes in another form than {expected}; copy the values into a new "
            "file, as that type"
        )
    absent = [number for number in _filter_numbers(dataset.id.get_create_plist()) if not h5py.h5z.filter_avail(number)]
    # Those of the images are read by the core's own code.
    if absent and name == BOXES:
        raise DataError(
            f"{path}: dataset {name}: written with the HDF5 filter {absent[0]}, which is not installed; where it is, "
            "rewrite the file with h5repack -f NONE"
        )
    fixed = {IMAGES: (_CHANNELS,), BOXES: (MOST_BOXES, len(BOX_COLUMNS))}[name]
    shape, rank = dataset.shape, {IMAGES: 4, BOXES: 3}[name]
    if shape is None or len(shape) != rank or shape[1 : 1 + len(fixed)] != fixed:
        raise DataError(f"{path}: dataset {name}: shape {shape}, expected {_SHAPES[name]}")
    if 0 in shape:
        raise DataError(f"{path}: dataset {name}: empty, of shape {shape}")
    return dataset


# ----------------------------------------------------------------------------------------------------
# Errors of the core's reader.


def unreadable(error: ClimateError, path: Path, channels: int) -> DataError:
    """The DataError for `error` in the file at `path`, whose images were read with `channels` channels."""
    where = f"{path}: dataset {IMAGES}"
    if error.image is not None and error.channel is not None:
        names = CHANNELS if channels == len(CHANNELS) else range(channels)
        where += f", image {error.image}, channel {names[error.channel]}"
    if error.chunk is not None:
        where += f", chunk {error.chunk}"
    return DataError(
        f"{where}: {error.kind}: {error.reason}; replace the file, "
        f"and run `hpcai500 data check ewa {path.parent}` to find all such files"
    )
