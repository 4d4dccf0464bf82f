"""The tokens that each launcher gets, whole: a change here is a change of how every site's jobs start."""

from __future__ import annotations

import shlex

import pytest

from hpcai500.errors import UsageError
from hpcai500.launch.layout import Layout, horovodrun, mpirun, srun, torchrun

HERE = Layout(nodes=1, per_node=2)
SITE = Layout(
    nodes=2,
    per_node=4,
    hosts=("n1", "n2"),
    cores_per_rank=16,
    environment={"MASTER_ADDR": "n1", "NCCL_DEBUG": "WARN"},
    interface="ib0",
)
UNBOUND = Layout(nodes=2, per_node=4, hosts=("n1", "n2"), environment={"MASTER_ADDR": "n1"}, interface="ib0")
COMMAND = ["hpcai500", "ic", "--data", "/data/a b"]


def golden(tokens: list[str], *lines: str) -> None:
    assert shlex.join(tokens) == " ".join(lines)


def test_mpirun() -> None:
    golden(
        mpirun(HERE, COMMAND),
        "mpirun -np 2 --map-by ppr:2:node --bind-to none --mca odls_base_sigkill_timeout 5",
        "hpcai500 ic --data '/data/a b'",
    )
    golden(
        mpirun(SITE, COMMAND, as_root=True, oversubscribe=True),
        "mpirun --allow-run-as-root --oversubscribe -np 8 --map-by ppr:4:node:PE=16 --bind-to core -H n1:4,n2:4",
        "--mca odls_base_sigkill_timeout 5 --mca btl_tcp_if_include ib0 --mca oob_tcp_if_include ib0",
        "-x MASTER_ADDR=n1 -x NCCL_DEBUG=WARN",
        "hpcai500 ic --data '/data/a b'",
    )


def test_srun() -> None:
    golden(
        srun(Layout(nodes=2, per_node=4), COMMAND),
        "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 --export=ALL",
        "hpcai500 ic --data '/data/a b'",
    )
    golden(
        srun(SITE, COMMAND, pmi="pmix"),
        "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --mpi=pmix",
        "--kill-on-bad-exit=1 --nodelist=n1,n2 --export=ALL,MASTER_ADDR=n1,NCCL_DEBUG=WARN",
        "hpcai500 ic --data '/data/a b'",
    )


def test_horovodrun() -> None:
    golden(horovodrun(HERE, ["x"]), "horovodrun --gloo -np 2 -H localhost:2 x")
    golden(
        horovodrun(UNBOUND, ["x"]),
        "horovodrun --gloo -np 8 -H n1:4,n2:4 --network-interface ib0 env MASTER_ADDR=n1 x",
    )


def test_torchrun() -> None:
    golden(torchrun(HERE, ["x"]), "torchrun --standalone --nproc-per-node=2 --no-python x")
    golden(
        torchrun(UNBOUND, ["x"], job="17"),
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 --rdzv-id=17 --nproc-per-node=4 --no-python",
        "env MASTER_ADDR=n1 x",
    )


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
