"""Profiles of real training steps of both workloads, on one rank and on two."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from builders.ranks import start
from builders.runs import TINY, TINY_WEATHER

from hpcai500.job_options import Measurement, ProfileOptions, as_argument

STEPS = 4


def profile(data: Path, folder: Path, settings: tuple[str, ...], ranks: int = 1) -> dict[str, Any]:
    """What the in-job command finds out of `STEPS` steps on `ranks` ranks."""
    benchmark = "ewa" if settings[: len(TINY_WEATHER)] == TINY_WEATHER else "ic"
    world = (f"hardware.accelerators_per_node={ranks}", "communication.backend=torch") if ranks > 1 else ()
    result, options = folder / "result.json", ProfileOptions(data, folder / "trace.json.gz", STEPS)
    told = Measurement(f"{benchmark}/smoke", (*settings, *world), result, folder / "doing", options)
    command = [sys.executable, "-m", "hpcai500.measure.profile_command", as_argument(told)]
    ended = start(command, ranks, "processes")
    assert ended.exit_codes == [0] * ranks, ended.output
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def calls(found: dict[str, Any]) -> dict[str, float]:
    """Of each class, calls a step."""
    return {name: row["calls"] / STEPS for name, row in found["classes"].items()}


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Image Classification on one rank, channels first."""
    folder = tmp_path_factory.mktemp("alone")
    return profile(images, folder, (*TINY, "framework.channels_last=false")), folder / "trace.json.gz"


@pytest.fixture(scope="module")
def together(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The same on two ranks, with compressed gradients and norms over all ranks, channels last."""
    settings = ("communication.compression=fp16", "workload.norm=sync-batch", "communication.bucket_bytes=20000")
    folder = tmp_path_factory.mktemp("together")
    return profile(images, folder, (*TINY, *settings), ranks=2), folder / "trace.json.gz"


def test_every_kernel_of_image_classification_is_classified(alone: tuple[dict[str, Any], Path]) -> None:
    found, _ = alone
    assert found["launch"] is None
    assert found["unclassified_share"] < 0.02, found["unclassified"]
    assert sum(row["share"] for row in found["classes"].values()) + found["unclassified_share"] == pytest.approx(1)
    # The smoke model: a stem, four blocks of two convolutions, three shortcuts; each forward and backward.
    counted = calls(found)
    assert counted["convolution"] == counted["batch normalisation"] == 2 * (1 + 8 + 3)
    # The classifier forward, and two products backward.
    assert counted["GEMM"] == 3
    # Of pixels and of the whole picture, forward and backward; the latter's backward pass is a plain division.
    assert counted["pooling"] >= 3
    assert counted["all-reduce"] == 0
    assert found["top"][0]["share"] == max(row["share"] for row in found["top"])


def test_every_kernel_of_extreme_weather_is_classified(weather: Path, tmp_path: Path) -> None:
    found = profile(weather, tmp_path, TINY_WEATHER)
    assert found["unclassified_share"] < 0.02, found["unclassified"]
    assert all(found["classes"][name]["seconds"] > 0 for name in found["classes"] if name != "all-reduce")


def test_use_of_the_cores_is_sampled_and_the_profilers_cost_told(alone: tuple[dict[str, Any], Path]) -> None:
    found, _ = alone
    assert found["utilisation"]
    assert all(0 <= fraction <= 1 for _, fraction in found["utilisation"])
    assert found["overhead"]["step_seconds"] > 0
    assert found["overhead"]["profiled_step_seconds"] == found["profiled"]["step_seconds"]
    assert found["sampled"]["steps"] == found["profiled"]["steps"] == STEPS
    assert found["bandwidth"] == []


def test_channels_first_are_rearranged_inside_convolutions_and_channels_last_are_not(
    alone: tuple[dict[str, Any], Path], together: tuple[dict[str, Any], Path]
) -> None:
    def is_of_images(row: dict[str, Any]) -> bool:
        """In oneDNN's letters, whose first axis is in blocks where it counts outputs of weights."""
        return row["hidden"] and {"NCHW", "blocks aBcd"} <= {row["source"], row["target"][:11]}

    first, last = ([row for row in it[0]["layout"]["conversions"] if is_of_images(row)] for it in (alone, together))
    assert {row["from"] for row in first} == {"convolution"}
    assert last == []


def test_many_ranks_show_sums_and_packing(together: tuple[dict[str, Any], Path]) -> None:
    found, _ = together
    counted = calls(found)
    assert found["classes"]["all-reduce"]["seconds"] > 0
    assert counted["all-reduce"] > 2 * 12, "each norm talks forward and backward"
    names = {row["name"] for row in found["top"]}
    assert "hpcai500:all_reduce" in names
    assert found["classes"]["memcpy"]["seconds"] > 0
    assert found["bandwidth_of"].startswith("loopback of ")
    assert any(point["sent_bytes_per_second"] > 0 for point in found["bandwidth"])
    assert {curve["path"] for curve in found["bandwidth_nodes"]} >= {"loopback"}


def test_the_trace_shows_steps_operators_and_each_bucket(together: tuple[dict[str, Any], Path]) -> None:
    found, path = together
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [event for event in events if event.get("name") == "hpcai500:step" and event["ph"] == "X"]
    assert len(steps) == STEPS
    packed = [event for event in events if event.get("name") == "hpcai500:pack"]
    assert len(packed) > STEPS, "several buckets a step"
    begin, end = min(step["ts"] for step in steps), max(step["ts"] + step["dur"] for step in steps)
    # Clocks of the trace and of the spans are set by each other once; they drift by microseconds.
    assert all(begin - 1e3 < event["ts"] < end + 1e3 for event in packed)
    assert found["steps"] == STEPS
