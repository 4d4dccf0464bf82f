"""Checks of the events of one run: order, clocks, samples, predictions, and required events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from hpcai500 import __version__
from hpcai500.methodology.conduct import ranks_per_replica
from hpcai500.methodology.ensemble import EVALUATION, FOLDER, OUT_OF_BAG, expected_kinds, file_of
from hpcai500.methodology.events import (
    Checkpoint,
    Dataset,
    Flops,
    InitStop,
    Model,
    Moment,
    OutOfBag,
    Predictions,
    Resume,
    Value,
    World,
    order_violations,
    unknown_keys,
)
from hpcai500.methodology.goodput import contradictions
from hpcai500.methodology.integrity import (
    Pass,
    clock_faults,
    drift_seconds,
    pauses,
    step_faults,
    time_faults,
    unreported_times,
)
from hpcai500.methodology.passes import lost_evaluations
from hpcai500.methodology.result import MEMORY, Result
from hpcai500.recipe import tables_hash
from hpcai500.record import Record, iterate
from hpcai500.results.verification.context import Run, one_finding
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning
from hpcai500.results.verification.run_numbers import score_faults

# ----------------------------------------------------------------------------------------------------
# Order and restarts: events are in the allowed order, and all processes of a run do the same work.


def check_order(run: Run) -> Iterator[Finding]:
    """Check that each epoch is trained, then evaluated, then saved, and that no event is out of order.

    Epochs and steps of events are compared with the events before.
    """
    is_member = "ensemble" in run.record.tables
    wrong = order_violations(run.log.moments, run.field("problem", "epochs"), is_member=is_member)
    yield from one_finding("event-order", wrong, fail)
    unknown = unknown_keys(run.log.moments)
    if unknown:
        yield warning("unknown-events", f"events unknown to this version: {', '.join(unknown[:10])}")


_RESTARTS, _AGAIN = "restarts", "trained-again"
# Events that a resumption must repeat.
_FIXED: dict[str, type[Value]] = {"dataset": Dataset, "model": Model, "flops": Flops}


def check_sessions(run: Run) -> Iterator[Finding]:
    """Compare the first events of each process with the recipe and with the other processes."""
    yield from one_finding(_RESTARTS, _faults(run), fail)
    yield from one_finding(_RESTARTS, _oddities(run), warning)
    lost = (event["value"] for event in lost_evaluations(run.record.events))
    epochs = [f"{one['epoch']} ({one['metric']} {one['value']!r})" for one in lost]
    if epochs:
        yield warning(_AGAIN, f"trained again after their quality was known: the epochs {', '.join(epochs[:10])}")


def _faults(run: Run) -> Iterator[str]:
    tables = run.record.tables
    expected = {
        "benchmark": tables.get("benchmark"),
        "edition": tables.get("edition"),
        "recipe_hash": tables_hash(tables),
    }
    for number, start in enumerate(run.log.starts, 1):
        for name, value in expected.items():
            if getattr(start, name) != value:
                yield f"start {number} names the {name} {getattr(start, name)}, expected {value}"
    for key, kind in _FIXED.items():
        found = run.log.values(kind, key)
        if any(_differ(one, found[0]) for one in found):
            yield f"the event {key} is not the same after each of {len(found)} starts"


def _differ(one: Value, other: Value) -> bool:
    """Compare the fields of both: an older version may have started the run; data may have been moved or checked."""
    both = (one.model_fields_set & other.model_fields_set) - {"root", "content_fingerprint"}
    return any(getattr(one, name) != getattr(other, name) for name in both)


def _oddities(run: Run) -> Iterator[str]:
    """Find changes of version, and saved epochs that were trained again: perhaps in search of luck."""
    versions = list(dict.fromkeys(start.version for start in run.log.starts))
    if len(versions) > 1:
        yield f"the run was made by several versions of hpcai500: {', '.join(versions)}"
    newest = (1, 0)
    for moment in run.log.named("checkpoint", "run_resume"):
        if moment.key == "checkpoint":
            saved = moment.value_as(Checkpoint)
            newest = (saved.epoch, saved.step)
        else:
            value = moment.value_as(Resume)
            if (value.epoch, value.step) != newest:
                yield (
                    f"line {moment.line}: resumed at epoch {value.epoch}, step {value.step}, although epoch "
                    f"{newest[0]}, step {newest[1]} was saved (was that file damaged or missing?)"
                )


# ----------------------------------------------------------------------------------------------------
# Clocks, and the durations that the run reports.


# A process starts its timer some milliseconds before its first event.
_SETUP_SECONDS = 5.0


def check_clock(run: Run) -> Iterator[Finding]:
    """Compare wall clock and machine clock; a clock that was set during a run looks like a forgery."""
    found = list(one_finding("clock", clock_faults(run.log), fail))
    yield from found
    yield from one_finding("pauses", pauses(run.log), warning)
    if not found:
        seconds = run.log.moments[-1].wall_s - run.log.moments[0].wall_s
        drift = drift_seconds(run.log)
        yield note("clock", f"wall clock and machine clock differ by {drift:+.3f} s over {seconds:.0f} s")


def check_goodput(run: Run) -> Iterator[Finding]:
    """Compare the moments that divide the time between two processes: none may overlap."""
    yield from one_finding("goodput", contradictions(run.record.events), fail)


def check_times(run: Run) -> Iterator[Finding]:
    """Compare times of epochs, evaluations and steps with the clock and with each other."""
    epochs = run.epochs
    yield from one_finding("epoch-times", time_faults(epochs), fail)
    yield from one_finding("epoch-times", unreported_times(epochs), warning)
    yield from one_finding("step-sums", step_faults(run.log, epochs), fail)
    yield from one_finding("setup-time", _setup_faults(run), fail)


def _setup_faults(run: Run) -> Iterator[str]:
    for number, session in enumerate(run.log.sessions, 1):
        for stop in (moment for moment in session if moment.key == "init_stop"):
            reported, elapsed = stop.value_as(InitStop).seconds, stop.clock_s - session[0].clock_s
            if not abs(reported - elapsed) <= _SETUP_SECONDS:
                yield f"start {number}: reports {reported:.1f} s of preparation; {elapsed:.1f} s by the clock"


# ----------------------------------------------------------------------------------------------------
# Draws: the training samples of an ensemble's member are drawn again, from recipe and data set alone.


_DRAWN = "drawn"
# Most samples that are drawn again: they take about a second, and up to 50 bytes of memory each. A campaign may have
# 300 records, each with another seed and size. ImageNet has three fifths as many.
MOST_DRAWN = 1 << 21


@dataclass(frozen=True)
class Draws:
    """What a seed draws.

    Attributes:
        facts: as in the event `dataset`.
        coverage: digest of an epoch that delivers them.
    """

    facts: Mapping[str, Any]
    coverage: str


def check_draws(run: Run) -> Iterator[Finding]:
    """Compare a member's draws with those that recipe and data set give."""
    dataset = run.log.values(Dataset, "dataset")[-1]
    faults = list(_drawn_faults(run, dataset))
    yield from one_finding(_DRAWN, faults, fail)
    if faults or dataset.drawn is None or dataset.training_samples > MOST_DRAWN:
        return
    expected, found = draws_of(run, dataset).facts, dataset.drawn.model_dump()
    wrong = (f"{key} {found[key]}, expected {value}" for key, value in expected.items() if found[key] != value)
    yield from one_finding(_DRAWN, wrong, fail)


def draws_can_be_made(run: Run, dataset: Dataset) -> bool:
    """Whether recipe and data set determine the draws, and they are few enough to be drawn again."""
    return dataset.training_samples <= MOST_DRAWN and not any(_drawn_faults(run, dataset))


def draws_of(run: Run, dataset: Dataset) -> Draws:
    """Repeat the draws of the recipe's seed from this data set; see `draws_can_be_made`."""
    strata = tuple(dataset.drawn.strata) if dataset.drawn else ()
    seed, sampling = int(run.field("hyperparameters", "seed")), str(run.field("ensemble", "sampling"))
    return _draws(dataset.training_samples, seed, sampling, strata)


def _drawn_faults(run: Run, dataset: Dataset) -> Iterator[str]:
    """Check whether samples were drawn, and from how many strata; the sizes of strata cannot be computed."""
    asked, drawn = run.record.tables.get("ensemble"), dataset.drawn
    if asked is None or drawn is None:
        if asked is not None:
            yield "the event dataset lacks the draws"
        elif drawn is not None:
            yield "samples were drawn, but the recipe has no [ensemble]"
        return
    if drawn.sampling != asked["sampling"]:
        yield f"samples were drawn by {drawn.sampling}; the recipe asks for {asked['sampling']}"
    name, groups = asked["strata"], len(drawn.strata)
    first, last = run.record.tables["problem"].get("training_years") or (0, 0)
    expected = {"none": 0, "class": dataset.classes, "year": last - first + 1}.get(name, groups)
    if groups != expected:
        yield f"samples were drawn from {groups} strata; the recipe's {name} makes {expected}"
    elif groups and sum(drawn.strata) != dataset.training_samples:
        yield f"the strata have {sum(drawn.strata)} samples; the training set has {dataset.training_samples}"


@lru_cache(maxsize=16)
def _draws(samples: int, seed: int, sampling: str, strata: tuple[int, ...]) -> Draws:
    from hpcai500.methodology.sampling import drawn_digest, drawn_facts, draws  # imports numpy

    drawn = draws(samples, seed, sampling, strata)
    facts = {**asdict(drawn_facts(drawn, samples, sampling, strata)), "strata": list(strata)}
    return Draws(facts, drawn_digest(drawn))


# ----------------------------------------------------------------------------------------------------
# Samples: each epoch used the training set, or a member's draws; each evaluation used its whole set.


_SAMPLES, _COVERAGE = "samples", "coverage"
# Most samples whose digest is computed, in two seconds. ImageNet has a fiftieth.
_MOST_SAMPLES = 1 << 26


def check_samples(run: Run) -> Iterator[Finding]:
    """Compare samples, steps and padding with data set and recipe, and the digests of what was delivered."""
    yield from one_finding(_SAMPLES, _counts(run), fail)
    dataset = run.log.values(Dataset, "dataset")[-1]
    is_member = "ensemble" in run.record.tables
    if dataset.training_samples > (MOST_DRAWN if is_member else _MOST_SAMPLES):
        yield warning(_COVERAGE, f"the digest of {dataset.training_samples} samples was not computed again")
        return
    if is_member and not draws_can_be_made(run, dataset):
        # `check_draws` reports why.
        return
    expected = draws_of(run, dataset).coverage if is_member else _digest(dataset.training_samples)
    if dataset.coverage != expected:
        whose = "the member's draws of the" if is_member else "the"
        yield fail(
            _COVERAGE,
            f"{whose} data set's {dataset.training_samples} samples have the digest {expected}, the event has "
            f"{dataset.coverage}",
        )
    # Batches that are repeated from memory do not cover an epoch; such a run is not rankable.
    if _tail(run) == "pad" and run.record.tables["accelerator"].get("loader") != MEMORY:
        wrong = [one.done for one in run.epochs if one.done.coverage != expected]
        yield from one_finding(
            _COVERAGE, (f"epoch {one.epoch}: {one.coverage}, expected {expected}" for one in wrong), fail
        )


def _tail(run: Run) -> Any:
    """Whether the last batch is dropped or padded; padded if a plug-in's layer 7 lacks the field."""
    return run.record.tables["workload"].get("tail", "pad")


def _counts(run: Run) -> Iterator[str]:
    dataset, model = run.log.values(Dataset, "dataset")[-1], run.log.values(Model, "model")[-1]
    policy = run.record.tables["hyperparameters"]
    replicas = run.world_size // ranks_per_replica(run.record.tables["programming"])
    batch = int(policy["batch_size"]) * int(policy.get("accumulation_steps", 1)) * replicas
    drops = _tail(run) == "drop"
    whole = dataset.samples_of_an_epoch
    steps = whole // batch if drops else -(-whole // batch)
    samples = steps * batch if drops else whole
    if model.steps_per_epoch != steps:
        yield f"{whole} samples in batches of {batch} are {steps} steps, the event has {model.steps_per_epoch}"
    for one in run.epochs:
        expected = {"steps": steps, "samples": samples, "padded_samples": steps * batch - samples}
        wrong = [f"{name} {getattr(one.done, name)}, expected {value}" for name, value in expected.items()
                 if getattr(one.done, name) != value]  # fmt: skip
        wrong += _digest_faults(one)
        if one.evaluation and one.evaluation.samples != dataset.evaluation_samples:
            wrong.append(f"evaluated {one.evaluation.samples} samples, expected {dataset.evaluation_samples}")
        if wrong:
            yield f"epoch {one.done.epoch}: {', '.join(wrong)}"


def _digest_faults(one: Pass) -> list[str]:
    """A digest begins with the number of its samples."""
    count = one.done.coverage.partition("-")[0]
    return [] if count == str(one.done.samples) else [f"a digest of {count} samples for {one.done.samples}"]


# Of the training sets of the editions: numpy takes a tenth of a second to load.
DIGESTS = {
    1_281_167: "1281167-a5df98fb2ce65dc40334a97958204d1a",
    13_140: "13140-814a1329e64d1bff3aaf0bcb5e1f8673",
}


@lru_cache(maxsize=16)
def _digest(samples: int) -> str:
    if samples in DIGESTS:
        return DIGESTS[samples]
    from hpcai500.methodology.sampling import Coverage  # imports numpy

    return Coverage.expected(samples).digest


# ----------------------------------------------------------------------------------------------------
# Predictions: a member of an ensemble writes those that the vote needs; other runs write none.


_PREDICTIONS = "predictions"


def check_predictions(run: Run) -> Iterator[Finding]:
    """Compare the events on predictions with the recipe, the data set and the draws."""
    yield from one_finding(_PREDICTIONS, _predictions_faults(run), fail)


def _predictions_faults(run: Run) -> Iterator[str]:
    found = {one.kind: one for one in run.log.values(Predictions, "predictions")}
    expected = expected_kinds(run.record.tables)
    if set(found) != set(expected):
        yield f"predictions of {', '.join(sorted(found)) or 'nothing'}; expected {', '.join(expected) or 'none'}"
        return
    for kind, one in found.items():
        if one.file != file_of(kind):
            yield f"{kind}: in {one.file}, expected {file_of(kind)}"
        samples = _samples(run, kind)
        if samples is not None and one.samples != samples:
            yield f"{kind}: of {one.samples} samples, expected {samples}"
    evaluations = run.log.values(OutOfBag, "out_of_bag")
    if bool(evaluations) != (OUT_OF_BAG in found):
        yield f"{len(evaluations)} events out_of_bag; predictions of {', '.join(sorted(found)) or 'nothing'}"
    elif evaluations:
        yield from _out_of_bag_faults(evaluations[-1], found[OUT_OF_BAG].samples, run.field("problem", "metric"))


def _samples(run: Run, kind: str) -> int | None:
    """Return the number of samples of this kind of predictions; None if it cannot be computed."""
    dataset = run.log.values(Dataset, "dataset")[-1]
    if kind == EVALUATION:
        return dataset.evaluation_samples
    if not draws_can_be_made(run, dataset):
        return None
    strata = tuple(dataset.drawn.strata) if dataset.drawn else ()
    seed, count = int(run.field("hyperparameters", "seed")), int(run.field("ensemble", "out_of_bag_samples"))
    return _unseen(dataset.training_samples, seed, str(run.field("ensemble", "sampling")), strata, count)


def _out_of_bag_faults(one: OutOfBag, samples: int, metric: str) -> Iterator[str]:
    name = f"out of bag: {one.metric} {one.value!r}"
    if one.metric != metric or one.samples != samples or (one.value is None) != (samples == 0):
        yield f"{name} of {one.samples} samples, expected {metric} of {samples}"
    if one.value is None:
        return
    if not 0 <= one.value <= 1:
        yield f"{name}, expected 0 to 1"
    yield from score_faults(name, one, one.value)


@lru_cache(maxsize=16)
def _unseen(samples: int, seed: int, sampling: str, strata: tuple[int, ...], count: int) -> int:
    from hpcai500.methodology.sampling import draws, unseen_probe  # imports numpy

    return int(unseen_probe(draws(samples, seed, sampling, strata), samples, count).size)


# ----------------------------------------------------------------------------------------------------
# Evidence: events and fields that every run has, so that a missing one was removed.


_EVIDENCE = "evidence"
# Written in this order after the end of training; a run that is killed between them counts as finished.
_AT_THE_END = ("steps", "communication", "power")
# Fields of the event `dataset` that our own benchmarks write beyond those that a plug-in must.
_OF_DATASET = {
    "ic": ("classes", "classes_not_evaluated"),
    "ewa": ("classes", "classes_not_evaluated", "grid"),
}
_OF_PACKAGE = ("version", "code_sha256", "core_sha256")
_OF_NODE = ("host", "processor", "memory", "accelerators", "software", "environment", "preloaded", "container")
_OF_ACCELERATOR = ("name", "memory_bytes", "uuid")


def check_evidence(run: Run) -> Iterator[Finding]:
    """Check for the events and fields that the version which wrote this record writes in every run."""
    if not run.log.leaves_evidence:
        return
    yield from one_finding(_EVIDENCE, [*_before_training(run), *_missing_fields(run)], fail)
    yield from one_finding(_EVIDENCE, _unknown(run), warning)
    expected = [key for key in _AT_THE_END if key != "communication" or run.log.worlds[-1].world_size > 1]
    found = [moment.key for moment in run.log.moments if moment.key in expected]
    if found == expected:
        return
    evidence = f"events after its end: {', '.join(found) or 'none'}; expected {', '.join(expected)}, each once"
    if found == expected[: len(found)]:
        yield warning(_EVIDENCE, f"{evidence}: it was killed then, or the others were removed")
    else:
        yield fail(_EVIDENCE, evidence)


def _before_training(run: Run) -> Iterator[str]:
    for number, start in enumerate(run.log.starts, 1):
        if "boot_id" not in start.model_fields_set:
            yield f"start {number} lacks boot_id"
    # With synchronised batch norm, stages or shards, no step runs without communication, so that none can be compared.
    tables = run.record.tables
    is_split = tables["programming"].get("parallel_mode", "data") != "data"
    always_communicates = is_split or tables["workload"].get("norm") == "sync-batch"
    for session, world in zip(run.log.trained, run.log.worlds, strict=False):
        found = {moment.key for moment in session}
        for key in ("rehearsal", *(() if always_communicates else ("parallel_efficiency",))):
            if world.world_size > 1 and key not in found:
                yield f"line {session[0].line}: {world.world_size} ranks, but this process has no event {key}"


def _unknown(run: Run) -> Iterator[str]:
    """Report unknown values that this version can read on every machine that we know."""
    for number, start in enumerate(run.log.starts, 1):
        if start.version == __version__ and start.boot_id is None:
            yield f"start {number} has no boot ID, so that its clocks cannot be compared"
    for node in run.record.system["nodes"] if run.log.starts[-1].version == __version__ else []:
        if any(device.get("uuid") is None for device in node["accelerators"]):
            yield f"{node['host']} has an accelerator without a UUID, which may be counted twice"


def _missing_fields(run: Run) -> Iterator[str]:
    """Report missing fields that this version always writes.

    Older versions lack some fields and are not checked; their records are not rankable here.
    """
    benchmark = str(run.record.tables.get("benchmark"))
    for session, start in zip(run.log.sessions, run.log.starts, strict=True):
        if start.version != __version__:
            continue
        for moment in session:
            missing = list(moment.value.missing_fields()) if moment.value else []
            if moment.key == "dataset" and moment.value:
                found = moment.value.model_fields_set
                missing += [name for name in _OF_DATASET.get(benchmark, ()) if name not in found]
            if missing:
                yield f"line {moment.line}: {moment.key} lacks {', '.join(missing)}"
        yield from _system_faults(session, run.record.events[session[0].line - 1 : session[-1].line])


def _system_faults(session: Sequence[Moment], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Check that a process that trains describes all of its nodes and its software."""
    world = next((one.value_as(World) for one in session if one.key in ("run_start", "run_resume")), None)
    if world is None:
        return
    described = [event for event in events if event["key"] == "system"]
    if len(described) != 1:
        yield f"line {session[0].line}: this process has {len(described)} system events; expected one"
        return
    line, system = described[0]["seq"] + 1, described[0]["value"]
    package = system["installation"]["package"]
    if missing := [name for name in _OF_PACKAGE if not package.get(name)]:
        yield f"line {line}: the system's package lacks {', '.join(missing)}"
    if len(system["nodes"]) != world.nodes:
        yield f"line {line}: the system has {len(system['nodes'])} nodes; {world.nodes} trained"
    for node in system["nodes"]:
        missing = [name for name in _OF_NODE if name not in node]
        missing += [
            f"accelerators.{name}" for one in node["accelerators"] for name in _OF_ACCELERATOR if name not in one
        ]
        if missing:
            yield f"line {line}: the node {node.get('host')} lacks {', '.join(dict.fromkeys(missing))}"


# ----------------------------------------------------------------------------------------------------
# Files: pictures, traces and predictions must have the hashes in the events.


_FILES = "files"
_FOLDERS = {"picture": "pictures", "trace": "trace", "predictions": FOLDER}


def check_files(record: Record, result: Result | None, rules: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the hash of each file with the one in the events.

    The result does not depend on pictures and traces, so that they may be missing; predictions may not.
    """
    del result, rules
    for key, folder in _FOLDERS.items():
        # If a file was written again, the last hash counts.
        hashes = {event["value"]["file"]: event["value"]["sha256"] for event in iterate(record.events, key)}
        for file, sha256 in hashes.items():
            parts = PurePosixPath(file).parts
            if len(parts) != 2 or parts[0] != folder or parts[1] == ".." or "\0" in file:
                yield fail(_FILES, f"{file}: not a file in {folder}/")
                continue
            path = record.path / folder / parts[1]
            if not path.is_file():
                missing = fail if folder == FOLDER else skipped
                yield missing(_FILES, f"{file} is missing")
                continue
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256:
                yield fail(_FILES, f"{file}: has the hash {found}, the events name {sha256}")
