"""Records that were made by other backends, libraries or numbers of ranks are never put together silently."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from written_record import COSTS, ranks, write_record

from hpcai500.errors import WrongAnswerError
from hpcai500.results.outcome import CommandOutcome, RunOutcome
from hpcai500.results.score import score_record, why_no_mean

GLOO = {"world_size": 2, "nodes": 1, "backend": "torch", "library": "Gloo"}


def pair(folder: Path, world: dict[str, Any], *settings: str) -> list[Path]:
    """Two runs with seeds of their own, the second as `world` and `settings` say."""
    one = write_record(folder / "one", *ranks(2), world=GLOO)
    return [one, write_record(folder / "two", *ranks(2), *settings, "hyperparameters.seed=2", world=GLOO | world)]


def outcome(records: list[Path]) -> CommandOutcome:
    return CommandOutcome([RunOutcome(record, score_record(record)) for record in records])


def test_runs_of_one_backend_are_averaged(tmp_path: Path) -> None:
    records = pair(tmp_path, {})
    assert why_no_mean(records) is None
    document = outcome(records).document()
    assert (document["no_mean"], document["trials"]["flops"]["runs"]) == (None, 2)


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"backend": "horovod"}, "ran on the backend horovod, .* on the backend torch"),
        ({"library": "NCCL 2.27"}, "ran on NCCL 2.27, .* on Gloo"),
        ({"world_size": 4}, "ran on 4 rank.s., .* on 2 rank.s."),
        ({"nodes": 2}, "ran on 2 node.s., .* on 1 node.s."),
    ],
)
def test_what_really_ran_decides_although_the_recipes_agree(tmp_path: Path, world: dict[str, Any], reason: str) -> None:
    records = pair(tmp_path, world)
    said = why_no_mean(records)
    assert said is not None
    assert re.search(f"two {reason}", said)
    shown = outcome(records)
    lines = list(shown.lines())
    assert f"no mean: {said}" in lines
    assert not [line for line in lines if line.startswith(("HPCAI500 FOM", "all trials"))]
    assert sum(line.startswith("benchmark ") for line in lines) == 2
    assert (shown.document()["trials"], shown.document()["no_mean"]) == ({}, said)


def test_recipes_of_two_backends_are_not_averaged(tmp_path: Path) -> None:
    said = why_no_mean(pair(tmp_path, {}, "communication.backend=horovod"))
    assert said == f"{tmp_path / 'two'} differs from {tmp_path / 'one'} in communication.backend"


def test_records_from_before_there_was_a_word_for_it_still_belong_together(tmp_path: Path) -> None:
    one = write_record(tmp_path / "one")
    assert why_no_mean([one, write_record(tmp_path / "two", "hyperparameters.seed=2")]) is None


def test_a_person_and_a_harness_see_what_communication_cost(tmp_path: Path) -> None:
    record = write_record(tmp_path / "one", *ranks(2), world=GLOO, costs=COSTS)
    lines = list(outcome([record]).lines())
    assert "benchmark   ic, edition v2.0, 2 process(es), torch (Gloo)" in lines
    assert "comm wait   12.5% of training time" in lines
    assert "bytes       4 MB of gradients a rank and step, 3 MB sent" in lines
    assert "stragglers  rank 1 on n1" in lines
    assert "HPCAI500 FOM communication_fraction=0.125 fraction" in lines
    assert "HPCAI500 FOM sent_bytes_per_step=3e+06 B" in lines
    assert "HPCAI500 FOM stragglers=1 ranks" in lines


def test_of_many_stragglers_a_line_names_the_first(tmp_path: Path) -> None:
    slow = [f"rank {rank} on n{rank}" for rank in range(6)]
    record = write_record(tmp_path / "one", *ranks(8), costs=COSTS | {"stragglers": slow})
    assert f"stragglers  {', '.join(slow[:4])} and 2 more" in list(outcome([record]).lines())


def test_one_process_says_nothing_of_communication(tmp_path: Path) -> None:
    lines = list(outcome([write_record(tmp_path / "one")]).lines())
    assert not [line for line in lines if "comm" in line or "bytes" in line or "straggl" in line]


def test_a_result_of_a_version_that_knew_fewer_numbers_is_still_right(tmp_path: Path) -> None:
    record = write_record(tmp_path / "one")
    path = record / "result.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("input", "step_split")}
    path.write_text(json.dumps(older))
    assert score_record(record).input == "real"
    path.write_text(json.dumps(older | {"flops": 1e18}))
    with pytest.raises(WrongAnswerError, match="flops is 1e"):
        score_record(record)
