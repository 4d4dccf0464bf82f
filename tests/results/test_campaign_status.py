"""What is said of a campaign: every attempt, the means with their variation, the spread, the reasons."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from written_campaign import rewrite_recipe, write_campaign

from hpcai500.campaign.journal import read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.errors import UsageError
from hpcai500.results.campaign_status import CampaignStatus, dropped_places, spread_lines
from hpcai500.results.outcome import CommandOutcome, RunOutcome
from hpcai500.results.score import expand, score_record, why_no_mean


def shown(folder: Path) -> CampaignStatus:
    campaign = read_campaign(folder)
    return CampaignStatus(campaign, standing(campaign))


@pytest.fixture(scope="module")
def rankable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_campaign(tmp_path_factory.mktemp("rankable") / "c", recipe="ewa/reference", trials=5)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    return write_campaign(tmp_path / "c", recipe="ewa/reference", trials=6, done=3, failing=(2,))


def test_a_rankable_campaign_says_so_and_drops_two_runs_of_each_metric(rankable: Path) -> None:
    status = shown(rankable)
    lines = list(status.lines())
    assert lines[-1] == "RANKABLE"
    assert "trials      5 planned, 5 done, 0 running, 0 to run; edition v2.0 wants 5 at least" in lines
    values = [row.vflops for row in status.standing.rows if row.vflops is not None]
    document = json.loads(json.dumps(status.document()))
    summary = document["metrics"]["vflops"]
    assert summary["mean"] == pytest.approx(statistics.fmean(sorted(values)[1:-1]))
    assert summary["variation"] == pytest.approx(statistics.stdev(values) / statistics.fmean(values))
    assert (document["rankable"], document["reasons"], document["least_runs"]) == (True, [], 5)
    assert sum(line.startswith("  trial ") and "x" in line for line in lines) == 2


def test_all_attempts_and_the_runs_to_come_are_in_the_table(unfinished: Path) -> None:
    status = shown(unfinished)
    lines = list(status.lines())
    table = [line.split()[:4] for line in lines if line[:1].isdigit()]
    assert table == [
        ["1", "1", "1", "done"], ["2", "1", "2", "failed"], ["2", "2", "2", "done"], ["3", "1", "3", "done"],
        ["4", "-", "4", "planned"], ["5", "-", "5", "planned"], ["6", "-", "6", "planned"],
    ]  # fmt: skip
    assert "trials      6 planned, 3 done, 0 running, 3 to run; edition v2.0 wants 5 at least" in lines
    assert "  trial 2, attempt 1: node-2 was lost" in lines
    assert lines[lines.index("NOT RANKABLE:") + 1] == "  3 finished runs; edition v2.0 wants 5 at least"
    document = status.document()
    assert [one["epochs"] for one in document["attempts"]] == [50, 1, 50, 50]
    assert [one["result"] is None for one in document["attempts"]] == [False, True, False, False]
    assert document["attempts"][1]["reason"] == "node-2 was lost"


def test_runs_that_are_no_trials_of_one_thing_have_no_mean_and_no_spread(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", recipe="ewa/reference", trials=5)
    rewrite_recipe(folder / "trial-02", "os.threads=3")
    lines = list(shown(folder).lines())
    assert f"no mean: {folder}/trial-02 differs from {folder}/trial-01 in os.threads" in lines
    assert not [line for line in lines if "variation" in line or line.startswith("VFLOPS from")]
    assert shown(folder).document()["metrics"] == {}


def test_a_campaign_without_a_run_is_shown_too(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", recipe="ewa/reference", trials=5, done=0)
    status = shown(folder)
    assert "  trials 1, 2, 3, 4, 5 were planned, and no attempt at them was made" in list(status.lines())
    assert (status.document()["attempts"], status.document()["metrics"]) == ([], {})


def test_a_campaign_stands_for_its_finished_runs(unfinished: Path, tmp_path: Path) -> None:
    records = expand([unfinished])
    assert [record.name for record in records] == ["trial-01", "trial-02-attempt-2", "trial-03"]
    assert why_no_mean(records) is None
    empty = write_campaign(tmp_path / "e", recipe="ewa/reference", trials=5, done=0)
    with pytest.raises(UsageError, match="a campaign without a finished run; see `hpcai500 campaign status"):
        expand([empty])


def test_the_verdict_over_a_campaign_says_whether_it_may_be_ranked(rankable: Path, unfinished: Path) -> None:
    def outcome(records: list[Path]) -> CommandOutcome:
        return CommandOutcome([RunOutcome(record, score_record(record)) for record in records])

    whole = outcome(expand([rankable]))
    assert whole.document()["campaign"] == {
        "path": str(rankable), "identity": read_campaign(rankable).identity, "rankable": True, "reasons": [],
    }  # fmt: skip
    assert not [line for line in whole.lines() if "not rankable" in line]
    notes = [line for line in outcome(expand([unfinished])).lines() if "NOTE not rankable" in line]
    assert "3 finished runs; edition v2.0 wants 5 at least; trials 4, 5, 6 were planned" in notes[0]
    # Some of its runs are not the campaign.
    part = outcome(expand([rankable])[:3])
    assert part.document()["campaign"] is None


def test_runs_around_which_a_journal_is_broken_are_still_scored(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", recipe="ewa/reference", trials=2)
    (folder / "campaign.jsonl").write_text("{}\n")
    records = [folder / "trial-01", folder / "trial-02"]
    outcome = CommandOutcome([RunOutcome(record, score_record(record)) for record in records])
    assert outcome.document()["campaign"] is None


def test_the_spread_has_one_scale_and_marks_what_is_dropped() -> None:
    lines = list(spread_lines([("trial 1", 10.0), ("trial 2", 20.0), ("trial 10", 14.0), ("trial 11", 16.0)]))
    assert lines == [
        "  trial 1   x-------------------|--------------------",
        "  trial 2   --------------------|-------------------x",
        "  trial 10  ----------------o---|--------------------",
        "  trial 11  --------------------|---o----------------",
    ]


def test_runs_that_are_equal_are_in_the_middle() -> None:
    first, second = spread_lines([("a", 5.0), ("b", 5.0)])
    assert first.replace("a", "b") == second
    assert second.count("o") == 1


@pytest.mark.parametrize(
    ("values", "dropped"), [([1, 2], set()), ([3, 1, 2], {0, 1}), ([1, 1, 1, 1], {0, 3}), ([5], set())]
)
def test_one_lowest_and_one_highest_of_three_or_more_are_dropped(values: list[float], dropped: set[int]) -> None:
    assert dropped_places(values) == dropped
