"""`hpcai500 scale`: how a benchmark gets on with more and more processes, run here or predicted."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import Oversubscribe, Set
from hpcai500.cli.running import job_error
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.stopping import why_stopped
from hpcai500.streams import say, show, tell

if TYPE_CHECKING:
    from hpcai500.launch.scale import ScaleRequest


def scale(
    what: Annotated[
        list[str], typer.Argument(metavar="ic|ewa|PLUG-IN|RECORD...", help="A benchmark, or records (--records).")
    ],
    procs: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of processes.  [default: 1,2,4,... up to accelerators or cores]"),
    ] = None,
    oversubscribe: Oversubscribe = False,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of records and pictures.")] = None,
    set_: Set = None,
    from_records: Annotated[bool, typer.Option("--records", help="Draw records that are there.")] = False,
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Scale by members that vote, beside one model on the same ranks (V3.0)."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Stop all runs with a checkpoint after so long.  [default: 60; with --data or --recipe 1440, a day]",
        ),
    ] = None,
    degree: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="With --ensemble: ranks of a member.  [default: 1]")
    ] = None,
    predict: Annotated[
        int | None,
        typer.Option(min=2, metavar="NODES", help="Run nothing: predict 1, 2, 4, ... NODES nodes, and name the wall."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="With --predict: a machine file, a shipped one, or micro's JSON."),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(metavar="RECORD", help="With --predict: runs to begin from, drawn as measured."),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --predict: a rank's step varies by this share (deviation).")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a benchmark with 1, 2, 4, ... processes on this machine and draw FLOPS and efficiency (V2.0 Fig. 12).

    It says how long it takes at most (--minutes). The same command with the same --out goes on where it was. With
    --records it draws runs that were made elsewhere.

    With --ensemble each number of processes is an ensemble of as many members (with --degree P, of a P-th of them), and
    one model beside it: FLOPS and efficiency of both, then quality against speed for ever fewer and larger members.

    With --predict NODES and --machine nothing is run: the cost model (docs/cost-model.md) draws the curve and names the
    node count at which it meets a wall. What it prints is a prediction, no result: it ends without a RESULT line.
    """
    if predict is not None:
        of_runs = (
            ("--procs", procs),
            ("--data", data),
            ("--records", from_records),
            ("--ensemble", ensemble),
            ("--minutes", minutes is not None),
        )
        for option, given in of_runs:
            if given:
                raise UsageError(f"--predict runs nothing: leave out {option}")
        _predict(_one(what), predict, machine, recipe, record or [], set_ or [], jitter, out, as_json)
        return
    if machine is not None or record or jitter:
        raise UsageError("--machine, --record and --jitter are of a prediction: add --predict NODES")
    if degree is not None and not ensemble:
        raise UsageError("--degree: the ranks of a member: add --ensemble")
    if ensemble:
        if from_records:
            raise UsageError("--records: of runs of one model; leave out --ensemble")
        _run_ensembles(what, procs, recipe, data, out, set_ or [], minutes, degree or 1, as_json)
        return
    _run(what, procs, recipe, data, out, set_ or [], minutes, from_records, as_json)


def _run(
    what: list[str],
    procs: str | None,
    recipe: str | None,
    data: Path | None,
    out: Path | None,
    settings: list[str],
    minutes: float | None,
    from_records: bool,
    as_json: bool,
) -> None:
    from hpcai500.launch.scale import ScaleRequest, run_scaling  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.scale_report import report_broken_scaling, report_scaling  # noqa: PLC0415

    done: list[Path] = []
    try:
        if from_records:
            done, folder = [Path(one) for one in what], out
        else:
            request = ScaleRequest(_one(what), procs, recipe, data, out, settings)
            folder = request.folder
            runs = run_scaling(request, folder)
            with _bounded(request, folder, minutes):
                for run in runs:
                    if run.exit_code != ExitCode.PASS:
                        reason = job_error(run.record) or "the run failed (see above)"
                        raise RunError(f"{run.record}: {reason}; all points: the same command with --out {folder}")
                    done.append(run.record)
        report = report_scaling(done, folder)
    except HpcAi500Error as error:
        report = report_broken_scaling(done, tell(error), error.exit_code)
    except KeyboardInterrupt as error:
        report = report_broken_scaling(done, tell(why_stopped(error)), ExitCode.RUN_FAILED)
    show(report.document() if as_json else report.lines())
    raise typer.Exit(report.error_code)


def _run_ensembles(
    what: list[str],
    procs: str | None,
    recipe: str | None,
    data: Path | None,
    out: Path | None,
    settings: list[str],
    minutes: float | None,
    degree: int,
    as_json: bool,
) -> None:
    from hpcai500.ensemble.scaling import EnsembleScaleRequest, run_ensemble_scaling  # noqa: PLC0415
    from hpcai500.ensemble.scaling_figure import draw_ensemble_scaling  # noqa: PLC0415
    from hpcai500.ensemble.scaling_table import read_ensemble_scaling  # noqa: PLC0415
    from hpcai500.launch.scale import ScaleRequest  # noqa: PLC0415
    from hpcai500.results.figure_files import write_figures  # noqa: PLC0415
    from hpcai500.results.scale_report import ScaleReport  # noqa: PLC0415

    try:
        request = EnsembleScaleRequest(ScaleRequest(_one(what), procs, recipe, data, out, settings), degree)
        folder = request.scaling.folder
        with _bounded(request.scaling, folder, minutes):
            runs = run_ensemble_scaling(request, folder)
        scaling = read_ensemble_scaling(runs, degree)
        doubt = next(scaling.doubts(), None)
        code = ExitCode.PASS if doubt is None else ExitCode.RUN_FAILED
        report = ScaleReport(
            scaling, write_figures(folder, draw_ensemble_scaling(scaling)), doubt and tell(doubt), code
        )
    except HpcAi500Error as error:
        report = ScaleReport(None, error=tell(error), error_code=error.exit_code)
    except KeyboardInterrupt as error:
        report = ScaleReport(None, error=tell(why_stopped(error)), error_code=ExitCode.RUN_FAILED)
    show(report.document() if as_json else report.lines())
    raise typer.Exit(report.error_code)


def _bounded(request: ScaleRequest, folder: Path, minutes: float | None) -> AbstractContextManager[None]:
    """The time that the runs of `request` may take; it is told."""
    from hpcai500.launch.measuring import ended_after  # noqa: PLC0415 - keeps `--help` fast

    limit = minutes if minutes is not None else 1440.0 if request.data or request.recipe else 60.0
    say(f"scale: into {folder}; at most {limit:g} min, then it is stopped with a checkpoint (--minutes)")
    return ended_after(limit, f"go on by the same command with --out {folder}, or with more --minutes")


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
    from hpcai500.launch.step_facts import count_step, planned_recipe  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.methodology.cost.facts import StepFacts  # noqa: PLC0415
    from hpcai500.placement import find_placement  # noqa: PLC0415
    from hpcai500.results.given_files import given_machine  # noqa: PLC0415
    from hpcai500.results.prediction import predict_scaling  # noqa: PLC0415
    from hpcai500.results.prediction_files import write_prediction  # noqa: PLC0415
    from hpcai500.results.prediction_records import classes_of, read_measured, require_fit  # noqa: PLC0415

    if machine_name is None:
        raise UsageError(
            f"--predict: which machine? hpcai500 scale --predict {most_nodes} {benchmark} --machine v100-64, or "
            "measure yours: srun -N 2 hpcai500 micro -o micro.json"
        )
    machine, sources = given_machine(machine_name)
    name = recipe_name or (str(records[0] / "recipe.toml") if records else f"{benchmark}/reference")
    recipe = planned_recipe(name, settings, 2, machine.accelerators_per_node)
    if recipe.benchmark != benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}, not of {benchmark}")
    measured = read_measured(records)
    require_fit(records, machine)
    classes = classes_of(records[0]) if records else None
    facts = StepFacts.of(count_step(find_placement(os.environ), name, settings, classes))
    prediction = replace(predict_scaling(recipe, facts, machine, most_nodes, measured, jitter), sources=sources)
    files = write_prediction(prediction, out) if out else []
    document = {**prediction.document(), "figures": [str(path) for path in files]}
    lines = [*prediction.lines(), *(f"figure      {path}" for path in files)]
    show(document if as_json else lines)


def _one(what: list[str]) -> str:
    from hpcai500.plugins.benchmarks import require_benchmark  # noqa: PLC0415 - keeps `--help` fast

    if len(what) != 1:
        raise UsageError(f"scale: expected one benchmark, got {' '.join(what)}; records are drawn with --records")
    require_benchmark(what[0], "scale")
    return what[0]
