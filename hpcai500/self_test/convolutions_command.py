"""`python -m hpcai500.self_test.convolutions_command FOLDER LIMIT`: gradients of both benchmarks' convolutions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from hpcai500.errors import ExitCode
from hpcai500.measure.convolutions import FIX, Setting, convolutions_of, wrong_gradients
from hpcai500.recipe import load_recipe
from hpcai500.self_test.checking import require
from hpcai500.self_test.process import begin
from hpcai500.workloads import model_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks. The findings tell how they ended; the exit code does not."""
    findings = begin(arguments).findings
    for name in ("ic/smoke", "ewa/smoke"):
        findings.check(f"convolutions: {name}", compare(name))
    return ExitCode.PASS


def compare(recipe_name: str, overrides: Sequence[str] = ()) -> Callable[[], str]:
    """The check of the convolutions of a recipe's model."""

    def check() -> str:
        recipe = load_recipe(recipe_name, overrides)
        shapes, setting = convolutions_of(model_of(recipe)[0]), Setting.of(recipe, torch.device("cpu"))
        wrong = wrong_gradients(shapes, setting)
        require(not wrong, f"{'; '.join(wrong)} ({setting.words}: {FIX})")
        return f"gradients of {len(shapes)} shapes, {setting.words}"

    return check


if __name__ == "__main__":
    sys.exit(main())
