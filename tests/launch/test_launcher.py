"""How ranks are started here: on which cores, by which words of a launcher, of which recipe, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders.ranks import clean_environment
from builders.runs import TINY
from fakes.machines import DGX_NODES, gpu_node
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.cli import main
from hpcai500.errors import EnvironmentLacksError, RecipeError, UsageError
from hpcai500.hosts import Placement
from hpcai500.launch.launcher import World, fitting_overrides, launcher_of, require_room
from hpcai500.launch.layout import (
    Layout,
    cores_for,
    horovodrun,
    mpirun,
    neighbours_together,
    share,
    shares_near,
    srun,
    torchrun,
)
from hpcai500.launch.synthetic_data import data_folder
from hpcai500.methodology.conduct import ranks_of
from hpcai500.recipe import global_batch, load_recipe, reference_recipe, to_toml
from hpcai500.record import RecordWriter, require_unused

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hpcai500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, in a folder of the test and under no launcher: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hpcai500", *map(str, arguments)])
        return (main(), *capfd.readouterr())

    return run


# --- the cores of a rank


@given(st.lists(st.integers(0, 500), min_size=1, max_size=64, unique=True), st.integers(1, 64))
def test_all_ranks_get_as_many_cores_and_no_core_is_given_twice_while_there_are_enough(
    cores: list[int], ranks: int
) -> None:
    shares = [share(cores, rank, ranks) for rank in range(ranks)]
    assert {len(each) for each in shares} == {max(1, len(cores) // ranks)}
    given_out = [core for each in shares for core in each]
    assert set(given_out) <= set(cores)
    if ranks <= len(cores):
        assert len(set(given_out)) == len(given_out)
        assert len(cores) - len(given_out) < ranks


def test_the_threads_of_a_core_stay_together_where_the_machine_tells_them(tmp_path: Path) -> None:
    assert neighbours_together({3, 1, 2}, tmp_path) == [1, 2, 3]
    # Two packages of two cores with two threads each, numbered as Linux does.
    for core in range(8):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{core % 4 // 2}\n")
        (topology / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    ordered = neighbours_together(range(8), tmp_path)
    assert [share(ordered, rank, 2) for rank in (0, 1)] == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert neighbours_together([6, 1, 5], tmp_path) == [1, 5, 6]


# --- the cores of a rank on a GPU


@pytest.fixture
def dgx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node of 256 hardware threads whose GPUs are at NUMA nodes 3, 3, 1, 1, 7, 7, 5, 5."""
    for name in ("HPCAI500_AFFINITY", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(256)))
    return gpu_node(tmp_path)


def nodes_of(cores: Sequence[int] | None) -> dict[int, int]:
    """How many of `cores` are at each NUMA node of the made-up machine."""
    return dict(Counter(core % 128 // 16 for core in cores or ()))


def test_each_rank_gets_cores_of_its_gpus_numa_node_then_of_the_nearest_and_all_get_as_many(dgx: Path) -> None:
    found = [cores_for(rank, 8, "cuda", dgx) or [] for rank in range(8)]
    assert [len(cores) for cores in found] == [32] * 8
    assert sorted(core for cores in found for core in cores) == list(range(256))
    for cores, node in zip(found, DGX_NODES.values(), strict=True):
        assert nodes_of(cores)[node] == 16
        assert {other // 4 for other in nodes_of(cores)} == {node // 4}, "the other processor's cores are far"
        assert {core % 128 for core in cores} == {core for core in cores if core < 128}, (
            "a core's threads stay together"
        )


def test_fewer_ranks_than_gpus_use_all_cores_and_start_near(dgx: Path) -> None:
    found = [cores_for(rank, 2, "cuda", dgx) or [] for rank in (0, 1)]
    assert [len(cores) for cores in found] == [128, 128]
    assert [nodes_of(cores)[3] for cores in found] == [16, 16]
    assert set(found[0]).isdisjoint(found[1])


def test_two_processors_with_four_gpus_each_are_split_as_their_cores_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dgx: Path
) -> None:
    root = gpu_node(tmp_path / "other", {f"0000:{bus:02x}:00.0": bus // 4 for bus in range(8)})
    numa = root / "sys/devices/system/node"
    for node in range(2, 8):
        shutil.rmtree(numa / f"node{node}")
    for node in range(2):
        (numa / f"node{node}/cpulist").write_text(f"{node * 64}-{node * 64 + 63},{node * 64 + 128}-{node * 64 + 191}")
        (numa / f"node{node}/distance").write_text("10 32" if node == 0 else "32 10")
    assert [cores_for(rank, 8, "cuda", root) for rank in range(8)] == [
        cores_for(rank, 8, "cpu", root) for rank in range(8)
    ]


def test_the_devices_that_are_named_are_those_that_count(dgx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,0")
    assert [nodes_of(cores_for(rank, 2, "cuda", dgx)) for rank in (0, 1)] == [
        {4: 32, 5: 32, 6: 32, 7: 32},
        {0: 32, 1: 32, 2: 32, 3: 32},
    ]


@pytest.mark.parametrize("shown", ["GPU-8932f937,GPU-7b21", "MIG-3", "0,0", "", "5"])
def test_cores_are_shared_as_ever_where_the_gpus_of_the_ranks_are_unknown(
    dgx: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    usual = [cores_for(rank, 2, "cpu", dgx) for rank in (0, 1)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [cores_for(rank, 2, "cuda", dgx) for rank in (0, 1)] == usual


def test_cores_are_shared_as_ever_for_cpus_unknown_numa_nodes_and_other_orders(
    dgx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [cores_for(rank, 8, "cpu", dgx) for rank in range(8)]
    assert nodes_of(usual[0]) == {0: 32}
    model = dgx / "proc/driver/nvidia/gpus/0000:07:00.0/information"
    model.write_text(model.read_text().replace("A100", "H100"))
    assert [cores_for(rank, 8, "cuda", dgx) for rank in range(8)] == usual
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nodes_of(cores_for(0, 8, "cuda", dgx))[3] == 16
    (dgx / "sys/bus/pci/devices/0000:bd:00.0/numa_node").write_text("-1\n")
    assert [cores_for(rank, 8, "cuda", dgx) for rank in range(8)] == usual


def test_gpus_that_the_scheduler_hides_are_not_counted(dgx: Path) -> None:
    # Those at the lowest addresses have the highest numbers in /dev.
    for minor in (7, 6, 5, 4):
        (dgx / f"dev/nvidia{minor}").unlink()
    assert [nodes_of(cores_for(rank, 4, "cuda", dgx))[node] for rank, node in enumerate((7, 7, 5, 5))] == [16] * 4


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.integers(0, 63), min_size=12))
def test_wherever_the_gpus_are_all_get_as_many_cores_and_no_core_is_given_twice(
    nodes: list[int], allowed: set[int]
) -> None:
    numa = [
        {"node": n, "cpus": f"{n * 16}-{n * 16 + 15}", "distances": [10 if m == n else 20 for m in range(4)]}
        for n in range(4)
    ]
    found = shares_near(sorted(allowed), nodes, numa)
    assert {len(cores) for cores in found} == {len(allowed) // len(nodes)}
    given_out = [core for cores in found for core in cores]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= allowed


def test_binding_is_off_for_one_rank_and_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCAI500_AFFINITY", raising=False)
    here = len(os.sched_getaffinity(0))
    assert cores_for(0, 1) is None
    assert len(cores_for(0, 2) or []) == max(1, here // 2)
    monkeypatch.setenv("HPCAI500_AFFINITY", "none")
    assert cores_for(0, 2) is None
    monkeypatch.setenv("HPCAI500_AFFINITY", "cores")
    with pytest.raises(UsageError, match="HPCAI500_AFFINITY=cores: expected none"):
        cores_for(0, 2)


# --- the words that each launcher gets, whole: a change here is a change of how every site's jobs start


HERE = Layout(nodes=1, per_node=2)
VARIABLES = {"MASTER_ADDR": "n1", "NCCL_DEBUG": "WARN"}
SITE = Layout(
    nodes=2, per_node=4, hosts=("n1", "n2"), cores_per_rank=16, environment=VARIABLES, interface="ib0"
)  # fmt: skip
UNBOUND = Layout(nodes=2, per_node=4, hosts=("n1", "n2"), environment={"MASTER_ADDR": "n1"}, interface="ib0")
COMMAND = ["hpcai500", "ic", "--data", "/data/a b"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (mpirun(HERE, COMMAND),
         "mpirun -np 2 --map-by ppr:2:node --bind-to none --mca odls_base_sigkill_timeout 5 "
         "hpcai500 ic --data '/data/a b'"),
        (mpirun(SITE, COMMAND, as_root=True, oversubscribe=True),
         "mpirun --allow-run-as-root --oversubscribe -np 8 --map-by ppr:4:node:PE=16 --bind-to core -H n1:4,n2:4 "
         "--mca odls_base_sigkill_timeout 5 --mca btl_tcp_if_include ib0 --mca oob_tcp_if_include ib0 "
         "-x MASTER_ADDR=n1 -x NCCL_DEBUG=WARN hpcai500 ic --data '/data/a b'"),
        (srun(Layout(nodes=2, per_node=4), COMMAND),
         "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 --export=ALL "
         "hpcai500 ic --data '/data/a b'"),
        (srun(SITE, COMMAND, pmi="pmix"),
         "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --mpi=pmix "
         "--kill-on-bad-exit=1 --nodelist=n1,n2 --export=ALL,MASTER_ADDR=n1,NCCL_DEBUG=WARN "
         "hpcai500 ic --data '/data/a b'"),
        (horovodrun(HERE, ["x"]), "horovodrun --gloo -np 2 -H localhost:2 x"),
        (horovodrun(UNBOUND, ["x"]),
         "horovodrun --gloo -np 8 -H n1:4,n2:4 --network-interface ib0 env MASTER_ADDR=n1 x"),
        (torchrun(HERE, ["x"]), "torchrun --standalone --nproc-per-node=2 --no-python x"),
        (torchrun(UNBOUND, ["x"], job="17"),
         "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 --rdzv-id=17 --nproc-per-node=4 "
         "--no-python env MASTER_ADDR=n1 x"),
    ],
    ids=[f"{name} {where}" for name in ("mpirun", "srun", "horovodrun", "torchrun") for where in ("here", "of a site")],
)  # fmt: skip
def test_a_launcher_gets_these_words(words: Sequence[str], expected: str) -> None:
    assert shlex.join(words) == expected


def test_srun_starts_fewer_ranks_than_fit_where_some_nodes_have_fewer() -> None:
    tokens = srun(Layout(nodes=2, per_node=2, total=3), ["x"])
    assert tokens[1:4] == ["--nodes=2", "--ntasks=3", "--ntasks-per-node=2"]


def test_what_a_launcher_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="expected 2 hosts, one a node, got 1: n1"):
        Layout(nodes=2, per_node=1, hosts=["n1"])
    for launcher in (horovodrun, torchrun):
        with pytest.raises(UsageError, match="takes no hosts from a scheduler"):
            launcher(Layout(nodes=2, per_node=1), ["x"])
        with pytest.raises(UsageError, match="binds no ranks to cores"):
            launcher(Layout(nodes=1, per_node=1, cores_per_rank=2), ["x"])
    with pytest.raises(UsageError, match="INTERFACES: srun cannot pass a value with a comma"):
        srun(Layout(nodes=1, per_node=1, environment={"INTERFACES": "a,b"}), ["x"])


# --- what a recipe leaves open follows the ranks that there are; what it states must agree with them


RANKS = {n: World(n, (n,), "torch", f"--procs {n}", "the fix") for n in (1, 2, 4)}
SPREAD = World(8, (4, 4), "torch", "srun", "the fix")
NO_NODES = World(8, (), "torch", "srun", "")
STATING = """benchmark = "ic"
[hardware]
accelerators_per_node = 2
[communication]
backend = "horovod"
[accelerator]
device = "cpu"
"""


@pytest.mark.parametrize(
    ("overrides", "world", "expected"),
    [
        ([], RANKS[1], (1, 1, "local")),
        ([], RANKS[2], (1, 2, "torch")),
        ([], SPREAD, (2, 4, "torch")),
        ([], World(2, (2,), "horovod", "horovodrun", ""), (1, 2, "horovod")),
        (["communication.backend=horovod"], RANKS[2], (1, 2, "horovod")),
        (["hardware.accelerators_per_node=4"], SPREAD, (2, 4, "torch")),
        (["hardware.nodes=4"], SPREAD, (4, 2, "torch")),  # a stated shape is believed: two nodes tried as four
        (["hardware.nodes=2", "hardware.accelerators_per_node=2"], RANKS[4], (2, 2, "torch")),
        (["hardware.accelerators_per_node=4"], NO_NODES, (2, 4, "torch")),
    ],
)
def test_what_is_open_follows_the_ranks(overrides: list[str], world: World, expected: tuple[int, int, str]) -> None:
    fitted = fitting_overrides("ic/smoke", overrides, world)
    recipe = load_recipe("ic/smoke", [*overrides, *fitted])
    assert (recipe.hardware.nodes, recipe.hardware.accelerators_per_node, recipe.communication.backend) == expected


@pytest.mark.parametrize(
    ("overrides", "layout", "expected"),
    [
        ([], (2, 1), (2, 2, 3)),
        ([], (1, 2), (2, 2, 3)),
        (["hardware.nodes=2"], (2, 1), (2, 2, 3)),
        (["hardware.nodes=2"], (), (2, 2, 3)),  # the launcher does not say
        (["hardware.nodes=2", "hardware.accelerators_per_node=2", "hardware.ranks=3"], (2, 1), (2, 2, 3)),
        (["hardware.nodes=3"], (2, 1), (3, 1, 0)),
    ],
)
def test_nodes_may_have_different_numbers_of_ranks(
    overrides: list[str], layout: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    overrides = [*overrides, *fitting_overrides("ic/smoke", overrides, World(3, layout, "torch", "srun", "the fix"))]
    recipe = load_recipe("ic/smoke", overrides)
    hardware = recipe.hardware
    assert (hardware.nodes, hardware.accelerators_per_node, hardware.ranks) == expected
    assert recipe.world_size == ranks_of(recipe.model_dump()["hardware"]) == 3
    assert recipe.global_batch == global_batch(recipe.model_dump()) == 3 * recipe.hyperparameters.batch_size


def test_a_rank_too_few_of_stated_nodes_is_refused() -> None:
    stated = ["hardware.nodes=2", "hardware.accelerators_per_node=2"]
    with pytest.raises(UsageError, match=r"3 ranks, but the recipe's hardware is 2 x 2 \(.*\): the fix"):
        fitting_overrides("ic/smoke", stated, World(3, (2, 1), "torch", "srun", "the fix"))
    with pytest.raises(UsageError, match=r"2 ranks, but the recipe's hardware is 2 x 2 \(.*\) with 3 ranks"):
        fitting_overrides("ic/smoke", [*stated, "hardware.ranks=3"], World(2, (1, 1), "torch", "srun", "the fix"))


def test_the_reference_recipe_states_nothing_and_a_copy_of_it_everything(tmp_path: Path) -> None:
    assert "hardware.accelerators_per_node=2" in fitting_overrides("ic/reference", [], RANKS[2])
    copy = tmp_path / "reference.toml"
    copy.write_text(to_toml(reference_recipe("ic")))
    with pytest.raises(UsageError, match=r"--procs 2: 2 ranks, but the recipe's hardware is 1 x 1 .*: the fix"):
        fitting_overrides(copy, [], RANKS[2])


@pytest.mark.parametrize("overrides", [[], ["hyperparameters.seed=3"]])
def test_a_stated_number_must_agree(tmp_path: Path, overrides: list[str]) -> None:
    path = tmp_path / "two.toml"
    path.write_text(STATING)
    recipe = load_recipe(path, [*overrides, *fitting_overrides(path, overrides, RANKS[2])])
    assert (recipe.world_size, recipe.communication.backend) == (2, "horovod")
    for world in (RANKS[1], RANKS[4], SPREAD):
        with pytest.raises(UsageError, match=r"but the recipe's hardware is \d x 2 .*the fix"):
            fitting_overrides(path, overrides, world)
    changed = [*overrides, "hardware.accelerators_per_node=4"]
    assert load_recipe(path, [*changed, *fitting_overrides(path, changed, RANKS[4])]).world_size == 4


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="8 ranks, but the recipe's hardware is 3 x 2"):
        fitting_overrides("ic/smoke", ["hardware.nodes=3"], SPREAD)
    with pytest.raises(UsageError, match="on an unknown number of nodes: set LOCAL_WORLD_SIZE"):
        fitting_overrides("ic/smoke", [], NO_NODES)
    with pytest.raises(RecipeError, match="no such recipe file"):
        fitting_overrides("nope", [], RANKS[2])


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("benchmark = ", [], "not valid TOML"),
        ('benchmark = "ic"\nhardware = 3\n', [], "hardware"),
        ('benchmark = "ic"\n[hardware]\nnodes = "two"\n', [], "nodes: expected a valid integer"),
        ('benchmark = "ic"\n', ["hardware.nodes=two"], "--set hardware.nodes"),
        ('benchmark = "ic"\n', ["hardware"], "--set hardware: expected table.key=value"),
    ],
)
def test_a_mistake_in_the_recipe_is_told_by_the_recipe(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as refused:
        load_recipe(path, [*overrides, *fitting_overrides(path, overrides, RANKS[2])])
    assert message in str(refused.value)


# --- what a command says before it starts ranks


@pytest.mark.parametrize("data", [True, False])
def test_a_used_folder_is_refused_once_before_data_is_made_or_a_rank_is_started(
    hpcai500: Command, images: Path, tmp_path: Path, data: bool
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    where = ["--data", images, "--recipe", "ic/smoke"] if data else []
    code, out, err = hpcai500("ic", *where, "--procs", "2", "--out", "used", "--json")
    said = "used: not empty; give another --out, or resume it: --resume --out used"
    assert (code, err) == (64, f"hpcai500: error: {said}\n")
    assert said in json.dumps(json.loads(out))
    assert {path.name for path in tmp_path.iterdir()} == {"used"}


def test_what_a_run_left_that_was_killed_before_its_first_event_is_no_use(tmp_path: Path) -> None:
    RecordWriter.create(tmp_path / "record", load_recipe("ic/smoke", ())).close()
    require_unused(tmp_path / "record")
    require_unused(tmp_path / "nowhere")


def test_more_ranks_than_cores_are_refused_unless_a_flag_allows_it_and_more_than_devices_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    require_room(cores)
    with pytest.raises(UsageError, match=f"{cores + 1} ranks share {cores} core.*--procs {cores} .*--oversubscribe"):
        require_room(cores + 1)
    monkeypatch.setenv("HPCAI500_OVERSUBSCRIBE", "1")
    require_room(cores + 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    require_room(3, "cpu")
    require_room(2, "cuda")
    with pytest.raises(UsageError, match="3 ranks, but 2 CUDA devices here: --procs 2"):
        require_room(3, "cuda")


def test_ranks_that_a_recipe_states_become_fewer_by_its_own_field() -> None:
    # `--procs` with another number than the recipe's is refused.
    cores = len(os.sched_getaffinity(0))
    settings = ["communication.backend=torch", f"hardware.accelerators_per_node={cores + 1}"]
    launcher = launcher_of(Placement(0, 1, 0, 1, "none", None, None), None)
    with pytest.raises(UsageError, match=f"--set hardware.accelerators_per_node={cores} gives each its own core"):
        launcher.check(load_recipe("ic/smoke", settings), 1)


@pytest.mark.parametrize(
    "command",
    ["ic", "ewa", "micro copy", "profile ic --recipe ic/smoke", "system", "doctor --quick",
     "doctor ic --recipe ic/smoke", "scale ic"],
)  # fmt: skip
def test_every_command_that_starts_ranks_refuses_more_than_cores(
    hpcai500: Command, command: str, tmp_path: Path
) -> None:
    code, _, err = hpcai500(*command.split(), "--procs", "1,99999" if command == "scale ic" else "99999")
    assert code == 64, err
    assert "99999 ranks share" in err
    assert "--oversubscribe" in err
    assert not list(tmp_path.glob("data/*"))


def test_a_command_that_may_oversubscribe_warns_once(images: Path, tmp_path: Path) -> None:
    size = len(os.sched_getaffinity(0)) + 1
    settings = [token for text in (*TINY, "problem.epochs=1") for token in ("--set", text)]
    where = ["--recipe", "ic/smoke", "--data", str(images), "--out", "r"]
    program = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())", "ic"]
    ended = subprocess.run(
        [*program, *where, "--procs", str(size), "--oversubscribe", *settings],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr.count(f"warning: {size} ranks share {size - 1} core") == 1


def test_a_torus_that_the_ranks_do_not_fill_is_refused_before_one_starts() -> None:
    torus = ["communication.backend=torch", "communication.topology=torus", "accelerator.device=cpu"]
    recipe = load_recipe("ic/smoke", [*torus, "hardware.nodes=3", "hardware.accelerators_per_node=1"])
    said = "0 makes each node a row, but nodes have different numbers of"
    for uneven in (
        Placement(0, 3, 0, 2, "mpirun", "localhost:1", None),
        Placement(0, 3, 0, 1, "srun", "localhost:1", None, (1, 2)),
    ):
        launcher = launcher_of(uneven, None)
        with pytest.raises(RecipeError, match=said):
            launcher.check(recipe, 1)
        with pytest.raises(RecipeError, match=said):
            launcher.run(recipe, ["--resume", "--out", "nowhere"])
    three = ["hardware.nodes=2", "hardware.accelerators_per_node=2", "hardware.ranks=3"]
    with pytest.raises(RecipeError, match=said):
        load_recipe("ic/smoke", [*torus, *three])
    recipe = load_recipe("ic/smoke", [*torus, "communication.torus_columns=2", "hardware.accelerators_per_node=6"])
    launcher = launcher_of(Placement(0, 1, 0, 1, "none", None, None), 3)
    with pytest.raises(RecipeError, match="3 ranks do not fill rows of 2: use one of 1, 3"):
        launcher.run(recipe, ["--resume", "--out", "nowhere"])


# --- where a benchmark makes the data that nobody gave it; tests/site has a system that really is read-only


def test_data_is_made_in_the_working_directory_and_used_there_also_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_folder("ic-shapes", tmp_path / "runs" / "one") == Path("data/ic-shapes")
    (tmp_path / "data" / "ic-shapes").mkdir(parents=True)
    monkeypatch.setattr("hpcai500.launch.synthetic_data.can_be_made", lambda path: False)
    assert data_folder("ic-shapes", None) == Path("data/ic-shapes")


def test_where_that_cannot_be_written_it_is_made_beside_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr("hpcai500.launch.synthetic_data.can_be_made", lambda path: tmp_path in path.parents)
    place = data_folder("ic-shapes", tmp_path / "runs" / "one")
    assert place == tmp_path / "runs" / "data" / "ic-shapes"
    assert f"/: cannot be written: the synthetic data goes to {place}" in capsys.readouterr().err
    for out in (None, Path("/record")):
        with pytest.raises(EnvironmentLacksError, match=r"^synthetic data cannot be generated: /: .*--bind DIR"):
            data_folder("ic-shapes", out)
