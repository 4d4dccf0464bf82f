"""Whether the convolutions of a model get right gradients on this machine; run as a script, it compares them.

A fault of a library here is no wrong number alone: it may write where it should not, and crash or hang the process. So
the comparison runs in a process of its own, which loads torch once and forks for each convolution.

One such fault is known, and a run that would meet it is refused: oneDNN's AVX2 weight gradient of a strided 1x1
convolution with fewer than 8 input channels, in float32 and NHWC, writes beyond its scratch memory
(uxlfoundation/oneDNN issue 6035): heap corruption, a hang, or wrong numbers without a word. Contiguous memory,
8 channels, groups, padding, a stride of 1, AVX-512 and AVX are sound. On CPUs, torch.compile computes convolutions in
NHWC whatever the model's layout is.
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

Pair = tuple[int, int]

FIX = "--set framework.channels_last=false --set framework.compile=false, or another node"
# The largest error, as a share of the largest value: that of rounding once, with room for other orders of summation.
# TF32 and fp16 keep 10 bits of a value, bf16 keeps 7.
_TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 4e-2}
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_NAMES = ("result", "input gradient", "weight gradient")
_IMAGES = 4
# Pixels of a side for each pixel of stride: more where few channels make them cheap, for a fault to show.
_SIDES, _FEW = (16, 8), 64
# A convolution takes milliseconds; one that hangs must not take the time of the others.
_LIMIT_SECONDS = 20
_START_SECONDS = 60
# Of what is wrong, as many sentences as one needs: each may have taken the limit.
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
    def is_hurt_by_avx2(self) -> bool:
        """Whether oneDNN's AVX2 code computes its gradient wrong in NHWC."""
        return (
            self.channels < _VECTOR
            and self.kernel == (1, 1)
            and max(self.stride) > 1
            and max(self.padding) == 0
            and self.groups == 1
        )


@dataclass(frozen=True)
class Setting:
    """How the convolutions of a recipe are computed."""

    device: str
    arithmetic: str
    in_nhwc: bool
    threads: int

    @classmethod
    def of(cls, recipe: Recipe, device: torch.device) -> Setting:
        """That of `recipe` on `device`."""
        arithmetic = arithmetic_of(recipe.accelerator.precision)
        in_nhwc = recipe.framework.channels_last or (recipe.framework.compile and device.type == "cpu")
        return cls(str(device), arithmetic, in_nhwc, torch.get_num_threads())

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.arithmetic}, {'NHWC' if self.in_nhwc else 'NCHW'}"


def convolutions_of(model: nn.Module) -> tuple[Convolution, ...]:
    """The shapes of the `nn.Conv2d` modules of `model`, each once, in the order of the modules."""
    found = (_shape_of(module) for module in model.modules() if isinstance(module, nn.Conv2d))
    return tuple(dict.fromkeys(found))


def to_memory_format(model: nn.Module, recipe: Recipe, device: torch.device, *, trains: bool = True) -> None:
    """Lay the weights of `model`, which are on `device`, out as `recipe` says.

    Raises:
        EnvironmentLacksError: it is to be trained, and this processor would compute wrong gradients.
    """
    if trains and (fault := known_fault(convolutions_of(model), Setting.of(recipe, device))):
        raise EnvironmentLacksError(f"framework: {fault}; {FIX}")
    if recipe.framework.channels_last:
        # torch's stubs do not know this documented form.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def known_fault(convolutions: Sequence[Convolution], setting: Setting) -> str | None:
    """Which of `convolutions` this processor is known to compute wrong in `setting`; None where none."""
    hurt = [convolution for convolution in convolutions if convolution.is_hurt_by_avx2]
    if not hurt or not setting.in_nhwc or setting.device != "cpu" or not _computes_by_avx2():
        return None
    return (
        f"{hurt[0]} gets wrong gradients in NHWC, or crashes, on a processor without AVX-512: "
        "a fault of oneDNN (uxlfoundation/oneDNN issue 6035)"
    )


def wrong_gradients(
    convolutions: Sequence[Convolution], setting: Setting, progress: Callable[[], None] = lambda: None
) -> list[str]:
    """Compare results and gradients of `convolutions` with products in float64, in another process.

    Args:
        convolutions: their shapes; each is computed on few, small images.
        setting: how they are computed.
        progress: called whenever one is done.

    Returns:
        a sentence for each that is wrong, crashes or hangs, until there are three.

    Raises:
        RunError: the other process did not come to its end.
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
            said = child.stderr.read().decode(errors="replace").splitlines()
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise RunError(f"gradients could not be compared: exit code {child.returncode} ({(said or ['silent'])[-1]})")
    return found


def largest_error(convolution: Convolution, setting: Setting) -> Mapping[str, float]:
    """How far result and gradients of `convolution` are from the reference, as a share of its largest value."""
    generator = torch.Generator().manual_seed(500)
    # Whole strides: it is these that oneDNN gathers before it multiplies.
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
    # A fault of one thread's memory may need one thread to show, one between threads needs several.
    for threads in (1, setting.threads):
        torch.set_num_threads(threads)
        result = F.conv2d(leaves[0], leaves[1], groups=convolution.groups, **options)
        gradient = noise(*result.shape)
        exact = _reference(images, weight, gradient, convolution.groups, options)
        # The reference first: what corrupts memory should not reach it.
        computed = torch.autograd.grad(result, leaves, placed(gradient))
        for name, value, expected in zip(_NAMES, (result, *computed), exact, strict=True):
            found[f"{name} with {threads} threads"] = _error(value, expected)
    return found


def _reference(
    images: Tensor, weight: Tensor, gradient: Tensor, groups: int, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Result and gradients in float64, by patches and matrix products: no convolution of a library is in it."""
    images, weight, gradient = images.double(), weight.double(), gradient.double()
    kernel = weight.shape[2:]
    patches = F.unfold(images, kernel, **options).unflatten(1, (groups, -1))
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    of_result = gradient.flatten(2).unflatten(1, (groups, -1))
    result = (matrix @ patches).reshape(gradient.shape)
    of_patches = (matrix.mT @ of_result).flatten(1, 2)
    of_images = F.fold(of_patches, images.shape[2:], kernel, **options)
    return result, of_images, (of_result @ patches.mT).sum(0).reshape(weight.shape)


def _error(value: Tensor, expected: Tensor) -> float:
    return float((value.detach().cpu().double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def _shape_of(module: nn.Conv2d) -> Convolution:
    kernel, stride, dilation = (_pair(value) for value in (module.kernel_size, module.stride, module.dilation))
    # `same`, in words, keeps the size of images.
    same = (dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2)
    padding = same if module.padding == "same" else (0, 0) if module.padding == "valid" else _pair(module.padding)
    return Convolution(module.in_channels, module.out_channels, kernel, stride, padding, dilation, module.groups)


def _pair(value: Any) -> Pair:
    height, width = value
    return int(height), int(width)


def _shown(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def _computes_by_avx2() -> bool:
    """Whether oneDNN has AVX2 and no AVX-512: by the processor, or by ONEDNN_MAX_CPU_ISA.

    torch does not export what oneDNN says. But it tells whether oneDNN multiplies bfloat16, which takes AVX-512 (or the
    instructions AVX2_VNNI_2 of processors that have no AVX-512).
    """
    if (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")).upper() in ("SSE41", "AVX"):
        return False
    has_avx2, has_avx512 = torch.cpu._is_avx2_supported(), torch.cpu._is_avx512_supported()
    return has_avx2 and not (has_avx512 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _compare() -> Iterator[list[str]]:
    """The task on stdin: what is wrong, convolution by convolution."""
    task = json.load(sys.stdin)
    setting = Setting(**task["setting"])
    convolutions = [_read(one) for one in task["convolutions"]]
    # A process that has used a CUDA device may not fork; one that begins to use it takes seconds.
    together = [convolutions] if torch.device(setting.device).type == "cuda" else [[one] for one in convolutions]
    wrong = 0
    for some in together:
        found = _in_a_fork(some, setting)
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
    """What is wrong with `convolutions`; where the process ends early, it is the one that it was at."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(parent)
        signal.alarm(_LIMIT_SECONDS if len(convolutions) == 1 else _START_SECONDS)
        torch.set_float32_matmul_precision("high" if setting.arithmetic == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = setting.arithmetic == "tf32"
        for convolution in convolutions:
            try:
                complaint = _complaint(convolution, setting)
            except RuntimeError as error:
                complaint = f"{convolution} is not computed: {' '.join(str(error).split())}"
            os.write(writing, f"{json.dumps(complaint)}\n".encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:  # noqa: PTH123 - a file descriptor
        complaints = [json.loads(line) for line in stream]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = [complaint for complaint in complaints if complaint]
    if code == 0:
        return found
    culprit = convolutions[min(len(complaints), len(convolutions) - 1)]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return [*found, f"{culprit} {'hangs' if code == -signal.SIGALRM else f'crashes ({how})'}"]


def _complaint(convolution: Convolution, setting: Setting) -> str | None:
    """What is wrong with `convolution`; None where all is right."""
    tolerance = _TOLERANCES[setting.arithmetic]
    for name, error in largest_error(convolution, setting).items():
        # NaN is not within either.
        if not error <= tolerance:
            return f"{convolution} has a wrong {name}: off by {error:.1e} of its maximum, {tolerance:g} is allowed"
    # A heap that was written over shows when memory is given back.
    ctypes.CDLL(None).malloc_trim(0)
    return None


if __name__ == "__main__":
    end_with_parent(os.getppid())
    # Stdout is for what is found: a library may print.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        for complaints in _compare():
            print(json.dumps(complaints), file=out, flush=True)
