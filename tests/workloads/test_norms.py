"""Normalisation as the recipe names it, and batch norm over ranks: what they compute together is one process's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from builders.ranks import run_ranks
from comm.thread_ranks import run_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_detector import tiny_options
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500 import _core
from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.layers import ImageClassification
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model as build_detector
from hpcai500.workloads.ic import build_model
from hpcai500.workloads.models.normalisation import GroupNorm, norm_factory
from hpcai500.workloads.models.sync_batch_norm import SyncBatchNorm2d

CHANNELS = 3
SHARES = (5, 3)


# --- the layer


def images(count: int, seed: int = 0, size: tuple[int, int] = (4, 5), **how: Any) -> Tensor:
    """Images whose channels have different means and spreads."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, CHANNELS, *size, generator=random)
    spread = torch.tensor([0.5, 1.0, 4.0])[:, None, None]
    return (noise * spread + spread * 2).to(**how)


def layer(kind: type[nn.BatchNorm2d], *arguments: Any, **how: Any) -> nn.BatchNorm2d:
    """A layer in whose scale and shift each channel can be told from the others."""
    made = kind(CHANNELS, *arguments)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([0.5, 1.5, -2.0]))
        made.bias.copy_(torch.tensor([0.1, 0.0, -0.3]))
    return made.to(**how)


def passed(norm: nn.Module, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """What comes of training passes over `batches` with a loss that weighs each output differently."""
    for number, batch in enumerate(batches):
        leaf = batch.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        outputs = norm(leaf)
        where = torch.arange(outputs[0].numel(), dtype=outputs.dtype, device=outputs.device).view(outputs.shape[1:])
        (outputs.square() * torch.cos(where + number)).sum().backward()
    assert leaf.grad is not None
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in norm.named_parameters()}
    state = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    return {"outputs": outputs.detach(), "gradient of images": leaf.grad, **gradients, **state}  # type: ignore[dict-item]


def split(batch: Tensor, shares: Sequence[int]) -> list[Tensor]:
    return list(batch.split(list(shares)))


def together(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Samples of all ranks one after the other, gradients of weights summed, statistics that must be equal anyway."""
    whole = dict(parts[0])
    for key in ("outputs", "gradient of images"):
        whole[key] = torch.cat([part[key] for part in parts])
    for key in ("gradient of weight", "gradient of bias"):
        whole[key] = torch.stack([part[key] for part in parts]).sum(0)
    return whole


def on_ranks(shares: Sequence[int], batches: Sequence[Tensor], **how: Any) -> list[dict[str, Tensor]]:
    def rank(communicator: Communicator) -> dict[str, Tensor]:
        mine = [split(batch, shares)[communicator.rank] for batch in batches]
        return passed(layer(SyncBatchNorm2d, communicator, **how), mine)

    return run_threads(rank, hosts=["a"] * len(shares))


def assert_alike(mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        error = (mine[key].double() - value.double()).abs().max().item()
        assert error <= tolerance * max(1.0, value.abs().max().item()), f"{key} differs by {error}"


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.sampled_from([(1, 1), (4, 5)]))
def test_ranks_with_any_number_of_samples_compute_what_one_process_does(
    shares: list[int], size: tuple[int, int]
) -> None:
    batches = [images(sum(shares), seed, size, dtype=torch.float64) for seed in (1, 2)]
    whole = passed(layer(nn.BatchNorm2d, dtype=torch.float64), batches)
    parts = on_ranks(shares, batches, dtype=torch.float64)
    assert_alike(together(parts), whole, 1e-10)
    assert all(torch.equal(part["running_var"], parts[0]["running_var"]) for part in parts)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_in_float32_and_in_either_layout(layout: torch.memory_format) -> None:
    batches = [images(5, seed).contiguous(memory_format=layout) for seed in (1, 2)]
    parts = on_ranks([3, 2], batches)
    assert_alike(together(parts), passed(layer(nn.BatchNorm2d), batches), 2e-5)
    assert parts[0]["outputs"].is_contiguous(memory_format=layout)
    assert parts[0]["gradient of images"].is_contiguous(memory_format=layout)


def test_under_autocast_statistics_stay_float32() -> None:
    halves = [images(6, seed, dtype=torch.bfloat16) for seed in (1, 2)]

    def rank(communicator: Communicator) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return passed(
                layer(SyncBatchNorm2d, communicator), [split(half, [3, 3])[communicator.rank] for half in halves]
            )

    mine = together(run_threads(rank, hosts=["a", "b"]))
    exact = passed(layer(nn.BatchNorm2d, dtype=torch.float64), [half.double() for half in halves])
    assert mine["outputs"].dtype == mine["gradient of images"].dtype == torch.bfloat16
    assert mine["running_mean"].dtype == mine["gradient of weight"].dtype == torch.float32
    for key in ("running_mean", "running_var"):
        assert torch.allclose(mine[key].double(), exact[key], rtol=1e-6)
    for key in ("outputs", "gradient of images", "gradient of weight", "gradient of bias"):
        assert_alike({key: mine[key]}, {key: exact[key]}, 2e-2)


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance() -> None:
    # In float32, the mean of the squares less the square of the mean would be wrong by more than the variance itself.
    far = images(8, seed=3) + 3000.0
    exact = far.double().var((0, 2, 3))
    (first, second) = on_ranks([5, 3], [far])
    variance = (first["running_var"].double() - 0.9) / 0.1
    assert torch.allclose(variance, exact, rtol=1e-5)
    assert torch.equal(first["running_var"], second["running_var"])


def test_equal_pixels_have_no_variance_and_give_no_nan() -> None:
    flat = torch.full((7, CHANNELS, 3, 3), 7654321.0)
    parts = on_ranks([4, 3], [flat])
    assert all(torch.isfinite(value).all() for part in parts for value in part.values())


def test_evaluation_is_batch_norms() -> None:
    batch = images(6)

    def rank(communicator: Communicator) -> Tensor:
        norm = layer(SyncBatchNorm2d, communicator)
        norm(split(batch, [2, 4])[communicator.rank])
        norm.eval()
        # Of another size on each rank, one of which sees nothing at all: nobody waits.
        return norm(batch) if communicator.rank == 0 else torch.empty(0)

    whole = layer(nn.BatchNorm2d)
    whole(batch)
    assert torch.allclose(run_threads(rank, hosts=["a", "b"])[0], whole.eval()(batch), atol=1e-5)


@pytest.mark.parametrize("communicator", [None, LocalCommunicator()])
def test_one_rank_is_batch_norm_to_the_bit(communicator: Communicator | None) -> None:
    batches = [images(4, seed) for seed in (1, 2)]
    mine = passed(layer(SyncBatchNorm2d, communicator), batches)
    assert_alike(mine, passed(layer(nn.BatchNorm2d), batches), 0.0)


def test_states_go_from_one_to_the_other() -> None:
    plain, synchronised = nn.BatchNorm2d(CHANNELS), SyncBatchNorm2d(CHANNELS)
    assert list(synchronised.state_dict()) == list(plain.state_dict())
    synchronised.load_state_dict(layer(nn.BatchNorm2d).state_dict())
    plain.load_state_dict(synchronised.state_dict())
    assert plain.weight.tolist() == [0.5, 1.5, -2.0]


class Mirror:
    """The other one of two ranks, as long as both hold the same images."""

    size = 2

    def all_reduce(self, tensor: Tensor) -> None:
        tensor *= 2


on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_a_rank_beside_its_mirror_image_computes_what_batch_norm_does_of_both(device: str) -> None:
    batch = images(4, device=device)
    mine = passed(layer(SyncBatchNorm2d, Mirror(), device=device), [batch])
    whole = passed(layer(nn.BatchNorm2d, device=device), [torch.cat([batch, batch])])
    expected = {key: whole[key][:4] for key in ("outputs", "gradient of images")}
    assert_alike({key: mine[key] for key in expected}, expected, 2e-5)
    assert_alike({"variance": mine["running_var"]}, {"variance": whole["running_var"]}, 1e-5)


class Unreachable:
    """A communicator that a copy must not take part in."""

    size = 2

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("copied")

    def all_reduce(self, tensor: Tensor) -> None:
        raise AssertionError("spoken to")


def test_a_copy_is_alone() -> None:
    original = SyncBatchNorm2d(CHANNELS, Unreachable())  # type: ignore[arg-type]
    copied = copy.deepcopy(original)
    copied(images(4))
    assert copied.running_mean is not original.running_mean
    with pytest.raises(AssertionError, match="spoken to"):
        original(images(4))


def test_operations_are_counted_without_the_other_ranks() -> None:
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, bias=False), SyncBatchNorm2d(CHANNELS, Unreachable()))  # type: ignore[arg-type]
    assert count_flops(model, torch.empty(2, 3, 8, 8)).forward_flops == 2 * 9 * 3 * CHANNELS * 36


# --- in whole models, on real ranks


def options(**changes: Any) -> ImageClassification:
    settings = [f"workload.{key}={value}" for key, value in {"width": 8, "image_size": 32, **changes}.items()]
    workload = load_recipe("ic/smoke", settings).workload
    assert isinstance(workload, ImageClassification)
    return workload


def step(communicator: Communicator | None, *, compiled: bool = False, **changes: Any) -> dict[str, Tensor]:
    """Gradients and statistics of one step on this rank's share of 8 images, without a rank on all of them."""
    torch.manual_seed(0)
    talk = communicator.group(range(communicator.size)) if communicator else None
    model: nn.Module = build_model(options(**changes), 3, talk)
    random = torch.Generator().manual_seed(1)
    images, labels = torch.randn(8, 3, 32, 32, generator=random), torch.arange(8) % 3
    if communicator:
        images, labels = (whole.split(SHARES)[communicator.rank] for whole in (images, labels))
    called = torch.compile(model, backend="eager") if compiled else model
    F.cross_entropy(called(images), labels, reduction="sum").backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if communicator:
        for gradient in gradients.values():
            communicator.all_reduce(gradient)
    return {**gradients, **{f"buffer {name}": buffer for name, buffer in model.named_buffers()}}


def steps_of_a_rank(communicator: Communicator) -> list[dict[str, Tensor]]:
    changes = ({}, {"compiled": True}, {"norm_statistics": "last-batch"})
    return [step(communicator, norm="sync-batch", **change) for change in changes]


def test_a_network_on_two_ranks_has_the_gradients_and_statistics_of_one_process() -> None:
    plain, compiled, last = zip(*run_ranks(steps_of_a_rank, 2, timeout=600), strict=True)
    for ranks, expected in (
        (plain, step(None)),
        (compiled, step(None)),
        (last, step(None, norm_statistics="last-batch")),
    ):
        assert ranks[0].keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(ranks[0][name], ranks[1][name]), name
            assert torch.allclose(ranks[0][name], value, rtol=1e-4, atol=1e-4), name


def test_statistics_of_the_last_batch_forget_those_before() -> None:
    for name in ("batch", "sync-batch"):
        norm = norm_factory(name, momentum=1.0)(3)
        first, last = torch.randn(2, 4, 3, 5, 5) * 2 + 1
        norm(first)
        norm(last)
        assert torch.allclose(norm.get_buffer("running_mean"), last.mean((0, 2, 3)), atol=1e-6)
        assert torch.allclose(norm.get_buffer("running_var"), last.var((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(("statistics", "momentum"), [("moving", 0.1), ("last-batch", 1.0)])
@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("sync-batch", SyncBatchNorm2d)])
def test_a_recipes_norm_is_in_every_place(norm: str, kind: type, statistics: str, momentum: float) -> None:
    model = build_model(options(norm=norm, norm_statistics=statistics), 3)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    # Stem, two in each of the four blocks, and the three shortcuts that change the shape.
    assert len(norms) == 1 + 2 * 4 + 3
    assert {(type(module), module.momentum) for module in norms} == {(kind, momentum)}


@pytest.mark.parametrize("norm", ["group", "batch", "sync-batch", "frozen-batch"])
def test_a_detector_has_the_norm_of_its_recipe(norm: str) -> None:
    body = build_detector(tiny_options(norm=norm)).backbone.body
    made = norm_factory(norm)(8)
    assert type(body.bn1) is type(made)
    assert type(body.layer2[0].bn2) is type(made)
    assert body.bn1.state_dict().keys() == made.state_dict().keys()


# --- group norm


def normalised_by_group(kind: type[nn.GroupNorm], batch: Tensor, slopes: Tensor, groups: int) -> list[Tensor]:
    """Outputs, and the gradients of images, scale and shift, in float64 on the CPU."""
    channels = batch.shape[1]
    norm = kind(groups, channels).to(batch.device, torch.float64 if batch.dtype == torch.float64 else torch.float32)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1.5, 2, channels))
        norm.bias.copy_(torch.linspace(1, -1, channels))
    leaf = batch.clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = norm(leaf)
    outputs.backward(slopes.to(outputs))
    assert leaf.grad is not None
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None
    return [one.detach().double().cpu() for one in (outputs, leaf.grad, norm.weight.grad, norm.bias.grad)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 64, 96, 144), 32), ((1, 8, 3, 5), 2), ((3, 256, 24, 36), 32), ((2, 2048, 6, 9), 32), ((2, 16, 1, 1), 4)],
)
def test_group_norm_on_a_device_is_torchs_without_a_change_of_type_or_layout(
    shape: tuple[int, int, int, int], groups: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    batch = (torch.randn(shape, generator=generator) * 2 + 3).to(dtype).contiguous(memory_format=torch.channels_last)
    slopes = torch.randn(shape, generator=generator).to(dtype)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        layer_outputs = GroupNorm(groups, shape[1]).cuda()(batch.cuda())
    assert layer_outputs.dtype == dtype
    assert layer_outputs.is_contiguous(memory_format=torch.channels_last)
    found = normalised_by_group(GroupNorm, batch.cuda(), slopes.cuda(), groups)
    expected = normalised_by_group(nn.GroupNorm, batch.double(), slopes.double(), groups)
    rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rounding, atol=rounding)
    for mine, theirs in zip(found[2:], expected[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-4 * float(theirs.abs().max() + 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_group_norm_on_a_device_takes_what_the_kernels_do_not() -> None:
    """Channels first, and channels that are no multiple of 8, are torch's."""
    for shape, layout in (((2, 12, 5, 7), torch.channels_last), ((2, 16, 5, 7), torch.contiguous_format)):
        batch = images(2, size=(5, 7))[:, :1].expand(shape).contiguous(memory_format=layout)
        norm = GroupNorm(4, shape[1])
        expected = norm(batch)
        torch.testing.assert_close(norm.cuda()(batch.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_group_norm_on_a_cpu_is_torchs_to_the_bit() -> None:
    batch = torch.randn(2, 16, 6, 5, generator=torch.Generator().manual_seed(2))
    for layout in (torch.contiguous_format, torch.channels_last):
        laid = batch.contiguous(memory_format=layout)
        found, expected = (normalised_by_group(kind, laid, laid, 4) for kind in (GroupNorm, nn.GroupNorm))
        assert all(mine.equal(theirs) for mine, theirs in zip(found, expected, strict=True))


def test_memory_for_group_norm_is_asked_for_by_shapes_that_it_takes() -> None:
    if not _core.cuda_architectures():
        pytest.skip("no CUDA compiler: a build without CUDA has no such memory")
    assert _core.group_norm_cuda_workspace(2, 100, 64, 32, False) > 0
    with pytest.raises(ValueError, match="multiple of 8"):
        _core.group_norm_cuda_workspace(2, 100, 12, 4, False)
