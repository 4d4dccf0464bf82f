"""Ranks on one machine that pass small things through files: all of a communicator that a monitor needs."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any, cast

from hpcai500.comm.communicator import Communicator


class Mailbox:
    """The objects' half of a `Communicator`, in a folder that all ranks see."""

    backend = "torch"
    library = "files"

    def __init__(self, folder: Path, rank: int, hosts: tuple[str, ...]) -> None:
        self.rank, self.hosts, self.size = rank, hosts, len(hosts)
        self.world_ranks = tuple(range(self.size))
        folder.mkdir(exist_ok=True)
        self._folder, self._turn = folder, 0

    def gather_objects(self, thing: Any) -> list[Any]:
        self._turn += 1
        mine = self._folder / f"{self._turn}.{self.rank}"
        part = self._folder / f"{mine.name}.part"
        part.write_bytes(pickle.dumps(thing))
        part.rename(mine)
        return [self._read(self._folder / f"{self._turn}.{rank}") for rank in range(self.size)]

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        return self.gather_objects(thing)[root]

    def barrier(self) -> None:
        self.gather_objects(None)

    @staticmethod
    def _read(path: Path) -> Any:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.005)
        return pickle.loads(path.read_bytes())


def communicator(folder: Path, rank: int, hosts: tuple[str, ...]) -> Communicator:
    return cast(Communicator, Mailbox(folder, rank, hosts))
