"""`python -m hpcai500.measure.storage_command`: one rank of `hpcai500 storage`, which measures a file system."""

from __future__ import annotations

import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcai500.engine.measurement import Bench, run_measurement
from hpcai500.errors import RunError, WrongAnswerError
from hpcai500.files import GuardedFolder
from hpcai500.hosts import is_first_of_host
from hpcai500.job_options import Measurement, StorageOptions
from hpcai500.measure import file_system
from hpcai500.measure.file_system import Content, Done, Piece, SmallFiles, Store
from hpcai500.methodology.storage import CHECKPOINTS, SAMPLES, Latencies, Samples, share_of
from hpcai500.progress import Progress
from hpcai500.streams import say
from hpcai500.system.limits import memory_limit
from hpcai500.system.mounts import mount_of, read_mounts
from hpcai500.system.node import parse_meminfo

# The first save tells how much can be saved in the time.
_PILOT_BYTES = 2**26
# Above this share of bytes in memory, a figure is that of memory.
_MOST_RESIDENT = 0.5
# Not so many that removing them takes much longer than making them.
_MOST_SMALL_FILES = 10**7

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on this rank; returns the exit code."""
    return run_measurement(Measurement[StorageOptions], _measure, arguments)


def _measure(bench: Bench[StorageOptions]) -> Mapping[str, Any]:
    from hpcai500.engine.signals import StopRequest  # torch, after OpenMP's variables are set

    options, ranks = bench.options, bench.ranks
    parts = [kind for kind in options.kinds if kind != "checkpoint"]
    parts += options.models if "checkpoint" in options.kinds else ()
    found: dict[str, Any] = {}
    now = ["starting"]
    with ExitStack() as stack:
        job = stack.enter_context(_job(bench, now))
        stack.enter_context(ranks.reading(job.store.folder, StopRequest(announce=False), remedy=""))
        bar = stack.enter_context(ranks.tracker(lambda: now[0])(len(parts), "storage", "measurements"))
        share = options.seconds / len(parts)
        for kind in options.kinds:
            if kind == "checkpoint":
                found |= _checkpoints(job, options.models, share, bar)
            else:
                found |= _small_files(job, share) if kind == "small" else _samples(job, kind, share)
                bar.advance()
    measured = {"time_ms": time.time_ns() // 1_000_000, "hosts": list(ranks.world.hosts)}
    return {name: {**entry, **measured} for name, entry in found.items()}


# ----------------------------------------------------------------------------------------------------
# What all measurements share.


@dataclass
class _Job:
    """All ranks, and where this one writes.

    Attributes:
        store: this rank's folder, which other ranks may share.
        sharing: ranks that see the same folder, in order.
        allowed: bytes that this rank may write at once.
        memory_bytes: of all hosts together.
        about: of the file system, for the document.
    """

    bench: Bench[StorageOptions]
    store: Store
    sharing: list[int]
    allowed: int
    files: int
    memory_bytes: int
    about: Mapping[str, Any]
    doing: Callable[[str], None] = field(repr=False)

    @property
    def rank(self) -> int:
        return self.bench.ranks.world.rank

    @property
    def threads(self) -> int:
        return self.bench.recipe.os.input_threads or self.bench.cores

    def alive(self) -> None:
        self.bench.ranks.progress()

    def gather(self, value: T) -> list[T]:
        return self.bench.ranks.world.gather_objects(value)

    def together(self, what: str, body: Callable[[], T]) -> T:
        """`body()`, which all ranks begin at the same moment; an error of the file system ends the job.

        Raises:
            RunError: the disk is full, or does not work.
        """
        self.doing(what)
        self.bench.ranks.world.barrier()
        try:
            return body()
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
            place = "" if error.filename else f"{self.bench.options.dir}: "
            raise RunError(f"{place}{reason}, while {what}: {file_system.remedy(error)}") from error

    def refuse_wrong(self, what: str, wrong: Sequence[str]) -> None:
        """End all ranks if the storage gave any of them other bytes than were written.

        Raises:
            WrongAnswerError: with the first of them.
        """
        for rank, (count, first) in enumerate(self.gather((len(wrong), next(iter(wrong), "")))):
            if count:
                more = f" ({count} such errors on this rank)" if count > 1 else ""
                host = self.bench.ranks.world.hosts[rank]
                raise WrongAnswerError(
                    f"{what}: rank {rank} on host {host} read other bytes than were written: {first}{more}; do not "
                    "trust this storage, nor the path to it, until the cause is known"
                )

    def entry(self, done: Done, amount: float, unit: str, **more: Any) -> dict[str, Any]:
        """The document's entry of what all ranks did at once.

        The value is the sum of all ranks' `amount`, divided by the seconds of the slowest rank.
        """
        everyone = self.gather((amount, done))
        amounts, seconds = [one for one, _ in everyone], [one.seconds for _, one in everyone]
        resident = [one.resident_bytes for _, one in everyone]
        rates = [one / taken if taken else 0.0 for one, taken in zip(amounts, seconds, strict=True)]
        slowest = min(range(len(rates)), key=lambda rank: rates[rank])
        hosts = self.bench.ranks.world.hosts
        in_memory = None if None in resident else sum(filter(None, resident))
        return {
            "value": sum(amounts) / max(seconds) if max(seconds) and sum(amounts) else None,
            "unit": unit,
            "verified": True,
            "seconds": max(seconds),
            "operations": sum(one.operations for _, one in everyone),
            "bytes": sum(one.size_bytes for _, one in everyone),
            "latency_seconds": Latencies.merged(one.latencies for _, one in everyone).document(),
            "resident_bytes": in_memory,
            "cold": None if in_memory is None else in_memory == 0,
            "ranks": len(rates),
            "threads": self.threads,
            "nodes": len(set(hosts)),
            "per_rank": rates,
            "slowest": {"rank": slowest, "host": hosts[slowest], "value": rates[slowest]},
            **self.about,
            **more,
        }


@contextmanager
def _job(bench: Bench[StorageOptions], now: list[str]) -> Iterator[_Job]:
    """Find out which ranks share the folder; a host that has a file system of its own there makes its own folder."""
    ranks, options = bench.ranks, bench.options
    world = ranks.world

    def doing(what: str) -> None:
        now[0] = what
        bench.doing(what)

    with ExitStack() as stack:
        try:
            sees = options.folder.is_dir()
            own = None
            if not sees and is_first_of_host(world.rank, world.hosts):
                own = stack.enter_context(GuardedFolder(options.dir)).path
        except OSError as error:
            raise RunError(f"{options.dir}: cannot be written on this host: {error.strerror}") from error
        made = world.gather_objects(own)
        folder = options.folder if sees else made[world.hosts.index(world.hosts[world.rank])]
        places = world.gather_objects((str(folder), None if sees else world.hosts[world.rank]))
        sharing = [rank for rank, place in enumerate(places) if place == places[world.rank]]
        room = file_system.room_of(folder)
        memory = _memory_bytes()
        firsts = [rank for rank in range(world.size) if is_first_of_host(rank, world.hosts)]
        memories = world.gather_objects(memory)
        groups = len(set(places))
        whole = sum(memories[rank] for rank in firsts)
        space = None if options.space is None else options.space // groups
        allowed = file_system.allowed_bytes(room, whole // groups, space) // len(sharing)
        files = min(file_system.allowed_files(room, allowed * len(sharing)) // len(sharing), _MOST_SMALL_FILES)
        allowed, files = min(world.gather_objects(allowed)), min(world.gather_objects(files))
        mount = mount_of(folder.resolve(), read_mounts())
        about = {
            "file_system": {
                "type": mount.type if mount else None,
                "free_bytes": room.free_bytes,
                "shared_by_hosts": groups == 1 if len(firsts) > 1 else None,
            },
            "memory_bytes": whole,
            "space_bytes": allowed * world.size,
        }
        store = Store(folder, zlib.crc32(str(options.folder).encode(errors="surrogateescape")))
        yield _Job(bench, store, sharing, allowed, files, whole, about, doing)


def _memory_bytes() -> int:
    """Memory of this host, or of this job's share of it."""
    total = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))["MemTotal"]
    return min(total, memory_limit() or total)


def _say(job: _Job, line: str) -> None:
    if job.bench.ranks.leads:
        say(line)


# ----------------------------------------------------------------------------------------------------
# Samples: each rank writes its part of a data set; then each reads a random part of the whole.


def _samples(job: _Job, kind: str, seconds: float) -> dict[str, Any]:
    samples, name = SAMPLES[kind], f"storage read {kind}"
    if job.allowed < job.threads * samples.size_bytes:
        _say(job, f"{name}: left out: {job.threads} samples a rank do not fit into {job.allowed:,} bytes: --space")
        return {}
    mine = job.together(
        f"writing samples of {kind}",
        lambda: file_system.write_samples(
            job.store, kind, samples, job.rank, job.threads,
            most_bytes=job.allowed, seconds=seconds / 2, alive=job.alive,
        ),
    )  # fmt: skip
    pieces = _part(job, kind, samples, job.gather(mine))
    direct = all(job.gather(bool(pieces) and file_system.can_read_direct(pieces[0])))
    buffered = _read(job, name, pieces, samples, seconds / 4, direct=False)
    around = None
    if direct:
        # What the first reading did not reach comes first.
        at = buffered[0].operations
        around = _read(job, name, [*pieces[at:], *pieces[:at]], samples, seconds / 4, direct=True)[1]
        around = {key: around[key] for key in ("value", "seconds", "operations", "latency_seconds", "resident_bytes")}
    entry = buffered[1]
    set_bytes = sum(sum(counts) for counts in job.gather(mine)) * samples.size_bytes
    _remove(job, f"{kind}-{job.rank}")
    return {name: {**entry, "set_bytes": set_bytes, "exceeds_memory": set_bytes > job.memory_bytes, "direct": around}}


def _part(job: _Job, kind: str, samples: Samples, counts: Sequence[Sequence[int]]) -> list[Piece]:
    """This rank's part of all samples of the ranks that share its folder, in random order, the same draw on all."""
    writers = [(rank, thread, count) for rank in job.sharing for thread, count in enumerate(counts[rank])]
    ends = np.cumsum([count for *_, count in writers])
    order = np.random.default_rng(job.store.seed).permutation(int(ends[-1]))
    pieces = []
    for place in order[job.sharing.index(job.rank) :: len(job.sharing)]:
        at = int(np.searchsorted(ends, place, side="right"))
        rank, thread, count = writers[at]
        pieces.append(job.store.sample(kind, samples, rank, thread, int(place - (ends[at] - count))))
    return pieces


def _read(
    job: _Job, name: str, pieces: Sequence[Piece], samples: Samples, seconds: float, *, direct: bool
) -> tuple[Done, dict[str, Any]]:
    coldness = job.together(
        f"{name}: dropping it from memory", lambda: file_system.make_cold(pieces, job.threads, job.alive)
    )
    done = job.together(
        f"{name}{' around the page cache' if direct else ''}",
        lambda: file_system.read_samples(
            coldness.cold, samples.request_bytes, job.threads, seconds,
            direct=direct, keep_open=samples.per_file > 1, alive=job.alive,
        ),
    )  # fmt: skip
    job.refuse_wrong(name, done.wrong)
    done.resident_bytes = coldness.resident_bytes
    shape = f"{samples.size_bytes:,} bytes, random order" + ("" if samples.per_file == 1 else ", of large files")
    return done, job.entry(done, done.operations, "samples/s", shape=shape, call="O_DIRECT" if direct else "page cache")


def _remove(job: _Job, name: str) -> None:
    """Remove this rank's files, so that the space is free for the next measurement."""

    def remove() -> None:
        shutil.rmtree(job.store.folder / name, ignore_errors=True)

    # Others may still read them.
    job.together("removing files", remove)
    job.bench.ranks.world.barrier()


# ----------------------------------------------------------------------------------------------------
# Small files: each rank makes its own, and opens those of a rank on another host.


def _small_files(job: _Job, seconds: float) -> dict[str, Any]:
    folder = job.store.folder / f"small-{job.rank}"
    if job.files < job.threads:
        _say(job, "storage small: left out: the file system has no inodes or no space for it")
        return {}
    files, made = job.together(
        "making small files",
        lambda: file_system.make_small(folder, job.threads, job.files, seconds / 2, job.alive),
    )
    job.together("synchronising", lambda: file_system.sync(job.store.folder))
    # A host keeps the names that it made in memory, so it reads those of another host where there is one.
    hosts = job.bench.ranks.world.hosts
    here = max(sum(hosts[rank] == host for rank in job.sharing) for host in set(hosts))
    partner = job.sharing[(job.sharing.index(job.rank) + here) % len(job.sharing)]
    theirs = SmallFiles(job.store.folder / f"small-{partner}", job.gather(list(files.counts))[partner])
    listed = job.together("listing small files", lambda: file_system.list_small(theirs, job.threads, job.alive))
    job.refuse_wrong("storage list", listed.wrong)
    seed = job.store.seed + job.rank
    opened = job.together(
        "opening small files", lambda: file_system.open_small(theirs, job.threads, seconds / 4, seed, job.alive)
    )
    job.refuse_wrong("storage open", opened.wrong)
    removed = job.together("removing small files", lambda: file_system.remove_small(files, job.threads, job.alive))
    _remove(job, folder.name)
    remembered = all(job.gather(hosts[partner] == hosts[job.rank]))
    found = {"create": made, "list": listed, "open": opened, "remove": removed}
    entries = {}
    for name, done in found.items():
        done.resident_bytes = None
        amount = done.size_bytes if name == "list" else done.operations
        shape = "folders of up to 1000 files" if name == "list" else "files of 16 bytes, 1000 in a folder"
        entries[f"storage {name}"] = job.entry(done, amount, "files/s", shape=shape, call="page cache") | {
            "cold": None if name in ("create", "remove") else not remembered
        }
    return entries


# ----------------------------------------------------------------------------------------------------
# Checkpoints: each rank saves and restores its share of each model's.


def _checkpoints(job: _Job, models: Sequence[str], seconds: float, bar: Progress) -> dict[str, Any]:
    folder = job.store.folder / f"checkpoint-{job.rank}"
    found: dict[str, Any] = {}
    if job.allowed < file_system.CHUNK:
        _say(job, f"storage checkpoint: left out: {job.allowed:,} bytes a rank are too few: --space")
        return found
    content = Content(job.store.seed)
    job.together("making a folder", folder.mkdir)
    rate = None
    for number, model in enumerate(sorted(models, key=lambda name: CHECKPOINTS[name])):
        share = share_of(CHECKPOINTS[model], job.rank, job.bench.ranks.world.size)
        if rate is None:
            pilot, _ = _save_and_restore(job, "pilot", folder / "pilot", min(_PILOT_BYTES, share, job.allowed), content)
            rate = pilot["per_rank"][pilot["slowest"]["rank"]]
        size = min(share, job.allowed, int(rate * seconds / 2) // file_system.PAGE * file_system.PAGE)
        if max(job.gather(share)) <= min(job.allowed, _PILOT_BYTES + int(rate * seconds / 2)):
            size = share
        whole = all(job.gather(size == share))
        saved, restored = _save_and_restore(job, model, folder / f"{number}.pt", size, content)
        rate = min(saved["per_rank"])
        for verb, entry in (("save", saved), ("restore", restored)):
            entry["model_bytes"] = CHECKPOINTS[model]
            entry["whole"] = whole
            entry["rate"] = entry["value"]
            found[f"storage {verb}"] = entry
            found[f"storage {verb} {model}"] = {
                **entry,
                "value": entry["seconds"] if whole and entry["value"] is not None else None,
                "unit": "s",
            }
        bar.advance()
    _remove(job, folder.name)
    return found


def _save_and_restore(
    job: _Job, model: str, path: Path, size: int, content: Content
) -> tuple[dict[str, Any], dict[str, Any]]:
    identity = job.rank << 40 | zlib.crc32(path.name.encode())
    saved = job.together(f"saving {model}", lambda: file_system.save(path, size, identity, content, job.alive))
    restored = job.together(f"restoring {model}", lambda: file_system.restore(path, size, identity, content, job.alive))
    job.refuse_wrong(f"storage restore {model}", restored.wrong)
    job.together("removing a checkpoint", path.unlink)
    shape = f"{size:,} bytes a rank"
    saving = job.entry(saved, saved.size_bytes, "bytes/s", shape=shape, call="page cache, fsync") | {"cold": None}
    reading = job.entry(restored, restored.size_bytes, "bytes/s", shape=shape, call="page cache")
    if reading["resident_bytes"] is not None and reading["resident_bytes"] > _MOST_RESIDENT * sum(job.gather(size)):
        reading["value"] = None
    return saving, reading


if __name__ == "__main__":
    sys.exit(main())
