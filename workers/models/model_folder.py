"""Checks of a model folder's files: rights, whole weights, a tokenizer, a chat template, ends of texts, all without
loading.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError, WorkError
from rftd.workers.devices.device_memory import number_in, settings_of, weight_files
from rftd.workers.weights import safetensors

_WEIGHTS_FILE: Final = "model.safetensors"
_WEIGHTS_INDEX_FILE: Final = "model.safetensors.index.json"
_DOWNLOAD_AGAIN_FIX: Final = "download or copy the folder again, every file of it"
_TOKENIZER_FILES: Final = ("*token*", "*vocab*", "*merges*", "*.model", "*.tiktoken", "*.py", "*bpe*", "tekken*")
"""Name patterns of files for tokenizers, of any kind known to transformers."""
_OPENED: Final = (*_TOKENIZER_FILES, "*.json", "*.jinja", "*.safetensors", "additional_chat_templates/*.jinja")
"""Name patterns of files opened by a worker."""
_EMBEDDINGS: Final = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight$")
"""Tensors with one vector per token."""


def has_config(folder: Path) -> bool:
    """True if the folder has a config.json visible to this process's user."""
    try:
        return (folder / "config.json").is_file()
    except OSError:  # a folder without rights
        return False


def check_rights(folder: Path, *, field: str | None = None) -> None:
    """Raises DataError if this process's user may not read a file that workers open; a missing folder is accepted.

    A worker runs as the same user, unless started by another one.
    """
    closed = _closed(folder)
    if closed is None:
        return
    status = closed.stat()
    mode = stat.filemode(status.st_mode)
    raise DataError(
        f"{str(closed)!r} cannot be read by this process (uid {os.geteuid()}): its mode is {mode}, its owner uid "
        f"{status.st_uid}, its group gid {status.st_gid}",
        where=str(folder),
        field=field,
        fix=f"give this user the right to read it (as its owner: chmod -R a+rX {closed}), or copy the folder",
    )


def check_writable(folder: Path, *, field: str | None = None) -> None:
    """Raises DataError if this process's user may not write into the folder; a missing folder is accepted."""
    if not folder.is_dir() or (_may(folder, os.W_OK) and _may(folder, os.X_OK)):
        return
    status = folder.stat()
    raise DataError(
        f"{str(folder)!r} cannot be written by this process (uid {os.geteuid()}): its mode is "
        f"{stat.filemode(status.st_mode)}, its owner uid {status.st_uid}, its group gid {status.st_gid}",
        where=str(folder),
        field=field,
        fix="start the worker as the folder's owner, or give both users a group (RFTD_FOLDERS, docs/operations.md)",
    )


def _closed(folder: Path) -> Path | None:
    """Returns the first folder on the way, or file within, unreadable for this process's user; None without one."""
    for above in (*reversed(folder.absolute().parents), folder.absolute()):
        if not _may(above, os.X_OK):
            return above if _may(above, os.F_OK) else None
    if not _may(folder, os.R_OK):
        return folder
    paths = sorted({path for pattern in _OPENED for path in folder.glob(pattern)})
    return next((path for path in paths if path.is_file() and not _may(path, os.R_OK)), None)


def _may(path: Path, mode: int) -> bool:
    """True if this process's effective rights permit the access."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def check_weights(folder: Path, *, field: str | None = None) -> None:
    """Raises DataError unless all weight files are present and complete, with embeddings for the vocabulary of
    config.json.

    Only the headers of the safetensors files are read, never the weights themselves.
    """
    index = folder / _WEIGHTS_INDEX_FILE
    if not (folder / _WEIGHTS_FILE).is_file() and not index.is_file():
        weight_names = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:3])
        raise DataError(
            f"there are no weights in {str(folder)!r}: neither {_WEIGHTS_FILE} nor {_WEIGHTS_INDEX_FILE}"
            + (f", only {weight_names}" if weight_names else ""),
            where=str(folder),
            field=field,
            fix=_DOWNLOAD_AGAIN_FIX,
        )
    if not (folder / _WEIGHTS_FILE).is_file():
        _check_index(index, field)
    embeddings: dict[str, int] = {}
    for file in weight_files(folder):
        try:
            tensors = safetensors.read(file)
        except WorkError as error:
            raise DataError(
                f"{error.what}{_pointer(file)}", where=str(file), field=field, fix=_DOWNLOAD_AGAIN_FIX
            ) from error
        embeddings |= {
            name: tensor.shape[0] for name, tensor in tensors.items() if _EMBEDDINGS.search(name) and tensor.shape
        }
    _check_vocabulary(folder, embeddings, field)


def _check_vocabulary(folder: Path, embeddings: dict[str, int], field: str | None) -> None:
    """Raises DataError if config.json names a number of tokens other than the rows of the embeddings."""
    vocabulary = number_in(settings_of(folder), "vocab_size")
    # A model of custom code may have embeddings that are not of tokens.
    if not vocabulary or not embeddings or vocabulary in embeddings.values() or _has_code(folder):
        return
    name, rows = next(iter(embeddings.items()))
    raise DataError(
        f"config.json names {vocabulary} tokens (vocab_size), and {name} has {rows} rows",
        where=str(folder),
        field=field,
        fix=f"set vocab_size to {rows} if the weights are the model's, or copy config.json and weights again together",
    )


def _has_code(folder: Path) -> bool:
    """True if the model runs code from the folder."""
    try:
        return "auto_map" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _pointer(file: Path) -> str:
    """Returns the end of a sentence about a pointer file, left by a clone without Git LFS; empty for any other file."""
    try:
        with file.open("rb") as opened:
            return ": it is a pointer of Git LFS (git lfs pull)" if opened.read(7) == b"version" else ""
    except OSError:
        return ""


def _check_index(index: Path, field: str | None) -> None:
    """Raises DataError if the index of the weights names no files. The caller opens the named ones."""
    try:
        files = json.loads(index.read_bytes())["weight_map"].values()
        named = bool(files) and all(isinstance(name, str) for name in files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{_WEIGHTS_INDEX_FILE} cannot be read: {type(error).__name__}: {error}"
        raise DataError(problem, where=str(index), field=field, fix=_DOWNLOAD_AGAIN_FIX) from error
    if not named:
        raise DataError(
            f"{_WEIGHTS_INDEX_FILE} names no files of weights", where=str(index), field=field, fix=_DOWNLOAD_AGAIN_FIX
        )


def check_texts(folder: Path, *, field: str | None = None) -> None:
    """Raises DataError unless the folder has tokenizer files and readable generation settings."""
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
    """True if the folder has any file from which transformers, or the folder's own code, could load a tokenizer."""
    return any(file.exists() for pattern in _TOKENIZER_FILES for file in folder.glob(pattern))


def has_plain_tokenizer(folder: Path) -> bool:
    """True if the tokenizer is a sound tokenizer.json, opened alike by every library.

    Only transformers can tell whether other files, a folder's code, or torn files make a tokenizer.
    """
    settings = folder / "tokenizer_config.json"
    try:
        json_decoder(_TokenizerFile).decode((folder / "tokenizer.json").read_bytes())
        if settings.exists():
            json_decoder(dict[str, Any]).decode(settings.read_bytes())
    except (OSError, *UNREADABLE):
        return False
    return True


def has_tokenizer_code(folder: Path) -> bool:
    """True if the tokenizer's settings name custom code."""
    try:
        settings = json_decoder(dict[str, Any]).decode((folder / "tokenizer_config.json").read_bytes())
    except (OSError, *UNREADABLE):
        return False
    return "auto_map" in settings


def has_unembedded_tokens(folder: Path) -> bool:
    """True if tokenizer.json numbers a token beyond the model's vocabulary; no text of a sound model contains one.

    False for a tokenizer in other files, whose tokens can only be counted by opening the tokenizer.
    """
    vocabulary = number_in(settings_of(folder), "vocab_size")
    try:
        tokenizer = json_decoder(_TokenizerFile).decode((folder / "tokenizer.json").read_bytes())
    except (OSError, *UNREADABLE):  # opening the tokenizer raises the fault of the file
        return False
    tokens = tokenizer.model.vocab
    last = len(tokens) - 1 if isinstance(tokens, list) else max(tokens.values(), default=-1)
    last = max([last, *(token.id for token in tokenizer.added_tokens)])
    return bool(vocabulary) and last >= vocabulary


def added_tokens(folder: Path) -> dict[int, str]:
    """Returns the texts of tokenizer.json's added tokens, special ones among them, by number."""
    try:
        tokenizer = json_decoder(_TokenizerFile).decode((folder / "tokenizer.json").read_bytes())
    except (OSError, *UNREADABLE):
        return {}
    return {token.id: token.content for token in tokenizer.added_tokens}


def has_template(folder: Path) -> bool:
    """True if the folder has a chat template, or a tokenizer in the folder's own code that may provide one."""
    if (folder / "chat_template.jinja").is_file() or any(folder.glob("additional_chat_templates/*.jinja")):
        return True
    if any(path for pattern in ("*.py", "tekken*") for path in folder.glob(pattern)):
        return True
    settings = folder / "tokenizer_config.json"
    try:
        return bool(json_decoder(_TokenizerConfig).decode(settings.read_bytes()).chat_template)
    except (OSError, *UNREADABLE):  # opening the tokenizer raises the fault of the file
        return settings.exists()


def generation_ends(folder: Path) -> tuple[int, ...]:
    """Returns the ids that end a text by generation_config.json; () without one. Raises DataError if malformed."""
    settings = folder / "generation_config.json"
    if not settings.exists():
        return ()
    try:
        ends = json_decoder(_GenerationConfig).decode(settings.read_bytes()).eos_token_id
    except (OSError, *UNREADABLE) as error:
        problem = f"generation_config.json is malformed: {error}"
        raise DataError(problem, where=str(settings), fix="correct it, or remove it") from error
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


class _GenerationConfig(msgspec.Struct):
    """The only generation settings used, because the experiment has its own sampling settings."""

    eos_token_id: int | list[int] | None = None


class _TokenizerConfig(msgspec.Struct):
    """The only setting of a tokenizer read without opening it."""

    chat_template: str | list[dict[str, str]] | dict[str, str] | None = None


class _AddedToken(msgspec.Struct):
    """A token beside the ones of the tokenizer's model."""

    id: int
    content: str = ""


class _TokenizerModel(msgspec.Struct):
    """The tokens by text and number, or in the order of their numbers."""

    vocab: dict[str, int] | list[Any] = {}


class _TokenizerFile(msgspec.Struct):
    """The numbers of the tokens in a tokenizer.json."""

    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []
