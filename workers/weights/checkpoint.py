"""The weight channel `checkpoint`: a folder with model.safetensors and manifest.json, complete when visible."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rftd.ops.errors import RolloutError
from rftd.storage.checkpoints import commit_folder
from rftd.workers.trainer.engine import Exported
from rftd.workers.weights.checksum import Tensors, bytes_of, checksum, dtype_name
from rftd.workers.weights.manifest import Manifest, TensorSum

WEIGHTS_FILE: Final = "model.safetensors"
MANIFEST_FILE: Final = "manifest.json"


def export(tensors: Tensors, folder: Path, *, version: int, generation: int) -> Exported:
    """Writes the tensors into `folder`, durable before it is visible; an equal export that is there already stays."""
    manifest = Manifest(
        version=version,
        generation=generation,
        checksum=checksum(tensors),
        tensors=tuple(
            TensorSum(
                name,
                dtype_name(tensors[name]),
                tuple(tensors[name].shape),
                xxhash.xxh3_128_hexdigest(bytes_of(tensors[name])),
            )
            for name in sorted(tensors)
        ),
    )
    encoded = msgspec.json.encode(manifest)

    def write(temporary: Path) -> None:
        # safetensors refuses tensors that share memory (tied embeddings), so each is written as its own.
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(own, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        (temporary / MANIFEST_FILE).write_bytes(encoded)

    if not _holds(folder, encoded):
        commit_folder(folder, write)
    return Exported(
        path=str(folder),
        manifest=xxhash.xxh3_128_hexdigest(encoded),
        checksum=manifest.checksum,
        size_bytes=(folder / WEIGHTS_FILE).stat().st_size,
    )


def read(folder: Path) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """What `export` wrote, verified against its manifest. Raises RolloutError if it is damaged or gone."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
        tensors: dict[str, torch.Tensor] = load_file(folder / WEIGHTS_FILE)
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise RolloutError(f"cannot read the weights: {error}", where=str(folder)) from error
    found = checksum(tensors)
    if found != manifest.checksum:
        raise RolloutError(
            f"weights have checksum {found}, their manifest says {manifest.checksum}",
            where=str(folder),
            fix="the files were damaged; the next published version replaces them",
        )
    return manifest, tensors


def _holds(folder: Path, encoded: bytes) -> bool:
    try:
        return (folder / MANIFEST_FILE).read_bytes() == encoded and (folder / WEIGHTS_FILE).is_file()
    except OSError:
        return False
