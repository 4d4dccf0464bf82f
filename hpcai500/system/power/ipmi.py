"""The power of the whole node, from its management controller (IPMI's DCMI extension, by ipmitool)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.power.source import Reading, ReadingError, Scope

TOOL = "ipmitool"
_WATTS = re.compile(r"^\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.MULTILINE)
_STATE = re.compile(r"^\s*Power reading state is:\s*(\S+)", re.MULTILINE)


class IpmiSource:
    """`ipmitool dcmi power reading`, each time in a process of its own: a controller that hangs ends with it.

    Args:
        environment: whose PATH leads to the tool.
        patience_seconds: after so long the process is killed.

    Raises:
        EnvironmentLacksError: no ipmitool, or no answer that is a power.
    """

    name = "ipmi"
    scope: Scope = "node"
    covers = "the whole node"
    devices: tuple[str, ...] = ()
    # A controller measures once a second or less often.
    interval_seconds = 1.0

    def __init__(self, environment: Mapping[str, str], patience_seconds: float = 5.0) -> None:
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
        """The power of the node as its controller tells it."""
        try:
            answer = subprocess.run(
                self._command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=self.patience_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ReadingError(f"IPMI: no answer within {self.patience_seconds:g} s") from error
        except OSError as error:
            raise ReadingError(f"IPMI: {TOOL} cannot be started: {error}") from error
        if answer.returncode != 0:
            said = (answer.stderr.strip() or answer.stdout.strip()).splitlines() or [f"exit code {answer.returncode}"]
            raise ReadingError(f"IPMI: {said[0]}")
        return Reading({"": parse_reading(answer.stdout)})

    def close(self) -> None:
        """Nothing is open."""


def parse_reading(text: str) -> float:
    """Watts, from what `ipmitool dcmi power reading` prints.

    Raises:
        ReadingError: it says none, or that it does not measure.
    """
    found, state = _WATTS.search(text), _STATE.search(text)
    if found is None:
        raise ReadingError("IPMI: the answer has no line 'Instantaneous power reading'")
    if state and state.group(1) != "activated":
        raise ReadingError(f"IPMI: power reading is {state.group(1)}")
    # Controllers without a sensor answer 0, and a node that runs this uses more.
    if int(found.group(1)) == 0:
        raise ReadingError("IPMI: the controller reads 0 W")
    return float(found.group(1))
