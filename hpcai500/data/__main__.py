"""`python -m hpcai500.data`: what `hpcai500 data` starts."""

import signal
import sys

from hpcai500.stopping import let_signals_in

# Guarded: the processes that make images import this module again.
if __name__ == "__main__":
    try:
        let_signals_in()
        from hpcai500.data.command import main

        sys.exit(main())
    except KeyboardInterrupt:
        # Interrupted while libraries were loading; main() reports its own interrupts.
        sys.exit(128 + signal.SIGINT)
