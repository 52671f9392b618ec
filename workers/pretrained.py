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

# What it guards belongs to the process, and so does the lock.
_READING: Final = threading.Lock()


def read_model(folder: str | Path, **options: Any) -> Any:
    """A causal language model from a local folder of safetensors; `options` go to transformers.

    Raises DataError if the folder lacks weights of the model, and whatever transformers raises.
    """
    from transformers import AutoModelForCausalLM

    reader: Any = AutoModelForCausalLM
    with _READING:
        model, found = reader.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
    if missing := sorted(found["missing_keys"]):
        raise DataError(
            f"the folder lacks {missing[0]!r} and {len(missing) - 1} more tensors of the model",
            where=str(folder),
            fix="copy the folder again, every safetensors file of it",
        )
    return model
