"""Commands to understand records, machines and recipes, and where the time of a run goes.

`report`, `compare`, `roofline`, `scale`, `profile`, `flops`, `timeline`, `export`, `rules`.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hpcai500.cli.options import (
    Data,
    Json,
    JsonDocument,
    Oversubscribe,
    Procs,
    RecipeOption,
    Set,
    on_ranks,
    report_error,
    write_requested,
)
from hpcai500.cli.run import job_error
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.files import run_folder
from hpcai500.interpreter import module_command
from hpcai500.launch.processes import become
from hpcai500.streams import print_error, say, show

if TYPE_CHECKING:
    from hpcai500.launch.launcher import Launcher
    from hpcai500.launch.scale import ScaleRequest
    from hpcai500.results.scaling import ScaleReport


# ----------------------------------------------------------------------------------------------------
# `hpcai500 report` and `hpcai500 compare`: pages about records.


Page = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")]


def report(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Folders of records, or of a series.")],
    output: Page = Path("report.html"),
    machine: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Ceilings for the roofline: TOML, a shipped name, or micro's JSON."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Output of `hpcai500 profile`.  [default: RECORD/profile]")
    ] = None,
) -> None:
    """Write one self-contained page about records, including failed runs: docs/report.md."""
    from hpcai500.results.report.page import make_report, write_page

    made = make_report(records, machine, profile)
    write_page(output, made.html)
    show(f"report      {output}")
    for verdict in made.verdicts:
        show(f"verdict     {verdict}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a record, or of a series.")],
    others: Annotated[list[Path], typer.Argument(metavar="B", help="Others to compare with it, up to five.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.html", help="Write a page as well.")
    ] = None,
    as_json: JsonDocument = False,
) -> None:
    """Compare records with a first one: the differences, then each number and the ratio B/A.

    A page (-o) also overlays the curves of quality and loss.
    """
    from hpcai500.results.compare import compare_all, comparison_lines, comparison_page
    from hpcai500.results.report.page import write_page

    comparisons = compare_all(a, others)
    if output:
        write_page(output, comparison_page(*comparisons))
        say(f"{output}: written")
    if as_json:
        documents = [one.document() for one in comparisons]
        show(documents[0] if len(documents) == 1 else {"comparisons": documents})
        return
    for number, one in enumerate(comparisons):
        show(["", *comparison_lines(one)] if number else comparison_lines(one))


# ----------------------------------------------------------------------------------------------------
# `hpcai500 roofline`: the bottleneck of a run.


def roofline(
    records: Annotated[
        list[Path] | None, typer.Argument(metavar="RECORD", help="Folders of runs.  [default: published ones]")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help="Ceilings: a machine file, or a shipped one (v100-64).")
    ] = None,
    micro: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measured ceilings, from hpcai500 micro -o FILE.")
    ] = None,
    model: Annotated[
        Literal["node", "system"] | None,
        typer.Option(help="Links between accelerators, or the network between nodes.  [default: as in the runs]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Draw the model there (SVG and PNG).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the bottleneck of runs, computation or communication, and what would relieve it (V2.0 section 6)."""
    from hpcai500.drawing import write_figures  # keeps `--help` fast
    from hpcai500.results.given_files import given_machine
    from hpcai500.results.roofline import draw_roofline
    from hpcai500.results.roofline import roofline as make

    if machine is not None and micro is not None:
        raise UsageError("roofline: --machine and --micro both give ceilings: use one of them")
    if machine is None and micro is None:
        raise UsageError(
            "roofline: give the ceilings: --machine FILE|NAME, or --micro FILE from hpcai500 micro -o FILE"
        )
    ceilings, sources = given_machine(machine or micro or "")
    drawn = replace(make(records or [], ceilings, model), sources=sources)
    figures = write_figures(out, draw_roofline(drawn)) if out else []
    for figure in figures:
        say(f"{figure}: written")
    document = {**drawn.document(), "figures": [str(figure) for figure in figures]}
    show(document if as_json else drawn.lines())


# ----------------------------------------------------------------------------------------------------
# `hpcai500 scale`: measure or predict the scaling of a benchmark.


def scale(
    what: Annotated[
        list[str], typer.Argument(metavar="ic|ewa|PLUG-IN|RECORD...", help="A benchmark, or records (--records).")
    ],
    procs: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of processes.  [default: 1,2,4,... up to accelerators or cores]"),
    ] = None,
    oversubscribe: Oversubscribe = False,
    recipe: RecipeOption = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of records and figures.")] = None,
    set_: Set = None,
    from_records: Annotated[bool, typer.Option("--records", help="Draw existing records; run nothing.")] = False,
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Compare ensembles with one model on the same ranks (V3.0)."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Stop with a checkpoint after this time.  [default: 60; with --data or --recipe 1440, a day]",
        ),
    ] = None,
    degree: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="With --ensemble: ranks of a member.  [default: 1]")
    ] = None,
    predict: Annotated[
        int | None,
        typer.Option(min=2, metavar="NODES", help="Run nothing: predict 1, 2, 4, ... NODES nodes, and the limit."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="With --predict: a machine file, a shipped one, or micro's JSON."),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(metavar="RECORD", help="With --predict: measured runs to start from; they are drawn, too."),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --predict: relative standard deviation of a rank's step time.")
    ] = 0.0,
    as_json: JsonDocument = False,
) -> None:
    """Run a benchmark with 1, 2, 4, ... processes on this machine and draw FLOPS and efficiency (V2.0 Fig. 12).

    It prints its time limit (--minutes). The same command with the same --out continues. With --records it draws
    existing runs.

    With --ensemble it runs, for N processes, an ensemble of N members (of N/P with --degree P), and one model on N
    processes: it compares FLOPS and efficiency, then quality and speed for fewer and larger members.

    With --predict NODES and --machine nothing is run: the cost model (docs/cost-model.md) draws the curve and names the
    number of nodes where scaling stops. This is a prediction, not a result: it ends without a RESULT line.
    """
    if predict is not None:
        options_of_runs = (
            ("--procs", procs),
            ("--data", data),
            ("--records", from_records),
            ("--ensemble", ensemble),
            ("--minutes", minutes is not None),
        )
        for option, given in options_of_runs:
            if given:
                raise UsageError(f"--predict runs nothing: leave out {option}")
        _predict(_one(what), predict, machine, recipe, record or [], set_ or [], jitter, out, as_json)
        return
    if machine is not None or record or jitter:
        raise UsageError("--machine, --record and --jitter are for predictions only: add --predict NODES")
    if degree is not None and not ensemble:
        raise UsageError("--degree is for ensembles only: add --ensemble")
    if ensemble and from_records:
        raise UsageError("--records draws runs of one model only: leave out --ensemble")
    from hpcai500.launch.scale import ScaleRequest  # keeps `--help` fast
    from hpcai500.results.scaling import report_broken_scaling, report_scaling

    done = [Path(one) for one in what] if from_records else []
    try:
        if from_records:
            report = report_scaling(done, out)
        else:
            request = ScaleRequest(_one(what), procs, recipe, data, out, set_ or [])
            with run_folder(out, f"{request.benchmark}-scale") as folder:
                if ensemble:
                    report = _scaled_ensembles(request, folder, minutes, degree or 1)
                else:
                    _run_points(request, folder, minutes, done)
                    report = report_scaling(done, folder)
    except (HpcAi500Error, KeyboardInterrupt) as error:
        report = report_broken_scaling(done, *report_error(error))
    show(report.document() if as_json else report.lines())
    raise typer.Exit(report.error_code)


def _run_points(request: ScaleRequest, folder: Path, minutes: float | None, done: list[Path]) -> None:
    """Run all unfinished points in `folder`; appends the good records to `done`."""
    from hpcai500.launch.scale import run_scaling

    runs = run_scaling(request, folder)
    with _bounded(request, folder, minutes):
        for run in runs:
            if run.exit_code != ExitCode.PASS:
                reason = job_error(run.record) or "the run failed (see above)"
                raise RunError(f"{run.record}: {reason}; to continue, use the same command with --out {folder}")
            done.append(run.record)


def _scaled_ensembles(request: ScaleRequest, folder: Path, minutes: float | None, degree: int) -> ScaleReport:
    from hpcai500.drawing import write_figures
    from hpcai500.ensemble.scaling import (
        EnsembleScaleRequest,
        draw_ensemble_scaling,
        read_ensemble_scaling,
        run_ensemble_scaling,
    )
    from hpcai500.results.scaling import ScaleReport

    with _bounded(request, folder, minutes):
        runs = run_ensemble_scaling(EnsembleScaleRequest(request, degree), folder)
    scaling = read_ensemble_scaling(runs, degree)
    doubt = next(scaling.doubts(), None)
    code = ExitCode.PASS if doubt is None else ExitCode.RUN_FAILED
    return ScaleReport(
        scaling, write_figures(folder, draw_ensemble_scaling(scaling)), doubt and print_error(doubt), code
    )


def _bounded(request: ScaleRequest, folder: Path, minutes: float | None) -> AbstractContextManager[None]:
    """Print and apply the time limit of the runs of `request`."""
    from hpcai500.launch.measuring import ended_after  # keeps `--help` fast

    limit = minutes if minutes is not None else 1440.0 if request.data or request.recipe else 60.0
    say(f"scale: writing to {folder}; stops with a checkpoint after {limit:g} min (--minutes)")
    return ended_after(limit, f"to continue, use the same command with --out {folder}, or with more --minutes")


def _predict(
    benchmark: str,
    most_nodes: int,
    machine_name: str | None,
    recipe_name: str | None,
    records: list[Path],
    settings: list[str],
    jitter: float,
    out: Path | None,
    as_json: bool,
) -> None:
    from hpcai500.hosts import find_placement
    from hpcai500.launch.measuring import count_step, planned_recipe, require_data_parallel  # keeps `--help` fast
    from hpcai500.methodology.cost import StepFacts
    from hpcai500.results.given_files import given_machine
    from hpcai500.results.prediction import classes_of, measured_points, predict_scaling, write_prediction
    from hpcai500.results.score import read_runs

    if machine_name is None:
        raise UsageError(
            f"--predict needs a machine: hpcai500 scale --predict {most_nodes} {benchmark} --machine v100-64, or "
            "measure yours: srun -N 2 hpcai500 micro -o micro.json"
        )
    machine, sources = given_machine(machine_name)
    name = recipe_name or (str(records[0] / "recipe.toml") if records else f"{benchmark}/reference")
    recipe = planned_recipe(name, settings, 2, machine.accelerators_per_node)
    if recipe.benchmark != benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}, not of {benchmark}")
    require_data_parallel(recipe, "a prediction")
    runs = read_runs(records)
    measured = measured_points(runs, machine)
    classes = classes_of(runs[0].record) if runs else None
    facts = StepFacts.of(count_step(find_placement(os.environ), name, settings, classes))
    prediction = replace(predict_scaling(recipe, facts, machine, most_nodes, measured, jitter), sources=sources)
    files = write_prediction(prediction, out) if out else []
    document = {**prediction.document(), "figures": [str(path) for path in files]}
    lines = [*prediction.lines(), *(f"figure      {path}" for path in files)]
    show(document if as_json else lines)


def _one(what: list[str]) -> str:
    from hpcai500.plugins import require_benchmark  # keeps `--help` fast

    if len(what) != 1:
        raise UsageError(f"scale: expected one benchmark, got {' '.join(what)}; to draw records, add --records")
    require_benchmark(what[0], "scale")
    return what[0]


# ----------------------------------------------------------------------------------------------------
# `hpcai500 profile`: where training steps spend their time.


def profile(
    what: Annotated[
        list[str], typer.Argument(metavar="ic|ewa|PLUG-IN|FOLDER...", help="A benchmark, or folders (--draw).")
    ],
    recipe: RecipeOption = None,
    data: Data = None,
    set_: Set = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps with and without the profiler.  [default: as many as fit a minute]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the profile.  [default: runs/profile-<benchmark>-<time>]")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw existing profiles in one figure.")] = False,
    as_json: Json = False,
) -> None:
    """Profile training steps: kernels by the eight classes of V2.0 Fig. 10, layouts, use of device and network.

    Without --recipe and --data it uses the smoke recipe on synthetic data. FOLDER gets profile.json, a figure (SVG and
    PNG) and trace.json.gz for ui.perfetto.dev: docs/profile.md.

    With --draw it draws several such folders side by side, as V2.0 Fig. 13 does.
    """
    from hpcai500.plugins import require_benchmark  # keeps `--help` fast

    if draw:
        raise typer.Exit(_draw([Path(one) for one in what], out, as_json))
    if len(what) != 1:
        raise UsageError(f"profile: expected one benchmark, got {' '.join(what)}; to draw folders, add --draw")
    require_benchmark(what[0], "profile")

    def body(launcher: Launcher) -> int:
        from hpcai500.drawing import write_figures
        from hpcai500.launch.measuring import run_profile  # keeps `--help` fast
        from hpcai500.results.profile import draw_profiles, exit_code, profile_lines

        folder, found = run_profile(
            launcher, what[0], recipe=recipe, data=data, out=out, overrides=set_ or (), steps=steps
        )
        write_figures(folder, draw_profiles([(what[0], found)]))
        document = {**found, "folder": str(folder)}
        show(document if as_json else profile_lines(found, folder))
        return exit_code(found)

    on_ranks(procs, body)


def _draw(folders: list[Path], out: Path | None, as_json: bool) -> int:
    from hpcai500.drawing import write_figures
    from hpcai500.launch.measuring import new_folder  # keeps `--help` fast
    from hpcai500.results.profile import MOST_PROFILES, comparison_lines, draw_profiles, read_profile

    if len(folders) > MOST_PROFILES:
        raise UsageError(f"--draw: at most {MOST_PROFILES} profiles fit a figure, got {len(folders)}")
    read = [read_profile(folder) for folder in folders]
    profiles = [(folder, profile) for folder, (profile, _) in zip(folders, read, strict=True)]
    sources = [file for _, file in read]
    with run_folder(out, "profiles") as target:
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


# ----------------------------------------------------------------------------------------------------
# `hpcai500 flops`: count the operations of a model.


def flops(
    benchmark: Annotated[str, typer.Argument(metavar="ic|ewa|PLUG-IN", help="Benchmark of the model.")],
    recipe: RecipeOption = None,
    set_: Set = None,
    classes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Outputs of a classifier.  [default: those of the edition's data set]"),
    ] = None,
    as_json: JsonDocument = False,
) -> None:
    """Count the floating-point operations of one training sample, forward and backward.

    It counts convolutions and matrix products, with two operations per multiply-add (V3.0 Table 3;
    docs/methodology.md). Without --recipe it counts the model of the reference recipe.
    """
    from hpcai500.job_options import FlopsOptions, as_argument  # keeps `--help` fast
    from hpcai500.plugins import require_benchmark

    require_benchmark(benchmark, "flops")
    options = FlopsOptions(recipe or f"{benchmark}/reference", tuple(set_ or ()), classes, as_json)
    become(module_command("measure.flops_command", as_argument(options)), hold=True)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 timeline`: the cost of communication in a run.


def timeline(
    record: Annotated[Path | None, typer.Argument(help="Folder of a record of several ranks.")] = None,
    horovod: Annotated[Path | None, typer.Option(metavar="FILE", help="Read a Horovod timeline file instead.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the record's trace there, for ui.perfetto.dev.")
    ] = None,
    as_json: JsonDocument = False,
) -> None:
    """Print the stages of an all-reduce (V2.0 Table 12), stragglers and bytes of a record: docs/timeline.md."""
    from hpcai500.results.timeline import export_trace, timeline_document, timeline_lines

    document = timeline_document(record, horovod)
    if trace:
        if record is None:
            raise UsageError("--trace needs a record: Horovod's file is a trace already")
        export_trace(record, trace)
        say(f"{trace}: written; open it in ui.perfetto.dev")
    show(document if as_json else timeline_lines(document))


# ----------------------------------------------------------------------------------------------------
# `hpcai500 export`: records in formats of other tools.


def export(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="Folder of a record.")],
    mllog: Annotated[bool, typer.Option("--mllog", help="Write lines `:::MLLOG {...}`.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write.  [default: stdout]")
    ] = None,
) -> None:
    """Write the events of a record in the format of another tool: docs/export.md.

    --mllog writes the `:::MLLOG` lines that MLPerf's tools read, also for a failed or resumed run. Keys that MLPerf
    does not define have the prefix hpcai500_. The result is not an MLPerf result, and cannot be compared with one.
    """
    if not mllog:
        raise UsageError("export: no format given: add --mllog")
    from hpcai500.campaign.journal import is_campaign  # keeps `--help` fast
    from hpcai500.record import read_record
    from hpcai500.results.mllog import mllog_lines

    if is_campaign(record):
        raise UsageError(f"{record}: a campaign; export one of its runs: hpcai500 export {record / 'trial-01'} --mllog")
    lines = mllog_lines(read_record(record))
    if output is None:
        show(lines)
    else:
        write_requested(output, "".join(f"{line}\n" for line in lines).encode(), "-o")


# ----------------------------------------------------------------------------------------------------
# `hpcai500 rules`: the level that a recipe or a run qualifies for.


def rules(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|RECORD",
            help="A shipped recipe (ic/lars-8192), a TOML file, or the folder of a record or of a campaign.",
        ),
    ] = None,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Fail unless it qualifies for hardware, system or free.")
    ] = None,
    edition: Annotated[
        str | None, typer.Option(help="Use this edition of the rules.  [default: the one of the recipe or record]")
    ] = None,
    set_: Set = None,
    as_json: JsonDocument = False,
) -> None:
    """Find the lowest level that a recipe or record qualifies for, and each change that forces it there.

    hardware: layers 1-4, parallel mode, batch size and learning-rate policy may differ from the reference recipe.
    system: also the framework. free: everything but the problem. docs/rules.md has every field.

    For a record it also checks the events: synchronous SGD, equivalent parallelism, epochs, data and quality metric.
    Without RECIPE|RECORD it prints a summary of the rules (--json: all of them). With --level it ends with 2 if the
    level is missed, and names the changes that prevent it:
    hpcai500 rules ic/reference --set framework.compile=true --level hardware
    """
    from hpcai500.recipe import load_edition  # keeps `--help` fast
    from hpcai500.results.rules import EDITION, check_rules, overview_lines, report_lines

    if subject is None:
        if level is not None or set_:
            raise UsageError("--level and --set need a recipe: hpcai500 rules ic/reference --level hardware")
        name = edition or EDITION
        show(load_edition(name) if as_json else overview_lines(name))
        return
    report = check_rules(subject, set_ or (), edition, level)
    show(report.document() if as_json else report_lines(report))
    raise typer.Exit(report.exit_code)
