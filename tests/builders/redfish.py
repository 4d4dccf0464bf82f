"""Management controllers for tests: sushy-tools' Redfish emulator, and a small server that answers what a test says.

The emulator is real (HTTP, TLS, passwords, service root, chassis), but has no power: `Emulator` adds the resource Power
of DMTF's schema to its chassis. `Server` stands for controllers and exporters that the emulator cannot be: newer, slow,
wrong or hostile.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USER, PASSWORD = "reader", "swordfish"


def power(watts: float | None, limit: float | None = None) -> dict[str, Any]:
    """Power, as controllers before 2020.4 have it (DMTF's schema Power v1_7_1)."""
    return {
        "@odata.type": "#Power.v1_7_1.Power",
        "Id": "Power",
        "Name": "Power",
        "PowerControl": [
            {
                "MemberId": "0",
                "Name": "System Power Control",
                "PowerConsumedWatts": watts,
                "PowerCapacityWatts": 1600,
                "PowerLimit": {"LimitInWatts": limit, "LimitException": "NoAction", "CorrectionInMs": 50},
                "PowerMetrics": {"AverageConsumedWatts": 587, "IntervalInMin": 20, "MaxConsumedWatts": 746},
            },
            {"MemberId": "1", "Name": "CPU Sub-system Power", "PowerConsumedWatts": 99},
        ],
    }


def environment_metrics(watts: float | None, limit: float | None = None, mode: str = "Automatic") -> dict[str, Any]:
    """EnvironmentMetrics, as newer controllers have it (DMTF's schema EnvironmentMetrics v1_3_0)."""
    return {
        "@odata.type": "#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
        "Id": "EnvironmentMetrics",
        "Name": "Chassis Environment Metrics",
        "PowerWatts": {"DataSourceUri": "/redfish/v1/Chassis/1/Sensors/TotalPower", "Reading": watts},
        "PowerLimitWatts": {"SetPoint": limit, "ControlMode": mode, "AllowableMin": 300, "AllowableMax": 1600},
        "EnergykWh": {"Reading": 325675},
    }


def documents(*chassis: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    """A service with chassis of (id, type, what it reports), each under the name that its schema says."""
    found: dict[str, Any] = {
        "/redfish/v1/": {"Chassis": {"@odata.id": "/redfish/v1/Chassis"}, "RedfishVersion": "1.15.0"},
        "/redfish/v1/Chassis": {"Members": [{"@odata.id": f"/redfish/v1/Chassis/{name}"} for name, _, _ in chassis]},
    }
    for name, kind, told in chassis:
        place = f"/redfish/v1/Chassis/{name}"
        found[place] = {"Id": name, "ChassisType": kind}
        if told:
            resource = told["Id"]
            found[place][resource] = {"@odata.id": f"{place}/{resource}"}
            found[f"{place}/{resource}"] = told
    return found


class Server:
    """Answers GET with `answers` by path: a JSON document, bytes, or a function of the handler. Use as a context.

    Attributes:
        url: its address.
        asked: (path, header Authorization) of each request.
    """

    def __init__(self, answers: dict[str, Any], certificate: tuple[Path, Path] | None = None) -> None:
        self.answers, self.asked = answers, []  # type: dict[str, Any], list[tuple[str, str | None]]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                answer = outer.answers.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200 if answer is not None else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def redirect(target: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(301)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def certificate_for(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that only itself vouches for, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


# What the emulator's chassis reports; None: no power.
_told: dict[str, Any] = {}


@cache
def _application() -> Any:
    """The emulator with the resource Power. It is one per process, so its power is, too."""
    from sushy_tools.emulator.main import app

    @app.route("/redfish/v1/Chassis/<identity>/Power")
    def power_of(identity: str) -> Any:
        return _told["power"]

    @app.after_request
    def link(response: Any) -> Any:
        document = response.get_json() if response.is_json else None
        is_chassis = isinstance(document, dict) and document.get("@odata.type", "").startswith("#Chassis.")
        if is_chassis and _told.get("power"):
            document["Power"] = {"@odata.id": f"{document['@odata.id']}/Power"}
            response.set_data(json.dumps(document))
        return response

    return app


@contextmanager
def emulator(folder: Path, certificate: tuple[Path, Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """sushy-tools' emulator with TLS and a password: its address, and what its chassis reports as `power`."""
    import bcrypt
    from werkzeug.serving import make_server

    application = _application()
    passwords = folder / "htpasswd"
    passwords.write_bytes(USER.encode() + b":" + bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)) + b"\n")
    before = application.wsgi_app
    application.configure(
        extra_config={
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_AUTH_FILE": str(passwords),
            "SUSHY_EMULATOR_STATE_DIR": str(folder),
        }
    )
    server = make_server("127.0.0.1", 0, application, threaded=True, ssl_context=tuple(map(str, certificate)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", _told
    finally:
        server.shutdown()
        thread.join()
        application.wsgi_app = before
        _told.clear()
