"""A machine by its ceilings: from a data sheet, a paper or our own measurements, for models of what it can reach.

docs/roofline.md says what each number means and how a file is written. All rates are plain numbers: FLOPS, bytes a
second.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hpcai500.methodology.sent_bytes import Topology

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Level(_Table):
    """One roofline model: V2.0 equation 3 (a node) or 5 (the whole system).

    Attributes:
        accelerators: that the FLOPS of this model are for.
        peak_flops: by precision (`fp32`, `mixed`, ...): the data sheet's, of all accelerators together.
        ceilings: measured FLOPS of all accelerators together, by name (`GEMM mixed`, `CONV fp32`, ...).
        bandwidths: bytes a second through ONE link, by name: an accelerator's `NVLink` or `memory`, a node's
            `Ethernet`. All links of a name carry as much at the same time.
        bound: the one of `bandwidths` that gradients travel by; None where nothing travels.
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
        """The model of so many of the accelerators: each has its share of the FLOPS, and each link what it had."""
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
    """A workload's place in the model, as published.

    Attributes:
        name: for the figure.
        benchmark: `ic` or `ewa`.
        model: which of the models it belongs to.
        accelerators: that it ran on.
        precision: key of `peak_flops`.
        compression: type in which gradients travelled; `none` and another of one workload are joined by an arrow.
        topology: that summed the gradients, where it is known.
        flops: attained by all accelerators together.
        coi: FLOPs of all accelerators for each byte through one link, as it travelled.
        source: where it was published, or how it was derived.
    """

    name: str
    benchmark: str
    model: Literal["node", "system"]
    accelerators: Count
    precision: str
    compression: Literal["none", "fp16", "bf16", "int8"] = "none"
    topology: Topology | None = None
    flops: Rate
    coi: Rate
    source: str


class Machine(_Table):
    """What a machine file describes.

    Attributes:
        name: for titles.
        source: who says so: a paper's section, a data sheet, `hpcai500 micro`.
        nodes: how many.
        accelerators_per_node: in each (on CPUs: ranks of a node).
        node: the single-node model (V2.0 section 6.2).
        system: the distributed model (V2.0 section 6.3); None where there is one node.
        node_link: between ranks of a node, where the cost model needs it.
        network: between nodes.
        negotiation_seconds: that each step on several nodes takes longer, by benchmark, where the communication library
            has its ranks agree on what they sum.
        watts_per_node: mean power under training, where it is known.
        points: workloads that were published for it.
    """

    name: str
    source: str
    nodes: Count
    accelerators_per_node: Count
    watts_per_node: Rate | None = None
    node: Level | None = None
    system: Level | None = None
    node_link: Link | None = None
    network: Link | None = None
    negotiation_seconds: dict[str, Rate] = {}
    points: tuple[PaperPoint, ...] = ()
