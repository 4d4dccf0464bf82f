"""How far decode_crop is from Pillow: `python benchmarks/decode_accuracy.py [--samples N] [--json FILE]`.

The reference decodes all of the file, crops, resizes (antialiased, bilinear) and flips with Pillow, in 8 bits. Errors
are in levels (0-255). Pillow rounds twice, we round once or, to float32, not at all: that alone gives a PSNR of about
58 dB. The same crops are measured with `dct_scaling`, on those of them where it has an effect.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from decode_images import SETS, paths_of
from PIL import Image

from hpcai500 import _core

SIZE = 224
TARGET_PSNR = 50.0


@dataclass(frozen=True)
class Errors:
    """Mean absolute error and greatest error in levels; PSNR in dB of all images, and of the worst one."""

    images: int
    mean: float
    greatest: float
    psnr: float
    worst_psnr: float


def summarise(differences: list[np.ndarray]) -> Errors | None:
    """None when there is nothing to summarise."""
    if not differences:
        return None
    squares = [float(np.mean(difference**2)) for difference in differences]
    return Errors(
        images=len(differences),
        mean=float(np.mean([np.abs(difference).mean() for difference in differences])),
        greatest=float(max(np.abs(difference).max() for difference in differences)),
        psnr=_psnr(float(np.mean(squares))),
        worst_psnr=_psnr(max(squares)),
    )


def _psnr(mean_square: float) -> float:
    return 10 * math.log10(255**2 / mean_square) if mean_square else math.inf


def _image(data: bytes, sample: int, mode: str, dtype: str, *, dct_scaling: bool) -> np.ndarray:
    """(SIZE, SIZE, 3) levels."""
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    spec = _core.DecodeSpec(size=SIZE, mode=mode, dtype=dtype, layout="nhwc", dct_scaling=dct_scaling, **plain)
    out = np.empty(spec.shape, np.uint8 if dtype == "uint8" else np.float32)
    _core.decode_crop(data, spec, out, seed=0, epoch=0, sample=sample)
    return out.astype(np.float64)


def _reference(data: bytes, sample: int, mode: str) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = _core.crop_box(_core.DecodeSpec(size=SIZE, mode=mode), *image.size, seed=0, epoch=0, sample=sample)
    edges = (box.x, box.y, box.x + box.width, box.y + box.height)
    if mode == "random":
        image, edges = image.crop(tuple(map(int, edges))), None
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=edges))
    return (pixels[:, ::-1] if box.flip else pixels).astype(np.float64)


def measure_set(paths: list[Path], samples: int) -> dict[str, Errors | None]:
    """Errors of each way to make the images of a set."""
    differences: dict[str, list[np.ndarray]] = {}
    for sample, path in enumerate(paths[:samples]):
        data = path.read_bytes()
        for mode in ("random", "centre"):
            reference = _reference(data, sample, mode)
            exact = _image(data, sample, mode, "float32", dct_scaling=False)
            scaled = _image(data, sample, mode, "float32", dct_scaling=True)
            rounded = _image(data, sample, mode, "uint8", dct_scaling=False)
            differences.setdefault(f"{mode} float32", []).append(exact - reference)
            differences.setdefault(f"{mode} uint8", []).append(rounded - reference)
            if not np.array_equal(exact, scaled):
                differences.setdefault(f"{mode} float32 dct_scaling", []).append(scaled - reference)
    return {name: summarise(values) for name, values in sorted(differences.items())}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=48, help="images of each set; default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    document = {}
    for image_set in SETS:
        errors = measure_set(paths_of(image_set), options.samples)
        document[image_set.name] = {name: asdict(row) for name, row in errors.items() if row}
        print(f"\n{image_set.name}: {image_set.width}x{image_set.height} quality {image_set.quality}")
        print(f"  {'':26s} {'images':>6s} {'mean':>7s} {'greatest':>8s} {'PSNR':>6s} {'worst':>6s}")
        for name, row in errors.items():
            verdict = "" if "dct" in name else "reached" if row.psnr >= TARGET_PSNR else "MISSED"
            print(
                f"  {name:26s} {row.images:6d} {row.mean:7.3f} {row.greatest:8.2f} {row.psnr:6.1f} "
                f"{row.worst_psnr:6.1f}  {verdict}"
            )
    print(f"\nTarget without dct_scaling: a PSNR of {TARGET_PSNR:.0f} dB.")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
