"""Use of processor, device and network over time, from samples and as they are taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.nvml import LinkedNvml

from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.host import Bytes, NetworkCounters
from hpcai500.measure.sampling import (
    Sample,
    Sampler,
    chosen_curve,
    curves_of_rank,
    driver_utilisation,
    nvml_meter,
    processor_utilisation,
)


def counters(sent: int, received: int, loopback: int | None = None) -> NetworkCounters:
    return NetworkCounters(Bytes(loopback, loopback) if loopback is not None else None, {"eth0": Bytes(sent, received)})


SAMPLES = [
    Sample(10.0, 1.0, counters(0, 0, 5), None, Bytes(100, 50)),
    Sample(10.5, 1.5, counters(100, 300, 10), 0.25, Bytes(200, 50)),
    Sample(11.0, 2.5, counters(100, 300, 10), 0.75, Bytes(200, 60)),
    # One that came right behind the other: it stands for both.
    Sample(11.000001, 2.5, counters(900, 300, 10), 0.75, Bytes(900, 60)),
]


def test_cores_are_busy_by_the_time_that_the_process_has_computed() -> None:
    busy = 1.0 / 0.500001
    assert processor_utilisation(SAMPLES, 2) == [[0.5, pytest.approx(0.5)], [1.000001, pytest.approx(busy / 2)]]
    assert processor_utilisation(SAMPLES, 1) == [[0.5, pytest.approx(1.0)], [1.000001, pytest.approx(1.0)]]
    assert driver_utilisation(SAMPLES)[:2] == [[0.5, 0.25], [1.0, 0.75]]


def test_of_a_short_time_there_is_one_point() -> None:
    short = [Sample(10.0, 1.0), Sample(10.01, 1.005)]
    assert processor_utilisation(short, 1) == [[0.01, pytest.approx(0.5)]]
    assert processor_utilisation(short[:1], 1) == []


def test_samples_that_come_too_fast_are_thinned_out_and_not_joined_to_one() -> None:
    fast = [Sample(10 + number / 100, number / 200) for number in range(11)]
    found = processor_utilisation(fast, 1)
    assert [moment for moment, _ in found] == pytest.approx([0.03, 0.06, 0.1])
    assert [busy for _, busy in found] == pytest.approx([0.5] * 3)


def rates(points: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    return [(one["t_s"], one["sent_bytes_per_second"], one["received_bytes_per_second"]) for one in points]


def test_bandwidth_is_the_difference_of_counters_over_time() -> None:
    network, loopback, links = (rates(curve["points"]) for curve in curves_of_rank(SAMPLES, 0, "a"))
    assert network == [(0.5, 200, 600), (1.000001, pytest.approx(800 / 0.500001), 0)]
    assert loopback == [(0.5, 10, 10), (1.000001, 0, 0)]
    assert links == [
        (0.5, 200, 0),
        (1.000001, pytest.approx(700 / 0.500001), pytest.approx(10 / 0.500001)),
    ]


def test_what_was_not_sampled_has_no_curve() -> None:
    bare = [Sample(one.moment, one.processor_seconds) for one in SAMPLES]
    assert driver_utilisation(bare) == []
    assert curves_of_rank(bare, 0, "a") == []
    assert chosen_curve([], 2) is None
    assert processor_utilisation([], 1) == []


def test_between_nodes_the_network_is_drawn_within_one_its_links() -> None:
    curves = curves_of_rank(SAMPLES, 0, "a")
    assert [curve["path"] for curve in curves] == ["network", "loopback", "NVLink"]
    paths = [(chosen_curve(curves, nodes) or {}).get("path") for nodes in (1, 2)]
    assert paths == ["NVLink", "network"]
    assert (chosen_curve([curve for curve in curves if curve["path"] != "NVLink"], 1) or {})["path"] == "loopback"


def test_samples_are_taken_until_the_work_ends() -> None:
    enough = threading.Event()
    taken = 0

    def read() -> NetworkCounters:
        nonlocal taken
        taken += 1
        if taken == 5:
            enough.set()
        return counters(taken, 0)

    with Sampler(read, None, interval_seconds=0.001) as sampler:
        assert enough.wait(10)
    assert len(sampler.samples) == taken >= 5
    moments = [sample.moment for sample in sampler.samples]
    assert moments == sorted(moments)


def test_a_counter_that_cannot_be_read_is_told_where_the_work_ends() -> None:
    failed = threading.Event()

    def read() -> NetworkCounters:
        if threading.current_thread() is threading.main_thread():
            return counters(0, 0)
        failed.set()
        raise OSError("gone")

    def work() -> None:
        with Sampler(read, None, interval_seconds=0.001):
            failed.wait(10)

    with pytest.raises(OSError, match="gone"):
        work()


def test_links_of_a_mock_driver_are_summed_in_bytes() -> None:
    driver = LinkedNvml([(1, 10), (2, 20)])
    with nvml_meter("GPU-1", driver) as meter:
        assert driver.opened
        assert meter.utilisation() == pytest.approx(0.87)
        assert meter.links() == Bytes(3 * 1024, 30 * 1024)
    assert not driver.opened


def test_a_mock_driver_of_later_devices_counts_in_other_fields() -> None:
    with nvml_meter("GPU-1", LinkedNvml([(1, 10), (2, 20)], fields=(202, 204))) as meter:
        assert meter.links() == Bytes(3, 30)


@pytest.mark.parametrize(("links", "fields"), [(None, (138, 139)), ([(1, 2)], ())])
def test_a_mock_device_without_links_or_counters_has_no_bandwidth(
    links: list[tuple[int, int]] | None, fields: tuple[int, ...]
) -> None:
    with nvml_meter("GPU-1", LinkedNvml(links, fields)) as meter:
        assert meter.links() is None


@pytest.mark.parametrize(("uuid", "broken", "told"), [("GPU-1", True, "Driver Not Loaded"), ("MIG-2", False, "MIG-2")])
def test_a_mock_driver_that_does_not_answer_or_know_a_part_of_a_device_is_told(
    uuid: str, broken: bool, told: str
) -> None:
    driver = LinkedNvml(None, broken=broken)
    with pytest.raises(EnvironmentLacksError, match=told), nvml_meter(uuid, driver):
        pytest.fail("it was not opened")
    assert not driver.opened
