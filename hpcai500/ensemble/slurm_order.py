"""What shall be submitted, and what all scripts of one submission share. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.ensemble.plan import Shape
from hpcai500.ensemble.slurm_jobs import first_members, job_names
from hpcai500.launch.bash_words import Expression
from hpcai500.launch.container_command import bind_of, in_container, sources_on_host
from hpcai500.launch.script_parts import checks
from hpcai500.launch.site import NO_CONTAINER, Site

FOLDER = "slurm"
MEMBER, COLLECT, SUBMIT, SITE = "member.sh", "collect.sh", "submit.sh", "site.toml"


@dataclass(frozen=True)
class Submission:
    """What shall be submitted.

    Attributes:
        folder: of the ensemble, absolute.
        benchmark: its name.
        identity: of the ensemble.
        shape: of the ensemble.
        data: folder of the data set.
        stage: folder of each node for copies, as its shell reads it; None: there are none.
        site: where; its image is named, unless it uses no container.
        members: numbers of those that shall run, ascending.
        at_once: members side by side at most; None: as many as the cluster has room for.
        exclude: hosts that must not be used.
        after: the collecting job that has found members to be run again; None: a person asked.
        in_queue: arrays that were submitted for some of these members: none of their elements may be left.
        submits_inside: whether the host where this is submitted reaches hpcai500 only in the image.
        rendered_by: the command that asked for it.
    """

    folder: Path
    benchmark: str
    identity: str
    shape: Shape
    data: Path
    stage: str | None
    site: Site
    members: Sequence[int]
    at_once: int | None = None
    exclude: Sequence[str] = ()
    after: str | None = None
    in_queue: Sequence[str] = ()
    submits_inside: bool = False
    rendered_by: Sequence[str] = ()

    @property
    def job_names(self) -> tuple[str, str]:
        """Of its members' jobs, and of the one that collects."""
        return job_names(self.benchmark, self.identity)

    @property
    def first_members(self) -> list[int]:
        """Of each array, the member that its element 0 is, or would be."""
        return first_members(self.members)


def script_name(first_member: int) -> str:
    """File of the array whose element 0 is this member."""
    return MEMBER if first_member == 0 else MEMBER.replace(".", f"-{first_member}.")


def script_text(*blocks: Sequence[str] | Iterator[str]) -> str:
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(text for text in texts if text) + "\n"


def checks_of(submission: Submission, container: Sequence[str], leave: str) -> Iterator[str]:
    binds = [bind for bind in binds_of(submission) if not isinstance(bind, Expression)]
    yield from checks(submission.site, container[0], sources_on_host(container_tokens(submission, binds)), leave)


def binds_of(submission: Submission) -> list[str]:
    if submission.site.container.command == NO_CONTAINER:
        return []
    data = str(submission.data)
    # Data first: where the ensemble lies in the folder of the data, its own bind is on top, and can be written to.
    paths = [bind_of(data, data, "ro"), bind_of(str(submission.folder))]
    return [*paths, *([read_by_shell(bind_of(submission.stage))] if submission.stage is not None else [])]


def read_by_shell(stage: str) -> Expression:
    """A path in which the node's shell reads variables, and nothing else of what a shell could read."""
    text = stage
    for special in ("\\", '"', "`"):
        text = text.replace(special, f"\\{special}")
    return Expression(text.replace("$(", "\\$("))


def container_tokens(submission: Submission, binds: Sequence[str]) -> list[str]:
    site = submission.site
    return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=binds, folder=str(submission.folder))
