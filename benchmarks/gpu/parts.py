"""The parts of `make bench-gpu`, in the order in which they run: each a module of this folder, or a share of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from options import Options


@dataclass(frozen=True)
class Part:
    """One measurement that is written down by itself.

    Attributes:
        name: what `--only` takes.
        module: whose `measure` does it.
        what: for people, a line.
        arguments: of `measure`, beside the options.
        takes_data: whether `measure` takes a folder of images.
    """

    name: str
    module: str
    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    takes_data: bool = False

    def measure(self, options: Options, data: Path | None) -> dict[str, Any]:
        """Do it."""
        function: Callable[..., dict[str, Any]] = import_module(self.module).measure
        more = {"data": data} if self.takes_data else {}
        return function(options, **self.arguments, **more)


# Steps are split by precision: an interactive job is often short.
PARTS = (
    Part("ceilings", "ceilings", "GEMM, CONV and copy of `hpcai500 micro` against the vendor's libraries"),
    Part("bucket_kernels", "bucket_kernels", "gradient buckets: our kernels against torch's foreach and casts"),
    Part("image_conversion", "image_conversion", "normalising and laying out images on the device"),
    Part("detection", "detection", "NMS and RoIAlign"),
    Part("input_alone", "input_alone", "the input pipelines alone", takes_data=True),
    Part("ic_fp32", "ic_step", "Image Classification's step in fp32", {"precisions": ("fp32",)}),
    Part("ic_tf32", "ic_step", "Image Classification's step in tf32", {"precisions": ("tf32",)}),
    Part("ic_mixed", "ic_step", "Image Classification's step in bf16 and fp16", {"precisions": ("bf16", "fp16")}),
    Part("ewa_step", "ewa_step", "Extreme Weather Analytics' step"),
    Part("data_wait", "data_wait", "training from JPEG files: waiting for data", takes_data=True),
    Part("smoke", "smoke", "the smoke runs, whole"),
)
