"""Batch scripts as a whole, that bash reads every word as it was meant, and what is found before a job queues."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.ranks import clean_environment
from hypothesis import given
from hypothesis import strategies as st

from hpcai500 import __version__
from hpcai500.cli import main
from hpcai500.errors import UsageError
from hpcai500.launch.slurm.script import (
    BatchJob,
    Expression,
    Planned,
    RenderRequest,
    array,
    comment,
    plan_job,
    render,
    word,
)
from hpcai500.launch.slurm.site import Site, load_site
from hpcai500.recipe import load_recipe
from hpcai500.record import RecordWriter, require_unused

# --- the script


GOLDEN = Path(__file__).with_name("slurm_script.golden.sh")
# What a process can be given as an argument.
TOKEN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def example(**changes: object) -> BatchJob:
    job = {
        "benchmark": "ic",
        "nodes": 2,
        "site": load_site("example"),
        "arguments": ["--data", "/data/image net"],
        "new_arguments": ["--recipe", "ic/reference", "--set", "communication.backend=horovod"],
        "binds": ["/data/image net"],
        "rendered_by": ["hpcai500", "slurm", "render", "ic", "--nodes", "2", "--data", "/data/image net"],
    }
    return BatchJob(**{**job, **changes})  # type: ignore[arg-type]


def bash(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(
        ["bash", "-c", script, "job.sh", *arguments], capture_output=True, text=True, check=False, env=variables
    )


def site(**tables: dict[str, object]) -> Site:
    return Site.model_validate({"container": {"command": "none"}, **tables})


def test_the_whole_script_of_the_example_site() -> None:
    """After a change that is meant: write the new text to the golden file and read it."""
    assert render(example()).replace(__version__, "VERSION") == GOLDEN.read_text()


def test_bash_reads_the_script() -> None:
    for job in (example(), example(site=site()), example(site=site(launcher={"program": "mpirun"}), record="/a b/c'd")):
        checked = subprocess.run(["bash", "-n"], input=render(job), capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_slurm_reads_its_lines_up_to_the_first_command() -> None:
    lines = render(example()).splitlines()
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert max(directives) < min(commands)


@pytest.mark.parametrize(
    ("node", "lines"),
    [
        ({"gpus": 4}, ["#SBATCH --gpus-per-node=4"]),
        ({"gpus": 4, "gpu_type": "a100"}, ["#SBATCH --gpus-per-node=a100:4"]),
        ({"gpus": 4, "gpu_request": "gres"}, ["#SBATCH --gres=gpu:4"]),
        ({"gpus": 4, "gpu_request": "gres", "gpu_type": "a100"}, ["#SBATCH --gres=gpu:a100:4"]),
        ({"gpus": 4, "gpu_request": "none"}, []),
        ({}, []),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(node: dict[str, object], lines: list[str]) -> None:
    script = render(example(site=site(node=node)))
    assert [text for text in script.splitlines() if "gpu" in text.lower()] == lines


def test_what_a_site_does_not_say_is_not_in_the_script() -> None:
    script = render(example(site=site(slurm={"exclusive": False, "requeue": False, "warning_seconds": 0})))
    options = ["--partition", "--account", "--qos", "--exclusive", "#SBATCH --signal"]
    for text in (*options, "\nmodule ", "export ", "scontrol"):
        assert text not in script.partition("# Change")[2]
    assert "#SBATCH --no-requeue" in script


def test_mpirun_is_told_where_rank_0_is_and_takes_every_variable_of_the_script_to_the_other_nodes() -> None:
    changed = site(
        launcher={"program": "mpirun", "interface": "ib0"},
        node={"tasks": 2},
        container={"image": "/apps/h.sif"},
        mpi={"model": "bind", "folder": "/opt/openmpi"},
        environment={"NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "eth1"},
    )
    script = render(example(site=changed))
    assert 'export MASTER_ADDR="$SLURMD_NODENAME"' in script
    assert "export GLOO_SOCKET_IFNAME=eth1\n" in script
    assert "mpirun -np 4 --map-by ppr:2:node --bind-to none" in script
    assert "--mca btl_tcp_if_include ib0" in script
    exported = re.findall(r"^export (\w+)=", script, re.MULTILINE)
    assert set(exported) > {"MASTER_ADDR", "NCCL_SOCKET_IFNAME", "APPTAINERENV_LD_LIBRARY_PATH", "NCCL_DEBUG"}
    assert exported == re.findall(r"-x (\w+)", script)


@given(TOKEN)
def test_a_command_line_of_any_text_stays_a_comment(text: str) -> None:
    script = render(example(rendered_by=["hpcai500", text], site=site()))
    head = script.partition("\n#SBATCH")[0]
    assert all(line.startswith("#") or not line for line in head.split("\n"))
    assert not any(line.startswith("#SBATCH") for line in head.split("\n"))
    assert "\r" not in head


@given(st.lists(TOKEN, max_size=5))
def test_bash_reads_an_array_as_the_tokens_that_it_was_made_of(tokens: list[str]) -> None:
    script = "\n".join([*array("a", tokens[:2]), *array("a", tokens[2:], append=True, indent=2)])
    read = subprocess.run(
        ["bash", "-c", script + '\n[ ${#a[@]} -eq 0 ] || printf "%s\\0" "${a[@]}"'], capture_output=True, check=True
    )
    assert read.stdout.split(b"\0")[:-1] == [token.encode() for token in tokens]


def test_an_expression_is_one_word_with_the_value_of_its_variables() -> None:
    script = f"set -- {word(Expression('$A/x'))}; printf '%s|' $# \"$@\""
    assert bash(script, A="a b*").stdout == "1|a b*/x|"


def test_a_comment_of_many_lines_has_a_mark_on_each() -> None:
    assert list(comment("a\n\nb\r\nc\x0cd")) == ["# a", "#", "# b", "# c", "# d"]


FAKE_SRUN = """#!/bin/bash
# Stands for srun (tests/site has the real one): shows what it was given, and ends as it was told.
for argument in "$@"; do printf '<%s>' "$argument"; done; echo
exit ${SRUN_CODE:-0}
"""

START = '{"seq":0,"key":"system","value":{}}\n'
SETTINGS = "<--set><communication.backend=horovod>"


def begun(record: Path) -> None:
    """Make the record of a run that began to train."""
    record.mkdir(parents=True)
    (record / "events.jsonl").write_text(START + '{"seq":1,"key":"run_start","value":{"ranks":1}}\n')


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script of a site without container, with stand-ins for Slurm, as the batch script of job 17."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"srun": FAKE_SRUN, "hpcai500": "#!/bin/bash\necho hpcai500 $*\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def ran(job: BatchJob, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1", **environment}
        command = ["bash", "-c", render(job), "job.sh", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=tmp_path)

    return ran


def test_a_new_job_gets_recipe_and_words_and_a_record_named_by_its_number(run: Run, tmp_path: Path) -> None:
    ended = run(example(site=site()), "--set", "a.b=c d")
    assert ended.stderr == ""
    assert ended.stdout.endswith(
        f"<hpcai500><ic><--data></data/image net><--out><{tmp_path}/runs/ic-17><--recipe><ic/reference><--set>"
        "<communication.backend=horovod><--set><a.b=c d>\n"
    )


def test_a_job_with_a_record_goes_on(run: Run, tmp_path: Path) -> None:
    begun(tmp_path / "runs/ic-17")
    ended = run(example(site=site()))
    assert ended.stdout.endswith(f"<--out><{tmp_path}/runs/ic-17><--resume>\n")
    # One that came back from the queue still has its words: they are in its record.
    ended = run(example(site=site()), "--set", "a.b=c", SLURM_RESTART_COUNT="1")
    assert ended.stdout.endswith(f"<--out><{tmp_path}/runs/ic-17><--resume>\n")


@pytest.mark.parametrize("file", ["events.jsonl", "DONE", "campaign.jsonl"])
def test_words_for_a_record_that_goes_on_are_refused(run: Run, tmp_path: Path, file: str) -> None:
    begun(tmp_path / "mine")
    (tmp_path / "mine/events.jsonl").rename(tmp_path / "mine" / file)
    ended = run(example(site=site()), "--set", "a.b=c", HPCAI500_RECORD="mine")
    assert (ended.returncode, ended.stdout) == (64, "")
    assert f"{tmp_path}/mine exists and continues with its own settings: leave out what follows FILE" in ended.stderr
    assert "or start another one: HPCAI500_RECORD=runs/NEW sbatch FILE --set a.b=c\n" in ended.stderr


@pytest.mark.parametrize("log", ["", '{"key":"system","value":{}}\n', START + '{"seq":2,"key":"run_start","val'])
def test_a_record_of_a_run_that_never_began_to_train_is_kept_and_another_begins(
    run: Run, tmp_path: Path, log: str
) -> None:
    """A node that dies while the ranks start leaves one, and the job comes back from the queue."""
    record = tmp_path / "runs/ic-17"
    record.mkdir(parents=True)
    (record / "events.jsonl").write_text(log)
    ended = run(example(site=site()), "--set", "a.b=c", SLURM_RESTART_COUNT="1")
    assert ended.stdout.endswith(f"<--out><{record}><--recipe><ic/reference>{SETTINGS}<--set><a.b=c>\n")
    aside = tmp_path / "runs/ic-17.failed-17-1"
    assert f"{record}: ended before it began to train: moved to {aside}; a new run starts" in ended.stderr
    assert (aside / "events.jsonl").read_text() == log
    require_unused(record)


def test_a_campaign_goes_on_and_keeps_its_attempts_where_they_are(run: Run, tmp_path: Path) -> None:
    """`hpcai500 campaign run` makes another attempt by itself where one never began."""
    campaign = tmp_path / "runs/ic-17"
    begun(campaign / "trial-01")
    (campaign / "campaign.jsonl").touch()
    (campaign / "trial-02").mkdir()
    (campaign / "trial-02/events.jsonl").touch()
    ended = run(example(site=site()))
    assert ended.stdout.endswith(f"<--out><{campaign}><--resume>\n")
    assert sorted(path.name for path in campaign.iterdir()) == ["campaign.jsonl", "trial-01", "trial-02"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["ic-17"]


def test_a_log_that_cannot_be_read_is_not_taken_for_an_empty_one_and_a_real_one_has_the_line_that_is_looked_for(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "runs/ic-17/events.jsonl").mkdir(parents=True)
    assert "<--resume>" in run(example(site=site())).stdout
    (tmp_path / "runs/ic-17/events.jsonl").rmdir()
    (tmp_path / "runs/ic-17").rmdir()
    with RecordWriter.create(tmp_path / "runs/ic-17", load_recipe("ic/smoke")) as writer:
        writer.event("run_start", {"ranks": 1})
    assert "<--resume>" in run(example(site=site())).stdout


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_slashes_at_the_end_of_a_record_do_not_count(run: Run, tmp_path: Path, slashes: str) -> None:
    container = {"command": "echo", "image": str(tmp_path)}
    job = example(site=site(container=container), binds=[])
    ended = run(job, HPCAI500_RECORD=f"{tmp_path}/new/mine{slashes}")
    assert f"<--bind><{tmp_path}/new><--pwd>" in ended.stdout
    assert f"<--out><{tmp_path}/new/mine><" in ended.stdout
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("record", ["/", "//", "/mine", "/mine/"])
def test_a_record_in_the_root_folder_is_refused_by_the_script(run: Run, record: str) -> None:
    ended = run(example(site=site()), HPCAI500_RECORD=record)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert f"{record}: is in /, which cannot be bound into a container: give /DIR/RECORD" in ended.stderr


@pytest.mark.parametrize("record", ["it's $HOME/here", "/tmp/`x` y"])
def test_a_record_of_any_name_is_taken_as_it_is(run: Run, tmp_path: Path, record: str) -> None:
    whole = record if record.startswith("/") else f"{tmp_path}/{record}"
    assert f"<--out><{whole}>" in run(example(site=site(), record=record)).stdout
    other = run(example(site=site(), record=record), HPCAI500_RECORD="o ther")
    assert f"<--out><{tmp_path}/o ther>" in other.stdout


def test_a_finished_record_is_only_scored(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs/ic-17").mkdir(parents=True)
    (tmp_path / "runs/ic-17/DONE").touch()
    ended = run(example(site=site()))
    assert ended.stdout == f"hpcai500 score {tmp_path}/runs/ic-17\n"


@pytest.mark.parametrize("code", ["0", "1", "2", "5", "64", "69"])
def test_the_exit_code_is_that_of_the_ranks(run: Run, code: str) -> None:
    assert run(example(site=site()), SRUN_CODE=code).returncode == int(code)


def test_a_missing_image_is_told_before_the_ranks_start(run: Run) -> None:
    container = {"command": "env", "image": "/nowhere/h.sif"}
    ended = run(example(site=site(container=container)))
    assert ended.returncode == 69
    assert "/nowhere/h.sif: not on" in ended.stderr
    ended = run(example(site=site(container={**container, "command": "apptainer-of-nobody"})))
    assert ended.returncode == 69
    assert "apptainer-of-nobody: no such command on this node: load its module" in ended.stderr


# --- `hpcai500 slurm render`: what is found before a job queues, and how it is said


GPU_SITE = """
[node]
tasks = 4
gpus = 4
[container]
image = "/apps/hpcai500.sif"
flags = ["--nv"]
"""
CPU_SITE = '[node]\ntasks = 2\n[container]\ncommand = "none"\n'


@pytest.fixture
def gpu(tmp_path: Path) -> str:
    return written(tmp_path / "gpu.toml", GPU_SITE)


@pytest.fixture
def cpu(tmp_path: Path) -> str:
    return written(tmp_path / "cpu.toml", CPU_SITE)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def plan(site: str | None, **changes: object) -> Planned:
    request = {"benchmark": "ic", "nodes": 2, "site": site, "environment": {}}
    return plan_job(RenderRequest(**{**request, **changes}))  # type: ignore[arg-type]


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`hpcai500 slurm …` in this process, in the folder of the test: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "slurm", *map(str, arguments)])
        return (main(), *capfd.readouterr())

    return run


def test_with_data_it_is_the_reference_recipe_and_without_the_smoke_recipe(gpu: str, cpu: str, tmp_path: Path) -> None:
    planned = plan(gpu, data=tmp_path)
    assert planned.job.arguments == ["--data", str(tmp_path)]
    assert planned.job.new_arguments == ["--recipe", "ic/reference"]
    assert planned.job.binds == [f"{tmp_path}:{tmp_path}:ro"]
    assert plan(cpu).job.new_arguments == ["--recipe", "ic/smoke"]
    assert plan(cpu).job.arguments == plan(cpu).job.binds == []


def test_a_recipe_file_is_named_so_that_it_is_found_from_everywhere(
    cpu: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(
        tmp_path / "my.toml", 'benchmark = "ic"\n[problem]\ndataset = "synthetic-x"\n[accelerator]\ndevice = "cpu"\n'
    )
    planned = plan(gpu, recipe="my.toml", overrides=["problem.epochs=9"], trials=2)
    assert planned.job.new_arguments == [
        *["--recipe", str(tmp_path / "my.toml"), "--set", "problem.epochs=9", "--trials", "2"]
    ]
    assert planned.job.binds == [f"{tmp_path}/my.toml:{tmp_path}/my.toml:ro"]
    assert plan(cpu, recipe="my.toml").job.binds == []


def test_without_a_site_file_the_image_of_this_container_and_its_runtime_are_those_of_the_job(tmp_path: Path) -> None:
    planned = plan(None, environment={"APPTAINER_CONTAINER": "/home/me/hpcai500.sif"})
    assert planned.job.site.container.image == "/home/me/hpcai500.sif"
    assert not planned.warnings
    with pytest.raises(UsageError, match=r"no --site: which image\? Give \[container\] image = .* or use none"):
        plan(None)
    environment = {"SINGULARITY_CONTAINER": "/apps/x.sif"}
    container = plan(None, environment=environment).job.site.container
    assert (container.command, container.image) == ("singularity", "/apps/x.sif")
    chosen = written(tmp_path / "site.toml", '[container]\ncommand = "/opt/bin/apptainer"\n')
    assert plan(chosen, environment=environment).job.site.container.command == "/opt/bin/apptainer"


def test_a_record_in_the_root_folder_is_refused(cpu: str) -> None:
    for out in ("/run1", "/"):
        with pytest.raises(UsageError, match=rf"--out {out}: is in /, .*: give /DIR/RECORD"):
            plan(cpu, out=Path(out))


def test_a_data_set_of_links_is_bound_with_what_they_lead_to(gpu: str, tmp_path: Path) -> None:
    for place in ("fast/set/val", "slow/train", "old/n1", "old/n2"):
        (tmp_path / place).mkdir(parents=True)
    links = {"link": "fast/set", "fast/set/train": "slow/train", "slow/train/n1": "old/n1", "slow/train/n2": "old/n2"}
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    planned = plan(gpu, data=tmp_path / "link")
    assert planned.job.arguments == ["--data", f"{tmp_path}/link"]
    assert planned.job.binds == [
        f"{tmp_path}/{it}:{tmp_path}/{it}:ro" for it in ("link", "fast/set", "slow/train", "old")
    ]


def test_what_is_not_seen_from_here_and_gpus_that_the_container_hides_are_a_warning(gpu: str, tmp_path: Path) -> None:
    planned = plan(gpu, data=Path("/nowhere/data"))
    assert [warning.partition(":")[0] for warning in planned.warnings] == ["/apps/hpcai500.sif", "/nowhere/data"]
    site = written(tmp_path / "site.toml", GPU_SITE.replace('flags = ["--nv"]', ""))
    assert any('flags = ["--nv"]' in warning for warning in plan(site, data=tmp_path).warnings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overrides": ["problem.epocs=2"]}, "did you mean epochs"),
        ({"recipe": "ic/smok"}, "ic/smok: no such recipe file"),
        ({"recipe": "ewa/smoke"}, "ewa/smoke: a recipe of ewa; run `hpcai500 slurm render ewa"),
        (
            {"recipe": "ic/reference", "overrides": ["accelerator.device=cpu"]},
            "the recipe trains on imagenet-1k: give its folder with --data DIR",
        ),
        (
            {"data": Path(__file__), "overrides": ["accelerator.device=cpu"]},
            "not a folder; give the folder of imagenet",
        ),
        ({"data": Path("/")}, "accelerator.device is cuda, but a node of the site has 0 GPUs for 2 tasks"),
        (
            {"overrides": ["hardware.nodes=3", "hardware.accelerators_per_node=2"]},
            r"--nodes 2 with 2 tasks each .*: 4 ranks, but the recipe's hardware is 3 x 2",
        ),
        (
            {"overrides": ["hardware.nodes=4", "hardware.accelerators_per_node=1"]},
            r"--nodes 2 with 2 tasks each .*, but hardware.nodes of the recipe is 4: change --nodes or tasks",
        ),
        ({"overrides": ["communication.backend=horovod"]}, 'whose MPI needs pmi = "pmix"'),
        ({"site": "nowhere"}, "--site nowhere: no such file"),
    ],
)
def test_what_would_fail_in_the_queue_is_refused_now(cpu: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(**{"site": cpu, **changes})  # type: ignore[arg-type]


def test_horovod_cannot_do_trials_in_one_job(tmp_path: Path) -> None:
    site = written(tmp_path / "site.toml", CPU_SITE + '[launcher]\npmi = "pmix"\n')
    assert plan(site, overrides=["communication.backend=horovod"])
    with pytest.raises(
        UsageError, match=r"submit the script once for each run: sbatch FILE --set hyperparameters.seed"
    ):
        plan(site, overrides=["communication.backend=horovod"], trials=2)


def test_the_command_prints_the_script_and_nothing_else(slurm: Command) -> None:
    code, out, err = slurm("render", "ic", "--nodes", 2, "--site", "local", "--out", "a b")
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n")
    assert "#     hpcai500 slurm render ic --nodes 2 --site local --out 'a b'\n" in out
    assert "record='a b'" in out
    code, _, err = slurm("render", "ic", "--site", "local")
    assert code == 64
    assert "--nodes" in err


def test_the_command_writes_a_new_file_and_never_over_one(slurm: Command, tmp_path: Path) -> None:
    words = ["render", "ic", "--nodes", 2, "--site", "local", "-o"]
    code, out, err = slurm(*words, "job.sh")
    assert (code, out) == (0, "")
    assert "submit it on the host: sbatch job.sh" in err
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n")
    for file, said in (
        ("job.sh", "exists already; remove it, or give another name"),
        ("no/job.sh", "cannot be written: No such file or directory"),
    ):
        code, _, err = slurm(*words, file)
        assert code == 64
        assert f"-o {file}: {said}" in err


def test_the_command_needs_no_slurm_and_renders_inside_the_image(
    slurm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/apps/h.sif")
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = slurm("render", "ewa", "--recipe", "ewa/smoke", "--nodes", 1, "--data", "/hidden/weather")
    assert code == 0, err
    assert "--bind /apps/h.sif:/image.sif:ro" in out
    # What the container does not show may be on the host.
    assert "/hidden/weather" in out
    assert "not found" not in err
    assert "render with --bind /hidden/weather" in err


def test_the_example_is_printed_for_whoever_has_only_the_image(slurm: Command, tmp_path: Path) -> None:
    code, out, _ = slurm("example")
    assert code == 0
    assert load_site(written(tmp_path / "mysite.toml", out)) == load_site("example")
