"""Predicts the time of a training step on a machine that may not exist, and how far it scales (docs/cost-model.md).

Links (latency and bandwidth) give the costs of all-reduces; buckets and a backward pass give the exposed part of them;
both give the time of a step, the weak-scaling curve, and its limits, called walls. Times are in seconds, sizes in
bytes, bandwidths in bytes a second.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.methodology.roofline import BYTES_A_VALUE, Compression, arithmetic_of, direct_pass
from hpcai500.methodology.statistics import quartiles

# ----------------------------------------------------------------------------------------------------
# Links: how long a message takes, and which ranks share one.


# A full Ethernet frame has 1514 bytes, of which 1448 are data under TCP and IPv4 with time stamps.
TCP_SHARE = 1448 / 1514


@dataclass(frozen=True)
class Hockney:
    """A message of m bytes takes latency + m / bandwidth (Hockney 1994, "The communication challenge for MPP").

    The latency is one way, of an empty message; the bandwidth is one way, while the other way is in use too.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_seconds) and self.latency_seconds >= 0 and self.bytes_per_second > 0):
            raise UsageError(
                f"link: expected a latency of 0 s or more and a positive bandwidth, got {self.latency_seconds} s and "
                f"{self.bytes_per_second} bytes/s"
            )

    def seconds(self, message_bytes: float) -> float:
        return self.latency_seconds + message_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Network:
    """The two kinds of links of a cluster.

    Attributes:
        within: between two ranks of a node; each rank has its own.
        between: from a node to all others; its ranks share it.
    """

    within: Hockney
    between: Hockney


@dataclass(frozen=True)
class Layout:
    """Nodes with equally many ranks each, numbered node by node."""

    nodes: int
    per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_node < 1:
            raise UsageError(f"layout: expected one node and one rank or more, got {self.nodes} x {self.per_node}")

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


# ----------------------------------------------------------------------------------------------------
# Seconds of one all-reduce, by topology and algorithm.
#
# n ranks on N nodes of p; b bytes; a and w are latency and bandwidth of a node's network link, a' and w' those of a
# link within a node. The additions themselves cost no time. Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization
# of collective communication operations in MPICH" (ring, butterfly, reduce, broadcast); Patarasuk and Yuan 2009 (ring);
# Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (double
# binary tree).


# Bytes of an all-reduce -> its seconds.
AllReduce = Callable[[float], float]

TOPOLOGIES = ("flat", "hierarchical", "torus", "parameter-server")
ALGORITHMS = ("ring", "double-binary-tree", "butterfly", "hierarchical-ring")


def all_reduce(
    topology: str,
    layout: Layout,
    network: Network,
    *,
    algorithm: str = "ring",
    columns: int = 0,
    compression: Compression = "none",
) -> AllReduce:
    """The cost of an all-reduce under `communication.topology` and `communication.algorithm`; 0 for one rank.

    Args:
        topology: one of `TOPOLOGIES`. Except in `flat`, all-reduces between nodes are rings, as in ours over Gloo.
        layout: the ranks.
        network: their links.
        algorithm: for `flat`, one of `ALGORITHMS`; `default` takes the faster of ring and double binary tree, as NCCL
            does by its own model.
        columns: ranks in a row of the torus; 0 for those of a node.
        compression: in `int8`, which no library can sum, pieces are sent directly to the ranks that sum them, and the
            sums return around a ring, under any `algorithm`.

    Raises:
        UsageError: there is no such topology or algorithm, or the ranks do not fill the rows.
    """
    if layout.ranks == 1:
        return lambda size: 0.0
    is_direct = compression == "int8"
    match topology:
        case "flat":
            return (lambda size: direct(layout, network, size)) if is_direct else _flat(layout, network, algorithm)
        case "hierarchical":
            # A leader is alone on its node, and within a node both ways send as much.
            return lambda size: hierarchical(layout, network, size)
        case "torus":
            columns = columns or layout.per_node
            if layout.ranks % columns:
                raise UsageError(f"torus: {layout.ranks} ranks do not fill rows of {columns}")
            return lambda size: torus(layout, network, columns, size, is_direct=is_direct)
        case "parameter-server":
            return lambda size: parameter_server(layout, network, size, is_direct=is_direct)
    raise UsageError(f"topology: expected one of {', '.join(TOPOLOGIES)}, got {topology!r}")


def _flat(layout: Layout, network: Network, algorithm: str) -> AllReduce:
    match algorithm:
        case "ring":
            return lambda size: ring(layout, network, size)
        case "double-binary-tree":
            return lambda size: double_binary_tree(layout, network, size)
        case "butterfly":
            return lambda size: butterfly(layout, network, size)
        case "hierarchical-ring":
            return lambda size: torus(layout, network, layout.per_node, size)
        case "default":
            return lambda size: min(ring(layout, network, size), double_binary_tree(layout, network, size))
    raise UsageError(f"algorithm: expected default or one of {', '.join(ALGORITHMS)}, got {algorithm!r}")


def ring(layout: Layout, network: Network, size: float) -> float:
    """2 (n - 1) steps of b / n each, all ranks at once; the slowest link sets the pace.

    2 (n - 1) max(a + b / (n w), a' + b / (n w')). A ring in rank order crosses each node's link once each way.
    """
    return _ring_steps(2, layout.ranks, _links(layout, network), size)


def direct(layout: Layout, network: Network, size: float) -> float:
    """A sum of int8: a piece of b / n from each rank to each other, then a ring pass of the sums.

    max((n - p) a + p b (N - 1) / (N w), (p - 1) (a' + b / (n w'))) + (n - 1) max(a + b / (n w), a' + b / (n w')).
    """
    return _direct_pass(layout, network, size) + _ring_steps(1, layout.ranks, _links(layout, network), size)


def double_binary_tree(layout: Layout, network: Network, size: float) -> float:
    """A chain in each node and two binary trees over the nodes, each with half of the buffer, pipelined (NCCL 2.4).

    2 (p - 1) a' + 2 ceil(log2 N) a + max(k b / w, b / w'). An edge of a tree carries b / 2 each way. With two nodes,
    each has one edge in each tree: k = 1. With more, an inner node of one tree has three edges there and is a leaf of
    the other: k = 2. Within one node it is a ring, as in NCCL.
    """
    if layout.nodes == 1:
        return ring(layout, network, size)
    edges = 1 if layout.nodes == 2 else 2
    latency = 2 * (layout.per_node - 1) * network.within.latency_seconds
    latency += 2 * math.ceil(math.log2(layout.nodes)) * network.between.latency_seconds
    busiest = edges * size / network.between.bytes_per_second
    return latency + (max(busiest, size / network.within.bytes_per_second) if layout.per_node > 1 else busiest)


def butterfly(layout: Layout, network: Network, size: float) -> float:
    """Recursive doubling: ceil(log2 p) exchanges of b within nodes, ceil(log2 N) between, where p ranks share a link.

    ceil(log2 p) (a' + b / w') + ceil(log2 N) (a + p b / w).
    """
    near = math.ceil(math.log2(layout.per_node)) * network.within.seconds(size)
    return near + math.ceil(math.log2(layout.nodes)) * network.between.seconds(layout.per_node * size)


def hierarchical(layout: Layout, network: Network, size: float) -> float:
    """Reduce in each node, a ring over the N first ranks, broadcast in each node.

    Reduce: 2 (p - 1) (a' + b / (p w')), a reduce-scatter and a gather (Rabenseifner). Ring: 2 (N - 1) (a + b / (N w)).
    Broadcast: ceil(log2 p) (a' + b / w'), a binomial tree.
    """
    near = _ring_steps(2, layout.per_node, (network.within,), size) + _broadcast(layout.per_node, network.within, size)
    return near + _ring_steps(2, layout.nodes, (network.between,), size)


def torus(layout: Layout, network: Network, columns: int, size: float, *, is_direct: bool = False) -> float:
    """Reduce-scatter and all-gather along rows of c, and c rings along columns of r ranks with b / c each.

    If a row is within a node: 2 (c - 1) (a' + b / (c w')) + 2 (r - 1) (a + s b / (c r w)), where s = min(c, p) columns
    share a link. A row over several nodes sends p (c - p) b / c over each link instead of using those within the node.
    For int8 (`is_direct`), columns with several ranks a node send p (b / c) (N - 1) / N directly in place of one way.
    """
    rows, per_node = layout.ranks // columns, layout.per_node
    if columns <= per_node:
        row = 2 * (columns - 1) * network.within.seconds(size / columns) if columns > 1 else 0.0
    else:
        far = per_node * (columns - per_node) * size / columns
        link = network.between
        row = 2 * ((columns - 1) * link.latency_seconds + far / link.bytes_per_second)
    if rows == 1:
        return row
    piece = size / columns / rows
    # All columns run at once. With more rows than nodes, some neighbours in a column share a node.
    step = network.within.seconds(piece) if rows > layout.nodes else 0.0
    if layout.nodes > 1:
        step = max(step, network.between.seconds(min(columns, per_node) * piece))
    way = (rows - 1) * step
    if is_direct and rows > layout.nodes > 1:
        sent = direct_pass(size / columns, layout.nodes, per_node).node
        there = (rows - 1) * network.between.latency_seconds + sent / network.between.bytes_per_second
        return row + max(there, way) + way
    return row + 2 * way


def parameter_server(layout: Layout, network: Network, size: float, *, is_direct: bool = False) -> float:
    """Reduce to one rank and broadcast from it; the link of its node is the bottleneck.

    2 (n - 1) (a + b / (n w)) + ceil(log2 n) (a + b / w); a' and w' on one node. In int8 a reduce is that of `direct`.
    """
    links = _links(layout, network)
    broadcast = max(_broadcast(layout.ranks, link, size) for link in links)
    reduce = direct(layout, network, size) if is_direct else _ring_steps(2, layout.ranks, links, size)
    return reduce + broadcast


def _direct_pass(layout: Layout, network: Network, size: float) -> float:
    """All ranks send b / n to each other rank, all at once; the ranks of a node share its link."""
    elsewhere = layout.ranks - layout.per_node
    sent = direct_pass(size, layout.nodes, layout.per_node).node
    far = elsewhere * network.between.latency_seconds + sent / network.between.bytes_per_second
    return max(far, (layout.per_node - 1) * network.within.seconds(size / layout.ranks))


def _links(layout: Layout, network: Network) -> tuple[Hockney, ...]:
    """The kinds of links that neighbours in rank order use."""
    within = (network.within,) if layout.per_node > 1 else ()
    between = (network.between,) if layout.nodes > 1 else ()
    return within + between


def _ring_steps(passes: int, members: int, links: tuple[Hockney, ...], size: float) -> float:
    if members == 1:
        return 0.0
    return passes * (members - 1) * max(link.seconds(size / members) for link in links)


def _broadcast(members: int, link: Hockney, size: float) -> float:
    return math.ceil(math.log2(members)) * link.seconds(size)


# ----------------------------------------------------------------------------------------------------
# Buckets: which gradients travel together, when they are ready, and how much of their sums is exposed.


# The size that `engine.warm_up` prefers among equally fast ones, for a recipe that does not fix it.
USUAL_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Gradients:
    """Gradients of one parameter, or of a bucket.

    Attributes:
        size_bytes: in fp32.
        ready: share of the backward pass after which all of them are computed, 0 to 1.
        parameters: number of tensors.
    """

    size_bytes: float
    ready: float
    parameters: int = 1


# Gradients that a bucket on a CUDA device may have, whatever its size, with CUDA 12.1 and driver 530 or later
# (docs/communication.md, "Buckets"); with older ones 192. On CPUs there is no limit.
MOST_TENSORS: Mapping[str, int | None] = {"cpu": None, "cuda": 1600}


def fused(sizes_bytes: Iterable[float], bucket_bytes: float, most_tensors: int | None = None) -> list[list[int]]:
    """Indices of the gradients of `sizes_bytes`, given in the order of sending, that form each bucket.

    A bucket takes as many of the next gradients as fit, at most `most_tensors`; one that is larger than `bucket_bytes`
    has a bucket of its own. `comm.reducer` cuts its buckets with this.
    """
    groups: list[list[int]] = []
    room = 0.0
    for index, size in enumerate(sizes_bytes):
        if not groups or size > room or len(groups[-1]) == most_tensors:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(index)
        room -= size
    return groups


def in_buckets(gradients: Sequence[Gradients], bucket_bytes: float, most_tensors: int | None = None) -> list[Gradients]:
    """Fuse `gradients`, given in the order of sending. A bucket is ready when the last of its gradients is."""
    groups = fused((one.size_bytes for one in gradients), bucket_bytes, most_tensors)
    buckets = [[gradients[index] for index in group] for group in groups]
    return [
        Gradients(
            sum(one.size_bytes for one in bucket),
            max(one.ready for one in bucket),
            sum(one.parameters for one in bucket),
        )
        for bucket in buckets
    ]


def exposed_seconds(ready_seconds: Iterable[float], sending_seconds: Iterable[float], backward_seconds: float) -> float:
    """The time of the sums after the end of the backward pass.

    Buckets are sent strictly in order, each when it is ready and the one before it has been summed (`comm.reducer`):

        end(i) = max(ready(i), end(i - 1)) + sending(i)
        exposed = max(0, end(last) - backward)
    """
    end = 0.0
    for ready, sending in zip(ready_seconds, sending_seconds, strict=True):
        end = max(ready, end) + sending
    return max(0.0, end - backward_seconds)


# ----------------------------------------------------------------------------------------------------
# Jitter: what ranks lose by waiting for the slowest of them in each step.


# Blom 1958, "Statistical estimates and transformed beta-variables".
_BLOM = 0.375


def expected_excess(ranks: int) -> float:
    """By how many standard deviations the slowest of `ranks` is expected to exceed the mean; 0 for one.

    The expected maximum of n independent normal values, by Blom's approximation: the quantile (n - 0.375) / (n + 0.25).
    It is within 1 % of the exact value from n = 2 to millions. Ranks are assumed to be late independently of each other
    and in turns: the delay of a rank that is always slow belongs in the time of the step, not here.
    """
    if ranks < 2:
        return 0.0
    return NormalDist().inv_cdf((ranks - _BLOM) / (ranks + 1 - 2 * _BLOM))


# ----------------------------------------------------------------------------------------------------
# Measured steps, as the cost model takes them.


@dataclass(frozen=True)
class Phases:
    """One step on one rank, in seconds.

    Attributes:
        forward: everything up to the end of the last loss.
        backward: the last backward pass.
        wait: from there until all gradients are averaged.
        update: the optimizer.
    """

    forward: float
    backward: float
    wait: float
    update: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.wait + self.update


def summarised(ranks: Sequence[Sequence[Phases]]) -> dict[str, Any]:
    """Steps that all ranks began together, rank by rank, as plain JSON.

    `seconds` is the median over steps of the slowest rank's time, `low` and `high` its quartiles. `forward`,
    `backward`, `wait` and `update` are medians over steps of the ranks' mean, scaled to add up to `seconds`. `jitter`
    is the standard deviation of a step over ranks and steps, as IQR / 1.349, which outliers do not change.
    """
    rounds = list(zip(*ranks, strict=True))
    slowest = [max(one.seconds for one in step) for step in rounds]
    seconds = statistics.median(slowest)
    phases = {
        name: statistics.median(statistics.fmean(getattr(one, name) for one in step) for step in rounds)
        for name in ("forward", "backward", "wait", "update")
    }
    scale = seconds / sum(phases.values())
    low, high = quartiles(slowest)
    all_low, all_high = quartiles([one.seconds for step in rounds for one in step])
    return {
        "seconds": seconds,
        "low": low,
        "high": high,
        **{name: value * scale for name, value in phases.items()},
        # The interquartile range of a normal distribution is 1.349 standard deviations.
        "jitter": (all_high - all_low) / 1.349,
    }


# ----------------------------------------------------------------------------------------------------
# The speed of training on a machine of which only the ceilings are known.


# Lowest and highest share of an accelerator's peak in published trainings of these two workloads, by the analytic count
# of operations (24.3 and 1070 GFLOP a sample). docs/cost-model.md lists them.
ACHIEVED = {"fp32": (0.41, 0.57), "tf32": (0.146, 0.233), "mixed": (0.139, 0.233)}


@dataclass(frozen=True)
class Span:
    """A number that is not known exactly: two bounds, and an estimate between them."""

    low: float
    expected: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.expected <= self.high

    @classmethod
    def exactly(cls, value: float) -> Span:
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.expected * factor, self.high * factor)

    def document(self) -> dict[str, float]:
        return {"low": self.low, "expected": self.expected, "high": self.high}


def names_of(precision: str) -> tuple[str, ...]:
    """Names that a machine's file may use for the precision of a recipe, the closest first."""
    name = arithmetic_of(precision)
    return (name, "mixed") if name in ("bf16", "fp16") else (name,)


def ceiling_of(ceilings: Mapping[str, float], precision: str) -> tuple[str, float] | None:
    """The highest of `ceilings` for `precision`, with its name, such as `fp32`, `GEMM mixed`, `conv bf16`."""
    for name in names_of(precision):
        fits = {key: value for key, value in ceilings.items() if key.split()[-1] == name}
        if fits:
            return max(fits.items(), key=lambda item: item[1])
    return None


def achieved_span(ceiling: float, precision: str) -> Span:
    """FLOPS that training may reach under `ceiling`: shares by `ACHIEVED`, the estimate being their geometric mean."""
    low, high = ACHIEVED[names_of(precision)[-1]]
    return Span(low * ceiling, math.sqrt(low * high) * ceiling, high * ceiling)


# ----------------------------------------------------------------------------------------------------
# The time of one training step on many ranks, and its efficiency.


# The last sum also adds up which ranks used which parameter, and a few numbers of the engine, in fp64.
_STATUS_BYTES, _STATUS_NUMBERS = 8, 8


@dataclass(frozen=True)
class Work:
    """What a rank does in a step by itself.

    Attributes:
        forward_seconds: everything up to the last backward pass.
        backward_seconds: the last backward pass, under which sums may run.
        update_seconds: the optimizer.
        buckets: in the order of sending.
        jitter_seconds: standard deviation of the step's time from step to step, independent on each rank.
    """

    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    buckets: tuple[Gradients, ...]
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        times = (self.forward_seconds, self.backward_seconds, self.update_seconds, self.jitter_seconds)
        if any(not math.isfinite(time) or time < 0 for time in times) or self.seconds == 0:
            raise UsageError(f"cost model: expected times of a step of 0 s or more, and some work, got {times}")

    @property
    def seconds(self) -> float:
        """The step without any communication."""
        return self.forward_seconds + self.backward_seconds + self.update_seconds

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradients in fp32."""
        return sum(bucket.size_bytes for bucket in self.buckets)


@dataclass(frozen=True)
class Exchange:
    """How gradients are summed.

    Attributes:
        all_reduce: of gradients, as `all_reduce` returns it.
        compression: as in a recipe.
        packing_bytes_per_second: memory bandwidth of packing and unpacking; None leaves their time out.
        overlap: whether sums run under the backward pass; otherwise they begin when it has ended.
        overhead_seconds: a constant time added to each step before the last sum, never hidden.
        processor_seconds_per_byte: by how much summing a byte of gradients lengthens a backward pass on the same cores;
            0 if a device computes.
        status_all_reduce: of the numbers that end an update, which the library sums over all ranks in any topology and
            compression; None is `all_reduce`.
    """

    all_reduce: AllReduce
    compression: Compression = "none"
    packing_bytes_per_second: float | None = None
    overlap: bool = True
    overhead_seconds: float = 0.0
    processor_seconds_per_byte: float = 0.0
    status_all_reduce: AllReduce | None = None

    def sending_seconds(self, size_bytes: float) -> float:
        """Pack, sum and unpack gradients of `size_bytes` in fp32.

        Packing reads fp32 and writes what travels, and unpacking does the reverse: 2 (1 + c) b bytes of memory, with c
        the share of b that travels. Without compression averages stay where they are, so it is 2 b.
        """
        share = BYTES_A_VALUE[self.compression] / BYTES_A_VALUE["none"]
        packed = self.all_reduce(share * size_bytes)
        if self.packing_bytes_per_second is None:
            return packed
        moved = 2 * size_bytes if self.compression == "none" else 2 * (1 + share) * size_bytes
        return packed + moved / self.packing_bytes_per_second

    def status_seconds(self, buckets: Sequence[Gradients]) -> float:
        """The small all-reduce that ends each update."""
        summing = self.status_all_reduce or self.all_reduce
        return summing(_STATUS_BYTES * (_STATUS_NUMBERS + sum(bucket.parameters for bucket in buckets)))


@dataclass(frozen=True)
class StepCost:
    """A predicted step; all in seconds.

    Attributes:
        alone_seconds: the work of one rank.
        communication_seconds: all sums, hidden or not.
        exposed_seconds: what the sums add to the step.
        jitter_seconds: waiting for the slowest rank.
        overhead_seconds: as `Exchange.overhead_seconds`; 0 for one rank.
    """

    alone_seconds: float
    communication_seconds: float
    exposed_seconds: float
    jitter_seconds: float
    overhead_seconds: float

    @property
    def seconds(self) -> float:
        return self.alone_seconds + self.exposed_seconds + self.jitter_seconds + self.overhead_seconds

    @property
    def efficiency(self) -> float:
        """Efficiency against one rank without communication, 0 to 1: weak scaling, as in V2.0 Fig. 12."""
        return self.alone_seconds / self.seconds


def predict_step(work: Work, exchange: Exchange, ranks: int) -> StepCost:
    """One step of `ranks` ranks, each doing `work`.

        step = forward + backward + exposed + update + jitter E(max of n) + overhead

    where `exposed` is that of `exposed_seconds`, with buckets ready at `ready` x backward. If sums take processor time
    c a byte, the share h of them that runs under the backward pass lengthens it by c h b, which counts as exposed.
    """
    if ranks == 1:
        return StepCost(work.seconds, 0.0, 0.0, 0.0, 0.0)
    sending = [exchange.sending_seconds(bucket.size_bytes) for bucket in work.buckets]
    sending.append(exchange.status_seconds(work.buckets))
    total = math.fsum(sending)
    exposed = _exposed(work, exchange, sending, work.backward_seconds)
    if exchange.processor_seconds_per_byte and total:
        hidden = max(0.0, 1 - exposed / total)
        taken = exchange.processor_seconds_per_byte * work.gradient_bytes * hidden
        exposed = taken + _exposed(work, exchange, sending, work.backward_seconds + taken)
    return StepCost(
        alone_seconds=work.seconds,
        communication_seconds=total,
        exposed_seconds=exposed,
        jitter_seconds=work.jitter_seconds * expected_excess(ranks),
        overhead_seconds=exchange.overhead_seconds,
    )


def _exposed(work: Work, exchange: Exchange, sending: Sequence[float], backward: float) -> float:
    ready = [bucket.ready * backward if exchange.overlap else backward for bucket in work.buckets]
    return exposed_seconds([*ready, backward], sending, backward)


# ----------------------------------------------------------------------------------------------------
# The facts about a step of a recipe that `hpcai500.measure.step_command` prints as JSON.


@dataclass(frozen=True)
class StepFacts:
    """One step of one rank.

    Attributes:
        samples: of one step, over all accumulation.
        forward_flops: of a sample.
        training_flops: of a sample, forward and backward.
        gradients: in the order of sending.
        accumulation_steps: backward passes; sums run under the last one only.
    """

    samples: int
    forward_flops: float
    training_flops: float
    gradients: tuple[Gradients, ...]
    accumulation_steps: int = 1

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> StepFacts:
        passes = document["accumulation_steps"]
        return cls(
            document["batch_size"] * passes,
            document["forward_flops"],
            document["training_flops"],
            tuple(Gradients(**one) for one in document["gradients"]),
            passes,
        )

    @property
    def flops(self) -> float:
        return self.samples * self.training_flops

    def buckets(self, bucket_bytes: float, most_tensors: int | None = None) -> tuple[Gradients, ...]:
        return tuple(in_buckets(self.gradients, bucket_bytes, most_tensors))

    def work(
        self, seconds: float, bucket_bytes: float, jitter_seconds: float = 0.0, *, most_tensors: int | None = None
    ) -> Work:
        """A step of `seconds` without communication, divided into forward and backward by their FLOPs."""
        backward = seconds * (1 - self.forward_flops / self.training_flops) / self.accumulation_steps
        return Work(seconds - backward, backward, 0.0, self.buckets(bucket_bytes, most_tensors), jitter_seconds)

    def timed_work(self, alone: Mapping[str, Any], bucket_bytes: float) -> Work:
        """A step whose phases were measured: `alone` of the command's document.

        Its time is that of the slowest rank, so it includes waiting for others.
        """
        return Work(alone["forward"], alone["backward"], alone["update"] + alone["wait"], self.buckets(bucket_bytes))


# ----------------------------------------------------------------------------------------------------
# Weak scaling from one node to very many, and its limits, called walls.


# Below this efficiency, more than half of the machine is unused.
LEAST_EFFICIENCY = 0.5
# Walls are searched for up to here, whatever part of the curve is drawn.
FARTHEST_NODES = 1 << 20
_FREE = Hockney(0.0, 1e30)


@dataclass(frozen=True)
class Plan:
    """One benchmark on one kind of machine, of any size.

    `work` is that of each rank in each step. `topology`, `algorithm` and `columns` are as in `all_reduce`, and
    `compression`, `packing_bytes_per_second`, `overlap` and `overhead_seconds` as in `Exchange`; a step on one node has
    no overhead.
    """

    work: Work
    network: Network
    per_node: int
    topology: str = "flat"
    algorithm: str = "default"
    columns: int = 0
    compression: Compression = "none"
    packing_bytes_per_second: float | None = None
    overlap: bool = True
    overhead_seconds: float = 0.0

    def step(self, nodes: int) -> StepCost:
        layout = Layout(nodes, self.per_node)
        # Where ranks do not fill rows of the recipe's columns, a row of the torus is a node.
        columns = self.columns if self.columns and layout.ranks % self.columns == 0 else 0
        exchange = Exchange(
            all_reduce(
                self.topology,
                layout,
                self.network,
                algorithm=self.algorithm,
                columns=columns,
                compression=self.compression,
            ),
            self.compression,
            self.packing_bytes_per_second,
            self.overlap,
            overhead_seconds=self.overhead_seconds if nodes > 1 else 0.0,
            status_all_reduce=all_reduce("flat", layout, self.network, algorithm=self.algorithm),
        )
        return predict_step(self.work, exchange, layout.ranks)

    def efficiency(self, nodes: int) -> float:
        """Efficiency against one node, as in V2.0 Fig. 12; at most 1."""
        return min(1.0, self.step(1).seconds / self.step(nodes).seconds)


@dataclass(frozen=True)
class CurvePoint:
    """One size of the machine; `parallel_efficiency` is against one node."""

    nodes: int
    ranks: int
    step: StepCost
    parallel_efficiency: float
    samples_per_second: float
    flops: float


@dataclass(frozen=True)
class Limits:
    """What limits training itself.

    Attributes:
        batch: samples of a step on one rank, over all accumulation.
        training_samples: of an epoch; None if unknown.
        largest_batch: the largest global batch with which published recipes reached the target quality; None if
            unknown.
    """

    batch: int
    training_samples: int | None
    largest_batch: int | None


@dataclass(frozen=True)
class Wall:
    """A limit of scaling.

    Attributes:
        nodes: the smallest number beyond the limit.
        binds: the bottleneck: `network bandwidth`, `network latency`, `links in the node`, `jitter`, `overhead`,
            `batch size`, `steps per epoch`.
        sentence: the limit in words.
    """

    nodes: int
    binds: str
    sentence: str


def predicted_curve(plan: Plan, flops_per_sample: float, samples: int, most_nodes: int) -> list[CurvePoint]:
    """The curve at 1, 2, 4, … and `most_nodes` nodes; `samples` are those of one rank's step."""
    points = []
    for nodes in doubling(most_nodes):
        step, ranks = plan.step(nodes), nodes * plan.per_node
        rate = ranks * samples / step.seconds
        points.append(CurvePoint(nodes, ranks, step, plan.efficiency(nodes), rate, rate * flops_per_sample))
    return points


def doubling(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def walls(plan: Plan, limits: Limits) -> list[Wall]:
    """All walls, the nearest first; those of efficiency up to `FARTHEST_NODES`."""
    found = [*_efficiency_wall(plan), *_training_walls(plan, limits)]
    return sorted(found, key=lambda wall: wall.nodes)


def _efficiency_wall(plan: Plan) -> Iterator[Wall]:
    nodes = _first(lambda count: plan.efficiency(count) < LEAST_EFFICIENCY)
    if nodes is None:
        return
    bottleneck = _bottleneck(plan, nodes)
    step = plan.step(nodes)
    yield Wall(
        nodes,
        bottleneck,
        f"at {nodes} nodes efficiency falls below {LEAST_EFFICIENCY:g}: the bottleneck is {bottleneck} (a step of "
        f"{step.seconds:.3g} s has {step.exposed_seconds:.3g} s of exposed communication)",
    )


def _bottleneck(plan: Plan, nodes: int) -> str:
    """The cost without which a step on `nodes` nodes would be shortest."""
    near, far, work = plan.network.within, plan.network.between, plan.work
    without = {
        "network bandwidth": replace(plan, network=Network(near, Hockney(far.latency_seconds, _FREE.bytes_per_second))),
        "network latency": replace(plan, network=Network(near, Hockney(0.0, far.bytes_per_second))),
        "links in the node": replace(plan, network=Network(_FREE, far)),
        "jitter": replace(plan, work=replace(work, jitter_seconds=0.0)),
        "overhead": replace(plan, overhead_seconds=0.0),
    }
    seconds = {name: other.step(nodes).seconds for name, other in without.items()}
    return min(seconds, key=lambda name: seconds[name])


def _training_walls(plan: Plan, limits: Limits) -> Iterator[Wall]:
    batch = limits.batch * plan.per_node
    if limits.largest_batch is not None:
        nodes = limits.largest_batch // batch + 1
        yield Wall(
            nodes,
            "batch size",
            f"at {nodes} nodes a step has {nodes * batch} samples: more than the {limits.largest_batch} of the largest "
            "batch with which published recipes reach the target quality; a smaller batch a rank shortens its step",
        )
    if limits.training_samples is not None:
        nodes = limits.training_samples // batch + 1
        yield Wall(
            nodes,
            "steps per epoch",
            f"at {nodes} nodes a step has {nodes * batch} samples, and an epoch only {limits.training_samples}: there "
            "is less than one step in it",
        )


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest number of nodes for which `holds` is true; it is monotonic except where a tree gets deeper."""
    above = next((nodes for nodes in doubling(FARTHEST_NODES) if holds(nodes)), None)
    if above is None or above == 1:
        return above
    low = above // 2
    while above - low > 1:
        middle = math.floor((low + above) / 2)
        low, above = (low, middle) if holds(middle) else (middle, above)
    return above
