"""A sum that is wrong on any rank, and a record that does not say what was done, are wrong answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.errors import HpcAi500Error, RunError, WrongAnswerError
from hpcai500.record import read_record
from hpcai500.self_test.ranks import check_sum
from hpcai500.self_test.training import check_record, train_tiny


class Careless(LocalCommunicator):
    """One rank whose library gets one sum wrong by the last bit."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor[-1] += 2**-10


def test_an_exact_sum_passes_and_the_last_bit_of_one_does_not() -> None:
    assert "exactly" in check_sum(LocalCommunicator(), 1)
    with pytest.raises(WrongAnswerError, match="rank 0 has 1 of 1000003 sums wrong"):
        check_sum(Careless(), 1)


def test_ranks_that_did_not_come_together_are_no_sum() -> None:
    with pytest.raises(RunError, match="1 ranks came together instead of 2"):
        check_sum(LocalCommunicator(), 2)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert "66 images in 2 epochs" in train_tiny("ic", folder)
    return folder / "record"


def test_another_number_of_images_is_found(record: Path) -> None:
    assert check_record(read_record(record), 33).images == 66
    with pytest.raises(WrongAnswerError, match="images"):
        check_record(read_record(record), 34)


def test_a_result_that_is_not_the_events_is_found(record: Path) -> None:
    path = record / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"flops": result["flops"] * 1.01}))
    with pytest.raises(WrongAnswerError, match=r"result\.json"):
        check_record(read_record(record), 33)
    path.write_text(json.dumps(result))


def test_weights_that_are_no_numbers_are_found(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.load

    def broken(*arguments: object, **named: object) -> dict[str, dict[str, torch.Tensor]]:
        return {"model": {name: tensor * torch.nan for name, tensor in load(*arguments, **named)["model"].items()}}

    monkeypatch.setattr(torch, "load", broken)
    with pytest.raises(WrongAnswerError, match="no numbers"):
        check_record(read_record(record), 33)


def test_a_run_that_fails_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "ERROR").write_text("the disk is full\n")
    with pytest.raises(HpcAi500Error, match="the disk is full"):
        train_tiny("ic", tmp_path)
