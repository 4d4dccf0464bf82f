"""`hpcai500 storage`: what is read, what is counted, what is found wrong, and what is left behind: nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.commands import HPCAI500, Typed, error_of, hpcai500
from builders.ranks import clean_environment
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.files import GuardedFolder
from hpcai500.measure import file_system
from hpcai500.measure.file_system import PAGE, Content, Piece, Room, Store
from hpcai500.methodology.storage import (
    CHECKPOINTS,
    SAMPLES,
    SPEEDS,
    Latencies,
    Samples,
    Speed,
    accelerators_busy,
    share_of,
)
from hpcai500.results.storage import (
    figure_of_merit_lines,
    read_speeds,
    require_answer,
    table_lines,
    too_few,
    with_accelerators,
)

FEW = Samples(9_000, 9_000, 1)
PARTS = Samples(3 * PAGE, PAGE, 4)


@pytest.fixture
def disk() -> Path:
    """A folder on a file system that is not in memory: pytest's own folders may lie in one that is."""
    # What is written here is removed by the test that wrote it.
    folder = Path(__file__).parents[2] / "build" / f"test-storage-{os.getpid()}"
    folder.mkdir(parents=True)
    yield folder  # type: ignore[misc]
    subprocess.run(["rm", "-rf", folder], check=True)


def written(store: Store, samples: Samples, count: int, threads: int = 2) -> list[Piece]:
    """`count` samples of rank 3 for each thread."""
    room = threads * count * -(-samples.size_bytes // PAGE) * PAGE
    counts = file_system.write_samples(store, "ic", samples, 3, threads, most_bytes=room, seconds=math.inf)
    assert counts == [count] * threads
    return [store.sample("ic", samples, 3, thread, number) for thread in range(threads) for number in range(count)]


# ----------------------------------------------------------------------------------------------------
# Mathematics.


@given(st.lists(st.floats(1e-7, 1e4), min_size=1, max_size=300), st.floats(0.01, 1))
def test_a_quantile_is_that_of_the_sorted_values_within_one_per_cent(values: list[float], share: float) -> None:
    parts = [Latencies(), Latencies()]
    for number, value in enumerate(values):
        parts[number % 2].add(value)
    merged = Latencies.merged(parts)
    exact = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert exact * (1 - 1e-9) <= merged.quantile(share) <= exact * 1.0101
    assert merged.longest_seconds == max(values)
    assert merged.operations == len(values)


def test_a_quantile_of_too_few_operations_is_unknown() -> None:
    few = Latencies()
    for _ in range(150):
        few.add(0.001)
    document = few.document()
    assert document["p99"] == pytest.approx(0.001, rel=0.01)
    assert document["p99.9"] is None
    assert Latencies().document() == {"p50": None, "p99": None, "p99.9": None, "max": None, "operations": 0}


@given(st.integers(0, 10**13), st.integers(1, 5000))
def test_the_shares_of_all_ranks_are_the_whole_checkpoint(whole: int, ranks: int) -> None:
    shares = [share_of(whole, rank, ranks) for rank in range(ranks)]
    assert sum(shares) == whole
    assert max(shares) - min(shares) <= 1


def test_checkpoints_have_the_sizes_that_mlperf_storage_states() -> None:
    # Submission_guidelines.md of v2.0, table 2: 105 and 912, in GiB.
    assert CHECKPOINTS["8b"] / 2**30 == pytest.approx(105, rel=0.01)
    assert CHECKPOINTS["70b"] / 2**30 == pytest.approx(912, rel=0.01)


def test_accelerators_are_whole_ones() -> None:
    assert SPEEDS["ic"].samples_per_second == pytest.approx(1785.7, rel=1e-4)
    assert accelerators_busy(3571.5, SPEEDS["ic"]) == 2
    assert accelerators_busy(3571.0, SPEEDS["ic"]) == 1
    assert accelerators_busy(99.9, Speed("a", 100.0, "")) == 0


@pytest.mark.parametrize(
    ("free", "total", "memory", "space", "allowed"),
    [
        (1000, 2000, 50, None, 100),  # twice the memory
        (1000, 2000, 5000, None, 200),  # a fifth of what is free
        (1000, 2000, 5000, 600, 600),
        (1000, 2000, 5000, 10**6, 900),  # all but 5 % of the file system
        (50, 2000, 5000, 600, 0),
    ],
)
def test_space_is_bounded(free: int, total: int, memory: int, space: int | None, allowed: int) -> None:
    assert file_system.allowed_bytes(Room(free, total, None), memory, space) == allowed


def test_small_files_are_bounded_by_inodes() -> None:
    assert file_system.allowed_files(Room(0, 0, 500), 10**9) == 100
    assert file_system.allowed_files(Room(0, 0, None), 10 * PAGE) == 10


# ----------------------------------------------------------------------------------------------------
# Reading, on real files.


@pytest.mark.parametrize("samples", [FEW, PARTS], ids=["whole files", "parts of files"])
@pytest.mark.parametrize("direct", [False, True])
def test_every_sample_is_read_once_and_is_what_was_written(disk: Path, samples: Samples, direct: bool) -> None:
    pieces = written(Store(disk, 7), samples, 9)
    if direct and not file_system.can_read_direct(pieces[0]):
        pytest.skip("this file system has no O_DIRECT")
    keep_open = samples.per_file > 1
    done = file_system.read_samples(pieces, samples.request_bytes, 3, math.inf, direct=direct, keep_open=keep_open)
    assert done.wrong == []
    assert (done.operations, done.size_bytes) == (18, 18 * samples.size_bytes)
    assert done.latencies.operations == 18


def test_what_lies_in_memory_is_found_and_left_out(disk: Path) -> None:
    pieces = written(Store(disk, 7), FEW, 4)
    cold = file_system.make_cold(pieces, 2)
    if cold.resident_bytes != 0:
        pytest.skip("this file system keeps its files in memory")
    assert cold.cold == pieces
    pieces[0].path.read_bytes()
    assert file_system.resident_bytes(pieces[0]) == pieces[0].size_bytes
    assert file_system.resident_bytes(pieces[1]) == 0


def test_a_file_system_in_memory_is_never_cold() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    with GuardedFolder(Path("/dev/shm")) as folder:
        pieces = written(Store(folder.path, 7), FEW, 4)
        found = file_system.make_cold(pieces, 2)
    assert found.cold == []
    assert found.resident_bytes == 8 * FEW.size_bytes


@pytest.mark.parametrize("samples", [FEW, PARTS], ids=["whole files", "parts of files"])
def test_a_wrong_page_of_a_sample_is_found(disk: Path, samples: Samples) -> None:
    pieces = written(Store(disk, 7), samples, 4)
    first, second = pieces[0], pieces[5]
    # The right page of another file: its bytes are fine, and in the wrong place.
    first.path.write_bytes(second.path.read_bytes())
    done = file_system.read_samples(pieces, samples.request_bytes, 1, math.inf)
    assert str(first.path) in done.wrong[0]
    assert "the page at 0 is wrong" in done.wrong[0]


def test_a_truncated_sample_is_found(disk: Path) -> None:
    pieces = written(Store(disk, 7), FEW, 2)
    os.truncate(pieces[1].path, 5000)
    done = file_system.read_samples(pieces, FEW.request_bytes, 1, math.inf)
    assert done.wrong == [f"{pieces[1].path}: ends after 5000 bytes"]


def test_reading_ends_when_its_time_is_over(disk: Path) -> None:
    pieces = written(Store(disk, 7), FEW, 4)
    assert file_system.read_samples(pieces, FEW.request_bytes, 1, 0.0).operations == 0


def test_small_files_are_listed_opened_and_removed(disk: Path) -> None:
    files, made = file_system.make_small(disk / "small", 2, 2100, math.inf)
    assert made.operations == 2100
    assert sorted(files.folders.values()) == [50, 50, 1000, 1000]
    assert file_system.list_small(files, 2).size_bytes == 2100
    opened = file_system.open_small(files, 2, math.inf, seed=1)
    assert (opened.operations, opened.wrong) == (2100, [])
    files.path(0, 3).write_bytes(files.path(1, 3).read_bytes())
    files.path(1, 7).unlink()
    assert file_system.list_small(files, 2).wrong == [f"{files.path(1, 7).parent}: lists 999 names instead of 1000"]
    files.path(1, 7).touch()
    wrong = file_system.open_small(files, 2, math.inf, seed=1).wrong
    assert sorted(wrong) == [f"{files.path(t, n)}: has other bytes than written" for t, n in ((0, 3), (1, 7))]
    assert file_system.remove_small(files, 2).operations == 2100
    assert [one for one in (disk / "small").rglob("*") if one.is_file()] == []


SIZE = 2 * file_system.CHUNK + 12_345


def test_a_restored_checkpoint_is_compared_byte_by_byte(disk: Path) -> None:
    path, content = disk / "c.pt", Content(5)
    saved = file_system.save(path, SIZE, 9, content)
    assert saved.size_bytes == path.stat().st_size == SIZE
    assert list(disk.iterdir()) == [path]
    restored = file_system.restore(path, SIZE, 9, content)
    assert restored.wrong == []
    assert restored.size_bytes + (restored.resident_bytes or 0) == SIZE
    with path.open("r+b") as stream:
        stream.seek(file_system.CHUNK + 777)
        old = stream.read(1)
        stream.seek(file_system.CHUNK + 777)
        stream.write(bytes([old[0] ^ 4]))
    wrong = f"{path}: 1 wrong bytes, the first at {file_system.CHUNK + 777}"
    assert file_system.restore(path, SIZE, 9, content).wrong == [wrong]
    # Another rank's checkpoint of the same size is wrong in every page.
    assert len(file_system.restore(path, SIZE, 8, content).wrong) == 3


def test_pages_are_all_different_and_do_not_compress() -> None:
    import zlib

    content = Content(5)
    pages = [bytes(content.at(identity, 4 * PAGE)[:PAGE]) for identity in (1, 2)]
    pages += [bytes(content.at(1, offset)[:PAGE]) for offset in (0, file_system.CHUNK)]
    assert len(set(pages)) == 4
    assert all(len(zlib.compress(page)) > 0.98 * PAGE for page in pages)


# ----------------------------------------------------------------------------------------------------
# The folder that is removed.


def test_the_folder_is_removed_and_a_link_in_it_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x")
    with GuardedFolder(tmp_path) as folder:
        (folder.path / "a").mkdir()
        (folder.path / "a" / "b").symlink_to(outside)
    assert folder.remover is None
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "mine").read_text() == "x"


def test_an_error_removes_it_too(tmp_path: Path) -> None:
    folder = GuardedFolder(tmp_path)
    (folder.path / "a").touch()
    with pytest.raises(ZeroDivisionError), folder:
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_holds_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with GuardedFolder(tmp_path) as alive:
        prefix = alive.path.name.partition(f"{os.getpid()}-")[0]
        # Whether a process of another host, or of another mount, holds a folder cannot be seen.
        left, foreign = (tmp_path / name for name in (f"{prefix}1-a", "hpcai500-other-0123456789ab-1-c"))
        for one in (left, foreign):
            one.mkdir()
        for one in (foreign, alive.path):
            os.utime(one, (0, 0))
        with GuardedFolder(tmp_path) as second:
            assert second.removed == [left]
            assert second.foreign == [foreign]
        assert sorted(tmp_path.iterdir()) == sorted([alive.path, foreign])


# ----------------------------------------------------------------------------------------------------
# The command.


QUICK = ("--seconds", "2", "--space", "40M")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The document of a short measurement by two ranks, and the folder that it was made in."""
    folder = tmp_path_factory.mktemp("measured")
    words = ("storage", folder, "ic", "small", "checkpoint", *QUICK, "--procs", "2", "--oversubscribe")
    ended = hpcai500(*words, "--json", "-o", folder / "storage.json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert json.loads((folder / "storage.json").read_text()) == document
    return document, folder


def test_two_ranks_measure_at_once(measured: tuple[dict[str, Any], Path]) -> None:
    document, _ = measured
    names = {"read ic", "read ic p99", "accelerators ic", "create", "list", "open", "remove", "save", "restore"}
    names |= {f"{verb} {model}" for verb in ("save", "restore") for model in CHECKPOINTS}
    assert document.keys() == {f"storage {name}" for name in names}
    for name, entry in document.items():
        assert (entry["ranks"], entry["nodes"], entry["verified"]) == (2, 1, True), name
        if "per_rank" in entry:
            assert len(entry["per_rank"]) == len(entry["hosts"]) == 2
            assert entry["time_ms"] > 0
            assert entry["slowest"]["value"] == min(entry["per_rank"])
            assert entry["latency_seconds"]["operations"] == entry["operations"]
    created = document["storage create"]
    assert document["storage remove"]["operations"] == created["operations"]
    assert document["storage open"]["operations"] <= created["operations"]
    assert document["storage create"]["value"] == pytest.approx(created["operations"] / created["seconds"])
    assert document["storage open"]["cold"] is False


def test_a_checkpoint_that_does_not_fit_has_no_seconds(measured: tuple[dict[str, Any], Path]) -> None:
    document, _ = measured
    large = document["storage save 70b"]
    assert large["whole"] is False
    assert large["value"] is None
    assert large["bytes"] <= 40e6
    assert large["model_bytes"] == CHECKPOINTS["70b"]
    assert document["storage save"]["value"] == large["rate"] > 0


def test_nothing_is_left(measured: tuple[dict[str, Any], Path]) -> None:
    assert [one.name for one in measured[1].iterdir()] == ["storage.json"]


def test_the_table_has_a_row_for_each_measurement(measured: tuple[dict[str, Any], Path]) -> None:
    document, _ = measured
    lines = list(table_lines(document))
    for name in ("read ic", "create", "list", "open", "remove", "save", "restore 70b"):
        assert any(line.startswith(f"{name}  ") for line in lines), name
    assert any(line.startswith("save 70b: ") and "were saved" in line for line in lines)
    lines = list(figure_of_merit_lines(document))
    assert any(line.startswith("HPCAI500 FOM storage_save=") and line.endswith(" bytes/s") for line in lines)
    # An unknown number has no line.
    assert not any("storage_save_70b" in line for line in lines)


def reading(value: float | None) -> dict[str, dict[str, Any]]:
    late = {"p99": None if value is None else 0.25}
    return {
        "storage read ic": {
            "value": value, "unit": "samples/s", "nodes": 1, "ranks": 2, "latency_seconds": late, "verified": True
        }
    }  # fmt: skip


@pytest.mark.parametrize("kinds", [["small"], ["ewa"], ["checkpoint", "ewa"]])
def test_a_number_of_accelerators_that_nothing_measured_can_tell_is_refused(kinds: list[str]) -> None:
    with pytest.raises(UsageError, match="add ic, or ewa and --accelerator-speed ewa=NUMBER"):
        require_answer(kinds, 2, read_speeds([]))
    require_answer(kinds, None, read_speeds([]))
    require_answer([*kinds, "ewa"], 2, read_speeds(["ewa=10"]))
    require_answer([*kinds, "ic"], 2, read_speeds([]))


def test_too_few_accelerators_are_reported() -> None:
    speeds = read_speeds(["ic=100"])
    enough = with_accelerators(reading(250.0), speeds)
    assert enough["storage accelerators ic"]["value"] == 2
    assert list(too_few(enough, 2)) == list(too_few(enough, None)) == []
    assert list(too_few(enough, 3)) == ["ic: 2 accelerators kept busy, 3 are required (--accelerators)"]
    unknown = with_accelerators(reading(None), speeds)
    assert unknown["storage accelerators ic"]["value"] is None
    assert "an unknown number" in next(too_few(unknown, 1))


def test_more_accelerators_than_are_kept_busy_end_with_5(tmp_path: Path) -> None:
    words = ("storage", tmp_path, "ic", *QUICK, "--accelerators", "1", "--accelerator-speed", "ic=1e12")
    ended = hpcai500(*words, cwd=tmp_path)
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout.splitlines()[-1] == "HPCAI500 RESULT FAIL"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere: no such folder; give one to measure in"),
        (("file",), "file: a file, not a folder; give one to measure in"),
        ((".", "imagenet"), "storage imagenet: expected ic, ewa, small or checkpoint"),
        ((".", "--model", "71b"), "--model 71b: expected resnet50, 1b, 8b or 70b"),
        ((".", "ic", "--model", "70b"), "--model is for checkpoint: add it, or leave --model out"),
        ((".", "--space", "many"), "--space many: expected a number of bytes, such as 500G or 1.5T"),
        ((".", "--space", "0"), "--space 0: expected a number of bytes"),
        ((".", "--accelerator-speed", "3000"), "--accelerator-speed 3000: expected ic=NUMBER or ewa=NUMBER"),
        ((".", "--accelerator-speed", "ic=-1"), "--accelerator-speed ic=-1: expected ic=NUMBER or ewa=NUMBER"),
        ((".", "-o", "none/x.json"), "none/x.json: cannot be written"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    typed: Typed, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").touch()
    assert message in error_of(typed("storage", *words))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_refused(typed: Typed) -> None:
    # Not even root can make a folder there.
    assert "/proc: cannot be written" in error_of(typed("storage", "/proc"))


def test_too_little_space_for_anything_is_refused(tmp_path: Path) -> None:
    ended = hpcai500("storage", tmp_path, "ewa", "--seconds", "1", "--space", "1M", cwd=tmp_path)
    assert "storage read ewa: left out" in ended.stderr
    assert "nothing can be measured in so little space" in error_of(ended)
    assert list(tmp_path.iterdir()) == []


def started(folder: Path, *words: str, ready: Callable[[], bool]) -> subprocess.Popen[str]:
    """A command that has begun to write."""
    command = subprocess.Popen(
        [*HPCAI500, "storage", str(folder), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=clean_environment(),
    )  # fmt: skip
    while not ready():
        assert command.poll() is None, command.communicate()
        time.sleep(0.02)
    return command


def files_in(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = ("ic", "small", "--seconds", "600", "--space", "50M", "--procs", "2", "--oversubscribe")
    command = started(tmp_path, *words, ready=lambda: len(files_in(tmp_path)) > 20)
    command.send_signal(number)
    _, stderr = command.communicate()
    assert command.returncode == (-number if number == signal.SIGKILL else 1), stderr
    if number != signal.SIGKILL:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        assert stderr.splitlines()[-1] == f"hpcai500: error: stopped by {name}"
    # Its guard goes on if it takes long, and after SIGKILL.
    while list(tmp_path.iterdir()):
        time.sleep(0.05)


def test_a_lost_rank_ends_the_command_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("small", "--seconds", "600", "--space", "50M", "--procs", "2", "--oversubscribe")
    command = started(tmp_path, *words, ready=lambda: len(files_in(tmp_path)) > 20)
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    ranks = [one for one in children if b"storage_command" in Path(f"/proc/{one}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    stdout, stderr = command.communicate()
    assert command.returncode == 1
    assert "rank 1" in stderr
    assert stdout.splitlines()[-1] == "HPCAI500 RESULT INVALID"
    while list(tmp_path.iterdir()):
        time.sleep(0.05)


def test_samples_are_read_as_the_loaders_read_them() -> None:
    # Whole planes of whole images of the published grid.
    ewa = SAMPLES["ewa"]
    assert ewa.size_bytes == 16 * ewa.request_bytes == 16 * 768 * 1152 * 4
    assert ewa.request_bytes % PAGE == ewa.size_bytes % PAGE == 0
