"""`hpcai500 profile`: what the time of training steps goes to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.options import Json, Oversubscribe, Procs, Set
from hpcai500.cli.ranks import on_ranks
from hpcai500.errors import ExitCode, UsageError
from hpcai500.launch.crew import Crew
from hpcai500.streams import show


def profile(
    what: Annotated[
        list[str], typer.Argument(metavar="ic|ewa|PLUG-IN|FOLDER...", help="A benchmark, or folders (--draw).")
    ],
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    set_: Set = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps with and without the profiler.  [default: what fits a minute]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the profile.  [default: runs/profile-<benchmark>-<time>]")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw profiles that are there in one figure.")] = False,
    as_json: Json = False,
) -> None:
    """Profile real training steps: kernels by the eight classes of V2.0 Fig. 10, layouts, use of device and network.

    Without --recipe and --data it takes the smoke recipe on data that it makes itself. FOLDER gets profile.json, a
    figure (SVG and PNG) and trace.json.gz for ui.perfetto.dev: docs/profile.md.

    With --draw it draws several such folders side by side, as V2.0 Fig. 13 does.
    """
    from hpcai500.plugins.benchmarks import require_benchmark  # noqa: PLC0415 - keeps `--help` fast

    if draw:
        raise typer.Exit(_draw([Path(one) for one in what], out, as_json))
    if len(what) != 1:
        raise UsageError(f"profile: expected one benchmark, got {' '.join(what)}; folders are drawn with --draw")
    require_benchmark(what[0], "profile")

    def body(crew: Crew) -> int:
        from hpcai500.launch.profiling import ProfileRequest, run_profile  # noqa: PLC0415 - keeps `--help` fast
        from hpcai500.results.figure_files import write_figures  # noqa: PLC0415
        from hpcai500.results.profile import exit_code, profile_lines  # noqa: PLC0415
        from hpcai500.results.profile_figure import draw_profiles  # noqa: PLC0415

        folder, found = run_profile(ProfileRequest(what[0], recipe, data, out, set_ or (), steps), crew)
        write_figures(folder, draw_profiles([(what[0], found)]))
        document = {**found, "folder": str(folder)}
        show(document if as_json else profile_lines(found, folder))
        return exit_code(found)

    on_ranks(procs, body)


def _draw(folders: list[Path], out: Path | None, as_json: bool) -> int:
    from hpcai500.launch.profiling import new_folder  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.figure_files import write_figures  # noqa: PLC0415
    from hpcai500.results.profile import comparison_lines, read_profile  # noqa: PLC0415
    from hpcai500.results.profile_figure import MOST_PROFILES, draw_profiles  # noqa: PLC0415

    if len(folders) > MOST_PROFILES:
        raise UsageError(f"--draw: at most {MOST_PROFILES} profiles fit a figure, got {len(folders)}")
    read = [read_profile(folder) for folder in folders]
    profiles = [(folder, profile) for folder, (profile, _) in zip(folders, read, strict=True)]
    sources = [file for _, file in read]
    target = out or Path("runs") / f"profiles-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    new_folder(target)
    write_figures(
        target, draw_profiles([(f"{found['benchmark']} ({folder.name})", found) for folder, found in profiles])
    )
    document = {
        "folder": str(target),
        "profiles": {str(folder): found for folder, found in profiles},
        "sources": [file.document() for file in sources],
    }
    lines = [
        *comparison_lines(profiles),
        "",
        *(f"signature   {file.sentence}" for file in sources),
        f"figure      {target}/profile.svg, {target}/profile.png",
    ]
    show(document if as_json else lines)
    return ExitCode.PASS
