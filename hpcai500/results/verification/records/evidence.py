"""What every run tells, so that its absence is no chance: whoever takes evidence out leaves a hole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500 import __version__
from hpcai500.methodology.integrity.log import Moment
from hpcai500.methodology.integrity.values import Company
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME = "evidence"
# Written one after the other, once the clock has stopped; a run that is killed among them has come to its end.
_AT_THE_END = ("steps", "communication", "power")
# Of the event `dataset`, what our own benchmarks tell beyond what a plug-in must.
_OF_DATASET = {
    "ic": ("root", "content_fingerprint", "synthetic", "classes", "classes_not_evaluated"),
    "ewa": ("root", "content_fingerprint", "synthetic", "classes", "classes_not_evaluated", "grid"),
}
_OF_PACKAGE = ("version", "code_sha256", "core_sha256")
_OF_NODE = ("host", "processor", "memory", "accelerators", "software", "environment", "preloaded", "container")
_OF_ACCELERATOR = ("name", "memory_bytes", "uuid")


def check_evidence(run: Run) -> Iterator[Finding]:
    """Events that the software which wrote this record writes in every run, whatever it measures."""
    if not run.log.leaves_evidence:
        return
    yield from judged(_NAME, [*_before_training(run), *_untold(run)], fail)
    yield from judged(_NAME, _unknown(run), warning)
    expected = [key for key in _AT_THE_END if key != "communication" or run.log.companies[-1].world_size > 1]
    told = [moment.key for moment in run.log.moments if moment.key in expected]
    if told == expected:
        return
    evidence = f"after its end it tells of {', '.join(told) or 'nothing'}; expected {', '.join(expected)}, each once"
    if told == expected[: len(told)]:
        yield warning(_NAME, f"{evidence}: it was killed there, or the rest was taken out")
    else:
        yield fail(_NAME, evidence)


def _before_training(run: Run) -> Iterator[str]:
    """What each process says before it trains."""
    for number, start in enumerate(run.log.starts, 1):
        if "boot_id" not in start.model_fields_set:
            yield f"start {number} does not tell which start of its machine it is of (boot_id)"
    # Synchronised batch norm and stages talk within a step: without it, no step could be compared.
    tables = run.record.tables
    talks = tables["workload"].get("norm") == "sync-batch" or tables["programming"].get("stages", 1) > 1
    for session, company in zip(run.log.trained, run.log.companies, strict=False):
        told = {moment.key for moment in session}
        for key in ("rehearsal", *(() if talks else ("parallel_efficiency",))):
            if company.world_size > 1 and key not in told:
                yield f"line {session[0].line}: {company.world_size} ranks, and no event {key} of this process"


def _unknown(run: Run) -> Iterator[str]:
    """What this version finds out on every machine that we know."""
    for number, start in enumerate(run.log.starts, 1):
        if start.version == __version__ and start.boot_id is None:
            yield f"start {number} has no boot ID, so its clocks cannot be compared"
    for node in run.record.system["nodes"] if run.log.starts[-1].version == __version__ else []:
        if any(device.get("uuid") is None for device in node["accelerators"]):
            yield f"{node['host']} has an accelerator without a UUID, so it cannot be checked that each is counted once"


def _untold(run: Run) -> Iterator[str]:
    """Fields that processes of this very version write, and that are not in the record.

    Older versions lack some fields and are not checked. A version that is not installed is not ranked.
    """
    benchmark = str(run.record.tables.get("benchmark"))
    for session, start in zip(run.log.sessions, run.log.starts, strict=True):
        if start.version != __version__:
            continue
        for moment in session:
            missing = list(moment.value.untold()) if moment.value else []
            if moment.key == "dataset" and moment.value:
                told = moment.value.model_fields_set
                missing += [name for name in _OF_DATASET.get(benchmark, ()) if name not in told]
            if missing:
                yield f"line {moment.line}: {moment.key} does not tell {', '.join(missing)}"
        yield from _untold_system(session, run.record.events[session[0].line - 1 : session[-1].line])


def _untold_system(session: Sequence[Moment], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each process that trains describes all of its nodes, and the software that ran."""
    company = next((one.told(Company) for one in session if one.key in ("run_start", "run_resume")), None)
    if company is None:
        return
    described = [event for event in events if event["key"] == "system"]
    if len(described) != 1:
        yield f"line {session[0].line}: its process describes its system {len(described)} times; expected once"
        return
    line, system = described[0]["seq"] + 1, described[0]["value"]
    package = system["installation"]["package"]
    if missing := [name for name in _OF_PACKAGE if not package.get(name)]:
        yield f"line {line}: the system's package does not tell {', '.join(missing)}"
    if len(system["nodes"]) != company.nodes:
        yield f"line {line}: {len(system['nodes'])} nodes are described; {company.nodes} trained"
    for node in system["nodes"]:
        missing = [name for name in _OF_NODE if name not in node]
        missing += [
            f"accelerators.{name}" for one in node["accelerators"] for name in _OF_ACCELERATOR if name not in one
        ]
        if missing:
            yield f"line {line}: the node {node.get('host')} does not tell {', '.join(dict.fromkeys(missing))}"
