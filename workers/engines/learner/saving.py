"""The files of a checkpoint's `actor` and `critic`, equal for all engines and any number of ranks.

model.safetensors      weights and buffers; missing if huggingface/ has equal numbers, or if an adapter is trained
config.json, ...       description and tokenizer for model.safetensors: `actor` is then a model for transformers
lora_adapter/          the adapter for peft, with the tokenizer
huggingface/           the model for transformers, in the base model's dtype, an adapter merged
optimizer.safetensors  the optimizer's tensors, by parameter
reference.safetensors  the frozen reference of an objective with one
NAME.shards.json       in place of NAME.safetensors after several ranks: the list of their parts (`ranks.torch_shards`)
trainer_state.json     stage and step of the files, and adaptive coefficients

Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.conversion.hf_folder import dtype_of, is_whole, weight_files, write_hf_folder
from rftd.workers.conversion.native_checkpoint import tensors_of_files
from rftd.workers.engines.learner.model import load_model, tensors_of, write_description
from rftd.workers.engines.learner.optimizer import StageOptimizer
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.ranks.spread import copy_shards, local, part_of, whole
from rftd.workers.engines.ranks.torch_shards import is_spread, load_shards, load_whole, save_shards
from rftd.workers.learning.stage.trainer_state import unreadable
from rftd.workers.weights.shards import ShardedTensors, is_sharded

RESUME_DTYPE: Final = "float32"
"""The dtype of weights saved for resuming the training, whatever the model's own dtype."""


def exported_dtype(base: Path) -> str:
    """Returns the dtype of `huggingface/`: the base model's; float32 if its folder names none, or has incomplete
    safetensors files.
    """
    return (dtype_of(base) if is_whole(base) else None) or RESUME_DTYPE


def round_export(folder: Path, base: Path) -> None:
    """Converts a written `huggingface/` to the base model's dtype. Raises OSError, DiskFullError.

    Tensors stored in float32 by the base, such as a router's biases, stay float32; so does the complete model if a
    number does not fit the dtype.
    """
    dtype = exported_dtype(base)
    if dtype == RESUME_DTYPE:
        return
    exact = {tensor.name for tensor in tensors_of_files(weight_files(base)) if tensor.layout.dtype == RESUME_DTYPE}
    tensors = [
        tensor if tensor.name in exact else replace(tensor, dtype=dtype)
        for tensor in tensors_of_files(weight_files(folder))
    ]
    with suppress(DataError):  # the folder is as it was then: nothing that was trained is lost for a rounding
        write_hf_folder(folder, [folder], tensors, on_bytes=lambda done: None)


def write(folder: Path, kind: str, tensors: Mapping[str, Tensor], *, writers: int = 0) -> None:
    """Writes `kind`.safetensors, or on several ranks one part each and a manifest; all ranks call it. Raises OSError.

    At most `writers` ranks write at a time; 0: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if this_rank()[1] > 1:
        save_shards(folder, kind, {name: value.detach() for name, value in tensors.items()}, at_once=writers)
    else:
        write_file(folder / f"{kind}.safetensors", tensors)


def write_weights(actor: Path, weights: Mapping[str, Tensor], base: Path, *, model: Any, writers: int) -> None:
    """Writes the weights, and the other files of a model folder for transformers; all ranks call it. Raises OSError,
    WorkError.

    Weights complete on every rank are one file, written by the first; weights spread over ranks are parts. `model`
    provides config and class.
    """
    rank, ranks = this_rank()
    if ranks > 1 and any(is_spread(weight) for weight in weights.values()):
        write(actor, "model", weights, writers=writers)
    elif rank == 0:
        write_file(actor / "model.safetensors", weights)
    if rank == 0:
        # FSDP trains classes of its own, named after those of transformers.
        architecture = type(model).__name__.removeprefix("FSDP")
        write_description(model.config, actor, base, architecture=architecture)


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors into one safetensors file, from this rank; spread tensors are gathered first. Raises OSError."""
    # Neither synced nor renamed here: the checkpoint's folder is filled under another name, and made durable as a
    # whole.
    on_host = {name: whole(value.detach()).cpu().contiguous() for name, value in tensors.items()}
    save_file(on_host, path, metadata={"format": "pt"})  # without which transformers refuses it


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file, or of its parts, complete and on the CPU. Raises DataError for missing
    or damaged files.
    """
    if is_sharded(path.parent, path.stem):
        return load_whole(path.parent, path.stem)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error
    return tensors


def has_tensors(path: Path) -> bool:
    """True if `write` wrote the file, as one file or as parts."""
    return path.is_file() or is_sharded(path.parent, path.stem)


@torch.no_grad()
def read(folder: Path, kind: str, own: Mapping[str, Tensor]) -> None:
    """Copies the file `kind` written by `write` over the tensors `own`; on spread ones, over this rank's parts.

    Raises DataError, with nothing copied, for missing or damaged files and for another model's.
    """
    if is_sharded(folder, kind):
        copy_shards(own, load_shards(folder, kind, own))
    else:
        copy_weights(own, read_tensors(folder / f"{kind}.safetensors"), folder)


def read_state(folder: Path, optimizer: StageOptimizer) -> None:
    """Loads the optimizer's state. Raises DataError for missing or damaged files and for other parameters."""
    if is_sharded(folder, "optimizer"):
        layouts = ShardedTensors.open(folder, "optimizer").layouts()
        read(folder, "optimizer", optimizer.begin_state({name: layout.shape for name, layout in layouts.items()}))
        return
    tensors = read_tensors(folder / "optimizer.safetensors")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    copy_weights(optimizer.begin_state(shapes), tensors, folder)


def read_policy(actor: Path, own: Mapping[str, Tensor], *, trust_remote_code: bool) -> None:
    """Copies weights over the policy's, from `model` or `huggingface/` of a checkpoint. Raises DataError."""
    if has_tensors(actor / "model.safetensors"):
        read(actor, "model", own)
        return
    if not (actor / "huggingface").is_dir():
        raise DataError(
            "the checkpoint has no weights: there is neither model.safetensors, model.shards.json nor huggingface/",
            where=str(actor),
            fix="resume from an earlier checkpoint",
        )
    model = load_model(actor / "huggingface", torch.device("cpu"), trust_remote_code=trust_remote_code)
    copy_weights(own, tensors_of(model), actor)


@torch.no_grad()
def copy_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: Path) -> None:
    """Copies complete tensors over a model's own; on spread ones, over this rank's parts.

    Raises DataError, with nothing copied, for other names or shapes.
    """
    # All names and shapes first: a model that took half of the numbers would train on, and be wrong.
    wrong = sorted(own.keys() ^ weights.keys()) or [
        name for name, value in own.items() if value.shape != weights[name].shape
    ]
    if wrong:
        raise DataError(
            f"the weights do not fit the model, beginning with {wrong[0]!r}",
            where=str(where),
            fix="resume with the model that the checkpoint was made from",
        )
    for name, value in own.items():
        # In place: the optimizer, tied weights and the published names all hold these very tensors.
        local(value).copy_(local(part_of(weights[name], value)))
