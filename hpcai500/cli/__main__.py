"""`python -m hpcai500.cli`: the command line, run by this Python."""

from __future__ import annotations

import sys

from hpcai500.cli import main

if __name__ == "__main__":
    sys.exit(main())
