"""A whole run of Extreme Weather Analytics: what its record says, that it can be resumed, and how it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from builders.runs import same_weights, weather_arguments
from PIL import Image

from hpcai500 import train
from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.data.climate.years import CLASSES, file_name
from hpcai500.methodology.sampling import Coverage
from hpcai500.record import iterate, read_record
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines
from hpcai500.results.score import score_record

Run = Callable[..., tuple[int, Path]]


@pytest.fixture
def run(weather: Path, tmp_path: Path) -> Run:
    """Train in this process: `run("table.key=value", …)` gives the exit code and the record."""

    def start(*settings: str, data: Path = weather, name: str = "record") -> tuple[int, Path]:
        out = tmp_path / name
        return train.main(weather_arguments(data, out, *settings)), out

    return start


@pytest.fixture(scope="module")
def finished(weather: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run in one go, for all who only look at it."""
    out = tmp_path_factory.mktemp("finished") / "record"
    assert train.main(weather_arguments(weather, out)) == 0
    return out


def test_a_run_ends_in_a_record_with_the_precision_of_each_class(finished: Path) -> None:
    record = read_record(finished)
    assert record.status == "done"
    evaluations = [event["value"] for event in iterate(record.events, "eval_accuracy")]
    assert [value["samples"] for value in evaluations] == [10, 10]
    assert all(set(value["per_class"]) == set(CLASSES) for value in evaluations)
    present = [value for value in evaluations[-1]["per_class"].values() if value is not None]
    assert evaluations[-1]["value"] == pytest.approx(np.mean(present))
    for event in iterate(record.events, "epoch_stop"):
        assert (event["value"]["steps"], event["value"]["samples"], event["value"]["padded_samples"]) == (3, 10, 2)
        assert event["value"]["coverage"] == Coverage.expected(10).digest


def test_the_result_shows_every_class(finished: Path) -> None:
    result = score_record(finished)
    assert json.loads((finished / "result.json").read_text()) == result.as_json()
    assert result.quality.per_class is not None
    assert set(result.quality.per_class) == set(CLASSES)
    shown = "\n".join(summary_lines(result))
    assert all(name in shown for name in CLASSES)
    assert any(line.startswith("HPCAI500 FOM map50=") for line in figure_of_merit_lines(result))
    assert not result.rankable
    for part in ("13140", "grid", "was made by `hpcai500 data make`"):
        assert any(part in reason for reason in result.reasons), part


def test_the_record_holds_a_picture_and_vouches_for_it(finished: Path) -> None:
    record = read_record(finished)
    picture = next(iterate(record.events, "picture"))["value"]
    content = (finished / picture["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == picture["sha256"]
    assert Image.open(finished / picture["file"]).size[0] > 600
    keys = [event["key"] for event in record.events]
    assert keys.index("picture") > keys.index("run_stop"), "drawing is not run time"


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(finished: Path, run: Run) -> None:
    _, same = run(name="same")
    _, other = run("hyperparameters.seed=2", name="other")
    assert same_weights(finished, same)
    assert not same_weights(finished, other)


def test_a_resumed_run_ends_with_the_same_weights(finished: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(finished, tmp_path / "stopped"))
    # As a kill in the second epoch leaves it: the events up to the first checkpoint.
    lines = (finished / "events.jsonl").read_bytes().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if b'"key":"checkpoint"' in line)
    (stopped / "events.jsonl").write_bytes(b"".join(lines[: last + 1]))
    for name in ("DONE", "result.json"):
        (stopped / name).unlink()
    shutil.rmtree(stopped / "pictures")
    assert train.main(["--resume", "--out", str(stopped)]) == 0
    assert same_weights(finished, stopped)
    assert (stopped / "pictures" / "detections.png").is_file()


@pytest.mark.parametrize(
    "settings",
    [
        ("workload.longitude_roll=false",),
        ("workload.crop_width=64",),
        ('workload.channels=["TMQ", "PSL", "U850", "V850"]',),
        ("workload.norm=sync-batch", "framework.channels_last=false"),
        ("accelerator.precision=bf16",),
        ("framework.compile=true",),
    ],
    ids=lambda settings: settings[0].partition(".")[2],
)
def test_options_train(run: Run, settings: tuple[str, ...]) -> None:
    code, path = run("problem.epochs=1", *settings)
    assert code == 0
    assert read_record(path).status == "done"


def shipped(folder: Path, images_per_year: int = 10) -> Path:
    """The same two years in the layout in which the data set is shipped."""
    years = SyntheticYears(last_year=1980, images_per_year=images_per_year, height=64, width=96, layout="shipped")
    make_years(folder, years, workers=1)
    return folder


def test_years_as_shipped_are_read_in_windows(run: Run, tmp_path: Path) -> None:
    code, path = run("problem.epochs=1", data=shipped(tmp_path / "shipped", images_per_year=60))
    assert code == 0
    dataset = next(iterate(read_record(path).events, "dataset"))["value"]
    assert dataset["images_per_window"] > 1


def test_the_same_weather_in_another_layout_has_the_same_fingerprint(finished: Path, run: Run, tmp_path: Path) -> None:
    _, other = run("problem.epochs=1", data=shipped(tmp_path / "copy"))
    facts = [next(iterate(read_record(path).events, "dataset"))["value"] for path in (finished, other)]
    assert facts[0]["fingerprint"] == facts[1]["fingerprint"]


def test_a_missing_year_ends_the_run_before_it_starts(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, path = run("problem.evaluation_years=[1980, 1982]")
    error = capsys.readouterr().err.strip()
    assert code == 64
    assert "1981" in error
    assert "1982" in error
    assert "\n" not in error.splitlines()[-1]
    assert not any(iterate(read_record(path).events, "run_start"))


def no_boxes(data: Path) -> None:
    with h5py.File(data / file_name(1980), "r+") as file:
        file["boxes"][...] = -1


def not_a_number(data: Path) -> None:
    with h5py.File(data / file_name(1980), "r+") as file:
        file["images"][3, 6, 10, 10] = np.nan


def one_value(data: Path) -> None:
    with h5py.File(data / file_name(1979), "r+") as file:
        file["images"][:, 7] = 5.0


def truncated(data: Path) -> None:
    path = data / file_name(1979)
    path.write_bytes(path.read_bytes()[:-100_000])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (no_boxes, ["the years 1980 to 1980 have no boxes"]),
        (not_a_number, [file_name(1980), "TMQ", "NaN"]),
        (one_value, ["TREFHT: all values are 5"]),
        (truncated, [file_name(1979)]),
    ],
)
def test_years_that_cannot_be_trained_on_end_the_run_before_it_starts(
    run: Run,
    weather: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    said: list[str],
) -> None:
    data = Path(shutil.copytree(weather, tmp_path / "data"))
    harm(data)
    code, path = run(data=data)
    assert code == 64
    error = capsys.readouterr().err
    assert all(part in error for part in said), error
    assert not any(iterate(read_record(path).events, "run_start"))


def test_a_channel_that_the_recipe_leaves_out_does_not_matter(run: Run, weather: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(weather, tmp_path / "data"))
    not_a_number(data)
    code, _ = run('workload.channels=["PSL", "U850"]', data=data)
    assert code == 0


def test_a_corrupt_chunk_names_file_dataset_image_and_chunk(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shipped(tmp_path / "broken")
    with h5py.File(broken / file_name(1979)) as file:
        chunk = file["images"].id.get_chunk_info(3)
    with (broken / file_name(1979)).open("r+b") as stream:
        stream.seek(chunk.byte_offset + chunk.size // 2)
        stream.write(b"\xff" * 64)
    code, _ = run(data=broken)
    error = capsys.readouterr().err
    assert code == 64
    assert all(part in error for part in (file_name(1979), "images", "chunk")), error


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("problem.evaluation_years=[1979, 1980]", "evaluation_years: expected years that are not trained on"),
        ('workload.channels=["TMQ", "RAIN"]', "got 'RAIN'"),
        ("workload.crop_width=5000", "workload.crop_width: expected at most 96"),
        ("workload.depths=[1, 1]", "anchors: expected 3 levels"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], setting: str, reason: str
) -> None:
    code, _ = run(setting)
    assert code == 64
    assert reason in capsys.readouterr().err


def test_a_run_from_memory_trains_on_held_images_with_their_own_boxes(run: Run) -> None:
    _, path = run("accelerator.loader=memory")
    result = score_record(path)
    assert (result.input, result.data_wait_fraction, result.images) == ("memory", 0.0, 2 * 10)
    losses = [event["value"]["loss"] for event in iterate(read_record(path).events, "epoch_stop")]
    assert losses[1] < losses[0]
