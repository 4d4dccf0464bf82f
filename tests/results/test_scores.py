"""Records put together: campaigns, series, comparisons and scalings; and what must not be put into one."""

from __future__ import annotations

import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_record, rewrite_recipe, write_campaign
from builders.forgeries.restarts import go_back, gone_back
from builders.records import COSTS, settings_of_ranks, write_record, write_reported
from typer.testing import CliRunner

from hpcai500.campaign.journal import read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.cli.commands import app
from hpcai500.errors import ExitCode, RecordError, UsageError, WrongAnswerError
from hpcai500.methodology.statistics import compare, side
from hpcai500.results.campaign_status import CampaignStatus, dropped_places, spread_lines
from hpcai500.results.compare import Comparison, compare_all, compare_records, comparison_lines, comparison_page
from hpcai500.results.outcome import CommandOutcome, RunOutcome
from hpcai500.results.scaling import read_scaling, report_broken_scaling, report_scaling
from hpcai500.results.score import expand, score_record, why_no_mean

PNG = b"\x89PNG\r\n\x1a\n"
GLOO = {"world_size": 2, "nodes": 1, "backend": "torch", "library": "Gloo"}
FEW = "3 finished runs; edition v2.0 requires at least 5"


def outcome(records: list[Path]) -> CommandOutcome:
    return CommandOutcome([RunOutcome(record, score_record(record)) for record in records])


def shown(folder: Path) -> CampaignStatus:
    campaign = read_campaign(folder)
    return CampaignStatus(campaign, standing(campaign))


def weather(folder: Path, trials: int = 5, **story: Any) -> Path:
    return write_campaign(folder / "c", recipe="ewa/reference", trials=trials, **story)


# Campaigns.


@pytest.fixture(scope="module")
def rankable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weather(tmp_path_factory.mktemp("rankable"))


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weather(tmp_path_factory.mktemp("unfinished"), 6, done=3, failing=(2,))


def test_a_rankable_campaign_says_so_and_drops_two_runs_of_each_metric(rankable: Path) -> None:
    status = shown(rankable)
    lines = list(status.lines())
    assert lines[-1] == "RANKABLE"
    assert "trials      5 planned, 5 done, 0 running, 0 to run; edition v2.0 requires at least 5" in lines
    assert sum(line.startswith("  trial ") and "x" in line for line in lines) == 2
    values = [row.vflops for row in status.standing.rows if row.vflops is not None]
    document = json.loads(json.dumps(status.document()))
    summary = document["metrics"]["vflops"]
    assert summary["mean"] == pytest.approx(statistics.fmean(sorted(values)[1:-1]))
    assert summary["variation"] == pytest.approx(statistics.stdev(values) / statistics.fmean(values))
    assert (document["rankable"], document["reasons"], document["least_runs"]) == (True, [], 5)


def test_all_attempts_and_the_runs_to_come_are_in_the_table(unfinished: Path) -> None:
    status = shown(unfinished)
    lines = list(status.lines())
    table = [line.split()[:4] for line in lines if line[:1].isdigit()]
    assert table == [
        ["1", "1", "1", "done"], ["2", "1", "2", "failed"], ["2", "2", "2", "done"], ["3", "1", "3", "done"],
        ["4", "-", "4", "planned"], ["5", "-", "5", "planned"], ["6", "-", "6", "planned"],
    ]  # fmt: skip
    assert "trials      6 planned, 3 done, 0 running, 3 to run; edition v2.0 requires at least 5" in lines
    assert "  trial 2, attempt 1: node-2 was lost" in lines
    assert lines[lines.index("NOT RANKABLE:") + 1] == "  3 finished runs; edition v2.0 requires at least 5"
    document = status.document()
    assert [one["epochs"] for one in document["attempts"]] == [50, 1, 50, 50]
    assert [one["result"] is None for one in document["attempts"]] == [False, True, False, False]
    assert document["attempts"][1]["reason"] == "node-2 was lost"


def test_runs_that_are_no_trials_of_one_thing_have_no_mean_and_no_spread(tmp_path: Path) -> None:
    folder = weather(tmp_path)
    rewrite_recipe(folder / "trial-02", "os.threads=3")
    lines = list(shown(folder).lines())
    assert f"no mean: {folder}/trial-02 differs from {folder}/trial-01 in os.threads" in lines
    assert not [line for line in lines if "variation" in line or line.startswith("VFLOPS from")]
    assert shown(folder).document()["metrics"] == {}


def test_a_campaign_stands_for_its_finished_runs(unfinished: Path, tmp_path: Path) -> None:
    records = expand([unfinished])
    assert [record.name for record in records] == ["trial-01", "trial-02-attempt-2", "trial-03"]
    assert why_no_mean(records) is None
    empty = weather(tmp_path, done=0)
    status = shown(empty)
    assert "  trials 1, 2, 3, 4, 5 were planned but never attempted" in list(status.lines())
    assert (status.document()["attempts"], status.document()["metrics"]) == ([], {})
    with pytest.raises(UsageError, match="a campaign without a finished run; see `hpcai500 campaign status"):
        expand([empty])


def test_the_verdict_over_a_campaign_says_whether_it_may_be_ranked(rankable: Path, unfinished: Path) -> None:
    whole = outcome(expand([rankable]))
    identity = read_campaign(rankable).identity
    told = {"path": str(rankable), "identity": identity, "rankable": True, "reasons": []}
    assert whole.document()["campaign"] == told
    assert not [line for line in whole.lines() if "not rankable" in line]
    lines = list(outcome(expand([unfinished])).lines())
    first = next(number for number, line in enumerate(lines) if line.startswith("HPCAI500 NOTE not rankable: "))
    assert lines[first + 1] == f"  - {FEW}"
    assert lines[first + 2].startswith("  - trials 4, 5, 6 were planned")
    # Some of its runs are not the campaign.
    assert outcome(expand([rankable])[:3]).document()["campaign"] is None


def test_a_run_names_the_commands_to_type_next_and_the_run_before_it(tmp_path: Path) -> None:
    first, second = write_record(tmp_path / "first"), write_record(tmp_path / "a second")
    os.utime(first / "DONE", (1, 1))
    (tmp_path / "ic-campaign").mkdir()
    outcome = CommandOutcome([RunOutcome(second, score_record(second))])
    assert [" ".join(line.split()) for line in outcome.next_lines()] == [
        f"next hpcai500 report '{second}' -o report.html a page: score, curves, machine",
        f"hpcai500 compare {first} '{second}' with the run before it",
        f"hpcai500 campaign init {tmp_path / 'ic-campaign-2'} --recipe '{second / 'recipe.toml'}' "
        "plan all runs of a result",
    ]
    assert not list(CommandOutcome([RunOutcome(second, error="broken")]).next_lines())


@pytest.mark.parametrize("setting", ["problem.target_quality=0.2", "accelerator.loader=memory"])
def test_a_run_before_it_that_did_other_work_is_not_offered_for_a_comparison(tmp_path: Path, setting: str) -> None:
    first, second = write_record(tmp_path / "first", setting), write_record(tmp_path / "second")
    os.utime(first / "DONE", (1, 1))
    assert "compare" not in " ".join(CommandOutcome([RunOutcome(second, score_record(second))]).next_lines())


def test_a_campaign_is_gone_on_with_before_it_is_submitted(rankable: Path, unfinished: Path) -> None:
    def next_of(folder: Path) -> str:
        runs = [RunOutcome(record, score_record(record)) for record in expand([folder])]
        return " ".join(CommandOutcome(runs).next_lines())

    assert f"hpcai500 campaign run {unfinished}" in next_of(unfinished)
    assert "submit" not in next_of(unfinished)
    assert f"hpcai500 submit {rankable} -o {rankable.name}.zip" in next_of(rankable)


def test_runs_around_which_a_journal_is_broken_are_still_scored(tmp_path: Path) -> None:
    folder = weather(tmp_path, 2)
    (folder / "campaign.jsonl").write_text("{}\n")
    assert outcome([folder / "trial-01", folder / "trial-02"]).document()["campaign"] is None


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


def trained_again(campaign: Path) -> list[str]:
    return [one for one in standing(read_campaign(campaign)).reasons if "trained again" in one]


@pytest.mark.parametrize(
    ("ways", "told"),
    [([(3, 3)], None), ([(3, 2)], "epoch 2 with top1"), ([(3, 3), (2, 2)], "epoch 2 with top1")],
)
def test_one_lost_evaluation_is_allowed_and_no_second(
    tmp_path: Path, ways: list[tuple[int, int]], told: str | None
) -> None:
    """A run went back over epochs that were evaluated: once is bad luck, more is a choice."""
    campaign = write_campaign(tmp_path / "c", *SHORT, trials=2)
    go_back(campaign, campaign / "trial-02", lambda events: [gone_back(events, *way) for way in ways])
    found = trained_again(campaign)
    assert len(found) == (told is not None)
    for one in found:
        assert one.startswith("trial 2, attempt 1: trained again after it was evaluated: ")
        assert told in one
        assert "epoch 3 with top1" in one


def test_one_lost_evaluation_in_each_of_two_runs_is_two(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path / "c", *SHORT, trials=2)
    for name in ("trial-01", "trial-02"):
        edit_record(campaign / name, lambda events: gone_back(events, 3, 3))
    assert [one.partition(":")[0] for one in trained_again(campaign)] == ["trial 1, attempt 1", "trial 2, attempt 1"]


# Series of records, which were made by other backends, libraries or numbers of ranks.


def pair(folder: Path, world: dict[str, Any], *settings: str) -> list[Path]:
    """Two runs with seeds of their own, the second as `world` and `settings` say."""
    one = write_record(folder / "one", *settings_of_ranks(2), world=GLOO)
    return [
        one,
        write_record(folder / "two", *settings_of_ranks(2), *settings, "hyperparameters.seed=2", world=GLOO | world),
    ]


def test_the_mean_of_two_trials_is_that_of_both(tmp_path: Path) -> None:
    records = [write_record(tmp_path / f"r{seed}", f"hyperparameters.seed={seed}") for seed in (1, 2, 3)]
    of = "variation: standard deviation / mean of all runs"
    assert f"all trials  mean of all runs; {of}" in list(outcome(records[:2]).lines())
    assert f"all trials  mean without the highest and the lowest run; {of}" in list(outcome(records).lines())


def test_runs_of_one_backend_are_averaged(tmp_path: Path) -> None:
    records = pair(tmp_path, {})
    assert why_no_mean(records) is None
    document = outcome(records).document()
    assert (document["no_mean"], document["trials"]["flops"]["runs"]) == (None, 2)
    # Records from before there was a word for it still belong together.
    older = [write_record(tmp_path / f"older-{seed}", f"hyperparameters.seed={seed}") for seed in (1, 2)]
    assert why_no_mean(older) is None


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"backend": "horovod"}, "ran on the backend horovod, .* on the backend torch"),
        ({"library": "NCCL 2.27"}, "ran on NCCL 2.27, .* on Gloo"),
        ({"world_size": 4}, "ran on 4 ranks, .* on 2 ranks"),
        ({"nodes": 2}, "ran on 2 nodes, .* on 1 node$"),
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


def test_a_person_and_a_harness_see_what_communication_cost(tmp_path: Path) -> None:
    lines = set(outcome([write_record(tmp_path / "one", *settings_of_ranks(2), world=GLOO, costs=COSTS)]).lines())
    assert lines >= {
        "benchmark   ic, edition v2.0, 2 processes, torch (Gloo)",
        "steps       0.0% data wait, 80.0% compute, 12.5% communication, 7.5% other",
        "bytes       4 MB of gradients a rank and step, 3 MB sent for them",
        "stragglers  rank 1 on n1",
        "HPCAI500 FOM communication_fraction=0.125 fraction",
        "HPCAI500 FOM sent_bytes_per_step=3e+06 B",
        "HPCAI500 FOM stragglers=1 ranks",
    }
    slow = [f"rank {rank} on n{rank}" for rank in range(6)]
    # The list of the writer says nothing: the medians do.
    ranks = [COSTS["ranks"][0] | {"rank": n, "host": f"n{n}", "own_seconds": 2.0 if n < 6 else 0.6} for n in range(16)]
    many = write_record(tmp_path / "many", *settings_of_ranks(16), costs=COSTS | {"ranks": ranks, "stragglers": []})
    assert f"stragglers  {', '.join(slow[:4])} and 2 more" in list(outcome([many]).lines())
    alone = outcome([write_record(tmp_path / "alone")]).lines()
    about = ("bytes", "straggl", "HPCAI500 FOM communication", "HPCAI500 FOM sent_bytes")
    assert not [line for line in alone if line.startswith(about)]


def test_a_result_of_a_version_that_knew_fewer_numbers_is_still_right(tmp_path: Path) -> None:
    record = write_record(tmp_path / "one")
    path = record / "result.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("input", "step_split")}
    path.write_text(json.dumps(older))
    assert score_record(record).input == "real"
    path.write_text(json.dumps(older | {"flops": 1e18}))
    with pytest.raises(WrongAnswerError, match="flops is 1e"):
        score_record(record)


def test_an_image_is_named_by_name_and_the_beginning_of_its_hashes(tmp_path: Path) -> None:
    record = write_record(tmp_path / "record")
    result = score_record(record)

    def image_lines(system: dict[str, object]) -> list[str]:
        (record / "system.json").write_text(json.dumps(system))
        return [line for line in CommandOutcome([RunOutcome(record, result)]).lines() if line.startswith("image ")]

    image = {"name": "hpcai500-cpu", "version": "0.1.0", "content_sha256": "ca" * 32, "file_sha256": "53" * 32}
    named = image_lines({"nodes": [], "installation": {"image": image}})
    assert named == ["image       hpcai500-cpu 0.1.0, content cacacacacaca, file 535353535353"]
    for without in ({"nodes": [], "installation": {"image": None}}, {"installation": None}, {}):
        assert image_lines(without) == []
    assert RunOutcome(tmp_path / "gone").system == {}


# `hpcai500 compare A B`: what differs comes first, and what cannot be compared is said loudly.


def lines(comparison: Comparison) -> list[str]:
    return list(comparison_lines(comparison))


def number(comparison: Comparison, name: str) -> dict[str, object]:
    [found] = [one for one in comparison.document()["numbers"] if one["name"] == name]
    return found


def series(folder: Path, slower: float, spread: float) -> Path:
    for seed in (1, 2, 3):
        write_reported(folder / f"trial-{seed}", seed=seed, step_seconds=slower * (1 + spread * (seed - 2)))
    return folder


def test_several_records_are_compared_with_the_first_and_their_curves_are_drawn_over_each_other(tmp_path: Path) -> None:
    first, second, third = (
        write_reported(tmp_path / name, seed=seed, step_seconds=seconds)
        for name, seed, seconds in (("a", 1, 4), ("b", 2, 2), ("c", 3, 1))
    )
    compared = compare_all(first, [second, third])
    assert [one.name for one in compared] == ["B", "C"]
    assert number(compared[1], "seconds")["ratio"] == number(compare_records(first, third), "seconds")["ratio"]
    assert any("C/A" in line for line in lines(compared[1]))
    page = comparison_page(*compared)
    for words in ("3 sides compared", "What differs: C", "A ends at 0.9 after epoch 3; B ends at 0.9", "C is"):
        assert words in page
    assert page.count('class="line c1"') == page.count('class="line c3"') == 2, "quality and loss of A and of C"
    other = write_reported(tmp_path / "d", epochs=4)
    assert ["3 in A, 4 in C" in problem for problem in compare_all(first, [second, other])[1].problems] == [True]
    with pytest.raises(UsageError, match="at most 6"):
        compare_all(first, [second] * 6)


def test_numbers_come_with_their_ratio(tmp_path: Path) -> None:
    slow = write_reported(tmp_path / "slow", step_seconds=2)
    fast = write_reported(tmp_path / "fast", "communication.bucket_bytes=1000", seed=2)
    compared = compare_records(slow, fast)
    assert compared.comparable
    assert number(compared, "seconds")["ratio"] == pytest.approx(31.5 / 61.5)
    text = lines(compared)
    at = {line.split("  ")[0]: line for line in text if line}
    assert at["Run time"].endswith("0.512")
    assert at["FLOPS"].endswith("1.952")
    assert at["Images"].endswith("1.000")
    assert text.index("recipes differ in") < text.index("systems are the same, as far as the records show")
    assert "  3 communication.bucket_bytes           0                            1000" in text
    assert not any("seed" in line for line in text), "seeds always differ"


def test_what_ran_elsewhere_is_listed(tmp_path: Path) -> None:
    one = write_reported(tmp_path / "one", ranks=2, nodes=1)
    other = write_reported(tmp_path / "two", ranks=4, nodes=2)
    found = compare_records(one, other).document()["system"]
    assert {"field": "ranks", "a": "2", "b": "4"} in found
    assert {"field": "nodes", "a": "1", "b": "2"} in found
    assert {"field": "software.cuda", "a": "13.1", "b": "13.0"} in found


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("problem.target_quality=0.5", "the problem (layer 9) differs: target quality is 0.85 in A, 0.5 in B"),
        ("problem.dataset=other", "the problem (layer 9) differs: dataset is synthetic-shapes in A, other in B"),
    ],
)
def test_another_problem_is_not_comparable(tmp_path: Path, setting: str, problem: str) -> None:
    compared = compare_records(write_reported(tmp_path / "a"), write_reported(tmp_path / "b", setting))
    text = lines(compared)
    assert not compared.comparable
    assert text.index("NOT COMPARABLE") < text.index(f"  ! {problem}") < text.index("recipes differ in")
    assert not any(line.endswith(("better", "worse")) for line in text), "what is not comparable is not judged"
    assert "NOT COMPARABLE" in comparison_page(compared)


def test_a_failed_run_is_not_comparable_and_still_shown(tmp_path: Path) -> None:
    compared = compare_records(write_reported(tmp_path / "a"), write_reported(tmp_path / "b", fail="<b>lost</b>"))
    assert compared.problems == [f"B has no result: {tmp_path / 'b'}: <b>lost</b>"]
    assert number(compared, "flops")["b"] is None
    assert number(compared, "flops")["ratio"] is None
    # The target of A is not the edition's.
    assert not any(metric.name == "vflops" for metric, _ in compared.numbers)
    assert any(line.strip().startswith("VFLOPS not shown: problem.target_quality is ") for line in lines(compared))
    assert "<b>" not in comparison_page(compared)


def test_a_changed_result_is_not_comparable(tmp_path: Path) -> None:
    one, other = write_reported(tmp_path / "a"), write_reported(tmp_path / "b", seed=2)
    result = json.loads((other / "result.json").read_text(encoding="utf-8"))
    (other / "result.json").write_text(json.dumps(result | {"flops": 1e18}), encoding="utf-8")
    [problem] = compare_records(one, other).problems
    assert problem.startswith("B is inconsistent: ")
    assert number(compare_records(one, other), "flops")["ratio"] == pytest.approx(1)


def test_a_run_against_itself_is_refused(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "a")
    with pytest.raises(UsageError, match="the same run"):
        compare_records(record, Path(str(record)))


def test_series_are_compared_by_their_means_and_spreads(tmp_path: Path) -> None:
    base = series(tmp_path / "base", 1.0, 0.01)
    faster = compare_records(base, series(tmp_path / "faster", 0.8, 0.01))
    assert number(faster, "seconds")["exceeds_spread"] is True
    assert next(line for line in lines(faster) if line.startswith("Run time ")).endswith("better, beyond the spread")
    noisy = compare_records(base, series(tmp_path / "noisy", 1.02, 0.1))
    assert number(noisy, "seconds")["exceeds_spread"] is False
    assert next(line for line in lines(noisy) if line.startswith("Run time ")).endswith("within the spread")


def test_single_runs_are_called_neither_better_nor_worse(tmp_path: Path) -> None:
    compared = compare_records(write_record(tmp_path / "a"), write_record(tmp_path / "b", seconds=20.0))
    assert number(compared, "seconds")["ratio"] != pytest.approx(1)
    text = lines(compared)
    assert "one run each: no verdict (repeat the runs: --trials 3)" in text
    assert not [line for line in text if line.endswith(("better", "worse"))]
    assert compared.document()["why_no_verdict"] == "one run each: no verdict"
    page = comparison_page(compared)
    assert "one run each: no verdict" in page
    assert '<section class="banner amber"' in page
    assert 'class="good"' not in page[page.index("is the coefficient of variation") :]


def test_a_spread_needs_three_runs_and_a_mean_leaves_out_the_ends() -> None:
    assert compare(side([1.0, 1.1]), side([9.0, 9.1])).exceeds_spread is None
    ratios = [compare(side(one), side([2.0])).ratio for one in ([1.0], [1.0, None], [0.0])]
    assert ratios == [2, None, None]
    found = side([1.0, 2.0, 3.0, 100.0])
    assert (found.mean, found.deviation) == (2.5, pytest.approx(49.0, abs=0.1))


def test_the_command_prints_one_document_and_writes_a_page(tmp_path: Path) -> None:
    one, other = write_reported(tmp_path / "a"), write_reported(tmp_path / "b", seed=2)
    done = CliRunner().invoke(app, ["compare", str(one), str(other), "--json", "-o", str(tmp_path / "c.html")])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["comparable"], document["a"][0]["verdict"]) == (True, "PASS")
    assert (tmp_path / "c.html").read_text(encoding="utf-8").startswith("<!doctype html>")


# Records on more and more processes as one table and picture.


def point(folder: Path, processes: int, *settings: str, nodes: int = 1, **how: Any) -> Path:
    """A record of `processes` ranks with one thread each."""
    library = how.pop("library", "Gloo" if processes > 1 else "none")
    backend = how.pop("backend", "torch" if processes > 1 else "local")
    costs = COSTS if processes > 1 else None
    path = folder / f"{processes}-{len(list(folder.glob('*')))}"
    world = {"backend": backend, "library": library}
    alike = ("os.threads=1", *settings_of_ranks(processes, backend=backend, nodes=nodes), *settings)
    return write_record(path, *alike, world=world, costs=costs, **how)


def test_a_table_by_hand(tmp_path: Path) -> None:
    records = [point(tmp_path, 4, seconds=3.125), point(tmp_path, 1, seconds=10.0), point(tmp_path, 2, seconds=6.25)]
    scaling = read_scaling(records)
    assert [p.processes for p in scaling.points] == [1, 2, 4]
    assert [p.images_per_second for p in scaling.points] == pytest.approx([100, 160, 320])
    assert [p.flops for p in scaling.points] == pytest.approx([1e11, 1.6e11, 3.2e11])
    assert [p.speedup for p in scaling.points] == pytest.approx([1, 1.6, 3.2])
    assert [p.parallel_efficiency for p in scaling.points] == pytest.approx([1, 0.8, 0.8])
    assert [p.communication_fraction for p in scaling.points] == [None, 0.125, 0.125]
    lines = list(scaling.lines())
    assert lines[2].split() == ["1", "1", "100.0", "100", "GFLOPS", "1.00", "1.00", "-", "local"]
    assert lines[4].split() == ["4", "1", "320.0", "320", "GFLOPS", "3.20", "0.80", "12.5%", "torch", "(Gloo)"]
    assert "HPCAI500 FOM parallel_efficiency_4=0.8 fraction" in list(scaling.figure_of_merit_lines())


def test_images_that_fill_up_a_batch_are_work_and_evaluations_are_no_training(tmp_path: Path) -> None:
    scaling = read_scaling([point(tmp_path, 1), point(tmp_path, 2, samples=2000)])
    assert scaling.points[1].images_per_second == pytest.approx(200)


@pytest.mark.parametrize(
    ("settings", "how", "reason"),
    [
        (["hyperparameters.batch_size=32"], {}, "differs from .* in hyperparameters.batch_size"),
        (["os.threads=2"], {}, "in os.threads"),
        (["communication.compression=fp16"], {}, "in communication.compression"),
        ([], {"backend": "horovod", "library": "Open MPI 4.1.4"}, "in communication.backend"),
        ([], {"library": "NCCL 2.27"}, "ran on NCCL 2.27, .* on Gloo"),
        ([], {"cpu": "Zen 5"}, "another machine than .*: Zen 5, not Zen 4"),
    ],
)
def test_what_belongs_to_no_one_table_is_refused(
    tmp_path: Path, settings: list[str], how: dict[str, Any], reason: str
) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2), point(tmp_path, 4, *settings, **how)]
    with pytest.raises(UsageError, match=f"the records are not comparable: .*{reason}"):
        read_scaling(records)


def test_one_process_has_no_backend_that_could_differ_and_nodes_are_a_way_to_more(tmp_path: Path) -> None:
    fast = ("communication.compression=fp16", "communication.topology=hierarchical")
    scaling = read_scaling([point(tmp_path, 1), point(tmp_path, 2, *fast), point(tmp_path, 4, *fast, nodes=2)])
    assert [(p.backend, p.nodes) for p in scaling.points] == [("local", 1), ("torch", 1), ("torch", 2)]


def test_threads_that_follow_the_number_of_processes_are_refused(tmp_path: Path) -> None:
    all_cores = "os.threads=0"
    with pytest.raises(UsageError, match=r"their numbers of threads differ: run both with --set os.threads=N"):
        read_scaling([point(tmp_path, 1, all_cores), point(tmp_path, 2, all_cores)])
    same = [point(tmp_path, 2, all_cores), point(tmp_path, 4, all_cores, nodes=2)]
    assert len(read_scaling(same).points) == 2


def test_each_number_of_processes_comes_once_and_whole(tmp_path: Path) -> None:
    alone = point(tmp_path, 1)
    with pytest.raises(UsageError, match=r"1 process, as .*: give one record for each"):
        read_scaling([alone, point(tmp_path, 1, "hyperparameters.seed=2")])
    for records in ([alone], []):
        with pytest.raises(UsageError, match="expected two or more records of different numbers of processes"):
            read_scaling(records)
    with pytest.raises(RecordError, match="no event run_stop"):
        read_scaling([alone, point(tmp_path, 2, finish=False)])


def test_a_report_has_pictures_stable_lines_and_a_document(tmp_path: Path) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2, seconds=6.25)]
    report = report_scaling(records, tmp_path / "out")
    assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(PNG)
    picture = (tmp_path / "out" / "scaling.svg").read_bytes()
    assert picture.startswith(b"<?xml")
    again = report_scaling(records, tmp_path / "again")
    assert again.figures[0].read_bytes() == picture
    lines = list(report.lines())
    assert lines[-1] == "HPCAI500 RESULT PASS"
    assert f"figure      {tmp_path / 'out' / 'scaling.svg'}" in lines
    document = json.loads(json.dumps(report.document()))
    assert (document["verdict"], document["benchmark"], len(document["points"])) == ("PASS", "ic", 2)
    assert document["points"][1]["parallel_efficiency"] == pytest.approx(0.8)


def test_what_ended_early_shows_what_is_there_and_why(tmp_path: Path) -> None:
    records = [point(tmp_path, 1), point(tmp_path, 2)]
    report = report_broken_scaling(records, "rank 1 is lost", ExitCode.RUN_FAILED)
    lines = list(report.lines())
    assert lines[0].startswith("weak scaling of ic")
    assert lines[-1] == "HPCAI500 RESULT INVALID"
    assert "error       rank 1 is lost" in lines
    alone = report_broken_scaling(records[:1], "rank 1 is lost", ExitCode.RUN_FAILED)
    assert list(alone.lines()) == ["error       rank 1 is lost", "HPCAI500 RESULT INVALID"]
    assert (alone.document()["points"], alone.error_code) == ([], ExitCode.RUN_FAILED)
    assert report_broken_scaling([], "no such recipe", ExitCode.USAGE).scaling is None
