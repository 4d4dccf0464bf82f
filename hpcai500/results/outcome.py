"""What a command says about the runs that it made or scored: one verdict, for people, for harnesses, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import is_campaign, read_campaign
from hpcai500.campaign.standing import Standing, standing
from hpcai500.errors import ExitCode, RecordError
from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.record import json_object
from hpcai500.results.score import summarise_trials, why_no_mean
from hpcai500.results.show import figure_of_merit_lines, image_lines, summary_lines, trial_lines


@dataclass(frozen=True)
class RunOutcome:
    """One run: its record, and its result or why there is none."""

    record: Path
    result: Result | None = None
    error: str | None = None
    exit_code: int = ExitCode.PASS

    @property
    def system(self) -> Mapping[str, Any]:
        """What the record says of the machine and the software."""
        path = self.record / "system.json"
        return json_object(path) if path.is_file() else {}


@dataclass(frozen=True)
class CampaignOutcome:
    """The campaign that runs are of: its folder, its identity, and whether it may be ranked."""

    folder: Path
    identity: str
    standing: Standing

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "path": str(self.folder),
            "identity": self.identity,
            "rankable": self.standing.rankable,
            "reasons": list(self.standing.reasons),
        }


@dataclass(frozen=True)
class CommandOutcome:
    """All runs of a command, and the error that ended it, if one did."""

    runs: Sequence[RunOutcome]
    error: str | None = None
    error_code: int = ExitCode.PASS

    @property
    def exit_code(self) -> int:
        """That of the first failure; else 2 when a quality was missed; else 0."""
        failures = [code for code in (*(run.exit_code for run in self.runs), self.error_code) if code != ExitCode.PASS]
        if failures:
            return failures[0]
        return ExitCode.PASS if all(_passed(run.result) for run in self.runs) else ExitCode.WRONG_ANSWER

    @property
    def verdict(self) -> str:
        """PASS; FAIL for an answer that is wrong; INVALID when there is no answer."""
        if all(run.result for run in self.runs) and self.error is None:
            return "PASS" if self.exit_code == ExitCode.PASS else "FAIL"
        return "FAIL" if self.exit_code == ExitCode.WRONG_ANSWER else "INVALID"

    def lines(self) -> Iterator[str]:
        """For people, with the stable lines for harnesses last."""
        no_mean = self._why_no_mean()
        for run in self.runs:
            if run.record.exists():
                yield f"record      {run.record}"
            if run.error:
                yield f"error       {run.error}"
            if run.result:
                yield from summary_lines(run.result)
                yield from image_lines(run.system)
        if no_mean:
            yield f"no mean: {no_mean}"
        elif not all(run.result for run in self.runs):
            pass  # a harness would take what is left for the whole
        elif len(self._good) > 1:
            yield from trial_lines(self._summaries())
        elif self._good:
            yield from figure_of_merit_lines(self._good[0])
        campaign = self._campaign
        if campaign:
            yield f"campaign    {campaign.folder}, identity {campaign.identity}"
        if reasons := campaign.standing.reasons if campaign else self._reasons:
            yield f"HPCAI500 NOTE not rankable: {'; '.join(reasons)}"
        for result in self._good:
            if not _passed(result):
                quality = result.quality
                yield f"FAILED: {quality.metric} {quality.achieved} is below the target {quality.target:g}"
        yield f"HPCAI500 RESULT {self.verdict}"

    def document(self) -> dict[str, Any]:
        """For programs: `result.json` for one good run, a summary of all for anything else."""
        if len(self.runs) == 1 and self.error is None and self.runs[0].result:
            return self.runs[0].result.as_json()
        return {
            "verdict": self.verdict,
            "exit_code": int(self.exit_code),
            "error": self.error,
            "runs": [
                {
                    "record": str(run.record),
                    "exit_code": int(run.exit_code),
                    "error": run.error,
                    "result": run.result.as_json() if run.result else None,
                }
                for run in self.runs
            ],
            "trials": {name: asdict(summary) for name, summary in self._summaries().items()},
            "no_mean": self._why_no_mean(),
            "campaign": self._campaign.document() if self._campaign else None,
        }

    @property
    def _good(self) -> list[Result]:
        return [run.result for run in self.runs if run.result]

    @property
    def _reasons(self) -> Sequence[str]:
        """Why the first run that is not rankable is not."""
        return next((result.reasons for result in self._good if not result.rankable), ())

    @cached_property
    def _campaign(self) -> CampaignOutcome | None:
        """The campaign whose finished runs these are, all of them and no others."""
        finished = [run.record for run in self.runs if run.result]
        folders = {record.parent for record in finished}
        if len(folders) != 1 or not is_campaign(folder := folders.pop()):
            return None
        try:
            campaign = read_campaign(folder)
        except RecordError:
            return None  # records were named one by one: nobody has asked for what is around them
        if {campaign.record(attempt) for attempt in campaign.done()} != set(finished):
            return None
        return CampaignOutcome(folder, campaign.identity, standing(campaign, self._good[0].edition))

    def _why_no_mean(self) -> str | None:
        return why_no_mean([run.record for run in self.runs if run.result]) if len(self._good) > 1 else None

    def _summaries(self) -> dict[str, TrialSummary]:
        return summarise_trials(self._good) if len(self._good) > 1 and not self._why_no_mean() else {}


def _passed(result: Result | None) -> bool:
    if result is None or result.quality.achieved is None:
        return False
    return result.quality.achieved >= result.quality.target
