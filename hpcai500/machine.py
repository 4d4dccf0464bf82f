"""Ceilings and links of a machine, for rooflines, the cost model and `hpcai500 doctor`.

A machine is described by a TOML file of the user, by one that is shipped, or by the JSON that `hpcai500 micro` writes.
docs/roofline.md explains each number and the format of the file. Rates are in FLOPS and bytes per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from hpcai500.errors import UsageError
from hpcai500.files import why_not
from hpcai500.hosts import host_stem
from hpcai500.methodology.roofline import Compression, Topology
from hpcai500.recipe import recipes_folder
from hpcai500.text import count, listed, number, short, table, tables
from hpcai500.toml_source import Source, explain, parse_tables, read_source, source_of

# ----------------------------------------------------------------------------------------------------
# A machine by its ceilings.


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Level(_Table):
    """One roofline model: V2.0 equation 3 (a node) or 5 (the whole system).

    Attributes:
        peak_flops: by precision (`fp32`, `mixed`, ...): from the data sheet, for all accelerators together.
        ceilings: measured FLOPS of all accelerators together, by name (`GEMM mixed`, `CONV fp32`, ...).
        bandwidths: bytes per second through ONE link, by name: an accelerator's `NVLink` or `memory`, a node's
            `Ethernet`. All links of a name carry as much at the same time.
        bound: the one of `bandwidths` that gradients use; None without communication.
    """

    accelerators: Count
    peak_flops: dict[str, Rate] = {}
    ceilings: dict[str, Rate] = {}
    bandwidths: dict[str, Rate] = {}
    bound: str | None = None

    @model_validator(mode="after")
    def _is_bound_by_one_of_its_links(self) -> Level:
        if self.bound is not None and self.bound not in self.bandwidths:
            raise ValueError(f"bound: expected one of bandwidths ({', '.join(self.bandwidths)}), got {self.bound!r}")
        return self

    def of(self, accelerators: int) -> Level:
        """The model of this many accelerators: FLOPS are scaled, the bandwidth of a link stays."""
        share = accelerators / self.accelerators
        return self.model_copy(
            update={
                "accelerators": accelerators,
                "peak_flops": {name: flops * share for name, flops in self.peak_flops.items()},
                "ceilings": {name: flops * share for name, flops in self.ceilings.items()},
            }
        )


class Link(_Table):
    """How long a message takes: latency + bytes / bandwidth (the Hockney model)."""

    latency_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bytes_per_second: Rate


class PaperPoint(_Table):
    """A published point of a workload in the model.

    Attributes:
        name: for the figure.
        benchmark: `ic` or `ewa`.
        precision: key of `peak_flops`.
        compression: type of the gradients on the network; a figure joins `none` and another of one workload by an
            arrow.
        topology: of the all-reduce of gradients, if known.
        flops: attained by all accelerators together.
        coi: FLOPs of all accelerators for each byte sent, after compression, through one link.
        source: where it was published, or how it was derived.
    """

    name: str
    benchmark: str
    model: Literal["node", "system"]
    accelerators: Count
    precision: str
    compression: Compression = "none"
    topology: Topology | None = None
    flops: Rate
    coi: Rate
    source: str


class Machine(_Table):
    """What a machine file describes.

    Attributes:
        name: for titles.
        source: where the numbers come from: a paper's section, a data sheet, `hpcai500 micro`.
        accelerators_per_node: on CPUs, ranks of a node.
        devices: models of its accelerators, or of processors; empty if unknown.
        node: the single-node model (V2.0 section 6.2).
        system: the distributed model (V2.0 section 6.3); None for a single node.
        node_link: between ranks of a node, if the cost model needs it.
        network: between nodes.
        negotiation_seconds: added to each step on several nodes, by benchmark, if the ranks of the communication
            library negotiate which tensors to reduce.
        watts_per_node: mean power during training, if known.
    """

    name: str
    source: str
    nodes: Count
    accelerators_per_node: Count
    watts_per_node: Rate | None = None
    devices: tuple[str, ...] = ()
    node: Level | None = None
    system: Level | None = None
    node_link: Link | None = None
    network: Link | None = None
    negotiation_seconds: dict[str, Rate] = {}
    points: tuple[PaperPoint, ...] = ()


# ----------------------------------------------------------------------------------------------------
# A machine from the JSON of `hpcai500 micro` (docs/micro.md has the names of its numbers).


_KERNELS = {"gemm": "GEMM", "conv": "CONV"}
_BETWEEN_ACCELERATORS, _BETWEEN_NODES, _BETWEEN_ALL = "allreduce node", "allreduce network", "allreduce system"


class _Fitted(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    latency_seconds: float
    bytes_per_second: Rate


class _Measured(BaseModel):
    """One number of `hpcai500 micro --json`; other fields are ignored."""

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
        UsageError: it is something else, a kernel's result was wrong, or its numbers are from different jobs.
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
        raise UsageError(
            f"{name}: {wrong[0]}: the result was wrong, so its speed cannot be used: check with hpcai500 doctor"
        )
    nodes, per_node = _size(found, name)
    devices = tuple(sorted({measured.device for measured in found.values() if measured.device}))
    return Machine(
        name=f"{nodes} x {per_node} {' and '.join(devices) or 'accelerators'}",
        source=f"hpcai500 micro ({name})",
        nodes=nodes,
        accelerators_per_node=per_node,
        devices=devices,
        node=_node(found, nodes, per_node),
        system=_system(found, nodes * per_node) if nodes > 1 else None,
        node_link=_link(found, _BETWEEN_ACCELERATORS),
        network=_link(found, _BETWEEN_NODES),
    )


def _size(found: dict[str, _Measured], name: str) -> tuple[int, int]:
    """Nodes, and accelerators per node, of the job: those of the kernels, else the most of any measurement."""
    kernels = {one: (m.nodes, m.accelerators) for one, m in found.items() if one.split(" ")[0] in _KERNELS}
    if len(set(kernels.values())) > 1:
        raise UsageError(
            f"{name}: {' and '.join(kernels)} were measured with different numbers of ranks: measure them in one job"
        )
    sizes = kernels or {one: (m.nodes, m.accelerators) for one, m in found.items() if one != _BETWEEN_NODES}
    if not sizes:
        raise UsageError(f"{name}: no measurement of an accelerator in it: write it with hpcai500 micro -o {name}")
    nodes, accelerators = max(sizes.values())
    if accelerators % nodes:
        raise UsageError(f"{name}: {accelerators} ranks on {nodes} nodes: measure with the same number on each node")
    return nodes, accelerators // nodes


def _node(found: dict[str, _Measured], nodes: int, per_node: int) -> Level:
    # `copy` is the rate of all ranks of a node; a link belongs to one accelerator.
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
    # Because of noise, the fitted latency may be slightly below 0.
    return (
        Link(latency_seconds=max(0.0, fitted.latency_seconds), bytes_per_second=fitted.bytes_per_second)
        if fitted
        else None
    )


# ----------------------------------------------------------------------------------------------------
# Machine files, TOML or JSON.


# Tables that only site files have, the other files in recipes/sites (launch/slurm/site.py); both have a table [node].
_OF_SITES = {"slurm", "launcher", "container", "mpi", "environment"}


def find_machine(name_or_path: str | Path) -> Path:
    """The file of a machine: a path, or the short name of one that comes with hpcai500 (`v100-64`).

    Raises:
        UsageError: neither exists.
    """
    for path in (Path(name_or_path), recipes_folder() / "sites" / f"{name_or_path}.toml"):
        if path.is_file():
            return path
    raise UsageError(
        f"{name_or_path}: {why_not('file', Path(name_or_path))}; choose one of {', '.join(shipped_machines())}, or "
        "measure this machine: hpcai500 micro -o micro.json"
    )


def shipped_machines() -> list[str]:
    """Short names of the machines that come with hpcai500, without the site files in the same folder."""
    files = sorted((recipes_folder() / "sites").glob("*.toml"))
    return [path.stem for path in files if is_machine(parse_tables(read_source(path, UsageError), UsageError))]


def is_machine(tables: dict[str, Any]) -> bool:
    """Whether the tables of a TOML file describe a machine, valid or not, and not a site."""
    return bool(tables.keys() & (Machine.model_fields.keys() - {"node"})) and not tables.keys() & _OF_SITES


def load_machine(name_or_path: str | Path) -> Machine:
    """The machine of a TOML file, of a shipped name, or of the JSON file that `hpcai500 micro -o FILE` wrote.

    Raises:
        UsageError: there is no such file, or it is something else.
    """
    path = find_machine(name_or_path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return machine_of(source_of(content, str(path), UsageError))


def machine_of(source: Source) -> Machine:
    """The machine that the text of `source`, TOML or JSON, describes; raises as `load_machine`."""
    if source.name.endswith(".json") or source.text.lstrip().startswith("{"):
        return measured_machine(source.text, source.name)
    return parse_machine(source)


def parse_machine(source: Source) -> Machine:
    """The machine that the TOML text of `source` describes; raises as `load_machine`."""
    tables = parse_tables(source, UsageError)
    if tables.keys() & _OF_SITES:
        raise UsageError(
            f"{source.name}: a site file ([{sorted(tables.keys() & _OF_SITES)[0]}]), for hpcai500 slurm render --site; "
            f"expected a machine file: {', '.join(shipped_machines())}, or your own (docs/roofline.md)"
        )
    try:
        return Machine.model_validate(tables)
    except ValidationError as error:
        raise UsageError(*explain(Machine, source, error)) from error


# ----------------------------------------------------------------------------------------------------
# Comparing a machine with a run.


def ranks_of_each_node(ranks: int, nodes: int, what: object) -> int:
    """Ranks of a node, for models in which nodes are equal; `what` is for the message.

    Raises:
        UsageError: some nodes have fewer ranks.
    """
    if ranks % nodes:
        raise UsageError(f"{what}: {ranks} ranks on {nodes} nodes: the model needs equal nodes")
    return ranks // nodes


def why_not_of(machine: Machine, device: str, ranks_per_node: int, run: Origin | None = None) -> str | None:
    """Why ceilings of `machine` do not apply to a run with that many ranks per node, and the fix; None if they do.

    On a CPU the numbers of ranks must be equal: fewer ranks may still use all of its cores. `run` is where it took
    place, if that is known.
    """
    if run and (reason := other_machine(Origin(measured=frozenset(machine.devices) - _NO_MODELS), run)):
        return (
            f"the ceilings of {machine.name} are of another machine ({reason}): measure that of the run: hpcai500 "
            "micro -o micro.json"
        )
    ours = machine.accelerators_per_node
    if device == "cpu" and ranks_per_node != ours:
        return (
            f"{count(ranks_per_node, 'rank')} a node share its cores, and the ceilings of {machine.name} are of "
            f"{ours}: measure with as many on the same machine: hpcai500 micro --procs {ranks_per_node} -o micro.json"
        )
    if device != "cpu" and ranks_per_node > ours:
        return f"the run has {ranks_per_node} accelerators per node, but {machine.name} has {ours}"
    return None


# ----------------------------------------------------------------------------------------------------
# Whether two things were measured on one machine: two runs, or a file of figures and a run.
#
# Each says what it knows. What one of them does not know is no difference.


@dataclass(frozen=True)
class Origin:
    """Where a run took place, or where the figures of a file were measured; unknown is empty or None.

    Attributes:
        hosts: their names; empty also if they were replaced, as in an anonymised submission.
        processors: their models.
        accelerators: their models; `no accelerator` if the nodes have none.
        measured: models of the devices that figures are of: processors or accelerators.
        per_node: of a run, the most accelerators of a node; of figures, the number of ranks with one each.
    """

    cluster: str = ""
    hosts: frozenset[str] = frozenset()
    processors: frozenset[str] = frozenset()
    accelerators: frozenset[str] = frozenset()
    measured: frozenset[str] = frozenset()
    per_node: int | None = None


_NO_ACCELERATOR = "no accelerator"
# `hpcai500 profile` names no model of a processor; where the kernel names none, micro gives the architecture.
_NO_MODELS = {"processor", "x86_64", "aarch64", "arm64", "ppc64le", "riscv64"}
_MOST_NAME = 80


def origin_of_run(system: Mapping[str, Any]) -> Origin:
    """Where a run took place, from the `system.json` of its record."""
    nodes = tables(system.get("nodes"))
    devices = [tables(node.get("accelerators")) for node in nodes]
    clusters = (table(node.get("environment")).get("SLURM_CLUSTER_NAME") for node in nodes)
    return Origin(
        cluster=next((short(name, _MOST_NAME) for name in clusters if name), ""),
        hosts=_names(node.get("host") for node in nodes),
        processors=_names(table(node.get("cpu")).get("Model name") for node in nodes),
        accelerators=_names(device.get("name") for of_node in devices for device in of_node)
        or frozenset([_NO_ACCELERATOR] if nodes else []),
        per_node=max(map(len, devices), default=None),
    )


def origin_of_figures(document: Mapping[str, Any]) -> Origin:
    """Where the figures of a file were measured: of `hpcai500 micro`, `storage` or `profile`, as a JSON object."""
    entries = [one for one in (document, *tables(list(document.values()))) if one is document or "value" in one]
    hosts = [entry["hosts"] for entry in entries if isinstance(entry.get("hosts"), list)]
    # A profile has the kind in `device`, and the model apart.
    models = _names(entry.get("device_name") or (entry.get("device") if "unit" in entry else None) for entry in entries)
    # A rank has one accelerator.
    ranks = [max(Counter(map(str, names)).values()) for names in hosts if names]
    size = number(document.get("ranks")), number(document.get("nodes"))
    if size[0] and size[1]:
        ranks.append(int(size[0] // size[1]))
    return Origin(
        hosts=_names(host for names in hosts for host in names),
        measured=models - _NO_MODELS,
        per_node=max(ranks, default=None),
    )


def other_machine(one: Origin, run: Origin) -> str | None:
    """Why `one` (a run, or figures) and `run` are not of the same machine, in a few words; None if they may be.

    Jobs get any nodes of a machine, so of hosts only the stems of the names are compared, if no host is in both.
    """
    return next((found for differs in _DIFFERENCES if (found := differs(one, run))), None)


def _cluster_differs(one: Origin, run: Origin) -> str | None:
    if one.cluster and run.cluster and one.cluster != run.cluster:
        return f"cluster {one.cluster}, not {run.cluster}"
    return None


def _hosts_differ(one: Origin, run: Origin) -> str | None:
    if one.hosts & run.hosts or (one.cluster and one.cluster == run.cluster):
        return None
    ours, theirs = ({host_stem(host) for host in origin.hosts} for origin in (one, run))
    if not ours or not theirs or "" in ours | theirs or ours & theirs:
        return None
    return f"{_some(one.hosts, 'host')}, not {_some(run.hosts, 'host')}"


def _models_differ(one: Origin, run: Origin) -> str | None:
    """Nodes of a machine may differ, and a smaller run may have only some kinds of them."""
    for ours, theirs in ((one.processors, run.processors), (one.accelerators, run.accelerators)):
        if ours and theirs and not (ours <= theirs or theirs <= ours):
            return f"{_some(ours)}, not {_some(theirs)}"
    return None


def _measured_differ(one: Origin, run: Origin) -> str | None:
    known = run.processors | run.accelerators - {_NO_ACCELERATOR}
    # Of a run whose processor is unknown, only figures of accelerators can be compared.
    if one.measured and known and run.processors and not one.measured <= known:
        return f"{_some(one.measured - known)}, not {_some(run.accelerators - {_NO_ACCELERATOR} or run.processors)}"
    return None


def _counts_differ(one: Origin, run: Origin) -> str | None:
    """Ranks share a processor, but each has an accelerator of its own."""
    own, there = one.per_node or 0, run.per_node or 0
    if one.measured and one.measured <= run.accelerators and own > there > 0:
        return f"{own} accelerators a node, not {there}"
    return None


_DIFFERENCES: tuple[Callable[[Origin, Origin], str | None], ...] = (
    _cluster_differs,
    _models_differ,
    _measured_differ,
    _counts_differ,
    _hosts_differ,
)


def _names(values: Iterable[object]) -> frozenset[str]:
    return frozenset(short(value, _MOST_NAME) for value in values if isinstance(value, str) and value.strip())


def _some(names: Iterable[str], of: str = "") -> str:
    """A few of `names`: `hosts a1, a2 and 2 more`."""
    known = sorted(names)
    more = f" and {len(known) - 2} more" if len(known) > 3 else ""
    word = f"{of}{'s' if len(known) > 1 else ''} " if of else ""
    return f"{word}{listed(known[:2] if more else known)}{more}"
