"""The `checkpoint` channel: a weight version is a folder of model.safetensors and manifest.json, never half written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import ConflictError, WorkError
from rftd.workers.trainer.engine import Exported
from rftd.workers.weights.checksum import checksum_of, dtype_name, tensor_sums
from rftd.workers.weights.manifest import Manifest, TensorSum

TENSORS = "model.safetensors"
MANIFEST = "manifest.json"


def export(tensors: Mapping[str, torch.Tensor], folder: Path, *, version: int, generation: int) -> Exported:
    """Writes the weights into `folder`, durable when it returns, and visible only as a whole.

    Repeating it with equal weights changes nothing. Raises ConflictError if the folder holds other weights.
    """
    sums = tensor_sums(tensors)
    manifest = Manifest(version=version, generation=generation, checksum=checksum_of(sums), tensors=sums)
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    if folder.exists():
        _refuse_other(folder, encoded)
        sync_folder(folder.parent)  # whoever wrote it may have died before
    else:
        _write(tensors, encoded, folder)
    return Exported(
        path=str(folder),
        manifest=manifest_id(encoded),
        checksum=manifest.checksum,
        size_bytes=(folder / TENSORS).stat().st_size,
    )


def read(folder: Path, *, expect: str | None = None) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """The weights in `folder`, each tensor verified against the manifest, and that against its id if one is given.

    Tied tensors come back as one object.

    Raises WorkError if something is missing, damaged or does not belong there.
    """
    manifest = read_manifest(folder, expect=expect)
    try:
        stored = load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise WorkError(f"weights cannot be read: {error}", where=str(folder / TENSORS)) from error
    found = {line.name: line for line in tensor_sums(stored)}
    unknown = stored.keys() - {line.name for line in manifest.tensors}
    if unknown:
        raise WorkError(f"weights hold {sorted(unknown)[0]!r}, which the manifest does not name", where=str(folder))
    # A name that shares the memory of another is stored once; its sum says whose.
    by_content = {_content(line): stored[line.name] for line in found.values()}
    tensors = {}
    for line in manifest.tensors:
        if line.name in found and found[line.name] != line:
            raise WorkError(f"tensor {line.name!r} is damaged: expected xxh3 {line.xxh3}", where=str(folder / TENSORS))
        tensor = stored.get(line.name, by_content.get(_content(line)))
        if tensor is None:
            raise WorkError(f"tensor {line.name!r} is missing", where=str(folder / TENSORS))
        tensors[line.name] = tensor
    if checksum_of(manifest.tensors) != manifest.checksum:
        raise WorkError(f"manifest's checksum {manifest.checksum} is not that of its lines", where=str(folder))
    return manifest, tensors


def read_manifest(folder: Path, *, expect: str | None = None) -> Manifest:
    """What `folder` says that it holds. Raises WorkError if there is no such thing, or its id is not `expect`."""
    try:
        encoded = (folder / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkError(f"no manifest of weights: {error}", where=str(folder / MANIFEST)) from error
    if expect not in (None, manifest_id(encoded)):
        raise WorkError(f"manifest {manifest_id(encoded)} is not {expect}", where=str(folder / MANIFEST))
    return manifest


def manifest_id(encoded: bytes) -> str:
    """xxh3-128 (hex) of manifest.json's bytes: the name by which explorers echo what they loaded."""
    digest: str = xxhash.xxh3_128(encoded).hexdigest()
    return digest


def _content(line: TensorSum) -> tuple[str, tuple[int, ...], str]:
    return line.dtype, line.shape, line.xxh3


def _refuse_other(folder: Path, encoded: bytes) -> None:
    try:
        present = (folder / MANIFEST).read_bytes()
    except OSError:
        present = b""
    if present != encoded:
        raise ConflictError(
            "the folder already holds other weights", where=str(folder), fix="export into a folder of its own"
        )


def _write(tensors: Mapping[str, torch.Tensor], encoded: bytes, folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_durable_folder(folder.parent)
    partial.mkdir()
    save_file(_once(tensors), partial / TENSORS, metadata={"format": "pt"})
    (partial / MANIFEST).write_bytes(encoded)
    for path in (partial / TENSORS, partial / MANIFEST, partial):
        _sync(path)
    os.rename(partial, folder)
    sync_folder(folder.parent)


def _once(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor under one name: of tied names the last in order, which is what transformers expects to find."""
    kept: dict[tuple[int, tuple[int, ...], tuple[int, ...], str], tuple[str, torch.Tensor]] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        kept[(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype_name(tensor))] = (name, tensor)
    return {name: _alone(tensor) for name, tensor in kept.values()}


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, in a storage of its own: safetensors refuses two views of one storage."""
    moved = tensor.cpu().contiguous()
    return moved if moved.untyped_storage().nbytes() == moved.nbytes else moved.clone()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
