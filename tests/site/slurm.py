"""A real Slurm on the hosts of a site: one controller on the switch, with accounting, one slurmd on each host. Needs
root, and Debian's slurmctld, slurmd, slurm-client, munge, slurmdbd and mariadb-server.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import accounting
from hosts import ROUTER, Site

_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "sinfo", "munged")

# One machine plays all nodes, so nothing is confined (no cgroups) and nothing is measured; times are short because
# tests wait for them: a requeued job until its credential has expired (5 s is the least). TmpFS of each node's own:
# there Slurm's PMIx keeps sockets by job and step, not by node.
_CONF = """
ClusterName=site
SlurmctldHost={router}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=5
KillWait=2
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=30 State=UP
"""


def why_no_slurm() -> str | None:
    """Why there can be no Slurm here, or None."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None] + accounting.missing_tools()
    return f"{', '.join(missing)} not found: run scripts/bootstrap as root" if missing else None


class Slurm:
    """A Slurm cluster of all hosts of `site`. It ends with the site.

    Attributes:
        site: the hosts.
        environment: with which its commands find it.

    Raises:
        AssertionError: its nodes are not idle after 30 s, with what its daemons said.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self._folder = folder = site.folder / "slurm"
        for name in ("state", "spool", "tmp"):
            for node in site.names:
                (folder / name / node).mkdir(parents=True)
        nodes = ",".join(site.names)
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, nodes=nodes, router=ROUTER) + accounting.CONF)
        # Without it, slurmd looks for a hierarchy that a container may not have.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._start_munge()
        accounting.start_accounting(site, folder, self.environment)
        # Slurm takes no records of a cluster that its accounting does not know.
        self.call("sacctmgr", "--immediate", "--quiet", "add", "cluster", "site")
        self._daemon(ROUTER, "slurmctld", "-D", "-i")
        for node in site.names:
            self._daemon(node, "slurmd", "-D", "-N", node)
        self._wait_until_idle()

    def srun(
        self, *words: str | Path, environment: Mapping[str, str] | None = None, timeout: float = 60
    ) -> tuple[str, int]:
        """Output and exit code of `srun words…`, called on the controller's host."""
        variables = {**self.environment, **(environment or {})}
        return self.site.attempt(ROUTER, ["srun", *words], timeout, environment=variables)

    def sbatch(self, script: Path, *words: str | Path, environment: Mapping[str, str] | None = None) -> Job:
        """Submit `script`, with `words` as its arguments, to run in the script's folder."""
        variables = {**self.environment, **(environment or {})}
        command = ["sbatch", "--parsable", f"--chdir={script.parent}", script, *words]
        return Job(self, self.site.run(ROUTER, command, environment=variables).strip().partition(";")[0])

    def call(self, *command: str | Path) -> str:
        """What one of Slurm's commands printed on the controller's host."""
        return self.site.run(ROUTER, command, environment=self.environment)

    def states(self, job: str) -> set[str]:
        """States of a job, or of the elements of an array; empty once Slurm has forgotten it."""
        words = ["--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
        output, code = self.site.attempt(ROUTER, ["squeue", *words], environment=self.environment)
        return set(output.split()) if code == 0 else set()

    def power_off(self, node: str) -> None:
        """Let a node disappear."""
        self.site.power_off(node)

    def power_on(self, node: str) -> None:
        """Start it again, and wait until all nodes can be used."""
        self.site.plug_in(node)
        self._daemon(node, "slurmd", "-D", "-N", node)
        self._wait_until_idle()

    def restart_controller(self) -> None:
        """Kill the controller, and start it again from what it has saved."""
        self.site.run(ROUTER, ["sh", "-c", f"kill -KILL $(cat {self._folder}/slurmctld.pid)"])
        self._daemon(ROUTER, "slurmctld", "-D")

    def _start_munge(self) -> None:
        """All hosts share one munged, by its socket: files are shared on this site."""
        folder = self._folder
        make = f"umask 077; mkdir -p -m 755 /run/munge; head -c 128 /dev/urandom > {folder}/munge.key"
        self.site.run(ROUTER, ["sh", "-c", make])
        paths = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "log", "pid", "seed")]
        self.site.run(ROUTER, ["munged", "--force", *paths])

    def _daemon(self, host: str, *words: str) -> None:
        with (self._folder / f"{words[0]}.{host}.out").open("wb") as output:
            self.site.start(host, words, self.environment, stdout=output, stderr=output)

    def _wait_until_idle(self) -> None:
        limit = time.monotonic() + 30
        command: Sequence[str] = ["sinfo", "--noheader", "--Node", "--format=%T"]
        while True:
            output, _ = self.site.attempt(ROUTER, command, environment=self.environment)
            if output.split() == ["idle"] * len(self.site.names):
                return
            assert time.monotonic() < limit, f"{output}\n{self._logs()}"
            time.sleep(0.1)

    def _logs(self) -> str:
        files = sorted([*self._folder.glob("*.log"), *self._folder.glob("*.out")])
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-2000:]}" for file in files)


class Job:
    """A job in the queue."""

    def __init__(self, slurm: Slurm, number: str) -> None:
        self.number = number
        self._slurm = slurm

    def show(self, name: str) -> str:
        """A value of `scontrol show job`: `JobState`, `ExitCode`, `Restarts`."""
        found = re.search(rf"\b{name}=(\S+)", self._slurm.call("scontrol", "show", "job", self.number))
        assert found, f"scontrol tells no {name}"
        return found.group(1)

    def signal(self, name: str, *words: str) -> None:
        """Send a signal to its steps, or as `words` say: `--batch` to its script."""
        self._slurm.call("scancel", f"--signal={name}", *words, self.number)

    def requeue(self) -> None:
        """Put it back into the queue, also after it has ended."""
        self._slurm.call("scontrol", "requeue", self.number)

    def wait(self, *states: str, timeout: float = 120) -> str:
        """Wait until the job is in one of `states`, or has ended; returns its state.

        Raises:
            AssertionError: it is in another one after `timeout` seconds.
        """
        limit = time.monotonic() + timeout
        while (state := self.show("JobState")) not in (*states, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"):
            if time.monotonic() > limit:
                self._slurm.call("scancel", self.number)
                raise AssertionError(f"job {self.number} is {state}, not {' or '.join(states) or 'at an end'}")
            time.sleep(0.2)
        return state
