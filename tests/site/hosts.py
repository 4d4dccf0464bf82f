"""Several hosts on one machine: network and host-name namespaces on a switch, shaped to a rate. Needs root, iproute2.

Nothing of the machine is touched: all of it lives in namespaces of one process, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from builders.ranks import clean_environment

ROUTER = "switch"
_NETWORK = "10.78.0"
_TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")

# $1: the folder of this site. Its file `hosts` is in the format of /etc/hosts; `ready` tells that all is set up.
_SETUP = """
set -eu
folder=$1 network=$2
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/uts /run/site
cp "$folder"/on "$folder"/ssh /run/site
mount --bind "$folder/hosts" /etc/hosts
ip link set lo up
ip link add switch type bridge
ip address add "$network.254/24" dev switch
ip link set switch up
while read -r address name; do
    case $address in "$network".*) ;; *) continue ;; esac
    touch "/run/uts/$name"
    unshare --uts="/run/uts/$name" hostname "$name"
    [ "$name" != switch ] || continue
    ip netns add "$name"
    ip link add "to-$name" type veth peer name eth0 netns "$name"
    ip link set "to-$name" master switch up
    ip -n "$name" link set lo up
    ip -n "$name" address add "$address/24" dev eth0
    ip -n "$name" link set eth0 up
done < "$folder/hosts"
touch "$folder/ready"
# Not exec: the first process of a namespace has to bury what others leave behind.
sleep infinity & wait
"""
# Runs a command on a host, with the host's own /sys.
_ON = """#!/bin/bash
host=$1; shift
[ "$host" != switch ] || exec nsenter --uts=/run/uts/switch -- "$@"
exec ip netns exec "$host" nsenter --uts="/run/uts/$host" -- "$@"
"""
# What mpirun and horovodrun take for ssh.
_SSH = """#!/bin/bash
while [[ $1 == -* ]]; do
    case $1 in -[bcDEeFIiJLlmOopQRSWw]) shift ;; esac
    shift
done
host=${1#*@}; shift
while [[ ${1-} == -* ]]; do
    case $1 in -[bcDEeFIiJLlmOopQRSWw]) shift ;; esac
    shift
done
cd ~ && exec /run/site/on "$host" sh -c "$*"
"""


def why_not() -> str | None:
    """Why hosts cannot be made here, or None."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found: run scripts/bootstrap as root"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "eth0", "type", "veth"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"network namespaces cannot be made here: {tried.stderr.strip()}"


def shaping(rate: str) -> list[str]:
    """What tc has to be told on a host so that it sends at `rate` at most."""
    return ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "128k", "latency", "50ms"]


class Site:
    """Hosts `names` at addresses 10.78.0.1, .2, … on one switch, which is a host too (`ROUTER`, .254).

    Each host has its own network interfaces and host name; files and process numbers are shared by all of them, as
    on nodes with a shared file system. Several sites do not see each other.

    Attributes:
        folder: of this site, for whatever its hosts need; removed with it.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self.folder = Path(tempfile.mkdtemp(prefix="site-"))
        self.folder.chmod(0o755)
        lines = [f"{self.address(name)} {name}" for name in names]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, f"{_NETWORK}.254 {ROUTER}", ""]))
        for name, text in (("on", _ON), ("ssh", _SSH)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        # Ends with this process, also when that is killed.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--uts", "--ipc"]
        command += ["--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "private", "--"]
        command += ["bash", "-c", _SETUP, "site", str(self.folder), _NETWORK]
        self._log = (self.folder / "log").open("wb")
        self._holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        try:
            self._first = self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, name: str) -> str:
        """IPv4 address of a host."""
        return f"{_NETWORK}.{self.names.index(name) + 1}"

    def shape(self, rate: str) -> None:
        """Let no host send faster than `rate`, in words of tc: `200mbit`."""
        for name in self.names:
            self._inside("tc", "-n", name, *shaping(rate))

    def start(
        self, host: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[Any]:
        """Start `command` on `host`, in this folder; `how` as subprocess.Popen takes it.

        Killing what this returns does not kill the command: `kill` does.
        """
        inherited = clean_environment()
        variables = {**inherited, "PATH": f"/run/site:{inherited['PATH']}", **(environment or {})}
        enter = ["nsenter", f"--target={self._first}", "--mount", "--pid", "--ipc", "--net", f"--wd={Path.cwd()}", "--"]
        return subprocess.Popen([*enter, "/run/site/on", host, *map(str, command)], env=variables, **how)

    def run(self, host: str, command: Sequence[str | Path], timeout: float = 120, **how: Any) -> str:
        """What `command` on `host` printed, stdout and stderr.

        Raises:
            AssertionError: it failed, or had not ended after `timeout` seconds.
        """
        output, code = self.attempt(host, command, timeout, **how)
        assert code == 0, f"{host}: {' '.join(map(str, command))}: exit code {code}\n{output}"
        return output

    def attempt(self, host: str, command: Sequence[str | Path], timeout: float = 120, **how: Any) -> tuple[str, int]:
        """What `command` on `host` printed, and its exit code."""
        with self.start(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how) as process:
            try:
                return process.communicate(timeout=timeout)[0], process.returncode
            except subprocess.TimeoutExpired:
                self.kill(host)
                raise AssertionError(f"{host}: {command}: not at an end after {timeout} s") from None

    def unplug(self, host: str) -> None:
        """Take a host's cable out: what it sends is lost, and nobody is told."""
        self._inside("ip", "-n", host, "link", "set", "eth0", "down")

    def plug_in(self, host: str) -> None:
        """Put it in again."""
        self._inside("ip", "-n", host, "link", "set", "eth0", "up")

    def power_off(self, host: str) -> None:
        """Let a host disappear: none of its processes can say a last word, nor can its kernel on their behalf."""
        self.unplug(host)
        self.kill(host)

    def kill(self, host: str) -> None:
        """Kill every process of a host, until none is left."""
        for _ in range(100):
            if not self.signal(host, signal.SIGKILL):
                return
            time.sleep(0.02)
        raise AssertionError(f"processes of {host} do not die")

    def signal(self, host: str, number: signal.Signals) -> int:
        """Send a signal to every process of a host; returns how many there were."""
        wanted = Path(f"/proc/{self._first}/root/run/netns/{host}").stat().st_ino
        found = [process for process in Path("/proc").glob("[0-9]*") if _network_of(process) == wanted]
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), number)
        return len(found)

    def close(self) -> None:
        """End all hosts, with everything that runs on them."""
        self._holder.kill()
        self._holder.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inside(self, *command: str) -> None:
        enter = ["nsenter", f"--target={self._first}", "--mount", "--net", "--"]
        subprocess.run([*enter, *command], check=True, capture_output=True, text=True)

    def _wait_until_ready(self) -> int:
        """Process number, in the outer namespace, of the site's first process."""
        limit = time.monotonic() + 30
        while not (self.folder / "ready").exists():
            log = (self.folder / "log").read_text()
            assert self._holder.poll() is None, f"the site did not come up: {log}"
            assert time.monotonic() < limit, f"the site is not up after 30 s: {log}"
            time.sleep(0.01)
        holder = self._holder.pid
        return int(Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0])


def _network_of(process: Path) -> int | None:
    """Network namespace of a process; None for one that is gone, a zombie, or a kernel thread."""
    try:
        return (process / "ns" / "net").stat().st_ino
    except OSError:
        return None
