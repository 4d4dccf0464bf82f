"""A machine from what `hpcai500 micro` measured on it (docs/micro.md has the numbers' names)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from hpcai500.errors import UsageError
from hpcai500.machine.description import Count, Level, Link, Machine, Rate

_KERNELS = {"gemm": "GEMM", "conv": "CONV"}
_BETWEEN_ACCELERATORS, _BETWEEN_NODES, _BETWEEN_ALL = "allreduce node", "allreduce network", "allreduce system"


class _Fitted(BaseModel):
    """Latency and bandwidth of an all-reduce."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    latency_seconds: float
    bytes_per_second: Rate


class _Measured(BaseModel):
    """One number of `hpcai500 micro --json`, as far as it is needed here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    value: Rate
    accelerators: Count
    nodes: Count
    device: str = ""
    verified: bool = True
    link: _Fitted | None = None


_DOCUMENT = TypeAdapter(dict[str, _Measured])


def measured_machine(text: str, name: str) -> Machine:
    """The machine that the JSON `text` of `hpcai500 micro` describes.

    Raises:
        UsageError: it is something else, a kernel's result was wrong, or its numbers are of different jobs.
    """
    try:
        found = _DOCUMENT.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = " ".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{name}: not what `hpcai500 micro` writes: {where or 'the file'}: {first['msg'].lower()}"
        ) from error
    if wrong := [one for one, measured in found.items() if not measured.verified]:
        raise UsageError(f"{name}: {wrong[0]}: its result was wrong, so its speed means nothing: hpcai500 doctor")
    nodes, per_node = _size(found, name)
    devices = {measured.device for measured in found.values() if measured.device}
    return Machine(
        name=f"{nodes} x {per_node} {' and '.join(sorted(devices)) or 'accelerators'}",
        source=f"hpcai500 micro ({name})",
        nodes=nodes,
        accelerators_per_node=per_node,
        node=_node(found, nodes, per_node),
        system=_system(found, nodes * per_node) if nodes > 1 else None,
        node_link=_link(found, _BETWEEN_ACCELERATORS),
        network=_link(found, _BETWEEN_NODES),
    )


def _size(found: dict[str, _Measured], name: str) -> tuple[int, int]:
    """Nodes and accelerators a node of the job: those of the kernels, or the most that anything was measured with."""
    kernels = {one: (m.nodes, m.accelerators) for one, m in found.items() if one.split(" ")[0] in _KERNELS}
    if len(set(kernels.values())) > 1:
        raise UsageError(f"{name}: {' and '.join(kernels)} are of different numbers of ranks: measure them in one job")
    sizes = kernels or {one: (m.nodes, m.accelerators) for one, m in found.items() if one != _BETWEEN_NODES}
    if not sizes:
        raise UsageError(f"{name}: nothing in it is of an accelerator: hpcai500 micro -o {name}")
    nodes, accelerators = max(sizes.values())
    if accelerators % nodes:
        raise UsageError(f"{name}: {accelerators} ranks on {nodes} nodes: measure with as many on each")
    return nodes, accelerators // nodes


def _node(found: dict[str, _Measured], nodes: int, per_node: int) -> Level:
    # `copy` is of all ranks of a node together; links are those of one accelerator.
    bandwidths = {"memory": found["copy"].value / per_node} if "copy" in found else {}
    return Level(
        accelerators=per_node,
        ceilings={name: flops / nodes for name, flops in _ceilings(found).items()},
        bandwidths={**bandwidths, **_bandwidths(found, {_BETWEEN_ACCELERATORS: "interconnect"})},
        bound="interconnect" if _BETWEEN_ACCELERATORS in found else None,
    )


def _system(found: dict[str, _Measured], accelerators: int) -> Level:
    names = {_BETWEEN_NODES: "network", _BETWEEN_ALL: "all ranks", _BETWEEN_ACCELERATORS: "interconnect"}
    bandwidths = _bandwidths(found, names)
    return Level(
        accelerators=accelerators,
        ceilings=_ceilings(found),
        bandwidths=bandwidths,
        bound=next((name for name in ("network", "all ranks") if name in bandwidths), None),
    )


def _ceilings(found: dict[str, _Measured]) -> dict[str, float]:
    """`gemm fp32` -> `GEMM fp32`: of all ranks of the job, which all ran at once."""
    words = {name: name.split(" ", 1) for name in found}
    return {
        f"{_KERNELS[kernel]} {rest[0]}": found[name].value
        for name, (kernel, *rest) in words.items()
        if kernel in _KERNELS and rest
    }


def _bandwidths(found: dict[str, _Measured], names: dict[str, str]) -> dict[str, float]:
    return {name: found[measured].value for measured, name in names.items() if measured in found}


def _link(found: dict[str, _Measured], name: str) -> Link | None:
    fitted = found[name].link if name in found else None
    # Where messages are large, noise may fit a latency a little below nothing.
    return (
        Link(latency_seconds=max(0.0, fitted.latency_seconds), bytes_per_second=fitted.bytes_per_second)
        if fitted
        else None
    )
