"""What every run tells, so that its absence is no chance: whoever takes evidence out leaves a hole."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME = "evidence"
# Written one after the other, once the clock has stopped; a run that is killed among them has come to its end.
_AT_THE_END = ("steps", "communication", "power")


def check_evidence(run: Run) -> Iterator[Finding]:
    """Events that the software which wrote this record writes in every run, whatever it measures."""
    if not run.log.leaves_evidence:
        return
    yield from judged(_NAME, _before_training(run), fail)
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
