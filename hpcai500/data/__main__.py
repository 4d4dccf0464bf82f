"""`python -m hpcai500.data`: what `hpcai500 data` starts."""

import signal
import sys

# Guarded: the processes that make images import this module again.
if __name__ == "__main__":
    try:
        from hpcai500.data.command import main

        sys.exit(main())
    except KeyboardInterrupt:
        # While libraries are loaded; main tells of its own.
        sys.exit(128 + signal.SIGINT)
