"""What options of layers 5 and 4 that concern an accelerator ask of each other."""

from __future__ import annotations

from hpcai500.layers.system import Accelerator, Framework
from hpcai500.layers.training import Hyperparameters

# torch has one kernel for all parameters of these; LARS and LAMB take norms of each layer between two passes.
_FUSED = ("sgd", "adam", "adagrad")


def accelerator_problem(
    framework: Framework,
    accelerator: Accelerator,
    policy: Hyperparameters,
    *,
    loaders: tuple[str, ...],
    stages: int,
    norm: str | None = None,
) -> str | None:
    """What keeps a recipe's options of framework and accelerator from working together, with the fix; or None.

    Args:
        framework: layer 5.
        accelerator: layer 4.
        policy: layer 8.
        loaders: input pipelines that can read the benchmark's files.
        stages: of the model, a rank each.
        norm: the normalisation of its layers, where the benchmark names one.
    """
    on_device = accelerator.device == "cuda"
    if accelerator.precision == "tf32" and not on_device:
        return "accelerator.precision: tf32 exists on CUDA devices only; use fp32 or bf16 on a CPU"
    if accelerator.loader not in loaders:
        return f"accelerator.loader: expected {' or '.join(loaders)} for this benchmark, got {accelerator.loader}"
    if accelerator.conversion == "device" and not on_device:
        return (
            "accelerator.conversion: `device` is for CUDA devices, but accelerator.device is "
            f"{accelerator.device}; use `host`"
        )
    return _graphs_problem(framework, accelerator, stages, norm) or _fused_problem(framework, policy)


def _graphs_problem(framework: Framework, accelerator: Accelerator, stages: int, norm: str | None) -> str | None:
    if not framework.cuda_graphs:
        return None
    if accelerator.device != "cuda":
        return (
            f"framework.cuda_graphs: CUDA devices have them, but accelerator.device is {accelerator.device}; set it to "
            "false"
        )
    if stages > 1:
        return (
            "framework.cuda_graphs: stages of one model wait for each other within a step, which no graph can hold; "
            "set it to false, or programming.stages to 1"
        )
    if norm == "sync-batch":
        return (
            "framework.cuda_graphs: synchronised batch norm waits for other ranks within a step, which no graph can "
            "hold; set it to false, or workload.norm to another norm"
        )
    return None


def _fused_problem(framework: Framework, policy: Hyperparameters) -> str | None:
    if not framework.fused_optimizer:
        return None
    if policy.optimizer not in _FUSED:
        return (
            f"framework.fused_optimizer: torch has no single kernel for {policy.optimizer}, only for "
            f"{', '.join(_FUSED)}; set it to false"
        )
    if policy.optimizer == "sgd" and policy.momentum_form != "outside":
        return (
            "framework.fused_optimizer: torch's kernel of sgd multiplies the rate outside of the momentum; set "
            "it to false, or hyperparameters.momentum_form to outside"
        )
    return None
