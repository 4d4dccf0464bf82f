"""The power of a run: measured by one rank of each node during training, recorded by rank 0 at the end.

The source is a meter's file, which is read after the run, or samples of the node's own sensors.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.comm.communicator import Communicator
from hpcai500.engine.reporting import Journal
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.files import write_atomically
from hpcai500.hosts import is_first_of_host
from hpcai500.methodology.energy import Window, first_note, hosts_of, why_unknown, window_of
from hpcai500.record import cannot_write, read_record
from hpcai500.streams import say
from hpcai500.system.power import SOURCES, Found, Meter, Opener, PowerChoice, automatic_names, find_sources
from hpcai500.system.power_samples import Entry, MeteredNode, SampledNode, files_of

_TURNED_OFF = "not measured (--power none)"
_MOST_NAMES = 4


class RunPower:
    """Measures from `begin` to `conclude`, on the first rank of each host.

    All methods except `begin` and `close` are called by all ranks together. `choice` is the source that the user chose;
    `how` opens sources by name.
    """

    def __init__(
        self,
        choice: PowerChoice,
        world: Communicator,
        record: Path,
        *,
        on_gpu: bool,
        how: Mapping[str, Opener] = SOURCES,
    ) -> None:
        self._choice, self._world, self._record = choice, world, record
        self._on_gpu, self._how = on_gpu, how
        self._host = world.hosts[world.rank]
        self._hosts = list(dict.fromkeys(world.hosts))
        # Whether this rank may measure; `find` says whether it does.
        self._leads_node = is_first_of_host(world.rank, world.hosts)
        self._node: SampledNode | MeteredNode | None = None
        self._reason = _TURNED_OFF

    def find(self) -> None:
        """Choose a source that all nodes can read; rank 0 prints it on stderr. Called early in a job.

        Raises:
            EnvironmentLacksError: the source that the user named cannot be read on a node.
            UsageError: one meter's file is given for several nodes.
        """
        if self._choice.meter:
            self._take_meter(self._choice.meter)
        elif self._choice.kind != "none":
            self._take_source()

    def begin(self) -> None:
        if self._node:
            self._node.begin()

    def conclude(self, journal: Journal) -> None:
        """Stop, and write the event `power`; called after `run_stop`.

        Raises:
            RunError: a rank is gone, or the disk is full.
        """
        world = self._world
        if self._node:
            self._node.stop()
        offset = self._clock_offset()
        window, hosts = world.broadcast_object(_run_of(journal) if world.rank == 0 else None)
        mine = self._node.entry(window, offset) if self._node else None
        self._node = None
        found = list(enumerate(world.gather_objects(mine)))
        entries: list[Entry] = [entry for _, entry in found if entry]
        for rank, entry in found:
            if entry and entry["file"]:
                self._bring_file(rank, entry["file"], entry["sha256"])
        journal.event("power", self._value(entries, hosts))

    def close(self) -> None:
        """Stop measuring, however the run ended; the samples are kept."""
        if self._node:
            self._node.stop()

    def _take_meter(self, meter: Meter) -> None:
        shared = meter.is_one_for_all
        if shared and len(self._hosts) > 1 and meter.scope != "pdu":
            raise UsageError(
                f"--power {self._choice}: one file for {len(self._hosts)} nodes: give each its own (%h in the name "
                "stands for the host), or say scope=pdu for a meter that feeds all of them"
            )
        if self._world.rank == 0 or (self._leads_node and not shared):
            covers = self._hosts if shared else [self._host]
            self._node = MeteredNode(meter, self._record, self._host, covers)
        self._say(f"power: {meter.pattern} (scope {meter.scope}) is read when the run has ended")
        # The meter may create the file later; the warning shows a mistyped name before the run.
        lacks = self._node is not None and not files_of(meter, self._host)
        missing = [host for host in self._world.gather_objects(self._host if lacks else None) if host]
        if missing:
            self._say(f"warning: power: {meter.of(missing[0])}: no such file yet on {_few(missing)}")

    def _take_source(self) -> None:
        kind = self._choice.kind
        names = automatic_names(on_gpu=self._on_gpu) if kind == "auto" else (kind,)
        found = find_sources(names, self._how) if self._leads_node else Found()
        mine = (self._host, tuple(found.sources), found.words) if self._leads_node else None
        nodes = [one for one in self._world.gather_objects(mine) if one]
        # A sum over nodes is meaningful only if all of them measure the same.
        common = next((name for name in names if all(name in sources for _, sources, _ in nodes)), None)
        source = found.take(common)
        if common is None:
            host, _, why = next((one for one in nodes if not one[1]), nodes[0])
            if kind != "auto":
                raise EnvironmentLacksError(f"--power {kind}: {host}: {why}")
            self._reason = f"no source of power on {host}: {why}" if nodes[1:] else f"no source of power: {why}"
        elif source:
            self._node = SampledNode(source, self._record, self._host)
            where = f" on {len(nodes)} nodes" if nodes[1:] else ""
            what = f"{source.covers} (scope {source.scope})"
            self._say(f"power: {source.name}{where}: {what}, every {source.interval_seconds:g} s")

    def _clock_offset(self) -> float:
        """Seconds that this node's wall clock is ahead of rank 0's, by the clocks of their samples."""
        self._world.barrier()
        now = self._node.unix_now() if self._node else 0.0
        return now - float(self._world.gather_objects(now)[0])

    def _bring_file(self, rank: int, name: str, sha256: str) -> None:
        """Copy the file of `rank` into rank 0's record, if the nodes do not share a file system."""
        world, target = self._world, self._record / name
        if world.broadcast_object(_is_file(target, sha256) if world.rank == 0 else None):
            return
        mine = zlib.compress(target.read_bytes()) if world.rank == rank else None
        content = world.broadcast_object(mine, root=rank)
        if world.rank == 0:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, zlib.decompress(content))
            except OSError as error:
                raise cannot_write(self._record, error) from error

    def _value(self, entries: Sequence[Entry], hosts: Sequence[str]) -> dict[str, Any]:
        notes = [f"{entry['host']}: {entry['note']}" for entry in entries if entry["note"]]
        reason = why_unknown(entries, hosts) if entries else self._reason
        return {"nodes": list(entries), "reason": reason, "note": first_note(notes)}

    def _say(self, line: str) -> None:
        if self._world.rank == 0:
            say(line)


def _run_of(journal: Journal) -> tuple[Window, list[str]]:
    events = read_record(journal.path).events
    return window_of(events), hosts_of(events)


def _is_file(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
