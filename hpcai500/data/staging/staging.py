"""Copies what a run reads to a node's own storage: once a node, resumable at any moment, read back.

Whoever comes holds the folder's lock while it works. What it needs is written down under its name first, then all that
is missing is copied; a piece counts from the moment on at which its copy was read back and noted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcai500.data.staging.claiming import claim, require_apart
from hpcai500.data.staging.copying import written_to
from hpcai500.data.staging.digests import Digests, Marks, Pieces
from hpcai500.data.staging.image_pieces import ImageSource
from hpcai500.data.staging.layout import StagedSet, read_set, write_set
from hpcai500.data.staging.lock import held
from hpcai500.data.staging.meter import Meter, megabytes
from hpcai500.data.staging.names import Need, needed_by, path_of, read_need, read_needs, write_need
from hpcai500.data.staging.pieces import Say, Source
from hpcai500.data.staging.quota import no_room, room_of
from hpcai500.data.staging.releasing import drop_abandoned
from hpcai500.data.staging.seek_index_copy import bring_index, drop_index, index_bytes
from hpcai500.data.staging.work import Watch, default_threads, in_threads
from hpcai500.data.staging.year_pieces import YearSource
from hpcai500.layers import Recipe
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import recipe_hash
from hpcai500.system.process import boot


@dataclass(frozen=True)
class Order:
    """What is wanted.

    Attributes:
        benchmark: `ic` or `ewa`.
        source: folder of the set.
        root: folder to stage it in.
        name: of whoever needs it.
        recipes: what is read by a run of any of them; without one, all.
        owner: token of a process with whose end the need ends; "" where it lasts until it is released.
        limit_bytes: that all that is staged in `root` may take.
        threads: that share the work; None: as many as help.
        verify: read again what is there already.
    """

    benchmark: str
    source: Path
    root: Path
    name: str
    recipes: Sequence[Recipe] = ()
    owner: str = ""
    limit_bytes: int | None = None
    threads: int | None = None
    verify: bool = False


@dataclass(frozen=True)
class Report:
    """What was done.

    Attributes:
        fingerprint: of the whole set, at the source and as it is read now.
        needed, needed_bytes: pieces that the name needs.
        copied, copied_bytes: those that were copied now.
        seconds: that copying took.
        verified: pieces that were there and were read again.
        damaged: those of them that were not what they were, and were copied again.
        total: pieces of the set.
    """

    fingerprint: str
    needed: int
    needed_bytes: int
    copied: int
    copied_bytes: int
    seconds: float
    verified: int
    damaged: int
    total: int


def stage(order: Order, progress: Tracker = silent, say: Say = lambda _: None) -> Report:
    """Make sure that all that `order` names is in its folder, whole and right.

    Any number of processes of a node may ask at once; killed at any time, the next call goes on.

    Raises:
        DataError: the source cannot be read or has changed, or the folder is of another set or of somebody else.
        EnvironmentLacksError: there is no room, or no locks.
        RunError: the storage takes no more, or does not keep what is written.
        UsageError: the name cannot be one.
    """
    require_apart(order.source, order.root)
    path_of(order.root, order.name)
    with written_to(order.root), held(order.root, progress, say) as waited:
        if waited and (done := _done_meanwhile(order)) is not None:
            return done
        source = _source(order, progress)
        staged = claim(order.root, order.source, source)
        digests = Digests(order.root, source.pieces)
        try:
            return _Staging(order, source, staged, digests, progress, say).run()
        finally:
            digests.close()


class _Staging:
    """One call, with the lock held."""

    def __init__(
        self, order: Order, source: Source, staged: StagedSet, digests: Digests, progress: Tracker, say: Say
    ) -> None:
        self._order, self._source, self._set = order, source, staged
        self._digests, self._progress, self._say = digests, progress, say
        self._pieces = source.staged()

    def run(self) -> Report:
        order, sizes = self._order, self._pieces.sizes_bytes
        marks = self._source.needed(order.recipes)
        key = _key(order, self._source.fingerprint)
        need = Need(order.name, key, order.owner, False, int(sizes[marks].sum()), marks)
        before = read_need(order.root, order.name)
        write_need(order.root, need)
        verified, damaged = self._verify(marks)
        missing = (marks | damaged) & ~self._digests.here()
        self._make_room(missing, is_new=before is None)
        started = time.monotonic()
        for pieces in self._source.order(np.flatnonzero(missing)):
            self._in_threads(self._copy, pieces, "staging")
        seconds = time.monotonic() - started
        self._source.finish(order.recipes)
        self._bring_index()
        write_need(order.root, replace(need, complete=True))
        return Report(
            fingerprint=self._source.fingerprint,
            needed=int(marks.sum()),
            needed_bytes=need.size_bytes,
            copied=int(missing.sum()),
            copied_bytes=int(sizes[missing].sum()),
            seconds=seconds,
            verified=verified,
            damaged=int(damaged.sum()),
            total=len(marks),
        )

    def _verify(self, marks: Marks) -> tuple[int, Marks]:
        """Read what is there, where that was asked for, or the node was started anew: what was written may be gone.

        Returns how many pieces were read, and which of those that are needed must be copied again.
        """
        damaged, now = np.zeros(len(marks), np.bool_), boot()
        restarted = self._set.boot != now
        if not restarted and not self._order.verify:
            return 0, damaged
        wanted = self._digests.here() & (marks | restarted)
        bad: list[int] = []

        def reread(batch: Sequence[int], watch: Watch) -> None:
            bad.extend(
                piece for piece, digest in self._pieces.digest(batch, watch) if digest != self._digests.get(piece)
            )

        self._in_threads(reread, np.flatnonzero(wanted), "verifying")
        again = self._pieces.with_dependents(np.array(sorted(bad), np.int64))
        self._digests.wipe(again)
        damaged[again] = True
        if self._order.verify:
            kept = np.flatnonzero(self._digests.here() & marks)
            self._in_threads(self._compare, kept, "comparing with the source")
        if restarted:
            write_set(self._order.root, replace(self._set, boot=now))
        return int(wanted.sum()), damaged & needed_by(read_needs(self._order.root), len(marks))

    def _compare(self, batch: Sequence[int], watch: Watch) -> None:
        self._source.changes(batch, self._digests, watch)

    def _copy(self, batch: Sequence[int], watch: Watch) -> None:
        self._source.copy(batch, self._digests, watch)

    def _make_room(self, missing: Marks, *, is_new: bool) -> None:
        """Raise EnvironmentLacksError where `missing` does not fit, even without what killed runs have left.

        The seek index goes where that makes it fit.
        """
        root, sizes, files = self._order.root, self._pieces.sizes_bytes, self._pieces.new_files(missing)

        def lacks(*, without_index: bool = False) -> str | None:
            room, index = room_of(root, self._order.limit_bytes), index_bytes(root)
            if without_index:
                room, index = replace(room, free_bytes=room.free_bytes + index), 0
            return room.lacks(sizes, self._digests.here(), missing, files, index)

        if lacks() is None:
            return
        drop_abandoned(root, self._pieces, self._digests, but=self._order.name)
        if lacks() is None:
            return
        reason = lacks(without_index=True)
        if reason is None:
            drop_index(root)
            # Space of a file that somebody has open is not free yet.
            reason = lacks()
        if reason is not None:
            if is_new:
                path_of(root, self._order.name).unlink(missing_ok=True)
            raise no_room(root, reason)

    def _bring_index(self) -> None:
        order, sizes, here = self._order, self._pieces.sizes_bytes, self._digests.here()
        left_bytes = room_of(order.root, order.limit_bytes).left_bytes(sizes, here)
        staged_bytes = int(sizes[here].sum())
        bring_index(
            order.source,
            order.root,
            staged_bytes=staged_bytes,
            left_bytes=left_bytes,
            progress=self._progress,
            say=self._say,
        )

    def _in_threads(self, work: Callable[[Sequence[int], Watch], None], pieces: Pieces, what: str) -> None:
        if not len(pieces):
            return
        size, threads = int(self._pieces.sizes_bytes[pieces].sum()), self._order.threads or default_threads()
        with self._progress(megabytes(size), what, "MB") as bar, Meter(bar, size, self._order.root) as meter:
            watch = Watch(meter)
            in_threads(lambda batch: work(batch, watch), self._pieces.batches(pieces), threads, watch)


def _source(order: Order, progress: Tracker) -> Source:
    if order.benchmark == "ic":
        return ImageSource(order.source, order.root, progress)
    return YearSource(order.source, order.root, progress)


def _done_meanwhile(order: Order) -> Report | None:
    """What to say where another rank of the same member has done all of it while this one waited."""
    staged, need = read_set(order.root), read_need(order.root, order.name)
    if staged is None or need is None or not need.complete or order.verify:
        return None
    # What an earlier attempt has left goes once it is in the way: this one must put its own name to it. And after a
    # new start of the node, it is to be read again.
    if (need.key, need.owner, staged.boot) != (_key(order, staged.fingerprint), order.owner, boot()):
        return None
    return Report(staged.fingerprint, int(need.marks.sum()), need.size_bytes, 0, 0, 0.0, 0, 0, len(need.marks))


def _key(order: Order, fingerprint: str) -> str:
    hashes = sorted(recipe_hash(recipe) for recipe in order.recipes)
    return hashlib.sha256("\n".join([order.benchmark, fingerprint, *hashes]).encode()).hexdigest()
