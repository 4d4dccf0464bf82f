"""What a node holds for several members: each by its name, in processes of their own, also killed; and a seek index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import HPCAI500
from builders.data import encoded_picture, picture, settle, write_tree
from builders.runs import member_recipe, written
from staged_sets import files_of, parts_of, staged

from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, SeekCounts, make_seek_index
from hpcai500.data.staged import FOLDER, LOCK, PROGRESS, read_needs
from hpcai500.data.staging import Room, StageRequest, release, stage
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.files import locked
from hpcai500.layers import Recipe
from hpcai500.progress import Progress, silent
from hpcai500.system import process
from hpcai500.system.process import is_gone, owner_of

STAGE = [*HPCAI500, "data", "stage", "ic"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source", train=10, val=2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node" / "set"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Forty megabytes in as many files, so that copying takes long enough to be met."""
    write_tree(tmp_path / "large", train=19, val=1)
    for path in (tmp_path / "large").rglob("*.JPEG"):
        path.write_bytes(os.urandom(10**6))
    return tmp_path / "large"


def seeded(seed: int) -> Recipe:
    return member_recipe("ic", f"hyperparameters.seed={seed}", "ensemble.out_of_bag_samples=0")


def ended_process() -> str:
    """The token of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        token = owner_of(process.pid)
        assert token
        assert not is_gone(token)
        process.communicate(b"\n")
    return token


def wait_until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Until `condition` holds, or `process` has ended; the limit is for what never comes."""
    limit = time.monotonic() + 600
    while not condition() and (process is None or process.poll() is None):
        assert time.monotonic() < limit
        time.sleep(0.002)


def test_what_members_share_is_copied_once_and_goes_with_the_last_of_them(source: Path, root: Path) -> None:
    first = staged(source, root, name="first", recipes=[seeded(1)])
    only_first = files_of(root)
    second = staged(source, root, name="second", recipes=[seeded(2)])
    both = files_of(root)
    assert second.copied == len(both) - len(only_first) < second.needed
    released = release(root, "first")
    assert (released.released, released.needed_by) == (("first",), ("second",))
    assert len(files_of(root)) == second.needed
    assert released.removed == len(both) - second.needed > 0
    staged(source, root, name="first", recipes=[seeded(1)])
    assert files_of(root) == both
    assert release(root, "second").removed == len(both) - first.needed
    assert files_of(root) == only_first
    assert release(root, "nobody").removed == 0
    assert release(root, None).released == ("first",)
    assert not root.exists()


def test_a_member_that_asks_again_with_another_recipe_needs_only_that(source: Path, root: Path, tmp_path: Path) -> None:
    staged(source, root, name="one", recipes=[seeded(1)])
    expected = staged(source, root, name="one", recipes=[seeded(2)])
    staged(source, root, name="two", recipes=[seeded(3)])
    release(root, "two")
    staged(source, tmp_path / "other", name="one", recipes=[seeded(2)])
    assert len(files_of(tmp_path / "other")) == expected.needed
    assert files_of(tmp_path / "other").items() <= files_of(root).items()


def test_members_at_once_copy_each_file_once(large: Path, root: Path) -> None:
    command = [*STAGE, str(large), str(root), "--json", "--threads", "1"]
    started = [
        subprocess.Popen([*command, "--for", f"m{number}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    ended = [(process.communicate(), process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0, 0], ended
    documents = [json.loads(stdout) for (stdout, _), _ in ended]
    assert sum(document["copied"] for document in documents) == 40
    assert {document["needed"] for document in documents} == {40}
    assert files_of(root) == files_of(large)


def test_who_comes_second_waits_and_sees_how_far_the_first_one_is(source: Path, root: Path) -> None:
    told, seen = list[str](), list[tuple[str, int]]()

    @contextmanager
    def tracker(total: int, description: str, unit: str) -> Iterator[Progress]:
        seen.append((f"{description} {unit}", total))

        class Bar:
            def advance(self, n: int = 1) -> None:
                seen.append(("advance", n))

        yield Bar()

    order = StageRequest("ic", source, root, "second")
    with ThreadPoolExecutor(1) as pool, locked(root / FOLDER / LOCK, "") as waited:
        assert not waited
        second = pool.submit(stage, order, tracker, told.append)
        wait_until(lambda: told)
        (root / FOLDER / PROGRESS).write_text('{"done": 4, "total": 9}')
        wait_until(lambda: ("advance", 4) in seen)
        assert not second.done()
    assert second.result().copied == 24
    assert told == [f"{root}: waiting for another staging there"]
    assert seen[:2] == [("waiting for another staging MB", 9), ("advance", 4)]


def test_who_waited_puts_its_own_name_to_what_its_killed_attempt_has_left(source: Path, root: Path) -> None:
    mine, told = owner_of(os.getpid()), list[str]()
    staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)])
    again = StageRequest("ic", source, root, "one", (seeded(1),), mine)
    with ThreadPoolExecutor(1) as pool, locked(root / FOLDER / LOCK, ""):
        waiting = pool.submit(stage, again, silent, told.append)
        wait_until(lambda: told)
    assert waiting.result().copied == 0
    # Else, whoever needs the space would take it while this attempt trains.
    assert not read_needs(root)["one"].is_abandoned
    assert release(root, "another").needed_by == ("one",)


# --- killed and stopped


def test_killed_at_any_moment_the_next_one_goes_on_and_all_is_whole(large: Path, root: Path) -> None:
    command = [*STAGE, str(large), str(root), "--json", "--threads", "2"]
    whole = files_of(large)
    kills = 0
    for least in (3, 12, 25):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        wait_until(lambda least=least: len(list(root.rglob("*.JPEG"))) >= least, process)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        # What has its name is whole; what is not whole has no name.
        assert files_of(root).items() <= whole.items()
    assert kills > 0
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["copied"] < 40
    assert files_of(root) == whole
    assert parts_of(root) == []


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ended_it_nothing_half_written_counts_and_a_release_leaves_nothing(
    large: Path, root: Path, sent: signal.Signals
) -> None:
    process = subprocess.Popen([*STAGE, str(large), str(root)], stderr=subprocess.PIPE)
    wait_until(lambda: len(list(root.rglob("*.JPEG"))) >= 5, process)
    process.send_signal(sent)
    _, told = process.communicate()
    assert files_of(root).items() <= files_of(large).items()
    if sent == signal.SIGTERM:
        assert process.returncode == 128 + sent, told
        assert parts_of(root) == []
    else:
        assert process.returncode == -sent
        # What it may have been at.
        (root / "train" / "cat").mkdir(exist_ok=True)
        (root / "train" / "cat" / ".hpcai500-part-0").write_bytes(b"half")
    assert release(root, "default").left == ()
    assert not root.exists()


def test_a_killed_member_pins_no_space_once_another_one_needs_it(tmp_path: Path) -> None:
    source, root, mine = write_tree(tmp_path / "source", train=40), tmp_path / "set", owner_of(os.getpid())
    staged(source, root, name="one", owner=mine, recipes=[seeded(1)])
    staged(source, root, name="other", owner=mine, recipes=[seeded(2)])
    # A file takes a block here. A third member lacks 7; without the first one, 5 others may go.
    limit = (len(files_of(root)) + 4) * 4096
    with pytest.raises(EnvironmentLacksError, match="not enough space"):
        staged(source, root, name="third", owner=mine, recipes=[seeded(3)], limit_bytes=limit)
    # As long as there is room, the copy of a killed member waits for its next attempt.
    assert staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)]).copied == 0
    assert staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)]).copied == 0
    assert staged(source, root, name="third", owner=mine, recipes=[seeded(3)], limit_bytes=limit).copied == 7
    assert len(files_of(root)) * 4096 <= limit
    assert release(root, "third").needed_by == ("other",)


def test_a_release_takes_what_killed_members_have_left(source: Path, root: Path) -> None:
    staged(source, root, name="killed", owner=ended_process(), recipes=[seeded(1)])
    staged(source, root, name="last", owner=owner_of(os.getpid()), recipes=[seeded(2)])
    assert release(root, "last").released == ("killed", "last")
    assert not root.exists()


def test_a_process_is_gone_only_where_that_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = owner_of(os.getpid())
    host, boot, namespace, number, start = mine.split(" ")
    assert not is_gone(mine)
    assert is_gone(" ".join((host, boot, namespace, number, "1")))
    assert is_gone(" ".join((host, "earlier", namespace, number, start)))
    assert not is_gone(" ".join((host, boot, "pid:[1]", "1", start)))
    assert not is_gone(" ".join(("elsewhere", "another", namespace, "1", start)))
    assert not is_gone("")
    monkeypatch.setattr(process, "boot", lambda: "")
    assert not is_gone(" ".join((host, boot, namespace, number, "1")))


def test_a_process_that_proc_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, another = owner_of(os.getpid()), owner_of(os.getppid())
    hidden = process.owner_of
    # A mock of /proc mounted with hidepid, under which another user's process cannot be read.
    monkeypatch.setattr(process, "owner_of", lambda pid: hidden(pid) if pid == os.getpid() else "")
    assert not is_gone(another)
    assert is_gone(mine.replace(f" {os.getpid()} ", " 4194304 "))


# --- room


def test_what_does_not_fit_is_refused_before_anything_is_copied(source: Path, root: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"not enough space: .* exceed the --limit of .*--release") as error:
        staged(source, root, limit_bytes=20_000)
    assert "\n" not in str(error.value)
    assert files_of(root) == {}
    # Who was refused needs nothing: the next release takes the folder.
    staged(source, root, name="small", limit_bytes=200_000)
    assert release(root, "small").needed_by == ()


def test_room_counts_whole_blocks_and_files_and_says_what_is_left() -> None:
    sizes, here, missing = np.array([1, 4096, 4097]), np.array([True, False, False]), np.array([False, True, True])
    assert Room(4096, 12288, None, None).lacks(sizes, here, missing) is None
    assert "12288" not in str(Room(4096, 12287, None, None).lacks(sizes, here, missing))
    assert Room(4096, 12287, None, None).lacks(sizes, here, missing) is not None
    assert Room(4096, 10**9, None, 16384).lacks(sizes, here, missing) is None
    assert "--limit" in str(Room(4096, 10**9, None, 16383).lacks(sizes, here, missing))
    assert "2 files to create" in str(Room(4096, 10**9, 1, None).lacks(sizes, here, missing))
    sizes, here = np.array([1, 4096, 5000]), np.array([True, True, False])
    for free, limit, left in ((10**6, None, 10**6), (10**6, 20_000, 20_000 - 2 * 4096), (100, 20_000, 100)):
        assert Room(4096, free, None, limit).left_bytes(sizes, here) == left


def test_a_disk_that_fills_up_is_told_in_one_line_and_nothing_half_written_counts(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written_bytes = os.write, 0

    def filling(descriptor: int, content: bytes) -> int:
        # A mock: a full disk cannot be had without root. Of the last block only a part fits.
        nonlocal written_bytes
        if len(content) > 100:
            if written_bytes > 6000:
                raise OSError(28, "No space left on device")
            content = content[: max(1, 6500 - written_bytes)]
            written_bytes += len(content)
        return write(descriptor, content)

    with monkeypatch.context() as context:
        context.setattr(os, "write", filling)
        with pytest.raises(RunError, match="No space left on device; complete files are kept: make room") as error:
            staged(source, root, threads=1)
    assert "\n" not in str(error.value)
    kept = files_of(root)
    assert kept.items() <= files_of(source).items()
    assert parts_of(root) == []
    # The last one may be whole, and not listed any more.
    assert 24 - len(kept) <= staged(source, root).copied <= 24 - len(kept) + 1


def test_recipes_are_files_and_several_are_joined(source: Path, root: Path, tmp_path: Path, call: Any) -> None:
    recipes = [str(written(seeded(seed), tmp_path / f"{seed}.toml")) for seed in (1, 2)]
    tokens = [token for recipe in recipes for token in ("--recipe", recipe)]
    out, _ = call("stage", "ic", source, root, *tokens, "--json")
    for name in (1, 2):
        staged(source, tmp_path / "other", name=str(name), recipes=[seeded(name)])
    assert json.loads(out)["needed"] == len(files_of(tmp_path / "other"))
    assert files_of(root) == files_of(tmp_path / "other")


# --- a seek index goes with the set, as far as there is room; staging never fails of it


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """Sixteen training and four validation images that are worth an index."""
    source = write_tree(tmp_path / "indexed", train=8, val=2)
    for number, path in enumerate(sorted(source.rglob("*.JPEG"))):
        path.write_bytes(encoded_picture(picture(number, 64, 100), quality=96))
    settle(source)
    return source


MEMBER = ("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=3")


def said_of(source: Path, root: Path, **options: Any) -> list[str]:
    """What is said while it is staged."""
    said: list[str] = []
    stage(StageRequest("ic", source, root, options.pop("name", "somebody"), **options), say=said.append)
    return said


def seek_of(root: Path) -> SeekCounts:
    """What became of the index for all images that are evaluated on."""
    index = load_index(root)
    batches = JpegBatches(index.val, root, batch_size=8, threads=1, size=16, mode="random")
    try:
        return next(batches.epoch([np.arange(len(index.val))], seed=1, epoch=0)).seek
    finally:
        batches.close()


def blocks_of(source: Path) -> int:
    """What the images take on a disk."""
    return 4096 * sum(-(-path.stat().st_size // 4096) for path in source.rglob("*.JPEG"))


@pytest.mark.parametrize("in_cache", [False, True])
def test_an_index_is_staged_with_the_set_and_goes_with_it(indexed: Path, root: Path, in_cache: bool) -> None:
    assert said_of(indexed, root) == []
    assert not (root / SEEK_INDEX).exists()
    # It comes with the next staging.
    index = make_seek_index(indexed, in_cache=in_cache).path
    assert said_of(indexed, root) == []
    assert (root / SEEK_INDEX).read_bytes() == index.read_bytes()
    assert parts_of(root) == []
    assert seek_of(root) == SeekCounts(used=4)
    assert release(root, None).left == ()
    assert not root.exists()


def test_a_part_of_the_set_is_served_by_the_index_of_the_whole_unless_images_need_the_room(
    indexed: Path, root: Path
) -> None:
    make_seek_index(indexed)
    assert said_of(indexed, root, recipes=[member_recipe(*MEMBER)]) == []
    before = files_of(root)
    assert len(before) < 20
    # It stays where the images do not fit without it either.
    with pytest.raises(EnvironmentLacksError, match="exceed the --limit"):
        said_of(indexed, root, name="all", limit_bytes=4096)
    assert files_of(root) == before
    assert seek_of(root) == SeekCounts(used=4)
    said_of(indexed, root, name="all", limit_bytes=blocks_of(indexed))
    assert files_of(root) == files_of(indexed)
    assert not (root / SEEK_INDEX).exists()


def test_an_index_that_is_made_in_the_folder_stays_where_it_is_newer_and_goes_with_it(
    indexed: Path, root: Path
) -> None:
    index = make_seek_index(indexed).path
    said_of(indexed, root)
    made = make_seek_index(root).path
    before = made.stat()
    os.utime(index, ns=(before.st_mtime_ns - 1, before.st_mtime_ns - 1))
    said_of(indexed, root)
    assert made.stat().st_ino == before.st_ino
    assert seek_of(root) == SeekCounts(used=4)
    release(root, None)
    assert not root.exists()


def test_one_that_a_crash_of_the_node_has_zeroed_is_copied_again(indexed: Path, root: Path) -> None:
    index = make_seek_index(indexed).path
    said_of(indexed, root)
    here = root / SEEK_INDEX
    before = here.stat()
    here.write_bytes(bytes(before.st_size))
    os.utime(here, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert said_of(indexed, root) == []
    assert here.read_bytes() == index.read_bytes()
    assert here.stat().st_mtime_ns == index.stat().st_mtime_ns


def test_copying_it_shows_how_far_it_is(indexed: Path, root: Path) -> None:
    make_seek_index(indexed)
    shown: list[tuple[str, str]] = []

    def show(total: int, description: str, unit: str) -> AbstractContextManager[Progress]:
        shown.append((description, unit))
        return silent(total, description, unit)

    for _ in range(2):
        stage(StageRequest("ic", indexed, root, "somebody"), show)
    assert shown.count(("staging the seek index", "MB")) == 1


def test_one_that_cannot_be_used_or_is_too_large_is_not_copied_and_told(
    indexed: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = make_seek_index(indexed).path
    whole, not_copied = index.read_bytes(), f"the seek index {index} is not copied: "
    (said,) = said_of(indexed, root, limit_bytes=blocks_of(indexed) + 100)
    assert said.startswith(f"{not_copied}no space for its ")
    index.write_bytes(whole + bytes(40_000))
    (said,) = said_of(indexed, root)
    assert said.startswith(f"{not_copied}it takes 0.04")
    assert said.endswith(f" MB of images; make one there by `hpcai500 data index ic {root}`")
    index.write_bytes(whole[:-1])
    assert said_of(indexed, root) == []
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} is truncated: it is not copied; "
        f"rebuild it by `hpcai500 data index ic {indexed}`\n"
    )
    assert not (root / SEEK_INDEX).exists()


def test_a_copy_that_fails_is_told_and_leaves_nothing(
    indexed: Path, root: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    index, reason, write = make_seek_index(indexed).path, "No space left on device", os.write

    def full(descriptor: int, content: bytes) -> int:
        # A mock: a full disk cannot be had without root.
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "seek-index":
            raise OSError(28, reason)
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    assert call("stage", "ic", indexed, root, "--json")[1] == (
        f"hpcai500: the seek index {index} is not copied: {reason}; make one there by `hpcai500 data index ic {root}`\n"
    )
    assert parts_of(root) == []
    assert files_of(root) == files_of(indexed)
    assert not (root / SEEK_INDEX).exists()
