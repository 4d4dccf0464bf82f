"""The cost model against real steps on hosts whose links have a known speed (docs/cost-model.md)."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import pytest
import torch
from hosts import Site, shaping, why_not
from site_ranks import layout, run_ranks

from hpcai500.comm.communicator import Communicator
from hpcai500.engine.measured_steps import BlankSteps
from hpcai500.engine.ranks import Ranks
from hpcai500.hosts import find_placement
from hpcai500.measure.flops import count_flops
from hpcai500.measure.step_command import gradients_of
from hpcai500.measure.timing import median_interval
from hpcai500.methodology.cost import (
    TCP_SHARE,
    Exchange,
    Gradients,
    Hockney,
    Layout,
    Network,
    Phases,
    StepCost,
    StepFacts,
    all_reduce,
    predict_step,
    summarised,
)
from hpcai500.recipe import load_recipe
from hpcai500.workloads import model_of

pytestmark = pytest.mark.alone

HOSTS = ("h1", "h2", "h3", "h4")
CLASSES = 20
# 14 MB of gradients. At the slower rate sending takes longer than computing, at the faster one about as long.
RATES = (150, 400)
FREE = "10gbit"
BUCKET_BYTES = 2**20
RECIPE = (
    "workload.width=48",
    "hyperparameters.batch_size=16",
    f"communication.bucket_bytes={BUCKET_BYTES}",
    "os.threads=1",
)
ROUNDS = 11
# Relative error, beyond what the machine's neighbours explain: it has fewer cores than there are ranks.
WITHIN = 0.15


@dataclass
class Taken:
    """What one rank measured, a value a round: all by turns, so that a neighbour meets all alike."""

    alone: list[Phases] = field(default_factory=list)
    together: dict[int, list[Phases]] = field(default_factory=lambda: {rate: [] for rate in RATES})
    latency_seconds: dict[int, list[float]] = field(default_factory=lambda: {rate: [] for rate in RATES})
    free: list[Phases] = field(default_factory=list)


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[Site]:
    """Hosts h1 to h4 on one switch."""
    if reason := why_not():
        pytest.skip(reason)
    with Site(*HOSTS) as site:
        yield site


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_take_as_long_as_predicted(
    four_hosts: Site, ranks: int, measured: Callable[[str, float, str], None]
) -> None:
    taken = timed(four_hosts, ranks)
    for rate in RATES:
        costs, seconds = predicted(taken, ranks, rate), slowest([rank.together[rate] for rank in taken])
        ratio, noise = median_and_noise([cost.seconds / one for cost, one in zip(costs, seconds, strict=True)])
        exposed = statistics.median(cost.exposed_seconds / cost.seconds for cost in costs)
        measured(f"predicted / measured step of {ranks} ranks at {rate} Mbit/s", ratio, "times")
        measured("  half the confidence interval of that", noise, "times")
        measured("  exposed communication, of the step", exposed, "(predicted)")
        assert abs(ratio - 1) < WITHIN + noise


def test_one_rank_takes_as_long_as_its_work(four_hosts: Site, measured: Callable[[str, float, str], None]) -> None:
    """Each step is predicted from the one before it: what is left is the machine's noise."""
    (taken,) = timed(four_hosts, 1)
    works = [facts().timed_work(summarised([[one]]), BUCKET_BYTES) for one in taken.alone[::2]]
    costs = [predict_step(work, Exchange(lambda size: 1e9), 1) for work in works]
    ratio, noise = median_and_noise(
        [cost.seconds / one.seconds for cost, one in zip(costs, taken.alone[1::2], strict=True)]
    )
    measured("predicted / measured step of 1 rank", ratio, "times")
    measured("  half the confidence interval of that", noise, "times")
    assert abs(ratio - 1) < WITHIN + noise


def predicted(taken: list[Taken], ranks: int, rate: int) -> list[StepCost]:
    """Of each round: from the link's rate and latency, and what all ranks measured without it a moment before.

    The ranks share cores with their own sums. What those take of them shows where links are next to free: there, a step
    is longer than alone by nothing else.
    """
    latency = statistics.median(taken[0].latency_seconds[rate]) / (2 * (ranks - 1))
    link = Hockney(latency, TCP_SHARE * rate * 1e6 / 8)
    summing = all_reduce("flat", Layout(ranks, 1), Network(link, link))
    alone = [rank.alone for rank in taken]
    pairs = zip(slowest([rank.free for rank in taken]), slowest(alone), strict=True)
    longer = max(0.0, statistics.median(free - by_itself for free, by_itself in pairs))
    step = facts()
    works = [
        step.timed_work(summarised([[one] for one in together]), BUCKET_BYTES) for together in zip(*alone, strict=True)
    ]
    exchange = Exchange(summing, processor_seconds_per_byte=longer / works[0].gradient_bytes)
    return [predict_step(work, exchange, ranks) for work in works]


def slowest(ranks: list[list[Phases]]) -> list[float]:
    """Seconds of each step on the rank that took longest."""
    return [max(one.seconds for one in step) for step in zip(*ranks, strict=True)]


def median_and_noise(ratios: list[float]) -> tuple[float, float]:
    """The median of what rounds say, and half the 95 % confidence interval of it."""
    low, high = median_interval(ratios)
    return statistics.median(ratios), (high - low) / 2


def facts() -> StepFacts:
    """FLOPs and gradients of the recipe, counted."""
    recipe = load_recipe("ic/smoke", RECIPE)
    model, example = model_of(recipe, CLASSES)
    count = count_flops(model, *example)
    gradients = tuple(Gradients(**asdict(one)) for one in gradients_of(model.named_parameters(), count))
    return StepFacts(recipe.hyperparameters.batch_size, count.forward_flops, count.training_flops, gradients)


def timed(site: Site, ranks: int) -> list[Taken]:
    """What each rank measured, one rank a host."""
    hosts = HOSTS[:ranks]
    backend = "torch" if ranks > 1 else "local"
    settings = [*RECIPE, *layout(hosts), f"communication.backend={backend}"]
    return run_ranks(site, hosts, take_turns, settings, backend=backend, timeout=300)


def take_turns(communicator: Communicator, settings: list[str]) -> Taken:
    """On each rank; each shapes its own host's link."""
    torch.set_num_threads(1)
    ranks = Ranks(find_placement(os.environ), communicator, 120.0)
    steps = BlankSteps(load_recipe("ic/smoke", settings), ranks, torch.device("cpu"), 1, CLASSES)
    taken = Taken()
    shape(FREE)
    steps.prepare()
    for _ in range(ROUNDS if communicator.size > 1 else 2 * ROUNDS):
        taken.alone.append(steps.step(together=False))
        if communicator.size > 1:
            taken.free.append(steps.step(together=True))
            for rate in RATES:
                shape(f"{rate}mbit")
                taken.latency_seconds[rate].append(sum_seconds(communicator, 1))
                taken.together[rate].append(steps.step(together=True))
            shape(FREE)
    steps.close()
    ranks.close()
    return taken


def shape(rate: str) -> None:
    subprocess.run(["tc", *shaping(rate)], check=True)


def sum_seconds(communicator: Communicator, elements: int) -> float:
    """Of one all-reduce, the median of three."""
    tensor, found = torch.ones(elements), []
    for _ in range(3):
        communicator.barrier()
        start = time.perf_counter()
        communicator.all_reduce(tensor)
        found.append(time.perf_counter() - start)
    return statistics.median(found)
