"""`hpcai500 slurm …`: scripts are written here, and submitted on the host: nothing here needs Slurm."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.errors import UsageError
from hpcai500.streams import say, show

app = typer.Typer(help="Write batch scripts for Slurm.", rich_markup_mode=None, add_completion=False)


@app.callback()
def _slurm() -> None:
    """Write batch scripts for Slurm."""


@app.command(short_help="Write a batch script for one benchmark.")
def render(
    benchmark: Annotated[str, typer.Argument(metavar="ic|ewa|PLUG-IN", help="The benchmark to run.")],
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes of the job.")],
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Site file: partition, ranks of a node, launcher, image.  [default: srun, one rank a node, in the "
            "image that this command runs in]",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, the same on every node.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<job>, where sbatch is called]"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one field of the recipe.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs, one after the other, each with its own seed.")] = 1,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write there instead of to stdout.")] = None,
) -> None:
    """Write a batch script that runs a benchmark: check it, change it, then `sbatch FILE`.

    Write a site file first: `hpcai500 slurm example` prints one that explains every field (docs/site-guide.md). Recipe
    and site are checked now, so that no mistake waits in the queue. Warned by Slurm before the time is up, the job
    stops with a checkpoint, goes back to the queue and goes on.

    hpcai500 slurm render ic --nodes 4 --site mysite.toml --data /data/imagenet -o ic.sh && sbatch ic.sh
    """
    from hpcai500.launch.slurm_job import RenderRequest, plan_job  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.slurm_script import render as rendered  # noqa: PLC0415
    from hpcai500.plugins.benchmarks import require_benchmark  # noqa: PLC0415

    require_benchmark(benchmark, "slurm render")
    command = ["hpcai500", *sys.argv[1:]]
    request = RenderRequest(benchmark, nodes, site, recipe, data, out, set_ or (), trials, command)
    planned = plan_job(request)
    script = rendered(planned.job)
    for warning in planned.warnings:
        say(f"warning: {warning}")
    if output is None:
        show(script.removesuffix("\n").split("\n"))
    else:
        write_new(output, script)
        say(f"submit it on the host: sbatch {shlex.quote(str(output))}")


@app.command(short_help="Print a site file that explains every field.")
def example() -> None:
    """Print the site file in which every field is explained: `hpcai500 slurm example > mysite.toml`."""
    from hpcai500.launch.site import find_site  # noqa: PLC0415 - keeps `--help` fast

    show(find_site("example").read_text(encoding="utf-8").splitlines())


def write_new(path: Path, script: str) -> None:
    """Write `script` to a file that is not there yet: the one that is may have been changed by hand.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(script)
    except FileExistsError as error:
        raise UsageError(f"-o {path}: exists already; remove it, or give another name") from error
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}; give another folder") from error
