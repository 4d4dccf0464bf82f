"""What is typed wrongly is told in one line, with exit code 64, before anything runs; and help that teaches.

tests/golden holds the words of the commonest mistakes; here are the others.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.commands import HPCAI500, INVALID, Typed, error_of, python_with
from builders.ranks import start
from builders.runs import TINY

from hpcai500.campaign.journal import create_campaign
from hpcai500.cli.commands import app
from hpcai500.recipe import load_recipe

SMOKE = "ic --recipe ic/smoke --data {images}"
TWO_OF_FOUR = "--set hardware.nodes=1 --set hardware.accelerators_per_node=2"
HERE = "srun, mpirun or torchrun (docs/launching.md), or try it on this host with --procs 2"

# What is typed, and the words that it is answered with. Of a run, the result is said too: there is none.
MISTAKES_OF_RUNS = [
    ("ic --recipe nope.toml", "nope.toml: no such recipe file; hpcai500 comes with ewa/ensemble"),
    ("ic --set problem.epochs=many", "--set problem.epochs: [problem] epochs: expected a valid integer"),
    ("ic --recipe ic/reference --set accelerator.device=cpu", "trains on imagenet-1k; give its folder with --data DIR"),
    ("ic --recipe big/smoke", "no such recipe file; big may be a plug-in that is not installed in this Python"),
    ("ic --data nowhere --set accelerator.device=cpu", "nowhere"),
    ("ic --resume", "no unfinished ic run to resume; name its record: --resume --out DIR"),
    ("ic --resume --trials 2", "leave out --recipe, --set, --input and --trials"),
    # Ranks.
    (
        f"{SMOKE} --procs 2 --set hardware.accelerators_per_node=4",
        "--procs 2: 2 ranks, but the recipe's hardware is 1 x 4 (nodes x accelerators_per_node): leave out --procs, "
        f"or add {TWO_OF_FOUR}",
    ),
    (f"{SMOKE} --procs 1 --set communication.backend=torch", "`torch` is for two ranks or more"),
    (
        f"{SMOKE} --procs 2 --set communication.backend=local",
        "`local` is one process, but hardware asks for 2",
    ),
    (
        f"{SMOKE} --set hardware.nodes=2 --set communication.backend=torch",
        f"hardware.nodes is 2: start the command on all of them with {HERE}",
    ),
    # Campaigns.
    ("campaign run c", "c: no such folder; give the folder of a campaign, or plan one with `hpcai500 campaign init c"),
]
MISTAKES = [
    ("score", "Missing argument"),
    ("ic --trials 0", "--trials"),
    ("flops icc", "icc"),
    ("data chek ic x", "No such command 'chek'. Did you mean 'check'?"),
    ("big", "No such command 'big': it may be a plug-in that is not installed in this Python (docs/plugins.md) (see "),
    ("data make big d", "No such command 'big': it may be a plug-in that is not installed"),
    # Options that are fields of a recipe.
    ("ic --epochs 2", "No such option: --epochs. Did you mean `--set problem.epochs=2`? (see "),
    ("ewa --batch-size=32 --json", "Did you mean `--set hyperparameters.batch_size=32`?"),
    ("scale ic --lr 0.1", "Did you mean `--set hyperparameters.base_learning_rate=0.1`?"),
    ("profile ic --epoch --json", "No such option: --epoch. Did you mean `--set problem.epochs=VALUE`?"),
    ("ic --tirals 3", "No such option: --tirals (Possible options: --trials)"),
    ("score ic --epochs 2", "No such option: --epochs (see "),
    ("data stage ic a b --limit much", "--limit: expected bytes such as 200G, 1.5T or a plain number, got 'much'"),
    (f"{SMOKE} --procs 0", "Invalid value for '--procs'"),
    (f"{SMOKE} --procs many", "Invalid value for '--procs'"),
    # Estimates and predictions.
    ("ic --machine v100-64", "add --estimate"),
    ("ewa --estimate --data somewhere --resume", "leave out --data, --resume"),
    ("ic --estimate --machine no-such", "no-such: no such file; choose one of v100-64"),
    ("ic --estimate --recipe ewa/reference --machine v100-64", "hpcai500 ewa --estimate"),
    ("ic --estimate --machine v100-64 --set hardware.nodes=99999", "more than imagenet-1k has"),
    ("ic --estimate --recipe ic/smoke", "whose size is unknown before a run"),
    ("scale --predict 64 ic", "--predict needs a machine: "),
    ("scale --predict 64 ic --machine v100-64 --procs 1,2", "leave out --procs"),
    (
        "scale --predict 64 ic --machine v100-64 --set programming.parallel_mode=mixed --set programming.stages=2",
        "programming.parallel_mode: a prediction needs data, got mixed: change it, or measure a run",
    ),
    ("scale --predict 64 ic ewa --machine v100-64", "expected one benchmark"),
    ("scale ic --machine v100-64", "add --predict"),
    # Profiles.
    ("profile resnet", "profile: expected one of ic, ewa, got 'resnet'"),
    ("profile ic ewa", "expected one benchmark, got ic ewa; to draw folders, add --draw"),
    ("profile ic --steps 0", "--steps"),
    ("profile ewa --recipe ic/smoke", "ic/smoke: a recipe of ic; run `hpcai500 profile ic …`"),
    ("profile --draw a b c d e f g", "at most 6 profiles fit a figure, got 7"),
    # Rules.
    ("rules --level hardware", "need a recipe: hpcai500 rules ic/reference --level hardware"),
    ("rules ic/reference --level x", "--level: expected one of hardware, system, free, got x"),
    ("rules ic/none", "no such recipe file; did you mean ic/tuned? hpcai500 comes with ewa/ensemble"),
    ("rules ic/reference --edition v9", "edition: expected one of v2.0, v3.0, got 'v9'"),
    ("rules /", "not a record"),
    # Campaigns.
    ("campaign init c --recipe ic/reference", "the recipe trains on imagenet-1k: give its folder with --data DIR"),
    (
        "campaign status c",
        "c: no such folder; give the folder of a campaign, or plan one with `hpcai500 campaign init c",
    ),
    (
        "campaign heads c",
        "c: no such folder; give the folder of a campaign, or plan one with `hpcai500 campaign init c",
    ),
]


@pytest.mark.parametrize(
    ("line", "told", "printed"),
    [
        *(pytest.param(*row, f"{INVALID}\n", id=row[0]) for row in MISTAKES_OF_RUNS),
        *(pytest.param(*row, "", id=row[0]) for row in MISTAKES),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    typed: Typed, images: Path, tmp_path: Path, line: str, told: str, printed: str
) -> None:
    ended = typed(*line.format(images=images).split())
    error = error_of(ended)
    assert told in error
    assert (ended.stdout, ended.stderr) == (printed, f"{error}\n")
    assert not list(tmp_path.iterdir())


# A path that is misspelt (`{0}`), a file where a folder is meant or the other way round; the kind that is meant.
PATHS = [
    ("ic --data {0}", "folder"),
    ("ewa --recipe ewa/reference --data {0}", "folder"),
    ("ic --recipe ic/smoke --data {0} --set accelerator.device=cuda", "folder"),
    ("profile ic --data {0}", "folder"),
    ("scale ic --data {0} --procs 1,2 --oversubscribe", "folder"),
    ("data check ic {0}", "folder"),
    ("data check ewa {0}", "folder"),
    ("data index ic {0}", "folder"),
    ("data stage ic {0} dest", "folder"),
    ("ensemble plan e --recipe ic/ensemble --members 2 --data {0}", "folder"),
    ("ic --resume --out {0}", "folder"),
    ("watch {0}", "folder"),
    ("score {0}", "folder"),
    ("report {0}", "folder"),
    ("compare {0} {0}", "folder"),
    ("timeline {0}", "folder"),
    ("export {0} --mllog", "folder"),
    ("system {0}", "folder"),
    ("track {0}", "folder"),
    ("storage {0}", "folder"),
    ("campaign status {0}", "folder"),
    ("campaign run {0}", "folder"),
    ("ensemble status {0}", "folder"),
    ("ensemble run {0}", "folder"),
    ("verify {0}", "file"),
    ("replicate {0} -o r", "file"),
    ("rank {0}", "file"),
    ("accept smoke {0}", "folder"),
    ("accept {0} run", "file"),
    ("roofline --machine {0}", "file"),
    ("ic --estimate --machine {0}", "file"),
    ("slurm render ic --nodes 1 --site {0}", "file"),
]


@pytest.mark.parametrize(("line", "kind"), PATHS, ids=[line for line, _ in PATHS])
def test_a_misspelt_path_is_named_first_with_what_was_meant(typed: Typed, tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "some-folder").mkdir()
    (tmp_path / "some-file").write_text("")

    def refused(path: str) -> str:
        words = line.format(path).split()
        # These commands of data replace the process by one of the in-job half.
        if words[0] != "data":
            return error_of(typed(*words))
        return error_of(subprocess.run([*HPCAI500, *words], cwd=tmp_path, capture_output=True, text=True, check=False))

    assert f"som-{kind}: no such {kind} (did you mean some-{kind}?)" in refused(f"som-{kind}")
    other = {"file": "folder", "folder": "file"}[kind]
    assert f"some-{other}: a {other}" in refused(f"some-{other}")


@pytest.mark.parametrize("line", ["score {record}", "ic", "doctor --quick", "verify x.zip"])
def test_a_working_folder_that_was_deleted_is_named(tmp_path: Path, line: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {shlex.join(HPCAI500)} {line.format(record=tmp_path)}"
    ended = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        69,
        "hpcai500: error: the working folder was deleted: change to another one (`cd`)\n",
    )


def test_a_relative_folder_for_caches_is_refused(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    ended = typed("rules", "ic/smoke")
    error = ended.stderr.strip()
    assert ended.returncode == 69
    assert error.endswith(f'XDG_CACHE_HOME="{tmp_path}/cache"')
    assert "XDG_CACHE_HOME=cache: a relative path" in error
    assert typed("version").returncode == 0


@pytest.mark.parametrize(("line", "about"), [("help", "COMMAND"), ("help campaign init", "campaign init")])
def test_help_is_a_command_too(typed: Typed, line: str, about: str) -> None:
    assert f"hpcai500 {about} " in typed(*line.split()).stdout.splitlines()[0]


@pytest.mark.parametrize("line", ["score nowhere", "ic --recipe nope"])
def test_a_failure_is_a_json_document_and_a_verdict_too(typed: Typed, line: str) -> None:
    document = json.loads(typed(*line.split(), "--json").stdout)
    assert (document["verdict"], document["exit_code"]) == ("INVALID", 64)
    assert typed(*line.split()).stdout.splitlines()[-1] == INVALID


def test_a_traceback_is_shown_on_request(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_TRACEBACK", "1")
    assert "Traceback" in typed("score", "nowhere").stderr


def test_copies_of_a_run_of_one_rank_are_refused(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}
    for name, value in {**step, "PMI_RANK": "0", "PMI_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    ended = typed("ic")
    assert "PMI_SIZE=1, but SLURM_STEP_NUM_TASKS=2: this would start 2 runs of one rank each" in error_of(ended)
    assert ended.stdout.splitlines()[-1] == INVALID


def test_a_launcher_whose_variables_are_no_ranks_is_told_as_a_json_document(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "x")
    document = json.loads(typed("ic", "--json").stdout)
    assert (document["verdict"], document["exit_code"]) == ("INVALID", 64)
    assert document["error"].startswith("RANK=x: expected a whole number")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--procs", "2"], "--procs starts the ranks itself, but torchrun has started 2 already: leave out --procs"),
        (["--recipe", "nope"], "nope: no such recipe file"),
        (["--set", "hardware.nodes=4"], "torchrun: 2 ranks, but the recipe's hardware is 4 x 1"),
        (
            ["--recipe", "ic/smoke", "--trials", "3", "--set", "communication.backend=horovod"],
            "--trials: Horovod starts only once under one torchrun",
        ),
    ],
)
def test_of_many_copies_one_says_what_is_wrong_and_all_end_with_its_code(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    ended = start([*HPCAI500, "ic", *arguments], 2, "processes", cwd=tmp_path)
    assert ended.exit_codes == [64, 64]
    (error,) = [line for line in ended.output.splitlines() if "error: " in line]
    assert expected in error
    assert ended.output.count(INVALID) == 1
    assert not list(tmp_path.iterdir())


def test_the_runs_of_a_series_have_one_number_of_ranks(typed: Typed, images: Path, tmp_path: Path) -> None:
    create_campaign(tmp_path / "t", load_recipe("ic/smoke", TINY), 2, images)
    told = error_of(typed("ic", "--resume", "--out", "t", "--procs", "2"))
    assert "the runs of this series have 1 rank each, but here are 2: start as many" in told


LAUNCHERS = ("--procs N", "mpirun, torchrun or horovodrun", "docs/launching.md")


@pytest.mark.parametrize(
    ("line", "taught"),
    [
        ("--help", ()),
        ("ic -h", (*LAUNCHERS, "srun hpcai500 ic", "never scored", "no RESULT line")),
        ("ewa --help", (*LAUNCHERS, "srun hpcai500 ewa")),
        ("score --help", ()),
        ("flops --help", ()),
        ("data --help", ()),
        ("campaign init --help", ("two more than the edition's minimum",)),
        ("campaign run --help", ("srun hpcai500 campaign run DIR", "send it to your committee at once")),
        ("campaign status --help", ("whether the campaign is rankable, or why not",)),
        ("campaign heads --help", ("hpcai500 verify FILE --heads HEADS",)),
    ],
)
def test_help_teaches(typed: Typed, line: str, taught: Sequence[str]) -> None:
    ended = typed(*line.split())
    text = " ".join(ended.stdout.split())
    assert (ended.returncode, len(text.split()) > 20) == (0, True)
    assert [words for words in taught if words not in text] == []


def commands_of(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(commands_of(typer.main.get_command(app)))


def test_commands_are_listed_by_what_people_want(typed: Typed) -> None:
    listed = typed("--help").stdout
    headings = [line.rstrip(":") for line in listed.splitlines() if line.endswith(":")]
    assert headings == ["Options", "Run", "Understand", "Prove", "Procure", "Site", "Examples"]
    assert {path[0] for path in COMMANDS} <= set(listed.split())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_command_has_examples_that_its_parser_takes(path: tuple[str, ...]) -> None:
    examples = COMMANDS[path].epilog.splitlines()
    for example in examples:
        for part in example.split("  #")[0].split(" && "):
            words = shlex.split(part.split(" > ")[0])
            if "hpcai500" in words:
                words = words[words.index("hpcai500") + 1 :]
                name = next(known for known in COMMANDS if tuple(words[: len(known)]) == known)
                # Fails where an option is unknown or a value is missing; some options end their command at once.
                with suppress(typer.Exit):
                    COMMANDS[name].make_context("hpcai500", words[len(name) :])
    assert any(f"hpcai500 {' '.join(path)}" in example for example in examples)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_values_are_named_for_people(typed: Typed, path: tuple[str, ...]) -> None:
    named = [line for line in typed(*path, "--help").stdout.splitlines() if line.startswith("  -")]
    assert [line for line in named if re.match(r"  \S+( \S+)?  ?<", line) or " range>" in line] == []


@pytest.mark.parametrize("group", ["", "campaign", "data", "data make", "ensemble", "slurm"])
def test_a_group_that_is_called_bare_shows_its_help(typed: Typed, group: str) -> None:
    bare = typed(*group.split())
    assert (bare.returncode, bare.stdout) == (0, typed(*group.split(), "--help").stdout)


def test_a_shell_completes_commands_and_recipes(tmp_path: Path) -> None:
    command = python_with(tmp_path / "python").with_name("hpcai500")
    for words, last, completed in (
        ("hpcai500 tim", 1, ["timeline"]),
        ("hpcai500 ic --recipe ic/smo", 3, ["ic/smoke"]),
        ("hpcai500 data make e", 3, ["ewa"]),
    ):
        asked = {"_HPCAI500_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
        ended = subprocess.run([command], capture_output=True, text=True, env={**os.environ, **asked}, check=False)
        assert ended.stdout.split() == completed


def test_a_recipe_whose_name_is_nearly_right_is_suggested(typed: Typed) -> None:
    assert "did you mean ic/smoke?" in error_of(typed("rules", "ic/smok"))
