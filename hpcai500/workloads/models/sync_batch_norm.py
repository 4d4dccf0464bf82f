"""Distributed batch norm: statistics over the samples of all ranks (V2.0 Table 1, Google: Ying et al. 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm.communicator import Communicator

# Axes of (N, C, H, W) except the channels.
_SAMPLES = (0, 2, 3)


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm as if all ranks' samples were in one batch: outputs, gradients and running statistics.

    Ranks may have different numbers of samples, at least one. Statistics of half precision are float32. Gradients of
    scale and shift are those of this rank's samples, to be averaged over ranks with those of all other weights.
    Evaluation, and training with one rank, are those of `nn.BatchNorm2d`.

    `communicator` must not be used for anything else, because gradients of later layers may be sent at the same time;
    None is one rank. A copy or pickle of the layer has None, because a communicator cannot be copied. `momentum` is the
    weight of a batch in the running statistics.
    """

    def __init__(self, channels: int, communicator: Communicator | None = None, momentum: float = 0.1) -> None:
        super().__init__(channels, momentum=momentum)
        self._communicator = communicator

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_communicator": None}

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> the same shape, type and memory format. Raises RunError when another rank is lost."""
        if not self.training or self._communicator is None or self._communicator.size == 1:
            return super().forward(input)
        outputs: Tensor = self._normalised(input, self._communicator)
        return outputs

    # Communication cannot be compiled: the graph breaks here. The decorator imports torch's compiler: a second.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _normalised(self, images: Tensor, communicator: Communicator) -> Tensor:
        self._check_input_dim(images)
        count, mean, variance = _global_statistics(images.detach(), communicator)
        self._update_running(count, mean, variance)
        return _Normalise.apply(  # type: ignore[no-any-return,no-untyped-call]
            images, self.weight, self.bias, count, mean, variance, self.eps, communicator
        )

    @torch.no_grad()
    def _update_running(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics with a batch; as in torch, they have the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


def _global_statistics(images: Tensor, communicator: Communicator) -> tuple[Tensor, Tensor, Tensor]:
    """Samples per channel (), and mean and biased variance (C,) over all ranks, in float64, by one all-reduce.

    Each rank computes its moments about its own mean; they are shifted to 0 and summed in float64. The shift loses
    1e-16 of the squared mean, less than the rounding of images to float32 (4e-15 of it).
    """
    channels = images.shape[1]
    local_mean = images.mean(_SAMPLES, dtype=_real(images))
    squares = (images - local_mean[:, None, None]).square_().sum(_SAMPLES).double()
    local_mean = local_mean.double()
    local_count = images.numel() // channels
    sums = torch.empty(2 * channels + 1, dtype=torch.float64, device=images.device)
    sums[0] = local_count
    sums[1 : channels + 1] = local_mean * local_count
    sums[channels + 1 :] = squares + local_mean.square() * local_count
    communicator.all_reduce(sums)
    count = sums[0]
    mean, mean_square = (sums[1:] / count).chunk(2)
    return count, mean, (mean_square - mean.square()).clamp_(min=0)


class _Normalise(torch.autograd.Function):
    """Normalises by statistics of all ranks; the gradient also flows through the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        count: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
        communicator: Communicator,
    ) -> Tensor:
        ctx.communicator = communicator
        real = _real(images)
        ctx.save_for_backward(images, weight, count, mean.to(real), (variance + epsilon).rsqrt().to(real))
        return F.batch_norm(images, mean.to(real), variance.to(real), weight, bias, training=False, eps=epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Ioffe and Szegedy 2015, section 3, with means over all ranks."""
        images, weight, count, mean, inverse = ctx.saved_tensors
        normal = (images - mean[:, None, None]).mul_(inverse[:, None, None])
        of_bias, of_weight = gradient.sum(_SAMPLES, dtype=normal.dtype), (gradient * normal).sum(_SAMPLES)
        sums = torch.cat([of_bias, of_weight])
        ctx.communicator.all_reduce(sums)
        mean_gradient, mean_product = (sums / count)[:, None, None].chunk(2)
        inside = (gradient - mean_gradient).sub_(normal.mul_(mean_product))
        of_images = inside.mul_((weight * inverse)[:, None, None]).to(images.dtype)
        return of_images, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None, None, None, None, None


def _real(images: Tensor) -> torch.dtype:
    """The type of statistics: float32, or float64 if the images are."""
    return torch.promote_types(images.dtype, torch.float32)
