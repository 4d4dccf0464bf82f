"""Reads NVML; run as `python -m` in a process of its own, which a hung or broken driver may take down."""

from __future__ import annotations

import json
import sys

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.devices import open_nvml, read_nvml


def main() -> int:
    """Print one JSON document, or on stderr why there is none."""
    try:
        with open_nvml() as nvml:
            document = read_nvml(nvml)
    except EnvironmentLacksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
