"""The frame of every in-job measurement: options, ranks, device, threads, and one JSON document from rank 0.

`launch.measuring` starts it with a `job_options.Measurement`. A command imports torch only inside its body, after
OpenMP's variables are set.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from hpcai500.errors import ExitCode, HpcAi500Error, PeerError, RunError
from hpcai500.files import scratch, write_atomically
from hpcai500.hosts import find_placement
from hpcai500.interpreter import NOT_HEEDED
from hpcai500.job_options import Measurement, Own, read_options
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.stopping import ending_by_signals
from hpcai500.streams import prepare_streams, print_error, with_result_printed
from hpcai500.system.limits import exhausted
from hpcai500.system.software import binding

if TYPE_CHECKING:
    import torch

    from hpcai500.engine.ranks import Ranks

# How long an idle OpenMP thread spins before it sleeps. GNU's default, 300,000 turns, blocks a core for the threads
# that decode the next batch and for other processes: with one busy process beside it on two cores, training took 13
# times as long, and 3.5 times with this value, which costs nothing on idle cores (not spinning at all costs 30 %).
_SPINNING = "5000"


@dataclass(frozen=True)
class Bench(Generic[Own]):
    """The context of a measurement: its own options, the recipe, all ranks, and this rank's device and cores."""

    options: Own
    recipe: Recipe
    ranks: Ranks
    device: torch.device
    cores: int
    doing_file: Path

    def doing(self, what: str) -> None:
        """Note that `what` is being measured; the command that waits for this process names it after a timeout."""
        self.ranks.progress()
        if self.ranks.leads:
            self.doing_file.write_text(what, encoding="utf-8", errors="surrogateescape")


Body = Callable[[Bench[Own]], Mapping[str, Any]]


def run_measurement(kind: type[Measurement[Own]], body: Body[Own], arguments: Sequence[str] | None = None) -> int:
    """Run `body` on this rank; rank 0 writes its result. Returns the exit code; errors are one line on stderr."""

    def command() -> None:
        measurement = read_options(kind, arguments)
        recipe = load_recipe(measurement.recipe, measurement.overrides)
        with scratch(os.environ, Path.cwd()):
            load_torch()
            _measure(measurement, recipe, body)

    return exit_code_of(command)


def exit_code_of(command: Callable[[], None]) -> int:
    """Run `command` and return its exit code; an error is one line on stderr. A signal ends it at once."""
    prepare_streams()
    try:
        with ending_by_signals():
            command()
    except HpcAi500Error as error:
        return report_end(error, error.exit_code)
    except KeyboardInterrupt:
        return report_end("stopped by Ctrl-C", ExitCode.RUN_FAILED)
    except Exception as error:  # noqa: BLE001 - the last resort: one line
        found = unexpected(error)
        return report_end(found, found.exit_code)
    return with_result_printed(ExitCode.PASS)


def unexpected(error: Exception) -> HpcAi500Error:
    """`error`, which nothing has caught, in one line: the limit that it ran into, if it did."""
    what = " ".join("".join(traceback.format_exception_only(error)).split())
    return exhausted(error) or RunError(f"unexpected {what} (HPCAI500_TRACEBACK=1 shows where)")


def _measure(measurement: Measurement[Own], recipe: Recipe, body: Body[Own]) -> None:
    import torch

    from hpcai500.comm.identity import require_own_gpus
    from hpcai500.engine.precision import device_of
    from hpcai500.engine.ranks import joined
    from hpcai500.engine.reporting import reporting_errors
    from hpcai500.measure.threads import use_threads

    with joined(recipe, find_placement(os.environ)) as ranks, reporting_errors(ranks):
        device = device_of(recipe, ranks)
        require_own_gpus(device, ranks.world)
        cores = ranks.cores()
        use_threads(recipe.os.threads or cores)
        torch.manual_seed(recipe.hyperparameters.seed)
        found = body(Bench(measurement.options, recipe, ranks, device, cores, measurement.doing))
        if ranks.leads:
            write_atomically(measurement.result, (json.dumps(found, allow_nan=False) + "\n").encode())
        ranks.world.barrier()


def load_torch() -> None:
    """Import torch, after OpenMP's variables are set, and without Python's garbage collector.

    The import makes many objects that stay. The collector would look through all of them again and again: a quarter of
    the processor time that the smallest run takes. It never looks at them later, either.
    """
    _prepare_openmp()
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def _prepare_openmp() -> None:
    """Set, before OpenMP is loaded, how long its idle threads spin, and let it bind no thread to a core.

    A variable of the user that says how long threads wait is kept. One that binds threads is removed and named in
    NOT_HEEDED: when it is loaded, OpenMP would bind the main thread to one core, and all threads that this one starts
    (decoders, for example) would have that core only. A rank has the cores that its launcher gave it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINNING)
    if names := binding(os.environ):
        os.environ[NOT_HEEDED] = ", ".join(filter(None, (os.environ.get(NOT_HEEDED), *names)))
    for name in names:
        del os.environ[name]


def report_end(error: HpcAi500Error | str, code: ExitCode) -> int:
    """Print the error that ends this rank on stderr, unless rank 0 prints it; returns its exit code."""
    if isinstance(error, PeerError):
        return code
    lines = error.lines if isinstance(error, HpcAi500Error) else [error]
    # The monitor's messages are for training; a measurement cannot be resumed.
    print_error(HpcAi500Error(*(line.removesuffix("; go on with --resume") for line in lines)))
    return code
