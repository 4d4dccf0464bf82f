"""ResNet v1.5: shapes, parameter counts, torchvision's state-dict keys, and the options of the rules."""

from __future__ import annotations

import pytest
import torch

from hpcai500.workloads.models.resnet import BasicBlock, Bottleneck, ResNet


@pytest.mark.parametrize(
    ("block", "depths", "parameters"),
    [
        (BasicBlock, (2, 2, 2, 2), 11_689_512),
        (BasicBlock, (3, 4, 6, 3), 21_797_672),
        (Bottleneck, (3, 4, 6, 3), 25_557_032),
        (Bottleneck, (3, 4, 23, 3), 44_549_160),
    ],
    ids=["18", "34", "50", "101"],
)
def test_parameter_counts_are_the_published_ones(
    block: type[BasicBlock | Bottleneck], depths: tuple[int, ...], parameters: int
) -> None:
    with torch.device("meta"):
        model = ResNet(block, depths)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_state_dict_keys_are_torchvisions() -> None:
    with torch.device("meta"):
        state = ResNet(Bottleneck, (3, 4, 6, 3)).state_dict()
    # 161 trainable tensors, and mean, variance and step count of 53 batch norms.
    assert len(state) == 161 + 3 * 53
    assert list(state)[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    shapes = {
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv2.weight": (64, 64, 3, 3),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_mean": (256,),
        "layer3.5.bn3.weight": (1024,),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


def test_version_1_5_has_its_stride_in_the_3x3_convolution() -> None:
    block = ResNet(Bottleneck, (1, 1, 1, 1), width=4).layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


def test_output_is_a_score_for_each_class_at_any_size() -> None:
    model = ResNet(BasicBlock, (1, 1, 1, 1), width=4, classes=7).eval()
    assert model(torch.zeros(2, 3, 33, 50)).shape == (2, 7)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_zero_gamma_starts_each_block_as_its_shortcut(block: type[BasicBlock | Bottleneck]) -> None:
    plain, zeroed = (ResNet(block, (2, 1, 1, 1), width=4, zero_gamma=option) for option in (False, True))
    assert all((b.last_norm.weight == 1).all() for b in plain.modules() if isinstance(b, block))
    assert all((b.last_norm.weight == 0).all() for b in zeroed.modules() if isinstance(b, block))
    second = zeroed.layer1[1].eval()
    x = torch.rand(1, 4 * block.expansion, 5, 5)
    assert torch.equal(second(x), x)


def test_weights_start_as_he_et_al_prescribe() -> None:
    torch.manual_seed(0)
    weight = ResNet(Bottleneck, (1, 1, 1, 1)).layer4[0].conv2.weight
    fan_out = 512 * 9
    assert weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.01)
