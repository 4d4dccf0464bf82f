"""From a request to the scripts of an ensemble: plan, site and recipe are held against each other first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from hpcai500.ensemble.reading import Ensemble, parse_members
from hpcai500.ensemble.running import is_done
from hpcai500.ensemble.slurm_again import again_after
from hpcai500.ensemble.slurm_jobs import submissions
from hpcai500.ensemble.slurm_order import FOLDER, MEMBER, SITE, SUBMIT, Submission
from hpcai500.ensemble.slurm_scripts import scripts
from hpcai500.errors import DataError, RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.hostlist import expand_hosts
from hpcai500.launch.site import NO_CONTAINER, Site, load_site
from hpcai500.launch.slurm_job import check_site, with_image
from hpcai500.system.container import find_container


@dataclass(frozen=True)
class SubmitRequest:
    """What the user asked for.

    Attributes:
        site: name or file; None: the one that this ensemble was submitted with before, or what works on most.
        members: as in `0-3,7`; None: all that are not done.
        at_once: members side by side at most.
        exclude: hosts that must not be used, as Slurm writes them.
        after: the collecting job that asks which members may be run again.
        rendered_by: the command line.
        environment: of this process.
    """

    environment: Mapping[str, str]
    site: str | None = None
    members: str | None = None
    at_once: int | None = None
    exclude: str | None = None
    after: str | None = None
    rendered_by: Sequence[str] = ()


def plan_submission(ensemble: Ensemble, request: SubmitRequest) -> Submission | None:
    """The submission of `request`; None where nothing is left to do.

    Raises:
        UsageError: site, plan, image or data cannot be used, or not together.
    """
    site = site_of(ensemble, request)
    _check(ensemble, site, request)
    at_once, exclude = request.at_once, expand_hosts(request.exclude) if request.exclude else []
    if request.after:
        again = again_after(ensemble, request.after)
        members, at_once, exclude = list(again.members), again.at_once, list(again.exclude)
    else:
        wanted = parse_members(request.members, ensemble) if request.members else ensemble.members
        members = [member for member in wanted if not is_done(ensemble, member)]
    if not members:
        return None
    return submission_of(
        ensemble,
        site,
        members,
        at_once=at_once,
        exclude=exclude,
        after=request.after,
        rendered_by=request.rendered_by,
        environment=request.environment,
    )


def submission_of(
    ensemble: Ensemble,
    site: Site,
    members: Sequence[int],
    *,
    environment: Mapping[str, str],
    at_once: int | None = None,
    exclude: Sequence[str] = (),
    after: str | None = None,
    rendered_by: Sequence[str] = (),
) -> Submission:
    """What has to be submitted so that `members` run."""
    return Submission(
        folder=ensemble.path.absolute(),
        benchmark=str(ensemble.start["benchmark"]),
        identity=ensemble.identity,
        shape=ensemble.shape,
        data=ensemble.data,
        stage=ensemble.stage,
        site=site,
        members=sorted(members),
        at_once=at_once,
        exclude=exclude,
        after=after,
        in_queue=() if after else _arrays_of(ensemble, members),
        submits_inside=find_container(environment) is not None,
        rendered_by=rendered_by,
    )


def site_of(ensemble: Ensemble, request: SubmitRequest) -> Site:
    """The site of `request`.

    Raises:
        UsageError: its file cannot be used, or names no image.
    """
    before = ensemble.path / FOLDER / SITE
    named = request.site or (str(before) if before.is_file() else None)
    return with_image(load_site(named) if named else Site(), named, request.environment)


def last_site(ensemble: Ensemble) -> Site:
    """The site of the last submission; one with defaults where its file is gone.

    Raises:
        UsageError: its file cannot be used.
    """
    before = ensemble.path / FOLDER / SITE
    return load_site(str(before)) if before.is_file() else Site()


def warnings_of(submission: Submission) -> list[str]:
    """What may disturb the measurement, or be meant."""
    slurm, shape = submission.site.slurm, submission.shape
    if slurm.exclusive or shape.members_a_node > 1 or len(submission.members) < 2 or submission.at_once == 1:
        return []
    return [
        "exclusive = false under [slurm] of the site: a member takes whole nodes, but Slurm may put two members, or "
        "jobs of others, on one node, where they slow each other down; exclusive = true gives each its own nodes"
    ]


def write_submission(submission: Submission) -> Path:
    """Write its scripts, instead of those of an earlier one; returns the one to be called on the host.

    Raises:
        RecordError: the folder cannot be written.
        UsageError: a path cannot be bound into a container.
    """
    folder = submission.folder / FOLDER
    files = scripts(submission)
    try:
        folder.mkdir(exist_ok=True)
        for old in [*folder.glob(MEMBER.replace(".", "*.")), folder / SUBMIT]:
            old.unlink(missing_ok=True)
        site = submission.site.model_dump(mode="json")
        write_atomically(folder / SITE, tomli_w.dumps(site).encode())
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; mend it, then go on") from error
    return folder / SUBMIT


def _check(ensemble: Ensemble, site: Site, request: SubmitRequest) -> None:
    """Refuse what would fail on all nodes after hours in the queue."""
    shape, node = ensemble.shape, site.node
    if node.tasks != shape.per_node:
        raise UsageError(
            f"the plan has nodes of {shape.per_node} accelerators, the site nodes of {node.tasks} ([node] tasks): set "
            f"tasks = {shape.per_node} in the site file, or plan with --node-accelerators {node.tasks}"
        )
    if node.gpus % node.tasks:
        raise UsageError(f"[node] gpus is {node.gpus} for {node.tasks} tasks: an ensemble needs as many for each task")
    if node.gpus and shape.members_a_node > 1 and node.gpu_request == "none":
        raise UsageError(
            'members that share a node must ask for their GPUs: gpu_request = "gres" or "gpus-per-node" under [node] '
            "of the site file, or plan members of whole nodes: --degree"
        )
    check_site(site, ensemble.recipe())
    if find_container(request.environment) is not None:
        # What is not bound here may be there all the same; the scripts look.
        return
    if site.container.command != NO_CONTAINER and not Path(site.container.image).exists():
        raise UsageError(f"[container] image: {site.container.image}: is not there; make it, or correct the site file")
    if not ensemble.data.is_dir():
        raise DataError(f"{ensemble.data}: the data of this plan is not there: mount it, or plan again with --data DIR")


def _arrays_of(ensemble: Ensemble, members: Sequence[int]) -> list[str]:
    """Arrays that were submitted for any of `members`."""
    wanted = set(members)
    told = [one for one in submissions(ensemble) if wanted.intersection(one.members)]
    return [array for one in told for array in one.arrays.values()]
