"""The command line: one small function a command. It reads and writes files and starts jobs; it never imports torch."""

from __future__ import annotations

from hpcai500.interpreter import isolate


def main() -> int:
    """The `hpcai500` command; returns its exit code."""
    isolate()
    from hpcai500.errors import ExitCode  # what is imported before `isolate` may be a stranger's
    from hpcai500.stopping import Stopped, loaded, unwinding_on_signals

    # Signals first: loading the commands takes a third of a second, and on a busy machine several.
    with unwinding_on_signals():
        from hpcai500.cli.commands import run
        from hpcai500.streams import say

        loaded()
        try:
            return run()
        except Exception:
            # Python turns what a handler raises into an error of its own where a class is made.
            if Stopped.last is None:
                raise
            say(f"error: {Stopped.last}")
            return ExitCode.RUN_FAILED
