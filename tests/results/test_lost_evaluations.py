"""A campaign whose runs went back over epochs that were evaluated: one is bad luck, more are a choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from forgeries_of_restarts import go_back, gone_back
from written_campaign import SHORT, edit_record, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.record import Event


def reasons(campaign: Path) -> list[str]:
    return [one for one in standing(read_campaign(campaign)).reasons if "trained again" in one]


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        ([(3, 3)], None),
        ([(3, 2)], "epoch 2 with top1"),
        ([(3, 3), (2, 2)], "epoch 2 with top1"),
    ],
)
def test_one_lost_evaluation_is_allowed_and_a_second_one_is_not(
    tmp_path: Path, ways: list[tuple[int, int]], told: str | None
) -> None:
    campaign = write_campaign(tmp_path / "c", *SHORT, trials=2)

    def change(events: list[Event]) -> None:
        for killed, epoch in ways:
            gone_back(events, killed, epoch)

    go_back(campaign, campaign / "trial-02", change)
    found = reasons(campaign)
    assert len(found) == (told is not None)
    assert all(one.startswith("trial 2, attempt 1: trained again after it was evaluated: ") for one in found)
    assert all(told in one and "epoch 3 with top1" in one for one in found if told)


def test_one_in_each_of_two_runs_is_two(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path / "c", *SHORT, trials=2)
    for name in ("trial-01", "trial-02"):
        edit_record(campaign / name, lambda events: gone_back(events, 3, 3))
    assert [one.partition(":")[0] for one in reasons(campaign)] == ["trial 1, attempt 1", "trial 2, attempt 1"]
