"""What the operators ask of the build and of torch before they work on a CUDA device."""

from __future__ import annotations

import warnings

import torch

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError


def require_cuda_build() -> None:
    """Raise EnvironmentLacksError, with the fix, where the core has no CUDA kernels."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but a tensor is on a CUDA device: put nvcc on PATH (or set CUDACXX) and"
            " run make build again, or use CPU tensors"
        )


def refuse_where_determinism_is_asked(name: str) -> None:
    """Raise RuntimeError (or warn, as torch was told) under torch.use_deterministic_algorithms."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"{name} adds in no fixed order on a CUDA device, but deterministic algorithms were asked for"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}: run it on the CPU, or allow it with warn_only=True")
    warnings.warn(message, stacklevel=2)
