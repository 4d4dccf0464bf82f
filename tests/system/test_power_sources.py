"""Sources of power beside NVML, RAPL and IPMI: what each reads, its caps, and what it says about wrong or old values.

Cray's counters, sensors of boards, AMD's library and DCGM's exporter cannot be here: trees of files, a module and a
server with their documented content stand for them, behind the same interface.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from builders.redfish import (
    PASSWORD,
    USER,
    Server,
    certificate_for,
    documents,
    emulator,
    environment_metrics,
    power,
    redirect,
)
from fakes.power import MockAmdSmi, SyntheticHwmon, SyntheticPmCounters
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system import power_devices, power_kernel, power_remote
from hpcai500.system.power_devices import AmdSource
from hpcai500.system.power_kernel import HwmonSource, PmCountersSource
from hpcai500.system.power_reading import ReadingError
from hpcai500.system.power_remote import DcgmSource, RedfishSource, parse_exporter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The second at which the next readings are taken."""
    now = [100.0]
    for module in (power_kernel, power_devices, power_remote):
        monkeypatch.setattr(module, "machine_seconds", lambda: now[0])
    return now


# --- Cray's pm_counters


@pytest.fixture
def cray(tmp_path: Path) -> SyntheticPmCounters:
    return SyntheticPmCounters(tmp_path / "pm_counters")


def test_a_cray_counts_the_node_once_and_shows_its_parts(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    assert (source.scope, source.devices) == ("node", ("cpu", "memory", "accel0", "accel1", "accel2", "accel3"))
    clock[0] = 101.0
    cray.set(power="1200 W", energy="91001234 J", accel2_power="310 W")
    reading = source.read()
    # The parts are inside the 1200 W.
    assert (reading.total_watts, reading.joules) == (1200.0, 1234.0)
    assert reading.watts == {"cpu": 220, "memory": 80, "accel0": 190, "accel1": 190, "accel2": 310, "accel3": 190}


def test_a_cap_of_0_is_none(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    assert source.caps() == {f"accel{number}": 560.0 for number in range(4)}
    cray.set(power_cap="1600 W", generation="38")
    assert source.caps()[""] == 1600.0


def test_an_older_cray_has_one_file_for_its_accelerator(tmp_path: Path, clock: list[float]) -> None:
    cray = SyntheticPmCounters(tmp_path / "pm_counters", accelerators=0)
    cray.set(accel_power="90 W", accel_power_cap="0 W")
    (cray.root / "memory_power").unlink()
    assert PmCountersSource(cray.root).devices == ("cpu", "accel")


def test_values_that_are_no_longer_fresh_are_no_reading(cray: SyntheticPmCounters, clock: list[float]) -> None:
    source = PmCountersSource(cray.root)
    clock[0] = 101.0
    source.read()
    clock[0] = 104.0
    with pytest.raises(ReadingError, match="freshness has been 1001 for 4 s: the controller does not measure"):
        source.read()
    cray.set(energy="91004000 J")
    assert source.read().joules == 4000.0


def test_a_scan_during_a_reading_is_read_again(
    cray: SyntheticPmCounters, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = PmCountersSource(cray.root)
    real, scans = power_kernel._read, [1] * 2

    def read(file: Path, name: str) -> str:
        content = real(file, name)
        if file.name == "power" and scans and scans.pop():
            cray.set(power="1300 W", energy="91000500 J")
        return content

    monkeypatch.setattr(power_kernel, "_read", read)
    clock[0] = 101.0
    reading = source.read()
    assert (reading.total_watts, reading.joules) == (1300.0, 500.0)
    scans[:] = [1] * 100
    with pytest.raises(ReadingError, match="freshness changed during each of 5 readings"):
        source.read()


@pytest.mark.parametrize(
    "restart", [{"energy": "17 J"}, {"energy": "92000000 J", "startup": "1800000000000000"}], ids=["lower", "startup"]
)
def test_a_controller_that_started_again_begins_a_new_count(
    cray: SyntheticPmCounters, clock: list[float], restart: dict[str, str]
) -> None:
    source = PmCountersSource(cray.root)
    clock[0] = 101.0
    cray.set(**restart)
    assert source.read().joules == 0.0


@pytest.mark.parametrize("text", ["", "garbage", "-5 W 1 us", "nan W", "100 J 1 us", "1e3 W", "\0\xff"])
def test_a_file_that_holds_no_watts_is_told_by_its_name(
    cray: SyntheticPmCounters, clock: list[float], text: str
) -> None:
    source = PmCountersSource(cray.root)
    (cray.root / "power").write_text(text)
    with pytest.raises(ReadingError, match=r"pm_counters: .*/power: expected a number of W"):
        source.read()


@pytest.mark.parametrize("name", ["power", "energy", "freshness", "startup"])
def test_a_missing_counter_is_told_before_the_run(cray: SyntheticPmCounters, name: str) -> None:
    (cray.root / name).unlink()
    with pytest.raises(EnvironmentLacksError, match=rf"pm_counters: .*/{name}: No such file"):
        PmCountersSource(cray.root)
    with pytest.raises(EnvironmentLacksError, match="is not a Cray's"):
        PmCountersSource(cray.root / "none")


# --- hwmon


@pytest.fixture
def hwmon(tmp_path: Path) -> SyntheticHwmon:
    """A board's sensors, two cards of AMD, and Intel's, whose second channel is a part of its first."""
    tree = SyntheticHwmon(tmp_path / "hwmon")
    tree.chip("nvme", temp1_input=35000)
    tree.chip("amdgpu", power1_average=250_000_000, power1_input=1, power1_label="PPT", power1_cap=300_000_000)
    tree.chip("power_meter", power1_average=700_000_000, power1_cap=0)
    tree.chip("amdgpu", power1_input=150_500_000, power1_cap=300_000_000)
    return tree


def test_accelerators_are_found_by_their_driver_and_an_average_is_preferred(hwmon: SyntheticHwmon) -> None:
    source = HwmonSource(None, hwmon.root)
    assert (source.scope, source.parts) == ("device", "accelerators")
    reading = source.read()
    assert reading.watts == {"amdgpu0 power1 PPT": 250.0, "amdgpu1 power1": 150.5}
    assert (reading.total_watts, reading.joules) == (400.5, None)
    assert source.caps() == {"amdgpu0 power1 PPT": 300.0, "amdgpu1 power1": 300.0}


def test_a_boards_meter_is_read_when_the_site_names_it_and_its_scope(hwmon: SyntheticHwmon) -> None:
    source = HwmonSource("power_meter,scope=node", hwmon.root)
    assert (source.scope, source.parts, source.read().total_watts, source.caps()) == ("node", "node", 700.0, {})
    # Without a word, what it measures is unknown.
    assert (HwmonSource("power_meter", hwmon.root).scope, HwmonSource("power_meter", hwmon.root).parts) == (
        "device",
        None,
    )


def test_energy_is_counted_and_power_is_its_mean(hwmon: SyntheticHwmon, clock: list[float]) -> None:
    chip = hwmon.chip("xe", energy1_input=5_000_000, energy1_label="card", energy2_input=9, power1_cap=600_000_000)
    source = HwmonSource("xe/card", hwmon.root)
    clock[0] = 102.0
    (chip / "energy1_input").write_text("305000000\n")
    reading = source.read()
    assert (reading.total_watts, reading.joules) == (pytest.approx(150), pytest.approx(300))
    # Sixty-four bits of microjoules do not wrap around within years: a lower count was begun again.
    (chip / "energy1_input").write_text("1000\n")
    clock[0] = 103.0
    assert source.read().joules == 0.0


def test_sensors_that_may_include_each_other_are_not_added_up(hwmon: SyntheticHwmon) -> None:
    labels = {"energy1_label": "Ecore000", "energy2_label": "Esocket0", "energy3_label": "Esocket1"}
    hwmon.chip("amd_energy", energy1_input=1, energy2_input=2, energy3_input=3, **labels)
    with pytest.raises(EnvironmentLacksError, match=r"amd_energy has 3 sensors .*name those to add up"):
        HwmonSource("amd_energy", hwmon.root)
    source = HwmonSource("amd_energy/Esocket*", hwmon.root)
    assert source.devices == ("amd_energy0 energy2 Esocket0", "amd_energy0 energy3 Esocket1")


@pytest.mark.parametrize("text", ["", "N/A", "-1", "1.5", "9" * 40])
def test_a_sensor_that_holds_no_number_is_told(hwmon: SyntheticHwmon, text: str) -> None:
    source = HwmonSource(None, hwmon.root)
    (hwmon.root / "hwmon3" / "power1_input").write_text(text)
    with pytest.raises(ReadingError, match=r"hwmon: .*/hwmon3/power1_input: expected a number"):
        source.read()
    with pytest.raises(EnvironmentLacksError, match="expected a number"):
        HwmonSource(None, hwmon.root)


def test_a_sensor_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    tree = SyntheticHwmon(tmp_path / "hwmon")
    tree.chip("power_meter", power1_average=1)
    with pytest.raises(EnvironmentLacksError, match=r"no sensor of amdgpu, i915, xe; name one of power_meter"):
        HwmonSource(None, tree.root)
    with pytest.raises(EnvironmentLacksError, match="has no sensor ibmaem of power or energy"):
        HwmonSource("ibmaem", tree.root)


def test_the_sensors_of_this_machine_are_read_or_told() -> None:
    try:
        source = HwmonSource()
    except EnvironmentLacksError as error:
        assert str(error).startswith("hwmon: ")  # noqa: PT017 - either is right, by the machine
    else:
        assert source.read().total_watts is not None


# --- Redfish, by sushy-tools' emulator and by a server for what it cannot be


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_for(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def bmc(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    with emulator(tmp_path, certificate) as found:
        yield found


@pytest.fixture
def login(certificate: tuple[Path, Path]) -> dict[str, str]:
    return {
        "HPCAI500_REDFISH_USER": USER,
        "HPCAI500_REDFISH_PASSWORD": PASSWORD,
        "HPCAI500_REDFISH_CA": str(certificate[0]),
    }


def test_a_controllers_power_and_limit_are_read_by_tls_with_a_password(
    bmc: tuple[str, dict[str, Any]], login: dict[str, str]
) -> None:
    url, told = bmc
    told["power"] = power(590, 700)
    source = RedfishSource(url, login)
    assert (source.read().total_watts, source.caps(), source.interval_seconds) == (590.0, {"": 700.0}, 1.0)
    told["power"] = power(612.5)
    assert (source.read().total_watts, source.caps()) == (612.5, {})
    told["power"] = power(None)
    with pytest.raises(ReadingError, match="reports no power"):
        source.read()


def test_a_controller_without_a_power_is_told(bmc: tuple[str, dict[str, Any]], login: dict[str, str]) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"Redfish: https://127.*: no chassis reports a power"):
        RedfishSource(bmc[0], login)


def test_a_wrong_password_is_told_without_it(bmc: tuple[str, dict[str, Any]], login: dict[str, str]) -> None:
    bmc[1]["power"] = power(590)
    with pytest.raises(EnvironmentLacksError, match=r"Chassis: 401 ") as raised:
        RedfishSource(bmc[0], login | {"HPCAI500_REDFISH_PASSWORD": "guessed-wrong"})
    assert "guessed-wrong" not in str(raised.value)


def test_a_certificate_that_no_one_vouches_for_is_refused_unless_the_site_says_so(
    bmc: tuple[str, dict[str, Any]], login: dict[str, str]
) -> None:
    bmc[1]["power"] = power(590)
    del login["HPCAI500_REDFISH_CA"]
    with pytest.raises(EnvironmentLacksError, match="certificate verify failed"):
        RedfishSource(bmc[0], login)
    assert RedfishSource(bmc[0], login | {"HPCAI500_REDFISH_UNVERIFIED": "yes"}).read().total_watts == 590.0


def test_a_netrc_file_may_have_the_password(
    bmc: tuple[str, dict[str, Any]], login: dict[str, str], tmp_path: Path
) -> None:
    bmc[1]["power"] = power(590)
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    environment = {"NETRC": str(tmp_path / "netrc"), "HPCAI500_REDFISH_CA": login["HPCAI500_REDFISH_CA"]}
    assert RedfishSource(bmc[0], environment).read().total_watts == 590.0
    (tmp_path / "netrc").write_text("machine 127.0.0.1 pass-word what\n")
    with pytest.raises(EnvironmentLacksError, match="netrc: cannot be read: bad follower token"):
        RedfishSource(bmc[0], environment)


def test_no_password_is_sent_in_the_clear(login: dict[str, str]) -> None:
    with pytest.raises(EnvironmentLacksError, match="the password is not sent without TLS: use https://"):
        RedfishSource("http://bmc.example", login)


@pytest.mark.parametrize(
    ("told", "caps"),
    [
        (environment_metrics(811.25, 900), {"": 900.0}),
        (environment_metrics(811.25, 900, "Disabled"), {}),
        (environment_metrics(811.25), {}),
        (power(811.25, 0), {}),
    ],
)
def test_newer_controllers_report_metrics_of_the_environment(told: dict[str, Any], caps: dict[str, float]) -> None:
    with Server(documents(("1", "RackMount", told))) as server:
        source = RedfishSource(server.url, {})
        assert (source.read().total_watts, source.caps()) == (811.25, caps)


def test_a_chassis_is_a_node_or_is_named() -> None:
    told = documents(
        ("GPU1", "Module", power(400)), ("Self", "RackMount", power(900)), ("Disks", "Expansion", power(9))
    )
    with Server(told) as server:
        assert RedfishSource(server.url, {}).read().total_watts == 900.0
        # A resource or another chassis may be given.
        assert RedfishSource(f"{server.url}/redfish/v1/Chassis/GPU1", {}).read().total_watts == 400.0
        assert RedfishSource(f"{server.url}/redfish/v1/Chassis/GPU1/Power", {}).read().total_watts == 400.0
    two = documents(("N1", "Sled", power(400)), ("N2", "Sled", power(500)))
    named = r"2 chassis with a power .*name the node's: --power redfish:"
    with Server(two) as server, pytest.raises(EnvironmentLacksError, match=named):
        RedfishSource(server.url, {})


def _large(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        handler.wfile.write(b"[" + b" " * (10 << 20) + b"]")
    handler.close_connection = True


def _slowly(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)


def _cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>Log in</html>", "the answer is not JSON"),
        (b"[1, 2]", "the answer is not a JSON object"),
        (b"[" * 100_000, "the answer is not JSON"),
        (b'{"PowerControl": {"PowerConsumedWatts": 5}}', "reports no power"),
        (b'{"PowerControl": [{"PowerConsumedWatts": "590"}]}', "reports no power"),
        (b'{"PowerControl": [{"PowerConsumedWatts": NaN}]}', "reports no power"),
        (b'{"PowerControl": [{"PowerConsumedWatts": 1e300}]}', "reports no power"),
        (b'{"PowerControl": [{"PowerConsumedWatts": -3}, {"PowerConsumedWatts": true}]}', "reports no power"),
        (b"\xff\xfe", "the answer is not JSON"),
        (None, "404 Not Found"),
        (_large, "the answer is larger than 1 MiB"),
        (_slowly, "no whole answer within 0.5 s"),
        (_cut, "IncompleteRead|not JSON"),
        (redirect("http://evil.example/redfish/v1/"), r"redirects to another server, http://evil\.example"),
        (redirect("file:///etc/passwd"), "redirects to another server, file|not allowed"),
    ],
    ids=[
        "a page",
        "a list",
        "too deep",
        "no list",
        "text",
        "NaN",
        "too much",
        "negative",
        "no UTF-8",
        "not there",
        "10 MB",
        "a byte at a time",
        "cut off",
        "redirected to another server",
        "redirected to a file",
    ],
)
def test_an_answer_that_is_no_power_is_one_line(answer: object, message: str) -> None:
    told = documents(("1", "RackMount", power(590)))
    with Server(told) as server:
        source = RedfishSource(server.url, {}, patience_seconds=20.0)
        source._client._patience_seconds = 0.5 if answer is _slowly else 20.0
        told["/redfish/v1/Chassis/1/Power"] = answer
        with pytest.raises(ReadingError, match=message) as raised:
            source.read()
        assert "\n" not in str(raised.value)
        # What a run says later is kept in its record, which others see.
        assert "127.0.0.1" not in str(raised.value)


def test_a_redirect_on_the_same_controller_is_followed_and_a_password_goes_nowhere_else() -> None:
    told = documents(("1", "RackMount", power(590)))
    environment = {"HPCAI500_REDFISH_USER": USER, "HPCAI500_REDFISH_PASSWORD": PASSWORD}
    with Server({}) as other, Server(told) as server:
        told["/redfish/v1/Chassis/1/Power/"] = told["/redfish/v1/Chassis/1/Power"]
        told["/redfish/v1/Chassis/1/Power"] = redirect("/redfish/v1/Chassis/1/Power/")
        source = RedfishSource(server.url, environment)
        assert source.read().total_watts == 590.0
        assert all(secret for _, secret in server.asked)
        told["/redfish/v1/Chassis/1/Power"] = redirect(f"{other.url}/redfish/v1/Chassis/1/Power")
        with pytest.raises(ReadingError, match="redirects to another server"):
            source.read()
        assert other.asked == []


def test_a_racks_pdu_is_a_resource_of_its_own() -> None:
    place = "/redfish/v1/PowerEquipment/RackPDUs/1"
    told = {
        place: {"Metrics": {"@odata.id": f"{place}/Metrics"}},
        f"{place}/Metrics": {"PowerWatts": {"Reading": 6438}},
    }
    with Server(told) as server:
        source = RedfishSource(f"{server.url}{place},scope=pdu", {})
        assert (source.scope, source.read().total_watts, source.covers) == ("pdu", 6438.0, "all that the PDU supplies")


@pytest.mark.parametrize("link", ["https://evil.example/x", "//evil.example/x", "/x y", 7, None, {"@odata.id": 3}])
def test_links_to_other_servers_are_not_followed(link: object) -> None:
    told = documents(("1", "RackMount", power(590)))
    told["/redfish/v1/Chassis/1"]["Power"] = {"@odata.id": link}
    with Server(told) as server, pytest.raises(EnvironmentLacksError, match="no chassis reports a power"):
        RedfishSource(server.url, {})


def test_a_slow_controller_is_asked_less_often() -> None:
    told = documents(("1", "RackMount", power(590)))
    content = json.dumps(told["/redfish/v1/Chassis/1/Power"]).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(1.1)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    told["/redfish/v1/Chassis/1/Power"] = answer
    with Server(told) as server:
        assert 2 <= RedfishSource(server.url, {}, patience_seconds=60.0).interval_seconds <= 5


def test_a_controller_that_is_away_is_told() -> None:
    with Server({}) as server:
        url = server.url
    with pytest.raises(EnvironmentLacksError, match=r"Redfish: http://127\..*refused"):
        RedfishSource(url, {})


# --- DCGM, by the text of its exporter


EXPORTED = """\
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-604ac76c",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"} 412.250000
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-2e31969f",device="nvidia1",modelName="NVIDIA H100 80GB HBM3"} 398.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-2e31969f",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",Hostname="n1"} 398.5
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-604ac76c",Hostname="n1"} 1000000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-2e31969f",Hostname="n1"} 5e6
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-604ac76c",Hostname="n1"} 1980
"""


def test_the_exporter_of_dcgm_gives_power_and_energy_of_each_device(clock: list[float]) -> None:
    answers: dict[str, Any] = {"/metrics": EXPORTED.encode()}
    with Server(answers) as server:
        source = DcgmSource(f"{server.url}/metrics")
        assert (source.scope, source.parts, source.devices) == ("device", "accelerators", ("gpu0", "gpu1"))
        assert (source.read().total_watts, source.read().joules, source.caps()) == (810.75, 0.0, {})
        clock[0] = 130.0
        later = EXPORTED.replace(" 1000000\n", " 13000000\n")
        answers["/metrics"] = (later + 'DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="0",UUID="GPU-604ac76c"} 700\n').encode()
        assert (source.read().joules, source.caps()) == (12000.0, {"gpu0": 700.0})
        answers["/metrics"] = EXPORTED.replace('gpu="1"', 'gpu="2"').encode()
        with pytest.raises(ReadingError, match="TOTAL_ENERGY_CONSUMPTION of a device is missing"):
            source.read()


def test_of_dcgms_devices_only_those_of_the_run_are_measured() -> None:
    with Server({"/metrics": EXPORTED.encode()}) as server:
        source = DcgmSource(f"{server.url}/metrics")
        source.keep({"2e31969f"})
        assert (source.covers, source.devices) == ("1 of 2 accelerators, used by this run", ("gpu1",))
        assert source.read().total_watts == 398.5


@pytest.mark.parametrize("text", ["", "nonsense", 'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 9223372036854775794\n'])
def test_text_without_a_power_is_told_and_a_blank_value_is_none(text: str) -> None:
    lacks = r"DCGM: .* has no DCGM_FI_DEV_POWER_USAGE of a device"
    with Server({"/metrics": text.encode()}) as server, pytest.raises(EnvironmentLacksError, match=lacks):
        DcgmSource(f"{server.url}/metrics")


@given(st.text(alphabet='DCGM_FI_DEV_POWER_USAGE{}gpu="0123", \n.eN+-', max_size=200))
def test_any_text_is_read_as_fields_or_nothing(text: str) -> None:
    for devices in parse_exporter(EXPORTED + text).values():
        assert all(value >= 0 for value in devices.values())


# --- AMD, by a module that stands for amdsmi, and by the driver's files


def test_amd_devices_report_power_and_count_energy(clock: list[float]) -> None:
    mock = MockAmdSmi(({"current_socket_power": 540}, {"current_socket_power": "N/A", "average_socket_power": 210}))
    source = AmdSource(mock)
    assert (source.devices, source.covers) == (("gpu0", "gpu1"), "2 accelerators")
    assert (source.read().total_watts, source.read().joules) == (750.0, 0.0)
    clock[0] = 110.0
    mock.counts = [1_000_000 + 200_000_000, 1_000_000 + 100_000_000]
    # 15.259 microjoules a unit.
    assert source.read().joules == pytest.approx(300e6 * 15.259e-6)
    assert source.caps() == {"gpu0": 750.0, "gpu1": 750.0}
    mock.cap = 750
    assert source.caps() == {"gpu0": 750.0, "gpu1": 750.0}
    mock.fails = True
    with pytest.raises(ReadingError, match="AMD SMI: device is busy"):
        source.read()
    source.close()
    assert mock.opened == 0


def test_the_second_half_of_a_card_that_reports_nothing_is_left_out() -> None:
    mock = MockAmdSmi(({"average_socket_power": 300}, {"average_socket_power": "N/A"}), counts=False)
    source = AmdSource(mock)
    assert (source.devices, source.read().total_watts, source.read().joules) == (("gpu0",), 300.0, None)


@pytest.mark.parametrize(
    ("devices", "message"),
    [((), "AMD SMI: no device$"), (({"average_socket_power": "N/A"},), "AMD SMI: no device reports its power")],
)
def test_no_amd_device_is_no_source(devices: tuple[dict[str, Any], ...], message: str) -> None:
    mock = MockAmdSmi(devices)
    with pytest.raises(EnvironmentLacksError, match=message):
        AmdSource(mock)
    assert mock.opened == 0


def test_without_the_library_the_drivers_files_are_read(hwmon: SyntheticHwmon, tmp_path: Path) -> None:
    source = AmdSource(hwmon=hwmon.root)
    assert (source.read().total_watts, len(source.devices), source.covers) == (400.5, 2, "2 accelerators")
    assert list(source.caps().values()) == [300.0, 300.0]
    with pytest.raises(EnvironmentLacksError, match=r"AMD: the module amdsmi cannot be imported, and .* no sensor"):
        AmdSource(hwmon=tmp_path / "none")
