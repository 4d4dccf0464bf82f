"""Copies the files of a data set that a run reads to a node's local storage, once per node.

`staged` describes the folder. A process holds the folder's lock while it works. It first records what its name needs;
then it copies each missing file under another name, renames it once it is complete and on the disk, and lists it in the
manifest. After a kill at any moment, a file is either listed and complete, or not listed and copied again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG

import numpy as np
import numpy.typing as npt

from hpcai500._core import SeekIndex
from hpcai500.data import derived
from hpcai500.data.climate import index as climate_index
from hpcai500.data.climate import values
from hpcai500.data.climate.index import as_staged, load_climate_index
from hpcai500.data.climate.years import YearFile
from hpcai500.data.imagenet.index import (
    CONTENT,
    INDEX_FILE,
    drawn_for_content,
    load_content,
    load_index,
    pack_index,
    same_bytes,
    store_content,
    unpack_index,
)
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, find_seek_index
from hpcai500.data.samplers import training_samples
from hpcai500.data.staged import (
    DAMAGED,
    FOLDER,
    INDEX,
    LOCK,
    MANIFEST,
    NAMES,
    PROGRESS,
    SET,
    YEARS,
    Marks,
    Need,
    StagedSet,
    damaged,
    manifest_line,
    need_path,
    needed_by,
    read_any_set,
    read_manifest,
    read_need,
    read_needs,
    read_set,
    read_years,
    require_whole,
    staged_by_older,
    state_folder,
    write_manifest,
    write_need,
    write_set,
    write_years,
    year_names,
)
from hpcai500.errors import DataError, EnvironmentLacksError, RunError, UsageError
from hpcai500.files import from_utf8, locked, why_not, write_unsynced
from hpcai500.layers import ClimateProblem, Recipe
from hpcai500.methodology.sampling import probe
from hpcai500.progress import Progress, Tracker, silent
from hpcai500.recipe import recipe_hash
from hpcai500.text import size

Sizes = npt.NDArray[np.int64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class StageRequest:
    """What to stage.

    Attributes:
        benchmark: `ic` or `ewa`.
        source: folder of the set.
        root: folder to stage it in.
        name: of the member, or other user, that needs it.
        recipes: the files that runs of these recipes read are staged; without recipes, all files.
        owner: token of a process at whose end the need ends; "" if it lasts until it is released.
        limit_bytes: the most that all files staged in `root` may take.
        threads: None: as many as help.
        verify: read existing files again.
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
    """What was done, in the order of `data stage --json`.

    Attributes:
        fingerprint: of the whole set.
        pieces: number of files of the set.
        needed, needed_bytes: files that the name needs.
        copied, copied_bytes: files that were copied.
        seconds: duration of copying.
        bytes_per_second: rate of copying; None if nothing was copied.
        verified: number of existing files that were read again.
        damaged: number of those that were damaged, and were copied again.
    """

    fingerprint: str
    pieces: int
    needed: int
    needed_bytes: int
    copied: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0
    bytes_per_second: float | None = None
    verified: int = 0
    damaged: int = 0


def stage(request: StageRequest, progress: Tracker = silent, say: Say = lambda _: None) -> Report:
    """Stage all files of `request`.

    Any number of processes of a node may call this at once. After a kill at any time, the next call continues.

    Raises:
        DataError: the source cannot be read or has changed, or the folder holds another set or other files.
        EnvironmentLacksError: not enough space, or files cannot be locked.
        RunError: the storage is full or cannot be written.
        UsageError: an invalid name, or a folder of another user.
    """
    _require_apart(request.source, request.root)
    need_path(request.root, request.name)
    with _write_errors(request.root), _locked(request.root, progress, say) as waited:
        if waited and (done := _done_meanwhile(request)) is not None:
            return done
        source = (_Images if request.benchmark == "ic" else _Years)(request.source, request.root, progress)
        _claim(request, source)
        return _Staging(request, source, progress, say).run()


class _Staging:
    """One call of `stage`, with the lock held."""

    def __init__(self, request: StageRequest, source: _Set, progress: Tracker, say: Say) -> None:
        self._request, self._source, self._progress, self._say = request, source, progress, say
        self._needed = source.needed(request.recipes)
        self._listed = read_manifest(request.root)
        self._lock = threading.Lock()

    def run(self) -> Report:
        request, sizes, needed = self._request, self._source.sizes_bytes, self._needed
        key = _key(request, self._source.fingerprint)
        need = Need(request.name, key, request.owner, False, int(sizes[needed].sum()), needed)
        is_new = read_need(request.root, request.name) is None
        write_need(request.root, need)
        verified, bad = self._verify() if request.verify else (0, 0)
        missing = needed & ~self._here()
        self._make_room(missing, is_new=is_new)
        started = time.monotonic()
        self._copy_files(missing)
        seconds = time.monotonic() - started
        self._source.finish(request.recipes)
        self._stage_seek_index()
        write_need(request.root, replace(need, complete=True))
        copied_bytes = int(sizes[missing].sum())
        return Report(
            fingerprint=self._source.fingerprint,
            pieces=len(needed),
            needed=int(needed.sum()),
            needed_bytes=need.size_bytes,
            copied=int(missing.sum()),
            copied_bytes=copied_bytes,
            seconds=seconds,
            bytes_per_second=copied_bytes / seconds if copied_bytes else None,
            verified=verified,
            damaged=bad,
        )

    def _here(self) -> Marks:
        return _marks(self._source.paths, self._listed)

    def _in_threads(self, work: Callable[[int, Meter], None], files: Marks, what: str) -> None:
        """Do `work` on each file. The first error is raised, and stops the other threads within a block."""
        numbers = np.flatnonzero(files).tolist()
        if not numbers:
            return
        size_bytes, threads = int(self._source.sizes_bytes[files].sum()), self._request.threads or _default_threads()
        per_batch = max(1, min(_MOST_PER_BATCH, len(numbers) // threads))
        batches = [numbers[at : at + per_batch] for at in range(0, len(numbers), per_batch)]

        def work_on(batch: Sequence[int]) -> None:
            for number in batch:
                meter.check_stopped()
                work(number, meter)

        with (
            self._progress(megabytes(size_bytes), what, "MB") as bar,
            Meter(bar, size_bytes, self._request.root) as meter,
            ThreadPoolExecutor(threads, thread_name_prefix="stage") as pool,
        ):
            try:
                for done in as_completed([pool.submit(work_on, batch) for batch in batches]):
                    done.result()
            except BaseException:
                meter.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    # ------------------------------------------------------------------------------------------------
    # --verify

    def _verify(self) -> tuple[int, int]:
        """Read the needed files that exist again, and compare the undamaged ones with the source.

        Returns how many files were read, and how many were damaged, which are no longer listed.
        """
        bad: list[str] = []

        def reread(number: int, meter: Meter) -> None:
            path = self._source.paths[number]
            if self._digest_here(number, meter) != self._listed[path]:
                bad.append(path)

        existing = self._needed & self._here()
        self._in_threads(reread, existing, "verifying")
        if bad:
            _unlist(self._request.root, set(bad))
            self._listed = read_manifest(self._request.root)
        self._in_threads(self._compare, existing & self._here(), "comparing with the source")
        return int(existing.sum()), len(bad)

    def _digest_here(self, number: int, meter: Meter) -> str | None:
        """SHA-256 (hex) of a copy, read from its disk if possible; None if missing, unreadable or of another size."""
        try:
            copy = os.open(self._target(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if os.fstat(copy).st_size != self._source.sizes_bytes[number]:
                return None
            # Pages that are not on the disk yet stay in memory.
            os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
            return _sha256(_blocks(copy), meter.add)
        except OSError:
            return None
        finally:
            os.close(copy)

    def _compare(self, number: int, meter: Meter) -> None:
        """Compare with the source by content, as versions of it may have the same sizes and times. Raises DataError."""
        path = self._source_path(number)
        with _opened(path) as original:
            if _sha256(_source_blocks(original, path), meter.add) != self._listed[self._source.paths[number]]:
                raise changed(path)

    # ------------------------------------------------------------------------------------------------
    # Copying.

    def _copy_files(self, missing: Marks) -> None:
        """Copy files, and list each as soon as it is complete and on the disk."""
        root = self._request.root
        for folder in {self._source.paths[number].rpartition("/")[0] for number in np.flatnonzero(missing).tolist()}:
            if not _is_inside(root, folder):
                raise RunError(f"{root / folder}: a link, expected a folder of images; remove it")
            (root / folder).mkdir(parents=True, exist_ok=True)
        manifest = _open_manifest(root)
        try:
            self._in_threads(lambda number, meter: self._copy(number, manifest, meter), missing, "staging")
            os.fsync(manifest)
        finally:
            os.close(manifest)

    def _copy(self, number: int, manifest: int, meter: Meter) -> None:
        path, size_bytes, target = self._source.paths[number], self._source.sizes_bytes[number], self._target(number)
        part = target.with_name(_part_name(number))
        expected = int(size_bytes), self._source.time_ns(number)
        sha256 = _copy_file(self._source_path(number), part, expected, meter.add)
        try:
            part.replace(target)
        except IsADirectoryError as error:
            part.unlink()
            raise RunError(f"{target}: a folder, expected a file; remove it") from error
        with self._lock:
            _append(manifest, manifest_line(path, int(size_bytes), sha256))
            self._listed[path] = sha256

    def _source_path(self, number: int) -> str:
        return f"{self._request.source}/{self._source.paths[number]}"

    def _target(self, number: int) -> Path:
        return self._request.root / self._source.paths[number]

    # ------------------------------------------------------------------------------------------------
    # Space, and the seek index, which takes only the space left.

    def _make_room(self, missing: Marks, *, is_new: bool) -> None:
        """Raise EnvironmentLacksError if `missing` does not fit, even after removing files of killed runs.

        The seek index is removed if that makes `missing` fit.
        """
        root = self._request.root

        def lacks(*, without_index: bool = False) -> str | None:
            room, index = room_of(root, self._request.limit_bytes), _seek_index_bytes(root)
            if without_index:
                room, index = replace(room, free_bytes=room.free_bytes + index), 0
            return room.lacks(self._source.sizes_bytes, self._here(), missing, index)

        if lacks() is None:
            return
        self._drop_abandoned()
        if lacks() is None:
            return
        reason = lacks(without_index=True)
        if reason is None:
            (root / SEEK_INDEX).unlink(missing_ok=True)
            # The space is not free yet if a process has the file open.
            reason = lacks()
        if reason is not None:
            if is_new:
                need_path(root, self._request.name).unlink(missing_ok=True)
            raise EnvironmentLacksError(
                f"{root}: not enough space: {reason}: free some, choose another folder, run fewer members per node, or "
                "release what others have left (--release)"
            )

    def _drop_abandoned(self) -> None:
        """Remove files that only killed runs of other names needed."""
        root, needs = self._request.root, read_needs(self._request.root)
        released = {name: need for name, need in needs.items() if need.is_abandoned and name != self._request.name}
        if released:
            _drop(
                root, self._source.paths, released, {name: need for name, need in needs.items() if name not in released}
            )
            for name in released:
                need_path(root, name).unlink(missing_ok=True)
            self._listed = read_manifest(root)

    def _stage_seek_index(self) -> None:
        """Copy the seek index of the source, unless one as new is staged; report why if it cannot be copied.

        It is looked up by content, so it serves any part of the set. It may take the space left, and a tenth of the
        staged bytes. No run needs it: nothing is raised.
        """
        request = self._request
        if request.benchmark != "ic":
            return
        found = find_seek_index(request.source, otherwise="it is not copied")
        if found is None:
            return
        try:
            if _has_seek_index(found.path, request.root):
                return
            reason = self._seek_index_obstacle(found.path.stat().st_size)
            if not reason:
                _copy_seek_index(found.path, request.root, self._progress)
        except OSError as error:
            reason = str(error.strerror)
        except DataError as error:
            reason = str(error)
        if reason:
            remedy = f"make one there by `hpcai500 data index ic {request.root}`"
            self._say(f"the seek index {found.path} is not copied: {reason}; {remedy}")

    def _seek_index_obstacle(self, index_bytes: int) -> str:
        sizes, here = self._source.sizes_bytes, self._here()
        staged_bytes = int(sizes[here].sum())
        # It covers the whole set. For a small part, an index of the staged files is made sooner.
        if index_bytes * _LEAST_IMAGE_TO_INDEX_BYTES > staged_bytes:
            return f"it takes {size(index_bytes)} for {size(staged_bytes)} of images"
        if index_bytes > room_of(self._request.root, self._request.limit_bytes).left_bytes(sizes, here):
            return f"no space for its {size(index_bytes)}"
        return ""


def _done_meanwhile(request: StageRequest) -> Report | None:
    """The report, if another rank of the same member has staged everything while this one waited."""
    staged, need = read_set(request.root), read_need(request.root, request.name)
    if staged is None or need is None or not need.complete or request.verify:
        return None
    # The need of an earlier attempt may be dropped for space: this process must record its own.
    if (need.key, need.owner) != (_key(request, staged.fingerprint), request.owner):
        return None
    return Report(staged.fingerprint, len(need.marks), int(need.marks.sum()), need.size_bytes)


def _key(request: StageRequest, fingerprint: str) -> str:
    hashes = sorted(recipe_hash(recipe) for recipe in request.recipes)
    return hashlib.sha256("\n".join([request.benchmark, fingerprint, *hashes]).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------
# Releasing: files that nobody needs are removed, and the folder with the last name.


@dataclass(frozen=True)
class Released:
    """What was done, in the order of `data stage --release --json`.

    Attributes:
        released: names whose needs were released.
        needed_by: names that still need files.
        removed: number of files removed.
        left: entries of the folder that staging did not write; the folder is removed if there are none.
    """

    released: tuple[str, ...]
    needed_by: tuple[str, ...]
    removed: int
    left: tuple[str, ...]


def release(root: Path, name: str | None, progress: Tracker = silent, say: Say = lambda _: None) -> Released:
    """Release the need of `name` (None: of all names) and of killed runs, and remove files that nobody needs then.

    Does nothing if nothing is staged. A set that an older version staged is removed as a whole, with the last name.

    Raises:
        DataError: the state of the folder cannot be read.
        RunError: files cannot be removed.
        UsageError: an invalid name.
    """
    if name is not None:
        need_path(root, name)
    if not state_folder(root).is_dir():
        return Released((), (), 0, ())
    with _write_errors(root), _locked(root, progress, say):
        found = read_any_set(root)
        if found is None:
            return Released((), (), 0, _remove_folder(root))
        staged, is_old = found
        needs = read_needs(root)
        released = {key: need for key, need in needs.items() if name is None or key == name or need.is_abandoned}
        kept = {key: need for key, need in needs.items() if key not in released}
        if not kept:
            removed = _remove_all(root, staged, needs, is_old=is_old)
            return Released(tuple(sorted(released)), (), removed, _remove_folder(root))
        # An older version counted parts of files.
        removed = 0 if is_old else _drop(root, _paths(root, staged), released, kept)
        for one in released:
            need_path(root, one).unlink(missing_ok=True)
        return Released(tuple(sorted(released)), tuple(sorted(kept)), removed, ())


def _drop(root: Path, paths: Sequence[str], released: Mapping[str, Need], kept: Mapping[str, Need]) -> int:
    """Remove files that only `released` need. The names are removed after this, so that it can be repeated."""
    marks = needed_by(released, len(paths)) & ~needed_by(kept, len(paths))
    numbers = np.flatnonzero(marks).tolist()
    _unlist(root, {paths[number] for number in numbers})
    return _remove_files(root, paths, numbers)


def _remove_all(root: Path, staged: StagedSet, needs: Mapping[str, Need], *, is_old: bool) -> int:
    """Remove everything that staging may have written, folders that are empty then, and derived files."""
    paths = _paths(root, staged)
    # An older version created all files of years, and counted parts of them.
    marks = np.full(len(paths), is_old)
    if not is_old:
        marks = _marks(paths, read_manifest(root)) | needed_by(needs, len(paths))
    removed = _remove_files(root, paths, np.flatnonzero(marks).tolist())
    folders = {path.rpartition("/")[0] for path in paths} - {""}
    for folder in sorted(folders | {folder.partition("/")[0] for folder in folders}, reverse=True):
        if _is_inside(root, folder):
            _remove_parts(root / folder)
            with _tolerating(errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                (root / folder).rmdir()
    _remove_parts(root)
    for name in _DERIVED[staged.benchmark]:
        with _tolerating(errno.ENOENT, errno.EISDIR):
            (root / name).unlink()
    return removed


def _remove_files(root: Path, paths: Sequence[str], numbers: Sequence[int]) -> int:
    """Remove files and their unfinished copies, but nothing behind a link; returns how many files were removed."""
    removed = 0
    inside: dict[str, bool] = {}
    for number in numbers:
        folder = paths[number].rpartition("/")[0]
        if not inside.setdefault(folder, _is_inside(root, folder)):
            continue
        path = root / paths[number]
        # A folder of this name was not staged, and is kept.
        with _tolerating(errno.ENOENT, errno.EISDIR, errno.ENOTDIR):
            path.unlink()
            removed += 1
        with _tolerating(errno.ENOENT, errno.EISDIR, errno.ENOTDIR):
            path.with_name(_part_name(number)).unlink()
    return removed


def _remove_parts(folder: Path) -> None:
    """Remove unfinished copies of killed stagings from a folder."""
    for part in folder.glob(f"{_PART}*"):
        with _tolerating(errno.ENOENT, errno.EISDIR):
            part.unlink()


def _remove_folder(root: Path) -> tuple[str, ...]:
    """Remove the folder, once its data are removed; returns the entries that staging did not write."""
    # Without this file, it is not a staged folder, and the next staging starts over.
    state = state_folder(root)
    (state / SET).unlink(missing_ok=True)
    for entry in state.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    (state / LOCK).unlink(missing_ok=True)
    left = tuple(sorted(entry.name for entry in root.iterdir() if entry.name != FOLDER))
    for folder in (state, root):
        # Other files are left, a waiting process makes a new lock, or the folder is a mount point.
        with _tolerating(errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EACCES, errno.EPERM, errno.ENOTDIR):
            folder.rmdir()
    return left


def _paths(root: Path, staged: StagedSet) -> tuple[str, ...]:
    """The files of the set that is staged in a folder, by number. Raises DataError."""
    if staged.benchmark != "ic":
        names = year_names(root)
        if not names:
            raise damaged(state_folder(root) / YEARS, root, ValueError("it lists no years"))
        return names
    path = state_folder(root) / INDEX
    try:
        index = unpack_index(root, path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, root, error) from error
    return (*index.train.paths, *index.val.paths)


@contextmanager
def _tolerating(*codes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise


# ----------------------------------------------------------------------------------------------------
# Sets at the source: numbered files, and which of them a run reads.


_DERIVED = {
    "ic": (INDEX_FILE, CONTENT, derived.MANIFEST, SEEK_INDEX),
    "ewa": (climate_index.FILE, values.FILE, derived.MANIFEST),
}


class _Images:
    """Image files, training before evaluation."""

    benchmark = "ic"

    def __init__(self, source: Path, root: Path, progress: Tracker) -> None:
        """List the set at `source`, to be staged in `root`. Raises DataError as `load_index` does."""
        self._source, self._root = source, root
        self._index = load_index(source, progress=progress)
        self.fingerprint = self._index.fingerprint
        self.paths = (*self._index.train.paths, *self._index.val.paths)
        self.sizes_bytes: Sizes = np.concatenate([split.sizes_bytes for split in self._index.splits])

    def time_ns(self, number: int) -> int | None:
        """Modification time of a file: unknown. `--verify` finds a file that changes but keeps its size."""
        del number
        return None

    def needed(self, recipes: Sequence[Recipe]) -> Marks:
        """All evaluation images, and the training images that are drawn or that evaluate members out of bag."""
        training = len(self._index.train)
        marks = np.ones(len(self.paths), np.bool_)
        marks[:training] = not recipes
        strata = {"class": np.bincount(self._index.train.labels).tolist()}
        for recipe in recipes:
            drawn = training_samples(recipe, training, strata).drawn
            marks[slice(training) if drawn is None else drawn] = True
            if recipe.ensemble is not None:
                marks[probe(training, recipe.ensemble.out_of_bag_samples)] = True
        return marks

    def describe(self) -> None:
        """Write the index of the whole set into the staged folder. Raises OSError."""
        write_unsynced(state_folder(self._root) / INDEX, pack_index(self._index, {}))

    def require_same(self) -> None:
        """Raise DataError if drawn files have other bytes than when they were staged: names and sizes are the same."""
        listed = read_manifest(self._root)
        drawn = {path: listed[path] for path in drawn_for_content(self._index) if path in listed}
        try:
            is_same = same_bytes(self._source, drawn)
        except OSError as error:
            raise _unreadable(str(error.filename or self._source), error) from error
        if not is_same:
            raise changed(f"{self._source}: images")

    def finish(self, recipes: Sequence[Recipe]) -> None:
        """Copy the content fingerprint, if it is known at the source."""
        del recipes
        if (content := load_content(self._index)) is not None:
            store_content(load_index(self._root), content)


class _Years:
    """Climate files, one for each year."""

    benchmark = "ewa"

    def __init__(self, source: Path, root: Path, progress: Tracker) -> None:
        """Open the years at `source`, to be staged in `root`.

        Raises:
            DataError: as `load_climate_index` does; `source` is a staged folder with a part of its set.
        """
        self._source, self._root, self._progress = source, root, progress
        require_whole(source)
        self._index = load_climate_index(source, progress=progress)
        self.fingerprint = self._index.fingerprint
        self._years = tuple(as_staged(year) for year in self._index.years)
        self.paths = tuple(year.name for year in self._years)
        self.sizes_bytes: Sizes = np.array([year.size_bytes for year in self._years], np.int64)

    def time_ns(self, number: int) -> int | None:
        """Modification time of a file when the set was opened: the source may change during a long copy."""
        return self._years[number].mtime_ns

    def needed(self, recipes: Sequence[Recipe]) -> Marks:
        """The training and evaluation years: a run opens all of them, and reads their statistics."""
        names = {year.path.name for recipe in recipes for year in self._years_of(recipe)}
        return np.array([not recipes or path in names for path in self.paths], np.bool_)

    def describe(self) -> None:
        """Write the list of years of the whole set into the staged folder. Raises OSError."""
        write_years(self._root, self._years)

    def require_same(self) -> None:
        """Raise DataError if a file has another size or time than when the set was staged."""
        known = read_years(self._root)
        for now in self._years:
            if now not in known:
                raise changed(f"{self._source}/{now.name}")

    def finish(self, recipes: Sequence[Recipe]) -> None:
        """Store the known contents of years, measuring those that a run would have to, and open the staged years.

        Raises:
            DataError: the staged years differ from those of the source.
        """
        needed = {year.year: year for recipe in recipes for year in self._years_of(recipe)}
        known = values.load_contents(self._index.years)
        if missing := [year for year in needed.values() if year.year not in known]:
            known |= values.measure(missing, progress=self._progress)
        staged = load_climate_index(self._root)
        if known:
            values.store_contents(self._root, staged.years, known)
        content, found = climate_index.load_content_fingerprint(self._index), read_set(self._root)
        assert found is not None
        if content not in (None, found.content_fingerprint):
            write_set(self._root, replace(found, content_fingerprint=content))

    def _years_of(self, recipe: Recipe) -> tuple[YearFile, ...]:
        problem = recipe.problem
        assert isinstance(problem, ClimateProblem)
        return (*self._index.select(*problem.training_years), *self._index.select(*problem.evaluation_years))


_Set = _Images | _Years


def _marks(paths: Sequence[str], listed: Collection[str]) -> Marks:
    """Which of `paths` are listed."""
    return np.fromiter((path in listed for path in paths), np.bool_, len(paths))


# ----------------------------------------------------------------------------------------------------
# The folder holds one set, and one process at a time changes it.


# Entries of the root of a file system that hold no data.
_NO_DATA = {"lost+found"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _require_apart(source: Path, root: Path) -> None:
    """Raise DataError unless `root` can be a staged folder of the set at `source`."""
    origin, place = source.resolve(), root.resolve()
    if why := why_not("folder", source):
        raise DataError(f"{source}: {why}; give the folder of the data set")
    if place == origin or place.is_relative_to(origin):
        raise DataError(f"{root}: inside the set {source}; choose a folder on the node's local storage")
    if origin.is_relative_to(place):
        raise DataError(f"{root}: contains the set {source}; choose a separate folder")
    if place.exists() and not place.is_dir():
        raise DataError(f"{root}: not a folder; choose another one")
    if place.is_dir() and not (place / FOLDER).is_dir():
        foreign = sorted(entry.name for entry in place.iterdir() if entry.name not in {*_NO_DATA, FOLDER})
        if foreign:
            raise DataError(
                f"{root}: holds files that staging did not write ({foreign[0]}): choose another folder, such as one "
                "inside it"
            )


def _claim(request: StageRequest, source: _Set) -> None:
    """Describe the set in the folder, unless that is done already. The lock must be held.

    Raises:
        DataError: the folder holds another set, the source has changed, or others need what an older version staged.
        OSError: the folder cannot be written.
    """
    root, path, found = request.root, str(request.source.resolve()), read_any_set(request.root)
    _remove_parts(root)
    if found is not None and found[1]:
        needs = read_needs(root)
        others = any(need.name != request.name and not need.is_abandoned for need in needs.values())
        if others or (found[0].benchmark, found[0].fingerprint) != (source.benchmark, source.fingerprint):
            raise staged_by_older(root, found[0])
        _remove_all(root, found[0], needs, is_old=True)
        found = None
    if found is None:
        shutil.rmtree(state_folder(root) / NAMES, ignore_errors=True)
        (state_folder(root) / MANIFEST).unlink(missing_ok=True)
        source.describe()
        with contextlib.suppress(FileNotFoundError):
            write_unsynced(root / derived.MANIFEST, (request.source / derived.MANIFEST).read_bytes())
        write_set(root, StagedSet(source.benchmark, path, source.fingerprint, len(source.paths)))
        return
    staged = found[0]
    if (staged.benchmark, staged.fingerprint) != (source.benchmark, source.fingerprint):
        what = "has changed since" if staged.source == path else "is another set"
        raise DataError(
            f"{root}: the set {staged.source} is staged there, but {request.source} {what}: choose another folder, or "
            f"release this one: {staged.command(root)} --release"
        )
    source.require_same()


@contextmanager
def _locked(root: Path, progress: Tracker, say: Say) -> Iterator[bool]:
    """Hold the lock of `root`, creating the folder if needed; yields whether another process held it before.

    Raises:
        EnvironmentLacksError: files cannot be locked there.
        UsageError: the folder belongs to another user.
        OSError: the folder cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        _require_ours(root)
    with ExitStack() as bars:
        waiting = _Waiting(root, f"{root}: waiting for another staging there", bars, progress, say)
        with locked(state_folder(root) / LOCK, waiting.look) as waited:
            bars.close()
            _require_ours(root)
            yield waited


def _require_ours(root: Path) -> None:
    """Raise UsageError if another user owns the folder: that user could have put other samples there."""
    owner = root.stat().st_uid
    if owner not in (os.geteuid(), 0):
        raise UsageError(f"{root}: belongs to another user (uid {owner}): choose a folder of your own")


class _Waiting:
    """Shows the progress of the process that holds the lock, while this one waits."""

    def __init__(self, root: Path, message: str, bars: ExitStack, progress: Tracker, say: Say) -> None:
        self._path, self._message = state_folder(root) / PROGRESS, message
        self._bars, self._progress, self._say = bars, progress, say
        self._bar: Progress | None = None
        self._shown = self._total = 0

    def look(self) -> None:
        """Show how far the other process is."""
        if self._message:
            self._say(self._message)
            self._message = ""
        done, total = self._read_progress()
        if total and total != self._total:
            self._bars.close()
            self._bar = self._bars.enter_context(self._progress(total, "waiting for another staging", "MB"))
            self._shown, self._total = 0, total
        if self._bar is not None:
            self._bar.advance(max(0, done - self._shown))
            self._shown = max(done, self._shown)

    def _read_progress(self) -> tuple[int, int]:
        try:
            document = json.loads(self._path.read_bytes())
            return int(document["done"]), int(document["total"])
        except (OSError, *DAMAGED):
            return 0, 0


@contextmanager
def _write_errors(root: Path) -> Iterator[None]:
    """Report storage that is full or cannot be written, in one line. The next call continues."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        reason = f"{os.strerror(error.errno or 0)}{f' ({where})' if where else ''}"
        remedy = "make room" if error.errno in _FULL else "fix it"
        raise RunError(
            f"{root}: cannot be written: {reason}; complete files are kept: {remedy}, and run the same command again"
        ) from error


def _is_inside(root: Path, folder: str) -> bool:
    """Whether a path is really inside `root`, without links or `..`."""
    return (root / folder).resolve() == root.resolve() / folder


# ----------------------------------------------------------------------------------------------------
# Changes of the manifest, with the lock held.


def _open_manifest(root: Path) -> int:
    """Open the manifest to append after its last complete line. Raises OSError."""
    manifest = os.open(state_folder(root) / MANIFEST, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    content = (state_folder(root) / MANIFEST).read_bytes()
    os.ftruncate(manifest, content.rfind(b"\n") + 1)
    return manifest


def _append(manifest: int, line: bytes) -> None:
    """Append a line, all of it or nothing. Raises OSError."""
    end = os.fstat(manifest).st_size
    if os.write(manifest, line) != len(line):
        os.ftruncate(manifest, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unlist(root: Path, removed: Collection[str]) -> None:
    """Take files off the manifest, before they are removed or copied again. Raises OSError."""
    if removed and (path := state_folder(root) / MANIFEST).exists():
        lines = path.read_bytes().splitlines(keepends=True)
        write_manifest(
            root,
            [line for line in lines if line.endswith(b"\n") and from_utf8(json.loads(line)["path"]) not in removed],
        )


# ----------------------------------------------------------------------------------------------------
# Copying of a file, and its SHA-256.


_BLOCK_BYTES = 2**20


class _Stopped(Exception):  # noqa: N818 - not an error: another thread failed, or the user interrupted
    """The work was stopped."""


_PART = ".hpcai500-part-"


def _part_name(number: int) -> str:
    """The name of an unfinished copy, in the folder of its target: ext4 places all files of one folder close together.

    An unfinished copy of a killed staging is overwritten, or removed with its file.
    """
    return f"{_PART}{number}"


def _copy_file(source: str, part: Path, expected: tuple[int, int | None], count: Callable[[int], None]) -> str:
    """Copy a file with its times to `part`, onto the disk; returns its SHA-256 (hex).

    Args:
        source: must have the `expected` size and time in ns (None: any).
        part: overwritten if it exists; removed if copying fails.
        count: called with the number of bytes copied; an exception ends the copy.

    Raises:
        DataError: the source cannot be read, or changes meanwhile.
        OSError: the copy cannot be written.
    """
    with _opened(source) as original:
        before = os.fstat(original)
        if before.st_size != expected[0] or expected[1] not in (None, before.st_mtime_ns):
            raise changed(source)
        os.posix_fadvise(original, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        copy = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:

            def write(block: bytes) -> bytes:
                written = os.write(copy, block)
                while written < len(block):
                    written += os.write(copy, memoryview(block)[written:])
                return block

            sha256 = _sha256(map(write, _source_blocks(original, source)), count)
            after = os.fstat(original)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise changed(source)
            os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
            os.fsync(copy)
        except BaseException:
            part.unlink()
            raise
        finally:
            os.close(copy)
    return sha256


def _sha256(blocks: Iterable[bytes], count: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        count(len(block))
    return digest.hexdigest()


def _blocks(descriptor: int) -> Iterator[bytes]:
    while block := os.read(descriptor, _BLOCK_BYTES):
        yield block


def _source_blocks(descriptor: int, path: str) -> Iterator[bytes]:
    try:
        yield from _blocks(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a file at the source. Raises DataError if it cannot be read, or is not a regular file."""
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise DataError(f"{path}: not a regular file; replace it by the file, or a link to it")
        yield descriptor
    finally:
        os.close(descriptor)


def changed(path: str) -> DataError:
    """The error for a file that has changed."""
    return DataError(
        f"{path}: changed since the set was listed or staged: release the staged set (--release), and stage it again, "
        "without changing the source meanwhile"
    )


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}; check permissions, links and mount")


# ----------------------------------------------------------------------------------------------------
# Threads for many files: they wait for storage, and hashing releases the GIL.


# A shared file system has a high latency: more threads than cores keep it busy.
_LEAST_THREADS, _MOST_THREADS = 4, 32
# Files that one thread takes at a time.
_MOST_PER_BATCH = 16
_MEGABYTE = 10**6
_WRITE_SECONDS = 0.5


def _default_threads() -> int:
    """Two for each core of this job, within limits."""
    return min(_MOST_THREADS, max(_LEAST_THREADS, 2 * len(os.sched_getaffinity(0))))


class Meter:
    """Counts megabytes for the progress bar and for waiting processes, and stops threads.

    Args:
        total_bytes: bytes of the whole work.
        root: staged folder, where waiting processes read the progress.
    """

    def __init__(self, bar: Progress, total_bytes: int, root: Path) -> None:
        self._bar, self._total, self._path = bar, megabytes(total_bytes), state_folder(root) / PROGRESS
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._bytes = self._reported = 0
        self._written_time = 0.0

    def add(self, count_bytes: int) -> None:
        """Count bytes that are done, from any thread. Raises _Stopped as `check_stopped` does."""
        self.check_stopped()
        with self._lock:
            self._bytes += count_bytes
            whole = self._bytes // _MEGABYTE
            if whole > self._reported:
                self._bar.advance(whole - self._reported)
                self._reported = whole
                self._write()

    def check_stopped(self) -> None:
        """Raise _Stopped if the work was stopped."""
        if self._stopped.is_set():
            raise _Stopped

    def stop(self) -> None:
        """Stop all threads."""
        self._stopped.set()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        # Nothing is left to wait for.
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        now = time.monotonic()
        if now - self._written_time < _WRITE_SECONDS:
            return
        self._written_time = now
        # A partly written file is invalid JSON and is ignored; a full disk is reported when data are written.
        with contextlib.suppress(OSError):
            self._path.write_text(json.dumps({"done": self._reported, "total": self._total}), encoding="ascii")


def megabytes(count_bytes: int) -> int:
    """Whole megabytes, at least one."""
    return max(1, count_bytes // _MEGABYTE)


# ----------------------------------------------------------------------------------------------------
# The seek index of images.


_LEAST_IMAGE_TO_INDEX_BYTES = 10


def _seek_index_bytes(root: Path) -> int:
    try:
        return (root / SEEK_INDEX).stat().st_size
    except OSError:
        return 0


def _has_seek_index(index: Path, root: Path) -> bool:
    """Whether a usable index as new as `index` is staged: after a crash of the node it may hold zeros."""
    here = root / SEEK_INDEX
    if not here.exists() or here.stat().st_mtime_ns < index.stat().st_mtime_ns:
        return False
    try:
        SeekIndex(os.fsencode(here))
    except (OSError, ValueError, MemoryError):
        return False
    return True


def _copy_seek_index(index: Path, root: Path, progress: Tracker) -> None:
    part, size_bytes = state_folder(root) / "seek-index", index.stat().st_size
    with progress(megabytes(size_bytes), "staging the seek index", "MB") as bar, Meter(bar, size_bytes, root) as meter:
        _copy_file(str(index), part, (size_bytes, None), meter.add)
    part.replace(root / SEEK_INDEX)


# ----------------------------------------------------------------------------------------------------
# Whether the files fit, before anything is copied.


@dataclass(frozen=True)
class Room:
    """The space for a staged folder.

    Attributes:
        block_bytes: size of a block; files take whole blocks.
        free_bytes: bytes that this user can still write.
        free_files: number of files that can still be created; None without a limit.
        limit_bytes: the most for all staged files; None: the whole storage.
    """

    block_bytes: int
    free_bytes: int
    free_files: int | None
    limit_bytes: int | None

    def taken(self, sizes: Sizes, marks: Marks) -> int:
        """Bytes of storage that the marked files take."""
        return int((-(-sizes[marks] // self.block_bytes)).sum()) * self.block_bytes

    def left_bytes(self, sizes: Sizes, here: Marks) -> int:
        """Bytes that can still be written, with the files `here`."""
        if self.limit_bytes is None:
            return self.free_bytes
        return min(self.free_bytes, self.limit_bytes - self.taken(sizes, here))

    def lacks(self, sizes: Sizes, here: Marks, missing: Marks, beside_bytes: int = 0) -> str | None:
        """Why the `missing` files do not fit beside those `here`, or None.

        `beside_bytes` are the bytes of other files that count for the limit.
        """
        needed, files = self.taken(sizes, missing), int(missing.sum())
        there = self.taken(sizes, here) + beside_bytes
        if self.limit_bytes is not None and there + needed > self.limit_bytes:
            return f"{size(needed)} to copy and {size(there)} staged exceed the --limit of {size(self.limit_bytes)}"
        if needed > self.free_bytes:
            return f"{size(needed)} to copy, but {size(self.free_bytes)} are free"
        if self.free_files is not None and files > self.free_files:
            return f"{files} files to create, but the file system has room for {self.free_files}"
        return None


def room_of(root: Path, limit_bytes: int | None) -> Room:
    """The space left in the storage of `root`. Raises OSError."""
    status = os.statvfs(root)
    free_files = status.f_favail if status.f_files else None
    return Room(status.f_frsize, shutil.disk_usage(root).free, free_files, limit_bytes)
