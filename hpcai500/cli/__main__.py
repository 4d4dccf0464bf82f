"""`python -m hpcai500.cli`: the command line for whoever starts it by this Python, wherever `hpcai500` lies."""

from __future__ import annotations

import sys

from hpcai500.cli import main

if __name__ == "__main__":
    sys.exit(main())
