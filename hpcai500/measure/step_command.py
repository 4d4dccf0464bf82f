"""One step of a recipe, without its data: what is computed, which gradients are sent, and how long it takes here.

For the cost model (docs/cost-model.md). With 0 steps it only counts, on any machine, in a few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcai500.engine.measurement import Bench, run_measurement
from hpcai500.job_options import Measurement, StepOptions
from hpcai500.methodology.cost import Gradients, Phases, summarised

if TYPE_CHECKING:
    from torch import nn

    from hpcai500.engine.measured_steps import BlankSteps
    from hpcai500.measure.flops import FlopsCount


# ----------------------------------------------------------------------------------------------------
# The gradients of a model in the order of sending, and when each is ready in a backward pass, by counted operations.


def gradients_of(named: Iterable[tuple[str, nn.Parameter]], count: FlopsCount) -> list[Gradients]:
    """Each trained parameter, last registered first, as `comm.reducer.make_buckets` sends them.

    A backward pass goes through the operators of `count` in reverse. The gradient of a parameter is ready when the
    operations of its own module and of all later ones are done: `ready` is their share of the backward FLOPs. Modules
    that are not counted (normalisation) are ready with what was sent before them.
    """
    from hpcai500.comm.reducer import BYTES_AN_ELEMENT  # torch after OpenMP's variables

    done, ready = 0.0, {}
    backward = count.training_flops - count.forward_flops
    for operator in reversed(count.operators):
        done += operator.training_flops - operator.forward_flops
        ready[operator.name] = done / backward
    found: list[Gradients] = []
    latest = 0.0
    trained = [(name, one) for name, one in named if one.requires_grad and one.numel()]
    for name, parameter in reversed(trained):
        latest = max(latest, ready.get(name.rpartition(".")[0], 0.0))
        found.append(Gradients(parameter.numel() * BYTES_AN_ELEMENT, min(1.0, latest)))
    return found


# ----------------------------------------------------------------------------------------------------
# The command.


_LEAST_STEPS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and measure; returns the exit code."""
    return run_measurement(Measurement[StepOptions], _body, arguments)


def _body(bench: Bench[StepOptions]) -> Mapping[str, Any]:
    found = {**_facts(bench), **_count(bench)}
    return {**found, **(_measure(bench) if bench.options.steps else {})}


def _facts(bench: Bench[StepOptions]) -> dict[str, Any]:
    recipe, world = bench.recipe, bench.ranks.world
    return {
        "benchmark": recipe.benchmark,
        "device": recipe.accelerator.device,
        "precision": recipe.accelerator.precision,
        "batch_size": recipe.hyperparameters.batch_size,
        "accumulation_steps": recipe.hyperparameters.accumulation_steps,
        "ranks": world.size,
        "nodes": len(set(world.hosts)),
        "library": world.library,
    }


def _count(bench: Bench[StepOptions]) -> dict[str, Any]:
    """Operations of a sample and gradients of a step, on torch's meta device."""
    from hpcai500.measure.flops import CONVENTION, count_flops  # torch after OpenMP's variables
    from hpcai500.workloads import model_of

    model, example = model_of(bench.recipe, bench.options.classes)
    count = count_flops(model, *example)
    return {
        "convention": CONVENTION,
        "parameters": count.parameters,
        "forward_flops": count.forward_flops,
        "training_flops": count.training_flops,
        "gradients": [asdict(one) for one in gradients_of(model.named_parameters(), count)],
    }


def _measure(bench: Bench[StepOptions]) -> dict[str, Any]:
    """Times of steps that all ranks do together."""
    from hpcai500.engine.measured_steps import BlankSteps

    steps = BlankSteps(bench.recipe, bench.ranks, bench.device, bench.cores, bench.options.classes)
    try:
        bucket_bytes = steps.prepare()
        alone, together = _timed(bench, steps)
        return {
            "steps": len(alone[0]),
            "bucket_bytes": bucket_bytes,
            "alone": summarised(alone),
            "together": summarised(together) if steps.has_peers else None,
            "evaluation_seconds_per_sample": steps.evaluation_seconds(),
        }
    finally:
        steps.close()


def _timed(bench: Bench[StepOptions], steps: BlankSteps) -> tuple[list[list[Phases]], list[list[Phases]]]:
    """Phases of each rank's steps: without communication, and with it."""
    world, most = bench.ranks.world, bench.options.steps
    alone: list[Phases] = []
    together: list[Phases] = []
    limit = time.perf_counter() + bench.options.seconds
    is_going = True
    while is_going:
        # In turn, so that other load of the machine affects both alike.
        alone.append(steps.step(together=False))
        if steps.has_peers:
            together.append(steps.step(together=True))
        done = len(alone)
        is_going = world.broadcast_object(done < most and (done < _LEAST_STEPS or time.perf_counter() < limit))
    everybody = world.gather_objects((alone, together))
    return [one for one, _ in everybody], [other for _, other in everybody]


if __name__ == "__main__":
    sys.exit(main())
