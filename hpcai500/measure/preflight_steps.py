"""The checks of `hpcai500 doctor` that measure, one after the other: each has one verdict on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.hosts import is_first_of_host
from hpcai500.layers import RECIPE_TYPES, Recipe
from hpcai500.machine import Machine
from hpcai500.measure import preflight
from hpcai500.measure.convolutions import FIX, Convolution, Setting, known_fault, wrong_gradients
from hpcai500.measure.host import capture_nodes
from hpcai500.measure.preflight import Answer, ask_everyone, ask_hosts, failures, listed, values
from hpcai500.measure.read_speed import Need, check_reading, choose, read
from hpcai500.methodology.nodes import node_differences
from hpcai500.system import checks
from hpcai500.system.checks import Check
from hpcai500.system.doctor import Subject, examine, free_bytes, host_memory_bytes, model_memory_check, space_check


@dataclass(frozen=True)
class Costs:
    """The cost of training the recipe's model.

    Attributes:
        sample_flops: operations of training on one sample.
        checkpoint_bytes: size of one checkpoint.
        weights: number of the model's.
        pixels: of that sample, where samples of the data may have another number; None if the recipe fixes it.
    """

    sample_flops: float
    checkpoint_bytes: int
    weights: int
    pixels: int | None = None


@dataclass(frozen=True)
class Stage:
    """The inputs of the checks on this rank.

    Attributes:
        device: returns the device of this rank; raises where it has none.
        costs: returns those of the recipe's model; called on rank 0 only.
        progress: called while a rank measures alone, so that it does not count as hung.
        data: folder of the data set; None if a run makes it.
        machine: its speeds are the expected ones; on rank 0 only.
    """

    world: Communicator
    recipe: Recipe
    device: Callable[[], torch.device]
    input_threads: int
    costs: Callable[[], Costs]
    convolutions: Callable[[], Sequence[Convolution]]
    progress: Callable[[], None]
    data: Path | None
    out: Path
    machine: Machine | None


class Steps:
    """The checks by name; all ranks call them together, in the order of `system.checks.MEASURED`.

    Raises (all checks):
        RunError: a rank is lost.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._world = stage, stage.world
        self._device: torch.device | None = None
        self._without_device: str | None = "devices were not checked"
        self._products: list[Answer[preflight.Product]] = []
        self._costs: Costs | str | None = None

    def check(self, name: str) -> Check:
        makers: dict[str, Callable[[], Check]] = {
            checks.RANKS: self._ranks,
            checks.VERSIONS: self._versions,
            checks.NODES: self._nodes,
            checks.CLOCKS: self._clocks,
            checks.DEVICES: self._devices,
            checks.GEMM: self._gemm,
            checks.CONVOLUTIONS: self._convolutions,
            checks.ALL_REDUCE: self._all_reduce,
            checks.READING: self._reading,
            checks.MODEL_MEMORY: self._model_memory,
            checks.DISK: self._disk,
            checks.POWER: self._power,
        }
        return makers[name]()

    def _ranks(self) -> Check:
        size, hosts = self._world.size, len(set(self._world.hosts))
        if size == 1:
            return Check(
                checks.RANKS, "pass", f"1 rank on host {self._world.hosts[0]}; start more with --procs N or a launcher"
            )
        return Check(checks.RANKS, "pass", f"{size} ranks on {hosts} host{'s'[: hosts - 1]}, by {self._world.library}")

    def _versions(self) -> Check:
        return preflight.check_versions(self._world.gather_objects(preflight.version_facts()), self._world.hosts)

    def _nodes(self) -> Check:
        if len(set(self._world.hosts)) == 1:
            return Check(checks.NODES, "pass", "one node")
        problems = ask_hosts(self._world, self._look)
        places = {"data": self._stage.data}
        nodes = capture_nodes(self._world, places, first_of_host=is_first_of_host(self._world.rank, self._world.hosts))
        # Only rank 0 has all descriptions.
        return preflight.check_nodes(problems, self._world.broadcast_object(node_differences(nodes)))

    def _look(self) -> Sequence[Check]:
        """Checks of this rank's host without measurements."""
        recipe, data = self._stage.recipe, self._stage.data
        arguments = [recipe.benchmark, *(["--data", str(data)] if data else [])]
        found = examine(Subject(recipe, data, self._stage.out, arguments))
        return [check for check in found if check.name in preflight.LOOKED_AT]

    def _clocks(self) -> Check:
        walls, alignment = preflight.measure_clocks(self._world)
        return preflight.check_clocks(walls, alignment.errors_seconds, self._world.hosts)

    def _devices(self) -> Check:
        def ask() -> preflight.Device:
            self._device = self._stage.device()
            return preflight.ask_device(self._device)

        check = preflight.check_devices(ask_everyone(self._world, ask))
        self._without_device = None if check.status != "fail" else f"first fix what `{checks.DEVICES}` reports"
        return check

    def _gemm(self) -> Check:
        if self._device is None or self._without_device:
            return Check(checks.GEMM, "skip", f"not measured: {self._without_device}")
        device, precision = self._device, self._stage.recipe.accelerator.precision
        self._world.barrier()
        self._products = ask_everyone(
            self._world, lambda: preflight.measure_product(device, precision, preflight.SIDES[device.type])
        )
        expected = preflight.expected_flops(self._stage.machine, precision) if self._stage.machine else None
        return preflight.check_products(self._products, precision, expected, on_cpu=device.type == "cpu")

    def _convolutions(self) -> Check:
        if self._device is None or self._without_device:
            return Check(checks.CONVOLUTIONS, "skip", f"not compared: {self._without_device}")
        setting = Setting.of(self._stage.recipe, self._device)

        def compare() -> tuple[int, list[str]]:
            shapes = self._stage.convolutions()
            if wrong := wrong_gradients(shapes, setting, self._stage.progress):
                return len(shapes), wrong
            # A write out of bounds does not make gradients wrong each time, so known faults count too.
            fault = known_fault(shapes, setting)
            return len(shapes), [fault] if fault else []

        answers = ask_hosts(self._world, compare)
        if failed := failures(checks.CONVOLUTIONS, answers, "could not compare gradients", "see its output above"):
            return failed
        found = [(answer.host, *value) for answer, value in values(answers)]
        wrong = [f"{sentence} on host {host}" for host, _, sentences in found for sentence in sentences]
        if wrong:
            return Check(checks.CONVOLUTIONS, "fail", f"{setting.words}: {listed(wrong)}", FIX)
        return Check(checks.CONVOLUTIONS, "pass", f"gradients of {found[0][1]} shapes are right in {setting.words}")

    def _all_reduce(self) -> Check:
        if self._world.size == 1:
            return Check(
                checks.ALL_REDUCE, "skip", "one rank has nothing to sum; start more with --procs N or a launcher"
            )
        if self._device is None or self._without_device:
            return Check(checks.ALL_REDUCE, "skip", f"not measured: {self._without_device}")
        exchange = preflight.measure_exchange(self._world, self._device)
        link = preflight.expected_link(self._stage.machine, len(set(self._world.hosts)))
        return preflight.check_exchange(exchange, self._world.hosts, link)

    def _reading(self) -> Check:
        data, recipe = self._stage.data, self._stage.recipe
        if data is None:
            return Check(checks.READING, "skip", f"{recipe.problem.dataset}: hpcai500 makes it when the run starts")
        if recipe.benchmark not in RECIPE_TYPES:
            fix = f"hpcai500 data check {recipe.benchmark} {data}"
            return Check(checks.READING, "skip", f"only the plug-in can read its data: {fix}")
        costs = self._model_costs()
        samples = ask_everyone(self._world, lambda: choose(recipe, data, self._world.rank))
        mine = samples[self._world.rank].value
        self._world.barrier()
        readings = [
            Answer(found.rank, found.host, found.value, chosen.error or found.error, chosen.fix or found.fix)
            for chosen, found in zip(
                samples,
                ask_everyone(self._world, lambda: read(mine, self._stage.input_threads) if mine else None),
                strict=True,
            )
        ]
        flops = math.fsum(product.flops for _, product in values(self._products)) or None
        sample_flops = None if isinstance(costs, str) or mine is None else _sample_flops(costs, mine.pixels)
        need = Need(recipe.benchmark, data, flops, sample_flops)
        return check_reading(readings, need)

    def _model_memory(self) -> Check:
        costs, hosts = self._model_costs(), self._world.hosts
        if isinstance(costs, str):
            return Check(checks.MODEL_MEMORY, "skip", f"the model cannot be built: {costs}")

        def ask() -> Check:
            ranks = hosts.count(hosts[self._world.rank])
            return model_memory_check(self._stage.recipe, costs.weights, ranks, len(hosts), host_memory_bytes())

        answers = ask_hosts(self._world, ask)
        if failed := failures(checks.MODEL_MEMORY, answers, "could not look at its memory", "see its output above"):
            return failed
        found = [check for _, check in values(answers)]
        return next((check for check in found if check.status == "fail"), found[0])

    def _disk(self) -> Check:
        costs = self._model_costs()
        if isinstance(costs, str):
            return Check(checks.DISK, "skip", f"the model cannot be built: {costs}")
        out = self._stage.out
        # Rank 0 writes the record.
        free: int = self._world.broadcast_object(free_bytes(out) if self._world.rank == 0 else 0)
        return space_check(out, free, costs.checkpoint_bytes)

    def _power(self) -> Check:
        on_gpu = self._stage.recipe.accelerator.device != "cpu"
        return preflight.check_sources(ask_hosts(self._world, lambda: preflight.look_for_sources(on_gpu=on_gpu)))

    def _model_costs(self) -> Costs | str:
        """The costs, on all ranks, or why they are unknown."""
        if self._costs is None:
            answer = ask_everyone(self._world, lambda: self._stage.costs() if self._world.rank == 0 else None)[0]
            self._costs = answer.value or "; ".join(filter(None, (answer.error, answer.fix))) or "unknown"
        return self._costs


def _sample_flops(costs: Costs, pixels: int | None) -> float:
    """Operations of training on a sample of `pixels`: convolutions cost the same for each pixel."""
    return costs.sample_flops * (pixels / costs.pixels if pixels and costs.pixels else 1.0)
