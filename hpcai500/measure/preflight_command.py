"""`python -m hpcai500.measure.preflight_command`: one rank of what `hpcai500 doctor` measures.

Rank 0 writes each finding to --result as soon as it is known (`system.checks`). Whatever ends the ranks, the file has
the findings so far and the name of the check that did not end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.engine.measurement import let_threads_spin, measurement_parser, tell_end
from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.files import remove_scratch, scratch
from hpcai500.hosts import find_placement, is_first_of_host
from hpcai500.layers import RECIPE_TYPES, Recipe
from hpcai500.machine import Machine, load_machine
from hpcai500.measure.convolutions import FIX, Convolution, Setting, known_fault, wrong_gradients
from hpcai500.measure.host import capture_nodes
from hpcai500.measure.preflight import (
    SIDES,
    Answer,
    Device,
    Expected,
    Product,
    ask_device,
    ask_everyone,
    ask_hosts,
    expected_flops,
    expected_link,
    failures,
    judge_clocks,
    judge_devices,
    judge_exchange,
    judge_nodes,
    judge_products,
    judge_sources,
    judge_versions,
    listed,
    look_for_sources,
    measure_clocks,
    measure_exchange,
    measure_product,
    values,
    version_facts,
)
from hpcai500.measure.read_speed import Need, choose, judge_reading, read
from hpcai500.methodology.nodes import node_differences
from hpcai500.recipe import load_recipe
from hpcai500.stopping import ending_by_signals, signal_name
from hpcai500.streams import prepare_streams, say
from hpcai500.system.checks import (
    ALL_REDUCE,
    CHECK_SECONDS,
    CLOCKS,
    CONVOLUTIONS,
    DEVICES,
    DISK,
    GEMM,
    MEASURED,
    NODES,
    POWER,
    RANKS,
    READING,
    START_SECONDS,
    VERSIONS,
    Check,
    CheckLog,
)
from hpcai500.system.doctor import free_bytes, space_check

# ----------------------------------------------------------------------------------------------------
# The checks: all ranks make them together, one after the other.


@dataclass(frozen=True)
class Costs:
    """What training of the recipe's model costs.

    Attributes:
        sample_flops: operations of training on one sample.
        checkpoint_bytes: size of one checkpoint.
        pixels: of that sample, where samples of the data may have another number; None where the recipe fixes it.
    """

    sample_flops: float
    checkpoint_bytes: int
    pixels: int | None = None


@dataclass(frozen=True)
class Stage:
    """What the checks of this rank need.

    Attributes:
        device: returns the device of this rank; raises where it has none.
        costs: of the recipe's model; called on rank 0 only.
        progress: called while a rank measures alone, so that it does not count as hung.
        look: checks of this rank's host that measure nothing.
        data: folder of the data set; None where a run makes it.
        machine: what speeds are compared with; on rank 0 only.
    """

    world: Communicator
    recipe: Recipe
    device: Callable[[], torch.device]
    input_threads: int
    costs: Callable[[], Costs]
    convolutions: Callable[[], Sequence[Convolution]]
    progress: Callable[[], None]
    look: Callable[[], Sequence[Check]]
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
        self._without_device: str | None = "devices were not asked"
        self._products: list[Answer[Product]] = []
        self._costs: Costs | str | None = None

    def check(self, name: str) -> Check:
        makers: dict[str, Callable[[], Check]] = {
            RANKS: self._ranks,
            VERSIONS: self._versions,
            NODES: self._nodes,
            CLOCKS: self._clocks,
            DEVICES: self._devices,
            GEMM: self._gemm,
            CONVOLUTIONS: self._convolutions,
            ALL_REDUCE: self._all_reduce,
            READING: self._reading,
            DISK: self._disk,
            POWER: self._power,
        }
        return makers[name]()

    def _ranks(self) -> Check:
        size, hosts = self._world.size, len(set(self._world.hosts))
        if size == 1:
            return Check(RANKS, "pass", f"1 rank on host {self._world.hosts[0]}: --procs N or a launcher tries more")
        return Check(RANKS, "pass", f"{size} ranks on {hosts} host{'s'[: hosts - 1]}, by {self._world.library}")

    def _versions(self) -> Check:
        return judge_versions(self._world.gather_objects(version_facts()), self._world.hosts)

    def _nodes(self) -> Check:
        if len(set(self._world.hosts)) == 1:
            return Check(NODES, "pass", "one")
        lacking = ask_hosts(self._world, self._stage.look)
        places = {"data": self._stage.data}
        nodes = capture_nodes(self._world, places, first_of_host=is_first_of_host(self._world.rank, self._world.hosts))
        # Only rank 0 has all descriptions.
        return judge_nodes(lacking, self._world.broadcast_object(node_differences(nodes)))

    def _clocks(self) -> Check:
        walls, alignment = measure_clocks(self._world)
        return judge_clocks(walls, alignment.errors_seconds, self._world.hosts)

    def _devices(self) -> Check:
        def ask() -> Device:
            self._device = self._stage.device()
            return ask_device(self._device)

        check = judge_devices(ask_everyone(self._world, ask))
        self._without_device = None if check.status != "fail" else f"first mend what `{DEVICES}` says"
        return check

    def _gemm(self) -> Check:
        if self._device is None or self._without_device:
            return Check(GEMM, "skip", f"not measured: {self._without_device}")
        device, precision = self._device, self._stage.recipe.accelerator.precision
        self._world.barrier()
        self._products = ask_everyone(self._world, lambda: measure_product(device, precision, SIDES[device.type]))
        expected = expected_flops(self._stage.machine, precision) if self._stage.machine else None
        return judge_products(self._products, precision, expected, on_cpu=device.type == "cpu")

    def _convolutions(self) -> Check:
        if self._device is None or self._without_device:
            return Check(CONVOLUTIONS, "skip", f"not compared: {self._without_device}")
        setting = Setting.of(self._stage.recipe, self._device)

        def compare() -> tuple[int, list[str]]:
            shapes = self._stage.convolutions()
            if wrong := wrong_gradients(shapes, setting, self._stage.progress):
                return len(shapes), wrong
            # A write out of bounds does not make gradients wrong each time, so known faults count too.
            fault = known_fault(shapes, setting)
            return len(shapes), [fault] if fault else []

        answers = ask_hosts(self._world, compare)
        if failed := failures(CONVOLUTIONS, answers, "could not compare gradients", "see what it printed above"):
            return failed
        found = [(answer.host, *value) for answer, value in values(answers)]
        wrong = [f"{sentence} on host {host}" for host, _, sentences in found for sentence in sentences]
        if wrong:
            return Check(CONVOLUTIONS, "fail", f"{setting.words}: {listed(wrong)}", FIX)
        return Check(CONVOLUTIONS, "pass", f"gradients of {found[0][1]} shapes are right in {setting.words}")

    def _all_reduce(self) -> Check:
        if self._world.size == 1:
            return Check(ALL_REDUCE, "skip", "one rank sums with nobody: --procs N, or a launcher")
        if self._device is None or self._without_device:
            return Check(ALL_REDUCE, "skip", f"not measured: {self._without_device}")
        exchange = measure_exchange(self._world, self._device)
        link = expected_link(self._stage.machine, len(set(self._world.hosts)))
        by_sockets = not self._world.library.startswith("NCCL")
        return judge_exchange(exchange, self._world.hosts, Expected(link, by_sockets))

    def _reading(self) -> Check:
        data, recipe = self._stage.data, self._stage.recipe
        if data is None:
            return Check(READING, "skip", f"{recipe.problem.dataset}: hpcai500 makes it when the run starts")
        if recipe.benchmark not in RECIPE_TYPES:
            fix = f"hpcai500 data check {recipe.benchmark} {data}"
            return Check(READING, "skip", f"how a plug-in's data lie, it alone knows: {fix}")
        costs = self._model_costs()
        samples = ask_everyone(self._world, lambda: choose(recipe, data, self._world.rank))
        mine = samples[self._world.rank].value
        self._world.barrier()
        readings = [
            Answer(found.rank, found.host, found.value, chosen.error or found.error)
            for chosen, found in zip(
                samples,
                ask_everyone(self._world, lambda: read(mine, self._stage.input_threads) if mine else None),
                strict=True,
            )
        ]
        flops = math.fsum(product.flops for _, product in values(self._products)) or None
        sample_flops = None if isinstance(costs, str) or mine is None else _sample_flops(costs, mine.pixels)
        need = Need(recipe.benchmark, data, flops, sample_flops)
        return judge_reading(readings, need)

    def _disk(self) -> Check:
        costs = self._model_costs()
        if isinstance(costs, str):
            return Check(DISK, "skip", f"the model cannot be built: {costs}")
        out = self._stage.out
        # Rank 0 writes the record.
        free: int = self._world.broadcast_object(free_bytes(out) if self._world.rank == 0 else 0)
        return space_check(out, free, costs.checkpoint_bytes)

    def _power(self) -> Check:
        on_gpu = self._stage.recipe.accelerator.device != "cpu"
        return judge_sources(ask_hosts(self._world, lambda: look_for_sources(on_gpu=on_gpu)))

    def _model_costs(self) -> Costs | str:
        """The costs, on all ranks, or why they are unknown."""
        if self._costs is None:
            answer = ask_everyone(self._world, lambda: self._stage.costs() if self._world.rank == 0 else None)[0]
            self._costs = answer.value or answer.error or "unknown"
        return self._costs


def _sample_flops(costs: Costs, pixels: int | None) -> float:
    """Operations of training on a sample of `pixels`: convolutions cost the same for each pixel."""
    return costs.sample_flops * (pixels / costs.pixels if pixels and costs.pixels else 1.0)


# ----------------------------------------------------------------------------------------------------
# The command.


def main(arguments: Sequence[str] | None = None) -> int:
    """Be one rank; returns the exit code."""
    prepare_streams()
    try:
        options = _parser().parse_args(arguments)
        recipe = load_recipe(options.recipe, options.set)
        leads = find_placement(os.environ).rank == 0
    except HpcAi500Error as error:
        return tell_end(str(error), error.exit_code)
    log = CheckLog(options.result if leads else None, options.limit, _leave, _telling(options.check))
    try:
        with ending_by_signals(lambda number: log.stopped(signal_name(number))), scratch(os.environ, Path.cwd()):
            let_threads_spin()
            _examine(options, recipe, log)
    except HpcAi500Error as error:
        log.broken(str(error))
        return error.exit_code if leads else tell_end(str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last resort: one line
        what = " ".join("".join(traceback.format_exception_only(error)).split())
        log.broken(f"unexpected {what}")
        return tell_end(f"unexpected {what} (HPCAI500_TRACEBACK=1 shows where)", ExitCode.RUN_FAILED)
    finally:
        log.close()
    return ExitCode.PASS


def _parser() -> argparse.ArgumentParser:
    parser = measurement_parser("measure.preflight_command", "Measure what a run needs, check by check.")
    parser.add_argument("--check", action="append", required=True, choices=MEASURED, help="make this one")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the record")
    parser.add_argument("--machine", help="what speeds are held against")
    parser.add_argument("--limit", type=float, default=CHECK_SECONDS, help="seconds that one check may take")
    return parser


def _examine(options: argparse.Namespace, recipe: Recipe, log: CheckLog) -> None:
    # From here on, a missing rank or a library that cannot be loaded is a finding.
    log.begin(RANKS, START_SECONDS)
    import torch  # after OpenMP's variables are set

    from hpcai500.comm.liveness import COMPUTING
    from hpcai500.comm.liveness import READING as READING_DATA
    from hpcai500.engine.journal import telling
    from hpcai500.engine.precision import device_of
    from hpcai500.engine.ranks import joined
    from hpcai500.measure.convolutions import convolutions_of
    from hpcai500.workloads import model_of

    placement = find_placement(os.environ)
    # Only rank 0's verdict counts, so the file need not exist on other hosts.
    machine = load_machine(options.machine) if options.machine and placement.rank == 0 else None
    with joined(recipe, placement) as ranks, telling(ranks):
        ranks.on_lost(log.broken)
        cores = ranks.cores()
        torch.set_num_threads(recipe.os.threads or cores)
        stage = Stage(
            world=ranks.world,
            recipe=recipe,
            device=lambda: device_of(recipe, ranks),
            input_threads=recipe.os.input_threads or cores,
            costs=lambda: _costs(recipe),
            convolutions=lambda: convolutions_of(model_of(recipe)[0]),
            progress=ranks.progress,
            look=lambda: _look(recipe, options),
            data=options.data,
            out=options.out,
            machine=machine,
        )
        steps = Steps(stage)
        for name in options.check:
            ranks.phase(READING_DATA if name == READING else COMPUTING)
            if name != RANKS:
                log.begin(name)
            log.found([steps.check(name)])
        ranks.world.barrier()


def _costs(recipe: Recipe) -> Costs:
    from hpcai500.engine.trainer import state_bytes
    from hpcai500.measure.flops import count_flops
    from hpcai500.workloads import model_of
    from hpcai500.workloads.ewa import REFERENCE_GRID

    model, example = model_of(recipe)
    pixels = math.prod(REFERENCE_GRID) if recipe.benchmark == "ewa" else None
    return Costs(count_flops(model, *example).training_flops, state_bytes(model), pixels)


def _look(recipe: Recipe, options: argparse.Namespace) -> list[Check]:
    from hpcai500.measure.preflight import LOOKED_AT
    from hpcai500.system.doctor import Subject, examine

    arguments = [recipe.benchmark, *(["--data", str(options.data)] if options.data else [])]
    found = examine(Subject(recipe, options.data, options.out, arguments))
    return [check for check in found if check.name in LOOKED_AT]


def _telling(names: Sequence[str]) -> Callable[[str], None]:
    def tell(name: str) -> None:
        say(f"doctor: {name} ({names.index(name) + 1} of {len(names)})")

    return tell


def _leave() -> NoReturn:
    """End the process at once, wherever the main thread hangs."""
    remove_scratch()
    os._exit(ExitCode.RUN_FAILED)


if __name__ == "__main__":
    sys.exit(main())
