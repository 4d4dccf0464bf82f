"""Sharded models: a workload distributes its model over all ranks as DTensors (`fully_shard`, `parallelize_module`).

Their gradients are averaged by torch in the backward pass. This module checks that the model is distributed as the
recipe says, compares what several ranks hold, and writes checkpoints by torch.distributed.checkpoint: a folder in which
each rank has a file, which any number of ranks can read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, StringConstraints, TypeAdapter, ValidationError
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from hpcai500.comm.communicator import Communicator, reason_of
from hpcai500.engine.checkpoints import Checkpoint, CheckpointStore, file_sha256, remove
from hpcai500.engine.evidence import digest_of
from hpcai500.engine.ranks import Layout
from hpcai500.errors import CommunicationError, RecipeError, RecordError, RunError, UsageError
from hpcai500.files import sync_folder, write_atomically
from hpcai500.layers import Recipe
from hpcai500.record import cannot_write
from hpcai500.streams import escaped
from hpcai500.workloads.base import Place

# ----------------------------------------------------------------------------------------------------
# A model whose parameters are distributed over the ranks.


class ShardedModel:
    """A model that its workload has distributed over all ranks; on one rank, a whole model.

    Raises:
        RecipeError: it is not distributed, or not so that the gradients of all replicas are averaged.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, layout: Layout, place: Place) -> None:
        self._model, self._world = model, place.communicator
        if place.world_size == 1:
            model.to(place.device)
        else:
            _require_distributed(recipe, self._parameters(), layout, place)

    def is_finite(self) -> bool:
        """Whether all values that this rank holds are finite."""
        tensors = [tensor for _, tensor in self._local() if tensor.is_floating_point()]
        return bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())

    def digest(self) -> str | None:
        """The hash (16 hex digits) of the digests of all ranks' shards; None for one rank. All ranks call it.

        It depends on the number of ranks. Ranks that hold the same shards must hold the same values, bit for bit.

        Raises:
            RunError: they differ.
        """
        if self._world.size == 1:
            return None
        shards: dict[str, list[Tensor]] = {}
        for where, tensor in self._local():
            shards.setdefault(where, []).append(tensor)
        mine = {where: digest_of(tensors) for where, tensors in shards.items()}
        ranks: list[dict[str, int]] = self._world.gather_objects(mine)
        first: dict[str, tuple[int, int]] = {}
        for rank, digests in enumerate(ranks):
            for where, digest in digests.items():
                other, expected = first.setdefault(where, (rank, digest))
                if digest != expected:
                    raise RunError(
                        f"shards differ: rank {rank} on {self._world.hosts[rank]} does not have the weights of rank "
                        f"{other}, which holds the same shards: the workload distributes or initializes its model in "
                        "another way on each rank, does not average all gradients, or a host is faulty"
                    )
        return hashlib.sha256(json.dumps(ranks).encode()).hexdigest()[:16]

    def state(self, optimizer: optim.Optimizer) -> dict[str, Any]:
        """`model` and `optimizer` for a checkpoint; the optimizer's state is by names of parameters."""
        packed = optimizer.state_dict()
        names = self._names(optimizer)
        state = {names[number]: values for number, values in packed["state"].items()}
        for name, values in state.items():
            shape = self._model.get_parameter(name).shape
            for key, value in values.items():
                if isinstance(value, Mapping) or (isinstance(value, DTensor) and value.shape != shape):
                    raise RecipeError(
                        f"hyperparameters.optimizer: its {key} of {name} is a table, or a DTensor of another shape "
                        "than the parameter, which checkpoints of sharded models cannot hold; use another optimizer"
                    )
        groups = [{**one, "params": [names[number] for number in one["params"]]} for one in packed["param_groups"]]
        return {"model": self._model.state_dict(), "optimizer": {"state": state, "groups": groups}}

    def restore(self, state: Mapping[str, Any], optimizer: optim.Optimizer, read: Read) -> None:
        """Restore what `state` returned, perhaps on another number of ranks; `read` is `ShardedCheckpointStore.reader`.

        Raises:
            RecordError: the checkpoint is of another model.
        """
        parameters = dict(self._parameters())
        whole = self._model.state_dict()
        targets: dict[tuple[str, ...], Tensor] = {
            ("model", name): value for name, value in whole.items() if isinstance(value, Tensor)
        }
        restored: dict[str, dict[str, Any]] = {
            name: dict(values) for name, values in state["optimizer"]["state"].items()
        }
        for path, shape, dtype in state[TENSORS]:
            if path[0] != "optimizer":
                continue
            _, _, name, key = path
            like = parameters.get(name)
            if like is not None and tuple(shape) == tuple(like.shape):
                value = torch.zeros_like(like, dtype=_dtype(dtype), requires_grad=False)
            else:
                value = torch.zeros(shape, dtype=_dtype(dtype))
            targets[tuple(path)] = restored.setdefault(name, {})[key] = value
        read(targets)
        self._model.load_state_dict({**state["model"], **whole})
        names = self._names(optimizer)
        saved = {name: group for group in state["optimizer"]["groups"] for name in group["params"]}
        if set(names) != set(saved):
            raise RecordError("the checkpoint's optimizer has other parameters than the recipe's model")
        groups = [
            {**saved[names[group["params"][0]]], "params": group["params"]} if group["params"] else group
            for group in optimizer.state_dict()["param_groups"]
        ]
        numbered = {number: restored[name] for number, name in enumerate(names) if name in restored}
        optimizer.load_state_dict({"state": numbered, "param_groups": groups})

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        # After a forward pass, parameters may be whole until this call.
        self._model.state_dict()
        return list(self._model.named_parameters())

    def _names(self, optimizer: optim.Optimizer) -> list[str]:
        """Names of the parameters by their number in the optimizer's state."""
        names = {id(parameter): name for name, parameter in self._parameters()}
        return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]

    def _local(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that this rank holds; tensors with the same text on two ranks are the same part of the model."""
        tensors: list[Tensor] = [parameter for _, parameter in self._parameters()]
        for tensor in (*tensors, *self._model.buffers()):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            yield _where(tensor), local.detach().contiguous()


Read = Callable[[Mapping[tuple[str, ...], Tensor]], None]
"""Fills tensors, by their path in the state, with the values of a checkpoint."""


def _require_distributed(
    recipe: Recipe, parameters: Iterable[tuple[str, nn.Parameter]], layout: Layout, place: Place
) -> None:
    parameters = list(parameters)
    if not any(isinstance(parameter, DTensor) for _, parameter in parameters):
        raise RecipeError(
            f"programming.parallel_mode: sharded, but the workload of {recipe.benchmark} does not distribute its "
            f"model on {place.world_size} ranks (no parameter is a DTensor); use data"
        )
    expected = set(range(layout.replicas))
    for name, parameter in parameters:
        if parameter.device.type != place.device.type:
            raise RecipeError(
                f"programming.parallel_mode: the workload of {recipe.benchmark} has {name} on "
                f"{parameter.device.type}; a workload puts a sharded model on its device ({place.device.type}) itself"
            )
        ranks = parameter.device_mesh.mesh.flatten().tolist() if isinstance(parameter, DTensor) else [place.rank]
        if parameter.requires_grad and {layout.replica(rank) for rank in ranks} != expected:
            raise RecipeError(
                f"programming.parallel_mode: the workload of {recipe.benchmark} does not distribute {name} over all "
                f"{layout.replicas} groups of ranks with different samples, so that its gradient would not be the mean "
                "of theirs; its authors can apply fully_shard over that dimension of the mesh"
            )


def _where(tensor: Tensor) -> str:
    """Which part of the model this rank holds of `tensor`: the same text on two ranks is the same part."""
    if not isinstance(tensor, DTensor):
        return "whole"
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "the workload made the mesh over all ranks"
    ranks = mesh.mesh.flatten()
    # Two meshes over one dimension of a larger one differ in their first rank only.
    shape = hashlib.sha256(json.dumps([tuple(mesh.mesh.shape), (ranks - ranks[0]).tolist()]).encode()).hexdigest()
    parts = [
        str(placement) if placement.is_replicate() else f"{placement} {at}"
        for placement, at in zip(tensor.placements, coordinate, strict=True)
    ]
    return f"{mesh.mesh_dim_names} {shape} {', '.join(parts)}"


# ----------------------------------------------------------------------------------------------------
# Checkpoints: folders that all ranks write and read.


# Shapes and types of the tensors in the state, by path: [path, shape, type].
TENSORS = "tensors"
_STATE, _METADATA = "state.pt", "metadata.json"
# Of the names of folders that are being written.
_PARTIAL = ".saving-"


class ShardedCheckpointStore(CheckpointStore):
    """Checkpoints of a sharded model: folders, to which each rank writes the shards that it holds.

    The first rank reserves the space of the whole folder, and frees it just before it is written. All ranks make the
    store, save and read together; the other methods do nothing on other ranks than the first. The folder is written
    under another name and renamed when it is complete. Its hash is over the names, sizes and hashes of its files.

    Raises:
        UsageError: a rank does not see the folder of the record.
    """

    suffix = ".dcp"

    def __init__(self, record: Path, first_size_bytes: int, world: Communicator, own_bytes: int = 0) -> None:
        super().__init__(record, first_size_bytes, own_bytes)
        self._world, self._leads = world, world.rank == 0
        _require_shared(self._folder, world)

    def reserve(self) -> None:
        if self._leads:
            super().reserve()

    def prune(self) -> None:
        if self._leads:
            super().prune()

    def release(self) -> None:
        super().release()
        for partial in self._folder.glob(f"{_PARTIAL}*"):
            # Other ranks may still be writing to it.
            shutil.rmtree(partial, ignore_errors=True)

    def save(self, state: dict[str, Any], epoch: int, step: int, *, at_target: bool = False) -> Checkpoint:
        """As `CheckpointStore.save`; tensors may be anywhere in the dicts of `state`. Called by all ranks together.

        Raises:
            RunError: the disk is full, or another rank is lost.
        """
        tensors: dict[tuple[str, ...], Tensor] = {}
        plain = _without_tensors(state, (), tensors)
        plain[TENSORS] = [[list(path), list(value.shape), _name(value.dtype)] for path, value in tensors.items()]
        path = self._path(epoch, step)
        with self._errors("saving a checkpoint"):
            # A new name: a client of NFS may take a name for the folder that had it before.
            partial = self._folder / self._world.broadcast_object(f"{_PARTIAL}{uuid4().hex}")
            if self._leads:
                self.release()
                partial.mkdir()
                _write(partial / _STATE, plain)
            self._world.barrier()
            save(
                {_key(place): value for place, value in tensors.items()},
                storage_writer=_Writer(partial),
                no_dist=self._world.size == 1,
            )
            files = self._completed(partial, path)
        saved = Checkpoint(epoch, step, path.name, _hash_of_rows(files), sum(size for _, size, _ in files))
        self._note(saved, at_target=at_target)
        return saved

    def _completed(self, partial: Path, path: Path) -> list[tuple[str, int, str]]:
        """Rename the folder once all of its files are on the disk; returns their names, sizes and hashes."""
        rank = self._world.rank
        own = [*partial.glob(f"__{rank}_*")]
        if self._leads:
            own += [partial / _STATE, partial / _METADATA]
        rows: list[list[tuple[str, int, str]]] = self._world.gather_objects([_row(file) for file in own])
        if self._leads:
            sync_folder(partial)
            # A folder cannot replace one that is not empty.
            before = self._folder / ".before"
            remove(before)
            if path.exists():
                path.replace(before)
            partial.replace(path)
            sync_folder(self._folder)
            remove(before)
        self._world.barrier()
        return [row for each in rows for row in each]

    def reader(self, checkpoint: Checkpoint) -> Read:
        """What fills tensors from `checkpoint`, whose hash was checked; all ranks call it with the same paths."""
        path = self._folder / checkpoint.file

        def read(tensors: Mapping[tuple[str, ...], Tensor]) -> None:
            with self._errors("reading a checkpoint"):
                load(
                    {_key(place): value for place, value in tensors.items()},
                    storage_reader=_Reader(path),
                    no_dist=self._world.size == 1,
                )

        return read

    def _hash_of(self, path: Path) -> str | None:
        return _hash_of_rows([_row(file) for file in path.iterdir()]) if path.is_dir() else None

    def _read(self, path: Path) -> dict[str, Any]:
        """The state without its tensors, which `reader` reads."""
        return super()._read(path / _STATE)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                # On one rank torch warns that it is alone.
                warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
                yield
        except OSError as error:
            raise cannot_write(self._record, error) from error
        except CheckpointException as error:
            rank, cause = next((rank, failure[0]) for rank, failure in sorted(error.failures.items()))
            if isinstance(cause, OSError):
                raise cannot_write(self._record, cause) from error
            raise RecordError(f"{self._record}: {doing} failed on rank {rank}: {reason_of(cause)}") from error
        except RuntimeError as error:
            raise CommunicationError(
                f"{doing} over {self._world.library} failed: {reason_of(error)}; another rank has ended or cannot be "
                "reached"
            ) from error


class _Part(BaseModel):
    """A shard of a tensor: where it lies in the tensor, and where its values lie in the checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    offsets: list[NonNegativeInt]
    shape: list[NonNegativeInt]
    # Named in the folder, so that no other file is read.
    file: Annotated[str, StringConstraints(pattern=r"^__[0-9]+_[0-9]+\.distcp$")]
    start: NonNegativeInt
    bytes: NonNegativeInt


class _Whole(BaseModel):
    """A tensor whose shards lie in a checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[NonNegativeInt]
    parts: list[_Part]


_TENSORS_BY_KEY = TypeAdapter(dict[str, _Whole])


class _Writer(FileSystemWriter):
    """Writes the metadata as JSON. torch pickles it, which ties a checkpoint to versions of Python and torch.

    torch's metadata also names the folder and holds a random number; ours depends on the content only.
    """

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for each in results for result in each}
        tensors: dict[str, _Whole] = {}
        for key, whole in metadata.state_dict_metadata.items():
            assert isinstance(whole, TensorStorageMetadata), "only tensors are saved"
            parts = []
            for chunk in whole.chunks:
                place = places[MetadataIndex(key, chunk.offsets)]
                parts.append(
                    _Part(
                        offsets=list(chunk.offsets),
                        shape=list(chunk.sizes),
                        file=place.relative_path,
                        start=place.offset,
                        bytes=place.length,
                    )
                )
            tensors[key] = _Whole(dtype=_name(whole.properties.dtype), shape=list(whole.size), parts=parts)
        write_atomically(Path(self.path, _METADATA), _TENSORS_BY_KEY.dump_json(tensors))


class _Reader(FileSystemReader):
    """Reads a folder that `_Writer` wrote."""

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        path = Path(self.path, _METADATA)
        try:
            tensors = _TENSORS_BY_KEY.validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RecordError(f"{path}: not the metadata of a checkpoint: {where}: {first['msg']}") from error
        described: dict[str, Any] = {}
        places = {}
        for key, whole in tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.shape)) for part in whole.parts]
            properties = TensorProperties(dtype=_dtype(whole.dtype))
            described[key] = TensorStorageMetadata(properties, torch.Size(whole.shape), chunks)
            for part in whole.parts:
                places[MetadataIndex(key, part.offsets)] = _StorageInfo(part.file, part.start, part.bytes)
        return Metadata(described, storage_data=places, storage_meta=StorageMeta(load_id=self.load_id))


def _require_shared(folder: Path, world: Communicator) -> None:
    mark = folder / world.broadcast_object(f".seen-{uuid4().hex}")
    if world.rank == 0:
        mark.touch()
    world.barrier()
    missing = [rank for rank, sees in enumerate(world.gather_objects(mark.exists())) if not sees]
    if world.rank == 0:
        mark.unlink()
    if missing:
        raise UsageError(
            f"{folder}: rank {missing[0]} on {world.hosts[missing[0]]} does not see this folder, and all ranks write "
            "the checkpoints of a sharded model: give --out a folder on a file system that all nodes share"
        )


def _without_tensors(value: Any, path: tuple[str, ...], tensors: dict[tuple[str, ...], Tensor]) -> Any:
    """`value` without the tensors in its dicts, which are added to `tensors` by path."""
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        if isinstance(item, Tensor):
            tensors[*path, key] = item.detach()
        else:
            kept[key] = _without_tensors(item, (*path, key), tensors)
    return kept


def _write(path: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with path.open("wb") as stream:
        stream.write(buffer.getbuffer())
        stream.flush()
        os.fsync(stream.fileno())


def _key(path: Iterable[str]) -> str:
    return "/".join(path)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RecordError(f"a checkpoint has tensors of type {escaped(name)}, which this torch does not have")
    return dtype


def _row(path: Path) -> tuple[str, int, str]:
    """Name, size and hash of a file."""
    return path.name, path.stat().st_size, file_sha256(path)


def _hash_of_rows(rows: Iterable[tuple[str, int, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()
