"""`hpcai500 profile`: real training steps, first undisturbed and sampled, then under torch's profiler on rank 0.

All ranks do the same steps: a warm-up; steps as in a benchmark, while use of CPU, device and network is sampled; steps
under the profiler; and steps without it, for its overhead. On a CPU, a few more steps show what oneDNN reorders inside
its operators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcai500.engine.measurement import Bench, run_measurement
from hpcai500.hosts import is_first_of_host
from hpcai500.job_options import Measurement, ProfileOptions
from hpcai500.streams import say

if TYPE_CHECKING:
    from hpcai500.engine.measured_steps import Measured, ProfiledSteps
    from hpcai500.measure.sampling import NvmlMeter, Sample
    from hpcai500.measure.trace import Reorder

SCHEMA = 1
_WARM_UP_STEPS = 2
# For each measured part; with start and warm-up, everything takes about a minute.
_PART_SECONDS = 12.0
_FEWEST, _MOST_PROFILED, _MOST_SAMPLED = 3, 20, 200
_VERBOSE_STEPS = 3
# As the sampler's interval.
_WINDOW_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile on this rank; returns the exit code."""
    # Keeps the profiler's own log off stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Compiled code for a CPU reports its kernels to the profiler only if this is set when it is compiled.
    os.environ.setdefault("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", "1")
    return run_measurement(Measurement[ProfileOptions], _body, arguments)


def _body(bench: Bench[ProfileOptions]) -> Mapping[str, Any]:
    from torch.profiler import record_function  # after OpenMP's variables are set

    from hpcai500.engine.measured_steps import ProfiledSteps
    from hpcai500.engine.ranks import WatchedCommunicator

    # Collectives of the model itself, as in synchronised batch norm, count as communication.
    world = WatchedCommunicator(bench.ranks.world, lambda: record_function("hpcai500:all_reduce"))
    loop = ProfiledSteps(bench.recipe, bench.options.data, bench.ranks, bench.device, bench.cores, world=world)
    try:
        return _measure(bench, loop)
    finally:
        loop.close()


def _measure(bench: Bench[ProfileOptions], loop: ProfiledSteps) -> Mapping[str, Any]:
    ranks = bench.ranks
    sampled_steps, steps = _plan(loop.warm_up(_WARM_UP_STEPS), bench.options.steps)
    _say(bench, f"{sampled_steps} steps as in a run, then {steps} under the profiler")
    plain, samples = _sample(bench, loop, sampled_steps)
    profiled, document, spans = _profile(bench, loop, steps)
    # The mean of before and after, so that a drift of the machine's speed does not count as overhead.
    without = (plain.step_seconds + loop.run(steps).step_seconds) / 2
    hidden = _hidden_reorders(bench, loop)
    found: dict[str, Any] = {
        **_about(bench),
        "seconds": profiled.seconds,
        "steps": steps,
        "sampled": asdict(plain),
        "profiled": asdict(profiled),
        "overhead": {
            "step_seconds": without,
            "profiled_step_seconds": profiled.step_seconds,
            "fraction": profiled.step_seconds / without - 1,
        },
    }
    found.update(_communication(bench, samples))
    if ranks.leads:
        from hpcai500.comm.liveness import WRITING

        ranks.phase(WRITING)
        found.update(_analysed(bench, document, spans, hidden, samples, profiled, without))
    return found


def _plan(step_seconds: float, steps: int | None) -> tuple[int, int]:
    """Number of steps in the sampled and in the profiled part."""
    if steps:
        return steps, steps
    fitting = max(_FEWEST, int(_PART_SECONDS / step_seconds))
    return min(fitting, _MOST_SAMPLED), min(fitting, _MOST_PROFILED)


def _sample(bench: Bench[ProfileOptions], loop: ProfiledSteps, steps: int) -> tuple[Measured, list[Sample]]:
    from hpcai500.measure.host import read_counters
    from hpcai500.measure.sampling import Sampler

    world = bench.ranks.world
    counters = read_counters if world.size > 1 and is_first_of_host(world.rank, world.hosts) else None
    with _meter(bench) as meter, Sampler(counters, meter) as sampler:
        plain = loop.run(steps)
    return plain, sampler.samples


@contextmanager
def _meter(bench: Bench[ProfileOptions]) -> Iterator[NvmlMeter | None]:
    """A meter of a CUDA device; None on a CPU, or where NVML does not answer."""
    import torch

    from hpcai500.errors import EnvironmentLacksError
    from hpcai500.measure.sampling import nvml_meter

    with ExitStack() as stack:
        meter = None
        if bench.device.type == "cuda":
            try:
                meter = stack.enter_context(nvml_meter(f"GPU-{torch.cuda.get_device_properties(bench.device).uuid}"))
            except EnvironmentLacksError as error:
                _say(bench, f"without the driver's utilisation and NVLink counters: {error}")
        yield meter


def _profile(bench: Bench[ProfileOptions], loop: ProfiledSteps, steps: int) -> tuple[Measured, dict[str, Any], Any]:
    """The profiled steps; on rank 0 with the trace's document, and the spans of buckets with the clock's offset."""
    from hpcai500.comm.liveness import WRITING
    from hpcai500.measure.trace import Spans, clock_offset, mark_of_step, record

    if not bench.ranks.leads:
        return loop.run(steps), {}, None
    spans, measured, offset = Spans(), [], clock_offset()

    def run() -> None:
        measured.append(loop.run(steps, mark_of_step, spans))
        # Stopping the profiler takes long, and the other ranks wait for it.
        bench.ranks.phase(WRITING)

    document = record(run, bench.device)
    return measured[0], document, (spans, offset)


def _hidden_reorders(bench: Bench[ProfileOptions], loop: ProfiledSteps) -> list[Reorder]:
    import torch

    from hpcai500.measure.trace import onednn_lines, reorders, typical

    steps = []
    has_more = bench.device.type == "cpu" and torch.backends.mkldnn.is_available()
    for _ in range(_VERBOSE_STEPS if has_more else 0):
        capture: AbstractContextManager[list[str]] = onednn_lines() if bench.ranks.leads else nullcontext([])
        with capture as lines:
            loop.run(1)
        steps.append(reorders(lines))
    return typical(steps)


def _about(bench: Bench[ProfileOptions]) -> dict[str, Any]:
    import torch

    from hpcai500.data.derived import MANIFEST
    from hpcai500.measure.micro import device_name

    recipe, world = bench.recipe, bench.ranks.world
    is_synthetic = (bench.options.data / MANIFEST).is_file()
    return {
        "schema": SCHEMA,
        "benchmark": recipe.benchmark,
        "device": bench.device.type,
        "device_name": device_name(bench.device),
        "precision": recipe.accelerator.precision,
        "batch_size": recipe.hyperparameters.batch_size,
        "channels_last": recipe.framework.channels_last,
        "compiled": recipe.framework.compile,
        "cuda_graphs": recipe.framework.cuda_graphs,
        "fused_optimizer": recipe.framework.fused_optimizer,
        "compression": recipe.communication.compression,
        "input": "memory" if recipe.accelerator.loader == "memory" else "synthetic" if is_synthetic else "real",
        "ranks": world.size,
        "nodes": len(set(world.hosts)),
        "library": world.library,
        "cores": bench.cores,
        "torch": torch.__version__,
        "hosts": list(world.hosts),
        # What a record must have for the profile to be shown with it.
        "fields": recipe.model_dump(mode="json"),
    }


def _communication(bench: Bench[ProfileOptions], samples: Sequence[Sample]) -> dict[str, Any]:
    """The curves of all nodes; all ranks call it together."""
    from hpcai500.measure.sampling import chosen_curve, curves_of_rank

    world = bench.ranks.world
    gathered = world.gather_objects(curves_of_rank(samples, world.rank, world.hosts[world.rank]))
    curves = [curve for one in gathered for curve in one]
    chosen = chosen_curve(curves, len(set(world.hosts))) if world.size > 1 else None
    return {
        "bandwidth": chosen["points"] if chosen else [],
        "bandwidth_of": f"{chosen['path']} of {chosen['host']}" if chosen else None,
        "bandwidth_nodes": curves,
    }


def _analysed(
    bench: Bench[ProfileOptions],
    document: dict[str, Any],
    spans: Any,
    hidden: Sequence[Reorder],
    samples: Sequence[Sample],
    profiled: Measured,
    step_seconds: float,
) -> dict[str, Any]:
    """What only rank 0 knows: kernels, layouts, utilisation. Writes the trace."""
    from hpcai500.measure.launch_gaps import launch_table
    from hpcai500.measure.sampling import busy_windows, driver_utilisation, processor_utilisation
    from hpcai500.measure.trace import (
        base_nanoseconds,
        breakdown,
        exchange_events,
        process_of,
        read_trace,
        works_of,
        write_trace,
    )

    events = document["traceEvents"]
    if bench.device.type == "cpu":
        kept, offset = spans
        events += exchange_events(kept.buckets, offset, base_nanoseconds(document), process_of(events))
    write_trace(bench.options.trace, document)
    trace = read_trace(events)
    works, launch = works_of(trace, bench.device.type), None
    if bench.device.type == "cpu":
        utilisation, source = processor_utilisation(samples, bench.cores), "this rank's cores"
    else:
        intervals = ((work.start, work.start + work.seconds) for work in works.kernels)
        utilisation, source = busy_windows(intervals, profiled.seconds, _WINDOW_SECONDS), "kernels in the trace"
        launch = launch_table(trace, step_seconds)
    return {
        **breakdown(works.kernels, hidden, profiled.steps),
        "host_seconds": works.host_seconds,
        "utilisation": utilisation,
        "utilisation_of": source,
        "driver_utilisation": driver_utilisation(samples),
        "launch": launch,
    }


def _say(bench: Bench[ProfileOptions], line: str) -> None:
    if bench.ranks.leads:
        say(f"profile: {line}")


if __name__ == "__main__":
    sys.exit(main())
