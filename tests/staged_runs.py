"""Settings of tiny runs whose model is cut into stages."""

from __future__ import annotations


def settings_of(mode: str, stages: int, micro_batches: int = 1, ranks: int | None = None) -> tuple[str, ...]:
    """Overrides for a run of `ranks`, by default one for each stage."""
    return (
        f"programming.parallel_mode={mode}",
        f"programming.stages={stages}",
        f"programming.micro_batches={micro_batches}",
        f"hardware.accelerators_per_node={ranks or stages}",
        "communication.backend=torch",
        "communication.timeout_seconds=20",
    )
