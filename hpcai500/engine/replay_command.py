"""Evaluates the checkpoint of a run again: the recipe's model, with those weights, on the whole evaluation set.

On this machine, in one process, however many the run had, by the code that evaluates during a run. The checkpoint may
come from anybody.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.engine.measurement import CommandParser, exit_code_of, let_threads_spin
from hpcai500.errors import RecipeError
from hpcai500.files import write_atomically
from hpcai500.placement import find_placement
from hpcai500.recipe import parse_resolved
from hpcai500.scratch import scratch

if TYPE_CHECKING:
    from hpcai500.engine.precision import Precision
    from hpcai500.engine.ranks import Ranks
    from hpcai500.layers import Recipe
    from hpcai500.workloads.base import Evaluation, Workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay; returns the exit code: 2 for a checkpoint that is refused. Errors are one line on stderr."""

    def command() -> None:
        options = _options(arguments)
        recipe = _on_device(_read_recipe(options.recipe), options.device)
        with scratch(os.environ, options.json_out.parent):
            let_threads_spin()
            found = replay(recipe, options.checkpoint, options.data)
        write_atomically(options.json_out, (json.dumps(found, allow_nan=False) + "\n").encode())

    return exit_code_of(command)


def replay(recipe: Recipe, checkpoint: Path, data: Path) -> dict[str, Any]:
    """Quality of the weights in `checkpoint`, with the facts of the data and the model that it was found with.

    Raises:
        WrongAnswerError: the checkpoint is refused.
        DataError: the data cannot be read.
        EnvironmentLacksError: this machine has not the recipe's device.
    """
    import torch  # noqa: PLC0415 - after OpenMP's variables are set

    from hpcai500.comm.local import LocalCommunicator  # noqa: PLC0415
    from hpcai500.engine.checkpoint_weights import load_weights  # noqa: PLC0415
    from hpcai500.engine.devices import device_of  # noqa: PLC0415
    from hpcai500.engine.precision import Precision  # noqa: PLC0415
    from hpcai500.engine.ranks import Ranks  # noqa: PLC0415
    from hpcai500.measure.convolutions import to_memory_format  # noqa: PLC0415
    from hpcai500.workloads import factory  # noqa: PLC0415
    from hpcai500.workloads.base import Place  # noqa: PLC0415

    # Whatever launcher this is started under, it is no rank of its job.
    alone = Ranks(find_placement({}), LocalCommunicator(), recipe.communication.timeout_seconds)
    device = device_of(recipe, alone)
    precision = Precision(recipe.accelerator.precision, device)
    cores = alone.cores()
    torch.set_num_threads(recipe.os.threads or cores)
    torch.manual_seed(recipe.hyperparameters.seed)
    place = Place(
        device,
        precision.input_dtype,
        recipe.os.input_threads or cores,
        total_shares=recipe.shards,
        shares=tuple(range(recipe.shards)),
        tracker=alone.tracker(),
    )
    with closing(factory(recipe.benchmark)(recipe, data, place)) as workload:
        if workload.metric != recipe.problem.metric:
            raise RecipeError(f"problem.metric: {recipe.benchmark} measures {workload.metric}")
        load_weights(workload.model, checkpoint)
        workload.model.to(device)
        to_memory_format(workload.model, recipe, device, trains=False)
        evaluation = _evaluated(workload, precision, alone)
        return {
            "metric": workload.metric,
            "value": evaluation.value,
            "samples": evaluation.samples,
            "per_class": dict(evaluation.per_class),
            "device": device.type,
            "precision": recipe.accelerator.precision,
            **_facts(workload),
        }


def _evaluated(workload: Workload, precision: Precision, alone: Ranks) -> Evaluation:
    import torch  # noqa: PLC0415 - after OpenMP's variables are set

    workload.model.eval()
    with torch.inference_mode(), precision.forward(), _shown(workload, alone) as on_batch:
        return workload.evaluate(workload.model, on_batch)


@contextmanager
def _shown(workload: Workload, alone: Ranks) -> Iterator[Callable[[int], None]]:
    """What is told how many samples are evaluated."""
    before = 0
    with alone.tracker()(workload.dataset()["evaluation_samples"], "evaluating", "images") as bar:

        def on_batch(samples: int) -> None:
            nonlocal before
            bar.advance(samples - before)
            before = samples

        yield on_batch


def _facts(workload: Workload) -> dict[str, Any]:
    from hpcai500.measure.flops import count_flops  # noqa: PLC0415 - torch after OpenMP's variables

    dataset = workload.dataset()
    counted, example = workload.counted()
    count = count_flops(counted, *example)
    return {
        "fingerprint": dataset["fingerprint"],
        "content_fingerprint": dataset["content_fingerprint"],
        "flops_per_sample": count.training_flops,
        "parameters": count.parameters,
    }


def _read_recipe(path: Path) -> Recipe:
    try:
        return parse_resolved(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not a text in UTF-8: {error.reason}") from error


def _on_device(recipe: Recipe, device: str | None) -> Recipe:
    """`recipe` there. On a CPU all loaders make the same images, and the native one is everywhere."""
    if device is None:
        return recipe
    change = {"device": device} | ({"loader": "native", "conversion": "host"} if device == "cpu" else {})
    return recipe.model_copy(update={"accelerator": recipe.accelerator.model_copy(update=change)})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog="python -m hpcai500.engine.replay_command", description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", type=Path, required=True, help="recipe.toml of the record")
    parser.add_argument("--checkpoint", type=Path, required=True, help="its last checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--json-out", type=Path, required=True, help="file that the result is written to")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="another device than the recipe's")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
