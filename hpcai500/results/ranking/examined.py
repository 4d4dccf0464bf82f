"""Files that claim to be submissions, each verified; whatever one of them does, the next one is looked at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.heads import GivenHeads
from hpcai500.campaign.reading import Campaign
from hpcai500.errors import EnvironmentLacksError, HpcAi500Error, RunError, UsageError
from hpcai500.progress import Tracker, silent
from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.report.words import table
from hpcai500.results.same_runs import Runs, run_facts
from hpcai500.results.submission.signature import require_signers
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding, Verification

_MOST_NAME = 40
_MOST_PROBLEM = 400


@dataclass(frozen=True)
class Facts:
    """What a ranking shows of a submission beyond its verification.

    Attributes:
        manifest_sha256: hash of the manifest, which holds those of all other files: it names the submission.
        precision: of the recipe (layer 4).
        compression: of gradients between ranks (layer 3); None where there is none.
        report: the page about its runs; None where none was asked for, or there is none.
        report_problem: why there is none although one was asked for.
        runs: what its done runs tell that no others do, by their names.
    """

    manifest_sha256: str
    precision: str | None = None
    compression: str | None = None
    report: str | None = None
    report_problem: str | None = None
    runs: Runs = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """One file.

    Attributes:
        file: where it lies.
        verification: all that was found; None where it could not be verified.
        problem: why it could not.
        facts: None where it could not be read that far.
    """

    file: Path
    verification: Verification | None = None
    problem: str | None = None
    facts: Facts | None = None


ReportMaker = Callable[[Campaign], str]


def examine(
    files: Sequence[Path],
    *,
    signers: Path | None = None,
    heads: GivenHeads | None = None,
    make_report: ReportMaker | None = None,
    tracker: Tracker = silent,
    told: Callable[[Examined], None] = lambda _: None,
) -> list[Examined]:
    """Verify each of `files`.

    Args:
        files: what `hpcai500 submit` wrote, or something that says so.
        signers: OpenSSH file of keys that are vouched for.
        heads: of journals, as they were given while campaigns ran.
        make_report: writes the page about a campaign while its submission is open.
        tracker: shows how far each is.
        told: is called with each file when it was looked at.

    Raises:
        UsageError: none of them exists, or `signers` is no list of signers.
        EnvironmentLacksError, RunError: this machine cannot verify anything, or its disk is full.
    """
    if signers is not None:
        # Here, as what is raised by one file keeps none of the others from being looked at.
        require_signers(signers)
    if files and not any(path.is_file() for path in files):
        raise UsageError(f"{files[0]}: no such file; give what `hpcai500 submit CAMPAIGN -o FILE` wrote")
    found = []
    for path in files:
        found.append(_examined(path, signers, heads, make_report, tracker))
        told(found[-1])
    return found


def facts_of(manifest: bytes, tables: Mapping[str, Any]) -> Facts:
    """From the manifest's bytes and the campaign's recipe, in which anything may stand."""
    accelerator, communication = table(tables.get("accelerator")), table(tables.get("communication"))
    compression = communication.get("compression")
    return Facts(
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
        precision=shown(accelerator["precision"], _MOST_NAME) if "precision" in accelerator else None,
        compression=shown(compression, _MOST_NAME) if compression not in (None, "none") else None,
    )


def _examined(
    path: Path, signers: Path | None, heads: GivenHeads | None, make_report: ReportMaker | None, tracker: Tracker
) -> Examined:
    from hpcai500.results.verification.verify import verify_submission  # noqa: PLC0415 - --published needs none of it

    collector = _Collector(make_report)
    try:
        verification = verify_submission(path, signers=signers, heads=heads, more_checks=(collector,), tracker=tracker)
    except (EnvironmentLacksError, RunError):
        # A full disk here, for instance: it would be the same with all others, and is nobody's fault who submitted.
        raise
    except HpcAi500Error as error:
        return Examined(path, problem=shown(error, _MOST_PROBLEM))
    except OSError as error:
        return Examined(path, problem=shown(f"cannot be read: {error.strerror or error}", _MOST_PROBLEM))
    except Exception as error:  # noqa: BLE001 - no file may keep the others from being ranked
        return Examined(path, problem=shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM))
    facts = collector.facts
    if facts and verification.verdict == "refused":
        # Its pages would say PASS of what does not hold.
        facts = replace(facts, report=None)
    return Examined(path, verification, facts=facts)


class _Collector:
    """Goes along with the checks of one verification, while its files lie open, and finds nothing wrong."""

    def __init__(self, make_report: ReportMaker | None) -> None:
        self._make_report = make_report
        self.facts: Facts | None = None

    def __call__(self, context: Context) -> Iterable[Finding]:
        runs = {name: run_facts(record) for name, record in context.done.items()}
        self.facts = replace(facts_of(context.submission.manifest_bytes, context.campaign.tables), runs=runs)
        if self._make_report:
            self.facts = replace(self.facts, **_reported(context.campaign, self._make_report))
        return ()


def _reported(campaign: Campaign, make_report: ReportMaker) -> dict[str, Any]:
    try:
        return {"report": make_report(campaign)}
    except Exception as error:  # noqa: BLE001 - a page that cannot be made is no finding against a submission
        return {"report_problem": shown(f"{type(error).__name__}: {error}", _MOST_PROBLEM)}
