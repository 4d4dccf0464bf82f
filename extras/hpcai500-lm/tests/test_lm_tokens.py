"""Token sets: written, read, checked; a broken or hostile one is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hpcai500.errors import DataError
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500_lm.tokens import INDEX, Part, check, open_set, write_set


def write(folder: Path, training: list[list[int]], evaluation: list[list[int]], vocabulary: int = 100) -> Path:
    parts = {Part.TRAINING: training, Part.EVALUATION: evaluation}
    write_set(
        folder, vocabulary, {part: [[np.array(one)] for one in shards] for part, shards in parts.items()}, {"made": 1}
    )
    return folder


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    length=st.integers(2, 9),
    vocabulary=st.sampled_from([100, 70_000]),
)
def test_samples_are_the_windows_of_each_shard(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, vocabulary: int
) -> None:
    shards = [list(range(at, at + size)) for at, size in enumerate(sizes)]
    root = write(tmp_path_factory.mktemp("set"), shards, [[1, 2]], vocabulary)
    expected = [
        shard[start : start + length + 1] for shard in shards for start in range(0, len(shard) - length, length)
    ]
    if not expected:
        with pytest.raises(DataError, match=r"lower workload\.sequence_length"):
            open_set(root).sequences(Part.TRAINING, length)
        return
    sequences = open_set(root).sequences(Part.TRAINING, length)
    assert len(sequences) == len(expected)
    order = np.random.default_rng(0).permutation(len(expected))
    assert sequences.read(order).tolist() == [expected[place] for place in order]


def test_a_check_reads_everything_and_gives_facts(tmp_path: Path) -> None:
    assert check(write(tmp_path, [[1, 2, 3], [4]], [[5, 6]])) == {
        "training_tokens": 4,
        "evaluation_tokens": 2,
        **{
            f"samples_of_{length}_tokens": "0 for training, 0 for evaluation: not enough for a run"
            for length in (128, 1024, 8192)
        },
        "shards": 3,
        "vocabulary": 100,
        "bytes_per_token": 2,
        "made": 1,
    }


def test_another_token_changes_the_fingerprints_and_a_copy_that_differs_is_found(tmp_path: Path) -> None:
    one = open_set(write(tmp_path / "one", [[1, 2, 3]], [[5, 6]]))
    other = open_set(write(tmp_path / "other", [[1, 2, 4]], [[5, 6]]))
    assert one.fingerprint != other.fingerprint
    before = one.content_fingerprint()
    assert before != other.content_fingerprint()
    (tmp_path / "one" / "training-00000.bin").write_bytes(np.array([1, 9, 3], "<u2").tobytes())
    damaged = open_set(tmp_path / "one")
    assert damaged.fingerprint == one.fingerprint
    assert damaged.content_fingerprint() != before
    with pytest.raises(
        DataError, match=r"training-00000\.bin: not the file of the index: its SHA-256 differs; copy the set again"
    ):
        damaged.check()


def test_a_token_outside_of_the_vocabulary_is_found(tmp_path: Path) -> None:
    write(tmp_path, [[1, 2, 30]], [[5, 6]], vocabulary=20)
    with pytest.raises(DataError, match=r"token 2 is 30, but the vocabulary of the set has 20: write the set again"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not an index of tokens"),
        ({"vocabulary": True}, "vocabulary: expected int, got True"),
        ({"vocabulary": 1 << 40}, "vocabulary: expected 2 to 65536"),
        ({"dtype": "float64"}, "dtype: expected uint16 or uint32, got 'float64'"),
        ({"shards": {}}, "shards: expected a list of shards for training"),
        ({"shards": {"training": [{"file": "../../etc/passwd", "tokens": 1, "sha256": "0" * 64}]}}, "expected file"),
        ({"shards": {"training": [{"file": "training-00000.bin", "tokens": -1, "sha256": "0" * 64}]}}, "got -1"),
        ({"shards": {"training": [{"file": "training-00000.bin", "tokens": 9, "sha256": "0" * 64}]}}, "has 6 bytes"),
        ({"shards": {"training": [{"file": "absent.bin", "tokens": 9, "sha256": "0" * 64}]}}, "cannot be read"),
        ({"shards": {"training": [7]}}, "expected file"),
    ],
)
def test_a_hostile_index_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path, [[1, 2, 3]], [[5, 6]])
    path = tmp_path / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(DataError) as caught:
        open_set(tmp_path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe", b"{}", b"null", b"[1]"])
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(DataError, match="write the set again"):
        open_set(tmp_path)


def test_a_folder_without_a_set_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="hpcai500 data make lm DIR makes a synthetic set, hpcai500-lm-tokens one of text"
    ):
        open_set(tmp_path)
