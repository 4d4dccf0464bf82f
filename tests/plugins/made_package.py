"""Packages with entry points, laid down as pip leaves them, for tests of how plug-ins are found."""

from __future__ import annotations

from pathlib import Path

GROUP = "hpcai500.workloads"

# The least that a plug-in is: a recipe type and a folder with the reference.
GOOD = """\
from pathlib import Path
from hpcai500.layers import Recipe
from hpcai500.layers.fields import Count, Layer
from hpcai500.plugins import Plugin

class Tiny(Layer):
    width: Count

class TinyRecipe(Recipe):
    workload: Tiny

PLUGIN = Plugin(recipe=TinyRecipe, recipes=Path(__file__).parent / "recipes", workload="{module}.work:build")
"""
REFERENCE = """\
benchmark = "{name}"
edition = "v3.0"

[problem]
dataset = "synthetic-{name}"
metric = "top1"
target_quality = 0.5
epochs = 2

[hyperparameters]
warmup_epochs = 1

[workload]
width = 4

[accelerator]
device = "cpu"
"""


def write_package(
    site: Path,
    name: str,
    module: str,
    code: str = GOOD,
    *,
    package: str | None = None,
    version: str = "1.0",
    entry: str | None = None,
    recipes: bool = True,
) -> Path:
    """Lay a package into the folder `site`; returns the folder of its module.

    Args:
        site: a folder on the module path.
        name: of the entry point.
        module: of the package.
        code: of the module; `{module}` stands for its name.
        package: of the distribution; by default as the module.
        version: of the distribution.
        entry: what the entry point names; by default `module:PLUGIN`.
        recipes: whether it has a reference recipe.
    """
    # As pip names it: what is before the first dash is all that tells one distribution from another.
    about = site / f"{(package or module).replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    header = f"Metadata-Version: 2.1\nName: {package or module}\nVersion: {version}\nSummary: A test of plug-ins.\n"
    (about / "METADATA").write_text(header)
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {entry or f'{module}:PLUGIN'}\n")
    folder = site / module
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(code.replace("{module}", module))
    if recipes:
        (folder / "recipes").mkdir(exist_ok=True)
        (folder / "recipes" / "reference.toml").write_text(REFERENCE.replace("{name}", name))
    return folder
