"""The files of a checkpoint's `actor` folder.

    model.safetensors      weights and buffers; left out if huggingface/ holds them, or if an adapter is trained
    lora_adapter/          the adapter as peft reads it
    huggingface/           the model as transformers reads it, an adapter merged
    optimizer.safetensors  the optimizer's tensors, by parameter
    reference.safetensors  the frozen reference, if the objective needs one
    trainer_state.json     the stage and step that they belong to, and adaptive coefficients

The schedule is a function of the step and nothing draws random numbers, so there is no state of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError
from rftd.workers.training.engines.torch.model import load_model, tensors_of

FORMAT: Final = 1


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of trainer_state.json."""

    format: int = FORMAT
    stage: str
    """The name of the stage; empty before the first."""
    step: int
    """The weight version."""
    stage_step: int
    optimizer: str
    kl_coef: float | None = None
    """The coefficient of the next step's KL loss, where it is adaptive and has changed."""
    kl_penalty_coef: float | None = None
    """The coefficient of the next step's KL penalty, likewise."""
    nonfinite_in_a_row: int = 0
    """Steps up to this one that were skipped because they were not finite."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes one safetensors file. Raises OSError."""
    # Neither synced nor renamed here: the checkpoint's folder is filled under another name, and made durable as a
    # whole.
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that `write_tensors` wrote, on the CPU. Raises DataError if the file is missing or damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    return tensors


def write_state(actor: Path, state: TrainerState) -> None:
    """Writes trainer_state.json."""
    (actor / "trainer_state.json").write_bytes(msgspec.json.format(msgspec.json.encode(state)))


def read_state(actor: Path) -> TrainerState:
    """The state in trainer_state.json. Raises DataError if it is missing, damaged or of another format."""
    path = actor / "trainer_state.json"
    try:
        state = json_decoder(TrainerState).decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    if state.format != FORMAT:
        raise DataError(
            f"the checkpoint has format {state.format}, this program reads {FORMAT}",
            where=str(path),
            fix="use the program that wrote it",
        )
    return state


def read_weights(actor: Path, *, trust_remote_code: bool) -> dict[str, Tensor]:
    """The weights, from wherever this checkpoint holds them. Raises DataError."""
    if (actor / "model.safetensors").is_file():
        return read_tensors(actor / "model.safetensors")
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


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"the checkpoint cannot be read: {type(error).__name__}: {error}",
        where=str(path),
        fix="resume from an earlier checkpoint",
    )
