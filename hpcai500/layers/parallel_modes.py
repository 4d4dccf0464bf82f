"""What each parallel mode (V3.0 Table 2) asks of the rest of a recipe."""

from __future__ import annotations

from hpcai500.layers.system import Programming


def parallel_mode_problem(
    programming: Programming, *, ranks: int, batch_size: int, backend: str, topology: str, compiles: bool
) -> str | None:
    """What keeps a recipe's parallel mode from being laid over `ranks`, with the fix; None where nothing does."""
    mode, stages, parts = programming.parallel_mode, programming.stages, programming.micro_batches
    if mode == "data":
        if (stages, parts) == (1, 1):
            return None
        return (
            f"programming.parallel_mode: `data` has whole models, but stages is {stages} and micro_batches {parts}; "
            "set both to 1, or parallel_mode to model, pipeline or mixed"
        )
    return (
        _size_problem(mode, stages, ranks)
        or _parts_problem(mode, parts, batch_size)
        or _support_problem(mode, backend, topology, compiles)
    )


def _size_problem(mode: str, stages: int, ranks: int) -> str | None:
    if stages < 2:
        return f"programming.stages: `{mode}` cuts the model: expected at least 2 stages, got {stages}"
    if mode != "mixed" and ranks != stages:
        return (
            f"programming.stages: `{mode}` has a rank for each stage, but hardware asks for {ranks} ranks and there "
            f"are {stages} stages; make them equal, or use parallel_mode mixed for several replicas"
        )
    if ranks % stages or (mode == "mixed" and ranks < 2 * stages):
        return (
            f"programming.stages: `mixed` has several replicas of {stages} stages: expected a multiple of {stages} "
            f"ranks, at least {2 * stages}, got {ranks} (hardware.nodes x accelerators_per_node)"
        )
    return None


def _parts_problem(mode: str, parts: int, batch_size: int) -> str | None:
    if mode == "model" and parts != 1:
        return f"programming.micro_batches: `model` passes whole batches: expected 1, got {parts}; or use pipeline"
    if mode == "pipeline" and parts < 2:
        return "programming.micro_batches: `pipeline` fills its stages with several: expected at least 2, got 1"
    if batch_size % parts:
        return (
            f"programming.micro_batches: expected a divisor of hyperparameters.batch_size ({batch_size}), got {parts}"
        )
    return None


def _support_problem(mode: str, backend: str, topology: str, compiles: bool) -> str | None:
    if backend != "torch":
        return (
            f"communication.backend: stages talk by torch's own pipelining, which `{backend}` has not: use torch, or "
            "parallel_mode data"
        )
    if topology != "flat":
        return f"communication.topology: `{mode}` parallelism sums flat; use flat, or parallel_mode data"
    if compiles:
        return f"framework.compile: stages of `{mode}` parallelism are not compiled; use false, or parallel_mode data"
    return None
