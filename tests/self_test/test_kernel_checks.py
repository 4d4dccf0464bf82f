"""Every kernel has a check, every check passes here, and none passes when its kernel answers wrongly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError, WrongAnswerError
from hpcai500.findings import CannotBeChecked
from hpcai500.self_test import accelerator as kernel_checks
from hpcai500.self_test import command
from hpcai500.self_test.kernels import checks
from hpcai500.system import doctor
from hpcai500.system.accelerator import Driver, Traces

# What has no answer of its own: what is known of the build, and how much memory a device needs.
WITHOUT_ANSWER = {"build_info", "cpu_isa", "cuda_architectures", "cuda_device_count"}


def spoil_output(name: str) -> Callable[..., Any]:
    """The kernel, with the first value that it wrote changed by little."""
    kernel = getattr(_core, name)

    def spoiled(*arguments: Any, **named: Any) -> Any:
        answer = kernel(*arguments, **named)
        outputs = [
            a for a in (*arguments, *named.values()) if isinstance(a, np.ndarray) and a.size and a.flags.writeable
        ]
        if name in {"unpack", "dequantise"}:
            outputs = [target for target in arguments[1] if target.size]
        target = outputs[-1] if name in {"layer_norms", "stream_copy"} else outputs[POSITION.get(name, 0)]
        first = (0,) * target.ndim
        target[first] = target[first] + 3 if target.dtype.kind in "ui" else target[first] * 1.001 + 0.01
        return answer

    return spoiled


# Which of the written arrays is the output, where an input can be written too.
POSITION = {"convert_images": -1, "crop_pixels": -1, "roi_align": -1, "roi_align_backward": -1}


@pytest.mark.parametrize("name", checks(Path()))
def test_the_kernels_of_this_build_pass(name: str, tmp_path: Path) -> None:
    assert checks(tmp_path)[name]()


@pytest.mark.parametrize(
    ("kernel", "check"),
    [
        ("decode_crop", "JPEG decode and crop"),
        ("decode_crop", "JPEG types and layouts"),
        ("crop_pixels", "JPEG types and layouts"),
        ("decode_box", "JPEG headers and windows"),
        ("convert_images", "image conversion"),
        ("pack", "gradient packing"),
        ("unpack", "gradient packing"),
        ("quantise", "gradient quantisation"),
        ("dequantise", "gradient quantisation"),
        ("layer_norms", "layer norms"),
        ("stream_copy", "memory copies"),
        ("roi_align", "RoIAlign and gradient"),
        ("roi_align_backward", "RoIAlign and gradient"),
    ],
)
def test_a_kernel_that_writes_another_value_is_found(
    kernel: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, kernel, spoil_output(kernel))
    with pytest.raises(WrongAnswerError):
        checks(tmp_path)[check]()


@pytest.mark.parametrize(
    ("kernel", "wrong", "check"),
    [
        ("nms", lambda kept: kept[:-1], "non-maximum suppression"),
        ("nms", lambda kept: np.roll(kept, 1), "non-maximum suppression"),
        ("stream_read", lambda largest: largest ^ 1, "memory copies"),
        ("crop_box", lambda box: box._replace(x=box.x + 1), "crop boxes"),
        ("crop_box", lambda box: box._replace(flip=not box.flip), "crop boxes"),
        ("probe_jpeg", lambda info: info._replace(width=info.width + 1), "JPEG headers and windows"),
        ("seek_points", lambda points: points[:-1] + bytes([points[-1] ^ 1]), "JPEG seek points"),
        ("check_jpeg", lambda seen: (seen[0], seen[1], 1), "JPEG headers and windows"),
    ],
)
def test_a_kernel_that_returns_another_value_is_found(
    kernel: str, wrong: Callable[[Any], Any], check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(_core, kernel)
    monkeypatch.setattr(_core, kernel, lambda *arguments, **named: wrong(right(*arguments, **named)))
    with pytest.raises(WrongAnswerError):
        checks(tmp_path)[check]()


class Spoiled:
    """A loader or a reader of the core that does right in all that a subclass does not change."""

    right: type[Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._right, self._slots = self.right(*arguments, **named), named.get("slots")

    def __enter__(self) -> Spoiled:
        return self

    def __exit__(self, *error: object) -> None:
        self._right.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)


class SpoiledLoader(Spoiled):
    """A JpegLoader that hands its first image out with one value changed."""

    right = _core.JpegLoader

    def next(self) -> Any:
        batch = self._right.next()
        self._slots[batch.slot][0, 0, 0, 0] += 1
        return batch


class SpoiledReader(Spoiled):
    """A ClimateReader, one of whose methods changes the last value."""

    right, method = _core.ClimateReader, "read"

    def __getattr__(self, name: str) -> Any:
        right = super().__getattr__(name)
        if name != self.method:
            return right

        def spoiled(first: Any, second: Any, third: Any, *more: Any, **named: Any) -> None:
            right(first, second, third, *more, **named)
            out = more[0] if more else third
            out.view(f"u{out.itemsize}")[-1, -1, -1, -1] ^= 0x10

        return spoiled


def test_a_loader_that_hands_out_another_image_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "JpegLoader", SpoiledLoader)
    with pytest.raises(WrongAnswerError, match="sample 4 of a batch"):
        checks(tmp_path)["JPEG loader"]()


@pytest.mark.parametrize(
    ("method", "check"),
    [
        ("read", "climate layouts"),
        ("read", "climate normalisation"),
        ("read", "climate rolls and windows"),
        ("read_window", "climate rolls and windows"),
        ("take", "climate rolls and windows"),
    ],
)
def test_a_reader_that_makes_another_bit_is_found(
    method: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "ClimateReader", type("Spoiled", (SpoiledReader,), {"method": method}))
    with pytest.raises(WrongAnswerError):
        checks(tmp_path)[check]()


def test_a_reader_that_takes_damage_for_data_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(SpoiledReader):
        def __getattr__(self, name: str) -> Any:
            return (lambda *arguments, **named: None) if name == "read" else super().__getattr__(name)

    monkeypatch.setattr(_core, "ClimateReader", Blind)
    with pytest.raises(WrongAnswerError, match="damaged data was read"):
        checks(tmp_path)["climate damage"]()


def test_every_kernel_that_the_core_exports_is_checked() -> None:
    """By name, in the sources of the checks; those on a device by their faces in torch, whose names are the CPU's."""
    folder = Path(inspect.getfile(kernel_checks)).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    kernels = {name for name, thing in vars(_core).items() if not name.startswith("_") and callable(thing)}
    results = {"Batch", "CropBox", "Failure", "JpegInfo"}
    on_device = {name for name in kernels if "cuda" in name}
    unchecked = {name for name in kernels - on_device - WITHOUT_ANSWER - results if f"_core.{name}" not in source}
    assert not unchecked


@pytest.mark.parametrize("name", kernel_checks.CHECKS)
def test_the_checks_of_a_device_compare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no device here, so the CPU is held against itself, and then against a CPU that is wrong once."""
    here = torch.device("cpu")
    assert kernel_checks.CHECKS[name](here)
    face = {
        "gradient packing": (kernel_checks.kernels, "pack"),
        "gradient quantisation": (kernel_checks.kernels, "quantise"),
        "layer norms": (kernel_checks.kernels, "layer_norms"),
        "non-maximum suppression": (kernel_checks, "batched_nms"),
        "non-maximum suppression of lists": (kernel_checks, "sorted_nms"),
        "RoIAlign and gradient": (kernel_checks, "roi_align"),
        "RoIAlign of levels": (kernel_checks, "roi_align_levels"),
        "image conversion": (kernel_checks, "convert_images"),
    }[name]
    right, calls = getattr(*face), []

    def wrong_at_second(first: Any, *more: Any, **named: Any) -> Any:
        calls.append(first)
        answer = right(first, *more, **named)
        if len(calls) == 2 or name == "layer norms":
            if isinstance(answer, torch.Tensor):
                return answer.flip(0)
            more[0].view(-1)[0] += 1
        return answer

    monkeypatch.setattr(*face, wrong_at_second)
    with pytest.raises(WrongAnswerError):
        kernel_checks.CHECKS[name](here)


def test_without_a_device_its_checks_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernel_checks, "find_traces", Traces)
    with pytest.raises(CannotBeChecked, match="no CUDA device"):
        kernel_checks.find_device()


def test_a_device_that_torch_does_not_find_is_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver and a CUDA build of torch cannot exist here: both are mocked."""
    traces = Traces(("/dev/nvidia0",), "570.86.15")
    for module in (kernel_checks, doctor):
        monkeypatch.setattr(module, "find_traces", lambda: traces)
    monkeypatch.setattr(doctor, "ask_driver", lambda environment: Driver(loaded=True, version=13000, code=802))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    kernel_checks._why_no_device.cache_clear()
    with pytest.raises(EnvironmentLacksError, match=r"offers no device.*SYSTEM_NOT_READY.*fabricmanager") as raised:
        kernel_checks.find_device()
    kernel_checks._why_no_device.cache_clear()
    assert "accelerator.device" not in str(raised.value), "the self-test has no such setting"
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(CannotBeChecked, match="uses no CUDA device"):
        kernel_checks.find_device()


def test_with_no_gpu_a_device_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An image is built without the driver, also on a host that has a device."""
    monkeypatch.setattr(kernel_checks, "find_device", Mock(side_effect=AssertionError))
    checks = command._checks("libraries", ["no-gpu"], tmp_path)
    on_device = {name: check for name, check in checks.items() if name.endswith("[CUDA]")}
    assert {f"{name} [CUDA]" for name in kernel_checks.CHECKS} <= set(on_device)
    for check in on_device.values():
        with pytest.raises(CannotBeChecked, match="--no-gpu"):
            check()


def test_a_device_and_a_core_without_cuda_is_told_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the driver cannot exist here
    monkeypatch.setattr(_core, "cuda_architectures", list)
    with pytest.raises(EnvironmentLacksError, match="put nvcc on PATH"):
        kernel_checks.find_device()
