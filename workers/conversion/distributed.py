"""Folders of torch.distributed.checkpoint, read without torch: Megatron's `torch_dist` and FSDP2 users' folders.

    .metadata       a pickle: each tensor's shape and parts, and the position of each part
    __0_0.distcp    archives of torch.save, one of each part, one after the other

The pickle is never run (`pickled`). Layout: torch/distributed/checkpoint/{metadata,filesystem}.py of torch 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rftd.ops.errors import DataError
from rftd.workers.conversion.pickled import DAMAGE, MAX_PICKLE_BYTES, InertObject, Value, read_pickle
from rftd.workers.conversion.torch_file import FIX, StoredTensor, read_torch_file
from rftd.workers.conversion.whole_tensor import TensorPart, WholeTensor, whole
from rftd.workers.weights.tensor_bytes import ITEM_BYTES

METADATA: Final = ".metadata"
"""Name of the file that lists the tensors of a distributed checkpoint."""
_MODULE: Final = "torch.distributed.checkpoint.metadata"
_NAMES: Final = frozenset(
    {
        *(f"torch.{dtype}" for dtype in ITEM_BYTES),
        *(f"{_MODULE}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
        f"{_MODULE}.TensorStorageMetadata",
        f"{_MODULE}.ChunkStorageMetadata",
        f"{_MODULE}.BytesStorageMetadata",
        f"{_MODULE}._MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.distributed.checkpoint.filesystem._StoragePrefix",
        "torch.serialization._get_layout",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
    }
)
_OPTIMIZER_PREFIXES: Final = ("optim.", "optimizer.", "optimizer_", "lr_scheduler", "rng_state", "chained_")
"""Prefixes of entries that belong to the optimizer and are skipped."""


def distributed_folder(actor: Path) -> Path | None:
    """Returns the folder of torch.distributed.checkpoint with the model, or None."""
    candidates = (actor, actor / "dist_ckpt", actor / "model" / "dist_ckpt", actor / "model")
    return next((candidate for candidate in candidates if (candidate / METADATA).is_file()), None)


def distributed_tensors(folder: Path) -> list[WholeTensor]:
    """Returns the model's tensors, under their saved names. Raises DataError, naming the damaged file."""
    path = folder / METADATA
    try:
        if path.stat().st_size > MAX_PICKLE_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        metadata = read_pickle(path.read_bytes(), _NAMES, path)
        storage_infos = {_key(index): info for index, info in metadata.get("storage_data").items()}
        tensors = []
        for name, stored in metadata.get("state_dict_metadata").items():
            if stored.name == f"{_MODULE}.TensorStorageMetadata" and not name.startswith(_OPTIMIZER_PREFIXES):
                parts = [
                    TensorPart(chunk.get("offsets"), _stored(folder, name, chunk, storage_infos))
                    for chunk in stored.get("chunks")
                ]
                tensors.append(whole(name, stored.get("size"), parts))
    except (OSError, *DAMAGE) as error:
        raise DataError(f"no description of a checkpoint: {error}", where=str(path), fix=FIX) from error
    if not tensors:
        raise DataError("it names no tensors of a model", where=str(path), fix=FIX)
    return tensors


def _key(index: InertObject) -> tuple[str, tuple[int, ...] | None]:
    """Returns tensor name and offset of a part, its key among the storage infos."""
    offset = index.state.get("offset")
    return index.get("fqn"), None if offset is None else tuple(offset)


def _stored(
    folder: Path, name: str, chunk: InertObject, places: dict[tuple[str, tuple[int, ...] | None], Value]
) -> StoredTensor:
    """Returns a part's position in its file. Raises DataError for a missing, truncated or compressed one."""
    offset = tuple(chunk.get("offsets"))
    info = places[name, offset]
    file = info.get("relative_path")
    if not isinstance(file, str) or Path(file).name != file:
        raise ValueError(f"{str(file)[:80]!r} is not the name of a file in its folder")
    path = folder / file
    if info.state.get("transform_descriptors"):
        raise DataError(
            "its parts are compressed, which is not supported", where=str(path), fix="save them as they are"
        )
    begin = info.get("offset")
    size = info.get("length")
    if not path.is_file():
        raise DataError(f"the file with a part of {name!r} is missing", where=str(path), fix=FIX)
    if path.stat().st_size < begin + size:
        raise DataError(f"the file is cut off: {path.stat().st_size} of {begin + size} bytes", where=str(path), fix=FIX)
    stored = read_torch_file(path, begin=begin, size=size)
    if not isinstance(stored, StoredTensor) or stored.shape != tuple(chunk.get("sizes")):
        raise DataError(f"it does not hold the part of {name!r} at {offset}", where=str(path), fix=FIX)
    return stored
