"""Device and arithmetic of a run (layer 4): fp32, tf32, mixed precision in bf16 or fp16 over fp32 weights, and int8."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hpcai500 import _core
from hpcai500.comm.communicator import Communicator
from hpcai500.engine.ranks import Ranks
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Recipe
from hpcai500.system.accelerator import Torch, why_not_served
from hpcai500.system.doctor import why_no_device

# ----------------------------------------------------------------------------------------------------
# fp16's loss scale where several ranks hold stages of one model.


class AgreedGradScaler(torch.amp.GradScaler):
    """torch's loss scaler, agreed over the stages of a model: a step that overflows on one stage is skipped by all.

    `communicator` has all ranks that hold stages of the model, which step equally often. torch's ShardedGradScaler is
    not suitable: one of its default arguments keeps the job's process group until the process ends (see
    `comm.torch_backend.open_torch`), fused optimizers take a step that overflows on two ranks, and no monitor watches
    its wait for the others.
    """

    def __init__(self, device: torch.device, communicator: Communicator) -> None:
        super().__init__(device.type)
        self._where, self._communicator = device, communicator
        # Only the last stage scales a loss, but all stages need the factor to unscale gradients.
        self.scale(torch.zeros((), device=device))

    def unscale_(self, optimizer: optim.Optimizer) -> None:
        """Divide the gradients by the scale, and check whether one overflowed on any rank.

        Raises:
            CommunicationError: another rank is lost.
        """
        super().unscale_(optimizer)
        state: dict[str, Any] = self._per_optimizer_states[id(optimizer)]
        # Empty if no parameter has a gradient; this rank must still take part in the sum.
        found: dict[torch.device, Tensor] = state["found_inf_per_device"] or {
            self._where: torch.zeros((), device=self._where)
        }
        for overflowed in found.values():
            self._communicator.all_reduce(overflowed)
            # A fused optimizer skips its step at 1 only, not at a sum of 2.
            overflowed.clamp_(max=1)
        state["found_inf_per_device"] = found


# ----------------------------------------------------------------------------------------------------
# Training with int8 values: inputs and weights of convolutions and linear layers are rounded to 256 values.
#
# The arithmetic is the device's float32, because torch has no 8-bit kernels for training. Weights have a scale for each
# output channel, symmetric about 0. Inputs have a scale and a zero point for each sample: rounding does not depend on
# the batch, so that results do not depend on how data and model are distributed. Gradients are straight-through (Bengio
# et al. 2013; Jacob et al. 2018): those of the rounded values, in float32, as if nothing had been rounded. Weights are
# kept, and updated, in float32.


_LOWEST, _HIGHEST = -128, 127
# The scale of a tensor of zeros, for which any scale is right.
_LEAST_SCALE = torch.finfo(torch.float32).tiny


class Int8Products(TorchFunctionMode):
    """While it is entered, convolutions and linear layers multiply int8 values, as autocast makes them take bf16."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Round input and weight, the first two arguments of a product."""
        if func in _PRODUCTS and len(args) > 1:
            args = (rounded_samples(args[0]), rounded_weight(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


_PRODUCTS = (F.conv2d, torch.conv2d, F.linear)


def rounded_weight(weight: Tensor) -> Tensor:
    """(outputs, …) with values rounded to -127 … 127 times a scale for each output; gradients pass through."""
    largest = weight.detach().abs().flatten(1).amax(1)
    scales = (largest / _HIGHEST).clamp_(min=_LEAST_SCALE)
    zeros = torch.zeros(len(scales), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, _LOWEST, _HIGHEST)


def rounded_samples(images: Tensor) -> Tensor:
    """(N, …) with each sample's values rounded to 256 evenly spaced ones, 0 among them; gradients pass through."""
    values = images.detach().flatten(1)
    # 0 is exact: padding and the zeros of ReLU stay 0.
    least, greatest = values.amin(1).clamp_(max=0), values.amax(1).clamp_(min=0)
    # One step fewer than available: the zero point is rounded, and values beyond the last step would get no gradient.
    scales = ((greatest - least) / (_HIGHEST - _LOWEST - 1)).clamp_(min=_LEAST_SCALE)
    zeros = (_LOWEST - least / scales).round_().clamp_(_LOWEST, _HIGHEST).to(torch.int32)
    return torch.fake_quantize_per_channel_affine(images, scales, zeros, 0, _LOWEST, _HIGHEST)


# ----------------------------------------------------------------------------------------------------
# The precision and the device of a run.


_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs forward passes and updates in the precision `name` of the recipe.

    `stages` are the ranks that hold stages of the same model, which must skip the same steps; None for a whole model.
    Creating it sets torch's global switches for tf32 and cuDNN.
    """

    def __init__(self, name: str, device: torch.device, *, stages: Communicator | None = None) -> None:
        self._device = device
        self._mixed = _MIXED.get(name)
        self._is_int8 = name == "int8"
        # fp16 has 5 exponent bits: small gradients vanish unless the loss is scaled up.
        self._scaler = _scaler(device, stages) if name == "fp16" else None
        self._in_stages = stages is not None
        # torch's older switches: the newer ones (fp32_precision) may not be mixed with them, torch's compiler still
        # reads the older ones, and only those exist in all supported versions.
        matmul = "high" if name == "tf32" else "highest"
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        # Shapes never change in a run, so the search for the fastest convolution is worth its time.
        torch.backends.cudnn.benchmark = True

    @property
    def input_dtype(self) -> torch.dtype:
        """The type in which images should be delivered."""
        return self._mixed or torch.float32

    @property
    def skips_overflows(self) -> bool:
        """Whether `step` leaves the weights unchanged if a gradient is not finite."""
        return self._scaler is not None

    def forward(self, *, caching: bool = True) -> AbstractContextManager[Any]:
        """The context of forward pass and loss.

        With `caching` a weight that is used twice is rounded once. Disable it while a CUDA graph is captured, which
        would keep using a weight that was rounded outside of it.
        """
        if self._is_int8:
            return Int8Products()
        if self._mixed is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._mixed, cache_enabled=caching)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss that a backward pass begins with: with fp16 it is scaled up."""
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, loss: Tensor) -> None:
        """Do the backward pass; with fp16 its gradients are scaled up."""
        self.scaled(loss).backward()

    def step(self, optimizer: optim.Optimizer, *, unscaled: bool = False) -> None:
        """Do one step of `optimizer`; with fp16 a step whose gradients overflow is skipped.

        A fused optimizer divides by the scale and skips the step by itself, on the device; for others the host waits
        for the device to say whether a gradient overflowed. With `unscaled` it finds gradients without the scale too,
        for a rule that looks at them before its kernel does.
        """
        if self._scaler is None:
            optimizer.step()
            return
        if self._in_stages or unscaled:
            # The scaler does not call this for a fused optimizer, but it is needed to ask the other stages.
            self._scaler.unscale_(optimizer)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        if self._scaler:
            self._scaler.load_state_dict(state)


@contextmanager
def same_kernels() -> Iterator[None]:
    """While it is entered, cuDNN uses the same kernels for the same shapes, regardless of earlier timings."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


def _scaler(device: torch.device, stages: Communicator | None) -> torch.amp.GradScaler:
    return AgreedGradScaler(device, stages) if stages else torch.amp.GradScaler(device.type)


def device_of(recipe: Recipe, ranks: Ranks) -> torch.device:
    """The recipe's device for this rank, made torch's current one. There is no silent fall-back to a CPU.

    On a CPU this process keeps the memory that tensors free.

    Raises:
        EnvironmentLacksError: this rank has no such device, or torch or the core has no code for it.
    """
    if recipe.accelerator.device != "cuda":
        keep_freed_memory()
        return torch.device(recipe.accelerator.device)
    if not torch.cuda.is_available():
        raise EnvironmentLacksError(
            why_no_device(
                os.environ,
                Torch(torch.__version__, torch.version.cuda, torch.version.hip),
                # The options of a job are those of its command.
                [recipe.benchmark, *sys.argv[1:]],
            )
        )
    # If only one device is visible, the launcher may have given each rank its own.
    devices = torch.cuda.device_count()
    local_rank = ranks.placement.local_rank if devices > 1 else 0
    if local_rank >= devices:
        raise EnvironmentLacksError(
            f"{ranks.name} has local rank {local_rank}, but only {devices} devices are visible: start at most one rank "
            "per device"
        )
    device = torch.device("cuda", local_rank)
    if reason := why_not_served(
        torch.cuda.get_device_name(device),
        torch.cuda.get_device_capability(device),
        torch.cuda.get_arch_list(),
        _core.cuda_architectures(),
    ):
        raise EnvironmentLacksError(reason)
    torch.cuda.set_device(device)
    return device


# Names of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next tensors; returns whether the C library can (glibc).

    Otherwise glibc gives large blocks back to the kernel, which clears all their pages when the next step takes them
    again. On two cores that was a fifth of a step of the smoke recipe. Values do not change, and the process never
    holds more than it has held at once, apart from gaps between blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_TRIM_THRESHOLD, _MOST), mallopt(_MMAP_THRESHOLD, _MOST)])


def device_name(device: torch.device) -> str:
    """`cuda:1 (NVIDIA H100)`, or `cpu`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
