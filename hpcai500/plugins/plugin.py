"""What a plug-in is: one object that an entry point of the group `hpcai500.workloads` names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcai500.layers import Recipe


# What averages the softmax outputs of an ensemble's members, as in Image Classification: the vote `mean`.
MEAN_VOTER = "hpcai500.workloads.voting:classes_voter"


@dataclass(frozen=True)
class Plugin:
    """A benchmark that another package brings; its name is that of the entry point.

    Functions are named as `module:function`, in the package of the entry point or in hpcai500, and imported in the job
    only: the command line runs where there is no torch. So the module of this object must not import torch.

    Attributes:
        recipe: what its recipes hold: a subclass of `hpcai500.layers.Recipe` with the benchmark's own layer 7
            (`workload`), and where it needs one, layer 9 (`problem`). Its class variables `votes` and `strata` say what
            an ensemble of it may choose.
        recipes: folder of its recipes: `reference.toml`; if there is one, `smoke.toml`, which runs where nothing else
            is asked for; `ensemble.toml`; any others.
        workload: builds the workload (`hpcai500.workloads.base.WorkloadFactory`): `(recipe, data, place) -> Workload`.
        voter: `(recipe, samples) -> hpcai500.workloads.voting.base.Voter`: makes one prediction of those of an
            ensemble's members; without it, softmax outputs are averaged.
        model: `(recipe, classes) -> (model, example inputs)`, without data: for `hpcai500 flops` and `scale --predict`.
        make_data: `(folder) -> None`: writes the synthetic set into a folder that is not there or holds it already, for
            `hpcai500 data make` and for runs without --data. It must give the same files each time.
        check_data: `(folder) -> mapping`: reads all of a data set and tells facts of it, for `hpcai500 data check`;
            raises `hpcai500.errors.DataError` for what is broken.
    """

    recipe: type[Recipe]
    recipes: Path
    workload: str
    voter: str = MEAN_VOTER
    model: str | None = None
    make_data: str | None = None
    check_data: str | None = None

    def functions(self) -> dict[str, str]:
        """Its functions that are named: field -> `module:function`."""
        named = {name: getattr(self, name) for name in ("workload", "voter", "model", "make_data", "check_data")}
        return {name: text for name, text in named.items() if text is not None}
