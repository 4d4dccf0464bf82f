"""What each process of a self-test sets up first: a log for all output, a time limit, and a folder for its files."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.findings import FindingsLog
from hpcai500.stopping import let_signals_in
from hpcai500.streams import prepare_streams


@dataclass(frozen=True)
class Surroundings:
    """What the login half gave this process: a log of findings, a folder to write to, and words for its task."""

    findings: FindingsLog
    folder: Path
    words: Sequence[str]


def begin(arguments: Sequence[str] | None = None) -> Surroundings:
    """Take `FOLDER LIMIT [WORD…]`: findings go to FOLDER/findings.jsonl, all output to FOLDER/log.

    The original stderr only gets a line for each check that ends. After LIMIT seconds the kernel ends this process by
    SIGALRM, even where it hangs in a library. A signal to stop ends it at once: there is nothing to save.
    """
    prepare_streams()
    place, limit_seconds, *words = sys.argv[1:] if arguments is None else arguments
    folder = Path(place)
    for number in (signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(limit_seconds))
    let_signals_in()
    told = os.fdopen(os.dup(2), "w", encoding="utf-8")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    return Surroundings(FindingsLog(folder / "findings.jsonl", told), folder, words)
