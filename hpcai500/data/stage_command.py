"""`hpcai500 data stage ic|ewa`, and how results are shown."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.data.staging import Order, Released, Report, release, stage
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError, error_kind
from hpcai500.files import expand_variables
from hpcai500.hosts import Placement, find_placement
from hpcai500.job_options import StageOptions
from hpcai500.progress import silent, track
from hpcai500.recipe import load_recipe
from hpcai500.streams import say, show
from hpcai500.system.process import is_here, owner_of
from hpcai500.text import size

if TYPE_CHECKING:
    from torch.distributed import Store

_ANYBODY = "default"


def stage_set(benchmark: str, chosen: StageOptions) -> int:
    placement = find_placement(os.environ)
    # One rank of a node speaks for all.
    speaks = placement.local_rank == 0
    progress, inform = (track, say) if speaks else (silent, lambda line: None)
    if chosen.release:
        root = _root(chosen)
        released = release(root, chosen.name, progress, inform)
        document, sentence = {"root": str(root), **asdict(released)}, _released_sentence(root, released)
    else:
        with together(placement):
            order = _order(benchmark, chosen, _root(chosen))
            report = stage(order, progress, inform)
        ordered = {
            "root": str(order.root),
            "source": str(order.source),
            "benchmark": order.benchmark,
            "name": order.name,
        }
        document, sentence = {**ordered, **asdict(report)}, _sentence(order, report)
    if speaks:
        show(document if chosen.as_json else sentence, indent=1)
    return ExitCode.PASS


def _root(chosen: StageOptions) -> Path:
    if chosen.expand is None:
        return chosen.dest
    root = Path(expand_variables(str(chosen.dest), os.environ))
    if root != chosen.expand:
        raise UsageError(
            f"{chosen.dest}: is {root} on this node and {chosen.expand} on that of rank 0: stage into a folder that "
            "has the same name on all nodes of a member"
        )
    return root


def _order(benchmark: str, chosen: StageOptions, root: Path) -> Order:
    recipes = [load_recipe(name) for name in chosen.recipes]
    for name, recipe in zip(chosen.recipes, recipes, strict=True):
        if recipe.benchmark != benchmark:
            raise UsageError(f"--recipe {name}: a recipe of {recipe.benchmark}, but {benchmark} is staged")
    owner = ""
    if chosen.owner is not None:
        # On another node, what has started this process lives as long as the member does.
        owner = chosen.owner if is_here(chosen.owner) else owner_of(os.getppid())
    return Order(
        benchmark=benchmark,
        source=chosen.source,
        root=root,
        name=chosen.name if chosen.name is not None else _ANYBODY,
        recipes=recipes,
        owner=owner,
        limit_bytes=chosen.limit_bytes,
        threads=chosen.threads,
        verify=chosen.verify,
    )


def _sentence(order: Order, report: Report) -> str:
    text = f"{order.root}: {report.needed} of {report.pieces} files, {size(report.needed_bytes)}, for {order.name}"
    if report.verified:
        text += f"; {report.verified} that were there read again, {report.damaged} of them damaged and copied anew"
    if not report.copied:
        return f"{text}; all of it was there; fingerprint {report.fingerprint}"
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
        return f"{root}: {released.removed} removed; the folder stays: {released.left[0]} was not staged"
    if not released.released and not released.removed:
        return f"{root}: nothing is staged there"
    return f"{root}: {released.removed} removed, and the folder"


# ----------------------------------------------------------------------------------------------------
# Ranks that stage on several nodes begin to train together: the slowest node's copy is waited for.


_DONE, _LEFT, _FAILED = "staged", "left", "failed"
_POLL_SECONDS = 0.2
_FAREWELL_SECONDS = 10.0


@contextmanager
def together(placement: Placement) -> Iterator[None]:
    """End when all ranks of the job have come to the end of theirs; on one node, its lock does the same.

    Raises:
        HpcAi500Error: another rank has failed, or is gone; of the kind of what befell it.
    """
    if placement.local_size == placement.size:
        yield
        return
    from hpcai500.comm.connect import meet  # torch: one node does without

    store, _ = meet(placement)
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, HpcAi500Error) else ExitCode.RUN_FAILED
        _tell(store, f"{int(code)} rank {placement.rank} on {socket.gethostname()}")
        raise
    try:
        store.add(_DONE, 1)
        while store.add(_DONE, 0) < placement.size:
            if store.check([_FAILED]):
                exit_code, _, who = store.get(_FAILED).decode().partition(" ")
                raise error_kind(int(exit_code))(f"{who} could not stage what it needs (see above)")
            time.sleep(_POLL_SECONDS)
        _leave(store, placement)
    except RuntimeError as error:  # torch's, of a store that is gone
        raise RunError("rank 0 has ended before all ranks had staged what they need: see what it says") from error


def _leave(store: Store, placement: Placement) -> None:
    """Rank 0, which keeps the store, is the last to go."""
    store.add(_LEFT, 1)
    limit = time.monotonic() + _FAREWELL_SECONDS
    while placement.rank == 0 and store.add(_LEFT, 0) < placement.size and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS / 10)


def _tell(store: Store, what: str) -> None:
    try:
        store.set(_FAILED, what)
        # Rank 0 takes the store with it: the others look every now and then.
        time.sleep(3 * _POLL_SECONDS)
    except RuntimeError:
        return  # rank 0 is gone already
