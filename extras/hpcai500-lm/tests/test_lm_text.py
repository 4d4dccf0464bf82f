"""Token sets of text files, by a tokenizer of the library `tokenizers`."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hpcai500_lm import text
from hpcai500_lm.text import END, main
from hpcai500_lm.tokens import Part, check, open_set

PACKAGE = Path(text.__file__).parents[1]
tokenizers = pytest.importorskip("tokenizers")

TEXTS = ("the cat sat on the mat. " * 40 + "\n", "größer — 猫 sat on the \U0001f600 mat\n" * 30)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    for number, content in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(content, encoding="utf-8")
    return folder


def test_a_set_of_text_decodes_to_the_text(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "set"
    assert main([str(made), str(books), "--vocabulary", "280", "--evaluation", "0.2"]) == 0
    assert "vocabulary 280: --set workload.vocabulary=280" in capsys.readouterr().out
    facts = check(made)
    assert (facts["tokenizer"], facts["files"], facts["vocabulary"]) == ("byte-pair", 2, 280)
    share = facts["evaluation_tokens"] / (facts["training_tokens"] + facts["evaluation_tokens"])
    assert share == pytest.approx(0.2, abs=0.01)
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    ids = [
        token
        for part in Part
        for token in open_set(made).sequences(part, facts[f"{part}_tokens"] - 1).read(np.array([0]))[0].tolist()
    ]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(content + END for content in TEXTS)
    again = tmp_path / "again"
    assert main([str(again), str(books), "--tokenizer", str(made / "tokenizer.json"), "--evaluation", "0.2"]) == 0
    assert open_set(again).fingerprint == open_set(made).fingerprint


def test_it_says_what_a_set_is_enough_for(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "set"
    assert main([str(made), str(books), "--vocabulary", "257", "--evaluation", "0.1"]) == 0
    facts = check(made)
    counts = (facts["training_tokens"] - 1) // 128, (facts["evaluation_tokens"] - 1) // 128
    assert min(counts) > 0
    assert facts["samples_of_128_tokens"] == f"{counts[0]} for training, {counts[1]} for evaluation"
    assert facts["samples_of_1024_tokens"] == "1 for training, 0 for evaluation: not enough for a run"
    lines = capsys.readouterr().out.splitlines()
    assert f"samples of 128 tokens: {facts['samples_of_128_tokens']}" in lines
    assert "samples of 8192 tokens: 0 for training, 0 for evaluation: not enough for a run" in lines
    (books / "one.txt").write_text("a")
    assert main([str(tmp_path / "small"), str(books / "one.txt"), "--vocabulary", "257"]) == 0
    assert f"{tmp_path / 'small'}: 1 token for training, 1 for evaluation" in capsys.readouterr().out


def test_a_vocabulary_that_the_text_does_not_fill_is_reported(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "set"), str(books), "--vocabulary", "5000"]) == 0
    size = open_set(tmp_path / "set").vocabulary
    said = capsys.readouterr()
    assert f"the tokenizer has {size} entries, not 5000" in said.err
    assert f"--set workload.vocabulary={size}" in said.out


def test_ctrl_c_ends_the_training_of_a_tokenizer_at_once(tmp_path: Path) -> None:
    words = np.random.default_rng(5).integers(10**9, size=300_000)
    (tmp_path / "long.txt").write_text(" ".join(map(str, words)))
    program = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); from hpcai500_lm.text import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, tmp_path / "set", tmp_path / "long.txt", "--vocabulary", "100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "training a tokenizer of 100000 entries on 3.0 MB of text" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    # A process that had trained to the end would return an exit code.
    assert process.returncode == -signal.SIGINT
    assert not (tmp_path / "set").exists()


def test_a_text_of_many_blocks_takes_the_memory_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK", 1 << 10)
    monkeypatch.setattr(text, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(text, "_SHARD_TOKENS", 30_000)
    words = [str(word) for word in np.random.default_rng(5).integers(10_000, size=30_000)]
    # One line is much longer than a block.
    content = " ".join(words[:9000]) + "\n".join(words[9000:])
    (tmp_path / "long.txt").write_text(content)
    made = tmp_path / "set"
    tracemalloc.start()
    try:
        assert main([str(made), str(tmp_path / "long.txt"), "--vocabulary", "300"]) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    shards = open_set(made).shards
    sizes = {part: [shard.tokens for shard in shards[part]] for part in Part}
    *full, last = sizes[Part.TRAINING]
    assert set(full) == {30_000}
    assert 0 < last <= 30_000
    count = sum(map(sum, sizes.values()))
    assert sizes[Part.EVALUATION] == [round(count * 0.01)]
    tokens = np.concatenate([np.fromfile(shard.path, "<u2") for part in Part for shard in shards[part]])
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    assert tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == content + END
    # All tokens together take two bytes each on the disk.
    assert peak < 2 * count
    lines = capsys.readouterr().err.splitlines()
    assert "hpcai500-lm-tokens: tokenizing 0.1 MB of text" in lines
    assert "hpcai500-lm-tokens: tokenized 0.1 of 0.1 MB" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vocabulary", "100"], "--vocabulary: expected 257 (all bytes, and the end) to 1000000, got 100"),
        (["--vocabulary", "5000000000"], "--vocabulary: expected 257 (all bytes, and the end) to 1000000, got 5000"),
        (["--vocabulary", "280", "--evaluation", "1.5"], "--evaluation: expected more than 0 and less than 1"),
        (["--tokenizer", "absent.json"], "absent.json: no such file"),
        (["--vocabulry", "1000"], "unrecognized arguments: --vocabulry"),
        (["--vocabulary", "many"], "--vocabulary: invalid int value: 'many'"),
        ([], "give --vocabulary N to train a tokenizer, or --tokenizer tokenizer.json of a model"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([str(tmp_path / "set"), str(books), *words]) == 64
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "set").exists()


def test_a_folder_to_write_that_is_a_file_or_a_folder_of_other_files_is_named(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(books / "0.txt"), str(books / "1.txt"), "--vocabulary", "280"]) == 64
    assert "0.txt: is a file: first give the folder to write, and then the text files" in capsys.readouterr().err
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "one.md").write_text("text")
    assert main([str(tmp_path / "set"), str(books), str(tmp_path / "pages"), "--vocabulary", "280"]) == 64
    assert "pages: no *.txt file in it: of a folder, only those are read" in capsys.readouterr().err
    assert main([str(tmp_path / "set"), str(tmp_path / "pages" / "one.md"), "--vocabulary", "280"]) == 0


def test_files_that_are_no_text_are_named(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (books / "2.txt").write_bytes(b"abc\xff")
    assert main([str(tmp_path / "set"), str(books), "--vocabulary", "280"]) != 0
    assert "2.txt: not UTF-8 text: convert it with iconv" in capsys.readouterr().err
    (books / "2.txt").write_bytes("abc".encode("utf-16-le"))
    assert main([str(tmp_path / "set"), str(books), "--vocabulary", "280"]) == 64
    assert "2.txt: not text: it has NUL bytes: convert it to UTF-8 with iconv" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text(json.dumps({"a": 1}))
    assert main([str(tmp_path / "set"), str(books / "0.txt"), "--tokenizer", str(tmp_path / "bad.json")]) != 0
    assert "not a tokenizer.json" in capsys.readouterr().err


def test_of_a_set_that_cannot_be_finished_nothing_is_left(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "first"), str(books), "--vocabulary", "280"]) == 0
    made = tmp_path / "set"
    words = [str(made), str(books), "--tokenizer", str(tmp_path / "first" / "tokenizer.json")]
    (books / "2.txt").write_bytes(b"abc\xff")
    assert main(words) == 64
    assert "2.txt: not UTF-8 text: convert it with iconv" in capsys.readouterr().err
    assert not made.exists()
    (books / "2.txt").unlink()
    made.mkdir()
    (made / "notes").write_text("of the user")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Enough for the tokens, but not for the tokenizer.
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
    try:
        assert main(words) == 74
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert f"hpcai500-lm-tokens: error: {made}: File too large" in capsys.readouterr().err
    assert [path.name for path in made.iterdir()] == ["notes"]
    assert main(words) == 0
    assert open_set(made).fingerprint == open_set(tmp_path / "first").fingerprint


def test_a_set_is_never_overwritten(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path / "set"), str(books), "--vocabulary", "280"]
    assert main(words) == 0
    assert main(words) == 64
    assert "has a set already" in capsys.readouterr().err
