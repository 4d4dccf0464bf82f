"""What a device did at each moment, and to which of the eight kinds of V2.0 Fig. 10 each of its kernels belongs.

Kinds follow from the names in torch's profiler: operators (`aten::add_`, `ConvolutionBackward0`) on a CPU, demangled
kernels (`ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`) on a CUDA device. docs/profile.md explains the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

# ----------------------------------------------------------------------------------------------------
# The timeline of a device, from what ran on its streams: each moment counts once.
#
# Where several streams are busy, arithmetic takes precedence over communication, and communication over copies: a copy
# beside a kernel costs nothing, and an all-reduce only delays where nothing else runs.


COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
KINDS = (COMPUTE, COMMUNICATION, COPY)


@dataclass(frozen=True)
class Stretch:
    """An interval in which the device did one kind of thing; in seconds."""

    start: float
    end: float
    kind: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def timeline(works: Iterable[Stretch]) -> list[Stretch]:
    """Merge `works`, which may overlap, into consecutive stretches; idle time has none."""
    edges = sorted((moment, step, work.kind) for work in works for moment, step in ((work.start, 1), (work.end, -1)))
    running = dict.fromkeys(KINDS, 0)
    found: list[Stretch] = []
    for (moment, step, kind), following in pairwise([*edges, (float("inf"), 0, "")] if edges else []):
        running[kind] += step
        now = next((kind for kind in KINDS if running[kind]), None)
        if now and following[0] > moment:
            start = moment
            if found and found[-1].kind == now and found[-1].end == moment:
                start = found.pop().start
            found.append(Stretch(start, following[0], now))
    return found


def gaps(stretches: Sequence[Stretch], rounding: float = 0.0) -> list[tuple[float, float]]:
    """(start, end) of each idle time between two of `stretches` that is longer than `rounding`."""
    return [(one.end, two.start) for one, two in pairwise(stretches) if two.start - one.end > rounding]


def seconds_of(stretches: Iterable[Stretch]) -> dict[str, float]:
    """Seconds of each of `KINDS`."""
    sums = dict.fromkeys(KINDS, 0.0)
    for one in stretches:
        sums[one.kind] += one.seconds
    return sums


def shares_over_time(stretches: Sequence[Stretch], start: float, end: float, pieces: int) -> list[list[float]]:
    """For `pieces` equal parts of the time from `start` to `end`: [seconds since `start`, share of each of `KINDS`]."""
    length = (end - start) / pieces
    rows = [[0.0] * len(KINDS) for _ in range(pieces)]
    for one in stretches:
        low, high = max(one.start, start) - start, min(one.end, end) - start
        place = KINDS.index(one.kind)
        for number in range(max(0, int(low / length)), min(pieces, int(high / length) + 1) if high > low else 0):
            inside = min(high, (number + 1) * length) - max(low, number * length)
            rows[number][place] += max(0.0, inside) / length
    return [[round(number * length, 9), *(round(min(1.0, part), 6) for part in row)] for number, row in enumerate(rows)]


# ----------------------------------------------------------------------------------------------------
# Classes of kernels by name.
#
# The first rule that matches a name decides. A name that no rule matches is reported as unclassified.


CONVOLUTION = "convolution"
GEMM = "GEMM"
NORMALISATION = "batch normalisation"
ELEMENT_WISE = "element-wise"
POOLING = "pooling"
MEMCPY = "memcpy"
ALL_REDUCE = "all-reduce"
TRANSFORMATION = "transformation"

# In the order of V2.0 section 7.3.2.
CLASSES = (CONVOLUTION, GEMM, NORMALISATION, ELEMENT_WISE, POOLING, MEMCPY, ALL_REDUCE, TRANSFORMATION)
# Not a kernel: operators of the host that only change a tensor's shape or allocate memory, or that call others.
HOST = "host"


@dataclass(frozen=True)
class Rule:
    """Names in which `pattern` is found are of class `kind`."""

    kind: str
    pattern: re.Pattern[str]


def _rules(*rows: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(kind, re.compile(pattern)) for kind, pattern in rows)


# Searched in `stem(name)`: the operator without the namespace `aten`, direction, in-place mark and overload.
OPERATOR_RULES = _rules(
    (ALL_REDUCE, r"^(c10d|_?c10d_functional|nccl|gloo|horovod)(::|:)|^record_param_comms$|^hpcai500:(all_)?reduce"),
    (ALL_REDUCE, r"^hpcai500:(broadcast|all_gather|reduce_scatter|all_to_all|barrier)"),
    (MEMCPY, r"^hpcai500:(pack|unpack)$"),
    # The compiler's fused kernels have the names of all their operations: the most expensive comes first.
    (NORMALISATION, r"cpp_fused\w*_norm"),
    (POOLING, r"cpp_fused\w*pool"),
    (ELEMENT_WISE, r"cpp_fused"),
    (POOLING, r"roi_(align|pool)|pool|upsample|interpolate|grid_sampl"),
    (ELEMENT_WISE, r"^(hpcai500|torchvision)::_?(sorted_)?nms|hpcai500_nms|^hpcai500::uniform$"),
    (TRANSFORMATION, r"mkldnn_reorder|to_mkldnn|mkldnn_to_dense|^(channel_shuffle|pixel_(un)?shuffle)$"),
    (CONVOLUTION, r"conv\d?d|convolution|conv_transpose|im2col|col2im|slow_conv|thnn_conv"),
    (NORMALISATION, r"(batch|group|layer|instance|rms)_?norm|^normalise$"),
    (GEMM, r"^(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|dot|vdot|ger|addr|scaled_mm|einsum)$"),
    (GEMM, r"^mkl(dnn)?_(linear|rnn)|^mkldnn::_linear|scaled_dot_product|^cholesky|^linalg_(?!vector_norm)"),
    (HOST, r"^(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize(_as)?|set|contiguous|pin_memory)$"),
    (HOST, r"^(view|view_as|reshape|reshape_alias|unsafe_view|as_strided|expand|expand_as|permute|transpose|t|T)$"),
    (HOST, r"^(slice|select|narrow|unbind|split|split_with_sizes|chunk|squeeze|unsqueeze|flatten|unflatten|movedim)$"),
    (HOST, r"^(detach|alias|diagonal|unfold|to|type_as|conj|is_nonzero|item|result_type|can_cast|promote_types)$"),
    (HOST, r"^(record_stream|is_pinned|meshgrid|resolve_(conj|neg)|lift_fresh|broadcast_tensors|\w+_available)$"),
    (HOST, r"^(torch::autograd::(accumulategrad|graphroot|copyslices|copybackwards|undefinedgrad))$|^graph_?root$"),
    # Our own kernel computes the norms of all layers for these, and does not appear as an operator.
    (ELEMENT_WISE, r"^optimizer\.step#(lars|lamb)\."),
    (HOST, r"^(optimizer\.|hpcai500:step$|profilerstep)|^aotdispatcher|^torchdynamo|^torch-compiled"),
    (HOST, r"^## call compiledfxgraph|^compiled_?function|^pregraph|^aot_?autograd"),
    (MEMCPY, r"^(copy|clone|to_copy|local_scalar_dense|cat|stack|hstack|vstack|concat|concatenate|repeat)$"),
    (MEMCPY, r"^(fill|zero|zeros|zeros_like|ones|ones_like|full|full_like|new_(zeros|ones|full)|scalar_tensor)$"),
    (MEMCPY, r"^(constant_pad_nd|pad|roll|flip|foreach_(copy|zero)|efficientzerotensor|tensor|copy_from)$"),
    (ELEMENT_WISE, r"^(foreach|fused|amp)_"),
    (ELEMENT_WISE, r"^(add|sub|rsub|mul|div|true_divide|addcmul|addcdiv|neg|pow|sqrt|rsqrt|square|reciprocal|abs)$"),
    (ELEMENT_WISE, r"^(exp|expm1|exp2|log|log1p|log2|sin|cos|tanh|erf|sign|floor|ceil|round|trunc|frac|fmod|lerp)$"),
    (ELEMENT_WISE, r"^(remainder|floor_divide|eq|ne|lt|le|gt|ge|and|or|xor|isnan|isinf|isfinite)$"),
    (ELEMENT_WISE, r"^(bitwise|logical)_|^(lshift|rshift|nan_to_num)$"),
    (ELEMENT_WISE, r"^(maximum|minimum|fmax|fmin|max|min|amax|amin|aminmax|argmax|argmin|clamp|clamp_min|clamp_max)$"),
    (ELEMENT_WISE, r"^(sum|sum_to_size|mean|var|std|var_mean|std_mean|prod|any|all|count_nonzero|cumsum|cumprod)$"),
    (ELEMENT_WISE, r"^(norm|frobenius_norm|linalg_vector_norm|dist|logsumexp)$|softmax|^(trace|equal|isclose)$"),
    (ELEMENT_WISE, r"relu|sigmoid|threshold|hardtanh|hardswish|silu|gelu|^elu$|softplus|dropout|bernoulli|masked_"),
    (ELEMENT_WISE, r"loss|nll|binary_cross_entropy|huber|smooth_l1|^kl_div$|^cross_entropy$|one_hot|label_smooth"),
    (ELEMENT_WISE, r"^(where|s_where|index|index_put|index_put_impl|index_select|index_add|index_copy|index_fill)$"),
    (ELEMENT_WISE, r"^(unsafe_index|unsafe_index_put|take|put|gather|scatter|scatter_add|scatter_reduce|nonzero)"),
    (ELEMENT_WISE, r"^(sort|argsort|topk|kthvalue|median|msort|unique|searchsorted|bucketize|histc|bincount|isin)"),
    (ELEMENT_WISE, r"^(arange|linspace|range|eye|tril|triu|rand|randn|randint|randperm|normal|uniform|multinomial)"),
    (ELEMENT_WISE, r"^(random|exponential|embedding|cdist|hypot|atan2|copysign|complex|real|imag|select_scatter)"),
)  # fmt: skip

KERNEL_RULES = _rules(
    (ALL_REDUCE, r"(?i)nccl(dev)?kernel|^nccl|one_?shot_?all_?reduce|two_?shot_?all_?reduce|multimem_all_reduce|^rccl"),
    (MEMCPY, r"(?i)^mem(cpy|set)\b|^\[cuda mem(cpy|set)|^__amd_rocclr_(copy|fill)Buffer"),
    # Our own, from csrc/core. A conversion of images is classed by what it computes, whatever layout it writes.
    (NORMALISATION, r"hpcai500::.*\b(moments_of_tiles|finish_moments|normalise)\b"),
    (NORMALISATION, r"hpcai500::.*\b(sum_gradient_tiles|finish_gradient_sums|spread_gradient)\b"),
    (MEMCPY, r"hpcai500::.*\b((un)?pack_tiles|cast_tiles|(de)?quantise_(tiles|chunks))\b"),
    (ELEMENT_WISE, r"hpcai500::.*\b(sum_tiles|mark_overlaps|decide|convert_[a-z]+)\b"),
    (POOLING, r"hpcai500::.*\b(pool|spread)(_[a-z_]+)?\b|(?i:roi_?align|roi_?pool)"),
    # Fused kernels as above; a template has the class that it is named after.
    (CONVOLUTION, r"^triton_tem_.*conv"),
    (GEMM, r"^triton_tem_"),
    (NORMALISATION, r"^triton_\w*_norm"),
    (POOLING, r"^triton_\w*pool"),
    (ELEMENT_WISE, r"^triton_"),
    (TRANSFORMATION, r"(?i)nchwtonhwc|nhwctonchw|nchwtofold|tensor_?transform|transpose|permute(?!d)|reformat|reorder"),
    (TRANSFORMATION, r"(?i)nhwcAddPadding|nchwAddPadding|convertTensor_kernel|nchw\w*Pack|SubTensorOpWithScalar"),
    (POOLING, r"(?i)pool|upsample|interpolat|grid_sampl"),
    (NORMALISATION, r"(?i)batch_?norm|(^|[:\s_])bn_(fw|bw)|(group|layer|instance|rms)_?norm|cudnn.*norm"),
    (NORMALISATION, r"RowwiseMoments|ComputeInternalGradients|ComputeBackwardFused|GammaBeta|ComputeFusedParams"),
    (CONVOLUTION, r"(?i)fprop|dgrad|wgrad|winograd|convolve|conv\dd|conv_depthwise|convolution|implicit_?gemm|scudnn"),
    (CONVOLUTION, r"(?i)h\d*cudnn|s\d+cudnn|cudnn.*(gemm|offsets)|fft2d|fft1d|im2col|col2im|flip_filter|igemm_"),
    (CONVOLUTION, r"(?i)computeOffsetsKernel|compute_gemm_pointers|cask_cudnn|cudnn::cnn|MIOpenConv|cudnn_\w*tensorop"),
    (GEMM, r"(?i)gemm|gemv|nvjet|cublas|cutlass|splitK|^Cijk_|dot_kernel|reduce_1Block_kernel|trsm|syrk"),
    # A cast to another type is arithmetic. A plain copy keeps the type (copies by operator: see `copy_class`).
    (ELEMENT_WISE, r"(bfloat16|float16|float8\w*|half)_copy_kernel"),
    (MEMCPY, r"CatArrayBatchedCopy|direct_copy_kernel|FillFunctor|CopyFunctor|ZeroFunctor|copy_device_to_device"),
    (ELEMENT_WISE, r"(?i)elementwise|reduce_kernel|softmax|loss|multi_tensor_apply|distribution|cudnn::ops|op_tensor"),
    (ELEMENT_WISE, r"(?i)index|scatter|gather|sort|topk|radix|\bcub::|thrust::|\bscan|arange|compare|masked|nonzero"),
    (ELEMENT_WISE, r"(?i)amp_|threshold|relu|sigmoid|dropout|\bat::native::|scalePackedTensor|addTensor|philox|random"),
)  # fmt: skip

_ENGINE = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"(defaultBackward|Backward)\d*$")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def operator_class(name: str) -> str | None:
    """The class of the operator `name`: one of CLASSES, HOST, or None if no rule matches."""
    return _first(OPERATOR_RULES, stem(name))


@cache
def kernel_class(name: str) -> str | None:
    """The class of the CUDA kernel `name`, or None if no rule matches; never HOST."""
    return _first(KERNEL_RULES, name)


def stem(name: str) -> str:
    """What the operator `name` does: `NativeBatchNormBackward0` -> `native_batch_norm`, `aten::add_` -> `add`.

    Autograd's nodes are named after the operator whose gradient they compute, so both get the same stem.
    """
    word = name.removeprefix(_ENGINE).removeprefix("aten::")
    if _BACKWARD.search(word):
        word = _HUMPS.sub("_", _BACKWARD.sub("", word).removeprefix("GeneratedBackwardFor_"))
    word = word.lower().partition(".")[0] if not word.startswith("Optimizer.") else word.lower()
    return word.strip("_").removesuffix("_backward") or name


def _first(rules: Sequence[Rule], text: str) -> str | None:
    return next((rule.kind for rule in rules if rule.pattern.search(text)), None)


@dataclass(frozen=True)
class Layout:
    """A tensor argument of an operator: shape and strides in elements, and the type of an element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: str

    def order(self) -> tuple[int, ...]:
        """The axes from the longest stride to the shortest, without those of length 1."""
        axes = [axis for axis, length in enumerate(self.shape) if length > 1]
        return tuple(sorted(axes, key=lambda axis: (-self.strides[axis], axis)))

    def is_spread(self) -> bool:
        """Whether one element in memory stands for many, as after `expand`."""
        return any(length > 1 and step == 0 for length, step in zip(self.shape, self.strides, strict=True))


def changes_layout(target: Layout, source: Layout) -> bool:
    """Whether a copy writes elements in another order than the source has: NCHW to NHWC, or a transposed matrix."""
    if target.shape != source.shape or source.is_spread() or target.is_spread():
        return False
    return target.order() != source.order()


def copy_class(target: Layout, source: Layout) -> str:
    """The class of a copy: TRANSFORMATION into another order, else ELEMENT_WISE into another type, else MEMCPY."""
    if changes_layout(target, source):
        return TRANSFORMATION
    return MEMCPY if target.element == source.element else ELEMENT_WISE
