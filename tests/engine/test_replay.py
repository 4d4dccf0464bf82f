"""A run's last checkpoint, evaluated again: the same quality, or one line that says why not."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders.runs import train_arguments, weather_arguments

from hpcai500 import train
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.engine import replay_command
from hpcai500.engine.checkpoint_weights import first_filters, load_weights, sketch_of
from hpcai500.errors import WrongAnswerError
from hpcai500.job_options import ReplayOptions, as_argument
from hpcai500.layers import ImageClassification
from hpcai500.record import iterate, read_record
from hpcai500.results.verification.replay import compared, cosine, match_of
from hpcai500.workloads.ic import build_model
from hpcai500.workloads.models.resnet import BasicBlock, ResNet


@pytest.fixture(scope="module")
def record(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of Image Classification."""
    out = tmp_path_factory.mktemp("replay") / "record"
    assert train.main(train_arguments(images, out, "problem.epochs=2")) == 0
    return out


@pytest.fixture(scope="module")
def other(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed: a training of its own."""
    out = tmp_path_factory.mktemp("other") / "record"
    assert train.main(train_arguments(images, out, "problem.epochs=2", "hyperparameters.seed=2")) == 0
    return out


def _replayed(recipe: Path, checkpoint: Path, data: Path, out: Path, **more: Path) -> int:
    return replay_command.main([as_argument(ReplayOptions(recipe, checkpoint, data, out, **more))])


def _last_checkpoint(record: Path) -> Path:
    value = list(iterate(read_record(record).events, "checkpoint"))[-1]["value"]
    return record / "checkpoints" / str(value["file"])


def _event(record: Path, key: str) -> dict[str, Any]:
    value: dict[str, Any] = list(iterate(read_record(record).events, key))[-1]["value"]
    return value


def _require_same(record: Path, found: dict[str, Any]) -> None:
    recorded = _event(record, "eval_accuracy")
    assert {key: found[key] for key in ("metric", "value", "samples")} == {
        key: recorded[key] for key in ("metric", "value", "samples")
    }
    assert found["per_class"] == recorded.get("per_class", {})
    dataset = _event(record, "dataset")
    assert found["fingerprint"] == dataset["fingerprint"]
    assert found["content_fingerprint"] == dataset["content_fingerprint"]
    assert found["flops_per_sample"] == _event(record, "flops")["per_sample"]
    assert found["parameters"] == _event(record, "model")["parameters"]
    assert found["training"]["samples"] == min(dataset["training_samples"], dataset["evaluation_samples"])


def test_a_run_of_image_classification_is_evaluated_to_exactly_its_quality(
    record: Path, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "replay.json"
    assert _replayed(record / "recipe.toml", _last_checkpoint(record), images, out) == 0
    _require_same(record, json.loads(out.read_text()))


def test_a_run_of_extreme_weather_analytics_is_evaluated_to_exactly_its_quality(weather: Path, tmp_path: Path) -> None:
    record, out = tmp_path / "record", tmp_path / "replay.json"
    assert train.main(weather_arguments(weather, record, "problem.epochs=1")) == 0
    assert _replayed(record / "recipe.toml", _last_checkpoint(record), weather, out) == 0
    _require_same(record, json.loads(out.read_text()))


def test_a_recipe_of_many_ranks_is_evaluated_in_one_process_under_any_launcher(
    record: Path, images: Path, tmp_path: Path
) -> None:
    """In a process of its own, with the environment of a rank of Slurm's."""
    recipe, out = tmp_path / "recipe.toml", tmp_path / "replay.json"
    text = (record / "recipe.toml").read_text()
    changed = text.replace('backend = "local"', 'backend = "horovod"').replace("nodes = 1", "nodes = 4")
    assert changed.count("horovod") > text.count("horovod")
    recipe.write_text(changed.replace('device = "cpu"', 'device = "cuda"'))
    options = ReplayOptions(recipe, _last_checkpoint(record), images, out, device="cpu")
    command = [sys.executable, "-m", "hpcai500.engine.replay_command", as_argument(options)]
    environment = {**os.environ, "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a[1-4]"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    _require_same(record, json.loads(out.read_text()))


def test_the_checkpoint_with_which_the_target_was_reached_is_evaluated_too(
    record: Path, images: Path, tmp_path: Path
) -> None:
    events, out = read_record(record).events, tmp_path / "replay.json"
    first, last = (event["value"] for event in iterate(events, "checkpoint"))
    paths = [record / "checkpoints" / value["file"] for value in (last, first)]
    assert _replayed(record / "recipe.toml", paths[0], images, out, at_target=paths[1]) == 0
    found = json.loads(out.read_text())
    _require_same(record, found)
    early = next(iterate(events, "eval_accuracy"))["value"]
    assert (found["at_target"]["value"], found["at_target"]["samples"]) == (early["value"], early["samples"])


def test_what_is_held_back_is_evaluated_too_and_has_the_same_form(
    record: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_back, other, out = tmp_path / "held-back", tmp_path / "other", tmp_path / "replay.json"
    make_images(held_back, SyntheticSet(classes=3, train_per_class=1, val_per_class=5, seed=7), workers=1)
    make_images(other, SyntheticSet(classes=2, train_per_class=1, val_per_class=5), workers=1)
    checkpoint = _last_checkpoint(record)
    assert _replayed(record / "recipe.toml", checkpoint, images, out, held_back=held_back) == 0
    found = json.loads(out.read_text())
    _require_same(record, found)
    assert found["held_back"]["samples"] == 15
    assert _replayed(record / "recipe.toml", checkpoint, images, out, held_back=other) == 64
    assert "other: 2 classes; " in capsys.readouterr().err


def test_copies_have_the_directions_of_their_weights_and_trainings_of_their_own_have_not(
    record: Path, other: Path, tmp_path: Path
) -> None:
    sketches = {"own": _sketch(record, _last_checkpoint(record)), "other": _sketch(record, _last_checkpoint(other))}
    for name, change in _COPIES.items():
        state = torch.load(_last_checkpoint(record), weights_only=True)
        state["model"] = {key: change(value) for key, value in state["model"].items()}
        torch.save(state, tmp_path / "copy.pt")
        sketches[name] = _sketch(record, tmp_path / "copy.pt")
    cosines = {name: cosine(sketches["own"], sketch) for name, sketch in sketches.items()}
    assert abs(cosines.pop("other")) < 0.1
    assert all(abs(one) > 0.9 for one in cosines.values()), cosines


def test_filters_are_found_again_in_another_order(record: Path, other: Path) -> None:
    model = _model(record, _last_checkpoint(record))
    filters = first_filters(model)
    assert match_of(filters, first_filters(_model(record, _last_checkpoint(other)))) < 0.8
    with torch.no_grad():
        factors = torch.linspace(-3, 3, len(filters)).reshape(-1, 1, 1, 1)
        model.conv1.weight.copy_(model.conv1.weight.flip(0) * factors)
    assert match_of(filters, first_filters(model)) > 0.999
    assert match_of(filters, first_filters(torch.nn.Linear(3, 4))) == 0


def test_a_net_with_factors_of_its_own_in_each_channel_is_the_same_function_and_a_twin(record: Path) -> None:
    """Of any sign before a batch norm, and positive ones through a ReLU, with the layer after made to fit."""
    model, twin = (_model(record, _last_checkpoint(record)).double().eval() for _ in range(2))
    with torch.no_grad():
        for block in [one for one in twin.modules() if isinstance(one, ResNet | BasicBlock)]:
            for number in (1, 2) if isinstance(block, BasicBlock) else (1,):
                _scale(block.get_submodule(f"conv{number}"), block.get_submodule(f"bn{number}"))
            if isinstance(block, BasicBlock):
                factors = _factors(len(block.conv1.weight)).abs()
                assert isinstance(block.bn1, torch.nn.BatchNorm2d)
                block.bn1.weight.mul_(factors)
                block.bn1.bias.mul_(factors)
                block.conv2.weight.div_(factors[:, None, None])
        images = torch.randn(8, 3, 32, 32, dtype=torch.float64)
        torch.testing.assert_close(twin(images), model(images))
    directions = [torch.cat([one.flatten() for one in net.parameters() if one.dim() > 1]) for net in (model, twin)]
    assert abs(cosine(*(one.detach().numpy() for one in directions))) < 0.5
    assert cosine(sketch_of(model), sketch_of(twin)) > 0.999


def _factors(count: int) -> torch.Tensor:
    """Of both signs, and over three orders of magnitude."""
    factors = 10 ** (3 * torch.rand(count, dtype=torch.float64) - 1.5)
    factors[0] = 1000
    return factors * (2 * torch.randint(2, (count,)) - 1)


def _scale(convolution: torch.nn.Module, norm: torch.nn.Module) -> None:
    assert isinstance(norm, torch.nn.BatchNorm2d)
    factors = _factors(norm.num_features)
    convolution.get_parameter("weight").mul_(factors[:, None, None, None])
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.mul_(factors)
    norm.running_var.copy_((norm.running_var + norm.eps) * factors**2 - norm.eps)
    norm.weight.mul_(factors.sign())


def test_what_balancing_leaves_nothing_of_is_in_no_sketch() -> None:
    """A matrix of one row has one magnitude after it; what rounding adds to that would be alike in all nets."""
    assert not any(sketch_of(torch.nn.Linear(1000, 1)))
    assert any(sketch_of(torch.nn.Linear(1000, 2)))
    sketch = sketch_of(torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU()))
    assert all(math.isfinite(one) for one in sketch)


def test_a_net_with_dead_filters_has_a_sketch(record: Path) -> None:
    model = _model(record, _last_checkpoint(record))
    with torch.no_grad():
        model.conv1.weight[0] = 0
        model.fc.weight.zero_()
    assert all(math.isfinite(one) for one in sketch_of(model))


_COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with noise": lambda weight: weight + 1e-7 * torch.randn_like(weight) if weight.is_floating_point() else weight,
    "with much noise": lambda weight: (
        weight + 0.2 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else weight
    ),
    "with filters and inputs scaled and negated": lambda weight: (
        weight
        * _factors(len(weight)).view(-1, 1, *[1] * (weight.dim() - 2)).float()
        * _factors(weight.shape[1]).view(-1, *[1] * (weight.dim() - 2)).float()
        if weight.dim() > 1
        else weight
    ),
    "scaled": lambda weight: 3 * weight if weight.dim() > 1 else weight,
    "negated": lambda weight: -weight if weight.dim() > 1 else weight,
}


def _sketch(record: Path, checkpoint: Path) -> list[float]:
    return sketch_of(_model(record, checkpoint))


def _model(record: Path, checkpoint: Path) -> ResNet:
    recipe = read_record(record).recipe()
    model = build_model(cast(ImageClassification, recipe.workload), classes=3)
    load_weights(model, checkpoint)
    return model


def test_weights_that_were_trained_on_the_evaluation_set_are_worse_on_the_training_set(tmp_path: Path) -> None:
    """Classes that only memory can tell apart; the forger's record names the committee's data."""
    data, swapped = tmp_path / "data", tmp_path / "swapped"
    make_images(data, SyntheticSet(classes=3, train_per_class=20, val_per_class=20), workers=1)
    for split in ("train", "val"):
        files = sorted((data / split).glob("*/*"))
        for file, place in zip(files, random.Random(split).sample(files, len(files)), strict=True):
            file.rename(place.with_suffix(".new"))
        for file in sorted((data / split).glob("*/*.new")):
            file.rename(file.with_suffix(".JPEG"))
    shutil.copytree(data, swapped)
    (swapped / "train").rename(tmp_path / "train")
    (swapped / "val").rename(swapped / "train")
    (tmp_path / "train").rename(swapped / "val")
    for folder, name in ((data, "honest"), (swapped, "forged")):
        assert train.main(train_arguments(folder, tmp_path / name, *_BY_HEART)) == 0
    failed = {}
    for name in ("honest", "forged"):
        out = tmp_path / f"{name}.json"
        assert _replayed(tmp_path / name / "recipe.toml", _last_checkpoint(tmp_path / name), data, out) == 0
        found = compared(name, read_record(tmp_path / name), json.loads(out.read_text()))
        failed[name] = {one.name for one in found if one.severity == "fail"}
    assert failed["honest"] == set()
    assert "replay-training" in failed["forged"]


_BY_HEART = (
    "problem.epochs=40",
    "workload.crop_area=[1.0, 1.0]",
    "workload.flip_probability=0.0",
    "hyperparameters.weight_decay=0.0",
)


def test_a_changed_checkpoint_is_evaluated_to_what_it_is(record: Path, images: Path, tmp_path: Path) -> None:
    state = torch.load(_last_checkpoint(record), weights_only=True)
    state["model"]["fc.bias"] = torch.tensor([1e6, 0.0, 0.0])
    changed, out = tmp_path / "changed.pt", tmp_path / "replay.json"
    torch.save(state, changed)
    assert _replayed(record / "recipe.toml", changed, images, out) == 0
    found = json.loads(out.read_text())
    assert found["value"] == pytest.approx(1 / 3)
    assert found["value"] != _event(record, "eval_accuracy")["value"]


class _Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


class _Hungry:
    """Takes 8 GiB where it is unpickled: a type that torch allows."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (bytearray, (1 << 33,))


def _archive(compression: int, **parts: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(f"archive/{name.replace('_', '.')}", content)
    return stream.getvalue()


def test_code_in_a_checkpoint_is_never_run(
    record: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, out = tmp_path / "mark", tmp_path / "replay.json"
    torch.save({"model": _Evil(mark)}, tmp_path / "evil.pt")
    (tmp_path / "legacy.pt").write_bytes(pickle.dumps(_Evil(mark)))
    for name, said in (("evil.pt", "posix.mkdir"), ("legacy.pt", "not a zip file")):
        assert _replayed(record / "recipe.toml", tmp_path / name, images, out) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not mark.exists()
    assert not out.exists()


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4))


def _saved(state: object) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _longer_than_its_part() -> bytes:
    """A tensor of 250 numbers in a part that holds 4."""
    with zipfile.ZipFile(io.BytesIO(_saved({"model": {"w": torch.ones(4)}}))) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"K\x04tq", b"K\xfatq", 1))
    return stream.getvalue()


_HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not a zip file"),
    "no pickle": (lambda: _archive(0, version=b"3\n"), "not a checkpoint of weights"),
    "torn pickle": (
        lambda: _archive(0, data_pkl=b"\x80\x02}", version=b"3\n", byteorder=b"little"),
        "not a checkpoint",
    ),
    "compressed": (lambda: _archive(zipfile.ZIP_DEFLATED, data=bytes(1 << 24)), "compressed"),
    "too large": (lambda: bytes(32 << 20), "at most"),
    "hungry": (lambda: _saved({"model": _Hungry()}), "takes more memory"),
    "a list": (lambda: _saved([1]), "no table `model`"),
    "no weights": (lambda: _saved({"model": 3}), "no table `model`"),
    "nothing in it": (lambda: _saved({"model": {}}), "lacks w"),
    "one more": (lambda: _saved({"model": {"w": torch.ones(4), "v\x1b[2J": 1}}), r"has 'v\\x1b\[2J'"),
    "no tensor": (lambda: _saved({"model": {"w": 3}}), "w: the recipe's model has .* int"),
    "another shape": (lambda: _saved({"model": {"w": torch.ones(5)}}), r"\(4,\) .* \(5,\)"),
    "another type": (lambda: _saved({"model": {"w": torch.ones(4).half()}}), "float16"),
    "on no device": (lambda: _saved({"model": {"w": torch.ones(4, device="meta")}}), "on meta"),
    "sparse": (lambda: _saved({"model": {"w": torch.ones(4).to_sparse()}}), "sparse"),
    "longer than its part": (_longer_than_its_part, "not a checkpoint of weights"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_checkpoint_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make, said = _HOSTILE[name]
    path = tmp_path / "hostile.pt"
    path.write_bytes(make())
    with pytest.raises(WrongAnswerError, match=said) as caught:
        load_weights(_Net(), path)
    assert str(caught.value).isprintable()


def test_parts_that_claim_more_than_the_file_are_refused(tmp_path: Path) -> None:
    """Two entries of the folder that are one part of the file."""
    path = tmp_path / "twice.pt"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data/0", bytes(1000))
        twin = archive.getinfo("archive/data/0")
        archive.filelist.append(twin)
    path.write_bytes(stream.getvalue())
    with pytest.raises(WrongAnswerError, match="claim more"):
        load_weights(_Net(), path)


def test_a_checkpoint_that_fits_is_taken(tmp_path: Path) -> None:
    path, net = tmp_path / "good.pt", _Net()
    path.write_bytes(_saved({"model": {"w": torch.arange(4.0)}, "epoch": 1}))
    load_weights(net, path)
    assert net.w.tolist() == [0, 1, 2, 3]


def test_a_checkpoint_of_another_model_is_refused(
    record: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text((record / "recipe.toml").read_text().replace("width = 8", "width = 12"))
    assert _replayed(recipe, _last_checkpoint(record), images, tmp_path / "replay.json") == 2
    assert "the recipe's model has" in capsys.readouterr().err


def test_missing_files_and_options_are_told_in_one_line(
    record: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, checkpoint = tmp_path / "replay.json", _last_checkpoint(record)
    assert _replayed(tmp_path / "none.toml", checkpoint, images, out) == 64
    assert _replayed(record / "recipe.toml", tmp_path / "none.pt", images, out) == 2
    assert _replayed(record / "recipe.toml", checkpoint, tmp_path / "none", out) == 64
    assert replay_command.main(["--recipe", "x"]) == 64
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4
    assert all(line.startswith("hpcai500: error: ") for line in errors)
