"""A machine as the cost model takes it: its links, and how fast training is on it, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from hpcai500.editions import benchmark_rules
from hpcai500.errors import UsageError
from hpcai500.layers import Recipe
from hpcai500.machine import Level, Link, Machine
from hpcai500.methodology.cost.facts import StepFacts
from hpcai500.methodology.cost.links import Hockney, Network
from hpcai500.methodology.cost.rates import Span, achieved_span, ceiling_of, names_of
from hpcai500.results.show import scaled

Value = TypeVar("Value")

# Where a machine's file has a bandwidth and no latency: TCP over Ethernet, and links between accelerators of a node.
_NETWORK_LATENCY, _NODE_LATENCY = 30e-6, 5e-6
# Where it has neither.
_FREE = Hockney(0.0, 1e30)


@dataclass(frozen=True)
class Known(Generic[Value]):
    """A value, and in words what it rests on."""

    value: Value
    sentence: str


def network_of(machine: Machine) -> Known[Network]:
    """The links of `machine`.

    Raises:
        UsageError: nothing tells how fast its nodes talk to each other.
    """
    between = _link(machine.network, machine.system, _NETWORK_LATENCY)
    if between is None:
        raise UsageError(
            f"{machine.name}: how fast its nodes talk is not known: add to its file a table [network] with "
            "latency_seconds and bytes_per_second, or measure all of it on two nodes: srun -N 2 hpcai500 micro -o "
            "micro.json"
        )
    within = _link(machine.node_link, machine.node, _NODE_LATENCY)
    words = f"a node sends {_in_words(between)}"
    if machine.accelerators_per_node > 1:
        words += f", a rank within its node {_in_words(within)}" if within else ", links within a node cost nothing"
    guessed = machine.network is None or (within and machine.node_link is None and machine.accelerators_per_node > 1)
    return Known(Network(within or _FREE, between), words + (" (latency assumed)" if guessed else ""))


def rate_of(machine: Machine, recipe: Recipe, facts: StepFacts) -> Known[Span]:
    """FLOPS that one accelerator reaches in training without communication, by the analytic count of operations.

    Of what was published for this very workload on one node, else of the data sheet's peak, else of measured ceilings.

    Raises:
        UsageError: nothing is known of the recipe's precision.
    """
    precision = recipe.accelerator.precision
    return _published(machine, recipe, facts) or _from_ceilings(machine, precision)


def _published(machine: Machine, recipe: Recipe, facts: StepFacts) -> Known[Span] | None:
    names = names_of(recipe.accelerator.precision)
    for point in machine.points:
        if point.model == "node" and point.benchmark == recipe.benchmark and point.precision in names:
            # The papers count operations by constants of their own.
            constant = benchmark_rules(recipe.edition, recipe.benchmark)["paper_flops_per_sample"]
            samples = point.flops / constant / point.accelerators
            words = f"{samples:.4g} samples/s an accelerator, as published ({point.source})"
            return Known(Span.exactly(samples * facts.training_flops), words)
    return None


def _from_ceilings(machine: Machine, precision: str) -> Known[Span]:
    level = machine.node or machine.system
    for kind, ceilings in (("peak", level.peak_flops), ("ceiling", level.ceilings)) if level else ():
        if found := ceiling_of(ceilings, precision):
            assert level
            name, flops = found
            span = achieved_span(flops / level.accelerators, precision)
            share = span.times(level.accelerators / flops)
            words = (
                f"training reaches {share.low:.0%} to {share.high:.0%} of the {kind} {name} "
                f"({scaled(flops / level.accelerators, 'FLOPS')} an accelerator), as published trainings did"
            )
            return Known(span, words)
    raise UsageError(
        f"{machine.name}: no FLOPS of precision {precision} in it (node.peak_flops or node.ceilings): choose another "
        "one with --set accelerator.precision=…, or measure it: hpcai500 micro -o micro.json"
    )


def _in_words(link: Hockney) -> str:
    return f"{scaled(link.bytes_per_second, 'B/s')} after {link.latency_seconds * 1e6:.3g} us"


def _link(link: Link | None, level: Level | None, latency: float) -> Hockney | None:
    if link:
        return Hockney(link.latency_seconds, link.bytes_per_second)
    if level and level.bound:
        return Hockney(latency, level.bandwidths[level.bound])
    return None
