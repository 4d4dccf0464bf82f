"""`python -m hpcai500.data`: what `hpcai500 data` starts."""

import sys

# Guarded: the processes that make images import this module again.
if __name__ == "__main__":
    from hpcai500.data.command import main

    sys.exit(main())
