"""Each epoch saw the training set, or what a member drew, in as many steps as that takes; each evaluation saw all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from hpcai500.methodology.integrity.passes import Pass
from hpcai500.methodology.integrity.values import Dataset, Model
from hpcai500.methodology.result import MEMORY
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.drawn import MOST_DRAWN, draws_can_be_made, draws_of
from hpcai500.results.verification.records.run import Run, judged

_NAME, _COVERAGE = "samples", "coverage"
# So many take two seconds, also for records of as many sizes as a campaign has runs; ImageNet has a fiftieth of it.
_MOST_SAMPLES = 1 << 26


def check_samples(run: Run) -> Iterator[Finding]:
    """Counts of samples, steps and padding with the data set and the recipe; digests of what was delivered."""
    yield from judged(_NAME, _counts(run), fail)
    dataset = run.log.values(Dataset, "dataset")[-1]
    is_member = "ensemble" in run.record.tables
    if dataset.training_samples > (MOST_DRAWN if is_member else _MOST_SAMPLES):
        yield warning(_COVERAGE, f"the digest of {dataset.training_samples} samples was not computed again")
        return
    if is_member and not draws_can_be_made(run, dataset):
        # Which is told under the name of its own.
        return
    expected = draws_of(run, dataset).coverage if is_member else _digest(dataset.training_samples)
    if dataset.coverage != expected:
        whose = "the member's draws of the" if is_member else "the"
        yield fail(
            _COVERAGE,
            f"{whose} data set's {dataset.training_samples} samples give {expected}, told {dataset.coverage}",
        )
    # A few batches that are repeated from memory are no epoch, and no result of theirs is ranked.
    if _tail(run) == "pad" and run.record.tables["accelerator"].get("loader") != MEMORY:
        wrong = [one.done for one in run.epochs if one.done.coverage != expected]
        yield from judged(_COVERAGE, (f"epoch {one.epoch}: {one.coverage}, expected {expected}" for one in wrong), fail)


def _tail(run: Run) -> Any:
    """A plug-in's layer 7 need not have the field: then the last batch is filled up."""
    return run.record.tables["workload"].get("tail", "pad")


def _counts(run: Run) -> Iterator[str]:
    dataset, model = run.log.values(Dataset, "dataset")[-1], run.log.values(Model, "model")[-1]
    policy = run.record.tables["hyperparameters"]
    replicas = run.world_size // int(run.record.tables["programming"].get("stages", 1))
    batch = int(policy["batch_size"]) * int(policy.get("accumulation_steps", 1)) * replicas
    drops = _tail(run) == "drop"
    whole = dataset.samples_of_an_epoch
    steps = whole // batch if drops else -(-whole // batch)
    samples = steps * batch if drops else whole
    if model.steps_per_epoch != steps:
        told = model.steps_per_epoch
        yield f"{whole} samples in batches of {batch} are {steps} steps, told {told}"
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
    """A digest says how many samples it is of."""
    count = one.done.coverage.partition("-")[0]
    return [] if count == str(one.done.samples) else [f"a digest of {count} samples for {one.done.samples}"]


@lru_cache(maxsize=16)
def _digest(samples: int) -> str:
    from hpcai500.methodology.coverage import Coverage  # noqa: PLC0415 - imports numpy

    return Coverage.expected(samples).digest
