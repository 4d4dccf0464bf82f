"""A machine by its ceilings: from a data sheet, a paper or our own measurements; read from TOML, for models of it.

docs/methodology.md says which number means what. All rates are plain numbers: FLOPS, bytes a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(gt=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Level(_Table):
    """One roofline model: V2.0 equation 3 (a node) or 5 (the whole system).

    Attributes:
        accelerators: that all ceilings of this model are for.
        peak_flops: by precision (`fp32`, `mixed`, ...): the data sheet's, of all accelerators together.
        ceilings: measured FLOPS of all accelerators together, by name (`GEMM mixed`, `CONV fp32`, ...).
        bandwidths: bytes a second, by name (`NVLink`, `Ethernet`, `memory`).
        bound: the one of `bandwidths` that gradients travel by.
    """

    accelerators: Annotated[int, Field(ge=1)]
    peak_flops: dict[str, Rate] = {}
    ceilings: dict[str, Rate] = {}
    bandwidths: dict[str, Rate]
    bound: str


class Link(_Table):
    """How long a message takes: latency + bytes / bandwidth (the Hockney model)."""

    latency_seconds: Annotated[float, Field(ge=0)]
    bytes_per_second: Rate


class PaperPoint(_Table):
    """A workload's place in the model, as published.

    Attributes:
        name: for the figure.
        benchmark: `ic` or `ewa`.
        model: which of the models it belongs to.
        accelerators: that it ran on.
        precision: key of `peak_flops`.
        flops: attained by all accelerators together.
        coi: FLOPs for each byte that is communicated.
        source: where it was published, or how it was derived.
    """

    name: str
    benchmark: str
    model: Literal["node", "system"]
    accelerators: Annotated[int, Field(ge=1)]
    precision: str
    flops: Rate
    coi: Rate
    source: str


class Machine(_Table):
    """What a file `[machine]` describes.

    Attributes:
        name: for titles.
        source: who says so: a paper's section, a data sheet, `hpcai500 micro`.
        nodes: how many.
        accelerators_per_node: in each (on CPUs: ranks of a node).
        node: the single-node model (V2.0 section 6.2).
        system: the distributed model (V2.0 section 6.3).
        node_link: between ranks of a node, where the cost model needs it.
        network: between nodes.
        watts_per_node: mean power under training, where it is known.
        points: workloads that were published for it.
    """

    name: str
    source: str
    nodes: Annotated[int, Field(ge=1)]
    accelerators_per_node: Annotated[int, Field(ge=1)]
    node: Level | None = None
    system: Level | None = None
    node_link: Link | None = None
    network: Link | None = None
    watts_per_node: Annotated[float, Field(gt=0)] | None = None
    points: tuple[PaperPoint, ...] = ()
