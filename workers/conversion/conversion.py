"""Checkpoints below a folder, each converted into `actor/huggingface`, a folder that transformers loads.

A checkpoint's files decide the form; nothing tells it in advance. Only the policy is converted: critics and optimizers
stay in place. Numbers get the model's own type, or a named one; in rftd's own checkpoints without another type, numbers
keep the saved type.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError, NotFoundError, RftdError, WorkError
from rftd.workers.conversion.distributed import distributed_folder, distributed_tensors
from rftd.workers.conversion.fsdp import fsdp_tensors, is_fsdp
from rftd.workers.conversion.hf_folder import CONFIG, dtype_of, is_whole, weight_files, write_hf_folder
from rftd.workers.conversion.megatron import DecoderConfig, is_megatron, renamed
from rftd.workers.conversion.native_checkpoint import is_native, native_tensors, tensors_of_files
from rftd.workers.conversion.torch_file import FIX
from rftd.workers.conversion.whole_tensor import WholeTensor
from rftd.workers.weights.tensor_bytes import size_bytes

_STEP: Final = re.compile(r"global_step_([0-9]{1,18})")
"""Name of a checkpoint's folder, with the step."""
_HF: Final = "huggingface"
"""Folder of the transformers model below `actor`."""
_ACTOR: Final = "actor"
"""Folder of the policy in a checkpoint."""
_LAYERS: Final = re.compile(r"model\.layers\.([0-9]{1,6})\..+")
"""Name of a layer's tensor, with the index of the layer."""

Form = Literal["rftd", "fsdp", "megatron", "torch.distributed"]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint's folder and step, found on disk; step None for a folder not named after one."""

    folder: Path
    step: int | None

    @property
    def actor(self) -> Path:
        """Returns the folder of the policy: some programs save it in the checkpoint's folder itself."""
        actor = self.folder / _ACTOR
        return actor if actor.is_dir() else self.folder


@dataclass(frozen=True, slots=True)
class Conversion:
    """The outcome of converting one checkpoint: the written folder with its size, or an error."""

    checkpoint: FoundCheckpoint
    target: Path
    form: Form | None = None
    """The program format of the checkpoint; None if it was converted before, or has no known form."""
    tensors: int = 0
    size_bytes: int = 0
    error: RftdError | None = None


Progress = Callable[[FoundCheckpoint, Form, int, int], None]
"""Callback with a checkpoint, its form, the bytes written, and the total number of bytes."""


def found_checkpoints(folder: Path, steps: Sequence[int] = ()) -> list[FoundCheckpoint]:
    """Finds the checkpoints at, below or around a folder, sorted by folder and step; with `steps`, only checkpoints of
    those steps.

    Raises NotFoundError for a missing folder, for a folder without any checkpoint, or without a checkpoint of a step.
    """
    if not folder.is_dir():
        raise NotFoundError("not a folder of checkpoints", where=str(folder), field="--checkpoint-dir")
    enclosing = next((ancestor for ancestor in (folder, *folder.parents) if _STEP.fullmatch(ancestor.name)), None)
    checkpoints = (
        [_checkpoint(enclosing)]
        if enclosing is not None
        else [_checkpoint(step_folder) for step_folder in _below(folder)]
    )
    if not checkpoints and (_form(folder) or _form(folder / _ACTOR)):
        checkpoints = [FoundCheckpoint(folder.parent if folder.name == _ACTOR else folder, None)]
    present_steps = sorted({checkpoint.step for checkpoint in checkpoints if checkpoint.step is not None})
    if not checkpoints:
        raise NotFoundError(
            "no checkpoint: neither global_step_N below it, nor a trainer's files in it",
            where=str(folder),
            field="--checkpoint-dir",
            fix="give the folder of a run, checkpoint_root_dir/project/name",
        )
    if missing := sorted(set(steps) - set(present_steps)):
        raise NotFoundError(
            f"no checkpoint of step {missing[0]}; there are {', '.join(map(str, present_steps)) or 'none with a step'}",
            where=str(folder),
            field="--step",
        )
    return [checkpoint for checkpoint in checkpoints if not steps or checkpoint.step in steps]


def convert(
    checkpoint: FoundCheckpoint, base: Path | None, progress: Progress, *, dtype: str | None = None
) -> Conversion:
    """Converts one checkpoint, unless a converted folder is there already; an error is part of the outcome.

    An existing folder stays, because a checkpoint may have weights nowhere else: numbers of another `dtype` go into a
    second folder beside the first.
    """
    actor = checkpoint.actor
    target = actor / _HF
    present = next((folder for folder in (target, actor / "model" / _HF) if is_whole(folder)), None)
    if present is not None:
        if dtype in (None, dtype_of(present)):
            return Conversion(checkpoint, present)
        target = actor / f"{_HF}-{dtype}"
        if is_whole(target):
            return Conversion(checkpoint, target)
    form: Form | None = None
    try:
        form = _form(actor)
        if form is None and present is None:
            raise _unknown_form(actor)
        described_by = [present] if present is not None and form is None else _described_by(actor, base)
        config = _config(described_by[-1] / CONFIG)
        form, tensors = _tensors(actor, form, config, present)
        _check(tensors, config, actor)
        dtype = dtype or _dtype_of_model(actor, form, base, described_by)
        tensors = [replace(tensor, dtype=dtype) for tensor in tensors]
        total = sum(size_bytes(*tensor.written) for tensor in tensors)
        known_form: Form = form
        progress(checkpoint, known_form, 0, total)

        def report(done: int) -> None:
            progress(checkpoint, known_form, done, total)

        write_hf_folder(target, described_by, tensors, on_bytes=report)
    except RftdError as error:
        return Conversion(checkpoint, target, form, error=error)
    except OSError as error:
        failed = WorkError(
            f"{error.strerror or error}",
            where=str(error.filename or actor),
            fix="correct it, then convert again",
        )
        return Conversion(checkpoint, target, form, error=failed)
    return Conversion(checkpoint, target, form, len(tensors), total)


def _below(folder: Path) -> Iterator[Path]:
    """Yields folders of checkpoints, the nearest first, without searching inside one or following links."""
    for root, names, _ in os.walk(folder):
        steps = [name for name in names if _STEP.fullmatch(name)]
        yield from (Path(root) / name for name in sorted(steps, key=lambda name: int(name.rpartition("_")[2])))
        # Hidden folders are half-written, or belong to another program.
        names[:] = sorted(name for name in names if name not in steps and not name.startswith("."))


def _checkpoint(folder: Path) -> FoundCheckpoint:
    return FoundCheckpoint(folder, int(folder.name.rpartition("_")[2]))


def _form(actor: Path) -> Form | None:
    """Returns the form of a checkpoint by the files in the policy's folder; None if unknown."""
    if not actor.is_dir():
        return None
    if is_native(actor):
        return "rftd"
    if is_fsdp(actor):
        return "fsdp"
    return "torch.distributed" if distributed_folder(actor) is not None else None


def _dtype_of_model(actor: Path, form: Form, base: Path | None, described_by: Sequence[Path]) -> str | None:
    """Returns the type of the training's first model; None if unknown."""
    if base is not None:
        return dtype_of(base)
    if form != "rftd":
        return dtype_of(described_by[-1])
    # Beside our own tensors the configuration has their type; a folder of another step has the model's.
    return next((dtype_of(step / _ACTOR / _HF) for step in _steps_beside(actor) if is_whole(step / _ACTOR / _HF)), None)


def _steps_beside(actor: Path) -> list[Path]:
    """Returns the checkpoints of the same run, the newest first."""
    run = actor.parent.parent
    steps = sorted(_below(run), key=lambda step: int(step.name.rpartition("_")[2]), reverse=True)
    return [step for step in steps if step.parent == run]


def _tensors(
    actor: Path, form: Form | None, config: DecoderConfig, present: Path | None
) -> tuple[Form, list[WholeTensor]]:
    """Returns the form, refined for Megatron, and the policy's tensors under transformers' names."""
    if form is None:
        assert present is not None
        form = "rftd"
        tensors = tensors_of_files(weight_files(present))
    elif form == "rftd":
        tensors = native_tensors(actor)
    elif form == "fsdp":
        tensors = fsdp_tensors(actor)
    else:
        folder = distributed_folder(actor)
        assert folder is not None
        tensors = _unwrapped(distributed_tensors(folder))
        if is_megatron(tensors):
            form = "megatron"
            tensors = renamed(tensors, config)
    if config.tie_word_embeddings and any(tensor.name == "model.embed_tokens.weight" for tensor in tensors):
        tensors = [tensor for tensor in tensors if tensor.name != "lm_head.weight"]
    return form, tensors


def _unwrapped(tensors: Sequence[WholeTensor]) -> list[WholeTensor]:
    """Returns the tensors of a model saved as one entry, `model`, among others, with the prefix removed."""
    names = [tensor.name.removeprefix("model.") for tensor in tensors]
    wrapped = all(tensor.name.startswith("model.") for tensor in tensors)
    if not wrapped or not any(name.startswith(("model.", "decoder.", "embedding.")) for name in names):
        return list(tensors)
    return [
        WholeTensor(name, tensor.layout, tensor.parts, tensor.boxes)
        for name, tensor in zip(names, tensors, strict=True)
    ]


def _described_by(actor: Path, base: Path | None) -> list[Path]:
    """Returns folders with configuration and tokenizer; the last one's configuration counts. Raises DataError without
    one.
    """
    described = [
        candidate for candidate in (actor, actor / "model" / _HF, actor / _HF) if (candidate / CONFIG).is_file()
    ]
    if base is not None:
        if not (base / CONFIG).is_file():
            raise DataError("the folder holds no config.json", where=str(base), field="--base-model-dir")
        return [base, *described]
    if described:
        return described
    # Another checkpoint of the run: the last one has a folder that transformers loads.
    for step in _steps_beside(actor):
        if (step / _ACTOR / _HF / CONFIG).is_file():
            return [step / _ACTOR / _HF]
    raise DataError(
        "neither the checkpoint nor another one of the run has a config.json",
        where=str(actor),
        field="--base-model-dir",
        fix="give the folder of the model that the training began with: --base-model-dir FOLDER",
    )


def _config(path: Path) -> DecoderConfig:
    """Returns the shapes in a config.json. Raises DataError for an unreadable one."""
    try:
        return json_decoder(DecoderConfig).decode(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise DataError(f"no configuration of a model: {error}", where=str(path), fix=FIX) from error


def _check(tensors: Sequence[WholeTensor], config: DecoderConfig, actor: Path) -> None:
    """Raises DataError for tensors of an adapter, or of a model other than the configuration's."""
    if len({tensor.name for tensor in tensors}) != len(tensors) or not tensors:
        raise DataError("no tensors of a model, or two of one name", where=str(actor), fix=FIX)
    for tensor in tensors:
        fault = ""
        layer = _LAYERS.fullmatch(tensor.name)
        limit = config.num_hidden_layers
        if ".lora_A." in tensor.name or ".lora_B." in tensor.name:
            fault = "belongs to an adapter that is not merged into the model"
        elif layer is not None and limit is not None and int(layer[1]) >= limit:
            fault = f"is of a layer that config.json, with {limit}, has not"
        elif tensor.name == "model.embed_tokens.weight":
            config_shape = (config.vocab_size, config.hidden_size)
            if None not in config_shape and tensor.layout.shape != config_shape:
                fault = f"has the shape {tensor.layout.shape} and not {config_shape}, as config.json has it"
        if fault:
            raise DataError(
                f"{tensor.name!r} {fault}",
                where=str(tensor.files()[0]),
                fix="give the folder of the model that was trained as --base-model-dir, without an adapter",
            )
    layers = {int(match[1]) for tensor in tensors if (match := _LAYERS.fullmatch(tensor.name))}
    missing = next((layer for layer in range(config.num_hidden_layers or 0) if layers and layer not in layers), None)
    if missing is not None:
        raise DataError(
            f"layer {missing} of {config.num_hidden_layers} is missing: another model's than config.json, or not whole",
            where=str(tensors[0].files()[0]),
            fix=FIX,
        )


def _unknown_form(actor: Path) -> DataError:
    """Returns the error for a folder without known weights, with a remedy for adapters and services."""
    if (actor / "lora_adapter").is_dir():
        problem = "it holds only an adapter, which peft loads beside the base model"
        return DataError(
            problem, where=str(actor), fix="trainer.save_hf_checkpoint: always merges it into each checkpoint"
        )
    if (actor / "service.json").is_file():
        problem = "its weights are at the service that trained them"
        return DataError(problem, where=str(actor), fix="tinker checkpoint download")
    return DataError(
        "it holds no known weights: neither rftd's, nor FSDP's, nor torch.distributed.checkpoint's",
        where=str(actor),
        fix=FIX,
    )
