"""A look at the files of a model folder: weights that are whole, a tokenizer, and the tokens that end a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError, WorkError
from rftd.workers.devices.device_memory import weight_files
from rftd.workers.weights import safetensors

_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_AGAIN: Final = "download or copy the folder again, every file of it"
_TOKENIZER_FILES: Final = ("*token*", "*vocab*", "*merges*", "*.model", "*.tiktoken", "*.py", "*bpe*", "tekken*")
"""The names of files from which tokenizers are made, of any kind that transformers knows."""


def check_weights(folder: Path, *, field: str | None = None) -> None:
    """Returns if all files of the weights are there and whole; only their headers are read. Raises DataError."""
    index = folder / _INDEX
    if not (folder / _WHOLE).is_file() and not index.is_file():
        others = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:3])
        raise DataError(
            f"there are no weights in {str(folder)!r}: neither {_WHOLE} nor {_INDEX}"
            + (f", only {others}" if others else ""),
            where=str(folder),
            field=field,
            fix=_AGAIN,
        )
    if not (folder / _WHOLE).is_file():
        _check_index(index, field)
    for file in weight_files(folder):
        try:
            safetensors.read(file)
        except WorkError as error:
            raise DataError(f"{error.what}{_pointer(file)}", where=str(file), field=field, fix=_AGAIN) from error


def _pointer(file: Path) -> str:
    """The end of a sentence about a file that only stands for another one, as a clone without Git LFS leaves them."""
    try:
        with file.open("rb") as opened:
            return ": it is a pointer of Git LFS (git lfs pull)" if opened.read(7) == b"version" else ""
    except OSError:
        return ""


def _check_index(index: Path, field: str | None) -> None:
    """Raises DataError if the index of the weights names no files. Those that it names are opened by the caller."""
    try:
        files = json.loads(index.read_bytes())["weight_map"].values()
        named = bool(files) and all(isinstance(name, str) for name in files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"{_INDEX} cannot be read: {type(error).__name__}: {error}"
        raise DataError(what, where=str(index), field=field, fix=_AGAIN) from error
    if not named:
        raise DataError(f"{_INDEX} names no files of weights", where=str(index), field=field, fix=_AGAIN)


def check_texts(folder: Path, *, field: str | None = None) -> None:
    """Returns if there are files of a tokenizer and readable generation settings. Raises DataError."""
    if not has_tokenizer(folder):
        raise DataError(
            f"model folder {str(folder)!r} holds no tokenizer",
            where=str(folder),
            field=field,
            fix="the folder needs tokenizer.json and tokenizer_config.json",
        )
    try:
        generation_ends(folder)
    except DataError as error:
        error.field = field
        raise


def has_tokenizer(folder: Path) -> bool:
    """False if the folder has no file from which transformers or code of the folder's own makes a tokenizer."""
    return any(file.exists() for pattern in _TOKENIZER_FILES for file in folder.glob(pattern))


def generation_ends(folder: Path) -> tuple[int, ...]:
    """The ids that end a text by generation_config.json; () without one. Raises DataError if it cannot be read."""
    settings = folder / "generation_config.json"
    if not settings.exists():
        return ()
    try:
        ends = json_decoder(_GenerationConfig).decode(settings.read_bytes()).eos_token_id
    except (OSError, *UNREADABLE) as error:
        what = f"generation_config.json is malformed: {error}"
        raise DataError(what, where=str(settings), fix="correct it, or remove it") from error
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


class _GenerationConfig(msgspec.Struct):
    """The only settings that matter to whoever draws tokens by the experiment's own."""

    eos_token_id: int | list[int] | None = None
