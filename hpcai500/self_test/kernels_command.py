"""`python -m hpcai500.self_test.kernels_command FOLDER LIMIT`: every CPU kernel of the core against its reference.

HPCAI500_ISA selects the instruction set: the self-test starts one process for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hpcai500 import _core
from hpcai500.errors import ExitCode
from hpcai500.self_test import kernels
from hpcai500.self_test.process import begin


def checks(folder: Path) -> dict[str, Callable[[], str]]:
    """Every check by its name; `folder` takes the files that checks write."""
    return {
        "crop boxes": kernels.check_crop_boxes,
        "JPEG decode and crop": kernels.check_decoding,
        "JPEG types and layouts": kernels.check_types,
        "JPEG seek points": partial(kernels.check_seek_index, folder),
        "JPEG headers and windows": kernels.check_headers,
        "JPEG loader": partial(kernels.check_loader, folder),
        "climate layouts": partial(kernels.check_layouts, folder),
        "climate damage": partial(kernels.check_damage, folder),
        "climate normalisation": partial(kernels.check_normalising, folder),
        "climate rolls and windows": partial(kernels.check_windows, folder),
        "image conversion": kernels.check_conversion,
        "gradient packing": kernels.check_packing,
        "gradient quantisation": kernels.check_quantising,
        "layer norms": kernels.check_norms,
        "memory copies": kernels.check_copies,
        "non-maximum suppression": kernels.check_nms,
        "RoIAlign and gradient": kernels.check_roi_align,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks. The findings tell how they ended; the exit code does not."""
    here = begin(arguments)
    for name, body in checks(here.folder).items():
        here.findings.check(f"{name} [{_core.cpu_isa()}]", body)
    return ExitCode.PASS


if __name__ == "__main__":
    sys.exit(main())
