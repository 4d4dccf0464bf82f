"""Checks the gradients of a model's convolutions on this machine; run as a script, it makes the comparison.

A fault of a library may give wrong numbers, or write out of bounds, and so crash or hang the process. So the comparison
runs in another process, which loads torch once and forks for each convolution.

One such fault is known, and a run that it would affect is refused: oneDNN's AVX2 weight gradient of a strided 1x1
convolution with fewer than 8 input channels, in float32 and NHWC, writes beyond its scratch memory
(uxlfoundation/oneDNN issue 6035). The effect is heap corruption, a hang, or wrong numbers without an error. Contiguous
memory, 8 channels, groups, padding, a stride of 1, AVX-512 and AVX are sound. On CPUs, torch.compile computes
convolutions in NHWC whatever the model's layout is.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.interpreter import module_command
from hpcai500.layers import Recipe
from hpcai500.methodology.roofline import arithmetic_of
from hpcai500.stopping import end_with_parent
from hpcai500.system.process import end_by_alarm

Pair = tuple[int, int]

FIX = "--set framework.channels_last=false --set framework.compile=false, or another node"
# The largest allowed error, as a share of the largest value: rounding once, with room for other orders of summation.
# TF32 and fp16 keep 10 bits of a value, bf16 keeps 7.
_TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 4e-2}
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_NAMES = ("result", "input gradient", "weight gradient")
_IMAGES = 4
# Side of an image in strides, with few channels and with many: more pixels are more likely to show a fault.
_SIDES, _FEW = (16, 8), 64
# Limit of one convolution, which takes milliseconds, so that one that hangs leaves time for the others.
_LIMIT_SECONDS = 20
_START_SECONDS = 60
# The comparison ends after this many faults, each of which may take until the limit.
_MOST = 3
# Input channels that an AVX2 vector holds in float32.
_VECTOR = 8


@dataclass(frozen=True)
class Convolution:
    """The shape of a two-dimensional convolution; pairs are (height, width)."""

    channels: int
    outputs: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __str__(self) -> str:
        words = [f"{self.channels} to {self.outputs} channels", f"{self.kernel[0]}x{self.kernel[1]}"]
        words += [f"stride {_shown(self.stride)}"] if max(self.stride) > 1 else []
        words += [f"padding {_shown(self.padding)}"] if max(self.padding) else []
        words += [f"dilation {_shown(self.dilation)}"] if max(self.dilation) > 1 else []
        words += [f"{self.groups} groups"] if self.groups > 1 else []
        return f"the convolution of {', '.join(words)}"

    @property
    def has_avx2_fault(self) -> bool:
        """Whether oneDNN's AVX2 code computes a wrong gradient in NHWC."""
        return (
            self.channels < _VECTOR
            and self.kernel == (1, 1)
            and max(self.stride) > 1
            and max(self.padding) == 0
            and self.groups == 1
        )


@dataclass(frozen=True)
class Setting:
    """How the convolutions of a recipe are computed; `arithmetic` is a key of `_TOLERANCES`."""

    device: str
    arithmetic: str
    in_nhwc: bool
    threads: int

    @classmethod
    def of(cls, recipe: Recipe, device: torch.device) -> Setting:
        """The setting of `recipe` on `device`."""
        arithmetic = arithmetic_of(recipe.accelerator.precision)
        in_nhwc = recipe.framework.channels_last or (recipe.framework.compile and device.type == "cpu")
        return cls(str(device), arithmetic, in_nhwc, torch.get_num_threads())

    @property
    def words(self) -> str:
        return f"{self.arithmetic}, {'NHWC' if self.in_nhwc else 'NCHW'}"


def convolutions_of(model: nn.Module) -> tuple[Convolution, ...]:
    """The shapes of the `nn.Conv2d` modules of `model`, each once, in the order of the modules."""
    found = (_shape_of(module) for module in model.modules() if isinstance(module, nn.Conv2d))
    return tuple(dict.fromkeys(found))


def to_memory_format(model: nn.Module, recipe: Recipe, device: torch.device, *, trains: bool = True) -> None:
    """Give the weights of `model`, which are on `device`, the memory format of `recipe`.

    Raises:
        EnvironmentLacksError: the model is to be trained, and this processor would compute wrong gradients.
    """
    if trains and (fault := known_fault(convolutions_of(model), Setting.of(recipe, device))):
        raise EnvironmentLacksError(f"framework: {fault}; {FIX}")
    if recipe.framework.channels_last:
        # A documented form that torch's stubs lack.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def known_fault(convolutions: Sequence[Convolution], setting: Setting) -> str | None:
    """A sentence about a known fault that affects `convolutions` here in `setting`; None if there is none."""
    faulty = [convolution for convolution in convolutions if convolution.has_avx2_fault]
    if not faulty or not setting.in_nhwc or setting.device != "cpu" or not _computes_by_avx2():
        return None
    return (
        f"{faulty[0]} gets wrong gradients in NHWC, or crashes, on a processor without AVX-512: "
        "a fault of oneDNN (uxlfoundation/oneDNN issue 6035)"
    )


def wrong_gradients(
    convolutions: Sequence[Convolution], setting: Setting, progress: Callable[[], None] = lambda: None
) -> list[str]:
    """Compare results and gradients of `convolutions` with products in float64, in another process.

    Each is computed on few, small images; `progress` is called after each. Returns a sentence for each that is wrong,
    crashes or hangs, three at most.

    Raises:
        RunError: the other process failed.
    """
    task = {"setting": asdict(setting), "convolutions": [asdict(convolution) for convolution in convolutions]}
    command = module_command("measure.convolutions")
    found: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        try:
            child.stdin.write(json.dumps(task).encode())
            child.stdin.close()
            for line in child.stdout:
                found += json.loads(line)
                progress()
            printed = child.stderr.read().decode(errors="replace").splitlines()
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise RunError(
            f"gradients could not be compared: exit code {child.returncode} ({(printed or ['no output'])[-1]})"
        )
    return found


def largest_error(convolution: Convolution, setting: Setting) -> Mapping[str, float]:
    """The largest errors of result and gradients of `convolution`, as shares of the reference's largest value."""
    generator = torch.Generator().manual_seed(500)
    # Multiples of the stride, since oneDNN gathers pixels by whole strides before it multiplies.
    height, width = (_SIDES[convolution.channels > _FEW] * stride for stride in convolution.stride)
    dtype = _TYPES.get(setting.arithmetic, torch.float32)
    layout = torch.channels_last if setting.in_nhwc else torch.contiguous_format

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(setting.device).clone(memory_format=layout)

    images = noise(_IMAGES, convolution.channels, height, width)
    weight = noise(convolution.outputs, convolution.channels // convolution.groups, *convolution.kernel)
    leaves = [placed(tensor).requires_grad_() for tensor in (images, weight)]
    options: dict[str, Any] = {
        "stride": convolution.stride,
        "padding": convolution.padding,
        "dilation": convolution.dilation,
    }
    found: dict[str, float] = {}
    # A fault in one thread's memory may show with one thread only, a fault between threads with several only.
    for threads in (1, setting.threads):
        torch.set_num_threads(threads)
        result = F.conv2d(leaves[0], leaves[1], groups=convolution.groups, **options)
        gradient = noise(*result.shape)
        exact = _reference(images, weight, gradient, convolution.groups, options)
        # The reference comes first, before the gradients can corrupt memory.
        computed = torch.autograd.grad(result, leaves, placed(gradient))
        for name, value, expected in zip(_NAMES, (result, *computed), exact, strict=True):
            error = (value.detach().cpu().double() - expected).abs().max()
            found[f"{name} with {threads} threads"] = float(error / expected.abs().max().clamp(min=1e-30))
    return found


def _reference(
    images: Tensor, weight: Tensor, gradient: Tensor, groups: int, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Result and gradients in float64, by patches and matrix products, without a library's convolution."""
    images, weight, gradient = images.double(), weight.double(), gradient.double()
    kernel = weight.shape[2:]
    patches = F.unfold(images, kernel, **options).unflatten(1, (groups, -1))
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    of_result = gradient.flatten(2).unflatten(1, (groups, -1))
    result = (matrix @ patches).reshape(gradient.shape)
    of_patches = (matrix.mT @ of_result).flatten(1, 2)
    of_images = F.fold(of_patches, images.shape[2:], kernel, **options)
    return result, of_images, (of_result @ patches.mT).sum(0).reshape(weight.shape)


def _shape_of(module: nn.Conv2d) -> Convolution:
    kernel, stride, dilation = (_pair(value) for value in (module.kernel_size, module.stride, module.dilation))
    # Padding `same` keeps the size of images.
    same = (dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2)
    padding = same if module.padding == "same" else (0, 0) if module.padding == "valid" else _pair(module.padding)
    return Convolution(module.in_channels, module.out_channels, kernel, stride, padding, dilation, module.groups)


def _pair(value: Any) -> Pair:
    height, width = value
    return int(height), int(width)


def _shown(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def _computes_by_avx2() -> bool:
    """Whether oneDNN uses AVX2 and not AVX-512, because of the processor or of ONEDNN_MAX_CPU_ISA.

    torch does not export oneDNN's choice, but it exports whether oneDNN multiplies bfloat16, which needs AVX-512 (or
    AVX2_VNNI_2 on processors that have no AVX-512).
    """
    if (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")).upper() in ("SSE41", "AVX"):
        return False
    has_avx2, has_avx512 = torch.cpu._is_avx2_supported(), torch.cpu._is_avx512_supported()
    return has_avx2 and not (has_avx512 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _compare() -> Iterator[list[str]]:
    """Do the task on stdin; yields what is wrong, convolution by convolution."""
    task = json.load(sys.stdin)
    setting = Setting(**task["setting"])
    convolutions = [_read(one) for one in task["convolutions"]]
    # A process that has used CUDA must not fork, and starting CUDA takes seconds: one fork does all convolutions there.
    together = [convolutions] if torch.device(setting.device).type == "cuda" else [[one] for one in convolutions]
    wrong = 0
    for group in together:
        found = _in_a_fork(group, setting)
        yield found
        wrong += len(found)
        if wrong >= _MOST:
            return


def _read(written: Mapping[str, Any]) -> Convolution:
    shape: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in written.items()
    }
    return Convolution(**shape)


def _in_a_fork(convolutions: Sequence[Convolution], setting: Setting) -> list[str]:
    """What is wrong with `convolutions`; if the process ends early, the fault is of the one that it was computing."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(parent)
        end_by_alarm(_LIMIT_SECONDS if len(convolutions) == 1 else _START_SECONDS)
        torch.set_float32_matmul_precision("high" if setting.arithmetic == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = setting.arithmetic == "tf32"
        for convolution in convolutions:
            try:
                fault = _fault(convolution, setting)
            except RuntimeError as error:
                fault = f"{convolution} fails: {' '.join(str(error).split())}"
            os.write(writing, f"{json.dumps(fault)}\n".encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:  # noqa: PTH123 - a file descriptor
        results = [json.loads(line) for line in stream]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = [fault for fault in results if fault]
    if code == 0:
        return found
    culprit = convolutions[min(len(results), len(convolutions) - 1)]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return [*found, f"{culprit} {'hangs' if code == -signal.SIGALRM else f'crashes ({how})'}"]


def _fault(convolution: Convolution, setting: Setting) -> str | None:
    tolerance = _TOLERANCES[setting.arithmetic]
    for name, error in largest_error(convolution, setting).items():
        # Not `error > tolerance`: a NaN must fail too.
        if not error <= tolerance:
            return f"{convolution} has a wrong {name}: error {error:.1e} of its maximum, allowed {tolerance:g}"
    # The allocator notices a corrupted heap when memory is given back.
    ctypes.CDLL(None).malloc_trim(0)
    return None


if __name__ == "__main__":
    end_with_parent(os.getppid())
    # Only findings go to stdout; what a library prints goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        for faults in _compare():
            print(json.dumps(faults), file=out, flush=True)
