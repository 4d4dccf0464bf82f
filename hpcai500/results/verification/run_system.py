"""Checks of where a run ran: ranks, hosts and devices, replicas of the weights, and the processes' environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcai500.interpreter import NOT_HEEDED
from hpcai500.methodology.events import (
    Ceilings,
    Communication,
    CommunicationRow,
    Moment,
    Replicas,
    Steps,
    StepsRow,
    World,
)
from hpcai500.results.verification.context import Run, one_finding
from hpcai500.results.verification.facts import Facts, nodes, values
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning
from hpcai500.system.software import effects, tuning

# ----------------------------------------------------------------------------------------------------
# Ranks: all events have the numbers of ranks and hosts that the recipe asks for.


_RANKS, _REPLICAS = "ranks", "replicas"


def check_ranks(run: Run) -> Iterator[Finding]:
    """Compare ranks, nodes and hosts of recipe, events and system."""
    faults = [*_recipe_faults(run)]
    for session in run.log.sessions:
        faults += _session_faults(session)
    yield from one_finding(_RANKS, [*faults, *_system_faults(run), *_device_faults(run)], fail)
    yield from one_finding(_RANKS, _device_oddities(run), warning)


def check_replicas(run: Run) -> Iterator[Finding]:
    """Check the evidence of synchronous SGD: after each epoch, all ranks had the same, new weights."""
    events = run.log.values(Replicas, "replicas")
    missing = sorted(run.passes.keys() - {one.epoch for one in events})
    if missing:
        what = f"epoch {missing[0]}: no event replicas ({len(missing)} of {len(run.passes)} epochs)"
        yield fail(_REPLICAS, what) if run.log.leaves_evidence else warning(_REPLICAS, f"{what}: an older version")
    yield from one_finding(_REPLICAS, _replica_faults(events), fail)


def _recipe_faults(run: Run) -> Iterator[str]:
    started = next(run.log.named("run_start")).value_as(World)
    if started.world_size != run.world_size:
        yield f"started on {started.world_size} ranks; the recipe asks for {run.world_size}"
    if started.nodes != run.field("hardware", "nodes"):
        yield f"started on {started.nodes} nodes; the recipe asks for {run.field('hardware', 'nodes')}"


def _session_faults(session: Sequence[Moment]) -> Iterator[str]:
    world = next((one.value_as(World) for one in session if one.key in ("run_start", "run_resume")), None)
    if world is None:
        return
    size, hosts = world.world_size, world.hosts
    if hosts and (len(set(hosts)) != len(hosts) or len(hosts) != world.nodes):
        yield f"{world.nodes} nodes with the hosts {', '.join(hosts[:8])}"
    for moment in session:
        match moment.key:
            case "ceilings" if moment.value_as(Ceilings).ranks != size:
                yield f"ceilings of {moment.value_as(Ceilings).ranks} ranks, {size} trained"
            case "replicas" if moment.value_as(Replicas).ranks != size:
                yield f"replicas of {moment.value_as(Replicas).ranks} ranks, {size} trained"
            case "steps":
                yield from _row_faults("steps", moment.value_as(Steps).ranks, world)
            case "communication":
                yield from _row_faults("communication", moment.value_as(Communication).ranks, world)


def _row_faults(key: str, rows: Sequence[StepsRow] | Sequence[CommunicationRow], world: World) -> Iterator[str]:
    """Check that each rank has one row, on one of the hosts, and that each host has a rank."""
    ranks = sorted(row.rank for row in rows)
    if ranks != list(range(world.world_size)):
        yield f"{key} has {len(ranks)} ranks, {world.world_size} trained"
    found = {row.host for row in rows}
    if world.hosts and found != set(world.hosts):
        odd = sorted(found ^ set(world.hosts))
        yield f"{key} and the run's start differ in the hosts {', '.join(odd[:8])}"


def _described(run: Run) -> Iterator[tuple[World, Sequence[Facts]]]:
    """Yield the world of each process that trained, and the nodes that it described."""
    for session, world in zip(run.log.trained, run.log.worlds, strict=True):
        for event in run.record.events[session[0].line - 1 : session[-1].line]:
            if event["key"] == "system":
                yield world, nodes(replace(run.record, system=event["value"]))


def _system_faults(run: Run) -> Iterator[str]:
    """Check that the nodes that a process described are its hosts."""
    for world, described in _described(run):
        names, hosts = sorted(str(node.get("host")) for node in described), sorted(world.hosts)
        if hosts and names != hosts:
            yield f"the system has {', '.join(names[:8]) or 'no node'}; the ranks were on {', '.join(hosts[:8])}"


def _device_faults(run: Run) -> Iterator[str]:
    """Check that each rank of a node has its own device, and that a device is in one node."""
    if run.field("accelerator", "device") != "cuda":
        return
    for world, described in _described(run):
        owners: dict[str, list[str]] = {}
        for node in described:
            host, devices = str(node.get("host")), node.get("accelerators") or []
            if not devices:
                yield f"{host} has no accelerator, but the recipe's device is cuda"
            for device in devices:
                if device.get("uuid") is not None:
                    owners.setdefault(str(device["uuid"]), []).append(host)
            # If the launcher shows each rank only its own device, rank 0 of a node sees one.
            ranks = world.world_size // world.nodes
            if 1 < len(devices) < ranks:
                yield f"{host} has {len(devices)} accelerators for {ranks} ranks"
        for uuid, hosts in owners.items():
            if len(hosts) > 1:
                yield f"one accelerator is listed {len(hosts)} times, on {', '.join(dict.fromkeys(hosts))}: {uuid}"


def _device_oddities(run: Run) -> Iterator[str]:
    ranks = run.field("hardware", "accelerators_per_node")
    if run.field("accelerator", "device") == "cuda" and ranks > 1:
        alone = {
            str(node.get("host")): None
            for _, described in _described(run)
            for node in described
            if len(node.get("accelerators") or []) == 1
        }
        for host in alone:
            yield f"{host} lists one accelerator for {ranks} ranks: each rank saw only its own, or they shared one"


def _replica_faults(events: Sequence[Replicas]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for one in events:
        if (one.digest is None) != (one.ranks == 1):
            yield f"epoch {one.epoch}: {one.ranks} ranks, but {'no' if one.digest is None else 'a'} digest"
        if one.digest is not None:
            before = seen.setdefault(one.digest, one.epoch)
            if before != one.epoch:
                yield f"epochs {before} and {one.epoch} end with the same weights ({one.digest})"


# ----------------------------------------------------------------------------------------------------
# Environment: variables and preloaded libraries that change arithmetic, clocks or code.


_ENVIRONMENT = "environment"
_MOST_HOSTS = 4
# Nearly every cluster sets it; it can replace any library that is loaded by name.
_LIBRARY_PATH = "LD_LIBRARY_PATH"


def check_environment(run: Run) -> Iterator[Finding]:
    """Check variables and preloaded libraries of each node, at each start; `check_evidence` requires them."""
    without: list[str] = []
    found: dict[str, list[str]] = {}
    tuned: set[str] = set()
    ignored: set[str] = set()
    sets_path = False
    for value in values(run.record, "system"):
        for node in nodes(replace(run.record, system=value)):
            host = str(node.get("host"))
            if "environment" not in node or "preloaded" not in node:
                without.append(host)
                continue
            for what in _influences(node["environment"], node["preloaded"]):
                found.setdefault(what, []).append(host)
            tuned |= tuning(node["environment"])
            ignored |= set(filter(None, str(node["environment"].get(NOT_HEEDED, "")).split(", ")))
            sets_path |= _LIBRARY_PATH in node["environment"]
    yield from one_finding(_ENVIRONMENT, [f"{what} on {_named(hosts)}" for what, hosts in found.items()], warning)
    if without:
        yield skipped(_ENVIRONMENT, f"no variables and preloaded libraries in the record: {_named(without)}")
    elif not found:
        others = f"; tuning variables: {', '.join(sorted(tuned))}" if tuned else ""
        others += f"; set, but ignored by the run: {', '.join(sorted(ignored))}" if ignored else ""
        libraries = f"; {_LIBRARY_PATH} is set" if sets_path else ""
        yield note(
            _ENVIRONMENT,
            f"no library is preloaded, no known variable changes arithmetic, clocks or code{libraries}{others}",
        )


def _influences(environment: Mapping[str, Any], preloaded: Any) -> list[str]:
    found = [f"{name}={environment[name]}, which {effect}," for name, effect in effects(environment).items()]
    if preloaded is None:
        found.append("unknown preloaded libraries")
    elif preloaded:
        found.append(f"{', '.join(preloaded)}, loaded before Python's own libraries,")
    return found


def _named(hosts: list[str]) -> str:
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
    return ", ".join(names[:_MOST_HOSTS]) + more
