"""Between two looks at the losses, a step asks the device for no value: on a GPU each answer makes the host wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500.engine.trainer import Trainer

# Each gives the host a number, or a tensor whose size is a value.
ANSWERS = {
    "aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.is_nonzero", "aten.masked_select", "aten._unique2",
    "aten.unique_dim", "aten.unique_consecutive",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Counts the operators that run within."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the updates of a run did, by operator."""
    seen: Counter[str] = Counter()
    update = Trainer._update

    def watched(self: Trainer, epoch: int, batches: Any) -> None:
        with Watch(seen):
            update(self, epoch, batches)

    monkeypatch.setattr(Trainer, "_update", watched)
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        ("accelerator.precision=fp32",),
        ("accelerator.precision=bf16", "hyperparameters.accumulation_steps=2"),
        ("accelerator.precision=fp16", "framework.fused_optimizer=true"),
        ("accelerator.precision=int8", "hyperparameters.optimizer=lars"),
    ],
)
def test_a_step_of_classification_asks_for_no_value(
    run: Callable[..., tuple[int, Path]], operators: Counter[str], settings: tuple[str, ...]
) -> None:
    code, _ = run("problem.epochs=1", "hyperparameters.warmup_epochs=0", *settings)
    assert code in (0, 2)
    assert operators["aten.convolution"] + operators["aten.mkldnn_convolution"] > 20
    assert not {name for name in operators if name in ANSWERS}


def test_an_unfused_optimizer_asks_whether_a_gradient_of_fp16_overflowed(
    run: Callable[..., tuple[int, Path]], operators: Counter[str]
) -> None:
    """Once a step: docs/training-step.md says so. This also shows that the test above can fail."""
    run("problem.epochs=1", "hyperparameters.warmup_epochs=0", "accelerator.precision=fp16")
    assert operators["aten._local_scalar_dense"] > 0


def test_a_watch_sees_an_answer() -> None:
    seen: Counter[str] = Counter()
    with Watch(seen):
        torch.ones(3).sum().item()
    assert ANSWERS & seen.keys()
