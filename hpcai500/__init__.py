"""HPC AI500: a benchmark of HPC AI systems, from a recipe to a record, a score and a verdict."""

from __future__ import annotations

try:
    from hpcai500._core import __version__
except ImportError as error:
    raise ImportError(
        f"hpcai500's C++ core is not built or cannot be loaded ({error}): "
        "run `make build` in the source tree, or `pip install .`; both compile csrc/ with CMake"
    ) from error

__all__ = ["__version__"]
