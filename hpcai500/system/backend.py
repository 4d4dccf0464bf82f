"""Whether the library that the ranks of a recipe talk by is installed."""

from __future__ import annotations

from hpcai500.layers import Recipe
from hpcai500.system.checks import Check


def backend_check(recipe: Recipe | None, horovod: str | None) -> Check:
    """Of `recipe`; `horovod` is the version that is installed, if any. Whether it can be loaded, each rank sees."""
    backend = recipe.communication.backend if recipe else None
    if backend != "horovod":
        words = {None: "no recipe named", "local": "none: one rank", "torch": "torch's own"}
        return Check("backend", "pass", words[backend])
    if horovod is None:
        return Check(
            "backend",
            "fail",
            "communication.backend is horovod, but Horovod is not installed",
            "run `make horovod` in the source tree, or use --set communication.backend=torch",
        )
    return Check("backend", "pass", f"Horovod {horovod}")
