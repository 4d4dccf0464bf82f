"""The kernels on a CUDA device against those on the CPU, which `kernels` checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.comm import kernels
from hpcai500.comm.horovod_backend import Horovod
from hpcai500.data.device_batches import convert_images
from hpcai500.errors import EnvironmentLacksError
from hpcai500.findings import CannotBeChecked
from hpcai500.self_test.checking import require, require_close, require_equal
from hpcai500.self_test.kernels import NORM_TOLERANCE
from hpcai500.system.accelerator import Torch, find_traces
from hpcai500.system.doctor import why_no_device
from hpcai500.system.software import DALI_DISTRIBUTIONS, installed
from hpcai500.workloads.operators import batched_nms, roi_align, roi_align_levels, sorted_nms

# A device sums in another order, which is not fixed.
_POOLING_TOLERANCE = 1e-4
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def find_device() -> torch.device:
    """The first CUDA device.

    Raises:
        CannotBeChecked: this host has none, or torch is built without CUDA.
        EnvironmentLacksError: torch does not find the device, or the core has no kernels for it.
    """
    if not torch.cuda.is_available():
        if torch.version.cuda and find_traces().any:
            raise EnvironmentLacksError(_why_no_device())
        if torch.version.cuda is None:
            raise CannotBeChecked(f"torch {torch.__version__} uses no CUDA device")
        raise CannotBeChecked(
            "no CUDA device: for the kernels of GPUs, run this on a node that has one (in a container with --nv)"
        )
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "the host has a CUDA device, but hpcai500 is built without CUDA: put nvcc on PATH (or set CUDACXX) and run "
            "`make build` again"
        )
    return torch.device("cuda", 0)


def on_device(check: Callable[[torch.device], str], *, leave_out: bool = False) -> str:
    """Run `check` on the first CUDA device; returns its result with the name of the device.

    Raises:
        CannotBeChecked: as `find_device`, or `leave_out`: the user asked not to use a device.
    """
    if leave_out:
        raise CannotBeChecked(
            "left out by --no-gpu: for the kernels of GPUs, run this without it on a node that has one (in a container "
            "with --nv)"
        )
    device = find_device()
    found = check(device)
    return f"{torch.cuda.get_device_name(device)}: {found}"


@cache
def _why_no_device() -> str:
    """Cached for all checks: a broken driver may take a minute to answer."""
    torch_here = Torch(torch.__version__, torch.version.cuda, torch.version.hip)
    return why_no_device(os.environ, torch_here, ["self-test"], by_recipe=False)


def check_packing_on_device(device: torch.device) -> str:
    """Buckets packed on the device are bitwise equal to the CPU's."""
    tensors = _tensors()
    count, there = sum(t.numel() for t in tensors), [t.to(device) for t in tensors]
    for dtype in _DTYPES:
        ours, theirs = (torch.empty(count, dtype=dtype, device=place) for place in (torch.device("cpu"), device))
        norms = torch.empty(len(tensors), dtype=torch.float64, device=device)
        kernels.pack(tensors, ours, scale=0.3)
        kernels.pack(there, theirs, scale=0.3, norms=norms)
        _require_same_bits(f"packed {dtype}", theirs, ours)
        _require_norms(norms, tensors)
        back, back_there = [torch.empty_like(t) for t in tensors], [torch.empty_like(t) for t in there]
        kernels.unpack(ours, back, scale=3.0)
        kernels.unpack(theirs, back_there, scale=3.0)
        for one, other in zip(back_there, back, strict=True):
            _require_same_bits(f"unpacked {dtype}", one, other)
    return f"{count} values; float32, float16, bfloat16; exactly (norms to 1e-10)"


def check_quantising_on_device(device: torch.device) -> str:
    """int8 buckets and residuals on the device are bitwise equal to the CPU's."""
    tensors = _tensors()
    count, there = sum(t.numel() for t in tensors), [t.to(device) for t in tensors]
    size = kernels.quantised_bytes(count)
    ours, theirs = (torch.empty(size, dtype=torch.uint8, device=place) for place in (torch.device("cpu"), device))
    rest, rest_there = torch.zeros(count), torch.zeros(count, device=device)
    for _ in range(2):
        kernels.quantise(tensors, ours, scale=1.7, residual=rest)
        kernels.quantise(there, theirs, scale=1.7, residual=rest_there)
        _require_same_bits("quantised", theirs, ours)
        _require_same_bits("residual", rest_there, rest)
    back, back_there = torch.ones(count), torch.ones(count, device=device)
    kernels.dequantise(ours, [back], scale=0.5, accumulate=True)
    kernels.dequantise(theirs, [back_there], scale=0.5, accumulate=True)
    _require_same_bits("dequantised", back_there, back)
    return f"{count} values, int8 with error feedback, twice; exactly"


def check_norms_on_device(device: torch.device) -> str:
    """Norms of all layers on the device are those of the CPU."""
    tensors = _tensors()
    norms = torch.empty(len(tensors), dtype=torch.float64, device=device)
    kernels.layer_norms([t.to(device) for t in tensors], norms)
    _require_norms(norms, tensors)
    return f"{len(tensors)} tensors, to 1e-10"


def check_nms_on_device(device: torch.device) -> str:
    """The device keeps the same boxes as the CPU, in the same order."""
    generator = torch.Generator().manual_seed(4)
    boxes = _boxes(generator, 5000)
    scores, groups = torch.rand(5000, generator=generator), torch.randint(0, 4, (5000,), generator=generator)
    for threshold in (0.3, 0.7):
        there = batched_nms(boxes.to(device), scores.to(device), groups.to(device), threshold)
        require_equal(f"kept above {threshold}", there.cpu().numpy(), batched_nms(boxes, scores, groups, threshold))
    return "5000 boxes in 4 groups; the same are kept"


def check_sorted_nms(device: torch.device) -> str:
    """The same boxes of many lists are kept, in one launch, also if some boxes are excluded (NaN)."""
    generator = torch.Generator().manual_seed(5)
    boxes = _boxes(generator, 2, 1300)
    boxes[:, ::7] = torch.nan
    segments = (1000, 0, 1, 235, 64)
    for threshold in (0.3, 0.7):
        there = sorted_nms(boxes.to(device), segments, threshold)
        require_equal(f"kept above {threshold}", there.cpu().numpy(), sorted_nms(boxes, segments, threshold).numpy())
    return "2 x 1300 boxes in 5 lists; the same are kept"


def check_roi_align_on_device(device: torch.device) -> str:
    """Bins and gradients on the device are those of the CPU, to a tolerance."""
    generator = torch.Generator().manual_seed(6)
    features = torch.randn(2, 35, 20, 30, generator=generator)
    rois = _rois(generator)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        results = []
        for place in (torch.device("cpu"), device):
            leaf = features.to(place).clone(memory_format=memory_format).requires_grad_()
            pooled = roi_align(leaf, rois.to(place), (7, 7), 0.5, 2, True)
            pooled.square().sum().backward()
            results.append([leaf.grad, pooled])
        for name, ours, theirs in zip(("gradient", "pooled rois"), *results, strict=True):
            require_close(name, theirs.detach().cpu().numpy(), ours.detach().numpy(), _POOLING_TOLERANCE)
    return "40 rois, both layouts, with gradients; to 1e-4"


def check_roi_align_levels(device: torch.device) -> str:
    """Bins and gradients of rois on several levels, in one launch."""
    generator = torch.Generator().manual_seed(7)
    scales = (0.5, 0.25, 0.125)
    levels = [torch.randn(2, 35, int(40 * scale), int(60 * scale), generator=generator) for scale in scales]
    rois = _rois(generator)
    level_of = torch.randint(0, len(levels), (40,), generator=generator)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        results = []
        for place in (torch.device("cpu"), device):
            leaves = [level.to(place).clone(memory_format=memory_format).requires_grad_() for level in levels]
            pooled = roi_align_levels(leaves, rois.to(place), level_of.to(place), (7, 7), scales, 2, True)
            pooled.square().sum().backward()
            results.append([pooled, *(leaf.grad for leaf in leaves)])
        names = ("pooled rois", *(f"gradient of level {number}" for number in range(len(levels))))
        for name, ours, theirs in zip(names, *results, strict=True):
            require_close(name, theirs.detach().cpu().numpy(), ours.detach().numpy(), _POOLING_TOLERANCE)
    return "40 rois on 3 levels, both layouts, with gradients; to 1e-4"


def check_conversion_on_device(device: torch.device) -> str:
    """Images that are normalised, cast and laid out on the device are bitwise equal to the CPU's."""
    generator = torch.Generator().manual_seed(8)
    levels = torch.randint(0, 256, (3, 3, 24, 36), generator=generator, dtype=torch.uint8)
    fields = torch.randn(2, 16, 24, 36, generator=generator) * 300
    for images in (fields, fields[..., :35].contiguous(), levels.contiguous(memory_format=torch.channels_last)):
        mean, std = [float(c) for c in range(images.shape[1])], [0.5 + c for c in range(images.shape[1])]
        for dtype in _DTYPES:
            for memory_format in (torch.contiguous_format, torch.channels_last):
                ours = convert_images(images, mean, std, dtype, memory_format)
                theirs = convert_images(images.to(device), mean, std, dtype, memory_format)
                _require_same_bits(f"{dtype} images", theirs.contiguous(), ours.contiguous())
    return "16 channels of float32 and 3 of uint8 to float32, float16, bfloat16, both layouts; exactly"


_DOCTOR = "hpcai500 doctor ic --set accelerator.device=cuda --procs N"
# Libraries on devices that this installation may offer and the self-test does not use, with the command that does.
_ELSEWHERE = {
    "NCCL": _DOCTOR,
    "Horovod over NCCL": f"{_DOCTOR} --set communication.backend=horovod",
    "DALI": "hpcai500 ic --set accelerator.device=cuda --set accelerator.loader=dali",
}


def checks() -> dict[str, Callable[[torch.device], str]]:
    """All checks on a device by name, with those of the libraries that this installation offers."""
    return CHECKS | {name: partial(_check_elsewhere, name) for name in _offered()}


def _offered() -> Iterator[str]:
    if torch.distributed.is_nccl_available():
        yield "NCCL"
    # Whether it is installed and loads is another check.
    with suppress(EnvironmentLacksError):
        if installed("horovod") and Horovod("cpu").takes_cuda_tensors:
            yield "Horovod over NCCL"
    if installed(*DALI_DISTRIBUTIONS):
        yield "DALI"


def _check_elsewhere(name: str, device: torch.device) -> str:
    raise CannotBeChecked(f"the self-test does not use it; this command does: {_ELSEWHERE[name]}")


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "gradient packing": check_packing_on_device,
    "gradient quantisation": check_quantising_on_device,
    "layer norms": check_norms_on_device,
    "non-maximum suppression": check_nms_on_device,
    "non-maximum suppression of lists": check_sorted_nms,
    "RoIAlign and gradient": check_roi_align_on_device,
    "RoIAlign of levels": check_roi_align_levels,
    "image conversion": check_conversion_on_device,
}


def _tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    sizes = (1, 255, 4096, 4097, 100_003)
    tensors = [torch.randn(n, generator=generator) * 10.0**power for power, n in enumerate(sizes, -3)]
    return [*tensors, torch.randn(3, 5, 2, 7, generator=generator).contiguous(memory_format=torch.channels_last)]


def _boxes(generator: torch.Generator, *shape: int) -> Tensor:
    corners = torch.rand(*shape, 2, generator=generator) * 100
    return torch.cat([corners, corners + torch.rand(*shape, 2, generator=generator) * 30], dim=-1)


def _rois(generator: torch.Generator) -> Tensor:
    """40 rois on two images, some of them across an edge."""
    corners = torch.rand(40, 2, generator=generator) * 50 - 8
    image = torch.randint(0, 2, (40, 1), generator=generator)
    return torch.cat([image, corners, corners + torch.rand(40, 2, generator=generator) * 20], dim=1)


def _require_same_bits(what: str, there: Tensor, here: Tensor) -> None:
    bits = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[here.element_size()]
    require_equal(what, there.cpu().view(bits).numpy(), here.view(bits).numpy())


def _require_norms(norms: Tensor, tensors: list[Tensor]) -> None:
    expected = torch.stack([t.double().norm() for t in tensors])
    off = (norms.cpu() - expected).abs() > NORM_TOLERANCE * expected
    require(not bool(off.any()), f"norms: {norms.cpu()[off].tolist()} instead of {expected[off].tolist()}")
