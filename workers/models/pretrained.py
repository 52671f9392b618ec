"""Models of Hugging Face's layout, read one at a time: transformers changes itself while it reads one.

It takes methods off its own classes and sets torch's default dtype, for the whole process, and puts back what it found.
Two threads that read at once put back each other's changes: from then on no model of the process ties its weights, and
an output layer that was to be the embeddings is left without numbers, or with any.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import DataError
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


_CONFIG: Final = "config.json"
_RANDOM: Final = re.compile(r"dropout|layerdrop|pdrop|drop_path|drop_rate")
"""Settings of transformers' configurations that are probabilities in training mode, and nothing else in any mode.

`router_jitter_noise` is none: phimoe's routing depends on it in evaluation mode, too.
"""


def without_dropout(config: Any) -> Any:
    """Sets every dropout probability of a transformers configuration and of those within it to 0; returns it."""
    _apply(config, dropout_off(config))
    return config


def dropout_off(config: Any) -> dict[str, Any]:
    """The settings that turn a configuration's dropout off: 0 for each, in a mapping for each configuration within."""
    from transformers import PretrainedConfig

    off: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            if inner := dropout_off(value):
                off[name] = inner
        elif _is_dropout(name) and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            off[name] = 0.0
    return off


def restore_dropout(folder: Path, base: Path) -> None:
    """Gives the config.json of a saved folder the dropout settings that the base folder's has, and no others."""
    try:
        original = json.loads((base / _CONFIG).read_bytes())
        saved = json.loads((folder / _CONFIG).read_bytes())
    except FileNotFoundError:
        return
    restored = _restored(saved, original)
    if restored != saved:
        # As transformers writes it: two spaces, sorted names, a newline at the end.
        (folder / _CONFIG).write_text(json.dumps(restored, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _restored(saved: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    restored = {name: value for name, value in saved.items() if not _is_dropout(name)}
    restored |= {name: value for name, value in original.items() if _is_dropout(name)}
    for name, inner in restored.items():
        if isinstance(inner, dict) and isinstance(original.get(name), dict):
            restored[name] = _restored(inner, original[name])
    return restored


def _is_dropout(name: str) -> bool:
    return _RANDOM.search(name) is not None


def _apply(config: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if isinstance(value, dict):
            _apply(getattr(config, name), value)
        else:
            setattr(config, name, value)
