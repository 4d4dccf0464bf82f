"""Writes a learnable synthetic image set as real JPEG files in ImageNet's layout.

For machines without ImageNet. Smoke runs train on it with the same code as the reference run.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from hpcai500.data.derived import claim_folder, map_in_order, part_folder, workers_or_all
from hpcai500.data.imagenet.index import SPLIT_NAMES
from hpcai500.errors import DataError
from hpcai500.files import write_unsynced
from hpcai500.job_options import ImageSet
from hpcai500.progress import Progress, Tracker, silent

# ----------------------------------------------------------------------------------------------------
# One synthetic image: a textured shape, rotated and coloured at random, on 1/f noise.
#
# A class is a pair of shape and texture. Colour, place, size and angle do not depend on the class, so a model has to
# learn shape and texture, as it does on photographs.


Plane = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ObjectFrame:
    """Coordinates that rotate with the object: `u`, `v` and `distance` from its centre, and its `radius`.

    All are in units of the image's shorter side, so that images of different sizes show objects of one proportion.
    """

    u: Plane
    v: Plane
    distance: Plane
    radius: float

    def waves(self, x: Plane, waves_per_side: float) -> Plane:
        """A square wave of -1 and 1 along `x`."""
        wave: Plane = np.sign(np.sin(np.float32(2 * np.pi * waves_per_side) * x))
        return wave


def _disc(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    return f.distance < 0.95 * f.radius


def _cross(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    across, along = np.minimum(np.abs(f.u), np.abs(f.v)), np.maximum(np.abs(f.u), np.abs(f.v))
    return (across < 0.3 * f.radius) & (along < f.radius)


def _ring(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    return (f.distance < f.radius) & (f.distance > 0.55 * f.radius)


def _square(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    return np.maximum(np.abs(f.u), np.abs(f.v)) < 0.88 * f.radius


def _triangle(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    slope = np.float32(np.sqrt(3.0))
    return (f.v > -0.6 * f.radius) & (f.v + slope * np.abs(f.u) < 1.2 * f.radius)


def _twins(f: ObjectFrame) -> npt.NDArray[np.bool_]:
    return (np.abs(np.abs(f.u) - 0.62 * f.radius) < 0.3 * f.radius) & (np.abs(f.v) < f.radius)


SHAPES: dict[str, Callable[[ObjectFrame], npt.NDArray[np.bool_]]] = {
    "disc": _disc,
    "cross": _cross,
    "ring": _ring,
    "triangle": _triangle,
    "square": _square,
    "twins": _twins,
}


def _plain(f: ObjectFrame, random: np.random.Generator) -> Plane:
    del random
    return np.zeros_like(f.u)


def _stripes(f: ObjectFrame, random: np.random.Generator) -> Plane:
    return f.waves(f.u, random.uniform(8.0, 11.0))


def _checker(f: ObjectFrame, random: np.random.Generator) -> Plane:
    waves_per_side = random.uniform(6.5, 8.5)
    return f.waves(f.u, waves_per_side) * f.waves(f.v, waves_per_side)


def _circles(f: ObjectFrame, random: np.random.Generator) -> Plane:
    return f.waves(f.distance, random.uniform(10.0, 13.0))


def _grain(f: ObjectFrame, random: np.random.Generator) -> Plane:
    # Grains of two pixels: single pixels would vanish when a large image is resized.
    rows, columns = f.u.shape
    coarse: Plane = np.sign(random.random((-(-rows // 2), -(-columns // 2)), dtype=np.float32) - np.float32(0.5))
    return coarse.repeat(2, axis=0).repeat(2, axis=1)[:rows, :columns]


def _shade(f: ObjectFrame, random: np.random.Generator) -> Plane:
    del random
    ramp: Plane = np.clip(f.v / np.float32(0.6 * f.radius), np.float32(-1.6), np.float32(1.6))
    return ramp


TEXTURES: dict[str, Callable[[ObjectFrame, np.random.Generator], Plane]] = {
    "plain": _plain,
    "stripes": _stripes,
    "checker": _checker,
    "circles": _circles,
    "grain": _grain,
    "shade": _shade,
}

# The 4 x 5 pairs that a small network learns to distinguish in a smoke run come first; squares (much like discs at 64
# pixels), twins and shades occur in larger sets only.
_EASY_SHAPES, _EASY_TEXTURES = list(SHAPES)[:4], list(TEXTURES)[:5]
CLASSES: tuple[tuple[str, str], ...] = tuple(
    sorted(
        ((shape, texture) for texture in TEXTURES for shape in SHAPES),
        key=lambda pair: pair[0] not in _EASY_SHAPES or pair[1] not in _EASY_TEXTURES,
    )
)


def class_name(label: int) -> str:
    """The folder name of class `label`; names sort as labels do."""
    shape, texture = CLASSES[label]
    return f"{label:02d}-{shape}-{texture}"


def draw_jpeg(label: int, random: np.random.Generator, smallest_side: int, largest_side: int) -> bytes:
    """A JPEG file of class `label`; random sides (pixels, both bounds included), quality and chroma subsampling."""
    rows, columns = (int(side) for side in random.integers(smallest_side, largest_side, size=2, endpoint=True))
    pixels = _draw(label, random, rows, columns)
    quality = int(random.integers(60, 95, endpoint=True))
    subsampling = ("4:4:4", "4:2:2", "4:2:0")[int(random.integers(3))]
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling=subsampling)
    return stream.getvalue()


def _draw(label: int, random: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    shape, texture = CLASSES[label]
    frame = _place_object(random, rows, columns)
    inside = SHAPES[shape](frame)[..., None]
    pattern = TEXTURES[texture](frame, random)[..., None]
    noise = _pink_noise(random, rows, columns)[..., None]
    background = random.uniform(0.2, 0.8, 3).astype(np.float32)
    # Different from the background in every channel, and wrapped into [0, 1]: the object always stands out.
    foreground = (background + (random.uniform(0.3, 0.6, 3) * random.choice([-1.0, 1.0], 3))) % 1.0
    object_pixels = foreground.astype(np.float32) + np.float32(0.22) * pattern + np.float32(0.3) * noise
    image = np.where(inside, object_pixels, background + noise)
    return (np.clip(image, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def _place_object(random: np.random.Generator, rows: int, columns: int) -> ObjectFrame:
    shorter = min(rows, columns)
    radius = random.uniform(0.25, 0.38)
    centre_row, centre_column = random.uniform(0.42, 0.58, 2) * (rows, columns) / shorter
    y: Plane = np.arange(rows, dtype=np.float32)[:, None] / np.float32(shorter) - np.float32(centre_row)
    x: Plane = np.arange(columns, dtype=np.float32)[None, :] / np.float32(shorter) - np.float32(centre_column)
    turn = random.uniform(0.0, 2 * np.pi)
    cosine, sine = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    u: Plane = x * cosine + y * sine
    v: Plane = y * cosine - x * sine
    return ObjectFrame(u=u, v=v, distance=np.hypot(x, y), radius=radius)


def _pink_noise(random: np.random.Generator, rows: int, columns: int) -> Plane:
    """Noise with the falling spectrum of photographs: large blotches as well as fine grain."""
    spectrum = np.fft.rfft2(random.standard_normal((rows, columns), dtype=np.float32))
    frequency_squared = np.fft.fftfreq(rows)[:, None] ** 2 + np.fft.rfftfreq(columns)[None, :] ** 2
    noise = np.fft.irfft2(spectrum / (frequency_squared + 1e-3) ** 0.7, s=(rows, columns))
    scaled: Plane = (noise * (0.07 / noise.std())).astype(np.float32)
    return scaled


# ----------------------------------------------------------------------------------------------------
# The whole set: its parameters, and the processes that draw and write it.


# Increase it when the same parameters give different images: sets of two versions must not mix.
_GENERATOR_VERSION = 1
_IMAGES_PER_TASK = 25
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 4096


@dataclass(frozen=True)
class SyntheticSet(ImageSet):
    """Parameters of a set, which alone decide every byte (with one version of Pillow and NumPy).

    `smallest_side` and `largest_side` bound both sides of an image, in pixels. Raises DataError for invalid
    values.
    """

    smallest_side: int = 72
    largest_side: int = 128

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= len(CLASSES):
            raise DataError(f"cannot make {self.classes} classes: choose 2 to {len(CLASSES)} (shapes x textures)")
        for name in ("train_per_class", "val_per_class"):
            if getattr(self, name) < 1:
                raise DataError(f"cannot make {getattr(self, name)} images ({name}): a class needs at least 1")
        if not 0 <= self.seed < 2**63:
            raise DataError(f"cannot use seed {self.seed}: choose 0 to 2**63 - 1")
        if not _SMALLEST_SIDE <= self.smallest_side <= self.largest_side <= _LARGEST_SIDE:
            raise DataError(
                f"cannot make sides of {self.smallest_side} to {self.largest_side} pixels: "
                f"choose {_SMALLEST_SIDE} to {_LARGEST_SIDE}, the smaller first"
            )

    @property
    def images(self) -> int:
        """Files in both splits."""
        return self.classes * (self.train_per_class + self.val_per_class)

    def per_class(self, split: str) -> int:
        """Files in each class folder of `split`."""
        return self.train_per_class if split == "train" else self.val_per_class


@dataclass(frozen=True)
class _File:
    """One file to write. Train and val draw from disjoint random streams, as `split` is part of the key."""

    split: str
    label: int
    number: int

    @property
    def path(self) -> str:
        name = class_name(self.label)
        return f"{self.split}/{name}/{name}-{self.number:06d}.JPEG"


def make_images(
    root: Path | str, parameters: SyntheticSet, *, workers: int | None = None, progress: Tracker = silent
) -> int:
    """Write the set `parameters` to `root` and return how many files were missing and have been written.

    A second call writes nothing; a call after an interrupted one writes the rest. Other files are never touched.
    `workers` processes share the work (default: one per core of this job); the bytes do not depend on it. With more
    than one, a script's main module must be importable, as always with Python's "spawn".

    Raises DataError when `root` holds another set, or cannot be written, and RunError when a worker was killed.
    """
    root = Path(root)
    workers = workers_or_all(workers)
    try:
        _claim(root, parameters)
        missing = _missing_files(root, parameters)
        if missing:
            with progress(len(missing), "making images", "images") as bar:
                _write_files(root, parameters, missing, min(workers, len(missing)), bar)
    except OSError as error:
        raise DataError(
            f"cannot write the synthetic set: {error.filename or root}: {error.strerror or error}; "
            "choose a folder with space that you may write to"
        ) from error
    return len(missing)


def _claim(root: Path, parameters: SyntheticSet) -> None:
    """Claim `root` for this set, or check that it already belongs to it. Raises DataError for another set."""
    occupied = [f"{name}/" for name in SPLIT_NAMES if (root / name).exists()]
    claim_folder(root, {"generator_version": _GENERATOR_VERSION, **asdict(parameters)}, occupied)


def _missing_files(root: Path, parameters: SyntheticSet) -> list[_File]:
    missing = []
    for split in SPLIT_NAMES:
        for label in range(parameters.classes):
            folder = root / split / class_name(label)
            folder.mkdir(parents=True, exist_ok=True)
            present = {path.name for path in folder.iterdir()}
            files = (_File(split, label, number) for number in range(parameters.per_class(split)))
            missing += [file for file in files if file.path.rpartition("/")[2] not in present]
    return missing


def _write_files(root: Path, parameters: SyntheticSet, files: list[_File], workers: int, bar: Progress) -> None:
    with part_folder(root) as folder:
        write = partial(_write_task, root, folder, parameters)
        tasks = (files[start : start + _IMAGES_PER_TASK] for start in range(0, len(files), _IMAGES_PER_TASK))
        for written in map_in_order(write, tasks, workers, what="makes images"):
            bar.advance(written)


def _write_task(root: Path, scratch: Path, parameters: SyntheticSet, files: list[_File]) -> int:
    for file in files:
        key = np.random.SeedSequence([parameters.seed, SPLIT_NAMES.index(file.split), file.label, file.number])
        random = np.random.Generator(np.random.PCG64(key))
        content = draw_jpeg(file.label, random, parameters.smallest_side, parameters.largest_side)
        write_unsynced(root / file.path, content, scratch)
    return len(files)
