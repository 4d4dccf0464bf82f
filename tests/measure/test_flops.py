"""The analytic count: the paper's formula by hand, the published total, and torch's own counter on odd models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hpcai500.job_options import FlopsOptions, as_argument
from hpcai500.measure.flops import count_flops
from hpcai500.measure.flops_command import main
from hpcai500.workloads.models.resnet import BasicBlock, Bottleneck, ResNet


def torch_count(model: nn.Module, images: Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        model(images).sum().backward()
    return int(counter.get_total_flops())


def test_resnet50_takes_8_18_gflop_forward_and_24_30_in_training() -> None:
    count = count_flops(ResNet(Bottleneck, (3, 4, 6, 3)), torch.empty(1, 3, 224, 224))
    assert count.parameters == 25_557_032
    assert count.forward_flops / 1e9 == pytest.approx(8.178, abs=0.001)
    assert count.training_flops / 1e9 == pytest.approx(24.299, abs=0.001)


def test_the_stem_has_no_input_gradient() -> None:
    count = count_flops(ResNet(Bottleneck, (3, 4, 6, 3)), torch.empty(1, 3, 224, 224))
    stem = count.operators[0]
    # 2 K^2 Cin Cout H W with H, W of the output (V3.0 Table 3), once forward and once for the weights.
    assert (stem.name, stem.forward_flops) == ("conv1", 2 * 49 * 3 * 64 * 112 * 112)
    assert stem.training_flops == 2 * stem.forward_flops


def test_every_operator_carries_its_modules_name_and_its_backward_pass() -> None:
    count = count_flops(ResNet(Bottleneck, (1, 1, 1, 1), width=8, classes=10), torch.empty(1, 3, 64, 64))
    assert {operator.name for operator in count.operators} >= {"conv1", "layer1.0.conv2", "layer4.0.downsample.0", "fc"}
    assert all(op.training_flops == 3 * op.forward_flops for op in count.operators if op.name != "conv1")


class Tied(nn.Module):
    """A weight used twice, once through a bare function call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) @ self.linear.weight


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x.flatten(2).transpose(1, 2).repeat(1, 1, 4))
        return torch.bmm(torch.softmax(torch.bmm(tokens, tokens.transpose(1, 2)), -1), tokens)


class SharedInput(nn.Module):
    """Three projections of one input, two of them of one shape, and their attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(48, 8 * 12)
        self.query, self.key, self.value = nn.Linear(12, 12), nn.Linear(12, 6), nn.Linear(12, 6)

    def forward(self, images: Tensor) -> Tensor:
        inputs = self.embed(images.flatten(1)).view(-1, 8, 12)
        query, key, value = self.query(inputs).unflatten(2, (2, 6)), self.key(inputs), self.value(inputs)
        return torch.softmax(torch.einsum("bihc,bjc->bhij", query, key), -1) @ value.unsqueeze(1)


class SharedBranch(nn.Module):
    """A block and its projection, as in ResNet, of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.block = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.downsample = nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        inputs = torch.relu(self.stem(images))
        return torch.relu(self.block(inputs) + self.downsample(inputs))


class Recomputed(nn.Module):
    """Keeps the input of its block only, and computes the block again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(48, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def block(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.second(inputs))
        return self.third(hidden @ hidden.t() @ inputs)

    def forward(self, images: Tensor) -> Tensor:
        return checkpoint(self.block, self.first(images.flatten(1)), use_reentrant=False)


@pytest.mark.parametrize(
    ("model", "first"), [(SharedInput(), "embed"), (SharedBranch(), "stem")], ids=["attention", "branches"]
)
def test_layers_that_share_an_input_each_have_their_own_backward_pass(model: nn.Module, first: str) -> None:
    count = count_flops(model, torch.empty(2, 3, 4, 4))
    of_name = {row.name: (row.training_flops - row.forward_flops) / row.forward_flops for row in count.operators}
    assert of_name.pop(first) == 1
    assert set(of_name.values()) == {2}
    assert math.fsum(row.training_flops for row in count.operators) == count.training_flops


def test_what_a_backward_pass_computes_again_counts_for_the_layer_that_computes_it() -> None:
    count = count_flops(Recomputed(), torch.empty(2, 3, 4, 4))
    # The last product is not computed again, since no gradient needs it.
    assert {row.name: row.training_flops / row.forward_flops for row in count.operators} == {
        "first": 2,
        "second": 4,
        "(model)": 4,
        "third": 3,
    }


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 2))
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1),
        lambda: nn.ConvTranspose2d(3, 5, 4, stride=2),
        lambda: nn.Conv2d(3, 6, 3, padding=2, dilation=2),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(64, 3)),
        lambda: ResNet(BasicBlock, (1, 1, 1, 1), width=4, classes=3),
        frozen,
        Tied,
        Attention,
        Recomputed,
    ],
    ids=["strided", "transposed", "dilated", "linear", "resnet", "frozen", "tied", "attention", "recomputed"],
)
def test_any_model_counts_as_torchs_own_counter_counts_it(build: Callable[[], nn.Module]) -> None:
    model, images = build(), torch.randn(2, 3, 4, 4)
    assert count_flops(model, images).training_flops == torch_count(model, images) / len(images)


@pytest.mark.parametrize("groups", [2, 4])
def test_a_grouped_convolution_is_divided_by_its_groups_forward_and_backward(groups: int) -> None:
    # torch's counter forgets the groups in the weight gradient, so only its forward count is a peer here.
    model, images = nn.Conv2d(4, 8, 3, groups=groups), torch.randn(1, 4, 8, 8)
    forward = 2 * 9 * 4 * 8 * 6 * 6 / groups  # 2 K^2 Cin Cout H W / groups (V3.0 Table 3)
    count = count_flops(model, images)
    assert (count.forward_flops, count.training_flops) == (forward, 2 * forward)
    with FlopCounterMode(display=False) as theirs:
        model(images)
    assert theirs.get_total_flops() == forward


def test_counting_is_per_sample_and_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    one, eight = (count_flops(model, torch.empty(n, 3, 8, 8)) for n in (1, 8))
    assert one.training_flops == eight.training_flops
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_command_prints_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([as_argument(FlopsOptions("ic/reference", as_json=True))]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["training_flops"] == pytest.approx(24.299e9, rel=1e-4)
    assert sum(part["training_flops"] for part in document["parts"]) == document["training_flops"]


def test_the_command_prints_a_table_with_a_row_for_equal_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([as_argument(FlopsOptions("ic/reference"))]) == 0
    out = capsys.readouterr().out
    assert "parameters: 25.557 M" in out
    of_name = {line.split("  ")[0]: line.split()[-3:] for line in out.splitlines()[1 : out.count("\n") - 1]}
    # 2 K^2 Cin Cout H W, and 5 of the 6 blocks of layer 3 are equal: the first one reads 512 channels.
    assert float(of_name["layer3.1-5.conv1 x 5"][0]) == pytest.approx(5 * 2 * 1024 * 256 * 14 * 14 / 1e9, abs=1e-4)
    assert "layer3.0.conv1" in of_name
    assert "layer3.1.conv1" not in of_name
    rows = [name for name in of_name if name.startswith("layer3.")]
    for column in range(3):
        total = math.fsum(float(of_name[name][column]) for name in rows)
        assert total == pytest.approx(float(of_name["layer3"][column]), abs=1e-3)


def test_classes_are_those_of_the_data_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([as_argument(FlopsOptions("ic/smoke", classes=20, as_json=True))]) == 0
    (classifier,) = [part for part in json.loads(capsys.readouterr().out)["parts"] if part["name"] == "fc"]
    assert classifier["forward_flops"] == 2 * 192 * 20
