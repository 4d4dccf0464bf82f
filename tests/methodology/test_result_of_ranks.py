"""What many ranks add to a result: the backend that really ran, what communication cost, and what may not change."""

from __future__ import annotations

from typing import Any

import pytest
from run_log import Log, restarted

COSTS = {
    "communication_fraction": 0.12,
    "bytes_per_step": {"gradient": 4e6, "sent": 3e6},
    "stragglers": ["rank 3 on n2"],
}
COMPANY = {"world_size": 8, "nodes": 2, "backend": "horovod", "library": "Open MPI 4.1.4", "hosts": ["n1", "n2"]}


def run(*, company: dict[str, Any] | None = None, resumed: dict[str, Any] | None = None) -> Log:
    log = Log().initialise()
    log.add("parallel_efficiency", {"step_seconds_alone": 0.9, "step_seconds": 1.2})
    log.add("run_start", COMPANY | (company or {}))
    for number in range(1, 91):
        if number == 46 and resumed is not None:
            log.initialise().add("run_resume", {"epoch": 46, "step": 0, **resumed})
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
    assert run(company={"world_size": 1, "backend": "local", "library": "none"}).result().communication_library is None


def test_the_last_word_on_communication_counts() -> None:
    result = run().result()
    assert (result.communication_fraction, result.stragglers) == (0.12, ["rank 3 on n2"])
    assert result.as_json()["bytes_per_step"] == {"gradient": 4e6, "sent": 3e6}


def test_parallel_efficiency_is_the_step_alone_over_the_step_with_communication() -> None:
    assert run().result().parallel_efficiency == pytest.approx(0.75)


def test_an_efficiency_that_was_not_measured_is_unknown() -> None:
    log = run()
    event = next(event for event in log.events if event["key"] == "parallel_efficiency")
    event["value"] = {"step_seconds_alone": None, "step_seconds": None}
    assert log.result().parallel_efficiency is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 4}, "ranks 8, then 4"),
        ({"backend": "torch", "library": "Gloo"}, "backend horovod, then torch; communication library Open MPI 4.1.4"),
    ],
)
def test_a_run_that_went_on_in_another_configuration_is_not_rankable(changes: dict[str, Any], reason: str) -> None:
    result = run(resumed=COMPANY | changes).result()
    assert not result.rankable
    assert result.reasons[0].startswith(f"the run was resumed in another configuration: {reason}")


def test_a_run_that_went_on_as_it_was_is_rankable_although_its_hosts_are_others() -> None:
    assert run(resumed=COMPANY | {"hosts": ["n5", "n7"]}).result().rankable
