"""Gradient buckets on the device: packing, unpacking, int8 and norms against torch, and against a plain copy.

The buckets are all gradients of ResNet-50 and of the detector of Extreme Weather Analytics, the last parameter's first,
as a backward pass gives them: the detector's odd biases leave a third of its values misaligned. Rivals are torch's
grouped copies and norms, a cast of each tensor, and a concatenation that is cast. Two more ratios are the share that
ours reaches of the bandwidth of Tensor.copy_, which reads and writes as many bytes together: of whole calls from
Python, which says what the host costs, and of one call captured in a CUDA graph, which leaves the kernel alone and is
what is judged. The copy is never captured: a graph would copy by other means, at two thirds of the bandwidth (H200).
Before anything is timed, ours must give what torch gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from clock import Call, Timed, timed, timed_all, turns
from contest import hold, speed_rows
from cpu_modules import cpu_module
from options import Options
from rows import Target, ratio_row, without_rival
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model
from hpcai500.workloads.models.resnet import Bottleneck, ResNet

_OURS, _COPY = "ours", "copy of as many bytes"
_SHARE = Target(least=0.9)
_WIRES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TINY_SHAPES = [(7,), (5, 3), (700,), (64, 3, 7, 7), (1,), (33, 129)]


def measure(options: Options) -> dict[str, object]:
    """Each case of each model in turn."""
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for model, shapes in _models(options).items():
        bucket = Bucket(shapes, options.device)
        bucket.check()
        for name, (calls, moved) in bucket.cases().items():
            case = f"{model}: {name}"
            copy = _copy(moved, options.device)
            seconds = turns(timed_all({**calls, _COPY: copy}, options.device), options)
            rows += speed_rows({"case": case, "bytes": moved}, seconds, {}, {"bytes": moved})
            rivals = {rival: seconds[rival] for rival in calls}
            if len(rivals) > 1:
                ratios.append(ratio_row(case, rivals, _OURS, options))
            ratios.append(
                ratio_row(f"{case}: whole calls, share of copy bandwidth", seconds, _OURS, options, rival=_COPY)
            )
            alone = _alone(case, calls[_OURS], copy, moved, options)
            rows += alone["rows"]
            ratios.append(alone["ratio"])
    return {"tables": {"Gradient buckets": rows}, "ratios": ratios}


def _models(options: Options) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of the parameters, the last first."""
    if options.quick:
        return {"a few tensors": _TINY_SHAPES}
    with torch.device("meta"):
        classifier = ResNet(Bottleneck, (3, 4, 6, 3))
        detector = build_model(load_recipe("ewa/reference").workload)
    named = {"ResNet-50": classifier, "R50-FPN detector": detector}
    return {name: [tuple(p.shape) for p in model.parameters()][::-1] for name, model in named.items()}


def _alone(case: str, call: Call, copy: Call, moved: int, options: Options) -> dict[str, Any]:
    """The rows and the judged ratio of a call whose kernels are replayed, without Python between them."""
    title = f"{case}: kernel alone"
    makers = {_OURS: partial(_replayed, call, options.device), _COPY: partial(timed, copy, options.device)}
    seconds, failed = hold(makers, options)
    rows = speed_rows({"case": title, "bytes": moved}, seconds, failed, {"bytes": moved})
    title = f"{title}, share of copy bandwidth"
    if failed:
        return {"rows": rows, "ratio": without_rival(title, _COPY, "; ".join(failed.values()), _SHARE)}
    return {"rows": rows, "ratio": ratio_row(title, seconds, _OURS, options, _SHARE, rival=_COPY)}


def _replayed(call: Call, device: torch.device) -> Timed:
    """One call, captured in a CUDA graph and replayed; a CPU has none, and makes the call itself."""
    if device.type != "cuda":
        return timed(call, device)
    # What is loaded at a first call must not be loaded within the capture.
    call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return timed(graph.replay, device)


def _copy(moved: int, device: torch.device) -> Call:
    """Reads and writes `moved` bytes together."""
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return partial(target.copy_, source)


class Bucket:
    """Gradients, and all that is called on them."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        generator = torch.Generator().manual_seed(500)
        self.gradients = [(torch.randn(shape, generator=generator) * 1e-2).to(device) for shape in shapes]
        self.targets = [torch.empty_like(gradient) for gradient in self.gradients]
        self.sizes = [gradient.numel() for gradient in self.gradients]
        self.count = sum(self.sizes)
        self.norms = torch.empty(len(shapes), dtype=torch.float64, device=device)
        self.packed = {name: torch.empty(self.count, dtype=wire, device=device) for name, wire in _WIRES.items()}
        self.views = {name: self._views(packed) for name, packed in self.packed.items()}
        self.coded = torch.empty(kernels.quantised_bytes(self.count), dtype=torch.uint8, device=device)
        self.residual = torch.zeros(self.count, device=device)
        self.rivals = cpu_module("compression_rivals")
        self.padded, self.padded_residual = (self.rivals.padded(self.count).to(device) for _ in range(2))

    def _views(self, packed: Tensor) -> list[Tensor]:
        parts = packed.split(self.sizes)
        return [part.view_as(gradient) for part, gradient in zip(parts, self.gradients, strict=True)]

    def cases(self) -> dict[str, tuple[dict[str, Call], int]]:
        """Of each case its contestants, ours first, and the bytes that it reads and writes."""
        found: dict[str, tuple[dict[str, Call], int]] = {}
        for name in _WIRES:
            bytes_of_value = 4 + self.packed[name].element_size()
            found[f"pack to {name}"] = (self._packing(name), bytes_of_value * self.count)
            found[f"unpack from {name}"] = (self._unpacking(name), bytes_of_value * self.count)
        found["pack to fp16, with norms"] = (self._packing_with_norms(), 6 * self.count)
        coded = self.coded.numel()
        found["quantise to int8, with residual"] = (self._quantising(), 12 * self.count + coded)
        found["dequantise from int8"] = ({_OURS: self._dequantise}, 4 * self.count + coded)
        norms: dict[str, Call] = {
            _OURS: partial(kernels.layer_norms, self.gradients, self.norms),
            "_foreach_norm": partial(torch._foreach_norm, self.gradients),
        }
        found["norms of all layers"] = (norms, 4 * self.count)
        return found

    def _packing(self, name: str) -> dict[str, Call]:
        packed, views, wire = self.packed[name], self.views[name], _WIRES[name]

        def each() -> None:
            for view, gradient in zip(views, self.gradients, strict=True):
                view.copy_(gradient)

        return {
            _OURS: partial(kernels.pack, self.gradients, packed),
            "_foreach_copy_": partial(torch._foreach_copy_, views, self.gradients),
            "a cast of each": each,
            "cat and cast": lambda: torch.cat([gradient.view(-1) for gradient in self.gradients]).to(wire),
        }

    def _unpacking(self, name: str) -> dict[str, Call]:
        packed, views = self.packed[name], self.views[name]

        def each() -> None:
            for target, view in zip(self.targets, views, strict=True):
                target.copy_(view)

        return {
            _OURS: partial(kernels.unpack, packed, self.targets),
            "_foreach_copy_": partial(torch._foreach_copy_, self.targets, views),
            "a cast of each": each,
        }

    def _packing_with_norms(self) -> dict[str, Call]:
        def torchs() -> None:
            torch._foreach_copy_(self.views["fp16"], self.gradients)
            torch._foreach_norm(self.gradients)

        ours = partial(kernels.pack, self.gradients, self.packed["fp16"], norms=self.norms)
        return {_OURS: ours, "_foreach_copy_ and _foreach_norm": torchs}

    def _quantising(self) -> dict[str, Call]:
        residual, bucket, by_torch = self.padded_residual, self.padded, self.rivals.quantise_blocks
        return {
            _OURS: partial(kernels.quantise, self.gradients, self.coded, residual=self.residual),
            "torch's expression": partial(self.rivals.quantise_bucket, self.gradients, residual, bucket, by_torch),
        }

    def _dequantise(self) -> None:
        kernels.dequantise(self.coded, self.targets)

    def check(self) -> None:
        """Ours must give what torch gives.

        Raises:
            AssertionError: it does not.
        """
        flat = torch.cat([gradient.view(-1) for gradient in self.gradients])
        for name, wire in _WIRES.items():
            kernels.pack(self.gradients, self.packed[name])
            _require_same(f"pack to {name}", self.packed[name], flat.to(wire))
            kernels.unpack(self.packed[name], self.targets)
            unpacked = torch.cat([target.view(-1) for target in self.targets])
            _require_same(f"unpack from {name}", unpacked, flat.to(wire).float())
        kernels.quantise(self.gradients, self.coded)
        self._dequantise()
        step = flat.abs().max() / 127
        off = torch.cat([target.view(-1) for target in self.targets]) - flat
        assert bool((off.abs() <= 0.501 * step).all()), "int8 is further off than half a step"
        kernels.layer_norms(self.gradients, self.norms)
        expected = torch.stack([gradient.double().norm() for gradient in self.gradients])
        torch.testing.assert_close(self.norms, expected, rtol=1e-10, atol=0)


def _require_same(what: str, ours: Tensor, theirs: Tensor) -> None:
    assert ours.equal(theirs), f"{what} differs from torch's"
