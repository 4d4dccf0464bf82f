"""What many ranks add to a result: the backend that really ran, what communication cost, and what may not change."""

from __future__ import annotations

from typing import Any

import pytest
from builders.events import EventLog, restarted

from hpcai500.campaign.standing import differing_keys
from hpcai500.methodology.weak_scaling import estimate_efficiency
from hpcai500.results.outcome import figure_of_merit_lines, summary_lines

COSTS = {
    "communication_fraction": 0.12,
    "bytes_per_step": {"gradient": 4e6, "sent": 3e6},
    "stragglers": ["rank 3 on n2"],
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
    log.add("communication", {**COSTS, "communication_fraction": 0.99})
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
    assert (result.communication_fraction, result.stragglers) == (0.12, ["rank 3 on n2"])
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
        ([1.2, 1.25, 1.22, 1.21, 1.24, 1.23], "above 1, which communication does not bring about: the median of 6"),
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


def test_an_efficiency_above_one_is_withheld_also_within_its_uncertainty() -> None:
    estimate = estimate_efficiency([0.97, 1.02, 1.03, 0.99, 1.01, 1.02])
    assert (estimate.value, estimate.interval) == (None, (0.97, 1.03))
    assert str(estimate.note).startswith("above 1")


def test_a_resumed_run_keeps_the_efficiency_of_every_start() -> None:
    result = run(resumed=WORLD, again=[0.85, 0.86, 0.84, 0.85, 0.85, 0.86]).result()
    assert result.parallel_efficiency_starts == [0.75, 0.85]
    # Of both starts together: neither replaces the other.
    assert result.parallel_efficiency == 0.76


def test_a_run_gone_on_with_by_other_ranks_has_no_one_efficiency() -> None:
    result = run(resumed=WORLD | {"world_size": 4}).result()
    assert (result.parallel_efficiency, result.parallel_efficiency_note) == (None, "its starts had 4 and 8 ranks")


def test_an_estimate_is_no_figure_of_merit() -> None:
    assert "efficiency" not in "\n".join(figure_of_merit_lines(run().result()))


def test_a_record_without_single_steps_has_no_efficiency_and_its_result_is_no_forgery() -> None:
    log = run()
    event = next(event for event in log.events if event["key"] == "parallel_efficiency")
    del event["value"]["efficiencies"]
    computed = log.result().as_json()
    assert computed["parallel_efficiency"] is None
    assert computed["parallel_efficiency_note"] == "an older version timed a few steps only"
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
