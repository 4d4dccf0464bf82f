"""From events to `result.json`: what is counted, what is not, and what makes a run not rankable."""

from __future__ import annotations

from typing import Any

import pytest
from builders.events import IMAGENET, PADDED, EventLog, complete, restarted, tables
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcai500.campaign.standing import differing_keys
from hpcai500.errors import RecordError, UsageError
from hpcai500.methodology.events import Dataset
from hpcai500.methodology.result import step_split
from hpcai500.methodology.samples import samples_of
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines
from hpcai500.results.score import metric_title


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
        "utilisation", "energy_joules", "watts", "power_source", "power_scope", "power_note", "flops_per_watt",
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
    assert reason == "the run was resumed on another system (other accelerators)"


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


def test_what_the_events_show_keeps_a_result_from_being_ranked() -> None:
    log = complete()
    last = [event for event in log.events if event["key"] == "replicas"][-1]
    last["value"]["digest"] = None
    result = log.result()
    assert (result.rankable, result.level) == (False, "hardware")
    assert "does not show equal weights on all 8 ranks" in result.reasons[0]


def test_a_result_names_its_level_and_the_changes_that_force_it() -> None:
    result = complete().result(tables("hyperparameters.momentum=0.9", "framework.compile=true"))
    assert (result.level, result.level_changes, result.rankable) == ("free", ["hyperparameters.momentum"], True)
    result = complete().result(tables("accelerator.loader=memory"))
    assert (result.level, result.level_changes, result.rankable) == (None, ["accelerator.loader"], False)
    assert result.reasons == ["accelerator.loader is memory: a few batches were repeated, and no data was read"]


def test_a_change_that_no_level_allows_is_a_reason() -> None:
    recipe = tables()
    recipe["programming"]["synchronous"] = False
    assert complete().result(recipe).reasons == [
        "programming.synchronous is False; no level of edition v2.0 allows a change of it"
    ]


@pytest.mark.parametrize("leave_out", ["run_start", "run_stop", "flops", "dataset"])
def test_a_run_without_its_end_has_no_score(leave_out: str) -> None:
    with pytest.raises(RecordError, match=f"no event {leave_out}"):
        complete().without(leave_out).result()


@pytest.mark.parametrize("key", ["epoch_stop", "eval_accuracy"])
def test_a_run_that_skips_an_evaluation_is_refused(key: str) -> None:
    with pytest.raises(RecordError, match="epoch 7: not trained or not evaluated"):
        complete().without(key, epoch=7).result()


def test_the_papers_convention_is_23_gflop_an_image_and_is_named_and_not_ranked() -> None:
    result = complete().result(convention="paper")
    assert (result.flops_per_image, result.flops_convention) == (23e9, "paper")
    assert result.reasons == ["operations are counted by the convention paper; edition v2.0 ranks by analytic"]
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
        ({"image": {"content_sha256": "bb"}}, "(other image)"),
        ({"package": {"code_sha256": "bb", "core_sha256": "aa"}}, "(other code)"),
        ({"package": {"code_sha256": "aa", "core_sha256": "bb"}}, "(other code)"),
    ],
)
def test_a_run_that_went_on_with_other_software_is_not_rankable(change: dict[str, object], words: str | None) -> None:
    log = restarted(60)
    first, second = (event["value"] for event in log.events if event["key"] == "system")
    software = {"image": {"content_sha256": "aa"}, "package": {"code_sha256": "aa", "core_sha256": "aa"}}
    first["installation"], second["installation"] = software, software | change
    expected = [f"the run was resumed on another system {words}"] if words else []
    assert list(log.result().reasons) == expected


# --- What many ranks add: the backend that really ran, what communication cost, and what may not change.


COSTS = {
    "bytes_per_step": {"gradient": 4e6, "sent": 3e6},
    "ranks": [
        {"rank": rank, "host": f"n{1 + rank // 2}", "steps": 100, "own_seconds": 1.5 if rank == 3 else 1.0}
        for rank in range(4)
    ],
}
WORLD = {"world_size": 8, "nodes": 2, "backend": "horovod", "library": "Open MPI 4.1.4", "hosts": ["n1", "n2"]}


PAIRS = [0.74, 0.75, 0.76, 0.75, 0.74, 0.76, 0.75]


def timed(pairs: list[float]) -> dict[str, Any]:
    return {"step_seconds_alone": 0.9, "step_seconds": 1.2, "efficiencies": pairs}


def run(
    *, world: dict[str, Any] | None = None, resumed: dict[str, Any] | None = None, again: list[float] = PAIRS
) -> EventLog:
    log = EventLog().initialise()
    log.add("parallel_efficiency", timed(PAIRS))
    log.add("run_start", WORLD | (world or {}))
    for number in range(1, 91):
        if number == 46 and resumed is not None:
            log.initialise().add("parallel_efficiency", timed(again)).add(
                "run_resume", {"epoch": 46, "step": 0, **resumed}
            )
        log.epoch(number)
    log.add("communication", {**COSTS, "bytes_per_step": {"gradient": 4e6, "sent": 9e6}})
    return log.add("communication", COSTS).add("run_stop")


def test_the_backend_is_the_one_that_ran_and_not_the_one_that_was_asked_for() -> None:
    result = run().result()
    assert (result.backend, result.communication_library) == ("horovod", "Open MPI 4.1.4")
    assert (result.world_size, result.nodes, result.rankable) == (8, 2, True)


def test_a_record_from_before_there_were_ranks_has_the_recipes_backend_and_unknown_costs() -> None:
    result = restarted(1).result()
    assert (result.backend, result.communication_library) == ("torch", None)
    assert result.communication_fraction is result.parallel_efficiency is result.bytes_per_step is None
    assert result.stragglers is None


def test_one_process_has_no_communication_library() -> None:
    assert run(world={"world_size": 1, "backend": "local", "library": "none"}).result().communication_library is None


def test_the_last_word_on_communication_counts() -> None:
    result = run().result()
    assert result.stragglers == ["rank 3 on n2"]
    assert result.as_json()["bytes_per_step"] == {"gradient": 4e6, "sent": 3e6}


def test_parallel_efficiency_is_the_median_of_steps_without_over_steps_with_communication_with_its_spread() -> None:
    result = run().result()
    assert (result.parallel_efficiency, result.parallel_efficiency_interval) == (0.75, (0.74, 0.76))
    assert (result.parallel_efficiency_note, result.parallel_efficiency_starts) == (None, [0.75])
    assert "efficiency  0.75 (0.74 to 0.76)" in "\n".join(summary_lines(result))


@pytest.mark.parametrize(
    ("pairs", "note"),
    [
        ([2.23], "pairs of steps timed: 1; 6 are needed"),
        ([1.32, 0.40, 0.91, 0.55, 0.6, 0.7], "too uncertain: the median of 6 pairs of steps is 0.65"),
        ([1.2, 1.25, 1.22, 1.21, 1.24, 1.23], "above 1, which communication cannot cause: the median of 6"),
    ],
)
def test_an_efficiency_that_cannot_be_relied_on_is_unknown_with_the_reason(pairs: list[float], note: str) -> None:
    log = run()
    event = next(event for event in log.events if event["key"] == "parallel_efficiency")
    event["value"] = timed(pairs)
    result = log.result()
    assert result.parallel_efficiency is None
    assert str(result.parallel_efficiency_note).startswith(note)
    assert f"efficiency  unknown: {note}" in "\n".join(summary_lines(result))


def test_a_resumed_run_keeps_the_efficiency_of_every_start() -> None:
    result = run(resumed=WORLD, again=[0.85, 0.86, 0.84, 0.85, 0.85, 0.86]).result()
    assert result.parallel_efficiency_starts == [0.75, 0.85]
    # Of both starts together: neither replaces the other.
    assert result.parallel_efficiency == 0.76


def test_a_run_gone_on_with_by_other_ranks_has_no_one_efficiency() -> None:
    result = run(resumed=WORLD | {"world_size": 4}).result()
    assert result.parallel_efficiency is None
    assert result.parallel_efficiency_note == "the run was started with 4 and 8 ranks"


def test_an_estimate_is_no_figure_of_merit() -> None:
    assert "efficiency" not in "\n".join(figure_of_merit_lines(run().result()))


def test_a_record_without_single_steps_has_no_efficiency_and_its_result_is_no_forgery() -> None:
    log = run()
    event = next(event for event in log.events if event["key"] == "parallel_efficiency")
    del event["value"]["efficiencies"]
    computed = log.result().as_json()
    assert computed["parallel_efficiency"] is None
    assert computed["parallel_efficiency_note"] == "an older version timed only a few steps"
    older = {key: value for key, value in computed.items() if not key.startswith("parallel_efficiency_")}
    assert differing_keys(older | {"parallel_efficiency": 0.75}, computed) == []
    assert differing_keys(computed | {"parallel_efficiency": 0.75}, computed) == ["parallel_efficiency"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 4}, "ranks 8, then 4"),
        ({"backend": "torch", "library": "Gloo"}, "backend horovod, then torch; communication library Open MPI 4.1.4"),
    ],
)
def test_a_run_that_went_on_in_another_configuration_is_not_rankable(changes: dict[str, Any], reason: str) -> None:
    result = run(resumed=WORLD | changes).result()
    assert not result.rankable
    assert result.reasons[0].startswith(f"the run was resumed in another configuration: {reason}")


def test_a_run_that_went_on_as_it_was_is_rankable_although_its_hosts_are_others() -> None:
    assert run(resumed=WORLD | {"hosts": ["n5", "n7"]}).result().rankable


# --- The split of training time: shares of a whole, whatever the clocks say.


SECONDS = st.floats(0, 1e6)


def epoch(seconds: float, data: float, compute: float, communication: float) -> dict[str, float]:
    return {
        "seconds": seconds,
        "data_wait_seconds": data,
        "compute_seconds": compute,
        "communication_wait_seconds": communication,
    }


def test_a_split_by_hand() -> None:
    split = step_split([epoch(10, 1, 6, 2), epoch(10, 3, 6, 0)])
    assert split is not None
    assert split.model_dump() == pytest.approx({"data_wait": 0.2, "compute": 0.6, "communication": 0.1, "other": 0.1})


@given(st.lists(st.builds(epoch, SECONDS, SECONDS, SECONDS, SECONDS), max_size=5))
def test_shares_are_of_a_whole(epochs: list[dict[str, float]]) -> None:
    split = step_split(epochs)
    if split is not None:
        shares = split.model_dump().values()
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("epochs", [[], [{"seconds": 3.0, "data_wait_seconds": 1.0}], [epoch(0, 0, 0, 0)]])
def test_what_is_not_known_is_none(epochs: list[dict[str, float]]) -> None:
    assert step_split(epochs) is None


def test_a_record_older_than_the_split_is_still_scored() -> None:
    result = complete().result()
    assert result.step_split is None
    assert result.data_wait_fraction == pytest.approx(0.25)
    assert result.input == "real"


def test_the_result_has_the_split_of_its_epochs() -> None:
    split = complete(compute_seconds=40.0, communication_wait_seconds=16.0).result().step_split
    assert split.model_dump() == pytest.approx({"data_wait": 0.25, "compute": 0.5, "communication": 0.2, "other": 0.05})


# ----------------------------------------------------------------------------------------------------
# What samples are called and hold, and the share of the machine's rate that steps reach.


def measured(log: EventLog, *rates: float, ranks: int = 8, **how: float | None) -> EventLog:
    for rate in rates:
        log.add("ceilings", {"flops": rate, "ranks": ranks, "spread": 0.02, "waited": None, **how})
    return log


def test_utilisation_is_the_rate_of_the_steps_over_that_of_matrix_products_by_hand() -> None:
    log = measured(complete(), 8e15, 1e16)
    # 80 of the 100 seconds of an epoch are steps; samples that pad the last batch are work, too.
    by_hand = (IMAGENET + PADDED) * 24.3e9 / 80 / 1e16
    result = log.result()
    assert result.utilisation == pytest.approx(by_hand)
    assert f"{by_hand:.1%} of the matrix-product rate measured in this run" in "\n".join(summary_lines(result))
    assert f"HPCAI500 FOM utilisation={by_hand:.6g} fraction" in list(figure_of_merit_lines(result))


def test_utilisation_counts_neither_evaluations_nor_what_a_restart_has_lost() -> None:
    once, again = (measured(log, 1e16).result() for log in (complete(), restarted(1000.0)))
    assert again.seconds > once.seconds
    assert again.utilisation == pytest.approx(once.utilisation)


def test_operations_by_the_papers_convention_do_not_change_utilisation() -> None:
    log = measured(complete(), 1e16)
    for event in log.events:
        if event["key"] == "flops":
            event["value"] = {"convention": "analytic", "per_sample": 24_299_077_632.0}
    analytic, paper = log.result(), log.result(convention="paper")
    assert analytic.flops_per_image != paper.flops_per_image
    assert paper.utilisation == analytic.utilisation


def test_utilisation_is_unknown_without_a_measured_rate_or_with_one_of_other_ranks() -> None:
    for log in (complete(), measured(complete(), 0.0), measured(measured(complete(), 1e16), 1e16, ranks=4)):
        result = log.result()
        assert result.utilisation is None
        assert not any("utilisation" in line for line in figure_of_merit_lines(result))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"spread": 0.3}, "the machine was busy: the times of equal products differed by 30%"),
        ({"waited": 0.4}, "other programs used the cores: threads waited 40% of their time for one"),
        ({"spread": None}, "whether the machine was idle is not in the record"),
    ],
)
def test_utilisation_of_a_busy_machine_is_unknown_with_its_reason(how: dict[str, float | None], said: str) -> None:
    log = measured(complete(), 1e16, **how)
    result = log.result()
    assert result.utilisation is None
    assert result.utilisation_note == f"the rate of matrix products is uncertain: {said}"
    assert f"unknown: {result.utilisation_note}" in "\n".join(summary_lines(result))
    again = measured(log, 8e15).result()
    assert again.utilisation is not None, "one of the starts was on an idle machine"


def test_a_result_without_a_unit_has_no_key_of_it() -> None:
    found = complete().result().as_json()
    assert not {"unit", "units_per_second"} & found.keys()
    assert found["images_per_second"] == pytest.approx(90 * IMAGENET / 9000)


def with_unit(unit: object) -> EventLog:
    log = complete()
    for event in log.events:
        if event["key"] == "dataset":
            event["value"] = {**event["value"], "unit": unit}
    return log


@given(st.integers(1, 10**6), st.floats(1e-3, 1e9))
def test_the_rate_of_what_samples_hold_is_a_multiple_of_theirs(per_sample: int, rate: float) -> None:
    samples = samples_of("other", {"unit": {"name": "words", "per_sample": per_sample}})
    assert samples.rates(rate) == {"images_per_second": rate, "words_per_second": rate * per_sample}
    assert samples.rate_units == {"images_per_second": "samples/s", "words_per_second": "words/s"}
    assert samples.rate_text(rate).endswith(f" words/s ({rate:.1f} samples/s)")


def test_samples_are_called_images_where_they_are() -> None:
    assert [samples_of(name).rate_text(48.2) for name in ("ic", "ewa", "other")] == [
        "48.2 images/s", "48.2 images/s", "48.2 samples/s",
    ]  # fmt: skip
    unit = {"unit": {"name": "words", "per_sample": 256}}
    assert samples_of("other", unit).rate_text(48.2) == "12339 words/s (48.2 samples/s)"
    assert [metric_title(name, "sample") for name in ("images_per_second", "flops_per_image", "images")] == [
        "Samples per second", "FLOPs per sample", "Samples",
    ]  # fmt: skip
    assert metric_title("words_per_second") == "Words per second"


@pytest.mark.parametrize(
    "unit",
    [
        {"name": "words"},
        {"name": "words", "per_sample": 0},
        {"name": "words", "per_sample": 2.5},
        {"name": "Many Words", "per_sample": 2},
        {"name": "images", "per_sample": 2},
        {"name": "words", "per_sample": 2, "more": 1},
        "words",
    ],
)
def test_a_wrong_unit_is_no_unit_in_an_event_or_a_result(unit: object) -> None:
    log = with_unit(unit)
    with pytest.raises(ValidationError):
        log.result()
    value = next(event["value"] for event in log.events if event["key"] == "dataset")
    with pytest.raises(ValidationError, match="unit"):
        Dataset.model_validate(value)


def test_the_rate_of_a_unit_is_over_the_same_time_as_that_of_samples() -> None:
    result = with_unit({"name": "words", "per_sample": 256}).result()
    assert result.units_per_second == pytest.approx(256 * result.images_per_second)
    assert result.as_json()["unit"] == {"name": "words", "per_sample": 256}
    assert f"HPCAI500 FOM words_per_second={result.units_per_second:.6g} words/s" in list(figure_of_merit_lines(result))
