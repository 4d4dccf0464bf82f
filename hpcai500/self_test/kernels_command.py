"""`python -m hpcai500.self_test.kernels_command FOLDER LIMIT`: every CPU kernel of the core against its reference.

It imports no torch, so that a process for each instruction set costs little; HPCAI500_ISA chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hpcai500 import _core
from hpcai500.errors import ExitCode
from hpcai500.self_test import buckets, detector, images, weather
from hpcai500.self_test.process import begin


def checks(folder: Path) -> dict[str, Callable[[], str]]:
    """Every check by its name; `folder` is for files that they make."""
    return {
        "crop boxes": images.check_crop_boxes,
        "JPEG decode and crop": images.check_decoding,
        "JPEG types and layouts": images.check_types,
        "JPEG seek points": partial(images.check_seek_index, folder),
        "JPEG headers and windows": images.check_headers,
        "JPEG loader": partial(images.check_loader, folder),
        "climate layouts": partial(weather.check_layouts, folder),
        "climate damage": partial(weather.check_damage, folder),
        "climate normalisation": partial(weather.check_normalising, folder),
        "climate rolls and windows": partial(weather.check_windows, folder),
        "image conversion": weather.check_conversion,
        "gradient packing": buckets.check_packing,
        "gradient quantisation": buckets.check_quantising,
        "layer norms": buckets.check_norms,
        "memory copies": buckets.check_copies,
        "non-maximum suppression": detector.check_nms,
        "RoIAlign and gradient": detector.check_roi_align,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; how they ended is in the findings, whatever the exit code."""
    here = begin(arguments)
    for name, body in checks(here.folder).items():
        here.findings.check(f"{name} [{_core.cpu_isa()}]", body)
    return ExitCode.PASS


if __name__ == "__main__":
    sys.exit(main())
