"""Use of processor, device and network over time, from samples and as they are taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

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


class MockNvmlError(Exception):
    """Stands for pynvml.NVMLError."""


class MockNvml:
    """Stands for the module pynvml of a machine with one device, which cannot exist here.

    Args:
        links: counter in KiB of each active link, sent and received; None: the device has no links.
        fields: ids that it knows.
    """

    NVMLError = MockNvmlError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 202, 204

    def __init__(self, links: list[tuple[int, int]] | None, fields: tuple[int, ...] = (138, 139)) -> None:
        self._links, self._fields = links, fields
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802 - its name
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"handle of {uuid}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        assert handle == "handle of GPU-1"
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if self._links is None or link > len(self._links):
            raise MockNvmlError("not supported")
        # The last one is there and switched off.
        return int(link < len(self._links))

    def nvmlDeviceGetFieldValues(self, handle: str, wanted: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        assert self._links is not None
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in self._fields else 3,
                value=SimpleNamespace(ullVal=self._links[link][field in (139, 204)]),
            )
            for field, link in wanted
        ]


def test_links_of_a_mock_driver_are_summed_in_bytes() -> None:
    driver = MockNvml([(1, 10), (2, 20)])
    with nvml_meter("GPU-1", driver) as meter:
        assert driver.is_open
        assert meter.utilisation() == pytest.approx(0.87)
        assert meter.links() == Bytes(3 * 1024, 30 * 1024)
    assert not driver.is_open


def test_a_mock_driver_of_later_devices_counts_in_other_fields() -> None:
    with nvml_meter("GPU-1", MockNvml([(1, 10), (2, 20)], fields=(202, 204))) as meter:
        assert meter.links() == Bytes(3, 30)


@pytest.mark.parametrize(("links", "fields"), [(None, (138, 139)), ([(1, 2)], ())])
def test_a_mock_device_without_links_or_counters_has_no_bandwidth(
    links: list[tuple[int, int]] | None, fields: tuple[int, ...]
) -> None:
    with nvml_meter("GPU-1", MockNvml(links, fields)) as meter:
        assert meter.links() is None


def test_a_mock_driver_that_does_not_answer_is_told() -> None:
    class Broken(MockNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise MockNvmlError("Driver Not Loaded")

    def ask() -> None:
        with nvml_meter("GPU-1", Broken(None)):
            pass

    with pytest.raises(EnvironmentLacksError, match="Driver Not Loaded"):
        ask()


def test_a_part_of_a_device_that_a_mock_driver_does_not_know_is_told() -> None:
    class Whole(MockNvml):
        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
            raise MockNvmlError("Not Found")

    driver = Whole(None)
    with pytest.raises(EnvironmentLacksError, match="GPU-1"), nvml_meter("GPU-1", driver):
        pass
    assert not driver.is_open
