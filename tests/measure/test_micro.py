"""`hpcai500 micro`: what is measured at once by all ranks, what is refused, and what is printed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.commands import Typed, hpcai500
from builders.ranks import run_ranks, try_ranks
from torch import Tensor

from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.errors import EnvironmentLacksError, WrongAnswerError
from hpcai500.measure import bandwidth, micro, micro_command
from hpcai500.measure.bandwidth import Draining, copy_bytes, measure_copy, measure_input
from hpcai500.measure.micro import (
    PRECISIONS,
    MeasuringJob,
    Precision,
    Prepared,
    available_bytes,
    entry_bound,
    fastest,
    last_level_cache_bytes,
)
from hpcai500.measure.products import Gemm, ProductsOfStep
from hpcai500.progress import silent
from hpcai500.recipe import load_recipe

CPU = torch.device("cpu")
ONE_HOST, TWO_HOSTS = ("a", "a"), ("a", "a", "b", "b")


def job_of(communicator: Communicator, said: list[str] | None = None) -> MeasuringJob:
    return MeasuringJob(communicator, CPU, 1, say=(said if said is not None else []).append)


@dataclass(frozen=True)
class Broken:
    """A product whose only call is fast, and wrong in one tile: what no library here does, so it is made here."""

    real: Gemm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        prepared = self.real.prepare(precision, device)
        right = next(iter(prepared.calls.values()))

        def multiply() -> Tensor:
            product = right().clone()
            product[5:9, 5:9] = 0
            return product

        return Prepared({"broken": multiply}, prepared.check)


class Right(Broken):
    """A right product by a call of the same name: ranks measure what all of them have tried."""

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        prepared = self.real.prepare(precision, device)
        return Prepared({"broken": next(iter(prepared.calls.values()))}, prepared.check)


def _find(communicator: Communicator, broken_rank: int | None) -> dict[str, Any] | None:
    problem = (Broken if communicator.rank == broken_rank else Right)(Gemm(48, 32, 64))
    with silent(1, "", "") as bar:
        return fastest([problem], PRECISIONS["fp32"], job_of(communicator), 1.0, bar)


def test_the_fastest_way_is_reported_with_its_shape_and_call() -> None:
    said: list[str] = []
    with silent(1, "", "") as bar:
        problems = [Gemm(8, 8, 8), Gemm(256, 256, 256)]
        entry = fastest(problems, PRECISIONS["bf16"], job_of(LocalCommunicator(), said), 1.0, bar)
    assert entry
    # Not which: a busy machine may find either one, or give the larger one up.
    assert entry["shape"] in {row["shape"] for row in entry["tried"]}
    assert entry["verified"]
    assert entry["interval"][0] <= entry["value"] <= entry["interval"][1]
    assert entry["per_rank"] == [entry["value"]]
    assert {row["shape"] for row in entry["tried"]} <= {"m 8, n 8, k 8", "m 256, n 256, k 256"}
    # oneDNN's product with packed weights in bf16 needs AVX-512; elsewhere micro says that it leaves this call out.
    told = {line.partition(": ")[2].partition(" failed: ")[0] for line in said}
    assert told == (set() if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {"oneDNN linear, packed"}), said


def test_sums_rounded_after_each_part_are_within_the_bound_for_parts_alone() -> None:
    parts, products, generator = 128, 16, torch.Generator().manual_seed(500)
    exact, computed = torch.zeros(200_000, dtype=torch.float64), torch.zeros(200_000, dtype=torch.bfloat16)
    for _ in range(parts):
        # A sum of products of operands that are uniform in [-1, 1]: each has the variance 1/9.
        part = torch.randn(len(exact), generator=generator, dtype=torch.float64) * (products / 9) ** 0.5
        exact += part
        computed = (computed + part).to(torch.bfloat16)
    error = (computed - exact).abs()
    bound = entry_bound(exact, parts * products, PRECISIONS["bf16"], parts=parts)
    assert (error <= bound).all()
    assert (error > entry_bound(exact, parts * products, PRECISIONS["bf16"])).any()
    # And it is no wider than that: values of another sum are far beyond.
    assert ((exact.roll(1) - exact).abs() > bound).float().mean() > 0.5


def test_a_fast_product_that_is_wrong_is_a_wrong_answer() -> None:
    with silent(1, "", "") as bar, pytest.raises(WrongAnswerError, match=r"rank 0 on host .* has a wrong result"):
        fastest([Broken(Gemm(48, 32, 64))], PRECISIONS["fp32"], job_of(LocalCommunicator()), 1.0, bar)


def test_ranks_measure_at_once_and_are_summed() -> None:
    first, second = run_ranks(_find, 2, None)
    assert first["value"] == second["value"] == sum(first["per_rank"])
    assert first["accelerators"] == 2
    assert first["nodes"] == 1
    assert first["slowest"]["value"] == min(first["per_rank"])


def test_one_ranks_wrong_result_is_told_by_all() -> None:
    outcomes, _ = try_ranks(_find, 2, 1)
    assert {outcome.error for outcome in outcomes} == {"WrongAnswerError"}
    assert all("rank 1 on host" in outcome.message for outcome in outcomes)


class Endless(Broken):
    """A product of more operations than any machine has time for."""

    @property
    def flops(self) -> int:
        return 10**24

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        raise AssertionError("it must not come to this")


def test_what_would_take_too_long_or_has_no_room_is_not_tried() -> None:
    with silent(1, "", "") as bar:
        problems = [Gemm(64, 64, 64), Endless(Gemm(64, 64, 64)), Gemm(1 << 20, 1 << 20, 1 << 20)]
        entry = fastest(problems, PRECISIONS["fp32"], job_of(LocalCommunicator()), 1.0, bar)
    assert entry
    assert [row["shape"] for row in entry["tried"]] == ["m 64, n 64, k 64"]


@dataclass(frozen=True)
class OnSlowMachine(Broken):
    """A product by a call of a million operations a second, and perhaps by one that takes no time."""

    claimed: int
    begun: list[int]
    other: bool = False

    @property
    def flops(self) -> int:
        return self.claimed

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        def multiply() -> Tensor:
            self.begun.append(self.claimed)
            time.sleep(self.claimed / 1e6)
            return torch.zeros(())

        others = {"fast": lambda: torch.zeros(())} if self.other else {}
        return Prepared({"slow": multiply, **others}, lambda product: None)


def test_nothing_is_begun_that_would_take_minutes_on_a_slow_machine() -> None:
    begun: list[int] = []
    small, large = (OnSlowMachine(Gemm(8, 8, 8), claimed, begun) for claimed in (10**4, 10**9))
    with silent(1, "", "") as bar:
        found = fastest([large], PRECISIONS["fp32"], job_of(LocalCommunicator()), 1.0, bar, [small])
    assert found is None
    assert set(begun) == {10**4}


def test_a_call_that_would_take_too_long_is_left_out_where_another_does_not() -> None:
    begun: list[int] = []
    small, large = (OnSlowMachine(Gemm(8, 8, 8), claimed, begun, other=True) for claimed in (10**4, 10**7))
    with silent(1, "", "") as bar:
        entry = fastest([large], PRECISIONS["fp32"], job_of(LocalCommunicator()), 1.0, bar, [small])
    assert entry
    assert entry["call"] == "fast"
    assert set(begun) == {10**4}


def test_time_for_large_squares_is_not_taken_from_the_workloads_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []
    monkeypatch.setattr(micro, "fastest", lambda problems, *_: asked.append(list(problems)))
    recipe = load_recipe("ic/smoke", ())
    walk = micro_command._Walk(recipe, ProductsOfStep())
    layers = [Gemm(4096, 24, 216), Gemm(64, 10, 192)]
    walk.products.gemms.update(layers)
    with silent(1, "", "") as bar:
        assert not list(micro_command._products("gemm", [walk], job_of(LocalCommunicator(), []), 1.0, bar))
    for problems in asked:
        assert problems == sorted(problems, key=lambda problem: problem.flops)
        assert problems[:2] == layers[::-1]


def test_a_copys_pattern_fills_every_size() -> None:
    for size in (448, 8_000_064):
        pattern = bandwidth._pattern(size, torch.device("cpu"))
        assert (pattern.dtype, len(pattern)) == (torch.uint8, size)
        numbers = pattern.view(torch.int32)
        assert torch.equal(numbers, torch.arange(size // 4, dtype=torch.int32) % 1_000_003)


def test_copies_are_four_times_the_caches_where_memory_allows() -> None:
    assert copy_bytes(300 << 20, 64 << 30, 1) == 1200 << 20
    assert copy_bytes(300 << 20, 64 << 30, 4) == 300 << 20
    assert copy_bytes(1 << 20, 64 << 30, 1) == 256 << 20
    assert copy_bytes(300 << 20, 1000, 1) == 448


def test_a_copy_counts_what_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "copy_bytes", lambda caches, available, ranks: 1 << 20)
    with silent(1, "", "") as bar:
        entry = measure_copy(job_of(LocalCommunicator()), 0.05, bar)
    assert entry["unit"] == "bytes/s"
    assert {row["call"] for row in entry["tried"]} == {"torch copy_", "stream_copy"}
    assert entry["value"] == max(row["value"] for row in entry["tried"])


def test_a_copy_that_lost_bytes_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "copy_bytes", lambda caches, available, ranks: 1 << 20)
    monkeypatch.setattr(bandwidth._core, "stream_copy", lambda source, target, threads: None)
    with silent(1, "", "") as bar, pytest.raises(WrongAnswerError, match="copy by stream_copy: rank 0"):
        measure_copy(job_of(LocalCommunicator()), 0.05, bar)


@dataclass(frozen=True)
class Images:
    samples: np.ndarray[Any, np.dtype[np.int64]]
    payload: Any


def _epochs(first: float = 0.0, steps: int = 10) -> Any:
    drawn = iter(range(10**6))

    def epochs(number: int) -> Generator[Images]:
        for _ in range(steps):
            yield Images(np.arange(8), (torch.arange(4.0) + first * next(drawn),))

    return epochs


def test_what_lay_in_the_ring_is_not_counted() -> None:
    now = iter(range(10**6))
    taken: list[int] = []

    def epochs(number: int) -> Generator[Images]:
        for batch in range(10):
            taken.append(batch)
            yield Images(np.arange(8), None)

    drain = Draining(epochs, ring=4, batches=2, clock=lambda: float(next(now)))
    for _ in range(4):
        drain.round()
    # Five of each epoch are let go; a round is never of two epochs.
    assert taken == [*range(10), *range(9)]
    assert drain.samples == 16


def test_input_is_measured_in_samples() -> None:
    with silent(1, "", "") as bar:
        entry = measure_input("ic", job_of(LocalCommunicator()), _epochs(), 2, 10, 0.01, bar, call="made here")
    assert entry["unit"] == "samples/s"
    assert entry["call"] == "made here"


def test_images_that_differ_when_read_again_are_a_wrong_answer() -> None:
    with silent(1, "", "") as bar, pytest.raises(WrongAnswerError, match="images differ when they are read"):
        measure_input("ic", job_of(LocalCommunicator()), _epochs(first=1.0), 2, 10, 0.01, bar)


def test_too_few_batches_for_the_ring_are_said_with_the_fix() -> None:
    with silent(1, "", "") as bar, pytest.raises(EnvironmentLacksError, match="give a larger data set"):
        measure_input("ic", job_of(LocalCommunicator()), _epochs(steps=5), 4, 5, 0.01, bar)


def test_memory_and_caches_are_the_machines(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2000 kB\nMemFree: 500 kB\nMemAvailable:    1000 kB\n")
    assert available_bytes(CPU, 2, tmp_path) == 1000 * 1024 // 4
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for index, level, size in ((0, 1, "48K"), (3, 3, "32M")):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared), ("type", "Unified")):
                (folder / name).write_text(f"{text}\n")
    assert last_level_cache_bytes(tmp_path) == 64 << 20
    assert last_level_cache_bytes(tmp_path / "nowhere") == 0


TINY = ["--recipe", "ic/smoke", "--seconds", "0.3", "--set", "hyperparameters.batch_size=4"]


def test_the_command_prints_one_document_and_writes_it(tmp_path: Path) -> None:
    done = hpcai500("micro", "gemm", "conv", *TINY, "--json", "-o", "micro.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "micro.json").read_text())
    assert {"gemm fp32", "gemm bf16", "conv fp32"} <= set(document)
    assert "gemm tf32" not in document
    assert "gemm tf32: left out: tf32 exists on CUDA devices only" in done.stderr
    for entry in document.values():
        assert entry["value"] > 0
        assert entry["unit"] == "FLOPS"
        # When and where, for `track`.
        assert entry["hosts"] == [socket.gethostname()]
        assert abs(entry["time_ms"] / 1000 - time.time()) < 86_400


def test_the_command_prints_a_table_and_stable_lines(tmp_path: Path, images: Path) -> None:
    data = ["--data", str(images), "--set", "accelerator.prefetch_batches=2"]
    done = hpcai500("micro", "input", *TINY, *data, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["measurement", "value", "95", "%", "interval", "spread", "shape"]
    assert lines[-2].startswith("HPCAI500 FOM input_ic=")
    assert lines[-2].endswith(" samples/s")
    assert lines[-1] == "HPCAI500 RESULT PASS"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gem"], "micro gem: expected gemm, conv, copy, allreduce, allgather, "),
        (["allreduce"], "allreduce: left out: there is only one rank; start more with --procs N or a launcher"),
        (["allgather", "pairs"], "allgather, pairs: left out: there is only one rank"),
        (["device"], "device: skipped: copies from, to and between devices need CUDA"),
        (["gemm", "--data", "."], "--data is for input"),
        (["gemm", "--seconds", "0"], "Invalid value for '--seconds'"),
        (["input", "--recipe", "ic/reference"], "input ic: skipped: it reads imagenet-1k: add --data DIR"),
        (["gemm", "-o", "nowhere/micro.json", "--seconds", "0.05"], "nowhere/micro.json: cannot be written"),
    ],
)
def test_a_mistake_is_told_with_exit_code_64(typed: Typed, arguments: list[str], expected: str) -> None:
    recipe = [] if "--recipe" in arguments else ["--recipe", "ic/smoke"]
    done = typed("micro", *arguments, *recipe, "--set", "accelerator.device=cpu")
    assert done.returncode == 64
    assert not [line for line in done.stdout.splitlines() if "PASS" in line]
    assert expected in done.stderr
