"""The in-job driver, `python -m hpcai500.train`: a recipe goes in, a record comes out.

Before torch is imported, handlers of signals are set and OpenMP is told how long idle threads spin.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcai500.engine.measurement import let_threads_spin
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import ExitCode, HpcAi500Error, NotFiniteError, StoppedError, UsageError
from hpcai500.files import scratch
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.stopping import ending_by_signals
from hpcai500.streams import prepare_streams, tell
from hpcai500.system.power import parse_power


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job; returns the exit code. Every error is one line on stderr; HPCAI500_TRACEBACK=1 shows where."""
    prepare_streams()
    leads = True
    try:
        options = _options(arguments)
        power = parse_power(options.power)
        placement = find_placement(os.environ)
        leads = placement.rank == 0
        # Until the ranks have met there is nothing to save: a signal ends this one at once.
        with ending_by_signals(), scratch(os.environ, options.out):
            let_threads_spin()
            from hpcai500.engine.job import go_on, start  # imports torch

            stop = StopRequest(announce=leads)
            if options.resume:
                go_on(options.out, options.data, stop, placement, power)
            else:
                recipe = load_recipe(options.recipe, options.set)
                start(recipe, options.data, options.out, stop, placement, power, options.campaign)
    except (StoppedError, NotFiniteError) as error:
        return _tell(error, error.exit_code) if leads else error.exit_code
    except HpcAi500Error as error:
        return _tell(error, error.exit_code)
    except KeyboardInterrupt:
        kept = any(options.out.glob("checkpoints/*"))
        words = "the last checkpoint is kept" if kept else "there was no checkpoint yet"
        return _tell(f"stopped at once; {words}", ExitCode.RUN_FAILED) if leads else ExitCode.RUN_FAILED
    except MemoryError as error:
        return _tell(f"out of memory: {error}; lower hyperparameters.batch_size", ExitCode.RUN_FAILED)
    except Exception as error:  # noqa: BLE001 - the last resort: one line, and the record has it too
        what = "".join(traceback.format_exception_only(error)).strip()
        return _tell(f"unexpected {what} (HPCAI500_TRACEBACK=1 shows where)", ExitCode.RUN_FAILED)
    return ExitCode.PASS


class _Parser(argparse.ArgumentParser):
    """A mistake raises UsageError; argparse would print the usage and exit with 2, which means a wrong answer here."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m hpcai500.train", description="Run one job: recipe in, record out.")
    parser.add_argument(
        "--recipe", help="TOML file or name of a shipped recipe; with --resume the record's own is used"
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change one field")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--resume", action="store_true", help="go on with the record in --out")
    parser.add_argument(
        "--power",
        default="auto",
        metavar="SOURCE",
        help="what tells the power, as `hpcai500 ic --power` has it",
    )
    parser.add_argument(
        "--campaign",
        metavar="ID:TRIAL:ATTEMPT:HEAD",
        type=_place_in_campaign,
        help="which run of which campaign this is; the record keeps it (docs/campaigns.md)",
    )
    options = parser.parse_args(arguments)
    if options.resume and (options.recipe or options.set):
        parser.error("--resume goes on with the recipe of the record: leave out --recipe and --set")
    if not options.resume and not (options.recipe and options.data):
        parser.error("give --recipe and --data, or --resume")
    return options


def _place_in_campaign(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"([0-9a-f]{64}):([1-9]\d*):([1-9]\d*):([0-9a-f]{64})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected ID:TRIAL:ATTEMPT:HEAD, got {text!r}")
    identity, trial, attempt, head = found.groups()
    return {"id": identity, "trial": int(trial), "attempt": int(attempt), "head": head}


def _tell(error: Exception | str, code: ExitCode) -> int:
    tell(error)
    return code


if __name__ == "__main__":
    code = main()
    # All is written: an impatient Ctrl-C must not turn the end into a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
