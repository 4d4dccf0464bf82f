"""From placement to communicator: where it cannot work, one line that says why and what to do; never N runs.

Ranks that would not do the same thing are refused; Gloo is told the interface by which the hosts have met.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.needs import needs_horovod
from builders.ranks import clean_environment, free_port
from file_mailbox import communicator
from thread_ranks import run_threads

from hpcai500 import progress
from hpcai500.comm import connect as connecting
from hpcai500.comm import identity
from hpcai500.comm.communicator import LocalCommunicator, reason_of
from hpcai500.comm.connect import connect, meet
from hpcai500.comm.horovod_backend import Horovod
from hpcai500.comm.identity import require_own_gpus
from hpcai500.comm.liveness import COMPUTING, STARTING, WAITING
from hpcai500.comm.torch_backend import COLLECTIVE_TIMEOUT
from hpcai500.engine.ranks import Ranks
from hpcai500.errors import EnvironmentLacksError, RecipeError, RunError, UsageError
from hpcai500.hosts import Placement, find_placement
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.system import network as network_module
from hpcai500.system.network import interface_addresses, prefer_route

SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "4",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}


def recipe(backend: str, *more: str) -> Recipe:
    size = 1 if backend == "local" else 4
    return load_recipe(
        "ic/smoke", [f"communication.backend={backend}", f"hardware.accelerators_per_node={size}", *more]
    )


def placed(variables: Mapping[str, str]) -> Placement:
    return find_placement(variables)


@pytest.mark.parametrize(("variables", "launcher"), [(SRUN, "srun"), (MPIRUN, "mpirun"), (TORCHRUN, "torchrun")])
def test_local_ranks_in_a_job_of_many_would_be_many_runs(variables: Mapping[str, str], launcher: str) -> None:
    with pytest.raises(EnvironmentLacksError) as raised:
        connect(recipe("local"), placed(variables))
    message = str(raised.value)
    assert message.startswith(f"{launcher} started 4 processes, but communication.backend is local: ")
    assert "--set communication.backend=torch" in message


@needs_horovod
@pytest.mark.parametrize(
    ("variables", "launcher", "fix"),
    [(SRUN, "srun", "srun --mpi=pmix"), (TORCHRUN, "torchrun", "horovodrun --gloo -np N")],
)
def test_horovod_without_a_process_manager_would_be_many_runs(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], launcher: str, fix: str
) -> None:
    for name in ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentLacksError) as raised:
        connect(recipe("horovod"), placed(variables))
    message = str(raised.value)
    assert f"{launcher} says that this is rank 0 of 4, but for Horovod it is rank 0 of 1" in message
    assert "4 copies of one run" in message
    assert fix in message
    assert "communication.backend=torch" in message


@needs_horovod
def test_horovod_with_gloo_alone_cannot_be_started_by_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Horovod, "has_mpi", False)
    with pytest.raises(EnvironmentLacksError, match=r"built without MPI .*`horovodrun --gloo -np 4`.*make horovod"):
        connect(recipe("horovod"), placed(MPIRUN))


@needs_horovod
def test_horovod_without_gpus_cannot_serve_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Horovod, "takes_cuda_tensors", False)
    with pytest.raises(EnvironmentLacksError, match=r"without GPU support: .*HOROVOD_GPU_OPERATIONS=NCCL make horovod"):
        connect(recipe("horovod", "accelerator.device=cuda"), placed(MPIRUN))


ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"
GPUS, STAGES = ("accelerator.device=cuda",), ("programming.parallel_mode=mixed", "programming.stages=2")


@pytest.mark.parametrize(
    ("given", "more", "expected"),
    [(None, (*GPUS, *STAGES), "1"), ("1", (*GPUS, *STAGES), "1"), (None, GPUS, None), (None, STAGES, None)],
    ids=["stages", "stages, already set", "whole models", "stages on CPUs"],
)
def test_nccl_runs_what_stages_start_in_that_order(
    monkeypatch: pytest.MonkeyPatch, given: str | None, more: tuple[str, ...], expected: str | None
) -> None:
    monkeypatch.setenv(ORDER, given or "")
    if given is None:
        monkeypatch.delenv(ORDER)
    monkeypatch.setattr(connecting, "meet", lambda placement: (None, ("here",) * 4))
    monkeypatch.setattr(connecting, "open_torch", lambda *given: given)
    connect(recipe("torch", *more), placed(TORCHRUN))
    assert os.environ.get(ORDER) == expected


def test_another_order_is_refused_for_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDER, "0")
    line = f"programming.stages needs {ORDER}=1, but the environment has {ORDER}=0: unset it, or use programming"
    with pytest.raises(RecipeError, match=line):
        connect(recipe("torch", *GPUS, *STAGES), placed(TORCHRUN))


@needs_horovod
def test_the_mpirun_of_another_mpi_is_found_out() -> None:
    """Hydra (MPICH, Intel MPI) says rank 0 of 2; Open MPI does not know it, and starts as the only rank there is."""
    code = (
        "import os\n"
        "from hpcai500.comm.connect import connect\n"
        "from hpcai500.errors import EnvironmentLacksError\n"
        "from hpcai500.hosts import find_placement\n"
        "from hpcai500.recipe import load_recipe\n"
        "settings = ['communication.backend=horovod', 'hardware.accelerators_per_node=2']\n"
        "try:\n"
        "    connect(load_recipe('ic/smoke', settings), find_placement(os.environ))\n"
        "except EnvironmentLacksError as error:\n"
        "    print(error)\n"
    )
    hydra = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean_environment(), **root, **hydra},
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert "mpirun says that this is rank 0 of 2, but for Horovod it is rank 0 of 1" in ended.stdout, ended.stderr
    assert "start it with the mpirun of the MPI that Horovod was built with" in ended.stdout


@needs_horovod
def test_a_start_that_takes_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connecting, "QUIET_SECONDS", 0.05)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")

    def start(_: Horovod) -> tuple[int, int]:
        time.sleep(0.5)
        raise RunError("nobody came")

    monkeypatch.setattr(Horovod, "start", start)
    with pytest.raises(RunError, match="nobody came"):
        connect(recipe("horovod"), placed(MPIRUN))
    assert capsys.readouterr().err == "hpcai500: rank 0 waits for the other 3 ranks to start Horovod\n"


def test_missing_horovod_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_horovod(monkeypatch)
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(EnvironmentLacksError, match=r"^Horovod is not installed: run `make horovod`"):
        connect(recipe("horovod"), placed(MPIRUN))


def test_horovod_of_another_torch_says_how_to_build_it_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "horovod" / "torch"
    package.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "mpi_ops.py").write_text(
        "raise ImportError('mpi_lib_v2.so: undefined symbol: _ZN3c106detail')", encoding="utf-8"
    )
    forget_horovod(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentLacksError, match=r"with torch 2\..*undefined symbol.*another torch.*make horovod"):
        connect(recipe("horovod"), placed(MPIRUN))
    forget_horovod(monkeypatch)


def forget_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)


def test_several_hosts_without_a_meeting_place_is_told_with_the_line_to_add() -> None:
    spread = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(EnvironmentLacksError, match=r"several hosts.*mpirun -x MASTER_ADDR=HOST"):
        connect(recipe("torch"), placed(spread))


def at(port: int, rank: int, size: int, listen_fd: int | None = None) -> Placement:
    return Placement(rank, size, rank, size, "torchrun", f"127.0.0.1:{port}", listen_fd)


def meet_in_threads(placements: list[Placement]) -> list[object]:
    """What each got: hosts, or its exception. Stores are kept until all are done."""
    found: list[object] = [None] * len(placements)
    stores = []

    def come(index: int) -> None:
        try:
            store, hosts = meet(placements[index], patience=20)
        except (RunError, EnvironmentLacksError) as error:
            found[index] = error
        else:
            stores.append(store)
            found[index] = hosts

    in_threads(come, len(placements))
    return found


def in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_ranks_meet_and_know_each_others_hosts() -> None:
    port = free_port()
    assert meet_in_threads([at(port, rank, 3) for rank in range(3)]) == [(socket.gethostname(),) * 3] * 3


def test_a_rank_may_open_the_connections_that_a_job_of_its_size_has() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (514, before[1]))
        port = free_port()
        meet_in_threads([at(port, rank, 3) for rank in range(3)])
        # Those of Gloo, the store and the monitor, beside 512 other files.
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512 + 3 * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_rank_0_takes_the_socket_that_its_launcher_opened() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        placements = [at(port, 0, 2, listen_fd=listener.detach()), at(port, 1, 2)]
    assert meet_in_threads(placements) == [(socket.gethostname(),) * 2] * 2


def test_two_processes_that_claim_one_rank_are_told_so() -> None:
    port = free_port()
    found = meet_in_threads([at(port, rank, 2) for rank in (0, 1, 1)])
    errors = [str(it) for it in found if isinstance(it, RunError)]
    assert len(errors) == 1
    assert "two processes of this job claim to be rank 1 of 2" in errors[0]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentLacksError, match=rf"^rank 0 cannot listen on port {port}: .*MASTER_PORT"):
            meet(at(port, 0, 2))


def test_who_waits_in_vain_says_for_whom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.1)
    port = free_port()
    with pytest.raises(RunError, match=rf"^waited 1 s for rank 0 at 127.0.0.1:{port}: "):
        meet(replace(at(port, 1, 3), local_rank=0), patience=1)
    assert f"hpcai500: waiting for rank 0 at 127.0.0.1:{port}, for 0 minutes at most" in capsys.readouterr().err
    with pytest.raises(RunError, match=r"^waited 1 s for ranks 1, 2: "):
        meet(at(port, 0, 3), patience=1)
    assert capsys.readouterr().err.count("hpcai500: waiting for ranks 1, 2") == 1


# ----------------------------------------------------------------------------------------------------
# Ranks that would not do the same thing are refused, by rank, host and what differs.


ONE, OTHER = "cd34" * 16, "ab12" * 16


def refusals(folder: Path, hosts: tuple[str, ...], facts: list[Mapping[str, str | None]]) -> list[str]:
    """What each rank is told, or "" where it may go on."""
    told = [""] * len(hosts)

    def ask(rank: int) -> None:
        try:
            identity.require_same(communicator(folder, rank, hosts), facts[rank])
        except UsageError as error:
            told[rank] = str(error)

    in_threads(ask, len(hosts))
    return told


def test_ranks_that_are_alike_go_on(tmp_path: Path) -> None:
    facts = {**identity.code_facts(), identity.RECIPE: ONE, identity.DATA: OTHER, identity.CONTENT: None}
    assert refusals(tmp_path, ("n1", "n2"), [facts, dict(facts)]) == ["", ""]


def test_all_ranks_are_told_which_one_differs_in_what_and_what_to_do(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.DATA: ONE}, {identity.DATA: OTHER}, {identity.DATA: ONE}]
    told = refusals(tmp_path, ("n1", "n2", "n2"), facts)
    assert (
        told
        == [
            "rank 1 on host n2 has another data fingerprint (ab12ab12ab12... instead of cd34cd34cd34... on rank 0, "
            "host n1): give every rank the same files: stage them again on that host, or put --data on a shared "
            "file system"
        ]
        * 3
    )


def test_ranks_of_a_host_that_differ_alike_are_told_together(tmp_path: Path) -> None:
    new, old = {identity.TORCH: "2.13.0"}, {identity.TORCH: "2.12.1"}
    told = refusals(tmp_path, ("n1", "n2", "n2", "n3"), [new, old, old, new])
    assert told[3].startswith(
        "ranks 1, 2 on host n2 have another version of torch (2.12.1 instead of 2.13.0 on rank 0, host n1): start every"
    )


def test_many_differences_are_counted_and_not_listed(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.CODE: f"{rank}" * 64} for rank in range(8)]
    told = refusals(tmp_path, tuple(f"n{rank}" for rank in range(8)), facts)[0]
    assert "rank 4 on host n4" in told
    assert told.endswith("; and 3 more differences")


def test_what_a_rank_does_not_know_is_not_compared(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.CONTENT: value} for value in (None, ONE, ONE)]
    assert refusals(tmp_path / "same", ("n1", "n2", "n3"), facts) == [""] * 3
    told = refusals(tmp_path / "other", ("n1", "n2", "n3"), [*facts[:2], {identity.CONTENT: OTHER}])
    assert told[0].startswith(
        "rank 2 on host n3 has another data content (ab12ab12ab12... instead of cd34cd34cd34... on rank 1, host n2)"
    )


def test_the_facts_hold_the_hashes_of_this_software() -> None:
    facts = identity.code_facts()
    assert len(facts[identity.CODE] or "") == len(facts[identity.CORE] or "") == 64
    assert facts[identity.IMAGE] == "none"


def test_a_rank_in_another_image_is_told_to_take_the_same(tmp_path: Path) -> None:
    facts: list[Mapping[str, str | None]] = [{identity.IMAGE: ONE}, {identity.IMAGE: OTHER}, {identity.IMAGE: "none"}]
    told = refusals(tmp_path, ("n1", "n2", "n3"), facts)[0]
    assert told.startswith(
        "rank 1 on host n2 has another image (ab12ab12ab12... instead of cd34cd34cd34... on rank 0, host n1): start "
        "every rank from the same image file"
    )
    assert "rank 2 on host n3 has another image (none instead of cd34cd34cd34..." in told


# ----------------------------------------------------------------------------------------------------
# Gloo is told the interface by which the hosts of a job have met, and nobody's own choice is overruled.


HOSTS = ("n0", "n0", "n1")
# Rank 1 reached rank 0 on its own host by a loopback address, as Debian's /etc/hosts has it.
SEEN = ("", "127.0.1.1", "10.0.0.1")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that what is chosen goes again with the test.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    addresses = {
        "lo": ("127.0.0.1", "::1"),
        "eth0": ("192.168.0.7",),
        "ib0": ("10.0.0.1", "fd00:78::1"),
        "ib1": ("10.0.0.2",),
    }
    monkeypatch.setattr(network_module, "interface_addresses", lambda: addresses)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("rank", "own", "chosen"), [(0, "", "ib0"), (1, "127.0.0.1", "ib0"), (2, "10.0.0.2", "ib1")])
def test_every_host_takes_the_interface_that_leads_to_the_others(rank: int, own: str, chosen: str) -> None:
    prefer_route(own, SEEN, rank, HOSTS)
    assert os.environ["GLOO_SOCKET_IFNAME"] == chosen
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={chosen}"


@pytest.mark.usefixtures("network")
def test_a_users_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    prefer_route("10.0.0.2", SEEN, 2, HOSTS)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    prefer_route("10.0.0.2", SEEN, 2, HOSTS)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("own", "hosts"), [("127.0.0.1", ("n0", "n0", "n0")), ("10.9.9.9", HOSTS), ("127.0.0.1", HOSTS)]
)
def test_one_host_and_unknown_addresses_are_left_to_gloo(own: str, hosts: tuple[str, ...]) -> None:
    prefer_route(own, SEEN, 2, hosts)
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert "NCCL_SOCKET_IFNAME" not in os.environ


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("rank", "own"), [(0, ""), (2, "fd00:78::1")])
def test_hosts_with_ipv6_alone_take_its_interface(rank: int, own: str) -> None:
    prefer_route(own, ("", "::1", "fd00:78::1"), rank, HOSTS)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_this_machine_has_a_loopback_interface() -> None:
    assert interface_addresses()["lo"][0] == "127.0.0.1"


def test_addresses_of_ipv6_are_those_that_others_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe800000000000000000000000000001 02 40 20 80 eth9\n"
        "fd007800000000000000000000000001 02 40 00 80 eth9\n"
        "20010db8000000000000000000000007 02 40 00 88 eth9\n"
        "20010db8000000000000000000000008 02 40 00 c0 eth9\n"
    )
    monkeypatch.setattr(network_module, "_IPV6_ADDRESSES", table)
    assert interface_addresses()["eth9"] == ("fd00:7800::1",)
    monkeypatch.setattr(network_module, "_IPV6_ADDRESSES", tmp_path / "of a kernel without IPv6")
    assert "127.0.0.1" in interface_addresses()["lo"]


# --- a GPU for each rank, of which there is none here


def on_gpus(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, int], hosts: Sequence[str]) -> None:
    """Ranks with GPUs of these bus and device numbers."""

    def properties(device: torch.device) -> Any:
        bus, number = addresses[device.index]
        return SimpleNamespace(uuid=f"{device.index}", pci_domain_id=0, pci_bus_id=bus, pci_device_id=number)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    run_threads(lambda world: require_own_gpus(torch.device("cuda", world.rank), world), hosts)


def test_two_ranks_on_one_gpu_are_refused_before_nccl_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(monkeypatch, (7, 0), (8, 0), (7, 0), hosts=("n1", "n1", "n2"))
    # The parts of a GPU (MIG) have UUIDs of their own, but one address.
    with pytest.raises(EnvironmentLacksError, match=r"ranks 0, 2 on host n1 have one GPU \(0000:07:00\)") as refused:
        on_gpus(monkeypatch, (7, 0), (8, 0), (7, 0), hosts=("n1", "n1", "n1"))
    assert "show each rank a GPU of its own" in str(refused.value)


# --- waiting for all ranks before the first step


def test_the_first_collective_may_take_longer_than_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, announced = Ranks(find_placement({}), LocalCommunicator(), 60.0), []
    monkeypatch.setattr(ranks._monitor, "phase", lambda name, seconds: announced.append((name, seconds)))
    for phase in (STARTING, COMPUTING):
        ranks.phase(phase)
        with ranks._waiting():
            assert announced[-1] == (WAITING, 600.0 if phase == STARTING else 0.0)
    ranks.close()


def test_ranks_may_wait_for_an_index_for_hours() -> None:
    assert timedelta(hours=12) <= COLLECTIVE_TIMEOUT


DUPLICATE = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run with \
NCCL_DEBUG=WARN for details), NCCL version 2.29.7
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000
Exception raised from create at NCCLUtils.cpp:94 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DUPLICATE, ": Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000"),
        (DUPLICATE.replace("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000\n", ""), "2.29.7"),
        ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1", "closed by peer [10.0.0.2]:1"),
    ],
)
def test_the_reason_of_nccl_is_shown_with_its_kind(text: str, reason: str) -> None:
    said = reason_of(RuntimeError(text.replace("\\\n", "")))
    assert said.endswith(reason)
    assert "\n" not in said
