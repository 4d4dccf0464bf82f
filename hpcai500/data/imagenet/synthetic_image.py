"""Draws one synthetic image: a textured shape, turned and coloured at random, on 1/f noise.

A class is a pair of shape and texture. Neither colour, place, size nor angle says anything about the class, so a model
has to learn form and pattern, as it does on photographs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ObjectFrame:
    """Coordinates that turn with the object: `u`, `v` and `distance` from its centre, and its `radius`.

    All are in units of the image's shorter side, so that images of different sizes show objects of one proportion.
    """

    u: Plane
    v: Plane
    distance: Plane
    radius: float

    def waves(self, x: Plane, waves_per_side: float) -> Plane:
        """Return a square wave of -1 and 1 along `x`."""
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
    # Grains of two pixels: single ones would vanish in the resize of a large image.
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

# The 4 x 5 pairs that a small network tells apart within a smoke run come first; squares (much like discs at 64
# pixels), twins and shades only enter larger sets.
_EASY_SHAPES, _EASY_TEXTURES = list(SHAPES)[:4], list(TEXTURES)[:5]
CLASSES: tuple[tuple[str, str], ...] = tuple(
    sorted(
        ((shape, texture) for texture in TEXTURES for shape in SHAPES),
        key=lambda pair: pair[0] not in _EASY_SHAPES or pair[1] not in _EASY_TEXTURES,
    )
)


def class_name(label: int) -> str:
    """Return the folder name of class `label`; names sort as labels do."""
    shape, texture = CLASSES[label]
    return f"{label:02d}-{shape}-{texture}"


def draw_jpeg(label: int, random: np.random.Generator, smallest_side: int, largest_side: int) -> bytes:
    """Return a JPEG file of class `label`: sides, quality and chroma subsampling at random.

    Sides are in pixels, both bounds included.
    """
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
    # Away from the background in every channel, and folded back into [0, 1]: the object always stands out.
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


def _pink_noise(random: np.random.Generator, rows: int, columns: int, deviation: float = 0.07) -> Plane:
    """Noise with the falling spectrum of photographs: it has large blotches as well as fine grain."""
    spectrum = np.fft.rfft2(random.standard_normal((rows, columns), dtype=np.float32))
    frequency_squared = np.fft.fftfreq(rows)[:, None] ** 2 + np.fft.rfftfreq(columns)[None, :] ** 2
    noise = np.fft.irfft2(spectrum / (frequency_squared + 1e-3) ** 0.7, s=(rows, columns))
    scaled: Plane = (noise * (deviation / noise.std())).astype(np.float32)
    return scaled
