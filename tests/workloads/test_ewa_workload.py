"""Extreme Weather Analytics as the engine sees it: what is in a batch, what it is trained against, what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from tiny_runs import TINY_WEATHER

from hpcai500.data.climate.years import CHANNELS, file_name
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place
from hpcai500.workloads.ewa import ExtremeWeatherWorkload
from hpcai500.workloads.models.detector import Targets


@contextmanager
def workload(
    weather: Path, *settings: str, shares: tuple[int, ...] = (0,), total_shares: int = 1
) -> Iterator[ExtremeWeatherWorkload]:
    recipe = load_recipe("ewa/smoke", [*TINY_WEATHER, *settings])
    place = Place(torch.device("cpu"), torch.float32, 2, shares=shares, total_shares=total_shares)
    made = ExtremeWeatherWorkload(recipe, weather, place)
    try:
        yield made
    finally:
        made.close()


def normalised(weather: Path, year: int) -> np.ndarray:
    """All images of `year`, by the statistics of the training year, with NumPy."""
    with h5py.File(weather / file_name(1979)) as file:
        training = file["images"][:].astype(np.float64)
    with h5py.File(weather / file_name(year)) as file:
        values = file["images"][:].astype(np.float64)
    mean, std = training.mean(axis=(0, 2, 3), keepdims=True), training.std(axis=(0, 2, 3), keepdims=True)
    return (values - mean) / std


def test_batches_hold_the_normalised_images_and_boxes_of_the_file(weather: Path) -> None:
    expected = normalised(weather, 1979)
    with h5py.File(weather / file_name(1979)) as file:
        rows = file["boxes"][:]
    with workload(weather, "workload.longitude_roll=false") as made:
        seen = []
        for batch in made.training_batches(epoch=1, first_step=0):
            images, targets = batch.payload
            for position, sample in enumerate(batch.samples):
                np.testing.assert_allclose(images[position].numpy(), expected[sample], atol=2e-4)
                truth = rows[sample][rows[sample][:, 4] >= 0]
                np.testing.assert_array_equal(targets.boxes_of(position).numpy(), truth[:, [1, 0, 3, 2]])
                np.testing.assert_array_equal(targets.labels_of(position).numpy(), truth[:, 4] + 1)
            seen += batch.samples.tolist()
    assert sorted(seen) == list(range(10))


def test_boxes_follow_the_turn_of_the_globe(weather: Path) -> None:
    """Inside a box that was not cut, the turned image holds what the file holds inside the file's box."""
    expected = normalised(weather, 1979)
    with h5py.File(weather / file_name(1979)) as file:
        rows = file["boxes"][:]
    compared = 0
    with workload(weather) as made:
        for batch in made.training_batches(epoch=3, first_step=0):
            images, targets = batch.payload
            for position, sample in enumerate(batch.samples):
                truth = rows[sample][rows[sample][:, 4] >= 0]
                for x1, y1, x2, y2 in targets.boxes_of(position).int().tolist():
                    whole = truth[(truth[:, 0] == y1) & (truth[:, 2] == y2) & (truth[:, 3] - truth[:, 1] == x2 - x1)]
                    for ymin, xmin, ymax, xmax, _ in whole[:1]:
                        inside = images[position, :, y1:y2, x1:x2].numpy()
                        np.testing.assert_allclose(inside, expected[sample][:, ymin:ymax, xmin:xmax], atol=2e-4)
                        compared += 1
    assert compared > 20


def test_channels_come_in_the_order_of_the_recipe(weather: Path) -> None:
    expected = normalised(weather, 1979)
    with workload(weather, 'workload.channels=["TMQ", "PSL"]', "workload.longitude_roll=false") as made:
        batch = next(made.training_batches(epoch=1, first_step=0))
        images = batch.payload[0].numpy()
    numbers = [CHANNELS.index("TMQ"), CHANNELS.index("PSL")]
    np.testing.assert_allclose(images[0], expected[batch.samples[0]][numbers], atol=2e-4)


def test_an_epoch_goes_on_at_any_step_with_the_same_batches(weather: Path) -> None:
    with workload(weather) as made:
        whole = [
            (batch.samples.tolist(), batch.payload[0].clone(), batch.payload[1])
            for batch in made.training_batches(2, 0)
        ]
        rest = [
            (batch.samples.tolist(), batch.payload[0].clone(), batch.payload[1])
            for batch in made.training_batches(2, 1)
        ]
    for (samples, images, targets), (again, same_images, same_targets) in zip(whole[1:], rest, strict=True):
        assert samples == again
        assert torch.equal(images, same_images)
        assert torch.equal(targets.boxes, same_targets.boxes)
        assert torch.equal(targets.seeds, same_targets.seeds)


def test_the_shares_of_an_update_are_an_epoch_together(weather: Path) -> None:
    coverage, samples = Coverage(), []
    for shares in ((0, 2), (1,)):
        with workload(weather, "hyperparameters.batch_size=2", shares=shares, total_shares=3) as made:
            for batch in made.training_batches(1, 0):
                coverage = coverage.add(batch.samples)
                samples += batch.samples.tolist()
    assert sorted(samples) == list(range(10))
    assert coverage.digest == Coverage.expected(10).digest


def test_the_scenes_shown_are_the_images_evaluated(weather: Path) -> None:
    expected = normalised(weather, 1980)
    # Five batches through a ring of two: what was shown first is long overwritten at the end.
    small = ("hyperparameters.batch_size=2", "accelerator.prefetch_batches=2")
    with workload(weather, *small) as made, torch.inference_mode():
        made.evaluate(made.model.eval(), lambda samples: None)
        scenes = made._scenes
        assert len(scenes) == 4
        for scene in scenes:
            np.testing.assert_allclose(scene.image, expected[scene.sample], atol=2e-4)
        assert made.pictures()["detections.png"].startswith(b"\x89PNG")


def test_a_blank_payload_is_shaped_as_those_of_training(weather: Path) -> None:
    with workload(weather, "workload.crop_width=64") as made:
        images, targets = next(made.training_batches(1, 0)).payload
        blank_images, blank_targets = made.blank_payload()
        assert (blank_images.shape, blank_images.dtype) == (images.shape, images.dtype)
        assert blank_targets.boxes.dtype == targets.boxes.dtype
        assert made.loss(made.model.train(), (blank_images, blank_targets)).isfinite()


def form(targets: Targets) -> list[tuple[torch.Size, tuple[int, ...], torch.dtype]]:
    """All that a compiler looks at of these tensors before it makes code for them."""
    return [(one.shape, one.stride(), one.dtype) for one in (targets.boxes, targets.labels, targets.seeds)]


@pytest.mark.parametrize("settings", [(), ("workload.longitude_roll=false",), ("workload.crop_width=64",)])
def test_targets_of_all_batches_have_one_form_which_the_warm_up_has_seen(
    weather: Path, settings: tuple[str, ...]
) -> None:
    with workload(weather, *settings) as made:
        targets = [batch.payload[1] for epoch in (1, 2, 3) for batch in made.training_batches(epoch, 0)]
        _, blank = made.blank_payload()
    assert [form(one) for one in targets] == [form(blank)] * 9
    assert len({int(one.present.sum(dim=1).amax()) for one in targets}) > 1


def test_compiled_code_of_the_warm_up_serves_all_batches(weather: Path) -> None:
    with workload(weather) as made:
        torch.compiler.reset()
        compiled = torch.compile(made.model.train(), backend="eager")
        made.loss(compiled, made.blank_payload()).backward()
        with torch.compiler.set_stance("fail_on_recompile"):
            losses = [made.loss(compiled, batch.payload) for batch in made.training_batches(1, 0)]
        torch.compiler.reset()
    assert all(loss.isfinite() for loss in losses)


@pytest.mark.parametrize("width", [64, 96])
def test_the_counted_work_is_that_of_the_image_trained_on(weather: Path, width: int) -> None:
    with workload(weather, f"workload.crop_width={width}") as made:
        _, (images, regions) = made.counted()
    assert tuple(images.shape[1:]) == (16, 64, width)
    assert len(regions) == 2 * 64
