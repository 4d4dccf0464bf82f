"""Image sets on a node's own storage: the same set, only what is needed, whole after any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from image_tree import write_tree
from member_runs import member_recipe
from staged_sets import files_of, interrupting, parts_of, staged, unlist

from hpcai500.data.imagenet.check import check_images
from hpcai500.data.imagenet.index import load_content_fingerprint, load_index
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.staging import Order, release, stage
from hpcai500.errors import DataError
from hpcai500.methodology.sampling import draws, probe


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source", train=8, val=2)


def test_a_whole_staged_set_is_the_same_set(source: Path, tmp_path: Path) -> None:
    check_images(source, workers=1)
    report = staged(source, tmp_path / "node" / "set")
    here, there = load_index(tmp_path / "node" / "set"), load_index(source)
    assert (here.fingerprint, here.classes, here.train.paths) == (there.fingerprint, there.classes, there.train.paths)
    assert np.array_equal(here.train.labels, there.train.labels)
    assert load_content_fingerprint(here) == load_content_fingerprint(there) is not None
    assert files_of(tmp_path / "node" / "set") == files_of(source)
    assert (report.copied, report.needed, report.pieces) == (20, 20, 20)
    assert check_images(tmp_path / "node" / "set", workers=1).passed


def test_a_member_gets_what_it_draws_what_it_is_judged_on_and_what_all_are_evaluated_on(
    source: Path, tmp_path: Path
) -> None:
    recipe = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=3")
    staged(source, tmp_path / "set", recipes=[recipe])
    index = load_index(source)
    wanted = {*draws(16, 7, "bootstrap").tolist(), *probe(16, 3).tolist()}
    assert len(wanted) < 16
    expected = {index.train.paths[sample] for sample in wanted} | set(index.val.paths)
    assert files_of(tmp_path / "set").keys() == expected
    assert load_index(tmp_path / "set").fingerprint == index.fingerprint


def test_a_sample_that_was_not_staged_is_named_with_the_line_to_type(source: Path, tmp_path: Path) -> None:
    recipe = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=0")
    staged(source, tmp_path / "set", recipes=[recipe])
    index = load_index(tmp_path / "set")
    missing = next(n for n, path in enumerate(index.train.paths) if not (tmp_path / "set" / path).exists())
    batches = JpegBatches(index.train, index.root, batch_size=1, threads=1, size=8, mode="centre", resize_shorter=8)
    try:
        with pytest.raises(DataError) as error:
            list(batches.epoch([np.array([missing])], seed=0, epoch=0))
    finally:
        batches.close()
    told = str(error.value)
    assert f"{index.train.paths[missing]} was not staged" in told
    assert f"hpcai500 data stage ic {source} {tmp_path / 'set'} --recipe FILE" in told
    with pytest.raises(DataError, match=f"images are staged here: give the set itself, {source}"):
        check_images(tmp_path / "set")


def test_an_interrupted_staging_leaves_nothing_half_written_and_goes_on(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", train=3, val=1)
    for number, path in enumerate(sorted(source.rglob("*.JPEG"))):
        path.write_bytes(os.urandom(1_500_000 + number))
    order = Order("ic", source, tmp_path / "set", "somebody", threads=1)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(5))
    assert parts_of(tmp_path / "set") == []
    whole = files_of(tmp_path / "set")
    assert 0 < len(whole) < 8
    assert whole.items() <= files_of(source).items()
    report = stage(order)
    assert 8 - len(whole) <= report.copied <= 8 - len(whole) + 1
    assert files_of(tmp_path / "set") == files_of(source)


def test_what_a_killed_staging_was_at_is_cleared_and_counts_for_nothing(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    victim = load_index(source).train.paths[3]
    # As `kill -9` leaves it: renamed, not yet noted; and another file not yet whole.
    unlist(tmp_path / "set", victim)
    with (tmp_path / "set/.hpcai500-staging/manifest.jsonl").open("ab") as stream:
        stream.write(b'{"path": "train/ca')
    (tmp_path / "set" / victim).write_bytes(b"half")
    (tmp_path / "set" / victim).with_name(".hpcai500-part-3").write_bytes(b"hal")
    assert staged(source, tmp_path / "set").copied == 1
    assert files_of(tmp_path / "set") == files_of(source)
    assert parts_of(tmp_path / "set") == []


def test_a_damaged_copy_is_found_by_verify_and_copied_anew(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    victim = tmp_path / "set" / load_index(source).train.paths[5]
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    gone = tmp_path / "set" / load_index(source).val.paths[0]
    gone.unlink()
    assert staged(source, tmp_path / "set").copied == 0
    report = staged(source, tmp_path / "set", verify=True)
    assert (report.verified, report.damaged, report.copied) == (20, 2, 2)
    assert files_of(tmp_path / "set") == files_of(source)


def test_the_manifest_lists_what_is_here_with_size_and_sha256(source: Path, tmp_path: Path) -> None:
    recipe = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=0")
    staged(source, tmp_path / "set", recipes=[recipe])
    lines = (tmp_path / "set/.hpcai500-staging/manifest.jsonl").read_text().splitlines()
    listed = {entry["path"]: (entry["bytes"], entry["sha256"]) for entry in map(json.loads, lines)}
    assert listed == {
        path: (len(content), hashlib.sha256(content).hexdigest())
        for path, content in files_of(tmp_path / "set").items()
    }


def test_a_file_that_changed_at_the_source_is_found(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    victim = source / load_index(source).train.paths[2]
    content = victim.read_bytes()
    victim.write_bytes(content[:-3] + b"abc")
    with pytest.raises(DataError, match=r"changed since the set was listed or staged.*--release"):
        staged(source, tmp_path / "set", verify=True)
    victim.write_bytes(content)
    # Its time is new, and its content what it was.
    assert staged(source, tmp_path / "set", verify=True).damaged == 0
    victim.write_bytes(content + b"longer")
    shutil.rmtree(tmp_path / "set")
    # The cached index does not know: only a folder's time tells it of changes.
    with pytest.raises(DataError, match="changed since the set was listed"):
        staged(source, tmp_path / "set")


def test_a_set_that_changed_or_another_one_is_refused_with_the_line_to_type(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    shutil.copy(source / "train/cat/cat_0.JPEG", source / "train/cat/cat_99.JPEG")
    with pytest.raises(DataError, match=r"has changed since: .* hpcai500 data stage ic .* --release"):
        staged(source, tmp_path / "set")
    other = write_tree(tmp_path / "other", classes=("one", "two"))
    with pytest.raises(DataError, match="is another one"):
        staged(other, tmp_path / "set")


def test_the_last_release_takes_the_folder_and_nothing_of_others(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "node/set")
    assert load_index(tmp_path / "node/set")
    check_images(tmp_path / "node/set", workers=1)
    released = release(tmp_path / "node/set", None)
    assert (released.released, released.removed, released.left) == (("somebody",), 20, ())
    assert list((tmp_path / "node").iterdir()) == []
    assert release(tmp_path / "node/set", None).released == ()
    staged(source, tmp_path / "node/set")
    (tmp_path / "node/set/train/mine.txt").write_text("kept")
    assert release(tmp_path / "node/set", "somebody").left == ("train",)
    assert files_of(tmp_path / "node/set") == {"train/mine.txt": b"kept"}
    with pytest.raises(DataError, match="holds files that staging did not put there"):
        staged(source, tmp_path / "node/set")


def test_a_file_that_changes_under_the_copy_is_found(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", classes=("only",), train=1, val=1)
    for path in source.rglob("*.JPEG"):
        path.write_bytes(os.urandom(3_000_000))
    victim = next((source / "train").rglob("*.JPEG"))

    class Meddler:
        def advance(self, n: int = 1) -> None:
            with victim.open("r+b") as stream:
                stream.seek(2_900_000)
                stream.write(os.urandom(9))

    with pytest.raises(DataError, match="changed since the set was listed or staged"):
        stage(Order("ic", source, tmp_path / "set", "somebody", threads=1), lambda *_: nullcontext(Meddler()))
    assert files_of(tmp_path / "set") == {}
