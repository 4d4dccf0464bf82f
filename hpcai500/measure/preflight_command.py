"""`python -m hpcai500.measure.preflight_command`: one rank of what `hpcai500 doctor` measures.

Rank 0 writes each finding to the log as soon as it is known (`system.checks`). However the ranks end, the log has the
findings so far and the name of the check that did not end.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcai500.engine.measurement import load_torch, report_end, unexpected
from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.files import remove_scratch, scratch
from hpcai500.hosts import find_placement
from hpcai500.job_options import PreflightOptions, read_options
from hpcai500.layers import Recipe
from hpcai500.machine import load_machine
from hpcai500.recipe import load_recipe
from hpcai500.stopping import ending_by_signals, signal_name
from hpcai500.streams import prepare_streams, say
from hpcai500.system.checks import RANKS, START_SECONDS, CheckLog

if TYPE_CHECKING:
    from hpcai500.measure.preflight_steps import Costs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; returns the exit code."""
    prepare_streams()
    try:
        options = read_options(PreflightOptions, arguments)
        recipe = load_recipe(options.recipe, options.overrides)
        leads = find_placement(os.environ).rank == 0
    except HpcAi500Error as error:
        return report_end(str(error), error.exit_code)
    log = CheckLog(options.log if leads else None, options.limit_seconds, _leave, _progress(options.checks))
    try:
        with ending_by_signals(lambda number: log.stopped(signal_name(number))), scratch(os.environ, Path.cwd()):
            _examine(options, recipe, log)
    except HpcAi500Error as error:
        log.broken(str(error))
        return error.exit_code if leads else report_end(str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last resort: one line
        found = unexpected(error)
        log.broken(str(found))
        return report_end(found, found.exit_code)
    finally:
        log.close()
    return ExitCode.PASS


def _examine(options: PreflightOptions, recipe: Recipe, log: CheckLog) -> None:
    # From here on, a missing rank or a library that cannot be loaded is a finding.
    log.begin(RANKS, START_SECONDS)
    load_torch()
    import torch

    from hpcai500.engine.precision import device_of
    from hpcai500.engine.ranks import joined
    from hpcai500.engine.reporting import reporting_errors
    from hpcai500.measure.convolutions import convolutions_of
    from hpcai500.measure.preflight_steps import Stage, Steps
    from hpcai500.measure.threads import use_threads
    from hpcai500.workloads import model_of

    placement = find_placement(os.environ)
    # Only rank 0's verdict counts, so the file need not exist on other hosts.
    machine = load_machine(options.machine) if options.machine and placement.rank == 0 else None
    with joined(recipe, placement) as ranks, reporting_errors(ranks):
        ranks.on_lost(log.broken)
        cores = ranks.cores()

        def device() -> torch.device:
            use_threads(recipe.os.threads or cores)
            return device_of(recipe, ranks)

        stage = Stage(
            world=ranks.world,
            recipe=recipe,
            device=device,
            input_threads=recipe.os.input_threads or cores,
            costs=lambda: _costs(recipe),
            convolutions=lambda: convolutions_of(model_of(recipe)[0]),
            progress=ranks.progress,
            data=options.data,
            out=options.out,
            machine=machine,
        )
        steps = Steps(stage)
        for name in options.checks:
            ranks.phase(name)
            if name != RANKS:
                log.begin(name)
            log.found([steps.check(name)])
        ranks.world.barrier()


def _costs(recipe: Recipe) -> Costs:
    from hpcai500.engine.checkpoints import state_bytes
    from hpcai500.measure.flops import count_flops
    from hpcai500.measure.preflight_steps import Costs
    from hpcai500.workloads import model_of
    from hpcai500.workloads.ewa import REFERENCE_GRID

    model, example = model_of(recipe)
    pixels = math.prod(REFERENCE_GRID) if recipe.benchmark == "ewa" else None
    count = count_flops(model, *example)
    return Costs(count.training_flops, state_bytes(model), count.parameters, pixels)


def _progress(names: Sequence[str]) -> Callable[[str], None]:
    def show(name: str) -> None:
        say(f"doctor: {name} ({names.index(name) + 1} of {len(names)})")

    return show


def _leave() -> NoReturn:
    """End the process at once, even if the main thread hangs."""
    remove_scratch()
    os._exit(ExitCode.RUN_FAILED)


if __name__ == "__main__":
    sys.exit(main())
