"""A seek index: its file is whole or noticed, the command makes it, loaders use it; never does it change an image."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.commands import HPCAI500
from builders.data import encoded_picture, picture, settle, write_tree
from builders.needs import needs_dali
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core
from hpcai500._core import SeekIndex
from hpcai500.data.imagenet import dali as dali_loader_module
from hpcai500.data.imagenet import seek_index as seek_index_module
from hpcai500.data.imagenet.check import check_images
from hpcai500.data.imagenet.dali import DaliBatches, host_pipeline
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import Batches, JpegBatches
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, SeekCounts, make_seek_index

# Large enough for points to jump to, small enough to be damaged at every byte.
FILES = [encoded_picture(picture(seed, 64, 100), quality=quality) for seed, quality in ((1, 97), (2, 97), (3, 92))]
PROGRESSIVE = encoded_picture(picture(4, 64, 100), progressive=True)
SPEC = _core.DecodeSpec(size=24, dtype="uint8")
HEADER = 32
GOOD = ["used", "used", "used", "without"]


def write_index(path: Path, files: list[bytes]) -> Path:
    writer = _core.SeekIndexWriter(os.fsencode(path))
    for data in files:
        writer.add(*_core.seek_key(data), _core.seek_points(data))
    assert writer.finish() == path.stat().st_size
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_index(tmp_path / "index", [*FILES, PROGRESSIVE])


def image(data: bytes, epoch: int, index: _core.SeekIndex | None = None) -> NDArray[np.uint8]:
    out = np.zeros(SPEC.shape, np.uint8)
    _core.decode_crop(data, SPEC, out, seed=1, epoch=epoch, sample=3, index=index)
    return out


EXPECTED = [[image(data, epoch) for epoch in range(4)] for data in [*FILES, PROGRESSIVE]]


def seeks(index: _core.SeekIndex) -> list[str]:
    """What became of the index for each file; the images must be right."""
    said = []
    for data, expected in zip([*FILES, PROGRESSIVE], EXPECTED, strict=True):
        for epoch, whole in enumerate(expected):
            np.testing.assert_array_equal(image(data, epoch, index), whole)
        said.append(_core.last_seek())
    return said


def write_header(content: bytearray, **fields: int) -> bytearray:
    """`content` with other numbers in its header, and the checksum that they have."""
    places = {"version": ("<I", 8), "table_crc": ("<I", 12), "table": ("<Q", 16), "files": ("<I", 24)}
    for name, value in fields.items():
        struct.pack_into(places[name][0], content, places[name][1], value)
    struct.pack_into("<I", content, 28, zlib.crc32(content[:28]))
    return content


def table_of(content: bytes) -> int:
    """Where the table of entries begins."""
    return int(struct.unpack_from("<Q", content, 16)[0])


# --- the file


def test_an_index_gives_what_was_written(path: Path, tmp_path: Path) -> None:
    index = _core.SeekIndex(str(path))
    assert len(index) == 4
    for data in FILES:
        assert index.find(data) == _core.seek_points(data)
    assert index.find(PROGRESSIVE) == b""
    assert seeks(index) == GOOD
    # Copies of a file have one entry; the same files make the same bytes; an empty index knows nothing.
    twice = _core.SeekIndex(str(write_index(tmp_path / "twice", [*FILES, *FILES, PROGRESSIVE])))
    assert len(twice) == 4
    assert seeks(twice) == GOOD
    assert write_index(tmp_path / "again", [*FILES, PROGRESSIVE]).read_bytes() == path.read_bytes()
    assert seeks(_core.SeekIndex(str(write_index(tmp_path / "empty", []))))[:3] == ["unknown"] * 3
    with pytest.raises(FileExistsError):
        _core.SeekIndexWriter(str(path))


def test_a_changed_file_and_one_of_another_set_are_unknown(path: Path) -> None:
    index = _core.SeekIndex(str(path))
    changed = bytearray(FILES[0])
    changed[len(changed) // 2] ^= 1
    other = encoded_picture(picture(9, 64, 100))
    for data in (bytes(changed), other, FILES[0] + b"\0"):
        assert index.find(data) is None
        np.testing.assert_array_equal(image(data, 0, index), image(data, 0))
        image(data, 0, index)
        assert _core.last_seek() == "unknown"


def test_an_index_that_is_cut_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is truncated"):
            _core.SeekIndex(str(path))


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        if place < HEADER or place >= table_of(content):
            with pytest.raises(ValueError, match=r"is damaged|is truncated|is no seek index|of another version"):
                _core.SeekIndex(str(path))
        else:
            assert sorted(seeks(_core.SeekIndex(str(path)))) == ["false", "used", "used", "without"], place


def test_bytes_behind_an_index_change_nothing(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 100)
    assert seeks(_core.SeekIndex(str(path))) == GOOD


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 2}, r"is of another version of hpcai500 \(format 2, not 1\)"),
        # What claims too much takes no memory.
        ({"files": 2**32 - 1}, "is damaged"),
        ({"files": 2**24}, "is truncated"),
        ({"table": 0}, "is damaged"),
        ({"table": 2**64 - 1}, "is truncated"),
        ({"table": 2**63}, "is truncated"),
    ],
)
def test_a_header_of_another_version_or_that_claims_too_much_is_refused(
    path: Path, fields: dict[str, int], reason: str
) -> None:
    path.write_bytes(write_header(bytearray(path.read_bytes()), **fields))
    with pytest.raises(ValueError, match=reason):
        _core.SeekIndex(str(path))


@pytest.mark.parametrize("offset", [0, 31, 10**6, 2**63, 2**64 - 1])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 2**20, 2**32 - 1])
def test_an_entry_that_leads_anywhere_is_false(path: Path, offset: int, length: int) -> None:
    content = bytearray(path.read_bytes())
    table = table_of(content)
    for number in range(4):
        struct.pack_into("<QI", content, table + 20 * number + 8, offset, length)
    path.write_bytes(write_header(content, table_crc=zlib.crc32(content[table:])))
    assert seeks(_core.SeekIndex(str(path))) == ["false", "false", "false", "without"]


def test_entries_without_order_are_unknown_at_worst(path: Path) -> None:
    content = bytearray(path.read_bytes())
    table = table_of(content)
    content[table:] = b"".join(content[at : at + 20] for at in reversed(range(table, len(content), 20)))
    path.write_bytes(write_header(content, table_crc=zlib.crc32(content[table:])))
    assert "false" not in seeks(_core.SeekIndex(str(path)))


def test_an_index_that_shrinks_while_it_is_used_is_false_and_no_crash(path: Path) -> None:
    index = _core.SeekIndex(str(path))
    os.truncate(path, HEADER)
    assert seeks(index) == ["false", "false", "false", "without"]


def test_one_that_is_put_in_its_place_is_read_by_who_opens_it_then(path: Path, tmp_path: Path) -> None:
    before = _core.SeekIndex(str(path))
    write_index(tmp_path / "other", FILES[:1]).replace(path)
    after = _core.SeekIndex(str(path))
    assert (len(before), len(after)) == (4, 1)
    assert seeks(before) == ["used", "used", "used", "without"]
    assert seeks(after)[:3] == ["used", "unknown", "unknown"]


def test_files_are_added_while_another_thread_finishes(tmp_path: Path) -> None:
    path, many = tmp_path / "index", 50_000
    writer = _core.SeekIndexWriter(str(path))
    for number in range(many):
        writer.add(number, 1, None)
    added = many
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(writer.finish)
        with suppress(RuntimeError):
            while added < 100 * many:
                writer.add(added, 1, None)
                added += 1
        with pytest.raises(RuntimeError, match="the seek index is finished"):
            writer.finish()
        assert finishing.result() == path.stat().st_size
    assert len(_core.SeekIndex(str(path))) == added


def test_two_files_that_an_index_cannot_tell_apart_have_no_points(tmp_path: Path) -> None:
    writer = _core.SeekIndexWriter(str(tmp_path / "index"))
    for points in (_core.seek_points(FILES[0]), _core.seek_points(FILES[1])):
        writer.add(*_core.seek_key(FILES[0]), points)
    writer.finish()
    index = _core.SeekIndex(str(tmp_path / "index"))
    assert index.find(FILES[0]) == b""
    assert seeks(index)[0] == "without"


def test_what_is_no_file_and_no_index_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot open"):
        _core.SeekIndex(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="is not a file"):
        _core.SeekIndex(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a file"):
        _core.SeekIndex(str(tmp_path / "pipe"))
    (tmp_path / "text").write_text("not an index, but long enough to be one\n")
    with pytest.raises(ValueError, match="is no seek index"):
        _core.SeekIndex(str(tmp_path / "text"))


# --- the command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A set whose files have points worth keeping."""
    root = write_tree(tmp_path / "set", train=10)
    for number, path in enumerate(sorted(root.rglob("*.JPEG"))):
        path.write_bytes(encoded_picture(picture(number, 64, 100), quality=96))
    settle(root)
    return root


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A set whose files have the size of pictures."""
    root = write_tree(tmp_path / "photographs")
    for number, path in enumerate(sorted(root.rglob("*.JPEG"))):
        path.write_bytes(encoded_picture(picture(number, 200, 300), quality=95))
    return root


def test_the_real_size_is_printed_and_is_about_4_percent(photographs: Path, call: Any) -> None:
    out, err = call("index", "ic", photographs, "--json", "--threads", "2")
    data = sum(path.stat().st_size for path in photographs.rglob("*.JPEG"))
    index = (photographs / SEEK_INDEX).stat().st_size
    made = json.loads(out)
    assert made == {
        **made,
        "index": str(photographs / SEEK_INDEX),
        "files": 10,
        "with_points": 10,
        "data_bytes": data,
        "index_bytes": index,
        "share": index / data,
        "without_points": {},
        "unreadable": [],
    }
    assert 0.02 < made["share"] <= 0.041
    assert err == ""


def test_people_get_a_table(photographs: Path, call: Any) -> None:
    odd = {
        "cat/cat_0": encoded_picture(picture(0), progressive=True),
        "cat/cat_1": encoded_picture(picture(0).convert("CMYK")),
        "cat/cat_2": encoded_picture(picture(0), "PNG"),
        "dog/dog_0": encoded_picture(picture(0, 200, 300))[:-900],
        "dog/dog_1": encoded_picture(picture(0, 8, 8)),
    }
    for name, content in odd.items():
        (photographs / f"train/{name}.JPEG").write_bytes(content)
    out, _ = call("index", "ic", photographs)
    assert f"index              {photographs / SEEK_INDEX}\n" in out
    assert "images             10, 5 with seek points\n" in out
    assert "without            1 CMYK, 1 damaged, 1 no JPEG, 1 no point worth keeping, 1 progressive\n" in out
    assert "% of the data\n" in out


def test_what_is_no_file_or_too_large_or_not_there_is_listed_and_never_waited_for(
    root: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(root / "val/dog/pipe.JPEG")
    os.truncate(root / "train/cat/cat_0.JPEG", 2**30 + 1)
    index = load_index(root)
    (root / "val/dog/dog_1.JPEG").unlink()
    # As in a staged folder, whose listing is that of the whole set.
    monkeypatch.setattr(seek_index_module, "load_index", lambda *_, **__: index)
    made = json.loads(call("index", "ic", root, "--json")[0])
    missing = "No such file or directory"
    assert made["unreadable"] == [
        {
            "path": "train/cat/cat_0.JPEG",
            "reason": "the file has 1073741825 bytes; the limit for an image is 1073741824",
        },
        {"path": "val/dog/dog_1.JPEG", "reason": missing},
        {"path": "val/dog/pipe.JPEG", "reason": "not a regular file"},
    ]
    assert made["files"] == made["with_points"] == 22
    assert f"  val/dog/dog_1.JPEG    {missing}\n" in call("index", "ic", root)[0]


def test_where_no_file_can_be_read_one_is_named(root: Path, mistake: Any) -> None:
    for path in root.rglob("*.JPEG"):
        path.unlink()
        os.mkfifo(path)
    assert mistake("index", "ic", root) == (
        f"hpcai500: error: {root}: no file can be read, for example train/cat/cat_0.JPEG: not a regular file; "
        "check the permissions, links and mount\n"
    )
    assert not (root / SEEK_INDEX).exists()


def test_what_is_in_the_place_of_an_index_or_of_the_cache_is_told(
    root: Path, user_cache: Path, call: Any, mistake: Any
) -> None:
    (root / SEEK_INDEX).mkdir()
    assert mistake("index", "ic", root) == (
        f"hpcai500: error: cannot write the seek index {root / SEEK_INDEX}: Is a directory; remove the folder of this "
        "name, and run the same command again\n"
    )
    made = json.loads(call("index", "ic", root, "--cache", "--json")[0])
    assert Path(made["index"]).is_relative_to(user_cache)
    shutil.rmtree(user_cache)
    user_cache.write_text("a file")
    said = mistake("index", "ic", root, "--cache")
    assert said.endswith(": Not a directory; choose another cache folder by XDG_CACHE_HOME\n")


OF_OWNERS = "ask its owner to run the same command, or make your own by `hpcai500 data index ic {root} --cache`"
NO_ROOM = "it takes about 4 % of the set: make room, and run the same command again"
REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OF_OWNERS),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), NO_ROOM),
    errno.EIO: "check the disk and the mount, and run the same command again",
}


@pytest.mark.parametrize(("code", "remedy"), REMEDIES.items(), ids=lambda value: errno.errorcode.get(value, ""))
def test_each_reason_has_a_remedy_of_its_own(
    code: int, remedy: str, root: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    def refuse(path: bytes) -> _core.SeekIndexWriter:
        # As the core has it; and root, who may run this, is refused nothing.
        raise OSError(code, f"cannot make {os.fsdecode(path)}: {os.strerror(code)}")

    monkeypatch.setattr(seek_index_module, "SeekIndexWriter", refuse)
    said = f"cannot write the seek index {root / SEEK_INDEX}: {os.strerror(code)}; {remedy.format(root=root)}"
    assert mistake("index", "ic", root) == f"hpcai500: error: {said}\n"


COMMAND = [*HPCAI500, "data", "index", "ic"]


def test_an_index_stays_where_a_new_one_has_no_room(root: Path, without_progress: Any) -> None:
    before = make_seek_index(root).path.read_bytes()
    (root / "train/cat/cat_0.JPEG").write_bytes(encoded_picture(picture(77, 200, 300)))
    done = subprocess.run(
        [*COMMAND, str(root)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert without_progress(done.stderr) == (
        f"hpcai500: error: cannot write the seek index {root / SEEK_INDEX}: File too large; raise the limit of a "
        "file's size (ulimit -f), and run the same command again\n"
    )
    assert (root / SEEK_INDEX).read_bytes() == before
    assert not list(root.glob(".hpcai500-part-*"))


STOPPED = "hpcai500: interrupted: an existing index is unchanged; run the same command again to start over\n"


@pytest.mark.parametrize(("sent", "code", "said"), [(signal.SIGINT, 130, STOPPED), (signal.SIGTERM, 143, "")])
def test_an_index_stays_where_the_making_of_a_new_one_is_stopped(
    root: Path, sent: signal.Signals, code: int, said: str
) -> None:
    before = make_seek_index(root).path.read_bytes()
    # Half a minute of work, of which the first moment is enough.
    large = root / "train/cat/cat_0.JPEG"
    noise = np.random.default_rng(1).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    large.write_bytes(encoded_picture(Image.fromarray(noise), quality=95))
    for number in range(5000):
        os.link(large, large.with_name(f"link_{number}.JPEG"))
    command = [*COMMAND, str(root), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 600
    while not list(root.glob(".hpcai500-part-*/index")) and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.005)
    process.send_signal(sent)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (code, ""), err
    assert err.endswith(said)
    assert "Traceback" not in err
    assert (root / SEEK_INDEX).read_bytes() == before
    assert not list(root.glob(".hpcai500-part-*"))


# --- the loaders, which use it without being told

SETTINGS: dict[str, Any] = {"batch_size": 4, "threads": 2, "size": 16, "mode": "random", "area": (0.35, 1.0)}
ASKED = [np.array(batch, np.int64) for batch in ([3, 1, 19, 7], [0, 0, 5, 12], [11])]
LOADERS = [pytest.param("native"), pytest.param("dali", marks=needs_dali)]


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told to another test was told in the same process."""
    monkeypatch.setattr(seek_index_module, "_warned", set())


def batches_of(loader: str, root: Path) -> Batches:
    split = load_index(root).train
    if loader == "dali":
        return DaliBatches(split, root, device=torch.device("cpu"), **SETTINGS)
    return JpegBatches(split, root, **SETTINGS)


def run(loader: str, root: Path, epochs: int = 1) -> tuple[torch.Tensor, SeekCounts]:
    """All images, and what became of the index."""
    batches = batches_of(loader, root)
    images, seek = [], SeekCounts()
    try:
        for epoch in range(epochs):
            for batch in batches.epoch(ASKED, seed=5, epoch=epoch):
                images.append(batch.images.clone())
                seek += batch.seek
    finally:
        batches.close()
    return torch.cat(images), seek


SLOWLY = "images are decoded without it, which is slower; "


@pytest.mark.parametrize("loader", LOADERS)
def test_an_index_is_used_without_being_asked_for_and_changes_no_bit(
    loader: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The folder's name is no text.
    root = root.rename(root.with_name(os.fsdecode(b"s\xffet")))
    without, nothing = run(loader, root)
    make_seek_index(root)
    with_index, seek = run(loader, root)
    assert torch.equal(with_index, without)
    assert (nothing, seek) == (SeekCounts(), SeekCounts(used=9))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("loader", LOADERS)
def test_changed_files_are_decoded_without_it_with_one_warning(
    loader: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_seek_index(root)
    paths = load_index(root).train.paths
    for sample in (7, 5):
        (root / paths[sample]).write_bytes(encoded_picture(picture(100 + sample, 64, 100), quality=96))
    images, seek = run(loader, root, epochs=2)
    assert seek == SeekCounts(used=14, unknown=4)
    index = root / SEEK_INDEX
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} lacks 1 of the 4 images of a batch: images are "
        f"decoded without it, which is slower; rebuild it by `hpcai500 data index ic {root}`\n"
    )
    index.unlink()
    assert torch.equal(run(loader, root, epochs=2)[0], images)


def damage_points(content: bytearray) -> None:
    # In the middle of what is said of the files, each of which has a few hundred bytes.
    for place in range(40, table_of(content), 20):
        content[place] ^= 0x10


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("foreign", [False, True], ids=["false", "of another set"])
def test_an_index_that_is_false_or_of_another_set_is_of_no_use_and_no_harm_and_told_once(
    loader: str, foreign: bool, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = run(loader, root)
    content = bytearray(make_seek_index(write_tree(tmp_path / "foreign") if foreign else root).path.read_bytes())
    if not foreign:
        damage_points(content)
    (root / SEEK_INDEX).write_bytes(content)
    images, seek = run(loader, root)
    assert torch.equal(images, expected)
    assert seek == (SeekCounts(unknown=9) if foreign else SeekCounts(false=9))
    told = "lacks 4 of the 4 images of a batch" if foreign else "is wrong for 4 of the 4 images of a batch"
    assert capsys.readouterr().err.count(told) == 1


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-1], "is truncated"),
        (lambda content: write_header(content, version=9), "is of another version of hpcai500 (format 9, not 1)"),
        (lambda content: b"\0" + content[1:], "is no seek index"),
        (None, "is not a file"),
    ],
)
def test_an_index_that_cannot_be_used_is_told_with_the_line_to_type(
    loader: str, damage: Any, reason: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = root / SEEK_INDEX
    if damage is None:
        index.mkdir()
    else:
        index.write_bytes(damage(bytearray(make_seek_index(root).path.read_bytes())))
    assert run(loader, root)[1] == run(loader, root)[1] == SeekCounts()
    # Once in two runs, and nothing else.
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} {reason}: {SLOWLY}rebuild it by `hpcai500 data index ic {root}`\n"
    )


@needs_dali
def test_an_index_that_goes_while_dali_runs_does_not_end_the_run(root: Path) -> None:
    make_seek_index(root)
    batches = batches_of("dali", root)
    try:
        # An epoch that is left early makes a new pipeline for the next one.
        for epoch in range(3):
            assert next(batches.epoch(ASKED, seed=5, epoch=epoch)).images.shape[0] == 4
            (root / SEEK_INDEX).unlink(missing_ok=True)
    finally:
        batches.close()


@needs_dali
def test_an_index_that_goes_before_dali_opens_it_is_done_without(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = run("dali", root)
    index = make_seek_index(root).path

    def define_and_remove(*arguments: Any) -> Any:
        index.unlink(missing_ok=True)
        return host_pipeline(*arguments)

    monkeypatch.setattr(dali_loader_module, "host_pipeline", define_and_remove)
    images, seek = run("dali", root)
    assert torch.equal(images, expected)
    assert seek == SeekCounts()
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} could not be used by DALI (cannot open {index}: No such file or "
        "directory): images are decoded without it, which is slower; "
        f"rebuild it by `hpcai500 data index ic {root}`\n"
    )


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        # As the core has it; and root, who may run this, is refused nothing.
        (
            PermissionError(errno.EACCES, "cannot open it: Permission denied"),
            "cannot be read (Permission denied)",
            "make it readable, or make your own by `hpcai500 data index ic {root} --cache`",
        ),
        (MemoryError(), "does not fit into memory", "give the job more memory"),
    ],
)
def test_a_warning_says_what_would_help(
    error: Exception,
    reason: str,
    remedy: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = make_seek_index(root).path

    def refuse(path: bytes) -> SeekIndex:
        raise error

    monkeypatch.setattr(seek_index_module, "SeekIndex", refuse)
    assert seek_index_module.find_seek_index(root) is None
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} {reason}: images are decoded without it, which is slower; "
        f"{remedy.format(root=root)}\n"
    )


def test_an_older_index_is_used_where_the_newer_one_is_damaged(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_set = make_seek_index(root).path
    in_cache = make_seek_index(root, in_cache=True).path
    in_set.write_text("no index")
    os.utime(in_cache, (1000, 1000))
    assert run("native", root)[1] == SeekCounts(used=9)
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {in_set} is truncated: the older {in_cache} is used instead; "
        f"rebuild it by `hpcai500 data index ic {root}`\n"
    )


def test_only_one_process_of_a_node_tells(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / SEEK_INDEX).write_text("no index")
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    run("native", root)
    assert capsys.readouterr().err == ""


def test_an_index_is_no_part_of_the_set(root: Path) -> None:
    before = load_index(root, refresh=True)
    content_before = check_images(root).content_fingerprint
    make_seek_index(root)
    after = load_index(root, refresh=True)
    assert after.fingerprint == before.fingerprint
    assert after.ignored_files == before.ignored_files == 0
    assert check_images(root).content_fingerprint == content_before


def test_the_newer_of_two_indexes_is_used(root: Path) -> None:
    in_set = make_seek_index(root).path
    in_cache = make_seek_index(root, in_cache=True).path
    assert in_cache.is_relative_to(os.environ["XDG_CACHE_HOME"])
    for newer, older in ((in_set, in_cache), (in_cache, in_set)):
        os.utime(newer, (2000, 2000))
        os.utime(older, (1000, 1000))
        found = seek_index_module.find_seek_index(root)
        assert found is not None
        assert found.path == newer


def test_files_of_kinds_without_points_are_known_and_no_reason_to_warn(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = load_index(root).train.paths
    (root / paths[3]).write_bytes(encoded_picture(picture(1, 64, 100), progressive=True))
    (root / paths[1]).write_bytes(encoded_picture(picture(1, 64, 100), "PNG"))
    whole = encoded_picture(picture(1, 64, 100))
    # Damaged behind what most crops show: our own decoder takes those, and could not find points for the rest.
    (root / paths[19]).write_bytes(whole[:-60] + b"\xff\xd9")
    make_seek_index(root)
    batches = batches_of("native", root)
    try:
        counts = [batch.seek for batch in batches.epoch([np.array([3, 1, 7])], seed=5, epoch=0)]
    finally:
        batches.close()
    assert counts == [SeekCounts(used=1)]
    assert capsys.readouterr().err == ""


def test_a_check_says_whether_the_index_is_true(root: Path) -> None:
    assert check_images(root).seek_index is None
    make_seek_index(root)
    report = check_images(root)
    assert report.seek_index is not None
    assert report.seek_index.counts == SeekCounts(used=24)
    (root / load_index(root).train.paths[7]).write_bytes(encoded_picture(picture(100, 64, 100), quality=96))
    content = bytearray((root / SEEK_INDEX).read_bytes())
    content[100] ^= 1
    (root / SEEK_INDEX).write_bytes(content)
    changed = check_images(root).seek_index
    assert changed is not None
    assert changed.counts == SeekCounts(used=22, unknown=1, false=1)
