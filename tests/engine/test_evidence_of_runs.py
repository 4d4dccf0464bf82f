"""What a run leaves for those who doubt it: ceilings of its own devices, equal replicas, its place in a campaign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from many_ranks import run_ranks
from tiny_runs import train_arguments

from hpcai500 import train
from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.engine import evidence
from hpcai500.engine.evidence import require_equal
from hpcai500.measure.preflight import Product
from hpcai500.record import iterate, read_record

Run = Callable[..., tuple[int, Path]]
PLACE = {"id": "ab" * 32, "trial": 2, "attempt": 1, "head": "cd" * 32}


def test_a_run_measures_what_its_devices_reach_before_its_clock_starts(run: Run) -> None:
    _, path = run()
    events = read_record(path).events
    (measured,) = iterate(events, "ceilings")
    (began,) = iterate(events, "run_start")
    assert measured["seq"] < began["seq"]
    value = measured["value"]
    assert (value["precision"], value["ranks"]) == ("fp32", 1)
    assert value["flops"] == value["slowest_flops"] > 1e8


def test_the_weights_are_looked_at_after_each_epoch(run: Run) -> None:
    _, path = run()
    events = read_record(path).events
    found = [event["value"] for event in iterate(events, "replicas")]
    assert found == [{"epoch": epoch, "ranks": 1, "digest": None} for epoch in (1, 2, 3)]


def test_a_device_that_computes_wrongly_ends_the_run_by_the_name_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "measure_product", lambda *_, **__: Product(1024, 1e9, 0.0, 3, 1e9))
    world = LocalCommunicator()
    with pytest.raises(evidence.RunError, match=f"rank 0 on {world.hosts[0]} computes wrongly: 3 of 1024 rows"):
        evidence.measure_ceilings(world, torch.device("cpu"), "fp32")


def digest_of_equal_weights(world: Communicator, value: float) -> str | None:
    """What two ranks with the same weights agree on."""
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return require_equal(model, world)


def test_equal_replicas_share_a_digest_that_other_weights_do_not_have() -> None:
    one, other = (run_ranks(digest_of_equal_weights, 2, value) for value in (1.0, 2.0))
    assert one[0] == one[1] != other[0]
    assert one[0] is not None
    assert len(one[0]) == 16


def test_a_record_keeps_which_run_of_which_campaign_it_is(images: Path, tmp_path: Path) -> None:
    place = ":".join(str(part) for part in PLACE.values())
    arguments = train_arguments(images, tmp_path / "record", "problem.epochs=1", "hyperparameters.warmup_epochs=0")
    assert train.main([*arguments, "--campaign", place]) == 0
    (began,) = iterate(read_record(tmp_path / "record").events, "init_start")
    assert began["value"]["campaign"] == PLACE


def test_a_run_outside_of_a_campaign_says_so(run: Run) -> None:
    _, path = run()
    (began,) = iterate(read_record(path).events, "init_start")
    assert began["value"]["campaign"] is None


def test_a_place_in_a_campaign_that_is_none_is_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*train_arguments(images, tmp_path / "record"), "--campaign", "mine"]) == 64
    assert "expected ID:TRIAL:ATTEMPT:HEAD, got 'mine'" in capsys.readouterr().err
