"""Several members on one node: each by its name, in processes of their own, also killed ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from image_tree import write_tree
from member_runs import member_recipe, written
from staged_sets import files_of, parts_of, staged

from hpcai500.data.staged import FOLDER, LOCK, PROGRESS, read_needs
from hpcai500.data.staging import Order, Room, release, stage
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.files import locked
from hpcai500.layers import Recipe
from hpcai500.progress import Progress, silent
from hpcai500.system import process
from hpcai500.system.process import is_gone, owner_of

STAGE = [sys.executable, "-m", "hpcai500.data", "stage", "ic"]


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source", train=10, val=2)


def large_set(root: Path, files: int) -> Path:
    """As many megabytes as there are files, so that copying takes long enough to be met."""
    write_tree(root, train=files // 2 - 1, val=1)
    for path in root.rglob("*.JPEG"):
        path.write_bytes(os.urandom(10**6))
    return root


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


def test_what_members_share_is_copied_once_and_goes_with_the_last_of_them(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
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


def test_a_member_that_asks_again_with_another_recipe_needs_only_that(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set", name="one", recipes=[seeded(1)])
    expected = staged(source, tmp_path / "set", name="one", recipes=[seeded(2)])
    staged(source, tmp_path / "set", name="two", recipes=[seeded(3)])
    release(tmp_path / "set", "two")
    staged(source, tmp_path / "other", name="one", recipes=[seeded(2)])
    assert len(files_of(tmp_path / "other")) == expected.needed
    assert files_of(tmp_path / "other").items() <= files_of(tmp_path / "set").items()


def test_members_at_once_copy_each_file_once(tmp_path: Path) -> None:
    source, root = large_set(tmp_path / "source", 60), tmp_path / "set"
    command = [*STAGE, str(source), str(root), "--json", "--threads", "1"]
    started = [
        subprocess.Popen([*command, "--for", f"m{number}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    ended = [(process.communicate(), process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0, 0], ended
    documents = [json.loads(stdout) for (stdout, _), _ in ended]
    assert sum(document["copied"] for document in documents) == 60
    assert {document["needed"] for document in documents} == {60}
    assert files_of(root) == files_of(source)


def test_who_comes_second_waits_and_sees_how_far_the_first_one_is(source: Path, tmp_path: Path) -> None:
    root, told, seen = tmp_path / "set", list[str](), list[tuple[str, int]]()

    @contextmanager
    def tracker(total: int, description: str, unit: str) -> Iterator[Progress]:
        seen.append((f"{description} {unit}", total))

        class Bar:
            def advance(self, n: int = 1) -> None:
                seen.append(("advance", n))

        yield Bar()

    order = Order("ic", source, root, "second")
    with ThreadPoolExecutor(1) as pool, locked(root / FOLDER / LOCK, "") as waited:
        assert not waited
        second = pool.submit(stage, order, tracker, told.append)
        while not told:
            time.sleep(0.005)
        (root / FOLDER / PROGRESS).write_text('{"done": 4, "total": 9}')
        while ("advance", 4) not in seen:
            time.sleep(0.005)
        assert not second.done()
    assert second.result().copied == 24
    assert told == [f"{root}: another staging is at work there: waiting for it"]
    assert seen[:2] == [("waiting for another staging MB", 9), ("advance", 4)]


def test_who_waited_puts_its_own_name_to_what_its_killed_attempt_has_left(source: Path, tmp_path: Path) -> None:
    root, mine = tmp_path / "set", owner_of(os.getpid())
    staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)])
    told = list[str]()
    again = Order("ic", source, root, "one", (seeded(1),), mine)
    with ThreadPoolExecutor(1) as pool, locked(root / FOLDER / LOCK, ""):
        waiting = pool.submit(stage, again, silent, told.append)
        while not told:
            time.sleep(0.005)
    assert waiting.result().copied == 0
    # Else, whoever needs the space would take it while this attempt trains.
    assert not read_needs(root)["one"].is_abandoned
    assert release(root, "another").needed_by == ("one",)


def test_killed_at_any_moment_the_next_one_goes_on_and_all_is_whole(tmp_path: Path) -> None:
    source, root = large_set(tmp_path / "source", 40), tmp_path / "set"
    command = [*STAGE, str(source), str(root), "--json", "--threads", "2"]
    whole = files_of(source)
    kills = 0
    for least in (3, 12, 25):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(root.rglob("*.JPEG"))) < least:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        # What has its name is whole; what is not whole has no name.
        assert files_of(root).items() <= whole.items()
    assert kills > 0
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["copied"] < 40
    assert files_of(root) == whole
    assert parts_of(root) == []
    subprocess.run([*command, "--release"], check=True, capture_output=True)
    assert not root.exists()


def test_a_release_after_a_kill_leaves_nothing(tmp_path: Path) -> None:
    source, root = large_set(tmp_path / "source", 40), tmp_path / "set"
    process = subprocess.Popen([*STAGE, str(source), str(root)], stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(root.rglob("*.JPEG"))) < 5:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    # What it may have been at.
    (root / "train" / "cat").mkdir(exist_ok=True)
    (root / "train" / "cat" / ".hpcai500-part-0").write_bytes(b"half")
    assert release(root, "default").left == ()
    assert not root.exists()


def test_sigterm_ends_it_with_nothing_half_written(tmp_path: Path) -> None:
    source, root = large_set(tmp_path / "source", 40), tmp_path / "set"
    process = subprocess.Popen([*STAGE, str(source), str(root)], stderr=subprocess.PIPE)
    while process.poll() is None and len(list(root.rglob("*.JPEG"))) < 5:
        time.sleep(0.002)
    process.terminate()
    _, told = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, told
    assert parts_of(root) == []
    assert files_of(root).items() <= files_of(source).items()


def test_a_killed_member_pins_no_space_once_another_one_needs_it(tmp_path: Path) -> None:
    source, root, mine = write_tree(tmp_path / "source", train=40), tmp_path / "set", owner_of(os.getpid())
    staged(source, root, name="one", owner=mine, recipes=[seeded(1)])
    staged(source, root, name="other", owner=mine, recipes=[seeded(2)])
    # A file takes a block here. A third member lacks 7; without the first one, 5 others may go.
    limit = (len(files_of(root)) + 4) * 4096
    with pytest.raises(EnvironmentLacksError, match="no room"):
        staged(source, root, name="third", owner=mine, recipes=[seeded(3)], limit_bytes=limit)
    # As long as there is room, the copy of a killed member waits for its next attempt.
    assert staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)]).copied == 0
    assert staged(source, root, name="one", owner=ended_process(), recipes=[seeded(1)]).copied == 0
    assert staged(source, root, name="third", owner=mine, recipes=[seeded(3)], limit_bytes=limit).copied == 7
    assert len(files_of(root)) * 4096 <= limit
    assert release(root, "third").needed_by == ("other",)


def test_a_release_takes_what_killed_members_have_left(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
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


def test_what_does_not_fit_is_refused_before_anything_is_copied(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    with pytest.raises(EnvironmentLacksError, match=r"no room: .* are more than the --limit of .*--release") as error:
        staged(source, root, limit_bytes=20_000)
    assert "\n" not in str(error.value)
    assert files_of(root) == {}
    # Who was refused needs nothing: the next release takes the folder.
    staged(source, root, name="small", limit_bytes=200_000)
    assert release(root, "small").needed_by == ()


def test_room_counts_whole_blocks_and_files() -> None:
    sizes, here, missing = np.array([1, 4096, 4097]), np.array([True, False, False]), np.array([False, True, True])
    assert Room(4096, 12288, None, None).lacks(sizes, here, missing) is None
    assert "12288" not in str(Room(4096, 12287, None, None).lacks(sizes, here, missing))
    assert Room(4096, 12287, None, None).lacks(sizes, here, missing) is not None
    assert Room(4096, 10**9, None, 16384).lacks(sizes, here, missing) is None
    assert "--limit" in str(Room(4096, 10**9, None, 16383).lacks(sizes, here, missing))
    assert "2 files to make" in str(Room(4096, 10**9, 1, None).lacks(sizes, here, missing))


def test_a_disk_that_fills_up_is_told_in_one_line_and_nothing_half_written_counts(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        with pytest.raises(RunError, match="No space left on device; what is whole there is kept: make room") as error:
            staged(source, tmp_path / "set", threads=1)
    assert "\n" not in str(error.value)
    kept = files_of(tmp_path / "set")
    assert kept.items() <= files_of(source).items()
    assert parts_of(tmp_path / "set") == []
    # The last one may be whole, and not listed any more.
    assert 24 - len(kept) <= staged(source, tmp_path / "set").copied <= 24 - len(kept) + 1


def test_recipes_are_files_and_several_are_joined(source: Path, tmp_path: Path) -> None:
    recipes = [str(written(seeded(seed), tmp_path / f"{seed}.toml")) for seed in (1, 2)]
    tokens = [token for recipe in recipes for token in ("--recipe", recipe)]
    ended = subprocess.run(
        [*STAGE, str(source), str(tmp_path / "set"), *tokens, "--json"], capture_output=True, text=True, check=True
    )
    staged(source, tmp_path / "other", name="1", recipes=[seeded(1)])
    staged(source, tmp_path / "other", name="2", recipes=[seeded(2)])
    assert json.loads(ended.stdout)["needed"] == len(files_of(tmp_path / "other"))
    assert files_of(tmp_path / "set") == files_of(tmp_path / "other")
