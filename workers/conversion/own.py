"""Our own checkpoints: `model.safetensors` of one rank, or a file of each rank and a manifest (`ranks.shards`)."""

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


def is_own(actor: Path) -> bool:
    """True if one of our trainer engines wrote a model's tensors there."""
    return (actor / _FILE).is_file() or is_sharded(actor, _KIND)


def own_tensors(actor: Path) -> list[WholeTensor]:
    """The model's tensors. Raises DataError, naming the file that is missing, damaged or of another checkpoint."""
    if is_sharded(actor, _KIND):
        return _of_ranks(actor)
    return tensors_of_files([actor / _FILE])


def tensors_of_files(paths: Iterable[Path]) -> list[WholeTensor]:
    """The tensors of safetensors files that each hold whole ones. Raises DataError for a damaged file."""
    found = []
    for path in paths:
        for name, place in _places(path).items():
            stored = _stored(path, place)
            found.append(whole(name, stored.shape, [TensorPart((0,) * len(stored.shape), stored)]))
    return found


def _of_ranks(actor: Path) -> list[WholeTensor]:
    sharded = ShardedTensors.open(actor, _KIND)
    # Their digests are in the manifest: a file with other bytes is told before any of it is written elsewhere.
    sharded.verify()
    paths = {file.rank: actor / file.name for file in sharded.manifest.files}
    places = {rank: _places(path) for rank, path in paths.items()}
    found = []
    for tensor in sharded.manifest.tensors:
        parts = []
        for part in tensor.parts:
            place = places[part.rank].get(tensor.name)
            if place is None or (place.layout.dtype, place.layout.shape) != (tensor.dtype, part.size):
                raise DataError(
                    f"it does not hold the part of {tensor.name!r} that the manifest names",
                    where=str(paths[part.rank]),
                    fix=FIX,
                )
            parts.append(TensorPart(part.offset, _stored(paths[part.rank], place)))
        found.append(whole(tensor.name, tensor.shape, parts))
    return found


def _places(path: Path) -> dict[str, TensorPlace]:
    try:
        return safetensors.places(path)
    except WorkError as error:
        raise DataError(error.what, where=str(path), fix=FIX) from error


def _stored(path: Path, place: TensorPlace) -> StoredTensor:
    shape = place.layout.shape
    return StoredTensor(path, place.layout.dtype, shape, c_strides(shape), place.begin_bytes)
