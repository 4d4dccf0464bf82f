"""Whether torchvision can be a rival here. Its wheel wants the torch that it was built beside, and is not installed."""

from __future__ import annotations

from functools import cache

from rows import first_line


@cache
def why_not() -> str | None:
    """Why torchvision does not import; None where it does."""
    try:
        import torchvision.ops  # noqa: F401
    except Exception as error:  # noqa: BLE001 - a wheel of another torch raises RuntimeError, a missing one ImportError
        return f"torchvision does not import beside this torch ({first_line(error)})"
    return None
