"""Computes the facts of a campaign for its manifest: the claim, and the system that its records describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

from hpcai500.campaign.journal import Campaign
from hpcai500.campaign.standing import FOLDER_MISSING, standing
from hpcai500.errors import RecordError, UsageError
from hpcai500.methodology.result import Result
from hpcai500.record import Record, iterate, read_record
from hpcai500.results.score import summarise_trials
from hpcai500.results.submission.manifest import Claim, Metric
from hpcai500.text import counted, table

LEVELS = ("hardware", "system", "free")
"""The strictest first."""
_LONGEST = 1000

Level = Literal["hardware", "system", "free"]


def claim_of(campaign: Campaign) -> Claim:
    """Compute level, metrics and whether the campaign is rankable, all from the records' events."""
    state = standing(campaign)
    metrics = summarise_trials(state.results) if state.results else {}
    return Claim(
        level=level_of(state.results),
        rankable=state.rankable,
        reasons=[plain(reason) for reason in state.reasons],
        metrics={name: Metric(**asdict(summary)) for name, summary in metrics.items()},
    )


def level_of(results: Sequence[Result]) -> Level | None:
    """Return the strictest level that allows all of `results`; None if none does, or without results."""
    levels = [result.level for result in results]
    if not levels or any(level not in LEVELS for level in levels):
        return None
    return cast(Level, max(levels, key=lambda level: LEVELS.index(str(level))))


def with_level(claim: Claim, level: Level | None, place: str) -> Claim:
    """Return `claim` with `level`, which may be looser than the one computed from the recipes; None changes nothing.

    Changed code can need a looser level, which records do not show. `place` is named in errors.

    Raises:
        UsageError: `level` is stricter than what the recipes need.
    """
    if level is None or level == claim.level:
        return claim
    if claim.level is None:
        raise UsageError(
            f"{place}: --level {level}: no level allows what its recipe changes: see `hpcai500 rules {place}`"
        )
    if LEVELS.index(level) < LEVELS.index(claim.level):
        raise UsageError(
            f"{place}: --level {level} is stricter than {claim.level}, which its recipe needs: leave --level out, or "
            f"see `hpcai500 rules {place}`"
        )
    return claim.model_copy(update={"level": level})


def done_records(campaign: Campaign) -> list[Record]:
    """Read the records of finished runs.

    Raises:
        UsageError: no run is finished, or the folder of one is missing.
        RecordError: a record cannot be read.
    """
    done = campaign.done()
    if not done:
        raise UsageError(f"{campaign.path}: no run is finished: see `hpcai500 campaign status {campaign.path}`")
    for attempt in done:
        if not campaign.record(attempt).is_dir():
            raise UsageError(f"{campaign.path}: {attempt.name}: {attempt.record}: {FOLDER_MISSING}")
    return [read_record(campaign.record(attempt)) for attempt in done]


def package_of(record: Record) -> Mapping[str, Any]:
    """Version and hashes of the software that ran; empty if the record lacks them."""
    return table(table(record.system.get("installation")).get("package"))


def image_of(record: Record) -> str | None:
    """Hash of the content of the container image; None without one."""
    found = table(table(record.system.get("installation")).get("image")).get("content_sha256")
    return found if isinstance(found, str) else None


def accelerators_of(record: Record) -> str:
    """`16 x NVIDIA H100 80GB HBM3`; for a run without accelerators, `none` and the processors."""
    nodes = _nodes(record)
    devices = counted(str(device.get("name")) for node in nodes for device in node.get("accelerators") or [])
    if devices:
        return plain(", ".join(devices))
    processors = counted(
        model for node in nodes if (model := table(node.get("cpu")).get("Model name")) for _ in range(_sockets(node))
    )
    return plain(f"none ({', '.join(processors) or 'processors unknown'})")


def framework_of(record: Record) -> str:
    """`PyTorch 2.13.0, NCCL 2.29.2`."""
    node: Mapping[str, Any] = next(iter(_nodes(record)), {})
    torch = table(node.get("software")).get("torch")
    start = next(iterate(record.events, "run_start"), None)
    world = table(start["value"]) if start else {}
    library = world.get("library") if world.get("world_size", 1) != 1 else None
    names = [f"PyTorch {torch}" if torch else "unknown", library if library and library != "none" else None]
    return plain(", ".join(str(name) for name in names if name))


def plain(text: str) -> str:
    """Return `text` as one printable line, cut to the length that a manifest allows."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())[:_LONGEST].strip()


def require_one_code(campaign: Campaign, records: Iterable[Record], ours: str, package: Path) -> None:
    """Refuse to pack sources that are not those that ran.

    `ours` is the code hash of the sources in `package`, which would be packed.

    Raises:
        UsageError: a record was made by other sources.
    """
    for record in records:
        ran = package_of(record).get("code_sha256")
        if ran is not None and ran != ours:
            version = package_of(record).get("version")
            raise UsageError(
                f"{record.path}: was run by hpcai500 {version} with the code {str(ran)[:12]}…, but {package} has "
                f"{ours[:12]}…: run `hpcai500 submit` in the installation or image that ran the campaign "
                f"(`apptainer exec IMAGE hpcai500 submit {campaign.path} …`)"
            )


def _sockets(node: Mapping[str, Any]) -> int:
    found = table(node.get("processor")).get("sockets")
    return found if isinstance(found, int) and 0 < found <= 64 else 1


def _nodes(record: Record) -> list[Mapping[str, Any]]:
    nodes = record.system.get("nodes")
    if not isinstance(nodes, list):
        raise RecordError(f"{record.path / 'system.json'}: describes no node")
    return [table(node) for node in nodes]
