"""`hpcai500-lm-tokens`: make a token set of text files."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from hpcai500.errors import DataError, EnvironmentLacksError, HpcAi500Error, UsageError

from hpcai500_lm.tokens import INDEX, LENGTHS, Part, TokenSet, open_set, write_set

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|end_of_text|>"
_SHARD_TOKENS = 1 << 27
# Characters, or tokens, that are in memory at a time.
_BLOCK = 1 << 20
# Of tokens before their shards are written.
_SCRATCH = np.dtype(np.uint32)
# A tokenizer's training reserves memory for its largest vocabulary.
_LEAST_VOCABULARY, _LARGEST_VOCABULARY = 257, 1_000_000
_SECONDS_BETWEEN_LINES = 10.0


class _Parser(argparse.ArgumentParser):
    """Reports mistakes as hpcai500 does: in one line, with its exit code."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help shows what it takes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a set as the command line says; returns the exit code."""
    parser = _Parser(
        prog="hpcai500-lm-tokens",
        description="Make a token set of text files, for `hpcai500 lm --data SET`. Each file is a document.",
        epilog="example: hpcai500-lm-tokens set/ books/*.txt --vocabulary 8192; then hpcai500 lm --recipe lm/gpt2 "
        "--data set/ --set workload.vocabulary=8192",
    )
    parser.add_argument("set", type=Path, help="folder to write; it must not have a set yet")
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        help="text files (UTF-8) of any name; of a folder, all *.txt files in and below it",
    )
    tokenizer = parser.add_mutually_exclusive_group()
    tokenizer.add_argument(
        "--tokenizer", type=Path, help="tokenizer.json of the `tokenizers` library, as models come with"
    )
    tokenizer.add_argument("--vocabulary", type=int, help="train a byte-pair tokenizer of so many tokens on the files")
    parser.add_argument(
        "--evaluation", type=float, default=0.01, help="share of the tokens, the last ones, for evaluation"
    )
    try:
        options = parser.parse_args(arguments)
        # Not by argparse, which would report this before an option that it does not know.
        if options.tokenizer is None and options.vocabulary is None:
            parser.error("give --vocabulary N to train a tokenizer, or --tokenizer tokenizer.json of a model")
        made = make(options.set, options.files, options.tokenizer, options.vocabulary, options.evaluation)
    except HpcAi500Error as error:
        print(f"hpcai500-lm-tokens: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"hpcai500-lm-tokens: error: {error.filename or options.set}: {error.strerror}", file=sys.stderr)
        return 74
    except KeyboardInterrupt:
        _say("stopped: nothing of the set is left")
        return 130
    training, evaluation = (sum(shard.tokens for shard in made.shards[part]) for part in Part)
    print(f"{options.set}: {_tokens(training)} for training, {evaluation} for evaluation")
    for length in LENGTHS:
        print(f"samples of {length} tokens: {made.samples(length)}")
    print(f"vocabulary {made.vocabulary}: --set workload.vocabulary={made.vocabulary}")
    return 0


def make(
    folder: Path, sources: Sequence[Path], tokenizer: Path | None, vocabulary: int | None, evaluation: float
) -> TokenSet:
    """Write the set; if that fails, nothing of it is left.

    With `tokenizer`, a tokenizer.json, that is used; otherwise a byte-pair tokenizer of `vocabulary` tokens is trained.

    Raises:
        UsageError: options are out of range, or the folder has a set.
        DataError: a file is no text, or there are too few tokens.
        EnvironmentLacksError: the library `tokenizers` is not installed.
    """
    if not 0 < evaluation < 1:
        raise UsageError(f"--evaluation: expected more than 0 and less than 1, got {evaluation:g}")
    if (folder / INDEX).exists():
        raise UsageError(f"{folder}: has a set already: give another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file: first give the folder to write, and then the text files")
    files = _text_files(sources)
    found = _loaded(tokenizer) if tokenizer else _trained(files, vocabulary or 0)
    facts = {"tokenizer": tokenizer.name if tokenizer else "byte-pair", "files": len(files)}
    with _all_or_nothing(folder):
        _write(folder, found, files, evaluation, facts)
    return open_set(folder)


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[None]:
    """Make the folder; on an error, remove what was written into it."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    try:
        yield
    except BaseException:
        for path in set(folder.iterdir()) - before:
            path.unlink()
        if is_new:
            folder.rmdir()
        raise


def _write(
    folder: Path, tokenizer: Tokenizer, files: Sequence[Path], evaluation: float, facts: Mapping[str, Any]
) -> None:
    # Where evaluation begins is known only when all tokens have been counted. They wait in a file without a name, which
    # goes with the process.
    with tempfile.TemporaryFile(dir=folder) as scratch:
        count = sum(scratch.write(tokens.data) for tokens in _encoded(tokenizer, files)) // _SCRATCH.itemsize
        cut = count - max(1, round(count * evaluation))
        if cut < 1:
            raise DataError(f"the files have {_tokens(count)}: give more text")
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        parts = {Part.TRAINING: _shards(scratch, 0, cut), Part.EVALUATION: _shards(scratch, cut, count)}
        write_set(folder, tokenizer.get_vocab_size(), parts, facts)


def _text_files(sources: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for source in sources:
        found = sorted(source.rglob("*.txt")) if source.is_dir() else [source]
        if not found:
            raise DataError(
                f"{source}: no *.txt file in it: of a folder, only those are read; name other files themselves"
            )
        files += found
    return files


def _megabytes(files: Sequence[Path]) -> float:
    return sum(path.stat().st_size for path in files) / 1e6


def _tokens(number: int) -> str:
    return f"{number} token{'' if number == 1 else 's'}"


def _say(line: str) -> None:
    print(f"hpcai500-lm-tokens: {line}", file=sys.stderr, flush=True)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise EnvironmentLacksError("the library `tokenizers` is missing: pip install tokenizers") from error
    return tokenizers


def _loaded(path: Path) -> Tokenizer:
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give the tokenizer.json of a model, or --vocabulary N to train one")
    library = _library()
    try:
        found: Tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"{path}: not a tokenizer.json: {error}") from error
    return found


def _trained(files: Sequence[Path], vocabulary: int) -> Tokenizer:
    """Byte-level byte-pair encoding (Sennrich et al. 2016), which can encode any text."""
    if not _LEAST_VOCABULARY <= vocabulary <= _LARGEST_VOCABULARY:
        raise UsageError(
            f"--vocabulary: expected {_LEAST_VOCABULARY} (all bytes, and the end) to {_LARGEST_VOCABULARY}, "
            f"got {vocabulary}"
        )
    library = _library()
    found: Tokenizer = library.Tokenizer(library.models.BPE())
    found.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    # Nothing is written yet, so Ctrl-C may end the process at once: the library would answer it only minutes later.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _say(f"training a tokenizer of {vocabulary} entries on {_megabytes(files):.1f} MB of text")
        found.train_from_iterator((block for path in files for block in _blocks(path)), trainer)
    finally:
        signal.signal(signal.SIGINT, handler)
    if (size := found.get_vocab_size()) < vocabulary:
        _say(f"the tokenizer has {size} entries, not {vocabulary}: with them, each word of the text is one token")
    return found


def _encoded(tokenizer: Tokenizer, files: Sequence[Path]) -> Iterator[npt.NDArray[np.uint32]]:
    """The tokens of each file, and an end token behind each file if the tokenizer has one."""
    ends = [number for name in (END, "<|endoftext|>", "</s>") if (number := tokenizer.token_to_id(name)) is not None]
    total, done, said = _megabytes(files), 0.0, time.monotonic()
    _say(f"tokenizing {total:.1f} MB of text")
    for path in files:
        for block in _blocks(path):
            yield np.array(tokenizer.encode(block, add_special_tokens=False).ids, _SCRATCH)
            done += len(block.encode()) / 1e6
            if time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                _say(f"tokenized {done:.1f} of {total:.1f} MB")
        yield np.array(ends[:1], _SCRATCH)


def _blocks(path: Path) -> Iterator[str]:
    """The text of a file in blocks, which end with a line unless it is longer than a block."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            while block := stream.read(_BLOCK):
                block += stream.readline(_BLOCK)
                if "\0" in block:
                    raise DataError(
                        f"{path}: not text: it has NUL bytes: convert it to UTF-8 with iconv, or leave it out"
                    )
                yield block
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: convert it with iconv, or leave it out") from error


def _shards(scratch: IO[bytes], begin: int, end: int) -> Iterator[Iterator[npt.NDArray[np.uint32]]]:
    """Tokens `begin` to `end` of the file: shards of blocks."""

    def blocks(begin: int, end: int) -> Iterator[npt.NDArray[np.uint32]]:
        for at in range(begin, end, _BLOCK):
            scratch.seek(at * _SCRATCH.itemsize)
            yield np.frombuffer(scratch.read(min(_BLOCK, end - at) * _SCRATCH.itemsize), _SCRATCH)

    return (blocks(at, min(at + _SHARD_TOKENS, end)) for at in range(begin, end, _SHARD_TOKENS))
