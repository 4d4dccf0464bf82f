"""Files of figures: what one command writes, every other command that takes such a file reads, for any number of ranks.

The files of one and two ranks are from real ranks. Sixty-four, one on each node, are one rank whose measurements count
64 times: the same functions build the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.commands import Typed
from builders.ranks import run_ranks
from builders.records import COSTS, settings_of_ranks, write_record

from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.machine import load_machine
from hpcai500.measure.bandwidth import measure_copy
from hpcai500.measure.collectives import measure_collective
from hpcai500.measure.links import measure_hosts
from hpcai500.measure.micro import PRECISIONS, MeasuringJob, device_name, fastest
from hpcai500.measure.products import Gemm
from hpcai500.progress import silent
from hpcai500.results.acceptance.contract import find_metric
from hpcai500.results.acceptance.measured import read_ceilings
from hpcai500.results.given_files import given_machine
from hpcai500.toml_source import MOST_BYTES, MOST_DOTS

RANKS = (1, 2, 64)


def micro_document(world: Communicator, nodes: int, kind: type[MeasuringJob] = MeasuringJob) -> dict[str, Any]:
    """What `hpcai500 micro` writes of a small product, a copy, all-reduces and links, of ranks on so many nodes."""
    world.hosts = tuple(f"n{rank % nodes:02d}" for rank in range(world.size))
    job = kind(world, torch.device("cpu"), 1, say=[].append)
    with silent(1, "", "") as bar:
        product = fastest([Gemm(64, 64, 64)], PRECISIONS["fp32"], job, 0.2, bar)
        assert product
        found = {"gemm fp32": product, "copy": measure_copy(job, 0.05, bar)}
        found |= measure_collective("allreduce", job, world, 0.1, bar)
        found |= measure_hosts(job, world, 0.1, bar)
    measured = {"time_ms": time.time_ns() // 1_000_000, "hosts": list(world.hosts)}
    return {name: {**entry, **measured} for name, entry in found.items()}


class Many(LocalCommunicator):
    """One rank that stands for many: each of them has this rank's objects, and messages go nowhere."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.world_ranks = size, tuple(range(size))

    def gather_objects(self, thing: Any) -> list[Any]:
        return [thing] * self.size

    def group(self, members: Sequence[int]) -> Communicator | None:
        return Many(len(members))


class Unchecked(MeasuringJob):
    """A job whose messages go nowhere, so that none of them arrives."""

    def require(self, what: str, error: str | None) -> None: ...


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The file of so many ranks, each on a node of its own, as `micro -o` writes it."""
    folder = tmp_path_factory.mktemp("figures")

    def file_of(ranks: int) -> Path:
        path = folder / str(ranks) / "micro.json"
        if not path.exists():
            few = ranks <= 2
            found = run_ranks(micro_document, ranks, ranks)[0] if few else micro_document(Many(ranks), ranks, Unchecked)
            path.parent.mkdir()
            path.write_text(json.dumps(found, allow_nan=False) + "\n")
        return path

    return file_of


# Each command that takes a file of micro; `here` is a folder with a record and a recipe.
READERS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "roofline --micro": lambda file, here: ["roofline", here / "run", "--micro", file],
    "roofline --machine": lambda file, here: ["roofline", here / "run", "--machine", file],
    "report": lambda file, here: ["report", here / "run", "--machine", file, "-o", here / "page.html"],
    "scale": lambda file, here: ["scale", "--predict", "128", "ic", "--machine", file, "--recipe", here / "ic.toml"],
    "estimate": lambda file, here: ["ic", "--estimate", "--machine", file],
    "track": lambda file, here: ["track", file.parent],
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_what_micro_writes(
    reader: str, ranks: int, micro: Callable[[int], Path], typed: Typed, tmp_path: Path
) -> None:
    few = min(ranks, 2)
    size = settings_of_ranks(few, nodes=few)
    costs = COSTS if few > 1 else None
    cpu = device_name(torch.device("cpu"))
    write_record(tmp_path / "run", "hyperparameters.batch_size=16", *size, costs=costs, cpu=cpu)
    (tmp_path / "ic.toml").write_text('benchmark = "ic"\nedition = "v2.0"\n')
    ended = typed(*READERS[reader](micro(ranks), tmp_path))
    if reader == "scale" and ranks == 1:
        assert "the speed of its network is unknown" in ended.stderr, "one rank has none"
    else:
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("ranks", RANKS)
def test_accept_takes_what_micro_writes(ranks: int, micro: Callable[[int], Path]) -> None:
    entry = read_ceilings(micro(ranks)).entry(find_metric("gemm fp32"))
    assert entry
    assert entry["accelerators"] == ranks


def test_a_file_of_many_ranks_passes_limits_of_toml(micro: Callable[[int], Path]) -> None:
    file = micro(64)
    content = file.read_bytes()
    assert content.count(b".") > MOST_DOTS
    assert len(content) > MOST_BYTES
    assert load_machine(file) == given_machine(file)[0]
    assert load_machine(file).nodes == 64
