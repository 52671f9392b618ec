"""The files of a checkpoint's `actor` folder.

model.safetensors      weights and buffers; left out if huggingface/ holds the same numbers, or if an adapter is trained
config.json, ...       beside it, with the tokenizer: `actor` is a model as transformers reads it then
lora_adapter/          the adapter as peft reads it, with the tokenizer
huggingface/           the model as transformers reads it, in the base model's dtype, an adapter merged
optimizer.safetensors  the optimizer's tensors, by parameter
reference.safetensors  the frozen reference, if the objective needs one
NAME.shards.json       instead of NAME.safetensors: where its parts are, which several ranks wrote (`ranks.shards`)
trainer_state.json     the stage and step that they belong to, and adaptive coefficients
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.conversion.hf_folder import dtype_of, is_whole, weight_files, write_hf_folder
from rftd.workers.conversion.own import tensors_of_files
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.ranks.torch_shards import load_whole, save_shards
from rftd.workers.engines.torch.trainer.model import load_model, tensors_of
from rftd.workers.learning.stage.trainer_state import unreadable
from rftd.workers.weights.shards import is_sharded

OWN: Final = "float32"
"""The dtype of the tensors that a trainer resumes from, whichever the model's is."""


def exported_dtype(base: Path) -> str:
    """The dtype of `huggingface/`: the model's; float32 where its folder tells none, or has no safetensors."""
    return (dtype_of(base) if is_whole(base) else None) or OWN


def round_export(folder: Path, base: Path) -> None:
    """Rounds a written `huggingface/` to the base model's dtype. Raises OSError, DiskFullError.

    Tensors that the base keeps in float32 beside others, as a router's biases, stay so; and so does all of a model with
    a number that the dtype cannot hold.
    """
    dtype = exported_dtype(base)
    if dtype == OWN:
        return
    kept = {tensor.name for tensor in tensors_of_files(weight_files(base)) if tensor.layout.dtype == OWN}
    tensors = [
        tensor if tensor.name in kept else replace(tensor, dtype=dtype)
        for tensor in tensors_of_files(weight_files(folder))
    ]
    with suppress(DataError):  # the folder is as it was then: nothing that was trained is lost for a rounding
        write_hf_folder(folder, [folder], tensors, on_bytes=lambda done: None)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes one safetensors file; several ranks write one each, and a manifest. Raises OSError."""
    if this_rank()[1] > 1:
        save_shards(path.parent, path.stem, {name: value.detach() for name, value in tensors.items()})
    else:
        write_file(path, tensors)


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes one safetensors file on this rank. Raises OSError."""
    # Neither synced nor renamed here: the checkpoint's folder is filled under another name, and made durable as a
    # whole.
    found = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(found, path, metadata={"format": "pt"})  # without which transformers refuses it


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that `write_tensors` wrote, on the CPU. Raises DataError if the file is missing or damaged."""
    if is_sharded(path.parent, path.stem):
        return load_whole(path.parent, path.stem)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error
    return tensors


def has_tensors(path: Path) -> bool:
    """True if `write_tensors` wrote there."""
    return path.is_file() or is_sharded(path.parent, path.stem)


def read_weights(actor: Path, *, trust_remote_code: bool) -> dict[str, Tensor]:
    """The weights, from wherever this checkpoint holds them. Raises DataError."""
    if has_tensors(actor / "model.safetensors"):
        return read_tensors(actor / "model.safetensors")
    if not (actor / "huggingface").is_dir():
        raise DataError(
            "the checkpoint has no weights: there is neither model.safetensors, model.shards.json nor huggingface/",
            where=str(actor),
            fix="resume from an earlier checkpoint",
        )
    return tensors_of(load_model(actor / "huggingface", torch.device("cpu"), trust_remote_code=trust_remote_code))


def copy_weights(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copies the tensors over a model's own. Raises DataError, nothing copied, if names or shapes differ."""
    # All names and shapes first: a model that took half of the numbers would train on, and be wrong.
    wrong = sorted(own.keys() ^ tensors.keys()) or [
        name for name, value in own.items() if value.shape != tensors[name].shape
    ]
    if wrong:
        raise DataError(
            f"the weights do not fit the model, beginning with {wrong[0]!r}",
            where=str(where),
            fix="resume with the model that the checkpoint was made from",
        )
    for name, value in own.items():
        # In place: the optimizer, tied weights and the published names all hold these very tensors.
        value.copy_(tensors[name])
