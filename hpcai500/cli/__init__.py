"""The command line: one small function per command. It reads and writes files and starts jobs; never imports torch."""

from __future__ import annotations

from hpcai500.interpreter import isolate


def main() -> int:
    """The `hpcai500` command; returns its exit code."""
    isolate()
    from hpcai500.errors import ExitCode  # an import before `isolate` may load untrusted code
    from hpcai500.stopping import Stopped, loaded, unwinding_on_signals

    # Signals first: loading the commands takes a third of a second, and several on a busy machine.
    with unwinding_on_signals():
        from hpcai500.cli.commands import run
        from hpcai500.streams import say

        loaded()
        try:
            return run()
        except Exception:
            # Python turns an exception of a signal handler into another error while it creates a class.
            if Stopped.last is None:
                raise
            say(f"error: {Stopped.last}")
            return ExitCode.RUN_FAILED
