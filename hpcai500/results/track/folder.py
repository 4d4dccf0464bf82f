"""Reads a folder of records, campaigns, submissions and micro's files: the numbers of each, when, where, and with what.

Each record is checked as `score` checks it, each submission as `verify` does. What cannot be used is named, with the
reason. Only numbers are kept, so that thousands of records fit into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import JOURNAL, is_campaign, read_campaign
from hpcai500.campaign.standing import ODD
from hpcai500.errors import EnvironmentLacksError, HpcAi500Error, RecordError, UsageError, WrongAnswerError
from hpcai500.files import why_not
from hpcai500.hosts import host_stem
from hpcai500.methodology.communication import median_without
from hpcai500.methodology.nodes import compared_fields
from hpcai500.methodology.result import Result, training_seconds
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import tables_hash
from hpcai500.record import Record, last_hash, line_hash, read_record
from hpcai500.results.acceptance.contract import MICRO_UNITS
from hpcai500.results.acceptance.evidence import Trust, is_submission, last_value, open_verified
from hpcai500.results.acceptance.measured import own_seconds, read_ceilings
from hpcai500.results.score import score
from hpcai500.text import count, duration, listed, moment, number, short, table, tables

_MOST_NAME = 120
# Letters that are shown of a hash.
_HASH = 12
MICRO = "micro"
# A node's own step time over that of the others, in runs on several nodes; of a rank, in runs on one node.
STEP_RATIO = "step_ratio"
# Earlier than the paper (V2.0), or later than now: a clock that was never set, or wrongly.
_EARLIEST_MS = 1_577_836_800_000
_FUTURE_MS = 86_400_000
# Time servers correct less.
_MOST_OFFSET_SECONDS = 3600.0


# ----------------------------------------------------------------------------------------------------
# What is kept of a record.


@dataclass(frozen=True)
class Group:
    """Work and machine of comparable measurements. Only what is named here may not differ.

    Software is no part of it: its changes are what a trend shall show.

    Attributes:
        benchmark: `ic`, `ewa`, a plug-in's, or `micro`.
        recipe: hash of the resolved recipe without its seed; "" for micro.
        data: fingerprint of the data set, and whether it is real, synthetic, or from memory; "" for micro.
        library: backend and communication library, without its version.
        hardware: models of processors and accelerators.
        host: the host of work on one node, as nodes of one model still differ; "" for several nodes.
    """

    benchmark: str
    recipe: str
    data: str
    ranks: int
    nodes: int
    library: str
    hardware: str
    host: str

    @property
    def name(self) -> str:
        """In one line, for people."""
        where = f"on {self.host}" if self.host else f"on {count(self.nodes, 'node')}"
        what = f"{self.benchmark} {self.recipe[:8]}".strip()
        library = f", {self.library}" if self.ranks > 1 and self.library else ""
        return f"{what}, {count(self.ranks, 'rank')} {where}{library}, {self.hardware}"


@dataclass(frozen=True)
class Observation:
    """The numbers of one record, or of one file of micro.

    Attributes:
        name: its path in the folder.
        time_ms: when it began, UNIX time.
        values: (node or rank, metric) -> value; the node is "" for the whole run. Units: see `trends.METRICS`.
        nodes: host -> hash of its hardware and software, for `Folder.documents`.
        cluster: Slurm's name of the machine; "" if unknown.
        boot: boot of the first node, with the seconds since then; None if unknown.
    """

    name: str
    time_ms: int
    group: Group
    values: Mapping[tuple[str, str], float]
    nodes: Mapping[str, str]
    cluster: str = ""
    boot: tuple[str, float] | None = None


@dataclass(frozen=True)
class LeftOut:
    name: str
    reason: str


@dataclass(frozen=True)
class Folder:
    """Observations in the order of time, and what was left out.

    Attributes:
        documents: descriptions of nodes, by the hashes in `Observation.nodes`.
        notes: what is doubtful, although it is used: a sentence each.
    """

    path: Path
    observations: tuple[Observation, ...]
    left_out: tuple[LeftOut, ...]
    documents: Mapping[str, Mapping[str, Any]] = field(repr=False)
    notes: tuple[str, ...] = ()


# ----------------------------------------------------------------------------------------------------
# Finding everything in the folder.


@dataclass(frozen=True)
class _Found:
    """Something to read; `head` is the hash of a record's last event in its campaign's journal."""

    kind: str
    path: Path
    name: str
    head: str | None = None


def read_folder(
    path: Path, *, since_ms: int = 0, signers: Path | None = None, now_ms: int | None = None, tracker: Tracker = silent
) -> Folder:
    """Read all records in `path` and its subfolders.

    Args:
        since_ms: leave out what is older, silently: it was asked for.
        signers: OpenSSH file of trusted keys, for submissions and files of micro.

    Raises:
        UsageError: there is no such folder, it is itself a record, or nothing in it can be used.
        EnvironmentLacksError: something is signed, and ssh-keygen is not installed.
    """
    if why := why_not("folder", path):
        raise UsageError(f"{path}: {why}; give a folder of records")
    if (path / "events.jsonl").is_file():
        raise UsageError(f"{path}: a record: give the folder that contains the records of the machine")
    reader = _Reader(signers)
    with tempfile.TemporaryDirectory(prefix="hpcai500-track-") as scratch:
        found = list(reader.find(path, path))
        with tracker(len(found), "track", "records") as progress:
            for one in found:
                reader.read(one, Path(scratch))
                progress.advance()
    if not reader.observations:
        why = "no record in it"
        if reader.left_out:
            first, more = reader.left_out[0], len(reader.left_out) - 1
            why = f"no record can be used: {first.name}: {first.reason}" + (f" (and {more} more)" if more else "")
        raise UsageError(f"{path}: {why}; keep the records of `hpcai500 ic` or `ewa` in it, each in its own folder")
    observations, notes = _placed(reader.observations, reader.left_out, now_ms or time.time_ns() // 1_000_000)
    observations = _of_one_machine(observations, reader.left_out)
    observations = [one for one in observations if one.time_ms >= since_ms]
    if not observations:
        raise UsageError(f"{path}: no record that can be used is left; see the reasons with an earlier --since")
    return Folder(path, tuple(observations), tuple(reader.left_out), reader.documents, tuple(notes))


class _Reader:
    def __init__(self, signers: Path | None) -> None:
        self.signers = signers
        self.observations: list[Observation] = []
        self.left_out: list[LeftOut] = []
        self.documents: dict[str, Mapping[str, Any]] = {}
        # Hash of a run's first event, or of a file -> its name.
        self._seen: dict[str, str] = {}
        self._folders: set[Path] = set()

    def find(self, folder: Path, root: Path, within: str = "") -> Iterator[_Found]:
        """Everything in `folder`, in the order of names; `within` is the submission that it was extracted from."""
        # Links are followed, as sites link runs into such a folder, but not in a circle.
        if folder.resolve() in self._folders:
            return
        self._folders.add(folder.resolve())

        def named(path: Path, kind: str, head: str | None = None) -> _Found:
            name = str(path.relative_to(root))
            return _Found(kind, path, f"{within}: {name}" if within else name, head)

        if is_campaign(folder):
            try:
                campaign = read_campaign(folder)
            except HpcAi500Error as error:
                self._leave_out(named(folder, "campaign"), error)
                return
            done = {campaign.record(attempt) for attempt in campaign.done()}
            yield from (named(campaign.record(one), "record", one.head) for one in campaign.done())
            for attempt in campaign.attempts:
                if campaign.record(attempt) not in done:
                    reason = f"{attempt.status}: {attempt.reason or 'not finished'}"
                    self.left_out.append(LeftOut(named(campaign.record(attempt), "record").name, short(reason)))
            return
        is_ensemble = (folder / "ensemble.jsonl").is_file()
        if (folder / "events.jsonl").is_file() or ((folder / "recipe.toml").is_file() and not is_ensemble):
            yield named(folder, "record")
            return
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self.left_out.append(LeftOut(named(folder, "folder").name, f"cannot be read: {error.strerror}"))
            return
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from self.find(path, root, within)
            elif is_submission(path):
                yield named(path, "submission")
            elif path.suffix == ".json":
                yield named(path, "micro")

    def read(self, found: _Found, scratch: Path) -> None:
        """Read it, or name the reason why it cannot be used."""
        try:
            if found.kind == "submission":
                self._read_submission(found, scratch)
            elif found.kind == "micro":
                self._read_micro(found)
            else:
                self._read_record(found)
        except EnvironmentLacksError:
            raise
        except (HpcAi500Error, OSError, RecursionError, *ODD) as error:
            self._leave_out(found, error)

    def _leave_out(self, found: _Found, error: Exception) -> None:
        problem = str(error) if isinstance(error, HpcAi500Error) else f"{type(error).__name__} {error}"
        problem = problem.removeprefix(f"{found.path}: ").replace(f"{found.path}/", "")
        self.left_out.append(LeftOut(found.name, short(problem)))

    def _read_submission(self, found: _Found, scratch: Path) -> None:
        folder = scratch / str(len(self._seen))
        verified = open_verified(found.path, folder, Trust(self.signers))
        for one in self.find(verified.campaign, verified.campaign, found.name):
            self.read(one, scratch)
        shutil.rmtree(folder)

    def _is_new(self, found: _Found, content: str) -> bool:
        other = self._seen.setdefault(content, found.name)
        if other != found.name:
            self.left_out.append(LeftOut(found.name, f"the same as {other}: counted once"))
        return other == found.name

    def _read_record(self, found: _Found) -> None:
        path = found.path
        record = read_record(path)
        if record.status != "done":
            ending = path / "ERROR"
            text = ending.read_text(encoding="utf-8", errors="replace").strip() if ending.is_file() else ""
            raise RecordError(f"{path}: the run is not finished{f': {text}' if text else ''}")
        result = score(record)
        if not (path / "result.json").is_file():
            raise RecordError(f"{path}: not complete: result.json is missing")
        log = (path / "events.jsonl").read_bytes()
        if found.head is not None and last_hash(log) != found.head:
            raise WrongAnswerError(f"{path}: not the record in the campaign's {JOURNAL}: its last event differs")
        if backwards := [reason for reason in result.reasons if reason.startswith("the clock ran backwards")]:
            raise WrongAnswerError(f"{path}: {backwards[0]}: its times are wrong")
        if not self._is_new(found, line_hash(log.partition(b"\n")[0])):
            return
        first = record.events[0]
        boot = table(first["value"]).get("boot_id")
        self.observations.append(
            Observation(
                found.name,
                first["time_ms"],
                _group(record, result),
                {key: value for key, value in _values(record, result) if value is not None},
                self._nodes(record.system),
                _cluster(record.system),
                (short(boot, _MOST_NAME), float(first["clock_s"])) if boot else None,
            )
        )

    def _nodes(self, system: Mapping[str, Any]) -> dict[str, str]:
        """host -> hash of what is compared of it; the documents are kept once each."""
        installation = table(system.get("installation"))
        package, image = table(installation.get("package")), table(installation.get("image"))
        installed = {
            "version": package.get("version"),
            **{
                name: short(value, _HASH)
                for name, value in (("code", package.get("code_sha256")), ("image", image.get("content_sha256")))
                if value
            },
        }
        found = {}
        for node in tables(system.get("nodes")):
            document = {**{key: value for key, value in node.items() if key != "raw"}, "hpcai500": installed}
            fields = json.dumps(compared_fields(document), sort_keys=True)
            digest = hashlib.sha256(fields.encode()).hexdigest()
            self.documents.setdefault(digest, document)
            found[_host(node.get("host"))] = digest
        return found

    def _read_micro(self, found: _Found) -> None:
        file = read_ceilings(found.path, self.signers)
        if not self._is_new(found, hashlib.sha256(file.source.content).hexdigest()):
            return
        entries = {name: table(entry) for name, entry in file.document.items() if name in MICRO_UNITS}
        if not entries:
            raise UsageError(f"{found.path}: no measurement of hpcai500 micro is in it")
        first = next(iter(entries.values()))
        times = [one for entry in entries.values() if isinstance(one := entry.get("time_ms"), int)]
        if len(times) < len(entries) or not isinstance(first.get("hosts"), list):
            raise UsageError(
                f"{found.path}: does not say when and where it was measured: an older version wrote it; measure again"
            )
        hosts = [_host(host) for host in first["hosts"]]
        nodes = list(dict.fromkeys(hosts))
        group = Group(
            benchmark=MICRO, recipe="", data="", ranks=len(hosts), nodes=len(nodes), library="",
            hardware=short(first.get("device") or "device unknown", _MOST_NAME),
            host=nodes[0] if len(nodes) == 1 else "",
        )  # fmt: skip
        values: dict[tuple[str, str], float] = {}
        for metric, entry in entries.items():
            if entry.get("verified") is False:
                raise WrongAnswerError(f"{found.path}: {metric}: the result was wrong, so its speed does not count")
            value = number(entry.get("value"))
            if value is not None and value > 0:
                values["", metric] = value
            rates = [number(rate) for rate in entry.get("per_rank") or ()]
            if len(nodes) > 1 and len(rates) == len(hosts):
                for host in nodes:
                    own = [rate for rate, at in zip(rates, hosts, strict=True) if at == host and rate is not None]
                    if own:
                        values[host, metric] = sum(own)
        self.observations.append(Observation(found.name, max(times), group, values, dict.fromkeys(nodes, "")))


# ----------------------------------------------------------------------------------------------------
# The numbers of one record.


def _host(name: object) -> str:
    return short(name or "?", _MOST_NAME)


def _cluster(system: Mapping[str, Any]) -> str:
    names = (table(node.get("environment")).get("SLURM_CLUSTER_NAME") for node in tables(system.get("nodes")))
    return next((short(name, _MOST_NAME) for name in names if name), "")


def _group(record: Record, result: Result) -> Group:
    nodes = tables(record.system.get("nodes"))
    recipe = record.tables
    seedless = {**recipe, "hyperparameters": {**table(recipe.get("hyperparameters")), "seed": None}}
    data = last_value(record, "dataset")
    fingerprint = str(data.get("content_fingerprint") or data.get("fingerprint") or "unknown")
    processors = sorted({short(table(node.get("cpu")).get("Model name") or "processor unknown", 60) for node in nodes})
    devices = Counter(short(device.get("name"), 60) for node in nodes for device in tables(node.get("accelerators")))
    hardware = [*processors, *(f"{many} x {name}" for name, many in sorted(devices.items()))]
    # Another version of it is a change of software, which a trend shall show.
    library = re.sub(r"\s*\bv?\d[\w.+-]*", "", result.communication_library or "")
    return Group(
        benchmark=result.benchmark,
        recipe=tables_hash(seedless),
        data=f"{result.input} {fingerprint}",
        ranks=result.world_size,
        nodes=result.nodes,
        library=f"{result.backend} ({library})" if library else result.backend,
        hardware=", ".join(hardware) or "hardware unknown",
        host=_host(nodes[0].get("host")) if result.nodes == 1 and nodes else "",
    )


def _values(record: Record, result: Result) -> Iterator[tuple[tuple[str, str], float | None]]:
    epochs = table(record.tables.get("problem")).get("epochs")
    seconds = training_seconds(record.events)
    yield ("", "images_per_second"), result.images_per_second
    yield ("", "vflops"), result.vflops
    yield ("", "epoch_seconds"), seconds / epochs if isinstance(epochs, int) and epochs > 0 else None
    yield ("", "data_wait_fraction"), result.data_wait_fraction
    yield ("", "communication_fraction"), result.communication_fraction
    energy = result.energy_joules
    yield ("", "joules_per_image"), energy / result.images if energy is not None and result.images else None
    yield ("", "ceiling_flops"), number(last_value(record, "ceilings").get("flops"))
    own = own_seconds(record, "node" if result.nodes > 1 else "rank")
    ordered = sorted(own.values())
    for name, one in own.items():
        others = median_without(ordered, ordered.index(one)) if len(ordered) > 1 else 0.0
        yield (short(name, _MOST_NAME), STEP_RATIO), one / others if others > 0 else None


# ----------------------------------------------------------------------------------------------------
# Which were made when, and on which machine.


def _placed(
    observations: Sequence[Observation], left_out: list[LeftOut], now_ms: int
) -> tuple[list[Observation], list[str]]:
    """The observations in the order of time.

    A wall clock may be set back, or start in 1970; the time since boot may not. Records of one boot whose wall clocks
    disagree with most of them are placed by the time since boot.
    """
    of_boots: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        if one.boot:
            of_boots[one.boot[0]].append(one)
    notes, placed = [], []
    for one in observations:
        boot, moved = one.boot, one
        alike = of_boots[boot[0]] if boot else []
        if boot and len(alike) > 2:
            started = statistics.median_low(_boot_second(other) for other in alike)
            agree = [other for other in alike if abs(_boot_second(other) - started) <= _MOST_OFFSET_SECONDS]
            off = _boot_second(one) - started
            if abs(off) > _MOST_OFFSET_SECONDS and len(agree) > len(alike) / 2:
                moved = replace(one, time_ms=round((started + boot[1]) * 1000))
                notes.append(
                    f"{one.name}: its clock was {duration(abs(off))} {'ahead' if off > 0 else 'behind'}, by the time "
                    f"since boot of {count(len(agree), 'other record')}: placed at {moment(moved.time_ms)}"
                )
        elif boot and len(alike) == 2 and abs(_boot_second(alike[0]) - _boot_second(alike[1])) > _MOST_OFFSET_SECONDS:
            notes.append(
                f"{one.name}: the clock was set between {alike[0].name} and {alike[1].name}: one time is wrong"
            )
        if moved.time_ms > now_ms + _FUTURE_MS:
            left_out.append(LeftOut(one.name, f"its clock shows {moment(one.time_ms)}, which is in the future"))
        elif moved.time_ms < _EARLIEST_MS:
            left_out.append(LeftOut(one.name, f"its clock shows {moment(one.time_ms)}: it was not set"))
        else:
            placed.append(moved)
    return sorted(placed, key=lambda one: (one.time_ms, one.name)), notes


def _boot_second(one: Observation) -> float:
    """When the machine was started, by its wall clock (UNIX seconds)."""
    return one.time_ms / 1000 - (one.boot[1] if one.boot else 0.0)


def _of_one_machine(observations: Sequence[Observation], left_out: list[LeftOut]) -> list[Observation]:
    """Those of the machine that most are of: the same cluster, or hosts with the same names but for numbers."""
    if not observations:
        return []
    machines = [one.cluster or " ".join(sorted(_stems(one))) for one in observations]
    usual = Counter(machines).most_common(1)[0][0]
    members = [one for one, machine in zip(observations, machines, strict=True) if machine == usual]
    cluster, stems = members[0].cluster, {stem for one in members for stem in _stems(one)}
    kept = []
    for one in observations:
        if one.cluster == cluster if one.cluster and cluster else _stems(one) & stems or not one.nodes:
            kept.append(one)
        else:
            where = f"of cluster {one.cluster}" if one.cluster and cluster else f"on {listed(list(one.nodes)[:4])}"
            left_out.append(LeftOut(one.name, f"{where}: another machine than that of most records ({usual})"))
    return kept


def _stems(one: Observation) -> set[str]:
    return {host_stem(host) for host in one.nodes}
