"""Models of Hugging Face's layout, read one at a time, because transformers changes global state while reading.

It removes methods from its own classes and sets torch's default dtype, for the whole process, and restores the former
state. Two threads reading at once restore each other's changes: from then on no model of the process ties its weights,
and an output layer meant to be the embeddings is left without numbers, or with arbitrary ones.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.models.model_type import check_model_type

# The guarded state belongs to the process, and so does the lock.
_READING: Final = threading.Lock()


def read_model(folder: str | Path, **options: Any) -> Any:
    """Returns a causal language model without dropout from a local folder of safetensors; `options` go to transformers.

    Raises DataError if the folder cannot hold such a model, or lacks weights; and any error of transformers.
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
        model, loading_info = reader.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
    # transformers only warns, and fills missing tensors with random numbers.
    if missing := sorted(loading_info["missing_keys"]):
        raise DataError(
            f"the folder lacks {missing[0]!r} and {len(missing) - 1} more tensors of the model",
            where=str(folder),
            fix="copy the folder again, every safetensors file of it",
        )
    _check_numbers(model, folder)
    return model


def _check_numbers(model: Any, folder: str | Path) -> None:
    """Returns if every weight is finite. Raises DataError: otherwise the first loss would be blamed elsewhere."""
    for name, weights in model.named_parameters():
        if not bool(weights.isfinite().all()):
            wrong = int((~weights.isfinite()).sum())
            raise DataError(
                f"{name!r} of the model has {wrong} of {weights.numel()} values that are NaN or infinite",
                where=str(folder),
                fix="copy the folder again, or use an earlier checkpoint: training had already diverged",
            )


def outlined_model(folder: Path, *, dtype: Any) -> Any:
    """Returns a model of the folder's configuration on torch's meta device: shapes are computed, without numbers or
    memory.

    No weights are read, and no code of the folder is run. Raises DataError if the folder can hold no such model; and
    any error of transformers.
    """
    # A shape is not worth running a folder's code for.
    check_model_type(folder, trust_remote_code=False)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config._experts_implementation = "batched_mm"  # the shapes of the others depend on the chosen experts
    maker: Any = AutoModelForCausalLM
    with _READING, torch.device("meta"):
        return maker.from_config(config, dtype=dtype, attn_implementation="eager").train(False)


_CONFIG: Final = "config.json"
_RANDOM: Final = re.compile(r"dropout|layerdrop|pdrop|drop_path|drop_rate")
"""Settings of transformers' configurations that are probabilities in training mode, and nothing else in any mode.

`router_jitter_noise` is none: phimoe's routing depends on it in evaluation mode, too.
"""


def without_dropout(config: Any) -> Any:
    """Sets every dropout probability of a transformers configuration, at any depth, to 0; returns the configuration."""
    _apply(config, dropout_off(config))
    return config


def dropout_off(config: Any) -> dict[str, Any]:
    """Returns the settings that turn a configuration's dropout off: 0 for each, in a mapping for each inner
    configuration.
    """
    from transformers import PretrainedConfig

    off: dict[str, Any] = {}
    for name, setting in vars(config).items():
        if isinstance(setting, PretrainedConfig):
            if inner := dropout_off(setting):
                off[name] = inner
        elif _is_dropout(name) and isinstance(setting, int | float) and not isinstance(setting, bool) and setting > 0:
            off[name] = 0.0
    return off


def restore_dropout(folder: Path, base: Path) -> None:
    """Replaces the dropout settings in a saved folder's config.json by the base folder's, and no other settings."""
    try:
        original = json.loads((base / _CONFIG).read_bytes())
        saved = json.loads((folder / _CONFIG).read_bytes())
    except FileNotFoundError:
        return
    restored = _restored(saved, original)
    if restored != saved:
        # In the format of transformers: two spaces, sorted names, a newline at the end.
        (folder / _CONFIG).write_text(json.dumps(restored, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _restored(saved: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    """Returns the saved settings with the original's dropout settings, at every depth."""
    restored = {name: setting for name, setting in saved.items() if not _is_dropout(name)}
    restored |= {name: setting for name, setting in original.items() if _is_dropout(name)}
    for name, inner in restored.items():
        if isinstance(inner, dict) and isinstance(original.get(name), dict):
            restored[name] = _restored(inner, original[name])
    return restored


def _is_dropout(name: str) -> bool:
    return _RANDOM.search(name) is not None


def _apply(config: Any, settings: dict[str, Any]) -> None:
    for name, setting in settings.items():
        if isinstance(setting, dict):
            _apply(getattr(config, name), setting)
        else:
            setattr(config, name, setting)
