"""One process at a time is at a member: from what it stages to what its journal tells."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import pytest
from test_ensemble_folder import planned

from hpcai500.campaign.attempts import Invocation, begin_attempt
from hpcai500.campaign.journal import turn_at
from hpcai500.ensemble.journal import begin_member
from hpcai500.ensemble.member import MemberOrder, _turn, run_member
from hpcai500.errors import RunError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept; nobody sleeps."""
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(taken))
    return taken


def test_a_member_that_somebody_is_at_is_left_alone_after_a_while(tmp_path: Path, naps: list[float]) -> None:
    ensemble = planned(tmp_path / "e")
    ensemble.folder(1).mkdir(parents=True)
    with turn_at(ensemble.folder(1), 0), pytest.raises(RunError, match="is being run by another process"):
        run_member(MemberOrder(ensemble.path, 1), launcher_of(find_placement({}), None))
    # Longer than NFS keeps the locks of a node that died.
    assert 90 < sum(naps) < 200
    assert list(ensemble.folder(1).glob("*")) == []


def test_a_member_whose_ranks_outlive_their_command_is_waited_for(tmp_path: Path, naps: list[float]) -> None:
    ensemble = planned(tmp_path / "e")
    campaign = begin_member(ensemble, 0)
    campaign, attempt = begin_attempt(campaign, 1, Invocation([], "alone", None))
    path = campaign.record(attempt) / "events.jsonl"
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="is being run by another process"):
            run_member(MemberOrder(ensemble.path, 0), launcher_of(find_placement({}), None))
    with _turn(ensemble, 0):
        pass


def test_a_member_that_was_killed_while_it_began_begins_again(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    folder = ensemble.folder(2)
    folder.mkdir(parents=True)
    for name in ("recipe.toml", ".campaign.jsonl.17.tmp", "output.txt", "failures.jsonl", ".trial-00.lock"):
        (folder / name).write_text("cut")
    assert begin_member(ensemble, 2).trials[0].seed == 3
