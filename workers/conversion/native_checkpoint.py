"""rftd's own checkpoints: `model.safetensors` of one rank, or a file of each rank and a manifest (`ranks.shards`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rftd.ops.errors import DataError, WorkError
from rftd.workers.conversion.torch_file import FIX, StoredTensor, c_strides
from rftd.workers.conversion.whole_tensor import TensorPart, WholeTensor, whole
from rftd.workers.weights import safetensors
from rftd.workers.weights.safetensors import TensorPlace
from rftd.workers.weights.shards import ShardedTensors, is_sharded

_FILE = "model.safetensors"
_KIND = "model"


def is_native(actor: Path) -> bool:
    """True if the folder contains a model's tensors written by a trainer engine of rftd."""
    return (actor / _FILE).is_file() or is_sharded(actor, _KIND)


def native_tensors(actor: Path) -> list[WholeTensor]:
    """Returns the model's tensors. Raises DataError, naming a file missing, damaged or of another checkpoint."""
    if is_sharded(actor, _KIND):
        return _of_ranks(actor)
    return tensors_of_files([actor / _FILE])


def tensors_of_files(paths: Iterable[Path]) -> list[WholeTensor]:
    """Returns the tensors of safetensors files, each tensor complete in one file. Raises DataError for a damaged
    file.
    """
    tensors = []
    for path in paths:
        for name, location in _places(path).items():
            stored = _stored(path, location)
            tensors.append(whole(name, stored.shape, [TensorPart((0,) * len(stored.shape), stored)]))
    return tensors


def _of_ranks(actor: Path) -> list[WholeTensor]:
    """Returns the tensors of a checkpoint with one file per rank, each file checked against the manifest."""
    sharded = ShardedTensors.open(actor, _KIND)
    # The manifest has the files' digests: a file with other bytes is detected before any of it is written elsewhere.
    sharded.verify()
    paths = {file.rank: actor / file.name for file in sharded.manifest.files}
    locations = {rank: _places(path) for rank, path in paths.items()}
    tensors = []
    for tensor in sharded.manifest.tensors:
        parts = []
        for tensor_part in tensor.parts:
            location = locations[tensor_part.rank].get(tensor.name)
            if location is None or (location.layout.dtype, location.layout.shape) != (tensor.dtype, tensor_part.size):
                raise DataError(
                    f"it does not hold the part of {tensor.name!r} that the manifest names",
                    where=str(paths[tensor_part.rank]),
                    fix=FIX,
                )
            parts.append(TensorPart(tensor_part.offset, _stored(paths[tensor_part.rank], location)))
        tensors.append(whole(tensor.name, tensor.shape, parts))
    return tensors


def _places(path: Path) -> dict[str, TensorPlace]:
    try:
        return safetensors.places(path)
    except WorkError as error:
        raise DataError(error.what, where=str(path), fix=FIX) from error


def _stored(path: Path, location: TensorPlace) -> StoredTensor:
    shape = location.layout.shape
    return StoredTensor(path, location.layout.dtype, shape, c_strides(shape), location.begin_bytes)
