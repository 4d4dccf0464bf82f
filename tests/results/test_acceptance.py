"""What is accepted and what is not: contracts against campaigns that nobody ran, and records that were edited.

A benchmark that somebody made easy is never accepted without a word.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_record, rewrite_recipe, values, write_campaign
from builders.events import Story
from builders.records import settings_of_ranks, write_record

from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.results.acceptance.contract import load_contract
from hpcai500.results.acceptance.evidence import Requirement
from hpcai500.results.acceptance.measured import CriterionResult
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Acceptance, Request, accept, acceptance_lines, junit_xml

RUNS = 4
WATTS = 6500.0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short runs on two nodes."""
    return short(tmp_path_factory.mktemp("campaign") / "new", trials=RUNS, watts=WATTS)


def short(folder: Path, *settings: str, **story: Any) -> Path:
    """Short runs, which reach the target."""
    return write_campaign(folder, *SHORT, *settings, **{"trials": 2, "quality": 0.77, **story})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two on one node, at 25,000 of the 40,000 images a second."""
    return short(tmp_path_factory.mktemp("alone") / "one", "hardware.nodes=1", images_per_second=25_000.0)


def criterion(metric: str, reference: float, unit: str, **more: object) -> str:
    lines = [f'metric = "{metric}"', f"reference = {reference}", f'unit = "{unit}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return "\n[[criteria]]\n" + "\n".join(lines) + "\n"


VFLOPS = criterion("flops", 1, "TFLOPS", lower=0.0)

EFFICIENCY = criterion("parallel_efficiency", 75, "%", lower=0.0, nodes=2)


def accepted(*records: Path, text: str = VFLOPS, **more: Any) -> Acceptance:
    folder = records[0].parent / f"contract-{abs(hash(text))}"
    folder.mkdir(exist_ok=True)
    path = folder / "contract.toml"
    if "rankable" not in text:
        # Most campaigns here are shorter than the edition's.
        opt_out = "[require]\nrankable = false\n"
        text = text.replace("[require]\n", opt_out) if "[require]\n" in text else opt_out + text
    path.write_text(f'title = "t"\n{text}', encoding="utf-8")
    return accept(Request(load_contract(path), records, **more))


def only(made: Acceptance) -> CriterionResult:
    (one,) = made.criteria
    return one


def requirement(made: Acceptance, name: str) -> Requirement:
    return next(one for one in made.requirements if one.name == name)


def test_a_system_that_keeps_its_contract_is_accepted(campaign: Path) -> None:
    made = accepted(campaign, text=criterion("vflops", 900, "TFLOPS", lower=-0.05))
    assert (made.verdict, made.exit_code, made.sentence) == ("PASS", 0, "Accepted: 1 of 1 criteria are met.")
    one = only(made)
    assert (len(one.values), one.limits.reference) == (RUNS, 900e12)
    assert one.interval is None
    assert one.note == "too few runs for an interval: 4, 5 are needed"
    assert one.margin == pytest.approx(one.measured / 900e12 - 0.95)


def test_a_missed_number_ends_with_5_and_a_missed_quality_with_2(campaign: Path) -> None:
    slow = accepted(campaign, text=criterion("vflops", 9, "PFLOPS", lower=-0.05))
    assert (slow.verdict, slow.exit_code, only(slow).verdict) == ("FAIL", 5, "fail")
    assert only(slow).margin < 0
    wrong = accepted(campaign, text=criterion("quality", 80, "%", lower=0.0) + VFLOPS)
    assert (wrong.verdict, wrong.exit_code) == ("FAIL", 2)


def test_goodput_and_the_shares_of_other_parts_may_be_demanded(campaign: Path) -> None:
    text = (
        criterion("goodput", 60, "%", lower=0.0)
        + criterion("goodput", 70, "%", lower=0.0, statistic="every")
        + criterion("share of startup", 30, "%", upper=0.0)
        + criterion("checkpoint_seconds", 1, "s", upper=0.0)
        + criterion("recovery_seconds", 60, "s", upper=0.0)
    )
    good, too_good, startup, checkpoint, recovery = accepted(campaign, text=text).criteria
    assert [one.verdict for one in (good, too_good, startup, checkpoint)] == ["pass", "fail", "pass", "pass"]
    # Three epochs of 1,281,167 images at 40,000 a second, of which 6 % wait; 0.55 s of evaluation and 0.8 s of
    # checkpoint each; 8 s until the first event, and 26 s until training.
    steps, rest = 3 * 1_281_167 / 40_000, 3 * (0.55 + 0.8) + 8 + 26
    assert good.measured == pytest.approx(0.94 * steps / (steps + rest), rel=0.01)
    assert startup.measured == pytest.approx(34 / (steps + rest), rel=0.01)
    assert checkpoint.measured == pytest.approx(0.8, abs=0.001)
    assert (recovery.verdict, recovery.measured) == ("missing", None)
    assert "only a run that was interrupted, and then continued, has it" in recovery.note


def test_every_run_mean_and_median_judge_other_numbers(campaign: Path) -> None:
    text = "".join(criterion("quality", 50, "%", lower=0.0, statistic=one) for one in ("every", "mean", "median"))
    every, mean, median = accepted(campaign, text=text).criteria
    lowest, *middle, _ = sorted(every.values)
    assert (every.measured, every.interval, median.interval) == (lowest, None, None)
    assert mean.measured == pytest.approx(sum(middle) / 2)
    assert median.measured == pytest.approx(sum(middle) / 2)
    names = [one.name for one in (every, mean, median)]
    assert names == ["quality (every run)", "quality (mean)", "quality (median)"]


def test_what_is_unknown_is_missing_and_says_what_to_do(campaign: Path, tmp_path: Path) -> None:
    text = criterion("watts", 13, "kW", upper=1.0) + criterion("gemm bf16", 1, "TFLOPS", lower=0.0) + EFFICIENCY
    made = accepted(short(tmp_path / "dark"), text=text)
    assert made.exit_code == 5
    watts, gemm, efficiency = made.criteria
    assert (watts.verdict, watts.measured, watts.margin) == ("missing", None, None)
    assert watts.note.startswith("unknown in 2 of 2 runs, as in ")
    assert "not measured (--power none): run with --power" in watts.note
    assert "srun hpcai500 micro gemm -o micro.json, then --micro micro.json" in gemm.note
    assert "hpcai500 scale … --json > scale.json" in efficiency.note
    assert accepted(campaign, text=criterion("watts", 13, "kW", upper=0.02)).exit_code == 0


def test_a_limit_within_the_interval_is_undecided_where_a_confidence_is_required(tmp_path: Path) -> None:
    campaign = short(tmp_path / "c", trials=6)
    measured = only(accepted(campaign, text=criterion("vflops", 1, "TFLOPS", lower=0.0))).measured
    for factor, verdict, code in ((0.9999, "undecided", 6), (1.0001, "undecided", 6), (0.5, "pass", 0), (2, "fail", 5)):
        text = "[require]\nconfidence = 0.95\n" + criterion("vflops", measured * factor, "FLOPS", lower=0.0)
        made = accepted(campaign, text=text)
        assert (only(made).verdict, made.exit_code) == (verdict, code)
        assert made.verdict == {0: "PASS", 5: "FAIL", 6: "UNDECIDED"}[code]


def test_too_few_runs_for_an_interval_never_pass_at_a_confidence(campaign: Path) -> None:
    made = accepted(campaign, text="[require]\nconfidence = 0.95\n" + VFLOPS)
    assert (only(made).verdict, made.exit_code) == ("undecided", 6)


def test_runs_without_interruption_bound_the_time_between_them(campaign: Path) -> None:
    text = criterion("mean_between_interruptions_seconds", 1, "s", lower=0.0)
    text += criterion("mean_between_interruptions_seconds", 1000, "h", lower=0.0, statistic="median")
    good, open_ = accepted(campaign, text=text).criteria
    assert (good.verdict, good.is_bound, open_.verdict) == ("pass", True, "undecided")
    assert good.note.startswith("a lower bound with 95 % confidence: no interruption in ")


def test_a_limit_within_the_interval_is_told_and_the_number_decides(tmp_path: Path) -> None:
    campaign = short(tmp_path / "c", trials=6)
    measured = only(accepted(campaign, text=criterion("vflops", 900, "TFLOPS", lower=-0.05))).measured
    for factor, verdict in ((0.9999, "pass"), (1.0001, "fail")):
        one = only(accepted(campaign, text=criterion("vflops", measured * factor, "FLOPS", lower=0.0)))
        assert one.verdict == verdict
        assert "make more runs" in one.note


@pytest.mark.parametrize(
    ("demand", "name", "verdict", "exit_code", "said"),
    [
        ("runs = 10", "runs", "missing", 5,
         "make 6 more, each with another seed: hpcai500 campaign init, or hpcai500 ic"),
        ("rankable = true", "rankable", "fail", 2, "problem.epochs is 3"),
        ('level = "free"', "level", "fail", 2, "no level (hpcai500 rules"),
        ('edition = "v3.0"', "edition", "fail", 2, "edition v2.0"),
    ],
)  # fmt: skip
def test_an_unmet_demand_is_told(
    campaign: Path, demand: str, name: str, verdict: str, exit_code: int, said: str
) -> None:
    made = accepted(campaign, text=f"[require]\n{demand}\n{VFLOPS}")
    assert (requirement(made, name).verdict, made.verdict, made.exit_code) == (verdict, "FAIL", exit_code)
    assert said in requirement(made, name).detail
    if name == "runs":
        assert requirement(made, name).found == "4 of ic"
        assert requirement(made, name).detail.startswith(said)


def test_a_reference_campaign_is_rankable_and_of_the_hardware_level_if_no_trial_is_left_out(tmp_path: Path) -> None:
    demands = '[require]\nrankable = true\nlevel = "hardware"\nedition = "v2.0"\nruns = 10\nnodes = 2\n'
    made = accepted(write_campaign(tmp_path / "c", trials=10), text=demands + VFLOPS)
    assert {one.name: one.verdict for one in made.requirements if one.verdict != "pass"} == {}
    assert made.exit_code == 0
    part = accepted(write_campaign(tmp_path / "part", trials=12, done=10), text=f"[require]\nrankable = true\n{VFLOPS}")
    found = requirement(part, "rankable")
    assert (found.verdict, found.found) == ("fail", "the campaign is not")


def test_a_quality_below_the_target_ends_with_2_whatever_the_speed(tmp_path: Path) -> None:
    made = accepted(short(tmp_path / "c", quality=0.70))
    answers = requirement(made, "right answers")
    assert (only(made).verdict, answers.verdict, made.exit_code) == ("pass", "fail", 2)
    assert "top1 is 0.7" in answers.detail


# Records that are not what they should be.


def test_a_changed_or_unfinished_record_is_named_and_ends_with_2(campaign: Path, tmp_path: Path) -> None:
    changed = copy_campaign(campaign, tmp_path / "changed")
    edit_record(changed / "trial-02", lambda events: values(events, "epoch_stop")[0].update(seconds=1.0), rechain=False)
    made = accepted(changed)
    assert (made.exit_code, [fault.path.name for fault in made.evidence.faults]) == (2, ["trial-02"])
    assert "chain is broken" in made.evidence.faults[0].problem
    assert len(only(made).values) == RUNS - 1, "the others are judged all the same"
    made = accepted(write_record(tmp_path / "whole"), write_record(tmp_path / "unfinished", finish=False))
    assert (made.exit_code, requirement(made, "records").verdict) == (2, "fail")
    assert "unfinished: the run is not finished" in requirement(made, "records").detail


def test_a_record_that_the_journal_does_not_vouch_for_is_refused(campaign: Path, tmp_path: Path) -> None:
    mixed, other = (copy_campaign(campaign, tmp_path / name) for name in ("mixed", "other"))
    edit_record(other / "trial-01", lambda events: values(events, "eval_accuracy")[-1].update(value=0.9))
    shutil.rmtree(mixed / "trial-01")
    shutil.copytree(other / "trial-01", mixed / "trial-01")
    made = accepted(mixed)
    assert "not the record in the campaign's journal" in made.evidence.faults[0].problem
    assert made.exit_code == 2


def test_a_result_that_its_events_contradict_is_refused(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r")
    result = json.loads((record / "result.json").read_text())
    (record / "result.json").write_text(json.dumps({**result, "vflops": 1e18}))
    assert "result.json: vflops is 1e+18, but the events give" in accepted(record).evidence.faults[0].problem


def test_runs_that_are_no_trials_of_one_thing_do_not_belong_together(campaign: Path, tmp_path: Path) -> None:
    mixed = copy_campaign(campaign, tmp_path / "mixed")
    rewrite_recipe(mixed / "trial-02", "hyperparameters.momentum=0.8")
    found = requirement(accepted(mixed), "runs belong together")
    assert found.verdict == "fail"
    assert "hyperparameters.momentum" in found.detail


def test_a_run_that_is_named_twice_or_is_no_record_is_a_mistake(campaign: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the same run as"):
        accepted(campaign, campaign / "trial-01")
    with pytest.raises(UsageError, match=r"nowhere: no such folder; give folders that"):
        accepted(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: neither a record nor a campaign"):
        accepted(tmp_path / "empty")


def test_records_of_two_benchmarks_need_a_contract_that_tells_them_apart(campaign: Path, tmp_path: Path) -> None:
    short = ("problem.epochs=2", "hyperparameters.warmup_epochs=0")
    weather = write_campaign(tmp_path / "ewa", *short, recipe="ewa/reference", trials=2)
    with pytest.raises(UsageError, match=r'records of ic and ewa: add the benchmark .* benchmark = "ic"'):
        accepted(campaign, weather)
    text = "".join(criterion("quality", 1, "%", lower=0.0, benchmark=name) for name in ("ic", "ewa"))
    one, other = accepted(campaign, weather, text=text).criteria
    assert (len(one.values), len(other.values)) == (RUNS, 2)
    assert (one.name, other.name) == ("ic: quality (mean)", "ewa: quality (mean)")


# Nodes and efficiency.


def test_the_number_of_nodes_decides_which_runs_are_judged(campaign: Path, alone: Path) -> None:
    for more, nodes, runs in (({}, 2, RUNS), ({"nodes": 1}, 1, 2)):
        one = only(accepted(campaign, alone, text=criterion("images_per_second", 1, "images/s", lower=0.0, **more)))
        assert (one.nodes, len(one.values)) == (nodes, runs)
    made = accepted(campaign, text=f"[require]\nnodes = 16\n{VFLOPS}")
    assert (requirement(made, "nodes").verdict, only(made).verdict, made.exit_code) == ("missing", "missing", 5)


def test_efficiency_comes_from_runs_on_fewer_nodes(campaign: Path, alone: Path) -> None:
    one = only(accepted(campaign, alone, text=EFFICIENCY))
    assert (one.verdict, one.note, len(one.values)) == ("pass", "against 8 processes", RUNS)
    # Twice the ranks reach 40,000 / 25,000 of the rate.
    assert one.measured == pytest.approx(0.8, rel=1e-3)


def test_more_efficiency_than_there_is_fails_and_says_why(campaign: Path, tmp_path: Path) -> None:
    """As if the runs that are the base had been slowed, so that what is judged looks well beside them."""
    slowed = short(tmp_path / "one", "hardware.nodes=1", images_per_second=14_000.0)
    contracted = ("parallel_efficiency", 90, "%")
    for more in ({}, {"statistic": "every"}, {"statistic": "median"}):
        made = accepted(campaign, slowed, text=criterion(*contracted, lower=0.0, nodes=2, **more))
        assert (only(made).verdict, made.exit_code) == ("fail", 5)
        assert only(made).measured == pytest.approx(1.43, abs=0.01)
        assert "the baseline runs may have been slowed" in only(made).note
    agreed = accepted(campaign, slowed, text=criterion(*contracted, lower=0.0, upper=0.6, nodes=2))
    assert agreed.exit_code == 0
    assert "may have been slowed" in only(agreed).note
    points = [{"nodes": n, "processes": 8 * n, "parallel_efficiency": told} for n, told in ((1, 1.0), (2, 1.43))]
    (tmp_path / "scale.json").write_text(json.dumps({"points": points}))
    written = only(accepted(campaign, text=criterion(*contracted, lower=0.0, nodes=2), scaling=tmp_path / "scale.json"))
    assert (written.verdict, written.measured) == ("fail", 1.43)


@pytest.fixture
def scaled(tmp_path: Path) -> tuple[Path, Path]:
    """Records of one and of two processes; the second one reaches 0.8 of the efficiency."""
    one = write_record(tmp_path / "procs-1", "os.threads=1", *settings_of_ranks(1), seconds=10.0)
    return one, write_record(
        tmp_path / "procs-2", "os.threads=1", *settings_of_ranks(2, nodes=2), seconds=6.25, costs=None
    )


POINTS = [
    {"record": f"procs-{number}", "nodes": number, "processes": number, "parallel_efficiency": efficiency}
    for number, efficiency in ((1, 1.0), (2, 0.8))
]


def test_efficiency_of_a_scaling_file_is_computed_from_its_records(scaled: tuple[Path, Path], tmp_path: Path) -> None:
    file, (first, last) = tmp_path / "scale.json", POINTS
    good = {"verdict": "PASS", "error": None, "benchmark": "ic", "points": POINTS}

    def told(**other: Any) -> CriterionResult:
        file.write_text(json.dumps({**good, **other}))
        return only(accepted(*(path for path in scaled if path.exists()), text=EFFICIENCY, scaling=file))

    assert (told().measured, told().note) == (0.8, "against 1 process")
    assert told(points=[first]).verdict == "missing"
    with pytest.raises(WrongAnswerError, match=r"efficiency of 2 processes is 0.99, but the records give 0.8"):
        told(points=[first, {**last, "parallel_efficiency": 0.99}])
    with pytest.raises(UsageError, match="a prediction, not a measurement"):
        told(kind="prediction")
    with pytest.raises(UsageError, match="not a result of `hpcai500 scale --json`: a rank is lost"):
        told(error="a rank is lost")
    for key in ("nodes", "processes"):
        with pytest.raises(WrongAnswerError, match=rf"{key} of \d+ processes is 16, but the records give 2"):
            told(points=[first, {**last, key: 16}])
    shutil.rmtree(scaled[0])
    assert "the records that it names were not found" in told().note
    with pytest.raises(WrongAnswerError, match=r"nodes of 2 processes is 16, but the records give 2"):
        told(points=[first, {**last, "nodes": 16}])


def test_records_that_are_not_judged_do_not_vouch_for_a_scaling_file(scaled: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    file.write_text(json.dumps({"points": POINTS}))
    one = only(accepted(scaled[1], text=EFFICIENCY, scaling=file))
    assert "the records that it names are not among the given runs" in one.note
    assert f"{file} is not signed" in one.note
    # Nobody can put another number there while it is judged: a judged run is read where it was judged.
    (tmp_path / "moved").mkdir()
    judged = [shutil.copytree(path, tmp_path / "moved" / path.name) for path in scaled]
    (scaled[1] / "recipe.toml").write_text("")
    assert only(accepted(*judged, text=EFFICIENCY, scaling=file)).note == "against 1 process"


# Ceilings, variation, the worst node.


# Where and when the runs of `campaign` took place.
HERE = {"hosts": ["node-1"] * 8 + ["node-2"] * 8, "time_ms": round(Story.start_s * 1000)}


def ceiling(rate: float, **more: object) -> dict[str, Any]:
    shared = {"interval": [rate * 0.99, rate * 1.01], "spread": 0.01, "verified": True, "nodes": 2, **HERE}
    slowest = {"rank": 1, "host": "node-2", "value": rate * 0.4}
    return {"gemm bf16": {"value": rate, "unit": "FLOPS", "per_rank": [rate * 0.6, rate * 0.4], "slowest": slowest,
                          **shared, **more}}  # fmt: skip


def test_ceilings_come_from_micro_and_only_if_verified_and_of_all_nodes(campaign: Path, tmp_path: Path) -> None:
    text = "[require]\nnodes = 2\n" + criterion("gemm bf16", 9, "PFLOPS", lower=0.0)

    def told(*documents: Mapping[str, Any], contract: str = text) -> CriterionResult:
        files = [tmp_path / f"micro-{number}.json" for number in range(len(documents))]
        for file, document in zip(files, documents, strict=True):
            file.write_text(json.dumps(document))
        return only(accepted(campaign, text=contract, micro=files))

    good = told(ceiling(9.5e15))
    assert (good.verdict, good.measured, good.interval) == ("pass", 9.5e15, pytest.approx((9.405e15, 9.595e15)))
    assert told(ceiling(9.5e15), ceiling(8.9e15)).measured == pytest.approx(9.2e15)
    assert told(ceiling(8.9e15)).verdict == "fail"
    assert told(ceiling(9.5e15, verified=False)).verdict == "missing"
    one_node = told(ceiling(9.5e15, nodes=1))
    assert one_node.verdict == "missing"
    assert "measured on 1 node, but the contract requires 2" in one_node.note
    with pytest.raises(UsageError, match="expected a value above 0 in FLOPS, got None"):
        told(ceiling(9.5e15, value=None))
    with pytest.raises(UsageError, match=r"not a file of `hpcai500 micro -o FILE` or `storage`: wrong result"):
        told({"verdict": "FAIL", "error": "wrong result", "exit_code": 2})


MICRO = criterion("gemm bf16", 1.9, "PFLOPS", lower=-0.05)


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "NVIDIA A100-SXM4-80GB, not NVIDIA H100 80GB HBM3"),
        ({"hosts": ["dgx1", "dgx2"]}, "hosts dgx1, dgx2, not hosts node-1, node-2"),
        ({"device": "NVIDIA H100 80GB HBM3", "hosts": ["node-1"] * 16}, "16 accelerators a node, not 8"),
    ],
)
def test_figures_of_another_machine_are_refused(
    campaign: Path, tmp_path: Path, origin: Mapping[str, Any], said: str
) -> None:
    file = tmp_path / "micro.json"
    file.write_text(json.dumps(ceiling(20e15, **origin)))
    with pytest.raises(UsageError, match=re.escape(f"micro.json: of another machine than the runs: {said}: ")):
        accepted(campaign, text=MICRO, micro=[file])


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"nodes": 4}, "measured on 4 nodes, but the runs are on 2"),
        ({"hosts": None}, "does not say when and on which hosts it was measured"),
        ({"time_ms": None}, "does not say when and on which hosts it was measured"),
        ({"time_ms": HERE["time_ms"] - 40 * 86_400_000}, "measured 40 days before the runs, at most 31"),
        ({"time_ms": HERE["time_ms"] + 90 * 86_400_000}, "days after the runs, at most 31"),
    ],
)
def test_figures_of_another_time_or_size_are_missing(
    campaign: Path, tmp_path: Path, origin: Mapping[str, Any], said: str
) -> None:
    file = tmp_path / "micro.json"
    file.write_text(json.dumps(ceiling(20e15, **origin)))
    one = only(accepted(campaign, text=MICRO, micro=[file]))
    assert one.verdict == "missing"
    assert said in one.note


def test_runs_of_two_machines_do_not_belong_together(campaign: Path, tmp_path: Path) -> None:
    other = short(tmp_path / "old", "hardware.nodes=1", accelerator="NVIDIA A100-SXM4-80GB")
    made = accepted(campaign, other)
    found = requirement(made, "runs belong together")
    assert (found.verdict, found.found, made.exit_code) == ("fail", "they are of two machines", 2)
    assert "NVIDIA A100-SXM4-80GB, not NVIDIA H100 80GB HBM3" in found.detail


def test_storage_is_a_criterion_and_what_was_not_cold_is_missing(campaign: Path, tmp_path: Path) -> None:
    def told(value: float | None, name: str, unit: str, reference: float, **limits: float) -> CriterionResult:
        file = tmp_path / "storage.json"
        entry = {"value": value, "unit": unit, "verified": True, "nodes": 2, "latency_seconds": {}, **HERE}
        file.write_text(json.dumps({name: entry}))
        text = "[require]\nnodes = 2\n" + criterion(name, reference, unit, **limits)
        return only(accepted(campaign, text=text, micro=[file]))

    assert told(5000.0, "storage read ic", "samples/s", 4800, lower=0.0).verdict == "pass"
    assert told(4700.0, "storage read ic", "samples/s", 4800, lower=0.0).verdict == "fail"
    unknown = told(None, "storage read ic", "samples/s", 4800, lower=0.0)
    assert unknown.verdict == "missing"
    assert "not cold or not whole: srun hpcai500 storage DIR -o storage.json" in unknown.note
    # Of seconds, fewer are better.
    assert told(61.0, "storage save 70b", "s", 60, upper=0.05).verdict == "pass"
    assert told(64.0, "storage save 70b", "s", 60, upper=0.05).verdict == "fail"
    assert told(0, "storage accelerators ic", "accelerators", 8, lower=0.0).verdict == "fail"


def test_a_contract_names_collectives_and_the_slowest_pair_of_nodes(campaign: Path, tmp_path: Path) -> None:
    def entry(value: float, unit: str, **more: object) -> dict[str, Any]:
        shared = {"interval": [value * 0.99, value * 1.01], "spread": 0.01, "verified": True, "nodes": 2, **HERE}
        return {"value": value, "unit": unit, **shared, **more}

    slow = ["n3-n7: 41 % of the median of 28 links"]
    document = {
        "alltoall network": entry(21e9, "bytes/s"),
        "pairs slowest": entry(4.9e9, "bytes/s", slow=slow),
        "pairs share": entry(0.41, "fraction"),
        "pairs latency": entry(3.1e-6, "s"),
        "pairs bisection": entry(44e9, "bytes/s"),
    }
    text = criterion("alltoall network", 20, "GB/s", lower=0.0) + criterion("pairs share", 90, "%", lower=-0.05)
    text += criterion("pairs latency", 3, "us", upper=0.1) + criterion("pairs bisection", 40, "GB/s", lower=0.0)
    file = tmp_path / "micro.json"
    file.write_text(json.dumps(document))
    found = accepted(campaign, text=text, micro=[file])
    assert [(one.verdict, one.measured) for one in found.criteria] == [
        ("pass", 21e9),
        ("fail", 0.41),
        ("pass", 3.1e-6),
        ("pass", 44e9),
    ]
    assert any(f"pairs slowest: {slow[0]}" in line for line in acceptance_lines(found))


def test_variation_is_that_of_all_runs(campaign: Path, tmp_path: Path) -> None:
    one = only(accepted(campaign, text=criterion("variation of quality", 1, "%", upper=0.0)))
    assert one.verdict == "pass"
    assert 0 < one.measured < 0.01
    single = only(accepted(write_record(tmp_path / "r"), text=criterion("variation of flops", 1, "%", upper=0.0)))
    assert single.verdict == "missing"
    assert "give two runs or more" in single.note


def slow_down(events: list[dict[str, Any]]) -> None:
    for rank in values(events, "communication")[-1]["ranks"]:
        if rank["host"] == "node-2":
            rank["own_seconds"] *= 1.3


def test_the_worst_node_is_named_with_how_much_slower_it_is_and_what_differs(campaign: Path, tmp_path: Path) -> None:
    def older(events: list[dict[str, Any]]) -> None:
        values(events, "system")[0]["nodes"][1]["software"].update(torch="1.0")

    slow = copy_campaign(campaign, tmp_path / "slow")
    for trial in ("trial-01", "trial-02", "trial-03"):
        edit_record(slow / trial, slow_down)
    edit_record(slow / "trial-04", older)
    worst = accepted(slow).worst
    node = worst.slowest
    assert (node.name, node.slowest_in, node.straggler_in, node.runs) == ("node-2", 3, 3, RUNS)
    assert node.slowdown == pytest.approx(0.3, rel=0.02)
    assert worst.sentence == (
        "node-2: 30.0 % slower than the median of the others (2 nodes, slowest in 3 of 4 runs, a straggler in 3)"
    )
    assert worst.differences == ("software.torch: 2.13.0 on node-1; 1.0 on node-2",)
    assert any(said.startswith("matrix products in the runs: the slowest rank on node-2") for said in worst.ceilings)
    assert accepted(campaign).worst.sentence.startswith("none: the own times of 2 nodes agree within 1 %")
    assert accepted(write_record(tmp_path / "one")).worst.sentence.startswith("unknown: no run of several nodes")


# Baselines.


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was there before, a little faster."""
    return short(tmp_path_factory.mktemp("old") / "old", trials=3, watts=WATTS, images_per_second=43_000.0)


def test_a_baseline_judges_each_metric_the_way_it_is_better(campaign: Path, old: Path) -> None:
    made = accept(Request(None, [campaign], baseline=old, ratio=0.9))
    by_name = {one.metric.name: one for one in made.criteria}
    assert made.exit_code == 0
    assert set(by_name) == {
        "vflops", "flops", "images_per_second", "quality", "time_to_quality_seconds", "seconds", "energy_joules",
        "flops_per_watt", "vflops_per_watt",
    }  # fmt: skip
    assert by_name["flops"].limits.lower == pytest.approx(-0.1)
    assert by_name["seconds"].limits.upper == pytest.approx(1 / 0.9 - 1)
    strict = accept(Request(None, [campaign], baseline=old, ratio=0.97))
    failed = {one.metric.name for one in strict.criteria if one.verdict == "fail"}
    assert (failed, strict.exit_code) == (set(by_name) - {"quality"}, 5)
    assert accept(Request(None, [old], baseline=campaign, ratio=1.05)).exit_code == 2, "the quality is not 5 % better"
    both = accepted(campaign, baseline=old)
    assert (both.criteria[0].name, both.exit_code) == ("flops (mean)", 0)
    assert "vflops against the baseline" in [one.name for one in both.criteria]


def test_a_campaign_with_a_run_left_out_is_not_accepted(tmp_path: Path) -> None:
    write_campaign(tmp_path / "runs", "problem.epochs=3", "hyperparameters.warmup_epochs=1", trials=3, done=2)
    made = accepted(tmp_path / "runs")
    [planned] = [one for one in made.requirements if one.name == "planned runs"]
    assert (planned.verdict, planned.found, made.exit_code) == ("fail", "2 of 3 runs", 2)
    advice = f"{tmp_path / 'runs'} is not finished: 2 of 3 planned runs have ended"
    assert planned.detail == f"{advice}: hpcai500 campaign run {tmp_path / 'runs'}"
    assert advice in made.sentence


def test_a_campaign_without_an_ended_run_says_what_to_type(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "runs", *SHORT, trials=3, done=0)
    made = accepted(folder)
    text = "\n".join(acceptance_lines(made))
    assert f"{folder} is not finished: 0 of 3 planned runs have ended: hpcai500 campaign run {folder}" in text
    assert f"Not accepted: {folder} is not finished: 0 of 3 planned runs have ended; 0 of 1 criteria are met" in text
    assert "0 of 0" not in text
    assert made.exit_code == 2


def test_a_baseline_of_the_same_runs_or_of_other_work_is_refused(campaign: Path, alone: Path, tmp_path: Path) -> None:
    other = write_campaign(tmp_path / "other", "problem.epochs=2", "hyperparameters.warmup_epochs=1", trials=2)
    broken = copy_campaign(campaign, tmp_path / "broken")
    (broken / "trial-01" / "DONE").unlink()
    same = "which is one of the new runs"
    for baseline, error, said in (
        (campaign, UsageError, same),
        (copy_campaign(campaign, tmp_path / "copy"), UsageError, same),
        (campaign / "trial-02", UsageError, same),
        (other, UsageError, r"--baseline .*: not the same work: problem \(layer 9\), epochs: 2 in .*, 3 in "),
        (alone, UsageError, r"not the same work: ranks: 8 in .*, 16 in "),
        (broken, WrongAnswerError, r"--baseline: .*trial-01: the run is not finished"),
    ):
        with pytest.raises(error, match=said):
            accept(Request(None, [campaign], baseline=baseline))


# A benchmark that somebody made easy.


LOUD = "these runs are not HPC AI500 results: "


@pytest.fixture(scope="module")
def gamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on 33 images, with a target that one class in a hundred reaches."""
    folder = tmp_path_factory.mktemp("gamed") / "gamed"
    made_up = {"training_samples": 33, "evaluation_samples": 1000, "synthetic": True}
    return write_campaign(folder, *SHORT, "problem.target_quality=0.01", trials=2, quality=0.05, dataset=made_up)


def strictly(record: Path) -> Acceptance:
    """By a contract that says nothing of rules."""
    path = record.parent / "strict.toml"
    path.write_text(f'title = "t"\n{VFLOPS}', encoding="utf-8")
    return accept(Request(load_contract(path), [record]))


def test_a_gamed_benchmark_is_not_accepted_by_a_contract_that_says_nothing_of_rules(gamed: Path) -> None:
    made = strictly(gamed)
    assert (made.verdict, made.exit_code) == ("FAIL", 2)
    assert "problem.target_quality is 0.01; edition v2.0 fixes 0.763" in requirement(made, "rankable").detail
    assert "top1 is 0.0" in requirement(made, "right answers").detail
    assert "the target of edition v2.0 is 0.763" in requirement(made, "right answers").detail


EASY = criterion("flops", 1, "kFLOPS", lower=0.0)


def test_with_the_opt_out_every_output_says_loudly_that_it_is_no_result(gamed: Path) -> None:
    made = accepted(gamed, text=EASY)
    line = made.warning
    assert made.exit_code == 0
    assert line.startswith(LOUD)
    assert line.endswith(f"(and {len(made.not_rankable) - 1} more)")
    assert [said for said in acceptance_lines(made) if LOUD in said] == [f"HPCAI500 NOTE {line}"]
    assert line[1:].replace(f"{gamed.parent}/", "") in html.unescape(acceptance_page(made))
    properties = {one.get("name"): one.get("value") for one in ET.fromstring(junit_xml(made)).iter("property")}
    assert properties["not_rankable"] == line
    assert any("target_quality is 0.01" in reason for reason in made.document()["not_rankable"])


def test_a_comparison_without_a_contract_says_it_too(tmp_path: Path) -> None:
    old = write_record(tmp_path / "old", "hyperparameters.seed=1")
    new = write_record(tmp_path / "new", "hyperparameters.seed=2")
    made = accept(Request(None, [new], baseline=old, ratio=1e-6))
    assert made.exit_code == 0
    assert made.not_rankable[0].startswith(f"{new}: ")


def test_what_was_judged_is_named_with_data_recipe_targets_and_machine(gamed: Path) -> None:
    made = accepted(gamed, text=EASY)
    (one,) = made.document()["judged"]
    campaign = made.evidence.campaigns[0]
    expected = {
        "benchmark": "ic", "edition": "v2.0", "dataset": "imagenet-1k", "input": "synthetic", "training_samples": 33,
        "evaluation_samples": 1000, "recipe_hash": campaign.start["recipe_hash"], "target": 0.01,
        "edition_target": 0.763, "precision": campaign.tables["accelerator"]["precision"], "ranks": 16, "nodes": 2,
        "runs": 2, "campaign": campaign.identity,
    }  # fmt: skip
    assert {key: one[key] for key in expected} == expected
    assert (len(one["achieved"]), sum(one["accelerators"].values())) == (2, 16)
    page = html.unescape(acceptance_page(made))
    target = "target 0.01 (edition v2.0 fixes 0.763)"
    for said in ("SYNTHETIC, 33 + 1,000 samples", target, one["recipe_hash"], campaign.identity):
        assert said in page
