"""One job from its first event to its last: set up, train, and finish the record.

A job starts a new run (`start`) or resumes one that was stopped (`resume`). The record says how the job ended.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hpcai500
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.identity import (
    CONTENT,
    DATA,
    RECIPE,
    code_facts,
    gpu_of,
    plugin_code,
    require_own_gpus,
    require_same,
)
from hpcai500.engine.checkpoints import Checkpoint, CheckpointStore, state_bytes
from hpcai500.engine.evidence import Costs, measure_ceilings, running_statistics, spread_statistics
from hpcai500.engine.precision import Precision, device_of
from hpcai500.engine.predictions import Member, missing_kinds, write_predictions
from hpcai500.engine.ranks import Ranks, joined, layout_of, require_size, shares_of, stage_groups, tensor_row
from hpcai500.engine.reporting import Console, Journal, SilentJournal, in_words, reporting_errors
from hpcai500.engine.run_power import RunPower
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.trainer import Trainer
from hpcai500.engine.warm_up import WarmUpTimes, facts
from hpcai500.errors import DataError, EnvironmentLacksError, HpcAi500Error, RecipeError, RecordError, RunError
from hpcai500.hosts import Placement
from hpcai500.layers import Recipe
from hpcai500.measure.flops import CONVENTION, count_flops
from hpcai500.measure.host import boot_id, capture_nodes
from hpcai500.measure.threads import use_threads
from hpcai500.methodology.nodes import node_differences
from hpcai500.methodology.result import derive
from hpcai500.methodology.samples import Samples, samples_of
from hpcai500.recipe import read_resolved, recipe_hash, rulebook
from hpcai500.record import Record, RecordWriter, iterate, mark_lost, read_record
from hpcai500.run_progress import PROGRESS, parse_progress
from hpcai500.streams import say
from hpcai500.system.container import find_container
from hpcai500.system.doctor import host_memory_bytes, model_memory_check
from hpcai500.system.limits import exhausted
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.power import AUTO, PowerChoice
from hpcai500.system.process import age_seconds, job_times, owner_of
from hpcai500.system.software import version_document
from hpcai500.workloads import dataset_of, factory, model_of
from hpcai500.workloads.base import Place, Workload

# ----------------------------------------------------------------------------------------------------
# What this process has to do, and what the record of a resumed run says.


@dataclass(frozen=True)
class Job:
    """What this process has to do.

    Attributes:
        old: the record of the run that is resumed; None for a new run.
        campaign: {id, trial, attempt, head} for a run of a campaign.
        is_trained: whether training is finished, and only the predictions of an ensemble's member are missing.
    """

    recipe: Recipe
    data: Path
    journal: Journal
    old: Record | None = None
    power: PowerChoice = AUTO
    campaign: Mapping[str, Any] | None = None
    is_trained: bool = False


def has_reached_its_end(record: Record) -> bool:
    """Whether training is finished. Such a run must not be trained again: it would be timed as slower than it was."""
    ends = [event["key"] for event in record.events if event["key"] in ("run_start", "run_resume", "run_stop")]
    return bool(ends) and ends[-1] == "run_stop"


def campaign_of(record: Record) -> Mapping[str, Any] | None:
    """{id, trial, attempt, head} of a run of a campaign; else None."""
    started = next(iterate(record.events, "init_start"), None)
    campaign: Mapping[str, Any] | None = started["value"].get("campaign") if started else None
    return campaign


def resume_command(job: Job) -> str:
    """The command that resumes the run if it is stopped; in a campaign, it also runs the remaining trials."""
    record = job.journal.path
    # The command of an ensemble's member says itself how to resume it.
    if job.campaign is not None and job.recipe.ensemble is None:
        return f"hpcai500 campaign run {record.parent}"
    return f"hpcai500 {job.recipe.benchmark} --resume --out {record}"


def data_of(record: Record) -> Path:
    """Folder of the data that the run was started with.

    Raises:
        RecordError: the run stopped before it found its data.
    """
    dataset = next(iterate(record.events, "dataset"), None)
    if dataset is None:
        raise RecordError(
            f"{record.path}: the run stopped before it found its data; give --data DIR, or remove the record and start "
            "a new run"
        )
    return Path(dataset["value"]["root"])


def how_it_ended(old: Record) -> str:
    """What ended the run, for messages: the name of a signal, `an error`, or `a kill or a crash`."""
    last = old.events[-1]
    if last["key"] != "run_error":
        return "a kill or a crash"
    interrupted = [event for event in old.events[-4:] if event["key"] == "interrupted"]
    return interrupted[-1]["value"]["signal"] if interrupted else "an error"


# ----------------------------------------------------------------------------------------------------
# The first events: code, machine, data and model, which must be the same on all ranks.


# Classes that a warning names; the record names all.
_MOST_NAMES = 5


def announce_start(job: Job, ranks: Ranks) -> None:
    """Record the start of the job and its nodes; rank 0 warns if nodes differ. Called by all ranks together.

    Raises:
        UsageError: a rank runs different code, or another recipe.
    """
    recipe, journal = job.recipe, job.journal
    journal.event(
        "init_start",
        {
            "benchmark": recipe.benchmark,
            "edition": recipe.edition,
            "recipe_hash": recipe_hash(recipe),
            "version": hpcai500.__version__,
            "process": os.getpid(),
            "boot_id": boot_id(),
            "campaign": job.campaign,
            "launch": _launch(job) if ranks.leads else None,
        },
    )
    require_same(ranks.world, {**code_facts(), **plugin_code(recipe.benchmark), RECIPE: recipe_hash(recipe)})
    if job.is_trained:
        journal.event("prediction_start", _world(ranks))
        return
    places = {"data": job.data, "out": journal.path, "temporary": Path(tempfile.gettempdir())}
    nodes = capture_nodes(ranks.world, places, first_of_host=ranks.placement.local_rank == 0)
    journal.write_system({"nodes": nodes, "installation": _installation(ranks, recipe)})
    if len(nodes) > 1:
        differences = node_differences(nodes)
        journal.event("system_differences", {"differences": [one.document() for one in differences]})
        for one in differences:
            if one.matters:
                say(f"warning: nodes differ: {one.sentence()}")


def _launch(job: Job) -> dict[str, Any]:
    """What is known of the time before this process, for the goodput: the value of `Launch`."""
    alive = pause = None
    path = job.journal.path / PROGRESS
    # Still that of the process before this one: it is written with the first event.
    if job.old is not None and path.is_file():
        with suppress(OSError, RecordError):
            seen = parse_progress(path.read_bytes(), str(path))
            if seen.alive_ms is not None:
                alive, pause = max(seen.alive_ms, job.old.events[-1]["time_ms"]), seen.beat_seconds
    age = age_seconds(os.getpid())
    return {
        "process_seconds": None if age is None else round(age, 6),
        **job_times(os.environ),
        "alive_ms": alive,
        "pause_seconds": pause,
    }


def _installation(ranks: Ranks, recipe: Recipe) -> dict[str, Any] | None:
    """The software of rank 0, which all ranks share; the other ranks do not read the `image.json` of a container."""
    if not ranks.leads:
        return None
    return version_document(find_container(os.environ), installed_mpi(os.environ), recipe.benchmark)


def _announce(job: Job, workload: Workload, ranks: Ranks) -> Samples:
    """Record data and model; a resumed run must use the same data. Called by all ranks together.

    Raises:
        EnvironmentLacksError: the workload lacks a fact of the data set.
        RecipeError: the recipe names a metric that the workload does not measure.
        DataError: not the data that the run was started with.
        UsageError: a rank has different data.
    """
    recipe, journal = job.recipe, job.journal
    if workload.metric != recipe.problem.metric:
        raise RecipeError(f"problem.metric: {recipe.benchmark} measures {workload.metric}, got {recipe.problem.metric}")
    dataset = dataset_of(recipe.benchmark, workload)
    samples = samples_of(recipe.benchmark, dataset)
    recorded = [event["value"] for event in iterate(job.old.events, "dataset")] if job.old else []
    before = recorded[-1 if job.is_trained else 0] if recorded else dataset
    if before["fingerprint"] != dataset["fingerprint"]:
        raise DataError(
            f"{dataset['root']}: not the data that this run was started on ({before['root']}): its files differ; "
            f"give the same set with --data DIR{'' if job.is_trained else ', or start a new run'}"
        )
    if job.is_trained:
        return samples
    require_same(ranks.world, {DATA: dataset["fingerprint"], CONTENT: dataset["content_fingerprint"]})
    counted, example = workload.counted()
    if any(hasattr(parameter, "device_mesh") for parameter in counted.parameters()):
        raise RecipeError(
            f"{recipe.benchmark}: the workload's counted() gives a distributed model, whose operations cannot be "
            "counted: its authors can give a whole one on the meta device"
        )
    count = count_flops(counted, *example)
    journal.event("dataset", dataset)
    if ranks.leads and (absent := dataset.get("classes_not_evaluated")):
        say(f"warning: {_not_evaluated(dataset['root'], absent)}")
    journal.event("model", {"parameters": count.parameters, "steps_per_epoch": workload.steps_per_epoch})
    journal.event(
        "flops", {"convention": CONVENTION, "per_sample": count.training_flops, "forward": count.forward_flops}
    )
    return samples


def _not_evaluated(root: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    classes = f"{len(names)} class{'es' * (len(names) > 1)} ({', '.join(names[:_MOST_NAMES])}{more})"
    return f"{root}: the evaluation set has no sample of {classes}: the quality covers the other classes only"


def _require_trained(recipe: Recipe, path: Path, next_epoch: int) -> None:
    """Raise RecordError unless the checkpoint that was read is that of the last epoch."""
    if next_epoch != recipe.problem.epochs + 1:
        raise RecordError(
            f"{path}: the checkpoint of the last epoch is damaged or missing, so its predictions cannot be made, and "
            "a finished run is not trained again; remove the record and start a new run"
        )


# ----------------------------------------------------------------------------------------------------
# The job.


# A checkpoint and its content.
Loaded = tuple[Checkpoint, dict[str, Any]]


def start(
    recipe: Recipe,
    data: Path,
    out: Path,
    stop: StopRequest,
    placement: Placement,
    power: PowerChoice = AUTO,
    campaign: Mapping[str, Any] | None = None,
) -> None:
    """Run a new job, or this rank's part of it; `out` is the folder of its record, `campaign` as in `Job`.

    Raises:
        HpcAi500Error: it cannot start or finish; the record says why.
    """
    with joined(recipe, placement) as ranks, reporting_errors(ranks), stop:
        require_size(recipe, ranks.world.size, going_on=False)
        writer = RecordWriter.create(out, recipe) if ranks.leads else None
        with _errors_recorded(out, writer, ranks), ranks.reading(data, stop):
            if writer:
                writer.keep_progress(owner_of(os.getpid()), is_one_of_many=bool(recipe.ensemble))
            journal = writer or SilentJournal(out)
            _run(Job(recipe, data, journal, power=power, campaign=campaign), ranks, stop)
            _conclude(writer)


def resume(out: Path, data: Path | None, stop: StopRequest, placement: Placement, power: PowerChoice = AUTO) -> None:
    """Resume the run whose record is in `out`, a folder that every rank must see.

    Raises:
        HpcAi500Error: it cannot resume or finish; the record says why.
    """
    old = read_record(out) if placement.rank == 0 else None
    recipe = read_resolved(out / "recipe.toml")
    with joined(_with_backend(recipe, placement), placement) as ranks, reporting_errors(ranks), stop:
        require_size(recipe, ranks.world.size, going_on=True)
        writer = RecordWriter.reopen(old) if old else None
        with _errors_recorded(out, writer, ranks):
            # Other hosts may still see an earlier state of the events over NFS: all ranks go by what rank 0 has read.
            old = ranks.world.broadcast_object(old)
            if writer:
                writer.keep_progress(owner_of(os.getpid()), old.events, is_one_of_many=bool(recipe.ensemble))
            is_trained = has_reached_its_end(old)
            if not is_trained or ranks.world.broadcast_object(missing_kinds(recipe, old)):
                journal = writer or SilentJournal(out)
                job = Job(recipe, data or data_of(old), journal, old, power, campaign_of(old), is_trained)
                with ranks.reading(job.data, stop):
                    _run(job, ranks, stop)
            _conclude(writer)


def _with_backend(recipe: Recipe, placement: Placement) -> Recipe:
    """`recipe` with a backend, if several processes resume a run of one process, which needed none."""
    if placement.is_alone or recipe.communication.backend != "local":
        return recipe
    communication = recipe.communication.model_copy(update={"backend": "torch"})
    return recipe.model_copy(update={"communication": communication})


@contextmanager
def _errors_recorded(out: Path, writer: RecordWriter | None, ranks: Ranks) -> Iterator[None]:
    """Record the error that ends the body in the record at `out`."""
    if writer is None:
        ranks.on_lost(partial(mark_lost, out), only=0)
        with _limits_reported():
            yield
        return
    ranks.on_lost(writer.fail)
    writer.stopped_seconds = ranks.stopped_seconds
    with writer:
        try:
            with _limits_reported():
                yield
        except HpcAi500Error as error:
            writer.fail(str(ranks.explained(error)))
            raise
        except BaseException as error:
            writer.fail(in_words(error))
            raise


@contextmanager
def _limits_reported() -> Iterator[None]:
    """Turn an error for want of memory, threads or files into one that names the limit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"the device is out of memory: lower hyperparameters.batch_size ({str(error).splitlines()[0]})"
        ) from error
    except (RuntimeError, ImportError, OSError, MemoryError) as error:
        if found := exhausted(error):
            raise found from error
        raise


def _require_memory(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse a model that this host's memory cannot hold, for which the kernel would kill the rank without a message.

    All ranks call it together.

    Raises:
        EnvironmentLacksError: with what it needs, what the host has, and what to do.
    """
    if recipe.accelerator.device != "cpu":
        return
    hosts = ranks.world.hosts
    weights = ranks.world.broadcast_object(_weights_of(recipe) if ranks.leads else None)
    here = hosts.count(hosts[ranks.world.rank])
    if weights is None:
        return
    found = model_memory_check(recipe, weights, here, len(hosts), host_memory_bytes())
    if found.status == "fail":
        raise EnvironmentLacksError(found.sentence)


def _weights_of(recipe: Recipe) -> int | None:
    """Number of the model's weights; None if they cannot be counted without the data."""
    # A plug-in needs no `model`, and an error of another's must not end a run, which does not use it.
    with suppress(Exception):
        return sum(parameter.numel() for parameter in model_of(recipe)[0].parameters())
    return None


def _run(job: Job, ranks: Ranks, stop: StopRequest) -> None:
    started = time.perf_counter()
    recipe, journal = job.recipe, job.journal
    announce_start(job, ranks)
    device = device_of(recipe, ranks)
    require_own_gpus(device, ranks.world)
    groups = stage_groups(recipe, ranks)
    precision = Precision(recipe.accelerator.precision, device, stages=groups.neighbours.column if groups else None)
    cores = ranks.cores()
    use_threads(recipe.os.threads or cores)
    _require_memory(recipe, ranks)
    torch.manual_seed(recipe.hyperparameters.seed)
    power = RunPower(job.power, ranks.world, journal.path, gpu=gpu_of(device))
    if not job.is_trained:
        power.find()
    layout = layout_of(recipe, ranks.world.size)
    assert layout, "the number of ranks was checked before"
    place = Place(
        device,
        precision.input_dtype,
        recipe.os.input_threads or cores,
        communicator=ranks.world,
        total_shares=recipe.shards,
        shares=shares_of(recipe, ranks.world),
        replicas=groups.watched_replicas if groups else tensor_row(recipe, ranks),
        stages=groups.neighbours.column if groups else None,
        tensor_ranks=layout.tensor_ranks,
        tracker=ranks.tracker(),
    )
    workload = factory(recipe.benchmark)(recipe, job.data, place)
    if recipe.accelerator.loader == "memory":
        workload.hold_in_memory(recipe.accelerator.prefetch_batches * len(place.shares))
    checkpoints = _checkpoint_store(recipe, journal.path, workload.model, ranks.world)
    if ranks.leads:
        ranks.on_lost(lambda reason: checkpoints.release())
    costs = Costs(recipe.communication, ranks, stages=layout.stages, sharded=recipe.is_sharded)
    try:
        samples = _announce(job, workload, ranks)
        resumed = _checkpoint_of(job, checkpoints, ranks)
        done = (resumed[0].epoch - 1) * workload.steps_per_epoch + resumed[0].step if resumed else 0
        total = recipe.problem.epochs * workload.steps_per_epoch
        with Console(
            recipe.benchmark,
            recipe.problem.metric,
            recipe.global_batch,
            done,
            total,
            samples=samples,
            quiet=not ranks.leads,
        ) as console:
            trainer = Trainer(
                recipe,
                workload,
                place,
                ranks,
                precision=precision,
                journal=journal,
                checkpoints=checkpoints if ranks.leads or recipe.is_sharded else None,
                console=console,
                stop=stop,
                resume_command=resume_command(job),
                sink=costs.sink,
                groups=groups,
            )
            try:
                epoch, step = trainer.restore(*resumed) if resumed else (1, 0)
                if job.is_trained:
                    _require_trained(recipe, journal.path, epoch)
                else:
                    _train(
                        job,
                        ranks,
                        trainer,
                        console,
                        workload,
                        checkpoints=checkpoints,
                        power=power,
                        costs=costs,
                        device=device,
                        is_whole=groups is None and not recipe.is_sharded,
                        place=(epoch, step),
                        started=started,
                    )
            finally:
                trainer.close()
        # After the clock has stopped.
        if missing := ranks.world.broadcast_object(missing_kinds(recipe, job.old)):
            write_predictions(Member(recipe, workload, trainer.evaluation_mode, ranks, journal, stop), missing)
    finally:
        power.close()
        if ranks.leads:
            checkpoints.release()
        workload.close()


def _train(
    job: Job,
    ranks: Ranks,
    trainer: Trainer,
    console: Console,
    workload: Workload,
    *,
    checkpoints: CheckpointStore,
    power: RunPower,
    costs: Costs,
    device: torch.device,
    is_whole: bool,
    place: tuple[int, int],
    started: float,
) -> None:
    """Warm up, start the clock, train from `place` (epoch, step) on, stop the clock, and record the measurements."""
    recipe, journal = job.recipe, job.journal
    warm_up = trainer.warm_up()
    if ranks.leads:
        checkpoints.reserve()
    journal.event("ceilings", asdict(measure_ceilings(ranks.world, device, recipe.accelerator.precision)))
    _record_warm_up(
        journal,
        warm_up,
        time.perf_counter() - started,
        many=ranks.world.size > 1,
        # Stages, shards and synchronised batch norm communicate within a step: none can be timed without communication.
        comparable=is_whole and getattr(recipe.workload, "norm", None) != "sync-batch",
    )
    power.begin()
    costs.begin()
    trainer.attribution.begin()
    _start_clock(job, ranks, console, *place)
    trainer.run(is_resumed=job.old is not None)
    journal.event("run_stop", {"status": "success"})
    trainer.attribution.conclude(journal, ranks)
    costs.conclude(journal, trainer.between_hosts_bytes, trainer.between_stages_bytes)
    power.conclude(journal)
    _draw(journal, console, workload)


def _checkpoint_store(recipe: Recipe, record: Path, model: torch.nn.Module, world: Communicator) -> CheckpointStore:
    own_bytes = world.size * sum(one.numel() * one.element_size() for one in running_statistics(model))
    if not recipe.is_sharded:
        return CheckpointStore(record, state_bytes(model), own_bytes)
    # This imports torch's DTensor, which takes a second.
    from hpcai500.engine.sharded import ShardedCheckpointStore

    return ShardedCheckpointStore(record, state_bytes(model), world, own_bytes)


def _checkpoint_of(job: Job, checkpoints: CheckpointStore, ranks: Ranks) -> Loaded | None:
    """The newest intact checkpoint, read by rank 0 and broadcast to all ranks; of the statistics, each gets its own."""
    if job.old is None:
        return None
    loaded = checkpoints.load_latest(job.old.events, job.recipe.problem.model_dump()) if ranks.leads else None
    statistics = loaded[1].pop("statistics") if loaded else []
    resumed: Loaded | None = ranks.world.broadcast_object(loaded)
    if resumed:
        resumed[1]["statistics"] = spread_statistics(statistics, ranks.world)
    return resumed


def _start_clock(job: Job, ranks: Ranks, console: Console, epoch: int, step: int) -> None:
    # No rank may read its first batch before the clock has started.
    if job.old and any(iterate(job.old.events, "run_start")):
        _record_resume(job.journal, console, job.old, epoch, step, ranks)
    else:
        # Reading the first batch comes next (V2.0 section 5.3.2).
        job.journal.event("run_start", _world(ranks))
    ranks.world.barrier()


def _world(ranks: Ranks) -> dict[str, object]:
    world = ranks.world
    return {
        "world_size": world.size,
        "nodes": len(set(world.hosts)),
        "hosts": list(dict.fromkeys(world.hosts)),
        "backend": world.backend,
        "library": world.library,
    }


def _record_warm_up(journal: Journal, warm_up: WarmUpTimes, seconds: float, *, many: bool, comparable: bool) -> None:
    if many:
        journal.event("rehearsal", facts(warm_up))
        if comparable:
            journal.event(
                "parallel_efficiency",
                {
                    "step_seconds_alone": warm_up.alone_seconds,
                    "step_seconds": warm_up.together_seconds,
                    "efficiencies": list(warm_up.efficiencies),
                },
            )
    journal.event("init_stop", {"seconds": round(seconds, 6), "compile_seconds": round(warm_up.compile_seconds, 6)})


def _draw(journal: Journal, console: Console, workload: Workload) -> None:
    """Write the pictures of the last evaluation. An error does not fail the run, which is complete."""
    try:
        for name, content in workload.pictures().items():
            journal.write_picture(name, content)
    except Exception as error:  # noqa: BLE001 - printed and recorded; the results do not depend on it
        journal.event("picture_error", {"reason": str(error)})
        console.say(f"the pictures could not be drawn: {error}")


def _record_resume(journal: Journal, console: Console, old: Record, epoch: int, step: int, ranks: Ranks) -> None:
    saved = [event["value"] for event in iterate(old.events, "checkpoint")]
    newest = (saved[-1]["epoch"], saved[-1]["step"]) if saved else (1, 0)
    if newest != (epoch, step):
        console.say(f"the checkpoint of epoch {newest[0]}, step {newest[1]} is damaged or missing: skipped")
    how = how_it_ended(old)
    value = {"epoch": epoch, "step": step, "after": how, "torn_bytes": old.torn_bytes, **_world(ranks)}
    journal.event("run_resume", value)
    console.say(f"resuming at epoch {epoch}, step {step} (the previous run was ended by {how})")


def _conclude(writer: RecordWriter | None) -> None:
    if writer is None:
        return
    record = read_record(writer.path)
    tables = record.tables
    rules = rulebook(tables["edition"], tables["benchmark"])
    writer.finish(derive(tables, rules, record.events).as_json())
