"""The command `hpcai500 data stage ic|ewa`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.data.staging import Released, Report, StageRequest, release, stage
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError, error_kind
from hpcai500.files import as_utf8, expand_variables
from hpcai500.hosts import Placement, find_placement
from hpcai500.job_options import StageOptions
from hpcai500.progress import silent, track
from hpcai500.recipe import load_recipe
from hpcai500.streams import say, show
from hpcai500.system.process import is_here, owner_of
from hpcai500.text import size

if TYPE_CHECKING:
    from torch.distributed import Store

_DEFAULT_NAME = "default"


def stage_set(benchmark: str, chosen: StageOptions) -> int:
    placement = find_placement(os.environ)
    # One rank per node prints.
    prints = placement.local_rank == 0
    progress, notify = (track, say) if prints else (silent, lambda line: None)
    if chosen.release:
        root = _root(chosen)
        released = release(root, chosen.name, progress, notify)
        lists = {kind: list(map(as_utf8, getattr(released, kind))) for kind in ("released", "needed_by", "left")}
        document = {"root": as_utf8(root), **asdict(released), **lists}
        sentence = _released_sentence(root, released)
    else:
        with together(placement):
            request = _request(benchmark, chosen, _root(chosen))
            report = stage(request, progress, notify)
        request_fields = {
            "root": as_utf8(request.root),
            "source": as_utf8(request.source),
            "benchmark": request.benchmark,
            "name": request.name,
        }
        document, sentence = {**request_fields, **asdict(report)}, _sentence(request, report)
    if prints:
        show(document if chosen.as_json else sentence, indent=1)
    return ExitCode.PASS


def _root(chosen: StageOptions) -> Path:
    if chosen.expand is None:
        return chosen.dest
    root = Path(expand_variables(str(chosen.dest), os.environ))
    if root != chosen.expand:
        raise UsageError(
            f"{chosen.dest}: is {root} on this node but {chosen.expand} on that of rank 0: choose a folder with the "
            "same name on all nodes of a member"
        )
    return root


def _request(benchmark: str, chosen: StageOptions, root: Path) -> StageRequest:
    recipes = [load_recipe(name) for name in chosen.recipes]
    for name, recipe in zip(chosen.recipes, recipes, strict=True):
        if recipe.benchmark != benchmark:
            raise UsageError(f"--recipe {name}: a recipe of {recipe.benchmark}, but this command stages {benchmark}")
    owner = ""
    if chosen.owner is not None:
        # On another node, the parent of this process lives as long as the member.
        owner = chosen.owner if is_here(chosen.owner) else owner_of(os.getppid())
    return StageRequest(
        benchmark=benchmark,
        source=chosen.source,
        root=root,
        name=chosen.name if chosen.name is not None else _DEFAULT_NAME,
        recipes=recipes,
        owner=owner,
        limit_bytes=chosen.limit_bytes,
        threads=chosen.threads,
        verify=chosen.verify,
    )


def _sentence(request: StageRequest, report: Report) -> str:
    text = f"{request.root}: {report.needed} of {report.pieces} files, {size(report.needed_bytes)}, for {request.name}"
    if report.verified:
        text += f"; {report.verified} existing files verified, {report.damaged} damaged and copied again"
    if not report.copied:
        return f"{text}; all present already; fingerprint {report.fingerprint}"
    rate = size(int(report.copied_bytes / max(report.seconds, 1e-9)))
    return (
        f"{text}; {report.copied} files, {size(report.copied_bytes)} copied in {report.seconds:.1f} s ({rate}/s); "
        f"fingerprint {report.fingerprint}"
    )


def _released_sentence(root: Path, released: Released) -> str:
    if released.needed_by:
        others = ", ".join(released.needed_by[:3]) + (" and others" if len(released.needed_by) > 3 else "")
        return f"{root}: {released.removed} removed; the rest is needed by {others}"
    if released.left:
        return f"{root}: {released.removed} removed; the folder is kept: {released.left[0]} was not staged"
    if not released.released and not released.removed:
        return f"{root}: nothing is staged there"
    return f"{root}: {released.removed} removed, with the folder"


# ----------------------------------------------------------------------------------------------------
# Ranks on several nodes wait for the slowest node's copy, and begin to train together.


_DONE, _LEFT, _FAILED = "staged", "left", "failed"
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 10.0


@contextmanager
def together(placement: Placement) -> Iterator[None]:
    """Leave the block when all ranks of the job have finished theirs; on one node, the folder's lock does the same.

    Raises:
        HpcAi500Error: another rank failed, with the type of its error, or has ended.
    """
    if placement.local_size == placement.size:
        yield
        return
    from hpcai500.comm.connect import meet  # imports torch, which one node does not need

    store, _ = meet(placement)
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, HpcAi500Error) else ExitCode.RUN_FAILED
        _report_failure(store, f"{int(code)} rank {placement.rank} on {socket.gethostname()}")
        raise
    try:
        store.add(_DONE, 1)
        while store.add(_DONE, 0) < placement.size:
            if store.check([_FAILED]):
                exit_code, _, rank = store.get(_FAILED).decode().partition(" ")
                raise error_kind(int(exit_code))(f"{rank} could not stage its files (see its error above)")
            time.sleep(_POLL_SECONDS)
        _leave(store, placement)
    except RuntimeError as error:  # torch's, when the store has ended
        raise RunError("rank 0 ended before all ranks had staged their files: see its error") from error


def _leave(store: Store, placement: Placement) -> None:
    """Leave the store; rank 0, which serves it, leaves last."""
    store.add(_LEFT, 1)
    limit = time.monotonic() + _LEAVE_SECONDS
    while placement.rank == 0 and store.add(_LEFT, 0) < placement.size and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS / 10)


def _report_failure(store: Store, failure: str) -> None:
    try:
        store.set(_FAILED, failure)
        # The store ends with rank 0: wait until the other ranks have polled it.
        time.sleep(3 * _POLL_SECONDS)
    except RuntimeError:
        return  # rank 0 has already ended
