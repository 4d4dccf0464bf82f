"""Evaluates checkpoints of a run again: the recipe's model, with those weights, on the whole evaluation set.

The last checkpoint is also evaluated on a sample of the training set and, if one is given, on a held-back set, in one
process on this machine, by the code that evaluates during a run. Checkpoints are untrusted: they may be forged, exhaust
the memory, or try to run code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.engine.measurement import exit_code_of, load_torch
from hpcai500.errors import DataError, RecipeError
from hpcai500.files import scratch, write_atomically
from hpcai500.hosts import find_placement
from hpcai500.job_options import ReplayOptions, read_options
from hpcai500.layers import Ensemble, Recipe
from hpcai500.methodology.samples import samples_of
from hpcai500.recipe import ensemble_reference, read_resolved

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hpcai500.engine.precision import Precision
    from hpcai500.engine.ranks import Ranks
    from hpcai500.workloads.base import Evaluation, Workload


# ----------------------------------------------------------------------------------------------------
# The command.


# With more samples the sampling error is smaller than the differences between data sets of one origin.
_MOST_TRAINING_SAMPLES = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay; returns the exit code, 2 if a checkpoint is refused. Errors are one line on stderr."""

    def command() -> None:
        options = read_options(ReplayOptions, arguments)
        recipe = _on_device(read_resolved(options.recipe), options.device)
        with scratch(os.environ, options.result.parent):
            load_torch()
            from hpcai500.comm.communicator import LocalCommunicator
            from hpcai500.engine.ranks import Ranks

            # Without the launcher's variables: this process is not a rank of a job.
            ranks = Ranks(find_placement({}), LocalCommunicator(), recipe.communication.timeout_seconds)
            with closing(ranks) as alone:
                found = replay(
                    recipe,
                    options.checkpoint,
                    options.data,
                    alone,
                    at_target=options.at_target,
                    held_back=options.held_back,
                )
        write_atomically(options.result, (json.dumps(found, allow_nan=False) + "\n").encode())

    return exit_code_of(command)


def replay(
    recipe: Recipe,
    checkpoint: Path,
    data: Path,
    alone: Ranks,
    *,
    at_target: Path | None = None,
    held_back: Path | None = None,
) -> dict[str, Any]:
    """Quality of the weights in `checkpoint`, the run's last one, with facts about the data and the model.

    Args:
        alone: this process, which has no other ranks.
        at_target: the checkpoint with which the run reached its target; its quality is added as `at_target`.
        held_back: folder of a data set with the same layout; the quality on its evaluation set is added as `held_back`.

    Raises:
        WrongAnswerError: a checkpoint is refused.
        DataError: the data cannot be read.
        EnvironmentLacksError: this machine does not have the recipe's device.
    """
    import torch  # after OpenMP's variables are set

    from hpcai500.engine.precision import Precision, device_of
    from hpcai500.measure.threads import use_threads
    from hpcai500.workloads import factory
    from hpcai500.workloads.base import Place

    device = device_of(recipe, alone)
    precision = Precision(recipe.accelerator.precision, device)
    cores = alone.cores()
    use_threads(recipe.os.threads or cores)
    torch.manual_seed(recipe.hyperparameters.seed)
    place = Place(
        device,
        precision.input_dtype,
        recipe.os.input_threads or cores,
        total_shares=recipe.shards,
        shares=tuple(range(recipe.shards)),
        tracker=alone.tracker(),
    )
    build = factory(recipe.benchmark)
    with closing(build(recipe, data, place)) as workload:
        if workload.metric != recipe.problem.metric:
            raise RecipeError(f"problem.metric: {recipe.benchmark} measures {workload.metric}")
        evaluator = _Evaluator(recipe, workload.model, device, precision, alone)
        found = {"at_target": {**evaluator.loaded(at_target), **evaluator.quality(workload)}} if at_target else {}
        found |= evaluator.loaded(checkpoint)
        evaluation, facts = evaluator.quality(workload), _facts(workload)
        found["training"] = evaluator.training_quality(workload)
        classes = workload.dataset().get("classes")
    if held_back is not None:
        with closing(build(recipe, held_back, place)) as other:
            if other.dataset().get("classes") != classes:
                what = f"{other.dataset().get('classes')} classes; {data} has {classes}"
                raise DataError(f"{held_back}: {what}: the held-back data set must have the same classes")
            found["held_back"] = evaluator.quality(other)
    return {
        "metric": recipe.problem.metric,
        **evaluation,
        "device": device.type,
        "precision": recipe.accelerator.precision,
        **facts,
        **found,
    }


@dataclass(frozen=True)
class _Evaluator:
    """Evaluates weights, one checkpoint after the other, in one model."""

    recipe: Recipe
    model: nn.Module
    device: torch.device
    precision: Precision
    alone: Ranks

    def loaded(self, checkpoint: Path) -> dict[str, Any]:
        """Load the weights of `checkpoint`; returns their sketch and first filters.

        Raises:
            WrongAnswerError: it is refused.
        """
        from hpcai500.engine.checkpoint_weights import first_filters, load_weights, sketch_of
        from hpcai500.measure.convolutions import to_memory_format

        load_weights(self.model.to("cpu"), checkpoint)
        compared = {"sketch": sketch_of(self.model), "filters": first_filters(self.model)}
        self.model.to(self.device)
        to_memory_format(self.model, self.recipe, self.device, trains=False)
        return compared

    def quality(self, workload: Workload) -> dict[str, Any]:
        """Quality on the whole evaluation set of `workload`."""
        with self._evaluating(workload.dataset()["evaluation_samples"]) as on_batch:
            return _document(workload.evaluate(self.model, on_batch))

    def training_quality(self, workload: Workload) -> dict[str, Any]:
        """Quality on training samples, read as in evaluation, drawn without a seed so that they are unpredictable."""
        import numpy as np

        from hpcai500.workloads.voting import voter

        dataset = workload.dataset()
        total = dataset["training_samples"]
        count = min(total, dataset["evaluation_samples"], _MOST_TRAINING_SAMPLES)
        ids = np.sort(np.random.default_rng().choice(total, count, replace=False))
        with self._evaluating(count) as on_batch:
            predictions = workload.predictions(self.model, ids, on_batch)
        table = Ensemble(**ensemble_reference(self.recipe.benchmark))
        quality = voter(self.recipe.model_copy(update={"ensemble": table}), ids).alone(predictions)
        assert quality is not None
        return _document(quality)

    @contextmanager
    def _evaluating(self, samples: int) -> Iterator[Callable[[int], None]]:
        """Set up evaluation as in a run; yields a callback that takes the number of finished samples."""
        import torch  # after OpenMP's variables are set

        self.model.eval()
        before = 0
        with (
            torch.inference_mode(),
            self.precision.forward(),
            self.alone.tracker()(samples, "evaluating", samples_of(self.recipe.benchmark).names) as bar,
        ):

            def on_batch(done: int) -> None:
                nonlocal before
                bar.advance(done - before)
                before = done

            yield on_batch


def _document(evaluation: Evaluation) -> dict[str, Any]:
    return {"value": evaluation.value, "samples": evaluation.samples, "per_class": dict(evaluation.per_class)}


def _facts(workload: Workload) -> dict[str, Any]:
    from hpcai500.measure.flops import count_flops  # torch after OpenMP's variables

    dataset = workload.dataset()
    counted, example = workload.counted()
    count = count_flops(counted, *example)
    return {
        "fingerprint": dataset["fingerprint"],
        "content_fingerprint": dataset["content_fingerprint"],
        "flops_per_sample": count.training_flops,
        "parameters": count.parameters,
    }


def _on_device(recipe: Recipe, device: str | None) -> Recipe:
    """`recipe` on another device; on a CPU with the native loader, which is always available and gives equal images."""
    if device is None:
        return recipe
    change = {"device": device} | ({"loader": "native", "conversion": "host"} if device == "cpu" else {})
    return recipe.model_copy(update={"accelerator": recipe.accelerator.model_copy(update=change)})


if __name__ == "__main__":
    sys.exit(main())
