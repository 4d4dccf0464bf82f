"""`hpcai500 slurm render`: what is found before a job queues, and how it is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from many_ranks import clean_environment

from hpcai500.errors import UsageError
from hpcai500.launch.slurm.script import Planned, RenderRequest, plan_job
from hpcai500.launch.slurm.site import load_site

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


def render(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from hpcai500.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "slurm", "render", *map(str, arguments)]
    variables = {**clean_environment(), **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=variables)


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


def test_in_an_image_the_site_needs_to_name_none(cpu: str) -> None:
    planned = plan(None, environment={"APPTAINER_CONTAINER": "/home/me/hpcai500.sif"})
    assert planned.job.site.container.image == "/home/me/hpcai500.sif"
    assert not planned.warnings
    with pytest.raises(UsageError, match=r"no --site: which image\? Give \[container\] image = .* or use none"):
        plan(None)


def test_without_a_site_file_the_runtime_of_this_container_is_that_of_the_job(tmp_path: Path) -> None:
    environment = {"SINGULARITY_CONTAINER": "/apps/x.sif"}
    container = plan(None, environment=environment).job.site.container
    assert (container.command, container.image) == ("singularity", "/apps/x.sif")
    chosen = written(tmp_path / "site.toml", '[container]\ncommand = "/opt/bin/apptainer"\n')
    assert plan(chosen, environment=environment).job.site.container.command == "/opt/bin/apptainer"


def test_a_record_in_the_root_folder_is_refused(cpu: str) -> None:
    for out in ("/run1", "/"):
        with pytest.raises(UsageError, match=rf"--out {out}: lies in /, .*: give /DIR/RECORD"):
            plan(cpu, out=Path(out))


def test_what_is_not_seen_from_here_is_a_warning(gpu: str) -> None:
    planned = plan(gpu, data=Path("/nowhere/data"))
    assert [warning.partition(":")[0] for warning in planned.warnings] == ["/apps/hpcai500.sif", "/nowhere/data"]


def test_gpus_that_the_container_hides_are_a_warning(tmp_path: Path) -> None:
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
        ({"site": "nowhere"}, "--site nowhere: no such site file"),
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


def test_the_command_prints_the_script_and_nothing_else(tmp_path: Path) -> None:
    ended = render("ic", "--nodes", 2, "--site", "local", "--out", "a b", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("#!/bin/bash\n")
    assert "#     hpcai500 slurm render ic --nodes 2 --site local --out 'a b'\n" in ended.stdout
    assert "record='a b'" in ended.stdout


def test_the_command_writes_a_new_file_and_never_over_one(tmp_path: Path) -> None:
    arguments = ["ic", "--nodes", 2, "--site", "local", "-o"]
    ended = render(*arguments, "job.sh", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "submit it on the host: sbatch job.sh" in ended.stderr
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n")
    again = render(*arguments, "job.sh", cwd=tmp_path)
    assert again.returncode == 64
    assert "-o job.sh: exists already; remove it, or give another name" in again.stderr
    nowhere = render(*arguments, "no/job.sh", cwd=tmp_path)
    assert nowhere.returncode == 64
    assert "-o no/job.sh: cannot be written: No such file or directory" in nowhere.stderr


def test_the_command_needs_no_slurm_and_renders_inside_the_image(tmp_path: Path) -> None:
    inside = {"APPTAINER_CONTAINER": "/apps/h.sif", "PATH": "/nowhere"}
    ended = render("ewa", "--nodes", 1, cwd=tmp_path, **inside)
    assert ended.returncode == 0, ended.stderr
    assert "--bind /apps/h.sif:/image.sif:ro" in ended.stdout


def test_a_missing_number_of_nodes_is_told(tmp_path: Path) -> None:
    ended = render("ic", "--site", "local", cwd=tmp_path)
    assert ended.returncode == 64
    assert "--nodes" in ended.stderr


def test_the_example_is_printed_for_whoever_has_only_the_image(tmp_path: Path) -> None:
    program = "import sys; from hpcai500.cli import main; sys.exit(main())"
    printed = subprocess.run(
        [sys.executable, "-c", program, "slurm", "example"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    (tmp_path / "mysite.toml").write_text(printed.stdout)
    assert load_site(str(tmp_path / "mysite.toml")) == load_site("example")
