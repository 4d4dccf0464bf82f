"""The power of a run: measured by one rank of each node during training, recorded by rank 0 at the end.

A source is a meter's file, which is read after the run, or samples of the node's own sensors. If the user named
several, the first counts, and the others are sampled beside it and compared with it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.identity import Gpu
from hpcai500.engine.reporting import Journal
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.files import write_atomically
from hpcai500.hosts import is_first_of_host
from hpcai500.methodology.energy import Window, compare_sources, first_note, hosts_of, why_unknown, window_of
from hpcai500.record import cannot_write, read_record
from hpcai500.streams import say
from hpcai500.system.power import SOURCES, Found, Meter, Opener, PowerChoice, automatic_names, find_sources
from hpcai500.system.power_reading import DeviceSource
from hpcai500.system.power_samples import Entry, MeteredNode, SampledNode, files_of

_TURNED_OFF = "not measured (--power none)"
_MOST_NAMES = 4


class RunPower:
    """Measures from `begin` to `conclude`, on the first rank of each host.

    All methods except `begin` and `close` are called by all ranks together. `choice` is what the user chose; `gpu` is
    that of this rank, None on a CPU; `how` opens sources by name.
    """

    def __init__(
        self,
        choice: PowerChoice,
        world: Communicator,
        record: Path,
        *,
        gpu: Gpu | None = None,
        how: Mapping[str, Opener] = SOURCES,
    ) -> None:
        self._choice, self._world, self._record = choice, world, record
        self._gpu, self._how = gpu, how
        self._host = world.hosts[world.rank]
        self._hosts = list(dict.fromkeys(world.hosts))
        # Whether this rank may measure; `find` says whether it does.
        self._leads_node = is_first_of_host(world.rank, world.hosts)
        # One for each source, the one that counts first; None where another rank measures.
        self._nodes: list[SampledNode | MeteredNode | None] = []
        self._reason = _TURNED_OFF

    def find(self) -> None:
        """Choose sources that all nodes can read; rank 0 prints them on stderr. Called early in a job.

        Raises:
            EnvironmentLacksError: the source that the user named cannot be read on a node.
            UsageError: one meter's file is given for several nodes.
        """
        for choice in (self._choice, *self._choice.beside):
            if choice.is_one_for_all and len(self._hosts) > 1 and not choice.is_pdu:
                raise UsageError(
                    f"--power {choice}: one {'file' if choice.meter else 'address'} for {len(self._hosts)} nodes: give "
                    "each its own (%h in the name stands for the host), or say scope=pdu for a meter that feeds all of "
                    "them"
                )
            if choice.meter:
                self._take_meter(choice.meter, choice is not self._choice)
            elif choice.kind != "none":
                self._take_source(choice, choice is not self._choice)

    def begin(self) -> None:
        for node in self._measuring():
            node.begin()

    def conclude(self, journal: Journal) -> None:
        """Stop, and write the event `power`; called after `run_stop`.

        Raises:
            RunError: a rank is gone, or the disk is full.
        """
        world = self._world
        for node in self._measuring():
            node.stop()
        # Read at once, because a meter may be waited for.
        offsets = [self._clock_offset(node) for node in self._nodes]
        window, hosts = world.broadcast_object(_run_of(journal) if world.rank == 0 else None)
        entries = [
            self._gathered(node.entry(window, offset) if node else None)
            for node, offset in zip(self._nodes, offsets, strict=True)
        ]
        self._nodes = []
        first, beside = (entries[0] if entries else []), [entry for others in entries[1:] for entry in others]
        value = self._value(first, beside, hosts)
        for comparison in value["comparisons"]:
            if comparison["finding"]:
                self._say(f"warning: power: {comparison['finding']}")
        journal.event("power", value)

    def close(self) -> None:
        """Stop measuring, however the run ended; the samples are kept."""
        for node in self._measuring():
            node.stop()

    def _measuring(self) -> list[SampledNode | MeteredNode]:
        """What this rank measures."""
        return [node for node in self._nodes if node]

    def _gathered(self, mine: Entry | None) -> list[Entry]:
        """The entries of all nodes for one source, whose files are brought into the record."""
        found = list(enumerate(self._world.gather_objects(mine)))
        for rank, entry in found:
            if entry and entry["file"]:
                self._bring_file(rank, entry["file"], entry["sha256"])
        return [entry for _, entry in found if entry]

    def _take_meter(self, meter: Meter, is_beside: bool) -> None:
        shared = meter.is_one_for_all
        node = None
        if self._world.rank == 0 or (self._leads_node and not shared):
            covers = self._hosts if shared else [self._host]
            node = MeteredNode(meter, self._record, self._host, covers, is_beside=is_beside)
        self._nodes.append(node)
        self._say(f"power: {meter.pattern} (scope {meter.scope}) is read when the run has ended")
        # The meter may create the file later; the warning shows a mistyped name before the run.
        lacks = node is not None and not files_of(meter, self._host)
        missing = [host for host in self._world.gather_objects(self._host if lacks else None) if host]
        if missing:
            self._say(f"warning: power: {meter.of(missing[0])}: no such file yet on {_few(missing)}")

    def _take_source(self, choice: PowerChoice, is_beside: bool) -> None:
        kind = choice.kind
        names = automatic_names(on_gpu=self._gpu is not None) if kind == "auto" else (kind,)
        found, shared = Found(), choice.is_one_for_all
        measures = self._world.rank == 0 if shared else self._leads_node
        if measures:
            how = self._how if kind == "auto" else {kind: choice.opener(self._host, self._how)}
            found = find_sources(names, how)
        mine = (self._host, tuple(found.sources), found.words) if measures else None
        nodes = [one for one in self._world.gather_objects(mine) if one]
        # A sum over nodes is meaningful only if all of them measure the same.
        common = next((name for name in names if all(name in sources for _, sources, _ in nodes)), None)
        source = found.take(common)
        if common is None:
            host, _, why = next((one for one in nodes if not one[1]), nodes[0])
            if kind != "auto":
                raise EnvironmentLacksError(f"--power {kind}: {host}: {why}")
            self._reason = f"no source of power on {host}: {why}" if nodes[1:] else f"no source of power: {why}"
            return
        used = self._used_here()
        node = None
        if source:
            if isinstance(source, DeviceSource) and used:
                source.keep(used)
            covers = self._hosts if shared else None
            node = SampledNode(source, self._record, self._host, covers=covers, is_beside=is_beside)
            where = f" on {len(nodes)} nodes" if nodes[1:] else ""
            what = f"{source.covers} (scope {source.scope})"
            self._say(f"power: {source.name}{where}: {what}, every {source.interval_seconds:g} s")
        self._nodes.append(node)

    def _used_here(self) -> set[str]:
        """UUIDs of the accelerators that the ranks of this host use; empty if one is unknown."""
        everyone = self._world.gather_objects(self._gpu and self._gpu.uuid)
        here = {uuid for uuid, host in zip(everyone, self._world.hosts, strict=True) if host == self._host}
        return set() if None in here else here

    def _clock_offset(self, node: SampledNode | MeteredNode | None) -> float:
        """Seconds that this node's wall clock is ahead of rank 0's, by the clocks of their samples."""
        self._world.barrier()
        now = node.unix_now() if node else 0.0
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

    def _value(self, entries: Sequence[Entry], beside: Sequence[Entry], hosts: Sequence[str]) -> dict[str, Any]:
        notes = [f"{entry['host']}: {entry['note']}" for entry in entries if entry["note"]]
        reason = why_unknown(entries, hosts) if entries else self._reason
        return {
            "nodes": list(entries),
            "beside": list(beside),
            "comparisons": compare_sources(entries, beside),
            "reason": reason,
            "note": first_note(notes),
        }

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
