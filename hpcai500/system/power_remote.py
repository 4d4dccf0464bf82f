"""Sources of power that ask another program or machine: ipmitool, a Redfish service, DCGM's exporter."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import ssl
import time
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from http.client import HTTPException, HTTPMessage
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.looking import run
from hpcai500.system.power_reading import EnergyCount, Parts, Reading, ReadingError, Scope, machine_seconds, used

# ----------------------------------------------------------------------------------------------------
# The whole node's power from its management controller (IPMI's DCMI extension, through ipmitool).


TOOL = "ipmitool"
_WATTS = re.compile(r"^\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.MULTILINE)
_LIMIT = re.compile(r"^\s*Power Limit:\s*(\d+)\s*Watts", re.MULTILINE)
_ACTIVE = re.compile(r"^\s*Current Limit State:\s*Power Limit Active", re.MULTILINE)
_STATE = re.compile(r"^\s*Power reading state is:\s*(\S+)", re.MULTILINE)


class IpmiSource:
    """`ipmitool dcmi power reading`, each time in a new process, which is killed after `patience_seconds`.

    The tool is searched on the PATH of `environment`.

    Raises:
        EnvironmentLacksError: ipmitool is missing, or does not report the power.
    """

    name = "ipmi"
    scope: Scope = "node"
    parts: Parts | None = "node"
    covers = "the whole node"
    devices: tuple[str, ...] = ()
    # A controller measures at most once per second.
    interval_seconds = 1.0

    def __init__(self, environment: Mapping[str, str] = os.environ, patience_seconds: float = 5.0) -> None:
        self.patience_seconds = patience_seconds
        self._environment = environment
        tool = shutil.which(TOOL, path=environment.get("PATH", ""))
        if tool is None:
            raise EnvironmentLacksError(f"IPMI: {TOOL} is not installed")
        self._command = [tool, "dcmi", "power", "reading"]
        try:
            self.read()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error

    def read(self) -> Reading:
        try:
            ended = run(self._command, self.patience_seconds, self._environment)
        except TimeoutError as error:
            raise ReadingError(f"IPMI: no answer within {self.patience_seconds:g} s") from error
        except OSError as error:
            raise ReadingError(f"IPMI: {TOOL} cannot be started: {error}") from error
        if ended.code != 0:
            said = (ended.errors.strip() or ended.output.strip()).splitlines() or [f"exit code {ended.code}"]
            raise ReadingError(f"IPMI: {said[0]}")
        return Reading({"": parse_reading(ended.output)})

    def caps(self) -> dict[str, float]:
        """The limit of DCMI, if it is active; asked once, which starts ipmitool again."""
        try:
            ended = run([*self._command[:2], "power", "get_limit"], self.patience_seconds, self._environment)
        except (TimeoutError, OSError) as error:
            raise ReadingError(f"IPMI: {error or 'no answer'}") from error
        limit, is_active = _LIMIT.search(ended.output), _ACTIVE.search(ended.output)
        return {"": float(limit.group(1))} if limit and is_active and int(limit.group(1)) else {}

    def close(self) -> None:
        """Do nothing: nothing is open."""


def parse_reading(text: str) -> float:
    """Watts in the output of `ipmitool dcmi power reading`.

    Raises:
        ReadingError: there is no such line, or the controller does not measure.
    """
    found, state = _WATTS.search(text), _STATE.search(text)
    if found is None:
        raise ReadingError("IPMI: the answer has no line 'Instantaneous power reading'")
    if state and state.group(1) != "activated":
        raise ReadingError(f"IPMI: power reading is {state.group(1)}")
    # Controllers without a sensor answer 0.
    if int(found.group(1)) == 0:
        raise ReadingError("IPMI: the controller reads 0 W")
    return float(found.group(1))


# ----------------------------------------------------------------------------------------------------
# GET over HTTP from a machine that may be slow, wrong or another one than the site thinks.


# The largest document that is read: a chassis or an exporter of eight accelerators takes some tens of kilobytes.
_MOST_BYTES = 1 << 20
LOCAL = ("localhost", "127.0.0.1", "::1")


class _SameServer(HTTPRedirectHandler):
    """Follows redirects to the same server only: another one must not get the password, nor answer in its place."""

    def redirect_request(
        self, request: Request, stream: IO[bytes], code: int, reason: str, headers: HTTPMessage, target: str
    ) -> Request | None:
        if _server(target) != _server(request.full_url):
            raise ReadingError(f"{request.full_url}: redirects to another server, {_server(target)[:80]}")
        return super().redirect_request(request, stream, code, reason, headers, target)


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


class Client:
    """Gets documents by HTTP or HTTPS, without proxies.

    Args:
        patience_seconds: time limit of a whole answer, however slowly it comes.
        login: user and password, sent to the server of the address only.
        tls: how its certificate is checked; None: by the authorities of the system.
    """

    def __init__(
        self, patience_seconds: float, login: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._patience_seconds = patience_seconds
        self._headers = {"Accept": "*/*", "User-Agent": "hpcai500"}
        if login:
            self._headers["Authorization"] = "Basic " + b64encode(":".join(login).encode()).decode()
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls), _SameServer())

    def get(self, url: str) -> bytes:
        """The document at `url`.

        Raises:
            ReadingError: it cannot be had, takes too long, or is too large.
        """
        limit = time.monotonic() + self._patience_seconds
        try:
            with self._opener.open(Request(url, headers=self._headers), timeout=self._patience_seconds) as answer:  # noqa: S310 - http and https only
                content = bytearray()
                # `read1` returns what has come, so that a server that sends a byte a second is noticed.
                while block := answer.read1(65536):
                    content += block
                    if len(content) > _MOST_BYTES:
                        raise ReadingError(f"{url}: the answer is larger than {_MOST_BYTES >> 20} MiB")
                    if time.monotonic() > limit:
                        raise TimeoutError
                return bytes(content)
        except HTTPError as error:
            error.close()
            raise ReadingError(f"{url}: {error.code} {str(error.reason)[:80]}") from error
        except TimeoutError as error:
            raise ReadingError(f"{url}: no whole answer within {self._patience_seconds:g} s") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise ReadingError(f"{url}: no answer within {self._patience_seconds:g} s") from error
            raise ReadingError(f"{url}: {' '.join(str(reason).split())[:200]}") from error


# ----------------------------------------------------------------------------------------------------
# The whole node's power from its management controller, through Redfish.


_USER, _PASSWORD, _NETRC = "HPCAI500_REDFISH_USER", "HPCAI500_REDFISH_PASSWORD", "NETRC"
_CA, _UNVERIFIED = "HPCAI500_REDFISH_CA", "HPCAI500_REDFISH_UNVERIFIED"
_ROOT = "/redfish/v1/"
_MOST_CHASSIS = 64
# Links to the power of a chassis, or of a rack's PDU.
_RESOURCES = ("EnvironmentMetrics", "Power", "Metrics")
# Follows the address of a service that measures what a power distribution unit supplies.
PDU = ",scope=pdu"
# A chassis of these types is a node; others are parts of one (Module, Card, Component), or hold several (Rack, Shelf).
_NODES = {"RackMount", "StandAlone", "Blade", "Enclosure", "Sled", "Node", "Tower", "Drawer", "Other", "Desktop"}


class RedfishSource:
    """The chassis of a node: `EnvironmentMetrics` (since 2020.4), or `Power`, which older controllers have.

    With `,scope=pdu`, the metrics of a rack's power distribution unit, such as
    `https://pdu-3/redfish/v1/PowerEquipment/RackPDUs/1,scope=pdu`, which one rank of the run reads for all nodes.

    `place` is the address of the controller, such as `https://bmc-n1`, or of one chassis on it. User and password come
    from HPCAI500_REDFISH_USER and HPCAI500_REDFISH_PASSWORD or a netrc file, never from the command line.

    Raises:
        EnvironmentLacksError: no address, no answer, or no chassis with a power.
    """

    name = "redfish"
    scope: Scope = "node"
    parts: Parts | None = "node"
    covers = "the whole node"
    devices: tuple[str, ...] = ()
    # Controllers answer within 0.1 s to some seconds; a slow one is asked less often.
    interval_seconds = 1.0

    def __init__(
        self, place: str | None = None, environment: Mapping[str, str] = os.environ, patience_seconds: float = 10.0
    ) -> None:
        if place is None:
            raise EnvironmentLacksError("Redfish: no address: --power redfish:https://ADDRESS (%h is the host's name)")
        if place.endswith(PDU):
            place = place.removesuffix(PDU)
            self.scope, self.parts, self.covers = "pdu", None, "all that the PDU supplies"
        self.patience_seconds = patience_seconds
        self._server = _server(place)
        self._client = Client(patience_seconds, login_of(place, environment), tls_of(environment))
        self._cap: float | None = None
        path = urlsplit(place).path
        try:
            self._resource = self._find([path] if path.strip("/") else self._chassis())
            began = time.monotonic()
            self._read()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error
        # Whole seconds, so that each reading ends before the next begins.
        self.interval_seconds = min(float(math.ceil(time.monotonic() - began)) or 1.0, SLOWEST_CONTROLLER_SECONDS)

    def read(self) -> Reading:
        """Power of the chassis; messages do not name the controller, because they are kept in the record."""
        try:
            return self._read()
        except ReadingError as error:
            raise ReadingError(str(error).replace(self._server, "")) from error

    def _read(self) -> Reading:
        watts, self._cap = _power_in(self._get(self._resource))
        if not watts:
            # Controllers without a sensor answer null or 0.
            raise ReadingError(f"Redfish: {self._server}{self._resource}: reports no power")
        return Reading({"": watts})

    def caps(self) -> dict[str, float]:
        """The limit in the last answer."""
        return {"": self._cap} if self._cap else {}

    def close(self) -> None:
        """Do nothing: each reading is a connection of its own."""

    def _get(self, path: str) -> dict[str, Any]:
        try:
            document = json.loads(self._client.get(self._server + path))
        except ReadingError as error:
            raise ReadingError(f"Redfish: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ReadingError(f"Redfish: {self._server}{path}: the answer is not JSON") from error
        if not isinstance(document, dict):
            raise ReadingError(f"Redfish: {self._server}{path}: the answer is not a JSON object")
        return document

    def _chassis(self) -> list[str]:
        """Paths of all chassis."""
        members = self._get(self._link(self._get(_ROOT), "Chassis") or _ROOT + "Chassis").get("Members")
        found = [path for one in members if (path := _path(one))] if isinstance(members, list) else []
        if not found:
            raise ReadingError(f"Redfish: {self._server}: lists no chassis")
        return found[:_MOST_CHASSIS]

    def _find(self, paths: Sequence[str]) -> str:
        """The path of the resource with the power of one of the chassis at `paths`."""
        having: dict[str, str] = {}
        for path in paths:
            chassis = self._get(path)
            if len(paths) > 1 and chassis.get("ChassisType", "Other") not in _NODES:
                continue
            places = [path, *(link for name in _RESOURCES if (link := self._link(chassis, name)))]
            for place in places:
                if _power_in(chassis if place == path else self._get(place))[0]:
                    having[path] = place
                    break
        if len(having) > 1:
            shown = ", ".join(list(having)[:4])
            raise ReadingError(
                f"Redfish: {self._server} has {len(having)} chassis with a power ({shown}): name the node's: "
                f"--power redfish:{self._server}{next(iter(having))}"
            )
        if not having:
            raise ReadingError(f"Redfish: {self._server}: no chassis reports a power")
        return next(iter(having.values()))

    def _link(self, document: Mapping[str, Any], name: str) -> str | None:
        return _path(document.get(name))


# Power between two readings is known up to three intervals (docs/power.md): a longer interval would hide gaps.
SLOWEST_CONTROLLER_SECONDS = 5.0


def login_of(place: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password for the controller at `place`; None if the site gave none.

    Raises:
        EnvironmentLacksError: the password would be sent in the clear, or the netrc file is wrong.
    """
    parts = urlsplit(place)
    host = parts.hostname or ""
    login = (environment.get(_USER, ""), environment.get(_PASSWORD, ""))
    file = Path(environment.get(_NETRC) or Path(environment.get("HOME", "/")) / ".netrc")
    if not all(login) and file.is_file():
        try:
            found = netrc(str(file)).authenticators(host)
        except (OSError, NetrcParseError) as error:
            raise EnvironmentLacksError(f"Redfish: {file}: cannot be read: {error}") from error
        login = (found[0] or "", found[2] or "") if found else login
    if not all(login):
        return None
    if parts.scheme != "https" and host not in LOCAL:
        raise EnvironmentLacksError(f"Redfish: {place}: the password is not sent without TLS: use https://")
    return login


def tls_of(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Certificates are checked by HPCAI500_REDFISH_CA (a PEM file), or by the authorities of the system.

    Raises:
        EnvironmentLacksError: that file cannot be read.
    """
    ca = environment.get(_CA)
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentLacksError(f"Redfish: {_CA}={ca}: {error}") from error
    if environment.get(_UNVERIFIED) == "yes":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _path(link: object) -> str | None:
    """The path of `{"@odata.id": "/redfish/v1/…"}`; None for anything else, such as the address of another server."""
    path = link.get("@odata.id") if isinstance(link, dict) else None
    return path if isinstance(path, str) and re.fullmatch(r"/(?!/)[!-~]{0,500}", path) else None


def _power_in(document: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """(watts, cap in watts) of a resource EnvironmentMetrics or Power; None where it has none."""
    if watts := _positive(_table(document.get("PowerWatts")).get("Reading")):
        limit = _table(document.get("PowerLimitWatts"))
        is_off = limit.get("ControlMode") == "Disabled"
        return watts, None if is_off else _positive(limit.get("SetPoint"))
    controls = document.get("PowerControl")
    # The first is that of the whole chassis, others are of its parts.
    control = _table(controls[0]) if isinstance(controls, list) and controls else {}
    watts = _positive(control.get("PowerConsumedWatts"))
    return watts, _positive(_table(control.get("PowerLimit")).get("LimitInWatts")) if watts else None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: object) -> float | None:
    """A finite number above 0; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _MOST_WATTS else None  # type: ignore[operator,arg-type]


# More than any rack: what an answer above it means is not power in watts.
_MOST_WATTS = 1e7


# ----------------------------------------------------------------------------------------------------
# The power of NVIDIA's accelerators where a site runs DCGM: the text of its exporter, which one daemon a node serves.


EXPORTER = "http://localhost:9400/metrics"
_FIELD = re.compile(r"^(DCGM_FI_DEV_\w+)\{([^}]*)\}\s+([-+.\dEeNnAaIiFf]+)(?:\s+\d+)?\s*$", re.MULTILINE)
_UUID = re.compile(r'\bgpu="(\d{1,4})",\s*UUID="GPU-([^"]+)"')
_GPU = re.compile(r'(?:^|,)\s*gpu="(\d{1,4})"')
_POWER = "DCGM_FI_DEV_POWER_USAGE"
_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_LIMITS = ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT")
# DCGM's blank values begin here: 2^47 of floating-point fields, above it those of integers.
_BLANK = float(2**47)


class DcgmSource:
    """All accelerators in the text of DCGM's exporter: power in W, and energy in mJ since the driver was loaded.

    The exporter takes its values every 30 s by default (`--collect-interval`), whatever the pace of readings.

    `place` is its address. Raises:
        EnvironmentLacksError: no answer, or no power in it.
    """

    name = "dcgm"
    scope: Scope = "device"
    parts: Parts | None = "accelerators"
    interval_seconds = 1.0
    patience_seconds = 5.0

    def __init__(self, place: str | None = None) -> None:
        self._place = place or EXPORTER
        self._client = Client(self.patience_seconds)
        self._limits: dict[str, float] = {}
        self._uuids: dict[str, str] = {}
        try:
            fields = self._fields()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error
        self.devices = tuple(fields[_POWER])
        self.covers = f"{len(self.devices)} accelerator{'s' if len(self.devices) > 1 else ''}"
        self._count: EnergyCount | None = None
        self._count_energy(fields)

    def keep(self, uuids: Collection[str]) -> None:
        fields = self._fields()
        kept = tuple(name for name in self.devices if self._uuids.get(name) in uuids)
        if len(kept) == len(uuids):
            self.covers = used(len(kept), len(self.devices)) if len(kept) < len(self.devices) else self.covers
            self.devices = kept
            self._count_energy(fields)

    def _count_energy(self, fields: Mapping[str, Mapping[str, float]]) -> None:
        counts = fields.get(_ENERGY, {}).keys() >= set(self.devices)
        self._count = EnergyCount(dict.fromkeys(self.devices)) if counts else None

    def read(self) -> Reading:
        fields = self._fields()
        watts = {name: fields[_POWER].get(name) for name in self.devices}
        if not self._count:
            return Reading(watts)
        joules = {name: value / 1000 for name, value in fields.get(_ENERGY, {}).items() if name in watts}
        if len(joules) < len(watts):
            raise ReadingError(f"DCGM: {self._place}: {_ENERGY} of a device is missing")
        return Reading(watts, self._count.look(machine_seconds(), joules).joules)

    def caps(self) -> dict[str, float]:
        """The limits in the last answer, if the exporter's configuration has that field."""
        return self._limits

    def close(self) -> None:
        """Do nothing: each reading is a connection of its own."""

    def _fields(self) -> dict[str, dict[str, float]]:
        try:
            text = self._client.get(self._place).decode("utf-8", errors="replace")
        except ReadingError as error:
            raise ReadingError(f"DCGM: {error}") from error
        fields = parse_exporter(text)
        if not fields.get(_POWER):
            raise ReadingError(f"DCGM: {self._place}: has no {_POWER} of a device")
        self._limits = next((fields[name] for name in _LIMITS if name in fields), {})
        self._uuids = {f"gpu{number}": uuid.lower() for number, uuid in _UUID.findall(text)}
        return fields


def parse_exporter(text: str) -> dict[str, dict[str, float]]:
    """Fields of DCGM's exporter by name and device (`gpu0`), without those that are blank.

    Partitions of a device (MIG) repeat its power: the first counts.
    """
    found: dict[str, dict[str, float]] = {}
    for field, labels, number in _FIELD.findall(text):
        device = _GPU.search(labels)
        try:
            value = float(number)
        except ValueError:
            continue
        if device and 0 <= value < _BLANK:
            found.setdefault(field, {}).setdefault(f"gpu{device.group(1)}", value)
    return found
