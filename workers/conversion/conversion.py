"""Checkpoints below a folder, each made into `actor/huggingface`, a folder that transformers loads.

What a checkpoint holds decides how it is read; nothing says so in advance. The policy alone is converted: critics and
optimizers stay where they are. Numbers become those of the model's own type, or of one that is named; of a checkpoint
of ours that tells no other type, they stay as they were saved.
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
from rftd.workers.conversion.own import is_own, own_tensors, tensors_of_files
from rftd.workers.conversion.torch_file import FIX
from rftd.workers.conversion.whole_tensor import WholeTensor
from rftd.workers.weights.tensor_bytes import size_bytes

_STEP: Final = re.compile(r"global_step_([0-9]{1,18})")
_HF: Final = "huggingface"
_ACTOR: Final = "actor"
_LAYERS: Final = re.compile(r"model\.layers\.([0-9]{1,6})\..+")

Form = Literal["rftd", "fsdp", "megatron", "torch.distributed"]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint's folder and its step; None for a folder that is not named after one."""

    folder: Path
    step: int | None

    @property
    def actor(self) -> Path:
        """The folder of its policy: some programs put it there without a name of its own."""
        actor = self.folder / _ACTOR
        return actor if actor.is_dir() else self.folder


@dataclass(frozen=True, slots=True)
class Conversion:
    """The outcome for one checkpoint."""

    checkpoint: FoundCheckpoint
    target: Path
    form: Form | None = None
    """None if it was converted already, or nothing that is known lies there."""
    tensors: int = 0
    size_bytes: int = 0
    error: RftdError | None = None


Progress = Callable[[FoundCheckpoint, Form, int, int], None]
"""Called with a checkpoint, its form, the bytes written, and the bytes of all."""


def found_checkpoints(folder: Path, steps: Sequence[int] = ()) -> list[FoundCheckpoint]:
    """The checkpoints at, below or around a folder, by folder and step; of `steps`, if some are given.

    Raises NotFoundError if there is no such folder, no checkpoint, or none of a step.
    """
    if not folder.is_dir():
        raise NotFoundError("no folder of checkpoints", where=str(folder), field="--checkpoint-dir")
    around = next((each for each in (folder, *folder.parents) if _STEP.fullmatch(each.name)), None)
    found = [_checkpoint(around)] if around is not None else [_checkpoint(each) for each in _below(folder)]
    if not found and (_form(folder) or _form(folder / _ACTOR)):
        found = [FoundCheckpoint(folder.parent if folder.name == _ACTOR else folder, None)]
    there = sorted({each.step for each in found if each.step is not None})
    if not found:
        raise NotFoundError(
            "no checkpoint: neither global_step_N below it, nor a trainer's files in it",
            where=str(folder),
            field="--checkpoint-dir",
            fix="give the folder of a run, checkpoint_root_dir/project/name",
        )
    if missing := sorted(set(steps) - set(there)):
        raise NotFoundError(
            f"no checkpoint of step {missing[0]}; there are {', '.join(map(str, there)) or 'none with a step'}",
            where=str(folder),
            field="--step",
        )
    return [each for each in found if not steps or each.step in steps]


def convert(
    checkpoint: FoundCheckpoint, base: Path | None, progress: Progress, *, dtype: str | None = None
) -> Conversion:
    """Converts one checkpoint, unless that is done; an error is part of the outcome.

    A folder that is there already stays, for a checkpoint may hold its weights nowhere else: numbers of another
    `dtype` go into one beside it.
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
            raise _nothing(actor)
        described_by = [present] if present is not None and form is None else _described_by(actor, base)
        config = _config(described_by[-1] / CONFIG)
        form, tensors = _tensors(actor, form, config, present)
        _check(tensors, config, actor)
        dtype = dtype or _dtype_of_model(actor, form, base, described_by)
        tensors = [replace(tensor, dtype=dtype) for tensor in tensors]
        total = sum(size_bytes(*tensor.written) for tensor in tensors)
        known: Form = form
        progress(checkpoint, known, 0, total)

        def written(done: int) -> None:
            progress(checkpoint, known, done, total)

        write_hf_folder(target, described_by, tensors, on_bytes=written)
    except RftdError as error:
        return Conversion(checkpoint, target, form, error=error)
    except OSError as error:
        failed = WorkError(f"{error.strerror or error}", where=str(error.filename or actor), fix="mend it and go on")
        return Conversion(checkpoint, target, form, error=failed)
    return Conversion(checkpoint, target, form, len(tensors), total)


def _below(folder: Path) -> Iterator[Path]:
    """Folders of checkpoints, the nearest first; nothing is looked for within one, nor where a link leads."""
    for root, names, _ in os.walk(folder):
        steps = [name for name in names if _STEP.fullmatch(name)]
        yield from (Path(root) / name for name in sorted(steps, key=lambda name: int(name.rpartition("_")[2])))
        # Hidden ones are half-written, or of somebody else.
        names[:] = sorted(name for name in names if name not in steps and not name.startswith("."))


def _checkpoint(folder: Path) -> FoundCheckpoint:
    return FoundCheckpoint(folder, int(folder.name.rpartition("_")[2]))


def _form(actor: Path) -> Form | None:
    if not actor.is_dir():
        return None
    if is_own(actor):
        return "rftd"
    if is_fsdp(actor):
        return "fsdp"
    return "torch.distributed" if distributed_folder(actor) is not None else None


def _dtype_of_model(actor: Path, form: Form, base: Path | None, described_by: Sequence[Path]) -> str | None:
    """The type of the model that the training began with; None where nothing tells it."""
    if base is not None:
        return dtype_of(base)
    if form != "rftd":
        return dtype_of(described_by[-1])
    # Beside our own tensors the configuration tells their type; a folder of another step tells the model's.
    return next((dtype_of(step / _ACTOR / _HF) for step in _steps_beside(actor) if is_whole(step / _ACTOR / _HF)), None)


def _steps_beside(actor: Path) -> list[Path]:
    """The checkpoints of the same run, the newest first."""
    run = actor.parent.parent
    steps = sorted(_below(run), key=lambda step: int(step.name.rpartition("_")[2]), reverse=True)
    return [step for step in steps if step.parent == run]


def _tensors(
    actor: Path, form: Form | None, config: DecoderConfig, present: Path | None
) -> tuple[Form, list[WholeTensor]]:
    if form is None:
        assert present is not None
        form = "rftd"
        tensors = tensors_of_files(weight_files(present))
    elif form == "rftd":
        tensors = own_tensors(actor)
    elif form == "fsdp":
        tensors = fsdp_tensors(actor)
    else:
        folder = distributed_folder(actor)
        assert folder is not None
        tensors = _unwrapped(distributed_tensors(folder))
        if is_megatron(tensors):
            form = "megatron"
            tensors = renamed(tensors, config)
    if config.tie_word_embeddings and any(each.name == "model.embed_tokens.weight" for each in tensors):
        tensors = [each for each in tensors if each.name != "lm_head.weight"]
    return form, tensors


def _unwrapped(tensors: Sequence[WholeTensor]) -> list[WholeTensor]:
    """Tensors of a model that was saved as one entry, `model`, among others, under their own names."""
    names = [each.name.removeprefix("model.") for each in tensors]
    wrapped = all(each.name.startswith("model.") for each in tensors)
    if not wrapped or not any(name.startswith(("model.", "decoder.", "embedding.")) for name in names):
        return list(tensors)
    return [WholeTensor(name, each.layout, each.parts, each.boxes) for name, each in zip(names, tensors, strict=True)]


def _described_by(actor: Path, base: Path | None) -> list[Path]:
    """Folders with configuration and tokenizer; the last one's is the configuration. Raises DataError without one."""
    own = [place for place in (actor, actor / "model" / _HF, actor / _HF) if (place / CONFIG).is_file()]
    if base is not None:
        if not (base / CONFIG).is_file():
            raise DataError("the folder holds no config.json", where=str(base), field="--base-model-dir")
        return [base, *own]
    if own:
        return own
    # Another checkpoint of the run: the last one has a folder that transformers loads.
    for step in _steps_beside(actor):
        if (step / _ACTOR / _HF / CONFIG).is_file():
            return [step / _ACTOR / _HF]
    raise DataError(
        "the checkpoint has no config.json, and no other one of the run",
        where=str(actor),
        field="--base-model-dir",
        fix="give the folder of the model that the training began with: --base-model-dir FOLDER",
    )


def _config(path: Path) -> DecoderConfig:
    try:
        return json_decoder(DecoderConfig).decode(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise DataError(f"no configuration of a model: {error}", where=str(path), fix=FIX) from error


def _check(tensors: Sequence[WholeTensor], config: DecoderConfig, actor: Path) -> None:
    """Raises DataError for tensors of an adapter, or of another model than the configuration's."""
    if len({each.name for each in tensors}) != len(tensors) or not tensors:
        raise DataError("no tensors of a model, or two of one name", where=str(actor), fix=FIX)
    for each in tensors:
        wrong = ""
        layer = _LAYERS.fullmatch(each.name)
        limit = config.num_hidden_layers
        if ".lora_A." in each.name or ".lora_B." in each.name:
            wrong = "belongs to an adapter that is not merged into the model"
        elif layer is not None and limit is not None and int(layer[1]) >= limit:
            wrong = f"is of a layer that config.json, with {limit}, has not"
        elif each.name == "model.embed_tokens.weight":
            wanted = (config.vocab_size, config.hidden_size)
            if None not in wanted and each.layout.shape != wanted:
                wrong = f"has the shape {each.layout.shape} and not {wanted}, as config.json has it"
        if wrong:
            raise DataError(
                f"{each.name!r} {wrong}",
                where=str(each.files()[0]),
                fix="give the folder of the model that was trained as --base-model-dir, without an adapter",
            )
    found = {int(match[1]) for each in tensors if (match := _LAYERS.fullmatch(each.name))}
    missing = next((layer for layer in range(config.num_hidden_layers or 0) if found and layer not in found), None)
    if missing is not None:
        raise DataError(
            f"layer {missing} of {config.num_hidden_layers} is missing: another model's than config.json, or not whole",
            where=str(tensors[0].files()[0]),
            fix=FIX,
        )


def _nothing(actor: Path) -> DataError:
    if (actor / "lora_adapter").is_dir():
        what = "it holds an adapter alone, which peft loads beside the base model as it is"
        return DataError(
            what, where=str(actor), fix="trainer.save_hf_checkpoint: always merges it into each checkpoint"
        )
    if (actor / "service.json").is_file():
        what = "its weights are at the service that trained them"
        return DataError(what, where=str(actor), fix="tinker checkpoint download")
    return DataError(
        "it holds no weights that are known here: neither ours, nor FSDP's, nor of torch.distributed.checkpoint",
        where=str(actor),
        fix=FIX,
    )
