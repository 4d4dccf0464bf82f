"""The in-job driver: a recipe goes in, a record comes out. `python -m hpcai500.train --help`.

Everything that must happen before the clock starts happens here; `engine.trainer` runs from the first batch on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

import hpcai500
from hpcai500.editions import benchmark_rules
from hpcai500.engine.checkpoints import CheckpointStore
from hpcai500.engine.console import Console
from hpcai500.engine.precision import Precision
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.trainer import Trainer, state_bytes
from hpcai500.errors import DataError, EnvironmentLacksError, ExitCode, HpcAi500Error, RecordError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import CONVENTION, count_flops
from hpcai500.measure.host import available_cores, capture_node
from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import Record, RecordWriter, iterate, read_record
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place, Workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _run_job(options)
    except HpcAi500Error as error:
        print(f"hpcai500: error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("hpcai500: error: stopped at once; the last checkpoint is kept", file=sys.stderr)  # noqa: T201
        return ExitCode.RUN_FAILED
    return ExitCode.PASS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpcai500.train", description="Run one job: recipe in, record out.")
    parser.add_argument(
        "--recipe", help="TOML file or name of a shipped recipe; with --resume the record's own is used"
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change one field")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--resume", action="store_true", help="go on with the record in --out")
    return parser


def _run_job(options: argparse.Namespace) -> None:
    with StopRequest() as stop:
        if options.resume:
            old = read_record(options.out)
            with RecordWriter.reopen(old) as record:
                _guarded(record, old.recipe, options.data or _data_of(old), stop, old)
        else:
            recipe = load_recipe(options.recipe, options.set)
            if options.data is None:
                raise DataError(f"{recipe.benchmark}: give the folder of its data set: --data DIR")
            with RecordWriter.create(options.out, recipe, {"nodes": [capture_node()]}) as record:
                _guarded(record, recipe, options.data, stop, None)


def _data_of(record: Record) -> Path:
    dataset = next(iterate(record.events, "dataset"), None)
    if dataset is None:
        raise RecordError(f"{record.path}: the run stopped before it had found its data; give --data DIR")
    return Path(dataset["value"]["root"])


def _guarded(record: RecordWriter, recipe: Recipe, data: Path, stop: StopRequest, old: Record | None) -> None:
    """Run, and whatever happens, leave a record that says so."""
    try:
        _run(record, recipe, data, stop, old)
    except HpcAi500Error as error:
        record.fail(str(error))
        raise
    except KeyboardInterrupt:
        record.fail("stopped by a second SIGINT")
        raise
    except BaseException as error:
        record.fail("".join(traceback.format_exception_only(error)).strip())
        raise


def _run(record: RecordWriter, recipe: Recipe, data: Path, stop: StopRequest, old: Record | None) -> None:
    started = time.perf_counter()
    record.event(
        "init_start",
        {
            "benchmark": recipe.benchmark,
            "edition": recipe.edition,
            "recipe_hash": recipe_hash(recipe),
            "version": hpcai500.__version__,
            "process": os.getpid(),
        },
    )
    device = _device(recipe)
    precision = Precision(recipe.accelerator.precision, device)
    place = Place(device, precision.input_dtype, recipe.os.input_threads or available_cores())
    torch.set_num_threads(recipe.os.threads or available_cores())
    torch.manual_seed(recipe.hyperparameters.seed)
    workload = factory(recipe.benchmark)(recipe, data, place)
    try:
        _announce(record, recipe, workload, old)
        checkpoints = CheckpointStore(record.path, state_bytes(workload.model))
        resumed = checkpoints.load_latest(old.events) if old else None
        done = (resumed[0].epoch - 1) * workload.steps_per_epoch + resumed[0].step if resumed else 0
        total = recipe.problem.epochs * workload.steps_per_epoch
        with Console(recipe.benchmark, recipe.problem.metric, recipe.global_batch, done, total) as console:
            trainer = Trainer(
                recipe,
                workload,
                place,
                precision=precision,
                record=record,
                checkpoints=checkpoints,
                console=console,
                stop=stop,
            )
            epoch, step = trainer.restore(resumed[1]) if resumed else (1, 0)
            compile_seconds = trainer.warm_up()
            seconds = time.perf_counter() - started
            record.event("init_stop", {"seconds": round(seconds, 6), "compile_seconds": round(compile_seconds, 6)})
            if old and any(iterate(old.events, "run_start")):
                how = _how_it_ended(old)
                record.event("run_resume", {"epoch": epoch, "step": step, "after": how, "torn_bytes": old.torn_bytes})
                console.say(f"hpcai500: going on at epoch {epoch}, step {step} (the run before ended by {how})")
            else:
                # The clock starts here: the next thing that happens is reading the first batch (V2.0 section 5.3.2).
                record.event("run_start", {"world_size": place.world_size, "nodes": recipe.hardware.nodes})
            trainer.run()
            record.event("run_stop", {"status": "success"})
    finally:
        workload.close()
    _conclude(record, recipe)


def _announce(record: RecordWriter, recipe: Recipe, workload: Workload, old: Record | None) -> None:
    """Write down what is trained on what; a resumed run must go on with the same data."""
    dataset = workload.dataset()
    before = next(iterate(old.events, "dataset"), None) if old else None
    if before and before["value"]["fingerprint"] != dataset["fingerprint"]:
        raise DataError(
            f"{dataset['root']}: not the data that this run was started on ({before['value']['root']}): its files "
            "differ; give the same set with --data DIR, or start a new run"
        )
    count = count_flops(workload.model, *workload.example())
    record.event("dataset", dataset)
    record.event("model", {"parameters": count.parameters, "steps_per_epoch": workload.steps_per_epoch})
    record.event(
        "flops", {"convention": CONVENTION, "per_sample": count.training_flops, "forward": count.forward_flops}
    )


def _device(recipe: Recipe) -> torch.device:
    """The device of the recipe. There is no silent fall-back to a CPU: its numbers would be taken for the device's."""
    if recipe.accelerator.device == "cuda" and not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "no driver or device answers"
        raise EnvironmentLacksError(
            f"accelerator.device is cuda, but {reason}: check `nvidia-smi` (in a container: apptainer --nv), "
            "or run on the CPU with --set accelerator.device=cpu"
        )
    return torch.device(recipe.accelerator.device)


def _how_it_ended(old: Record) -> str:
    interrupted = [event["value"]["signal"] for event in old.events if event["key"] == "interrupted"]
    if old.status == "unfinished":
        return "a kill or a crash"
    return interrupted[-1] if interrupted else "an error"


def _conclude(record: RecordWriter, recipe: Recipe) -> None:
    finished = read_record(record.path)
    rules = benchmark_rules(recipe.edition, recipe.benchmark)
    record.write_result(derive(recipe.model_dump(mode="json"), rules, finished.events).as_json())
    record.finish()


if __name__ == "__main__":
    sys.exit(main())
