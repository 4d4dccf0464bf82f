"""A tiny run of the real engine on synthetic data; its record is then read and scored again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from hpcai500 import train
from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.errors import EnvironmentLacksError, ExitCode, RunError, WrongAnswerError
from hpcai500.methodology.result import Result, derive
from hpcai500.recipe import rulebook
from hpcai500.record import Record, iterate, read_record
from hpcai500.self_test.checking import require, require_equal

_EPOCHS = 2
_COMMON = (
    "problem.dataset=synthetic-tiny",
    f"problem.epochs={_EPOCHS}",
    "os.threads=1",
    "os.input_threads=2",
)
# Few steps of small models; the last step of each epoch is padded.
_SETTINGS = {
    "ic": (
        "hyperparameters.batch_size=8",
        "workload.width=8",
        "workload.image_size=32",
        "workload.evaluation_resize=36",
    ),
    "ewa": (
        "problem.training_years=[1979, 1979]",
        "problem.evaluation_years=[1980, 1980]",
        "workload.width=8",
        "workload.pyramid_channels=8",
        "workload.head_width=16",
        "workload.proposals_before_nms=[30, 30]",
        "workload.proposals_after_nms=[20, 20]",
    ),
}
_KINDS = {ExitCode.WRONG_ANSWER: WrongAnswerError, ExitCode.ENVIRONMENT: EnvironmentLacksError}


def train_tiny(benchmark: str, folder: Path) -> str:
    """Make data, train, read the record, and score it again.

    Raises:
        HpcAi500Error: training failed.
        WrongAnswerError: the record is wrong.
    """
    samples = _make_data(benchmark, folder / "data")
    settings = [token for text in (*_COMMON, *_SETTINGS[benchmark]) for token in ("--set", text)]
    out = folder / "record"
    command = ["--recipe", f"{benchmark}/smoke", "--data", str(folder / "data"), "--out", str(out), *settings]
    code = ExitCode(train.main(command))
    if code != ExitCode.PASS:
        message = (out / "ERROR").read_text(encoding="utf-8").strip() if (out / "ERROR").is_file() else "no record"
        raise _KINDS.get(code, RunError)(f"the run ended with {code}: {message}")
    result = check_record(read_record(out), samples)
    quality = result.quality
    return (
        f"{result.images} images in {_EPOCHS} epochs at {result.images_per_second:.0f} a second, {quality.metric} "
        f"{quality.achieved:.3f}; record complete, score recomputed"
    )


def check_record(record: Record, samples: int) -> Result:
    """The result of `record`, which must be that of a run over `samples` samples per epoch.

    Raises:
        WrongAnswerError: the record differs.
    """
    require_equal("status of the record", record.status, "done")
    result = derive(record.tables, rulebook("v2.0", str(record.tables["benchmark"])), record.events)
    written = json.loads((record.path / "result.json").read_text(encoding="utf-8"))
    require(written == result.as_json(), "result.json differs from the result of the events")
    require_equal("images", result.images, samples * _EPOCHS)
    losses = [event["value"]["loss"] for event in iterate(record.events, "epoch_stop")]
    require(len(losses) == _EPOCHS and all(map(math.isfinite, losses)), f"losses {losses}: expected {_EPOCHS} numbers")
    achieved = result.quality.achieved
    require(achieved is not None and 0 <= achieved <= 1, f"quality {achieved}: expected 0 to 1")
    newest = max((record.path / "checkpoints").glob("epoch-*.pt"))
    weights = torch.load(newest, weights_only=True, map_location="cpu")["model"]
    broken = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    require(not broken, f"weights with NaN or infinite values: {', '.join(broken[:4])}")
    return result


def _make_data(benchmark: str, folder: Path) -> int:
    """Returns the number of samples of an epoch."""
    if benchmark == "ic":
        images = SyntheticSet(classes=3, train_per_class=11, val_per_class=4)
        make_images(folder, images, workers=1)
        return images.classes * images.train_per_class
    years = SyntheticYears(last_year=1980, images_per_year=6, height=64, width=96)
    make_years(folder, years, workers=1)
    return years.images_per_year
