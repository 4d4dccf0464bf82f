"""One job from its first event to its last: set up, train, conclude, and leave a record that says how it went."""

from __future__ import annotations

import os
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
from hpcai500.errors import DataError, EnvironmentLacksError, HpcAi500Error, RecipeError, RecordError, RunError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import CONVENTION, count_flops
from hpcai500.measure.host import available_cores, boot_id, capture_node
from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import Record, iterate, read_record
from hpcai500.record_writer import RecordWriter
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place, Workload


def start(recipe_name: str, overrides: Sequence[str], data: Path, out: Path, stop: StopRequest) -> None:
    """Run a new job.

    Raises:
        HpcAi500Error: it cannot start or cannot finish; the record says why.
    """
    recipe = load_recipe(recipe_name, overrides)
    with RecordWriter.create(out, recipe) as writer:
        _guarded(writer, recipe, data, stop, None)


def go_on(out: Path, data: Path | None, stop: StopRequest) -> None:
    """Go on with the run whose record lies in `out`.

    Raises:
        HpcAi500Error: it cannot go on or cannot finish; the record says why.
    """
    old = read_record(out)
    with RecordWriter.reopen(old) as writer:
        if _has_reached_its_end(old):
            _conclude(writer, old)
        else:
            _guarded(writer, old.recipe(), data or _data_of(old), stop, old)


def _has_reached_its_end(record: Record) -> bool:
    """Whether only the result is missing: training again would make the run slower than it was."""
    ends = [event["key"] for event in record.events if event["key"] in ("run_start", "run_resume", "run_stop")]
    return bool(ends) and ends[-1] == "run_stop"


def _data_of(record: Record) -> Path:
    dataset = next(iterate(record.events, "dataset"), None)
    if dataset is None:
        raise RecordError(f"{record.path}: the run stopped before it had found its data; give --data DIR")
    return Path(dataset["value"]["root"])


def _guarded(writer: RecordWriter, recipe: Recipe, data: Path, stop: StopRequest, old: Record | None) -> None:
    """Run, and whatever happens, leave a record that says so."""
    try:
        _run(writer, recipe, data, stop, old)
        _conclude(writer, read_record(writer.path))
    except HpcAi500Error as error:
        writer.fail(str(error))
        raise
    except KeyboardInterrupt:
        writer.fail("stopped by a second SIGINT")
        raise
    except torch.OutOfMemoryError as error:
        reason = f"the device is out of memory: lower hyperparameters.batch_size ({str(error).splitlines()[0]})"
        writer.fail(reason)
        raise RunError(reason) from error
    except BaseException as error:
        writer.fail("".join(traceback.format_exception_only(error)).strip())
        raise


def _run(writer: RecordWriter, recipe: Recipe, data: Path, stop: StopRequest, old: Record | None) -> None:
    started = time.perf_counter()
    writer.event(
        "init_start",
        {
            "benchmark": recipe.benchmark,
            "edition": recipe.edition,
            "recipe_hash": recipe_hash(recipe),
            "version": hpcai500.__version__,
            "process": os.getpid(),
            "boot_id": boot_id(),
        },
    )
    writer.write_system({"nodes": [capture_node()]})
    device = _device(recipe)
    precision = Precision(recipe.accelerator.precision, device)
    place = Place(device, precision.input_dtype, recipe.os.input_threads or available_cores())
    torch.set_num_threads(recipe.os.threads or available_cores())
    torch.manual_seed(recipe.hyperparameters.seed)
    workload = factory(recipe.benchmark)(recipe, data, place)
    checkpoints = CheckpointStore(writer.path, state_bytes(workload.model))
    try:
        _announce(writer, recipe, workload, old)
        resumed = checkpoints.load_latest(old.events) if old else None
        done = (resumed[0].epoch - 1) * workload.steps_per_epoch + resumed[0].step if resumed else 0
        total = recipe.problem.epochs * workload.steps_per_epoch
        with Console(recipe.benchmark, recipe.problem.metric, recipe.global_batch, done, total) as console:
            trainer = Trainer(
                recipe,
                workload,
                place,
                precision=precision,
                record=writer,
                checkpoints=checkpoints,
                console=console,
                stop=stop,
            )
            epoch, step = trainer.restore(resumed[1]) if resumed else (1, 0)
            compile_seconds = trainer.warm_up()
            checkpoints.reserve()
            seconds = time.perf_counter() - started
            writer.event("init_stop", {"seconds": round(seconds, 6), "compile_seconds": round(compile_seconds, 6)})
            if old and any(iterate(old.events, "run_start")):
                _say_how_it_goes_on(writer, console, old, epoch, step)
            else:
                # The clock starts here: the next thing that happens is reading the first batch (V2.0 section 5.3.2).
                writer.event("run_start", {"world_size": place.world_size, "nodes": recipe.hardware.nodes})
            trainer.run()
            writer.event("run_stop", {"status": "success"})
            _draw(writer, console, workload)
    finally:
        checkpoints.release()
        workload.close()


def _draw(writer: RecordWriter, console: Console, workload: Workload) -> None:
    """Leave the pictures of a run that is complete: nothing in them may turn it into one that failed."""
    try:
        for name, content in workload.pictures().items():
            writer.write_picture(name, content)
    except Exception as error:  # noqa: BLE001 - said and recorded; the numbers stand without it
        writer.event("picture_error", {"reason": str(error)})
        console.say(f"hpcai500: no picture could be drawn: {error}")


def _announce(writer: RecordWriter, recipe: Recipe, workload: Workload, old: Record | None) -> None:
    """Write down what is trained on what; a resumed run must go on with the same data."""
    if workload.metric != recipe.problem.metric:
        raise RecipeError(f"problem.metric: {recipe.benchmark} measures {workload.metric}, got {recipe.problem.metric}")
    dataset = workload.dataset()
    before = next(iterate(old.events, "dataset"), None) if old else None
    if before and before["value"]["fingerprint"] != dataset["fingerprint"]:
        raise DataError(
            f"{dataset['root']}: not the data that this run was started on ({before['value']['root']}): its files "
            "differ; give the same set with --data DIR, or start a new run"
        )
    counted, example = workload.counted()
    count = count_flops(counted, *example)
    writer.event("dataset", dataset)
    writer.event("model", {"parameters": count.parameters, "steps_per_epoch": workload.steps_per_epoch})
    writer.event(
        "flops", {"convention": CONVENTION, "per_sample": count.training_flops, "forward": count.forward_flops}
    )


def _device(recipe: Recipe) -> torch.device:
    """The device of the recipe. There is no silent fall-back to a CPU: its numbers would be taken for the device's."""
    if recipe.accelerator.device == "cuda" and not torch.cuda.is_available():
        if torch.version.cuda is None:
            reason = f"torch {torch.__version__} is built without CUDA: install a CUDA build of it"
        else:
            reason = "no driver or device answers: check `nvidia-smi` (in a container: apptainer --nv)"
        raise EnvironmentLacksError(
            f"accelerator.device is cuda, but {reason}, or run on the CPU with --set accelerator.device=cpu"
        )
    return torch.device(recipe.accelerator.device)


def _say_how_it_goes_on(writer: RecordWriter, console: Console, old: Record, epoch: int, step: int) -> None:
    saved = [event["value"] for event in iterate(old.events, "checkpoint")]
    newest = (saved[-1]["epoch"], saved[-1]["step"]) if saved else (1, 0)
    if newest != (epoch, step):
        console.say(
            f"hpcai500: the checkpoint of epoch {newest[0]}, step {newest[1]} is damaged or missing: passed over"
        )
    how = _how_it_ended(old)
    writer.event("run_resume", {"epoch": epoch, "step": step, "after": how, "torn_bytes": old.torn_bytes})
    console.say(f"hpcai500: going on at epoch {epoch}, step {step} (the run before ended by {how})")


def _how_it_ended(old: Record) -> str:
    last = old.events[-1]
    if last["key"] != "run_error":
        return "a kill or a crash"
    interrupted = [event for event in old.events[-4:] if event["key"] == "interrupted"]
    return interrupted[-1]["value"]["signal"] if interrupted else "an error"


def _conclude(writer: RecordWriter, record: Record) -> None:
    tables = record.tables
    rules = benchmark_rules(tables["edition"], tables["benchmark"])
    writer.finish(derive(tables, rules, record.events).as_json())
