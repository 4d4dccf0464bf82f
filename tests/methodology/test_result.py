"""From events to `result.json`: what is counted, what is not, and what makes a run not rankable."""

from __future__ import annotations

from typing import Any

import pytest
from builders.events import IMAGENET, PADDED, EventLog, complete, restarted, tables
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.campaign.standing import differing_keys
from hpcai500.errors import RecordError, UsageError
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines


def test_a_reference_run_by_hand() -> None:
    result = complete().result()
    assert (result.rankable, result.reasons) == (True, [])
    assert (result.images, result.padded_images, result.seconds) == (90 * IMAGENET, 90 * PADDED, pytest.approx(9000))
    assert result.flops == pytest.approx(90 * IMAGENET * 24.3e9 / 9000)
    assert (result.penalty_coefficient, result.vflops) == (1.0, result.flops)
    assert result.data_wait_fraction == pytest.approx(0.25)
    assert result.evaluation_seconds == pytest.approx(1800)


def test_the_penalty_has_exponent_five() -> None:
    result = complete(0.75).result()
    assert result.vflops == pytest.approx(result.flops * (0.75 / 0.763) ** 5)


def test_another_target_than_the_editions_gives_no_vflops_and_the_reason() -> None:
    """Against a target of 0.01 the penalty coefficient would be 2.6 thousand million."""
    recipe = tables()
    recipe["problem"]["target_quality"] = 0.01
    log = complete()
    log.add("power", {"nodes": [], "reason": "no meter"})
    result = log.result(recipe)
    assert (result.vflops, result.vflops_per_watt, result.rankable) == (None, None, False)
    assert result.why_no_vflops == "problem.target_quality is 0.01; edition v2.0 fixes 0.763"
    assert result.why_no_vflops in result.reasons
    assert result.flops == complete().result().flops
    shown, figures = "\n".join(summary_lines(result)), "\n".join(figure_of_merit_lines(result))
    assert f"VFLOPS      not shown: {result.why_no_vflops}" in shown
    assert "vflops" not in figures
    assert "HPCAI500 FOM flops=" in figures


def test_a_result_that_an_older_version_wrote_with_vflops_for_any_target_is_no_forgery() -> None:
    recipe = tables()
    recipe["problem"]["target_quality"] = 0.7
    computed = complete().result(recipe).as_json()
    older = computed | {"vflops": computed["flops"] * (0.763 / 0.7) ** 5}
    assert differing_keys(older, computed) == []
    assert differing_keys(older | {"vflops": 1.01 * older["vflops"]}, computed) == ["vflops"]


def test_the_last_evaluation_counts_and_not_the_best() -> None:
    log = EventLog().initialise().start()
    for number in range(1, 91):
        log.epoch(number, 0.9 if number == 50 else 0.7)
    result = log.add("run_stop").result()
    assert result.quality.achieved == 0.7
    assert result.time_to_quality_seconds == pytest.approx(5000)


def test_a_target_that_was_never_reached_has_no_time() -> None:
    assert complete(0.7).result().time_to_quality_seconds is None


def test_unknown_is_none_and_never_zero() -> None:
    result = complete().result().as_json()
    assert [key for key, value in result.items() if value is None] == [
        "energy_joules", "watts", "power_source", "power_scope", "power_note", "flops_per_watt",
        "vflops_per_watt", "step_split", "communication_fraction",
        "parallel_efficiency", "parallel_efficiency_interval", "parallel_efficiency_note",
        "parallel_efficiency_starts", "bytes_per_step", "stragglers", "communication_library",
    ]  # fmt: skip


def test_an_epoch_that_was_trained_again_counts_once_and_its_time_twice() -> None:
    log = EventLog().initialise().start()
    for number in range(1, 61):
        log.epoch(number)
    log.restart(500, epoch=60)
    for number in range(60, 91):
        log.epoch(number)
    result = log.add("run_stop").result()
    assert (result.images, result.restarts) == (90 * IMAGENET, 1)
    assert result.downtime_seconds == pytest.approx(510)
    assert result.seconds == pytest.approx(9000 + 100 + 510)


@given(st.floats(0, 1e6), st.booleans())
def test_down_time_is_run_time(down_seconds: float, reboot: bool) -> None:
    result = restarted(down_seconds, reboot=reboot).result()
    assert result.seconds == pytest.approx(9010 + down_seconds, abs=0.01)
    assert (result.rankable, result.downtime_seconds) == (True, pytest.approx(10 + down_seconds, abs=0.01))


def test_a_process_that_was_killed_while_it_resumed_is_down_time() -> None:
    log = EventLog().initialise().start()
    for number in range(1, 46):
        log.epoch(number)
    log.after(100).initialise().after(7)
    log.restart(200, epoch=46)
    for number in range(46, 91):
        log.epoch(number)
    result = log.add("run_stop").result()
    assert (result.restarts, result.downtime_seconds) == (1, pytest.approx(317))
    assert result.seconds == pytest.approx(9317)


def test_a_wall_clock_that_was_set_back_over_a_reboot_is_noticed() -> None:
    (reason,) = restarted(-3600).result().reasons
    assert reason.startswith("the clock ran backwards before event ")


def test_a_wall_clock_that_was_set_back_is_noticed_although_the_run_was_down_for_longer() -> None:
    log = restarted(7200, reboot=False)
    for event in log.events[log.events.index(next(e for e in log.events[9:] if e["key"] == "init_start")) :]:
        event["time_ms"] -= 3_600_000
    result = log.result()
    assert result.seconds == pytest.approx(9010 + 7200)
    assert "wall clock and machine clock disagree by 3600 s" in result.reasons[0]


def test_a_machine_clock_that_stood_still_is_noticed() -> None:
    log = complete()
    for event in log.events[100:]:
        event["time_ms"] += 50_000
    assert "wall clock and machine clock disagree by 50 s" in log.result().reasons[0]


def test_a_run_that_went_on_on_another_system_is_not_rankable() -> None:
    assert restarted(60).result().rankable
    (reason,) = restarted(60, accelerator="B300").result().reasons
    assert reason == "the run was resumed on another system: accelerators differ"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("dataset", "imagenet-22k", "problem.dataset is imagenet-22k; edition v2.0 fixes imagenet-1k"),
        ("target_quality", 0.7, "problem.target_quality is 0.7; edition v2.0 fixes 0.763"),
    ],
)
def test_another_problem_is_not_rankable(key: str, value: Any, reason: str) -> None:
    recipe = tables()
    recipe["problem"][key] = value
    result = complete().result(recipe)
    assert (result.rankable, result.reasons) == (False, [reason])


def test_a_data_set_of_another_size_is_not_rankable() -> None:
    log = EventLog().initialise(training_samples=1000).start()
    for number in range(1, 91):
        log.epoch(number, steps=1, samples=1000, padded_samples=24)
    reasons = log.add("run_stop").result().reasons
    assert reasons == ["the data set has 1000 training samples; imagenet-1k has 1281167"]


def test_an_epoch_that_missed_samples_is_not_rankable() -> None:
    result = complete(coverage="1281166-fff", samples=IMAGENET - 1).result()
    counted, reason = result.reasons
    assert counted.startswith("90 epochs from 1 to 90: 1281166 samples; 1281167 samples in global batches of 1024")
    assert reason.startswith("90 epochs from 1 to 90: the samples delivered are not the training set, once each")


@pytest.mark.parametrize("leave_out", ["run_start", "run_stop", "flops", "dataset"])
def test_a_run_without_its_end_has_no_score(leave_out: str) -> None:
    log = complete()
    events = [event for event in log.events if event["key"] != leave_out]
    log.events = [{**event, "seq": number} for number, event in enumerate(events)]
    with pytest.raises(RecordError, match=f"no event {leave_out}"):
        log.result()


@pytest.mark.parametrize("key", ["epoch_stop", "eval_accuracy"])
def test_a_run_that_skips_an_evaluation_is_refused(key: str) -> None:
    log = complete()
    events = [e for e in log.events if not (e["key"] == key and e["value"]["epoch"] == 7)]
    log.events = [{**event, "seq": number} for number, event in enumerate(events)]
    with pytest.raises(RecordError, match="epoch 7: not trained or not evaluated"):
        log.result()


def test_the_papers_convention_is_23_gflop_an_image_and_is_named() -> None:
    result = complete().result(convention="paper")
    assert (result.flops_per_image, result.flops_convention) == (23e9, "paper")
    with pytest.raises(UsageError, match="FLOPs convention: expected analytic, or paper"):
        complete().result(convention="guess")


def test_the_papers_constant_is_refused_for_another_model() -> None:
    log = complete()
    next(event for event in log.events if event["key"] == "flops")["value"]["per_sample"] = 67e6
    with pytest.raises(UsageError, match="the paper's constant is that of its model"):
        log.result(convention="paper")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"image": {"content_sha256": "bb"}}, "image differ"),
        ({"package": {"code_sha256": "bb", "core_sha256": "aa"}}, "code differ"),
        ({"package": {"code_sha256": "aa", "core_sha256": "bb"}}, "code differ"),
    ],
)
def test_a_run_that_went_on_with_other_software_is_not_rankable(change: dict[str, object], words: str | None) -> None:
    log = restarted(60)
    first, second = (event["value"] for event in log.events if event["key"] == "system")
    software = {"image": {"content_sha256": "aa"}, "package": {"code_sha256": "aa", "core_sha256": "aa"}}
    first["installation"], second["installation"] = software, software | change
    expected = [f"the run was resumed on another system: {words}"] if words else []
    assert list(log.result().reasons) == expected
