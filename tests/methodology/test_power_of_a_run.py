"""From the event `power` to energy, watts and efficiency; and when they are unknown."""

from __future__ import annotations

from typing import Any

import pytest
from builders.events import EventLog

from hpcai500.methodology.energy import why_unknown, window_of


def node(host: str, joules: float | None = 9e6, **changes: Any) -> dict[str, Any]:
    told = {"host": host, "covers": [host], "source": "nvml", "scope": "device", "energy_joules": joules}
    return {**told, "reason": None if joules is not None else "power is unknown for 9.0 s of 10.0 s", **changes}


def run(*nodes: dict[str, Any], note: str | None = None, reason: str | None = None, quality: float = 0.763) -> Any:
    log = EventLog().initialise()
    log.add("run_start", {"world_size": 8, "nodes": 2, "hosts": ["n1", "n2"]})
    for number in range(1, 91):
        log.epoch(number, quality)
    return log.add("run_stop").add("power", {"nodes": list(nodes), "reason": reason, "note": note}).result()


def test_nodes_are_summed_and_watts_are_energy_by_time() -> None:
    result = run(node("n1"), node("n2", 4.5e6), note="short")
    assert (result.energy_joules, result.watts) == (pytest.approx(13.5e6), pytest.approx(1500))
    assert result.flops_per_watt == pytest.approx(result.flops / 1500)
    assert result.vflops_per_watt == pytest.approx(result.vflops / 1500)
    assert (result.power_source, result.power_scope, result.power_note) == ("nvml", "device", "short")
    assert result.rankable


def test_a_missed_target_lowers_the_valid_flops_per_watt_alone() -> None:
    result = run(node("n1"), node("n2"), quality=0.7)
    assert result.vflops_per_watt == pytest.approx(result.flops_per_watt * (0.7 / 0.763) ** 5)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("n1")], "n2: no power was measured"),
        ([node("n1"), node("n2", None)], "n2: power is unknown for 9.0 s of 10.0 s"),
        ([node("n1"), node("n2", scope="node")], "scopes differ between nodes: device, node"),
    ],
)
def test_a_node_that_is_not_known_makes_the_total_unknown(nodes: list[dict[str, Any]], why: str) -> None:
    result = run(*nodes)
    assert (result.energy_joules, result.watts, result.flops_per_watt, result.vflops_per_watt) == (None,) * 4
    assert (result.power_note, result.power_source) == (why, "nvml")


def test_one_meter_may_feed_all_nodes() -> None:
    assert run(node("n1", covers=["n1", "n2"], source="csv", scope="pdu")).watts == pytest.approx(1000)
    assert why_unknown([node("n1")], ["n1", "n2", "n3"]) == "n2: no power was measured (and on 1 more)"


def test_a_run_that_was_not_measured_says_why() -> None:
    result = run(reason="not measured (--power none)")
    assert (result.energy_joules, result.power_source) == (None, None)
    assert result.power_note == "not measured (--power none)"


def test_the_window_is_the_time_of_the_run_with_what_a_restart_took() -> None:
    log = EventLog().initialise().start()
    begin = log.wall_s
    log.after(50).restart(100, epoch=1).after(30).add("run_stop").after(9).add("power", {})
    window = window_of(log.events)
    assert (window.start_s, window.seconds) == (pytest.approx(begin), pytest.approx(50 + 100 + 10 + 30))
