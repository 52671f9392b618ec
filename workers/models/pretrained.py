"""Models of Hugging Face's layout, read one at a time: transformers changes itself while it reads one.

It takes methods off its own classes and sets torch's default dtype, for the whole process, and puts back what it found.
Two threads that read at once put back each other's changes: from then on no model of the process ties its weights, and
an output layer that was to be the embeddings is left without numbers, or with any.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.models.dropout import without_dropout
from rftd.workers.models.model_type import check_model_type

# What it guards belongs to the process, and so does the lock.
_READING: Final = threading.Lock()


def read_model(folder: str | Path, **options: Any) -> Any:
    """A causal language model without dropout from a local folder of safetensors; `options` go to transformers.

    Raises DataError if it cannot hold such a model, or lacks weights of it; and whatever transformers raises.
    """
    check_model_type(Path(folder), trust_remote_code=bool(options.get("trust_remote_code")))
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    reader: Any = AutoModelForCausalLM
    with _READING:
        # Standard error is the worker's log. Within the lock: the switch is cleared before it is set.
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        trusted = {"trust_remote_code": True} if options.get("trust_remote_code") else {}
        config = without_dropout(AutoConfig.from_pretrained(folder, local_files_only=True, **trusted))
        model, found = reader.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
    # transformers only warns, and fills such tensors with random numbers.
    if missing := sorted(found["missing_keys"]):
        raise DataError(
            f"the folder lacks {missing[0]!r} and {len(missing) - 1} more tensors of the model",
            where=str(folder),
            fix="copy the folder again, every safetensors file of it",
        )
    _check_numbers(model, folder)
    return model


def _check_numbers(model: Any, folder: str | Path) -> None:
    """Returns if every weight is a number. Raises DataError, for else the first loss would be blamed on something."""
    for name, weights in model.named_parameters():
        if not bool(weights.isfinite().all()):
            wrong = int((~weights.isfinite()).sum())
            raise DataError(
                f"{name!r} of the model has {wrong} of {weights.numel()} values that are NaN or infinite",
                where=str(folder),
                fix="copy the folder again, or take an earlier checkpoint: training had lost this one",
            )


def outlined_model(folder: Path, *, dtype: Any) -> Any:
    """A model of the folder's configuration on torch's meta device: it computes shapes, has no numbers and no size.

    None of its weights are read, and no code of the folder is run. Raises DataError if the folder can hold no such
    model; and whatever transformers raises.
    """
    # A shape is not worth running a folder's code for.
    check_model_type(folder, trust_remote_code=False)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config._experts_implementation = "batched_mm"  # the shapes of the others depend on which experts are chosen
    maker: Any = AutoModelForCausalLM
    with _READING, torch.device("meta"):
        return maker.from_config(config, dtype=dtype, attn_implementation="eager").train(False)
