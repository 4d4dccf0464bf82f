"""What the collecting job asks: which members are missing and may be run again, and on which hosts better not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.chain import iterate
from hpcai500.ensemble.reading import FAILURES, Ensemble
from hpcai500.ensemble.retrying import MOST_FAILURES
from hpcai500.ensemble.running import is_done
from hpcai500.ensemble.slurm_failures import MOST_NODES, MOST_ON_A_HOST, OF_THE_NODE
from hpcai500.ensemble.slurm_jobs import standing
from hpcai500.errors import ExitCode, RecordError
from hpcai500.record import read_record


@dataclass(frozen=True)
class Failure:
    """A failure of a member's own, as its batch script wrote it down.

    Attributes:
        hosts: all that the member ran on.
        exit_code: of its ranks.
        job: the array that it was an element of.
    """

    hosts: tuple[str, ...]
    exit_code: int
    job: str


@dataclass(frozen=True)
class Again:
    """What is left to do after all elements have ended.

    Attributes:
        members: that may be run again.
        at_once: members side by side at most, as before.
        exclude: hosts that must not be used.
    """

    members: Sequence[int] = ()
    at_once: int | None = None
    exclude: Sequence[str] = ()


def again_after(ensemble: Ensemble, collector: str) -> Again:
    """What may be run again behind the job `collector`: once, and only where it belongs to the last submission.

    Raises:
        RecordError: what a member has left cannot be read.
    """
    last = standing(ensemble)
    if last is None or last.collector != collector or last.after:
        return Again()
    missing = [member for member in last.members if not is_done(ensemble, member)]
    arrays = last.arrays.values()
    told = {member: failures(ensemble.folder(member) / FAILURES, arrays) for member in last.members}
    members = [member for member in missing if not _is_given_up(told[member])]
    if not members:
        return Again()
    everyone = [failure for member in last.members for failure in told[member]]
    return Again(members, last.at_once, list(dict.fromkeys([*last.exclude, *_bad_hosts(ensemble, everyone)])))


def failures(path: Path, jobs: Iterable[str]) -> list[Failure]:
    """The failures in the file `path` that happened in one of `jobs`; a line that a crash cut off tells nothing.

    Raises:
        RecordError: the file cannot be read, or holds something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        found = [Failure(tuple(row["host"].split(",")), int(row["exit_code"]), str(row["job"])) for row in rows]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: a line is none of a failed member: {type(error).__name__} {error}") from error
    wanted = set(jobs)
    return [failure for failure in found if failure.job in wanted]


def _is_given_up(told: Sequence[Failure]) -> bool:
    codes = [failure.exit_code for failure in told]
    of_nodes = sum(code in OF_THE_NODE for code in codes)
    return ExitCode.WRONG_ANSWER in codes or len(codes) >= MOST_FAILURES or of_nodes >= MOST_NODES


def _bad_hosts(ensemble: Ensemble, told: Sequence[Failure]) -> list[str]:
    """Hosts where members have failed, if enough others are known to run one."""
    counts = Counter(host for failure in told for host in failure.hosts)
    bad = sorted(host for host, count in counts.items() if count >= MOST_ON_A_HOST)
    if not bad:
        return []
    known = set(counts) | {host for member in ensemble.members for host in _hosts_of_done(ensemble, member)}
    return bad if len(known - set(bad)) >= ensemble.shape.nodes_a_member else []


def _hosts_of_done(ensemble: Ensemble, member: int) -> Sequence[str]:
    campaign = ensemble.campaign(member)
    if campaign is None or not campaign.done():
        return ()
    events = read_record(campaign.record(campaign.done()[0])).events
    return [str(host) for event in iterate(events, "run_start") for host in event["value"].get("hosts", ())]
