"""Sets that are made: the same bytes for the same numbers, nothing written twice, nothing of others touched."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from hpcai500.data.climate import synthetic as years_module
from hpcai500.data.climate.synthetic import LAYOUTS, SyntheticYears, make_years
from hpcai500.data.climate.years import storage_of
from hpcai500.data.derived import MANIFEST, map_in_order, part_folder
from hpcai500.data.imagenet import synthetic as images_module
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.synthetic import CLASSES, SHAPES, TEXTURES, SyntheticSet, class_name, draw_jpeg, make_images
from hpcai500.errors import DataError, RunError

Wanted = SyntheticSet | SyntheticYears
IMAGES = SyntheticSet(classes=3, train_per_class=9, val_per_class=4)
YEARS = SyntheticYears(first_year=1979, last_year=1980, images_per_year=5, height=64, width=96)
KINDS = {"images": IMAGES, **{f"years, {layout}": replace(YEARS, layout=layout) for layout in LAYOUTS}}
FILES = {SyntheticSet: 39, SyntheticYears: 2}

every_kind = pytest.mark.parametrize("wanted", KINDS.values(), ids=KINDS)
both = pytest.mark.parametrize("wanted", [IMAGES, YEARS], ids=["images", "years"])


def make(root: Path, wanted: Wanted, workers: int = 1) -> int:
    if isinstance(wanted, SyntheticSet):
        return make_images(root, wanted, workers=workers)
    return make_years(root, wanted, workers=workers)


def content(root: Path) -> dict[str, bytes]:
    """What was made, without the cached index of an image set."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".npz")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def refused(root: Path, wanted: Wanted) -> str:
    with pytest.raises(DataError) as caught:
        make(root, wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@every_kind
def test_the_bytes_do_not_depend_on_the_workers(
    tmp_path: Path, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parts of two images, so that each year is shared by the workers.
    monkeypatch.setattr(years_module, "_PART_BYTES", 2 * 16 * 64 * 96 * 4)
    for workers in (1, 2):
        assert make(tmp_path / str(workers), wanted, workers) == FILES[type(wanted)]
    one = content(tmp_path / "1")
    assert one == content(tmp_path / "2")
    assert len(one) == FILES[type(wanted)] + 1
    if wanted is not IMAGES:
        assert list(one) == [MANIFEST, "climo_1979.h5", "climo_1980.h5"]


@both
def test_a_second_call_writes_nothing_and_a_lost_file_comes_back(tmp_path: Path, wanted: Wanted) -> None:
    make(tmp_path, wanted)
    before = content(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert make(tmp_path, wanted) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    (tmp_path / list(before)[1]).unlink()
    assert make(tmp_path, wanted) == 1
    assert content(tmp_path) == before


@every_kind
def test_an_interrupted_call_leaves_whole_files_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    draw_jpeg, draw_scene, drawn = images_module.draw_jpeg, years_module.draw_scene, []

    def interrupted_image(*arguments: Any) -> bytes:
        if len(drawn) == 10:
            raise KeyboardInterrupt
        drawn.append(arguments)
        return draw_jpeg(*arguments)

    def interrupted_scene(seed: int, year: int, number: int, *rest: Any) -> Any:
        if (year, number) == (1980, 3):
            raise KeyboardInterrupt
        return draw_scene(seed, year, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(images_module, "draw_jpeg", interrupted_image)
        patch.setattr(years_module, "draw_scene", interrupted_scene)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "set", wanted)
    kept = content(tmp_path / "set")
    assert len(kept) == (11 if wanted is IMAGES else 2)
    assert make(tmp_path / "set", wanted) == FILES[type(wanted)] + 1 - len(kept)
    make(tmp_path / "other", wanted)
    whole = content(tmp_path / "other")
    assert content(tmp_path / "set") == whole
    assert kept.items() <= whole.items()


def test_a_larger_set_contains_the_smaller_one(tmp_path: Path) -> None:
    for name, train_per_class in (("small", 9), ("large", 12)):
        make(tmp_path / name, replace(IMAGES, train_per_class=train_per_class))
    small, large = content(tmp_path / "small"), content(tmp_path / "large")
    assert len(large) == len(small) + 9
    assert {path for path in small if small[path] != large[path]} == {MANIFEST}
    make(tmp_path / "few", YEARS)
    make(tmp_path / "many", replace(YEARS, last_year=1981, images_per_year=8))
    for name in ("climo_1979.h5", "climo_1980.h5"):
        with h5py.File(tmp_path / "few" / name) as few, h5py.File(tmp_path / "many" / name) as many:
            np.testing.assert_array_equal(few["images"][:], many["images"][:5])
            np.testing.assert_array_equal(few["boxes"][:], many["boxes"][:5])


def test_no_two_images_are_the_same(tmp_path: Path) -> None:
    images = []
    for seed in (0, 1):
        make(tmp_path / str(seed), replace(IMAGES, seed=seed))
        images += [data for path, data in content(tmp_path / str(seed)).items() if path != MANIFEST]
    assert len(set(images)) == len(images) == 78
    drawn = {
        replace(YEARS, seed=seed).draw(year, number)[0].tobytes()
        for seed in (0, 1)
        for year in (1979, 1980)
        for number in range(3)
    }
    assert len(drawn) == 12


@pytest.mark.parametrize(
    ("wanted", "other", "told"),
    [
        (IMAGES, replace(IMAGES, seed=4, classes=5), "classes 3, not 5; seed 0, not 4"),
        (YEARS, replace(YEARS, seed=4, layout="contiguous"), "layout image, not contiguous; seed 0, not 4"),
    ],
)
def test_other_parameters_are_refused_with_the_difference(
    tmp_path: Path, wanted: Wanted, other: Wanted, told: str
) -> None:
    make(tmp_path, wanted)
    before = content(tmp_path)
    assert f"made with {told}: choose another folder" in refused(tmp_path, other)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("wanted", "theirs", "told"),
    [(IMAGES, "val/n01440764/x.JPEG", "val/"), (YEARS, "climo_1979.h5", "climo_1979.h5")],
)
def test_a_set_of_others_is_not_touched(tmp_path: Path, wanted: Wanted, theirs: str, told: str) -> None:
    (tmp_path / theirs).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / theirs).write_bytes(b"theirs")
    assert f"already has {told}, not made by this command" in refused(tmp_path, wanted)
    assert content(tmp_path) == {theirs: b"theirs"}


def test_a_year_of_others_among_ours_is_refused(tmp_path: Path) -> None:
    make(tmp_path, YEARS)
    (tmp_path / "climo_2005.h5").write_bytes(b"theirs")
    assert "has climo_2005.h5, not made by this command" in refused(tmp_path, YEARS)


@both
def test_a_folder_with_other_files_may_hold_a_set_and_one_that_cannot_be_made_is_named(
    tmp_path: Path, wanted: Wanted
) -> None:
    (tmp_path / "README").write_text("theirs")
    make(tmp_path, wanted)
    assert (tmp_path / "README").read_text() == "theirs"
    assert f"cannot write the synthetic set: {tmp_path}/README" in refused(tmp_path / "README" / "set", wanted)


@both
def test_a_manifest_that_is_damaged_or_of_another_generator_is_refused(tmp_path: Path, wanted: Wanted) -> None:
    make(tmp_path, wanted)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"generator_version": 0}))
    assert "generator_version 0, not 1" in refused(tmp_path, wanted)
    for damaged in (b"", b"{", b"[1]", b"\xff"):
        (tmp_path / MANIFEST).write_bytes(damaged)
        assert "is damaged" in refused(tmp_path, wanted)


def test_the_manifest_says_how_the_set_was_made(tmp_path: Path) -> None:
    make(tmp_path, YEARS)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest.pop("generator_version") == 1
    assert SyntheticYears(**manifest | {"class_shares": tuple(manifest["class_shares"])}) == YEARS
    assert set(manifest) == set(asdict(YEARS))


@pytest.mark.parametrize(
    ("wanted", "wrong", "message"),
    [
        (IMAGES, {"classes": 1}, "choose 2 to 36"),
        (IMAGES, {"classes": 37}, "choose 2 to 36"),
        (IMAGES, {"train_per_class": 0}, "train_per_class"),
        (IMAGES, {"val_per_class": -1}, "val_per_class"),
        (IMAGES, {"seed": -1}, "seed"),
        (IMAGES, {"smallest_side": 8}, "pixels"),
        (IMAGES, {"smallest_side": 200}, "the smaller first"),
        (YEARS, {"first_year": 1981}, "the earlier first"),
        (YEARS, {"last_year": 10000}, "choose 1 to 9999"),
        (YEARS, {"images_per_year": 0}, "choose at least 1"),
        (YEARS, {"height": 63}, "height of 63: choose 64 to 16384; on a smaller grid"),
        (YEARS, {"width": 95}, "width of 95: choose 96"),
        (YEARS, {"layout": "zip"}, "choose image, contiguous, shipped"),
        (YEARS, {"class_shares": (1.0, 1.0)}, "one number for each of tropical depression"),
        (YEARS, {"class_shares": (0.0, 0.0, 0.0, 0.0)}, "not all 0"),
        (YEARS, {"class_shares": (1.0, -1.0, 1.0, 1.0)}, "none below 0"),
        (YEARS, {"class_shares": (1.0, float("nan"), 1.0, 1.0)}, "class shares"),
        (YEARS, {"seed": -1}, "seed"),
    ],
)
def test_impossible_parameters_are_refused(wanted: Wanted, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(wanted, **wrong)


@both
def test_no_workers_are_refused(tmp_path: Path, wanted: Wanted) -> None:
    with pytest.raises(DataError, match="at least 1"):
        make(tmp_path / "set", wanted, workers=0)
    assert not (tmp_path / "set").exists()


def test_too_little_space_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    huge = SyntheticYears(first_year=1, last_year=9999, images_per_year=1460, height=768, width=1152)
    assert "9999 years of 1460 images take 826614.6 GB" in refused(tmp_path, huge)
    assert list(content(tmp_path)) == [MANIFEST]


MAKE = """
import sys
from hpcai500.data.climate import synthetic
from hpcai500.errors import DataError
{before}
try:
    synthetic.make_years(sys.argv[1], synthetic.SyntheticYears(1979, 1980, 5, 64, 96, sys.argv[2]), workers=1)
except DataError as error:
    sys.exit(f"refused: {{error}}")
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lacking", [1, 2**19, 2**40], ids=["a byte", "half a MB", "everything"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path, layout: str, lacking: int) -> None:
    make(tmp_path / "whole", replace(YEARS, layout=layout, last_year=1979))
    # The kernel refuses to let a file grow over the limit, as a full disk does.
    limit_bytes = max((tmp_path / "whole" / "climo_1979.h5").stat().st_size - lacking, 1000)
    done = subprocess.run(
        [sys.executable, "-c", MAKE.format(before=""), str(tmp_path / "set"), layout],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("refused: cannot write the synthetic set: ")
    assert "File too large; choose a folder with space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "set").iterdir()] == [MANIFEST]


def test_what_a_killed_call_left_goes_with_the_next(tmp_path: Path) -> None:
    dying = "import os, signal; synthetic.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", MAKE.format(before=dying), str(tmp_path), "image"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [path.name.startswith(".hpcai500-part-") for path in tmp_path.iterdir() if path.is_dir()] == [True]
    assert make(tmp_path, YEARS) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "climo_1979.h5", "climo_1980.h5"]


# --- images


def test_the_set_is_what_imagenet_ships(tmp_path: Path) -> None:
    make(tmp_path, replace(IMAGES, train_per_class=20))
    index = load_index(tmp_path)
    assert index.classes == tuple(class_name(label) for label in range(3))
    assert (len(index.train), len(index.val), index.ignored_files) == (60, 12, 0)
    images = [Image.open(path) for path in tmp_path.rglob("*.JPEG")]
    assert all(image.format == "JPEG" and image.mode == "RGB" for image in images)
    sides = np.array([image.size for image in images])
    assert sides.min() >= 72
    assert sides.max() <= 128
    assert len({tuple(size) for size in sides.tolist()}) > 40
    assert {JpegImagePlugin.get_sampling(image) for image in images} == {0, 1, 2}
    assert len({image.quantization[0][5] for image in images}) > 10


def test_class_names_sort_as_labels_and_say_what_is_shown() -> None:
    names = [class_name(label) for label in range(len(CLASSES))]
    assert names == sorted(names)
    assert names[0] == "00-disc-plain"
    assert sorted(CLASSES) == sorted((shape, texture) for shape in SHAPES for texture in TEXTURES)
    # Even a set of few classes differs in form and in texture.
    assert len({shape for shape, _ in CLASSES[:8]}) == 4
    assert len({texture for _, texture in CLASSES[:8]}) == 2


@pytest.mark.parametrize("label", range(len(CLASSES)), ids=class_name)
def test_each_class_shows_an_object_on_its_background(label: int) -> None:
    stands_out = []
    for seed in range(8):
        data = draw_jpeg(label, np.random.default_rng(seed), 96, 96)
        image = np.asarray(Image.open(io.BytesIO(data)), dtype=np.float64)
        border = np.concatenate([image[:4].reshape(-1, 3), image[-4:].reshape(-1, 3)])
        # Noise has a deviation of 18 levels; the object's colour differs by at least 0.3 of 255 a channel.
        distance = np.abs(image - border.mean(axis=0)).min(axis=2)
        stands_out.append((distance > 40).mean())
    assert 0.04 < np.mean(stands_out) < 0.6


# --- years


@pytest.mark.parametrize(
    ("layout", "images", "expected"),
    [
        ("image", 5, {"chunks": (1, 16, 64, 96), "compression": None}),
        ("contiguous", 5, {"chunks": None, "compression": None}),
        ("shipped", 5, {"compression": "gzip"}),
        # HDF5's default chunks then hold several images, of which the last chunk lacks some.
        ("shipped", 50, {"compression": "gzip"}),
    ],
)
def test_every_layout_reads_back_what_was_drawn(
    tmp_path: Path, layout: str, images: int, expected: dict[str, Any]
) -> None:
    wanted = replace(YEARS, layout=layout, last_year=1979, images_per_year=images)
    make(tmp_path, wanted)
    with h5py.File(tmp_path / "climo_1979.h5") as file:
        assert set(file) == {"images", "boxes"}
        dataset, boxes = file["images"], file["boxes"]
        assert (dataset.shape, dataset.dtype) == ((images, 16, 64, 96), np.float32)
        assert (boxes.shape, boxes.dtype) == ((images, 15, 5), np.int32)
        assert {name: getattr(dataset, name) for name in expected} == expected
        if images == 50:
            assert 1 < dataset.chunks[0] < 50
            assert 50 % dataset.chunks[0] != 0
        for number in range(images):
            image, rows = wanted.draw(1979, number)
            np.testing.assert_array_equal(dataset[number], image)
            np.testing.assert_array_equal(boxes[number], rows)
        if layout != "shipped":
            # An uncompressed image begins at a page.
            storage = storage_of(dataset)
            addresses = storage.addresses.tolist() if storage.offset is None else [storage.offset]
            assert all(address % 4096 == 0 for address in addresses)


def test_the_shipped_chunks_are_those_of_the_real_set(tmp_path: Path) -> None:
    parts = years_module.lay_out(tmp_path / "climo_1979.h5", 1460, 768, 1152, "shipped")
    with h5py.File(tmp_path / "climo_1979.h5") as file:
        assert file["images"].chunks == (46, 1, 48, 72)
    assert len(parts) == 32
    assert [part.count for part in parts] == [46] * 31 + [34]


# --- what both are made with: folders of half-written files, and processes that share the work


@pytest.mark.parametrize("ends", [nullcontext(), pytest.raises(KeyboardInterrupt)], ids=["itself", "interrupted"])
def test_the_folder_of_parts_goes_with_its_block(tmp_path: Path, ends: Any) -> None:
    with ends, part_folder(tmp_path) as folder:
        (folder / "half").write_text("written")
        assert folder.parent == tmp_path
        if not isinstance(ends, nullcontext):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


# Has the number that is given, as a process of another PID namespace has one of its own.
NUMBERED = """
import os, sys
from pathlib import Path
from hpcai500.data.derived import part_folder
os.getpid = lambda: int(sys.argv[2])
with part_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("written")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_folders_of_killed_processes_go_and_no_others(tmp_path: Path) -> None:
    def start(number: int) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", NUMBERED, str(tmp_path), str(number)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living, of_living = start(ended.pid)
    with living:
        # A number says nothing: this one is of a living process, and of none that holds the folder.
        killed, of_killed = start(os.getpid())
        with killed:
            killed.kill()
        assert of_killed.is_dir()
        others = [tmp_path / f".hpcai500-part-host-0123456789ab-{ended.pid}-a1b2", tmp_path / ".hpcai500-part-a1b2"]
        for other in others:
            other.mkdir()
        with part_folder(tmp_path):
            pass
        assert set(tmp_path.iterdir()) == {of_living, *others}
        assert (of_living / "half").read_text() == "written"
        living.communicate()
    assert living.returncode == 0
    assert set(tmp_path.iterdir()) == set(others)


def square(number: int) -> int:
    return number * number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def tell_and_sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def tell_and_wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while not Path(path).with_name("go").exists():
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    assert list(map_in_order(square, range(20), workers, what="squares")) == [n * n for n in range(20)]


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        RunError, match="a process that squares was killed, perhaps for lack of memory: to continue, run"
    ):
        list(map_in_order(die, range(4), 2, what="squares"))


_SLEEPING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from hpcai500.data.derived import map_in_order
import test_derived_sets
if __name__ == "__main__":
    list(map_in_order(test_derived_sets.tell_and_sleep, [sys.argv[2] + "/a", sys.argv[2] + "/b"], 2, what="sleeps"))
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SLEEPING)
    parent = subprocess.Popen([sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)])
    files = [tmp_path / "a", tmp_path / "b"]
    _wait(lambda: all(file.exists() and file.read_text() for file in files))
    workers = [int(file.read_text()) for file in files]
    parent.kill()
    parent.wait()
    _wait(lambda: not any(_lives(worker) for worker in workers))


_WAITING = """
import sys
sys.path.insert(0, sys.argv[1])
from contextlib import closing
from hpcai500.data.derived import map_in_order
import test_derived_sets
if __name__ == "__main__":
    tasks = [sys.argv[2] + "/a", sys.argv[2] + "/b"]
    try:
        with closing(map_in_order(test_derived_sets.tell_and_wait, tasks, 2, what="waits")) as results:
            list(results)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_second_interrupt_while_workers_end_prints_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C may come twice, from the terminal and from a parent, the second while the pool waits for its workers."""
    script = tmp_path / "script.py"
    script.write_text(_WAITING)
    command = [sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _wait(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    for _ in range(2):
        parent.send_signal(signal.SIGINT)
        time.sleep(0.5)
    (tmp_path / "go").touch()
    out, err = parent.communicate(timeout=300)
    assert "interrupted" in out
    assert err == ""


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def _wait(condition: object, seconds: float = 600) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_semaphores_one_process_does_the_work_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(self: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", no_memory)
    assert list(map_in_order(abs, [-1, -2], workers=2, what="counts")) == [1, 2]
    assert "working with one process instead of 2" in capsys.readouterr().err
