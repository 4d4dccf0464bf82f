"""The in-job driver, `python -m hpcai500.train`: runs a recipe and writes a record.

Signal handlers and OpenMP's variables are set before torch is imported.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcai500.engine.measurement import load_torch, unexpected
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import ExitCode, HpcAi500Error, NotFiniteError, PeerError, StoppedError, UsageError
from hpcai500.files import scratch
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.restarts import rank_side
from hpcai500.stopping import ending_by_signals
from hpcai500.streams import prepare_streams, print_error
from hpcai500.system.power import parse_power


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job, or several after losses of other ranks (`restarts`); returns the exit code of the last.

    Errors are one line on stderr; HPCAI500_TRACEBACK=1 adds the traceback.
    """
    prepare_streams()
    command = rank_side()
    if command is None or not command.may_restart:
        return _run(arguments)
    # Also between jobs: signals end this process, and libraries keep the temporary folders that they saw first.
    with ending_by_signals(), scratch(os.environ, Path.cwd()):
        code = _run(arguments)
        while (next_arguments := command.next_job()) is not None:
            code = _run(next_arguments)
        return code


def _run(arguments: Sequence[str] | None) -> int:
    leads = True
    try:
        options = _options(arguments)
        power = parse_power(options.power)
        placement = find_placement(os.environ)
        leads = placement.rank == 0
        # Before the ranks are connected there is nothing to save: a signal ends this one at once.
        with ending_by_signals(), scratch(os.environ, options.out):
            # NumPy's linear algebra, which no training uses, would start a thread for each core. Where it cannot, it
            # sends Ctrl-C to its own process.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            load_torch()
            from hpcai500.engine.job import resume, start

            stop = StopRequest(announce=leads)
            if options.resume:
                resume(options.out, options.data, stop, placement, power)
            else:
                recipe = load_recipe(options.recipe, options.set)
                start(recipe, options.data, options.out, stop, placement, power, options.campaign)
    except (StoppedError, NotFiniteError) as error:
        return _report(error, error.exit_code) if leads else error.exit_code
    except HpcAi500Error as error:
        return _report(error, error.exit_code)
    except KeyboardInterrupt:
        kept = any(options.out.glob("checkpoints/*"))
        state = "the last checkpoint is kept" if kept else "there was no checkpoint yet"
        return _report(f"stopped at once; {state}", ExitCode.RUN_FAILED) if leads else ExitCode.RUN_FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: one line; the record has it, too
        found = unexpected(error)
        return _report(found, found.exit_code)
    return ExitCode.PASS


class _Parser(argparse.ArgumentParser):
    """Raises UsageError, where argparse would exit with 2, which means a wrong answer here."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m hpcai500.train", description="Run one job: train by a recipe, write a record.")
    parser.add_argument(
        "--recipe", help="TOML file or name of a shipped recipe; with --resume the recipe of the record is used"
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change one field")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--resume", action="store_true", help="resume the run whose record is in --out")
    parser.add_argument(
        "--power",
        default="auto",
        metavar="SOURCE",
        help="source of power measurements, as for `hpcai500 ic --power`",
    )
    parser.add_argument(
        "--campaign",
        metavar="ID:TRIAL:ATTEMPT:HEAD",
        type=_place_in_campaign,
        help="campaign, trial and attempt of this run, for the record (docs/campaigns.md)",
    )
    options = parser.parse_args(arguments)
    if options.resume and (options.recipe or options.set):
        parser.error("--resume uses the recipe of the record: leave out --recipe and --set")
    if not options.resume and not (options.recipe and options.data):
        parser.error("give --recipe and --data, or --resume")
    return options


def _place_in_campaign(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"([0-9a-f]{64}):([1-9]\d*):([1-9]\d*):([0-9a-f]{64})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected ID:TRIAL:ATTEMPT:HEAD, got {text!r}")
    identity, trial, attempt, head = found.groups()
    return {"id": identity, "trial": int(trial), "attempt": int(attempt), "head": head}


def _report(error: Exception | str, code: ExitCode) -> int:
    # The command prints what was lost, and restarts it.
    if not isinstance(error, PeerError) and not ((command := rank_side()) and command.has_lost):
        print_error(error)
    return code


if __name__ == "__main__":
    code = main()
    # Everything is written: a late Ctrl-C must not end in a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
